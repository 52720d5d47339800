"""What rules compare a GPU with other than limits: how much its counters of errors grew, and how fast others of its
model run. Columns are compared once a minute; only what grew costs more than that."""

from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct

from gpudeck.fleet.columns import NAN, NONE, Floats
from gpudeck.fleet.gpu import GpuState
from gpudeck.fleet.table import FleetTable

HOUR: Final = 3600.0
WINDOWS: Final = {"ecc_corrected_count": HOUR, "nvlink_error_count": HOUR, "remapped_rows_count": 24 * HOUR}
"""Over how many seconds the growth of each counter is added up."""
LOADED_PERCENT: Final = 90.0
_MIN_PEERS: Final = 4


class CounterGrowth(Struct, frozen=True):
    gpu: GpuState
    amount: float


Growths = Mapping[str, Mapping[str, CounterGrowth]]
"""By counter and UUID: the GPUs of which it grew within its window. A counter that began anew has not grown."""


class GpuTrends:
    """`look` at most once a minute. What happened before the hub was started is not known. One event loop owns it, and
    nothing here blocks."""

    def __init__(self) -> None:
        self._seen: list[GpuState | None] = []
        self._values: Floats = np.empty((0, len(WINDOWS)))
        self._regroupings = -1
        self._grown: dict[str, dict[str, deque[tuple[float, float]]]] = {name: defaultdict(deque) for name in WINDOWS}
        self.growth: Growths = {}
        self.usual_clocks: Mapping[str, float] = {}

    def look(self, table: FleetTable, now: float) -> None:
        gpus = table.gpus
        values = gpus.values[: gpus.end][:, [gpus.place[name] for name in WINDOWS]]
        before = self._values_before(table)
        names = tuple(WINDOWS)
        for row, place in np.argwhere(values > before).tolist():
            gpu = self._seen[row]
            if gpu is not None:
                self._grown[names[place]][gpu.uuid].append((now, float(values[row, place] - before[row, place])))
        # What cannot be read now is compared with what it was before.
        self._values = np.where(np.isnan(values), before, values)
        self.growth = self._add_up(now)
        self.usual_clocks = find_usual_clocks(table)

    def _values_before(self, table: FleetTable) -> Floats:
        """Of those that are in the rows now."""
        if table.regroupings == self._regroupings and len(self._seen) == table.gpus.end:
            return self._values
        nothing = np.full(len(WINDOWS), NAN)
        known = {gpu.uuid: self._values[row] for row, gpu in enumerate(self._seen) if gpu is not None}
        self._seen, self._regroupings = list(table.gpu_at[: table.gpus.end]), table.regroupings
        rows = [nothing if gpu is None else known.get(gpu.uuid, nothing) for gpu in self._seen]
        return np.array(rows).reshape(-1, len(WINDOWS))

    def _add_up(self, now: float) -> Growths:
        gpus = {gpu.uuid: gpu for gpu in self._seen if gpu is not None} if any(self._grown.values()) else {}
        found: dict[str, dict[str, CounterGrowth]] = {name: {} for name in WINDOWS}
        for name, seconds in WINDOWS.items():
            for uuid, steps in list(self._grown[name].items()):
                while steps and not 0 <= now - steps[0][0] < seconds:
                    steps.popleft()
                if not steps:
                    del self._grown[name][uuid]
                elif uuid in gpus:
                    found[name][uuid] = CounterGrowth(gpus[uuid], sum(amount for _, amount in steps))
        return found


def find_usual_clocks(table: FleetTable) -> dict[str, float]:
    """The median SM clock of each model under load, without GPUs that their power limit slows down. Of a model with
    fewer than four such GPUs none is usual."""
    gpus = table.gpus
    clocks, models, names = gpus.metric("clock_sm_mhz"), gpus.model[: gpus.end], list(gpus.models)
    is_peer = (gpus.metric("utilization_percent") >= LOADED_PERCENT) & (clocks > 0)
    is_peer &= ~(gpus.metric("throttled_power") > 0) & (gpus.last_seen[: gpus.end] == NONE)
    found, counts = np.unique(models[is_peer], return_counts=True)
    return {
        names[model]: float(np.median(clocks[is_peer & (models == model)]))
        for model in found[counts >= _MIN_PEERS].tolist()
    }
