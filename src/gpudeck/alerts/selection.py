"""The input of alert rules: snapshots of hosts, with the recent past that rules need (late reports, GPUs that
disappeared), and trends (counters that grew, the usual clocks of each model).

Nearly all hosts of a large fleet are well. Once a second, column operations select the hosts to evaluate.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from typing import Final

import numpy as np

from gpudeck.alerts.grouping import count_recent
from gpudeck.alerts.rule import LOADED_PERCENT, CounterGrowth, GoneGpu, Growths, HostSnapshot, Selection
from gpudeck.alerts.rules import RULES
from gpudeck.fleet.baseline import has_other_name
from gpudeck.fleet.columns import NAN, NONE, UP, Flags, Floats, Rows
from gpudeck.fleet.gpu import GpuState
from gpudeck.fleet.host import HostState
from gpudeck.fleet.state import FleetState
from gpudeck.fleet.table import FleetTable
from gpudeck.model.text import show_length
from gpudeck.model.view import HostStatus

HOUR: Final = 3600.0
FORGET_GONE: Final = 7 * 86_400.0
_NOTHING: Final[frozenset[str]] = frozenset()


class _Past:
    """The recent past of one host. `searched` is the value of FleetTable.regroupings when its missing GPUs were last
    searched in the fleet."""

    def __init__(self) -> None:
        self.status: HostStatus = "never_seen"
        self.returns: deque[float] = deque(maxlen=1000)
        self.had: dict[str, GpuState] = {}
        self.gone: dict[str, tuple[GoneGpu, float]] = {}
        self.searched = -1


class HostSelector:
    """Once a second, `choose` hosts and `snapshot` each of them. One event loop owns it."""

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
        """Note all hosts as they are now. GPUs that are missing at the next look are gone."""
        self._is_new = False
        for host in self._fleet.hosts.values():
            self._note(host, now)

    def choose(self, selected: Selection, active: Mapping[str, set[str]], now: float) -> dict[str, set[str]]:
        """The hosts to evaluate now, by id, with the UUIDs of the GPUs to evaluate.

        These are hosts and GPUs that are `selected`, and those of `active` alerts that may change without a report;
        hosts with an alert that have reported since the last look, and their GPUs with changed values; and hosts that
        are or were not up, whose set of GPUs has changed, or that miss a GPU.
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
        """A GPU was lost before this start of the hub. It stays lost until a host reports it."""
        self._miss(host_id, self._past[host_id], gpu, now)

    def forget(self) -> None:
        """Forget hosts that are no longer in the fleet, except hosts that miss a GPU: they may still return."""
        for host_id in self._past.keys() - self._fleet.hosts.keys():
            if not self._past[host_id].gone or self._past[host_id].had:
                del self._past[host_id]
                self._silent.discard(host_id)
                self._bereft.discard(host_id)

    def power_limits(self) -> dict[str, float]:
        """The most common power limit of each model; of two equally common limits, the higher one."""
        self._fleet.settle()
        gpus = self._table.gpus
        watts, models, names = gpus.metric("power_limit_watts"), gpus.model[: gpus.end], list(gpus.models)
        is_limited, usual = watts > 0, {}
        for model in np.unique(models[is_limited]).tolist():
            values, counts = np.unique(watts[is_limited & (models == model)], return_counts=True)
            usual[names[model]] = float(values[counts == counts.max()][-1])
        return usual

    def _find_hosts(self, ids: Collection[str]) -> list[HostState]:
        """Hosts in the fleet. Alerts of a host that had not reported yet have its name instead of its id."""
        hosts, found = self._fleet.hosts, list[HostState]()
        for host_id in ids:
            host = hosts.get(host_id)
            found += self._fleet.called(host_id) if host is None else (host,)
        return found

    def _find_changed(self, selected: Selection, is_alarmed: Flags) -> Flags:
        """The GPUs, by row, of hosts with an alert, or that a rule may find, whose values have changed since the last
        look."""
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
        """Forget them if the host is silent, or if none of its GPUs can be read."""
        self._make_room()
        if host.status != "up" or not is_known:
            self._seen[host.rows] = NAN
        elif gpus:
            rows = np.array([gpu.row for gpu in gpus])
            self._seen[rows] = self._table.gpus.values[np.ix_(rows, self._reads)]

    def _make_room(self) -> None:
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
        # A host that returns after a start of the hub was not late.
        past.status = "never_seen" if host.is_restored else host.status
        (self._silent.discard if host.status == "up" else self._silent.add)(host.id)
        if (host.status == "up" or host.is_restored) and past.had.keys() != host.gpus.keys():
            self._note_gone(host, past, now)
        if host.row >= 0:
            self._table.hosts.is_regrouped[host.row] = self._table.hosts.is_unseen[host.row] = False
        return past

    def _note_gone(self, host: HostState, past: _Past, now: float) -> None:
        """A board that is split into MIG instances is not gone, nor are its instances when that changes, nor a GPU with
        another name from another source."""
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
        """The missing GPUs of a host. A GPU that is in another host now is not missing."""
        is_searched, past.searched = past.searched == self._table.regroupings, self._table.regroupings
        for uuid, (_, at) in list(past.gone.items()):
            is_there = not is_searched and any(uuid in other.gpus for other in self._fleet.hosts.values())
            if is_there or not 0 <= now - at < FORGET_GONE:
                del past.gone[uuid]
        if not past.gone:
            self._bereft.discard(host.id)
        return tuple(gpu for gpu, _ in past.gone.values())


