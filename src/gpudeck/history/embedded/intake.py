"""Samples by the file's own numbers: which GPUs and which runs they are of. Only the writer's thread does this."""

from itertools import chain
from typing import Final

from gpudeck.history.embedded.batch import Batch, Cast, Head, gather
from gpudeck.history.embedded.keys import HostKeys, Keys
from gpudeck.history.sample import GpuSample, HostSample, ProcessSample, Values
from gpudeck.model.clock import Clock

_AHEAD: Final = 60.0
"""A sample that lies so far ahead of the hub's clock was taken while that was wrong."""

_Processes = tuple[tuple[ProcessSample, ...] | None, ...]


class Intake:
    def __init__(self, keys: Keys, now: Clock) -> None:
        self._keys = keys
        self._now = now

    def take(self, samples: list[HostSample]) -> Batch:
        """Inside of a transaction: what is new gets its number."""
        heads: list[Head] = []
        own: list[Values] = []
        tables: list[Values] = []
        company: list[tuple[float | None, ...]] = []
        for sample in samples:
            _, _, at, interval, values, gpus = sample
            host = self._keys.host(sample)
            own += (at, interval), values
            if gpus:
                # Column by column: each is taken, or compared with the last one, at once.
                uuids, labels, models, states, rows, processes = zip(*gpus, strict=True)
                tables += rows
                everybody = tuple(chain.from_iterable(filter(None, processes)))
                sight: tuple[object, ...] = (uuids, labels, models, [some and len(some) for some in processes])
                if everybody:
                    pids, starts, _, _, _, _, memories, utilizations = zip(*everybody, strict=True)
                    sight = (*sight, pids, starts)
                    company += memories, utilizations
                cast = self._cast(host, at, sight, gpus)
                heads.append(Head(host.key, bytes(states), cast))
            else:
                heads.append(Head(host.key, b"", self._cast(host, at, (), ())))
            host.last = max(host.last, at)
            host.first = min(host.first, at)
            host.is_changed = True
        return gather(heads, own, tables, company)

    def _cast(self, host: HostKeys, at: float, sight: tuple[object, ...], gpus: tuple[GpuSample, ...]) -> Cast:
        """Nearly always a sample has the GPUs and processes of the one before."""
        is_late = at < host.last and self._is_late(host, at)
        if sight == host.sight and not is_late:
            return host.cast
        keys = [self._keys.gpu(host, gpu, at) for gpu in gpus]
        cast = Cast(tuple(keys), tuple([self._runs(host, gpu, key, at) for gpu, key in zip(gpus, keys, strict=True)]))
        if not is_late:
            host.sight, host.cast = sight, cast
            self._end_runs(host, gpus)
        return cast

    def _runs(self, host: HostKeys, gpu: GpuSample, key: int, at: float) -> tuple[int, ...] | None:
        if gpu.processes is None:
            return None
        return tuple([self._keys.run(host, process, key, at).key for process in gpu.processes])

    def _is_late(self, host: HostKeys, at: float) -> bool:
        """Whether newer samples of that host are known. Those of a clock that ran ahead and was set right do not count:
        else nobody would come or go until their time."""
        if host.last <= self._now() + _AHEAD:
            return True
        host.last = at
        return False

    def _end_runs(self, host: HostKeys, gpus: tuple[GpuSample, ...]) -> None:
        """Runs that are no longer there. Where it is not known who is on some GPU, none is said to be gone."""
        if any(gpu.processes is None for gpu in gpus):
            return
        present = {process.pid for gpu in gpus for process in gpu.processes or ()}
        for pid in [pid for pid in host.runs if pid not in present]:
            self._keys.end(host, pid)
