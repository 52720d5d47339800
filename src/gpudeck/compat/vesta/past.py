"""`fetch_num` of a host with an agent: what the history measured before its newest state, to ten seconds."""

from typing import Final

from gpudeck.compat.vesta.samples import Json, Moment
from gpudeck.compat.vesta.states import mebibytes, name_program
from gpudeck.history.base import MOST_POINTS, Ask, HistoryRefused, Run, RunsAsk, Store
from gpudeck.hub.sight import Sight

_STEP: Final = 10.0
_FINE_SPAN: Final = _STEP * MOST_POINTS
_LONG_SPAN: Final = 30 * 86_400.0
_METRICS: Final = {
    "temperature": "temperature_celsius",
    "total_memory": "memory_total_bytes",
    "used_memory": "memory_used_bytes",
    "gpu_volatile": "utilization_percent",
}
_SIZES: Final = frozenset({"total_memory", "used_memory"})


class PastOfHost:
    """`models` are the names of the models by UUID, as they are now."""

    def __init__(self, store: Store, host: str, models: dict[str, str], sight: Sight) -> None:
        self._store = store
        self._host = host
        self._sight = sight
        self._models = models

    def read(self, since: float, until: float, count: int) -> list[Moment]:
        """The `count` newest between both times, in order; fewer where there are no more. Blocks. Raises Temporary.

        They are told to ten seconds; of a host that has been silent for long, to minutes.
        """
        for span in (_FINE_SPAN, _LONG_SPAN):
            try:
                found = self._read(max(since + _STEP, until - span), until)
            except HistoryRefused:
                return []
            if found:
                return [moment for moment in found if moment[0] > since][-count:]
        return []

    def _read(self, start: float, end: float) -> list[Moment]:
        moments: dict[float, dict[str, Json]] = {}
        labels: dict[str, str] = {}
        for word, metric in _METRICS.items():
            ask = Ask(metric, start, end, MOST_POINTS, host=self._host, by="gpu")
            for series in self._store.series(ask).series:
                uuid = series.gpu or ""
                labels[uuid] = series.label or "0"
                if series.model is not None:
                    self._models.setdefault(uuid, series.model)
                for at, mean, _, _ in series.points:
                    if mean is not None and at < end:
                        moments.setdefault(at, {}).setdefault(uuid, {})[word] = mean
        runs = self._store.runs(RunsAsk(start=start, end=end, host=self._host, limit=1000)).runs if moments else []
        return [(at, self._describe(gpus, labels, runs, at)) for at, gpus in sorted(moments.items())]

    def _describe(self, gpus: dict[str, Json], labels: dict[str, str], runs: list[Run], at: float) -> Json:
        ordered = sorted(gpus, key=lambda uuid: (len(labels[uuid]), labels[uuid]))
        return {
            f"gpu:{labels[uuid]}": self._describe_gpu(
                uuid, labels[uuid], gpus[uuid], [run for run in runs if _is_on(run, uuid, at)]
            )
            for uuid in ordered
        }

    def _describe_gpu(self, uuid: str, label: str, values: Json, runs: list[Run]) -> Json:
        told = {word: _whole(word, values.get(word)) for word in _METRICS}
        used, total = told["used_memory"], told["total_memory"]
        free = None if used is None or total is None else total - used
        number = label.partition(".")[0]
        facts = {"device_num": int(number) if number.isdigit() else None, "uuid": uuid}
        model = self._models.get(uuid) or next((run.model for run in runs), None)
        processes = [self._describe_run(run) for run in runs]
        return facts | {"gpu_name": model} | told | {"available_memory": free, "processes": processes}

    def _describe_run(self, run: Run) -> Json:
        return {
            "pid": str(run.pid),
            "name": name_program(run.command) if self._sight.shows_commands_of(run.user) else None,
            "user": run.user,
            # The history has it of all its GPUs together.
            "used_memory": None if run.mean_memory_bytes is None else mebibytes(run.mean_memory_bytes / len(run.gpus)),
        }


def _is_on(run: Run, uuid: str, at: float) -> bool:
    """A sample stands for some seconds, within which a program may have come or gone."""
    return uuid in run.gpus and run.seen_at < at + _STEP and (run.ended_at is None or run.ended_at >= at)


def _whole(word: str, value: float | None) -> int | None:
    if value is None:
        return None
    return mebibytes(value) if word in _SIZES else round(value)
