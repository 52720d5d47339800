"""The runs that a question asks for: those of the file, with what open hours add to them."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from gpudeck.history.accounting import RunPart, run_parts
from gpudeck.history.base import HistoryRefused, Run, Runs, RunsAsk
from gpudeck.history.embedded.keys import split_gpus
from gpudeck.history.embedded.view import View
from gpudeck.history.past import KnownGpu, KnownHost

_FIELDS: Final = (
    "id, host, pid, started_at, user, command, container, job, gpus, first, last, ended, seconds, wall_seconds, "
    "memory_sum, memory_seconds, memory_peak, utilization_sum, utilization_seconds, idle, joules, metered"
)
_FOR_RUNS: Final = ("utilization_percent", "power_watts")
_SILENT: Final = 300.0
"""A host that was not sampled for so long tells nothing of whether a run is still there."""


class _Told(NamedTuple):
    """The first of `_FIELDS`; the others are those of RunPart."""

    id: int
    host: int
    pid: int
    started_at: float | None
    user: str | None
    command: str | None
    container: str | None
    job: str | None
    gpus: str
    first: float
    last: float
    ended: int


def find_runs(view: View, ask: RunsAsk, now: float) -> Runs:
    """Raises HistoryRefused."""
    if ask.start is not None and ask.end is not None and ask.end <= ask.start:
        raise HistoryRefused("bad_range", "the range ends before it begins", "`start` has to be before `end`.")
    hosts, gpus = view.hosts(), view.gpus()
    where, values = _conditions(ask, hosts, gpus)
    rows = view.connection.execute(
        f"SELECT {_FIELDS} FROM runs WHERE {where} ORDER BY first DESC, id DESC LIMIT ?",  # noqa: S608
        (*values, ask.limit + 1),
    ).fetchall()
    page = rows[: ask.limit]
    parts = {host: _open_parts(view, host) for host in {row[1] for row in page}}
    found = [_make_run(row, view, (hosts, gpus), parts[row[1]], now) for row in page]
    return Runs([run for run in found if run is not None], page[-1][0] if len(rows) > ask.limit else None)


def find_run(view: View, key: int, now: float) -> Run | None:
    row = view.connection.execute(f"SELECT {_FIELDS} FROM runs WHERE id = ?", (key,)).fetchone()  # noqa: S608
    return None if row is None else _make_run(row, view, (view.hosts(), view.gpus()), _open_parts(view, row[1]), now)


def _conditions(ask: RunsAsk, hosts: Mapping[int, KnownHost], gpus: Mapping[int, KnownGpu]) -> tuple[str, list[object]]:
    clauses: list[str] = ["1"]
    values: list[object] = []

    def add(clause: str, *more: object) -> None:
        clauses.append(clause)
        values.extend(more)

    if ask.now:
        add("NOT ended")
    if ask.start is not None:
        # The file does not know yet until when a run goes on.
        add("(last >= ? OR NOT ended)", ask.start)
    if ask.end is not None:
        add("first < ?", ask.end)
    if ask.user is not None:
        add("user = ?", ask.user)
    if ask.host is not None:
        keys = [key for key, host in hosts.items() if ask.host in {host.host_id, host.name}]
        if not keys:
            raise HistoryRefused("unknown_host", f"no host was ever called {ask.host}")
        add(f"host IN ({', '.join('?' * len(keys))})", *keys)
    if ask.gpu is not None:
        gpu = next((gpu for gpu in gpus.values() if gpu.uuid == ask.gpu), None)
        if gpu is None:
            raise HistoryRefused("unknown_gpu", f"no GPU was ever called {ask.gpu}")
        add("(',' || gpus || ',') LIKE ?", f"%,{gpu.key},%")
    if ask.before is not None:
        add("(first, id) < (SELECT first, id FROM runs WHERE id = ?)", ask.before)
    return " AND ".join(clauses), values


def _open_parts(view: View, host: int) -> dict[int, RunPart]:
    parts: dict[int, RunPart] = {}
    for tail in view.open_hours(host):
        for run, part in run_parts(tail.picture(_FOR_RUNS)).items():
            parts.setdefault(run, RunPart()).add(part)
    return parts


def _make_run(
    row: tuple[Any, ...],
    view: View,
    places: tuple[Mapping[int, KnownHost], Mapping[int, KnownGpu]],
    open_parts: Mapping[int, RunPart],
    now: float,
) -> Run | None:
    """None where its row is damaged."""
    try:
        told = msgspec.convert(row[: len(_Told._fields)], _Told)
        numbers = msgspec.convert(row[len(_Told._fields) :], tuple[float, ...])
    except msgspec.ValidationError as error:
        view.damage.note(f"run {row[0]}", error)
        return None
    key, host_key, pid, started_at, user, command, container, job, named, first, last, ended = told
    part = RunPart(*numbers)
    if key in open_parts:
        part.add(open_parts[key])
    hosts, gpus = places
    if host_key not in hosts:
        view.damage.note(f"run {key}", f"host {host_key} is missing")
        return None
    host = hosts[host_key]
    live = view.live_run(host_key, pid, key)
    if live is not None:
        first, last = live.first, host.last
    known = [gpus[gpu] for gpu in (sorted(live.gpus) if live else split_gpus(named)) if gpu in gpus]
    # A host that was last seen in the future tells nothing of now: its clock, or the hub's, was ahead.
    is_there = live is not None and not ended and abs(now - host.last) < _SILENT
    return Run(
        id=key,
        host=host.host_id,
        host_name=host.name,
        pid=pid,
        user=user,
        command=command,
        container=container,
        job=job,
        gpus=[gpu.uuid for gpu in known],
        labels=[gpu.label for gpu in known],
        model=known[0].model if known else None,
        started_at=started_at,
        seen_at=first,
        ended_at=None if is_there else min(last, max(now, first)),
        gpu_seconds=part.seconds,
        idle_held_seconds=part.idle,
        # Unknown is never zero: what has no seconds has no figure.
        peak_memory_bytes=part.memory_peak if part.memory_seconds > 0 else None,
        mean_memory_bytes=part.memory_sum / part.memory_seconds if part.memory_seconds > 0 else None,
        mean_utilization_percent=(
            part.utilization_sum / part.utilization_seconds if part.utilization_seconds > 0 else None
        ),
        energy_joules=part.joules if part.metered > 0 else None,
    )