_GROWTH_RULES: Final = tuple(rule for rule in RULES if rule.counter)
_MIN_PEERS: Final = 4


class GpuTrends:
    """`look` at most once a minute. Growth before the start of the hub is not known: a GPU has to be watched for a
    whole window. One event loop owns it, and nothing here blocks."""

    def __init__(self) -> None:
        self._seen: list[GpuState | None] = []
        self._values: Floats = np.empty((0, len(_GROWTH_RULES)))
        self._regroupings = -1
        self._since: dict[str, float] = {}
        self._is_read = np.empty(0, dtype=np.bool_)
        self._grown: dict[str, dict[str, deque[tuple[float, float]]]] = {
            rule.name: defaultdict(deque) for rule in _GROWTH_RULES
        }
        self.growth: Growths = {}
        self.usual_clocks: Mapping[str, float] = {}
        self._looked_at = 0.0

    def look(self, table: FleetTable, now: float) -> None:
        self._looked_at = now
        gpus = table.gpus
        values = gpus.values[: gpus.end][:, [gpus.place[rule.counter] for rule in _GROWTH_RULES]]
        before = self._values_before(table)
        for row, place in np.argwhere(values > before).tolist():
            gpu = self._seen[row]
            if gpu is not None:
                amount = float(values[row, place] - before[row, place])
                self._grown[_GROWTH_RULES[place].name][gpu.uuid].append((now, amount))
        is_read = ~np.isnan(values).all(axis=1)
        self._since |= {gpu.uuid: now for row in np.flatnonzero(is_read & ~self._is_read) if (gpu := self._seen[row])}
        self._is_read |= is_read
        # A value that cannot be read keeps the value before.
        self._values = np.where(np.isnan(values), before, values)
        self.growth = self._add_up(now)
        self.usual_clocks = find_usual_clocks(table)

    def _values_before(self, table: FleetTable) -> Floats:
        """The values before, in the rows of now."""
        if table.regroupings == self._regroupings and len(self._seen) == table.gpus.end:
            return self._values
        nothing = np.full(len(_GROWTH_RULES), NAN)
        known = {gpu.uuid: self._values[row] for row, gpu in enumerate(self._seen) if gpu is not None}
        self._seen, self._regroupings = list(table.gpu_at[: table.gpus.end]), table.regroupings
        rows = [nothing if gpu is None else known.get(gpu.uuid, nothing) for gpu in self._seen]
        self._is_read = np.array([gpu is not None and gpu.uuid in self._since for gpu in self._seen], dtype=np.bool_)
        return np.array(rows).reshape(-1, len(_GROWTH_RULES))

    def why_uncounted(self, window: float, gpu: str) -> str | None:
        watched = self._looked_at - self._since.get(gpu, self._looked_at)
        is_short = 0 <= watched < window
        return f"the hub has counted for only {show_length(watched)} since its start" if is_short else None

    def _add_up(self, now: float) -> Growths:
        gpus = {gpu.uuid: gpu for gpu in self._seen if gpu is not None} if any(self._grown.values()) else {}
        found: dict[str, dict[str, CounterGrowth]] = {rule.name: {} for rule in _GROWTH_RULES}
        for rule in _GROWTH_RULES:
            for uuid, steps in list(self._grown[rule.name].items()):
                while steps and not 0 <= now - steps[0][0] < rule.window:
                    steps.popleft()
                if not steps:
                    del self._grown[rule.name][uuid]
                elif uuid in gpus:
                    found[rule.name][uuid] = CounterGrowth(gpus[uuid], sum(amount for _, amount in steps))
        return found


def find_usual_clocks(table: FleetTable) -> dict[str, float]:
    """The median SM clock of each model under load, without GPUs that their power limit slows down. Models with fewer
    than four such GPUs are left out."""
    gpus = table.gpus
    clocks, models, names = gpus.metric("clock_sm_mhz"), gpus.model[: gpus.end], list(gpus.models)
    is_peer = (gpus.metric("utilization_percent") >= LOADED_PERCENT) & (clocks > 0)
    is_peer &= ~(gpus.metric("throttled_power") > 0) & (gpus.last_seen[: gpus.end] == NONE)
    found, counts = np.unique(models[is_peer], return_counts=True)
    return {
        names[model]: float(np.median(clocks[is_peer & (models == model)]))
        for model in found[counts >= _MIN_PEERS].tolist()
    }
