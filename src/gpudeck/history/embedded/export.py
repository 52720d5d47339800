"""Samples as columns, for exports; how large the file and its tables are."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpudeck.history.answers import find_gpu, find_host
from gpudeck.history.base import KnownHost, SamplePage, SamplesQuery
from gpudeck.history.codec import Floats
from gpudeck.history.embedded.view import HistoryView
from gpudeck.history.export import Column
from gpudeck.history.hour import ABSENT, SECONDS, UNKNOWN, Hour, RunSlice
from gpudeck.history.metrics import check_names
from gpudeck.history.sample import HOST_PREFIX, STATES

_ROWS_A_PAGE: Final = 20_000
_HOURS_A_PAGE: Final = 200
"""Where most rows of an hour are not wanted."""
_BYTES = "CAST(total(length(body)) AS INTEGER)"
_TABLES = dict.fromkeys(("chunks", "quarters", "host_hours", "fleet_quarters"), _BYTES)
_TABLES |= {"uses": "NULL", "uses_of_all": "NULL", "runs": "NULL", "journal": _BYTES}


def read_page(view: HistoryView, query: SamplesQuery) -> SamplePage:
    """Some hours, host by host in order of time: a row a GPU and moment. Raises HistoryRefused."""
    _check_names(view, query)
    wanted = [host for _, host in sorted(view.hosts().items()) if _is_wanted(host, query)]
    parts: list[list[Column]] = []
    rows = 0
    for host, hour in _hours_after(view, query, wanted):
        parts.append(_columns_of(hour, host.name, query, view))
        rows += len(parts[-1][0])
        if rows >= _ROWS_A_PAGE or len(parts) >= _HOURS_A_PAGE:
            after = host.key, hour.start
            part_of_host = min(1.0, (hour.start + SECONDS - query.start) / (query.end - query.start))
            share = (wanted.index(host) + part_of_host) / len(wanted)
            break
    else:
        after, share = None, 1.0
    return SamplePage([np.concatenate(some) for some in zip(*parts, strict=True)], after, share)


def _hours_after(view: HistoryView, query: SamplesQuery, hosts: list[KnownHost]) -> Iterator[tuple[KnownHost, Hour]]:
    first, hour_before = query.after or (0, 0)
    for host in hosts:
        if host.key >= first:
            begin = max(query.start, hour_before + SECONDS) if host.key == first else query.start
            for hour in view.hours(host.key, begin, query.end, query.metrics, runs=True):
                if hour.start + SECONDS > begin:
                    yield host, hour


def _check_names(view: HistoryView, query: SamplesQuery) -> None:
    """A table without rows would say that there was nothing."""
    for name in query.hosts:
        find_host(view, name)
    for uuid in query.gpus:
        find_gpu(view, uuid)
    check_names(query.metrics)


def _is_wanted(host: KnownHost, query: SamplesQuery) -> bool:
    # When a host was last seen may be an hour behind.
    is_there = host.first < query.end and host.last + 2 * SECONDS >= query.start
    return is_there and (not query.hosts or bool({host.name, host.host_id} & set(query.hosts)))


def _columns_of(hour: Hour, host: str, query: SamplesQuery, view: HistoryView) -> list[Column]:
    """In the order of `sample_fields`: moment by moment, and of each the GPUs."""
    known = view.gpus()
    for key in hour.gpus:
        if key not in known:
            view.damage.note(f"GPU {key} of {host}", "its row is missing")
    gpus = [known.get(key) for key in hour.gpus]
    times = np.flatnonzero((hour.times >= query.start) & (hour.times < query.end))
    is_there = np.array([[gpu is not None and (not query.gpus or gpu.uuid in query.gpus)] for gpu in gpus])
    picked = ((hour.states != ABSENT) & is_there)[:, times].T

    def pick(table: NDArray[np.generic]) -> Column:
        found: Column = np.broadcast_to(table, hour.states.shape)[:, times].T[picked]
        return found

    texts = [[[getattr(gpu, name, None)] for gpu in gpus] for name in ("uuid", "label", "model")]
    moments = pick(hour.times)
    return [
        *(moments, moments, np.full(len(moments), host, dtype=object)),
        *(pick(np.array(text, dtype=object)) for text in texts),
        *(pick(_STATE_WORDS[hour.states]), pick(_find_users(hour, view))),
        *(pick(_metric(hour, name)) for name in query.metrics),
    ]


_STATE_WORDS: Final = np.array(STATES, dtype=object)


def _metric(hour: Hour, name: str) -> Floats:
    if not name.startswith(HOST_PREFIX):
        return hour.metric(name)
    found = hour.host.get(name.removeprefix(HOST_PREFIX))
    return np.full(len(hour.times), np.nan) if found is None else found


def _find_users(hour: Hour, view: HistoryView) -> NDArray[np.object_]:
    """With spaces between several; ? for one that is not known. None while it is not known who is there."""
    users: NDArray[np.object_] = np.array(["", None], dtype=object)[(hour.states == UNKNOWN).astype(int)]
    owners = {run: view.owner(run) or "?" for run in {part.run for part in hour.runs}}
    by_gpu: dict[int, list[RunSlice]] = defaultdict(list)
    for part in hour.runs:
        by_gpu[part.gpu].append(part)
    for row, parts in by_gpu.items():
        present = np.stack([part.present for part in parts])
        groups, which = np.unique(present, axis=1, return_inverse=True)
        names = [
            " ".join(sorted({owners[part.run] for part, is_there in zip(parts, group, strict=True) if is_there}))
            for group in groups.T.tolist()
        ]
        found = np.array(names, dtype=object)[which.reshape(-1)]
        users[row] = np.where(present.any(axis=0), found, users[row])
    return users


class TableSize(Struct, frozen=True):
    name: str
    rows: int
    bytes: int | None


class FileUsage(Struct, frozen=True):
    path: str
    file_bytes: int
    hosts: int
    gpus: int
    oldest: float | None
    newest: float | None
    parts: list[TableSize]


def measure_file(view: HistoryView, path: Path) -> FileUsage:
    hosts = view.hosts().values()
    return FileUsage(
        path=str(path),
        file_bytes=sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*") if file.is_file()),
        hosts=len(hosts),
        gpus=len(view.gpus()),
        oldest=min((host.first for host in hosts), default=None),
        newest=max((host.last for host in hosts), default=None),
        parts=[
            TableSize(name, *view.connection.execute(f"SELECT count(*), {size} FROM {name}").fetchone())  # noqa: S608
            for name, size in _TABLES.items()
        ],
    )
