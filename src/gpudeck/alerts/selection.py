"""The input of alert rules: snapshots of hosts, with the recent past that rules need (late reports, GPUs that
disappeared).

Of a thousand hosts nearly all are well: columns say once a second which ones have to be looked at. What is kept of a
host's past changes only while it is one of these.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from typing import Final

import numpy as np

from gpudeck.alerts.grouping import count_recent
from gpudeck.alerts.rule import GoneGpu, HostSnapshot, Selection
from gpudeck.fleet.baseline import has_other_name
from gpudeck.fleet.columns import NAN, NONE, UP, Flags, Floats, Rows
from gpudeck.fleet.gpu import GpuState
from gpudeck.fleet.host import HostState
from gpudeck.fleet.state import FleetState
from gpudeck.model.view import HostStatus

HOUR: Final = 3600.0
FORGET_GONE: Final = 7 * 86_400.0
_NOTHING: Final[frozenset[str]] = frozenset()


class _Past:
    """The recent past of one host. `searched` is the state of the fleet (FleetTable.regroupings) in which the GPUs that
    are gone were last looked for."""

    def __init__(self) -> None:
        self.status: HostStatus = "never_seen"
        self.returns: deque[float] = deque(maxlen=1000)
        self.had: dict[str, GpuState] = {}
        self.gone: dict[str, tuple[GoneGpu, float]] = {}
        self.searched = -1


class HostSelector:
    """Once a second, `choose` hosts and `snapshot` each of them. One event loop owns it, and nothing here blocks."""

    def __init__(self, fleet: FleetState) -> None:
        self._fleet = fleet
        self._table = fleet.table
        self._past: dict[str, _Past] = defaultdict(_Past)
        self._silent: set[str] = set()
        self._bereft: set[str] = set()
        self._is_new = True
        self._reads: Rows = np.zeros(0, np.int64)
        self._seen: Floats = np.empty((0, 0))

    def remember(self, now: float) -> None:
        """All hosts as they are now: what they have no longer when they are seen next is gone."""
        self._is_new = False
        for host in self._fleet.hosts.values():
            self._note(host, now)

    def choose(self, selected: Selection, active: Mapping[str, set[str]], now: float) -> dict[str, set[str]]:
        """The hosts to see now, by id, with the UUIDs of those of their GPUs that are to be looked at.

        In addition to hosts and GPUs that are `selected`, and those of `active` alerts that may change by themselves,
        these are hosts with an alert that have reported since they were last seen, those of their GPUs of which a value
        is another, and the hosts that are or were not up, that have other GPUs than before, or that miss one.
        """
        self._fleet.settle()
        if self._is_new:
            self.remember(now)
        hosts, gpus, host_at, gpu_at = self._table.hosts, self._table.gpus, self._table.host_at, self._table.gpu_at
        alarmed = self._find_hosts(active)
        is_steady = selected.steady_hosts.copy()
        is_steady[[host.row for host in alarmed if host.row >= 0]] = True
        is_other = self._find_changed(selected, is_steady)
        status, owners = hosts.status[: hosts.end], gpus.host[: gpus.end]
        is_regrouped = hosts.is_regrouped[: hosts.end]
        gpu_rows = np.flatnonzero((selected.gpus | is_other | is_regrouped[owners]) & (owners >= 0))
        is_chosen = selected.hosts | is_regrouped | (status != UP)
        is_chosen |= is_steady & (selected.is_anew | hosts.is_unseen[: hosts.end])
        is_chosen[owners[gpu_rows]] = True
        rows = np.flatnonzero(is_chosen & (status != NONE)).tolist()
        found = [host for row in rows if (host := host_at[row]) is not None]
        found += self._find_hosts([host_id for host_id, uuids in active.items() if uuids])
        found += self._find_hosts([*self._silent, *self._bereft])
        suspects: dict[int, set[str]] = defaultdict(set)
        for row, owner in zip(gpu_rows.tolist(), owners[gpu_rows].tolist(), strict=True):
            if (gpu := gpu_at[row]) is not None:
                suspects[owner].add(gpu.uuid)
        return {
            host.id: suspects[host.row] | active.get(host.id, _NOTHING)
            for host in sorted(found, key=lambda host: host.row)
        }

    def snapshot(self, host: HostState, now: float, uuids: Collection[str] | None = None) -> HostSnapshot:
        """The host as it is now, with all of its GPUs or with these."""
        past = self._note(host, now)
        late_times = count_recent(past.returns, now, HOUR) if past.returns else 0
        if host.row >= 0:
            self._table.hosts.late_times[host.row] = late_times
        current = host.current_gpus()
        gpus = [gpu for gpu in current if uuids is None or gpu.uuid in uuids]
        if uuids is not None:
            self._remember_values(host, gpus, is_known=bool(current))
        return HostSnapshot(
            id=host.id,
            name=host.name,
            status=host.status,
            view=host.own_view(),
            gpus=host.show(gpus),
            chosen=uuids,
            has_gpus=bool(current),
            boards=host.gpus,
            silent_since=host.silent_since,
            failure=host.failure,
            is_expected=host.target is not None,
            is_restored=host.is_restored,
            late_times=late_times,
            gone=self._gone(host, past, now) if past.gone else (),
        )

    def expect(self, host_id: str, gpu: GoneGpu, now: float) -> None:
        """A GPU was lost before this start of the hub: it stays lost until a host reports it."""
        self._miss(host_id, self._past[host_id], gpu, now)

    def forget(self) -> None:
        """Hosts that are no longer in the fleet. A host of which a GPU is missed may still come."""
        for host_id in self._past.keys() - self._fleet.hosts.keys():
            if not self._past[host_id].gone or self._past[host_id].had:
                del self._past[host_id]
                self._silent.discard(host_id)
                self._bereft.discard(host_id)

    def power_limits(self) -> dict[str, float]:
        """The power limit that most GPUs of a model have; of two that as many have, the higher one."""
        self._fleet.settle()
        gpus = self._table.gpus
        watts, models, names = gpus.metric("power_limit_watts"), gpus.model[: gpus.end], list(gpus.models)
        is_limited, usual = watts > 0, {}
        for model in np.unique(models[is_limited]).tolist():
            values, counts = np.unique(watts[is_limited & (models == model)], return_counts=True)
            usual[names[model]] = float(values[counts == counts.max()][-1])
        return usual

    def _find_hosts(self, ids: Collection[str]) -> list[HostState]:
        """Those in the fleet. An alert of a host that had not reported yet has the host's name instead of its id."""
        everybody, found = self._fleet.hosts, list[HostState]()
        for host_id in ids:
            host = everybody.get(host_id)
            found += self._fleet.called(host_id) if host is None else (host,)
        return found

    def _find_changed(self, selected: Selection, is_alarmed: Flags) -> Flags:
        """The GPUs, by row, of hosts with an alert, or of which a rule may find something, with another value than when
        they were last seen."""
        gpus = self._table.gpus
        self._reads = np.array([gpus.place[name] for name in selected.reads], np.int64)
        self._make_room()
        owners = gpus.host[: gpus.end]
        is_watched = selected.steady_gpus | (is_alarmed[owners] & (owners >= 0))
        self._seen[: gpus.end][~is_watched] = NAN
        rows = np.flatnonzero(is_watched)
        values, before = gpus.values[np.ix_(rows, self._reads)], self._seen[rows]
        is_other = (values != before) & ~(np.isnan(values) & np.isnan(before))
        is_watched[rows] = selected.is_anew | is_other.any(axis=1)
        return is_watched

    def _remember_values(self, host: HostState, gpus: list[GpuState], *, is_known: bool) -> None:
        """As they are seen now; of a host that is silent, or of which no GPU can be read, nothing is."""
        self._make_room()
        if host.status != "up" or not is_known:
            self._seen[host.rows] = NAN
        elif gpus:
            rows = np.array([gpu.row for gpu in gpus])
            self._seen[rows] = self._table.gpus.values[np.ix_(rows, self._reads)]

    def _make_room(self) -> None:
        """For what was seen of each GPU, by row."""
        rows, width = len(self._table.gpus.values), len(self._reads)
        if self._seen.shape != (rows, width):
            grown = np.full((rows, width), NAN)
            if self._seen.shape[1] == width:
                grown[: len(self._seen)] = self._seen
            self._seen = grown

    def _note(self, host: HostState, now: float) -> _Past:
        past = self._past[host.id]
        if past.status == "late" and host.status == "up":
            past.returns.append(now)
        # One that comes back after a start of the hub was not late.
        past.status = "never_seen" if host.is_restored else host.status
        (self._silent.discard if host.status == "up" else self._silent.add)(host.id)
        if (host.status == "up" or host.is_restored) and past.had.keys() != host.gpus.keys():
            self._note_gone(host, past, now)
        if host.row >= 0:
            self._table.hosts.is_regrouped[host.row] = self._table.hosts.is_unseen[host.row] = False
        return past

    def _note_gone(self, host: HostState, past: _Past, now: float) -> None:
        """A board that is cut into instances is not gone, nor are they when it is whole again, or cut otherwise; nor is
        a GPU that another source calls otherwise."""
        gpus = host.gpus
        boards = {gpu.parent for gpu in gpus.values()} | gpus.keys()
        for uuid, gpu in past.had.items():
            is_known = uuid in boards or gpu.parent in boards - {None} or has_other_name(uuid, gpu.label, gpus)
            if not is_known:
                self._miss(host.id, past, GoneGpu(uuid, gpu.label, gpu.name), now)
        past.had = dict(gpus)

    def _miss(self, host_id: str, past: _Past, gpu: GoneGpu, now: float) -> None:
        past.gone[gpu.uuid], past.searched = (gpu, now), -1
        self._bereft.add(host_id)

    def _gone(self, host: HostState, past: _Past, now: float) -> tuple[GoneGpu, ...]:
        """Those that are in no host now: one that was moved is not lost."""
        is_searched, past.searched = past.searched == self._table.regroupings, self._table.regroupings
        for uuid, (_, at) in list(past.gone.items()):
            is_there = not is_searched and any(uuid in other.gpus for other in self._fleet.hosts.values())
            if is_there or not 0 <= now - at < FORGET_GONE:
                del past.gone[uuid]
        if not past.gone:
            self._bereft.discard(host.id)
        return tuple(gpu for gpu, _ in past.gone.values())
