"""The fleet as rules of alerts see it, with what of its recent past they have to know: who came late, and which GPUs
each host had."""

from collections import Counter, defaultdict, deque
from typing import Final

from gpudeck.alerts.snapshot import GoneGpu, SeenHost
from gpudeck.hub.fleet import Fleet
from gpudeck.hub.gpu import GpuState
from gpudeck.hub.host import HostState
from gpudeck.model.view import HostStatus

HOUR: Final = 3600.0
FORGET_GONE: Final = 7 * 86_400.0


class _Past:
    """What one host was before."""

    def __init__(self) -> None:
        self.status: HostStatus = "never"
        self.returns: deque[float] = deque(maxlen=1000)
        self.had: dict[str, GpuState] = {}
        self.gone: dict[str, tuple[GoneGpu, float]] = {}


class Lookout:
    """`see` each host once a second. One event loop owns it, and nothing here blocks."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._past: dict[str, _Past] = defaultdict(_Past)

    def see(self, host: HostState, now: float) -> SeenHost:
        """The host as it is now."""
        past = self._past[host.id]
        if past.status == "late" and host.status == "up":
            past.returns.append(now)
        # One that comes back after a start of the hub was not late.
        past.status = "never" if host.is_recalled else host.status
        gpus = host.gpus
        if (host.status == "up" or host.is_recalled) and past.had.keys() != gpus.keys():
            self._note_gone(host, past, now)
        view = host.view()
        return SeenHost(
            id=host.id,
            name=host.name,
            status=host.status,
            view=view,
            gpus=[gpu for gpu in view.gpus if gpu.last_seen is None],
            boards=gpus,
            silent_since=host.silent_since,
            failure=host.failure,
            is_expected=host.target is not None,
            is_recalled=host.is_recalled,
            late_times=_count(past.returns, now) if past.returns else 0,
            gone=self._gone(host, past, now) if past.gone else (),
        )

    def expect(self, host_id: str, gpu: GoneGpu, now: float) -> None:
        """A GPU was lost before this start of the hub: it is until somebody tells of it."""
        self._past[host_id].gone[gpu.uuid] = (gpu, now)

    def forget(self) -> None:
        """Hosts that are no longer in the fleet. A host of which a GPU is missed may still come."""
        for host_id in self._past.keys() - self._fleet.hosts.keys():
            if not self._past[host_id].gone or self._past[host_id].had:
                del self._past[host_id]

    def power_limits(self) -> dict[str, float]:
        """The power limit that most GPUs of a model have; of two that as many have, the higher one."""
        counts: dict[str, Counter[float]] = defaultdict(Counter)
        for host in self._fleet.hosts.values():
            for gpu in host.gpus.values():
                if watts := gpu.value("power_limit_watts"):
                    counts[gpu.name][watts] += 1
        return {model: max(watts, key=lambda value: (watts[value], value)) for model, watts in counts.items()}

    def _note_gone(self, host: HostState, past: _Past, now: float) -> None:
        """A board that is cut into instances is not gone, nor are they when it is whole again, or cut otherwise."""
        gpus = host.gpus
        boards = {gpu.parent for gpu in gpus.values()} | gpus.keys()
        for uuid, gpu in past.had.items():
            if uuid not in boards and gpu.parent not in boards - {None}:
                past.gone[uuid] = (GoneGpu(uuid, gpu.label, gpu.name), now)
        past.had = dict(gpus)

    def _gone(self, host: HostState, past: _Past, now: float) -> tuple[GoneGpu, ...]:
        """Those that are in no host now: one that was moved is not lost."""
        for uuid, (_, at) in list(past.gone.items()):
            is_there = any(uuid in other.gpus for other in self._fleet.hosts.values())
            if is_there or not 0 <= now - at < FORGET_GONE:
                del past.gone[uuid]
        return tuple(gpu for gpu, _ in past.gone.values())


def _count(times: deque[float], now: float) -> int:
    """Within the last hour. A clock that was set back makes all that was before worth nothing."""
    while times and not 0 <= now - times[0] < HOUR:
        times.popleft()
    return len(times)
