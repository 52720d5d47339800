"""The simulated fleet, and one of its hosts as an ordinary collector."""

from gpudeck.collectors.simulated.inventory import build_host
from gpudeck.collectors.simulated.jobs import BlockCache, Run, Timeline
from gpudeck.collectors.simulated.mishaps import cast, extra
from gpudeck.collectors.simulated.people import Crowd
from gpudeck.collectors.simulated.station import Station
from gpudeck.model.errors import Temporary
from gpudeck.model.report import Report


class SimulatedFleet:
    """A lab that does not exist. Every answer depends only on seed, number of hosts, host and moment.

    Moments may be asked in any order, however far apart; going on from the last one is cheapest. Hosts are numbered
    from 0 and made when first asked about. `names` are theirs, in order.
    """

    def __init__(self, hosts: int = 24, seed: int = 1) -> None:
        width = max(2, len(str(hosts)))
        self.names: tuple[str, ...] = tuple(f"gpu{number:0{width}d}" for number in range(1, hosts + 1))
        self._seed = seed
        self._cast = cast(seed, hosts)
        self._crowd = Crowd(seed, hosts)
        self._blocks = BlockCache()
        self._stations: dict[int, Station] = {}

    def report(self, host: int, now: float) -> Report | None:
        """What that host would report at `now` (Unix seconds); None while it is dead and sends nothing."""
        return self._station(host).report(now)

    def host_id(self, host: int) -> str:
        """What stays when the host is renamed or booted."""
        return self._station(host).host.id

    def boot_id(self, host: int, now: float) -> str:
        """New with every boot; a dead host has the one it died with."""
        return self._station(host).boot_id(now)

    def runs(self, host: int, start: float, end: float) -> list[Run]:
        """The truth behind the reports: every job that was on the host at some time from `start` until before `end`.

        Oldest first. A job that reaches beyond the span is given whole.
        """
        return self._station(host).timeline.overlapping(start, end)

    def turns(self, host: int, start: float, end: float) -> list[float]:
        """The moments from `start` until before `end`, in order, at which something may happen to that host that makes
        news: it dies, boots, loses a GPU, a driver tells of a fault."""
        return self._station(host).turns(start, end)

    def group_of(self, login: str) -> str | None:
        """Where somebody of the lab belongs; None for a login that nobody has here."""
        return next((user.group for user in self._crowd.users if user.name == login), None)

    def _station(self, number: int) -> Station:
        station = self._stations.get(number)
        if station is None:
            name = self.names[number]
            machine = self._cast[number] if number < len(self._cast) else extra(self._seed, number)
            host = build_host(self._seed, number, name, *machine)
            station = Station(host, Timeline(self._seed, host, self._crowd, self._blocks))
            self._stations[number] = station
        return station


class SimulatedHost:
    """One host of a fleet, read the way a real machine is read."""

    name = "simulated"

    def __init__(self, fleet: SimulatedFleet, host: int) -> None:
        self._fleet = fleet
        self._host = host

    def collect(self, now: float) -> Report:
        """The host's whole report. Raises Temporary while the host is dead."""
        report = self._fleet.report(self._host, now)
        if report is None:
            raise Temporary(f"{self._fleet.names[self._host]} is dead at the moment.", "It comes back within minutes.")
        return report

    def close(self) -> None:
        """Nothing is open."""
