"""Samples as arrays, by the file's own numbers: what the journal writes and an open hour keeps.

A batch is what came in at once, of any hosts: one table of all hosts, one of all GPUs and one line of all runs, so that
numpy is called a few times a batch and not a few times a host.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from gpudeck.history.hour import Bytes, Floats
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES, Values
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS

MOMENT: Final = 2
"""The first columns of a host's own: when it was, and the time to the next sample."""


class Layout(NamedTuple):
    """The names of a sample's values: those of the version that wrote it."""

    gpu: tuple[str, ...] = GPU_NAMES
    host: tuple[str, ...] = HOST_NAMES


class Cast(NamedTuple):
    """The GPUs of a host, and the runs on each of them; None where nobody knows who is there."""

    gpus: tuple[int, ...]
    runs: tuple[tuple[int, ...] | None, ...]


class Head(NamedTuple):
    """Whose sample it is, and the states of the GPUs in the order of the cast."""

    host: int
    states: bytes
    cast: Cast


class Row(NamedTuple):
    """One sample of a batch. `own` is moment, interval and the host's values; `table` is (GPUs, values).

    `company` is the memory in bytes of each run, GPU by GPU, and after those the utilization of each.
    """

    host: int
    cast: Cast
    own: Floats
    states: Bytes
    table: Floats
    company: Floats


class Batch(Struct):
    """`own`, `table` and `company` are those of all rows, one after another."""

    heads: list[Head]
    own: Floats
    table: Floats
    company: Floats

    def rows(self) -> Iterator[Row]:
        states = np.frombuffer(b"".join([head.states for head in self.heads]), dtype=np.uint8)
        own, table, company = self.own, self.table, self.company
        gpu = run = 0
        for place, (host, _, cast) in enumerate(self.heads):
            gpus, runs = gpu + len(cast.gpus), run + 2 * count_runs(cast)
            yield Row(host, cast, own[place], states[gpu:gpus], table[gpu:gpus], company[run:runs])
            gpu, run = gpus, runs


def count_runs(cast: Cast) -> int:
    """How many there are, on each GPU by itself."""
    return sum([len(runs) for runs in cast.runs if runs])


def gather(
    heads: list[Head], own: Sequence[Values], tables: Sequence[Values], company: Iterable[Sequence[float | None]]
) -> Batch:
    """`own` are two for each head: moment with interval, and values. `tables` are the values of each GPU."""
    others = list(company)
    hosts, gpus, runs = sum(map(len, own)), sum(map(len, tables)), sum(map(len, others))
    # All in one go: to begin an array costs more than to fill it.
    numbers = np.fromiter(chain.from_iterable((*own, *tables, *others)), "<f8", hosts + gpus + runs)
    return Batch(
        heads,
        numbers[:hosts].reshape(len(heads), -1),
        numbers[hosts : hosts + gpus].reshape(len(tables), -1 if tables else 0),
        numbers[hosts + gpus :],
    )


@cache
def precisions_of(layout: Layout) -> tuple[Floats, Floats]:
    """The smallest step worth keeping of each metric; of one that is no longer in the catalog, a millionth."""
    return (
        np.array([GPU_METRICS[name].precision if name in GPU_METRICS else 1e-6 for name in layout.gpu]),
        np.array([HOST_METRICS[name].precision if name in HOST_METRICS else 1e-6 for name in layout.host]),
    )
