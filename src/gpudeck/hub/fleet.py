"""The fleet in memory: every host's newest state, and which of them changed since the stream last looked.

One event loop owns a fleet: nothing here is locked, and nothing here blocks.
"""

from collections import Counter

import msgspec

from gpudeck import __version__
from gpudeck.hub.host import HostState
from gpudeck.model.availability import AVAILABILITIES
from gpudeck.model.errors import ReportRefused
from gpudeck.model.fleet_settings import FleetSettings
from gpudeck.model.view import Totals
from gpudeck.wire import Envelope


class Fleet:
    """All hosts by id. `dirty` holds the ids whose view changed, `removed` those that left, until `take_changes`."""

    def __init__(self, settings: FleetSettings) -> None:
        self.settings = settings
        self.hosts: dict[str, HostState] = {}
        self.counters: Counter[str] = Counter()
        self._dirty: set[str] = set()
        self._removed: set[str] = set()

    def apply(self, envelope: Envelope, *, via: str, now: float, sent_at: float | None = None) -> bool:
        """Take a report that arrived at `now`; False when it is a repeated or outdated one, which changes nothing.

        `sent_at` is the agent's clock at the moment of sending: with it the hub tells a wrong clock from a report that
        waited in an outbox, and dates the report by its own clock.
        """
        host = self._host(envelope, via)
        if not host.accepts(envelope):
            self.counters["reports_outdated"] += 1
            self._refuse_rival(host, envelope)
            return False
        waited = 0.0 if sent_at is None else max(0.0, sent_at - envelope.collected_at)
        skew = None if sent_at is None else round(sent_at - now, 1)
        self.hosts[host.id] = host
        self._removed.discard(host.id)
        self.counters["values_rejected"] += host.take(envelope, now - waited, skew, now)
        host.age(now)
        self.counters["reports_taken"] += 1
        self._dirty.add(host.id)
        return True

    def age(self, now: float) -> None:
        """Let time pass for every host: late, down, and at last forgotten."""
        forgotten = []
        for host in self.hosts.values():
            if host.age(now):
                self._dirty.add(host.id)
            if now - host.observed_at > self.settings.forget_after:
                forgotten.append(host.id)
        for host_id in forgotten:
            self.remove(host_id)

    def remove(self, host_id: str) -> None:
        """Forget a host; it comes back with its next report."""
        del self.hosts[host_id]
        self._dirty.discard(host_id)
        self._removed.add(host_id)

    def take_changes(self) -> tuple[list[HostState], list[str]]:
        """The hosts that changed and the ids that left since the last call."""
        changed = [self.hosts[host_id] for host_id in self._dirty]
        removed = sorted(self._removed)
        self._dirty.clear()
        self._removed.clear()
        return changed, removed

    def ordered(self) -> list[HostState]:
        """The hosts by name: the order in which everything lists them."""
        return sorted(self.hosts.values(), key=lambda host: (host.name, host.id))

    def find(self, name: str) -> HostState | None:
        """A host by its id or, failing that, by its name."""
        return self.hosts.get(name) or next((host for host in self.hosts.values() if host.name == name), None)

    def totals(self) -> Totals:
        """Counts over all hosts; the power is None when no host reports any."""
        counts = dict.fromkeys(AVAILABILITIES, 0)
        users: set[str] = set()
        power: list[float] = []
        up = 0
        for host in self.hosts.values():
            up += host.status == "up"
            users |= host.users
            for word, number in host.counts.items():
                counts[word] += number
            if host.power_watts is not None:
                power.append(host.power_watts)
        return Totals(
            gpus=sum(counts.values()),
            **counts,
            hosts=len(self.hosts),
            hosts_up=up,
            users=len(users),
            power_watts=round(sum(power), 1) if power else None,
        )

    def _id_of(self, envelope: Envelope) -> str:
        """The machine id, or the name where there is none. Machines cloned with their id are told apart by their names.

        A machine that was renamed keeps its id: it has not been rebooted, or it was away while it was.
        """
        if not envelope.host_id:
            return envelope.host
        own = f"{envelope.host_id}:{envelope.host}"
        if own in self.hosts:
            return own
        known = self.hosts.get(envelope.host_id)
        is_clone = known is not None and known.is_other_machine(envelope)
        return own if is_clone else envelope.host_id

    def encoded(self, time: float, *, demo: bool) -> bytes:
        """The whole fleet as JSON (see model.view.Fleet)."""
        facts = {"demo": demo, "time": time, "version": __version__, "totals": self.totals(), "hosts": []}
        hosts = b",".join(host.encoded() for host in self.ordered())
        return msgspec.json.encode(facts)[:-2] + hosts + b"]}"

    def _refuse_rival(self, host: HostState, envelope: Envelope) -> None:
        """Two agents at once that claim to be one host: the newer is believed, and both hear of it."""
        if host.is_run_of(envelope):
            return
        host.note_problem("another agent reports as this host too; only the one started last is shown")
        self._dirty.add(host.id)
        raise ReportRefused(
            409,
            "replaced",
            f"another agent, started later, reports as {host.name}",
            "Stop one of the two, or give each machine an id of its own (/etc/machine-id).",
        )

    def _host(self, envelope: Envelope, via: str) -> HostState:
        host_id = self._id_of(envelope)
        host = self.hosts.get(host_id)
        if host is not None:
            host.via = via
            return host
        if len(self.hosts) >= self.settings.max_hosts:
            raise ReportRefused(
                503,
                "fleet_full",
                f"this hub already watches {len(self.hosts)} hosts",
                "Raise fleet.max_hosts in its configuration.",
            )
        return HostState(host_id, via, self.settings)
