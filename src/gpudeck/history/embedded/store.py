"""The embedded store: a writer thread, answers to queries, and the list of runs."""

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from gpudeck.history import answers
from gpudeck.history.accounting import RunPart, run_parts
from gpudeck.history.answers import answer_overview
from gpudeck.history.base import (
    Heat,
    HeatQuery,
    HistoryRefused,
    IdleEpisode,
    IdleQuery,
    KnownRun,
    ModelSize,
    MomentQuery,
    Overview,
    OverviewQuery,
    PastHost,
    RunsQuery,
    SamplePage,
    SamplesQuery,
    SeriesQuery,
    StoreStats,
    UsageQuery,
    VerdictQuery,
    WasteFacts,
)
from gpudeck.history.embedded.export import measure_file, read_page
from gpudeck.history.embedded.keys import KeyRegistry
from gpudeck.history.embedded.open_hour import OpenHour, OpenHours
from gpudeck.history.embedded.tables import open_to_read
from gpudeck.history.embedded.view import DamageLog, HistoryView
from gpudeck.history.embedded.writer import EmbeddedWriter
from gpudeck.history.hour import SECONDS
from gpudeck.history.past_fleet import find_hosts
from gpudeck.history.run_columns import EarlierRun, RunStart, read_columns
from gpudeck.history.settings import HistorySettings, UsageSettings
from gpudeck.history.usage import usage
from gpudeck.history.verdicts import judge_run
from gpudeck.history.waste import find_idle_episodes, find_waste
from gpudeck.model import clock
from gpudeck.model.clock import RetentionClock
from gpudeck.model.cpu_budget import checkpointed
from gpudeck.model.errors import Temporary
from gpudeck.model.history import Answer
from gpudeck.model.job import Run, Runs, RunVerdict
from gpudeck.model.usage import Usage

_SILENT: Final = 300.0
"""Seconds without samples of a host after which its runs are not shown as running."""
_FEW_SAMPLES = 2_000
_FEW_HOURS = 200
_MAX_JUDGED: Final = 20_000


class EmbeddedStore:
    """`history.base.Store` in one file. Queries are thread-safe. Without `keep_samples`, only sums and runs are kept
    (another store has the samples). `find_group` returns the group of a login."""

    def __init__(
        self,
        path: Path,
        settings: HistorySettings | None = None,
        now: clock.Clock = clock.wall,
        *,
        prices: UsageSettings | None = None,
        find_group: Callable[[str], str | None] = lambda _: None,
        keep_samples: bool = True,
        retention: RetentionClock | None = None,
    ) -> None:
        self.path = path
        self._now = now
        self._prices = prices or UsageSettings()
        self._find_group = find_group
        self.writer = EmbeddedWriter(
            path, settings or HistorySettings(), now, keep_samples=keep_samples, retention=retention
        )
        self.take, self.flush = self.writer.take, self.writer.flush
        self._keeps_samples = keep_samples
        self._thread = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._judged: dict[VerdictQuery, RunVerdict] = {}

    @property
    def dropped(self) -> int:
        return self.writer.dropped

    @property
    def has_room(self) -> bool:
        """Whether the writer keeps up: few samples wait to be written, and few hours to be sealed."""
        return (
            self.writer.waiting < _FEW_SAMPLES
            and len(self.writer.open_hours) < len(self.writer.keys.hosts) + _FEW_HOURS
        )

    @property
    def newest(self) -> float | None:
        # Not those of a clock that was ahead.
        now = self._now()
        lasts = [min(host.last, now) for host in list(self.writer.keys.by_key.values())]
        return max(lasts, default=None)

    @property
    def problem(self) -> str | None:
        return self.writer.problem

    @property
    def damage(self) -> str | None:
        return self.writer.set_aside or self.writer.damage.problem

    def series(self, query: SeriesQuery) -> Answer:
        with self.view() as view:
            return answers.answer_series(view, query, self._now())

    def heat(self, query: HeatQuery) -> Heat:
        with self.view() as view:
            return answers.answer_heat(view, query, self._now())

    def usage(self, query: UsageQuery) -> Usage:
        with self.view() as view:
            return usage(view, query, self._prices, self._find_group, self._now())

    def waste(self, query: UsageQuery, sizes: Mapping[str, ModelSize]) -> WasteFacts:
        with self.view() as view:
            return find_waste(view, query, sizes, self._prices, self._find_group, self._now())

    def idle(self, query: IdleQuery) -> list[IdleEpisode]:
        if not self._keeps_samples:
            raise HistoryRefused("no_samples", "this hub keeps no samples itself", "history.kind has to be embedded.")
        with self.view() as view:
            return list(find_idle_episodes(view, query))

    def samples(self, query: SamplesQuery) -> SamplePage:
        with self.view() as view:
            return read_page(view, query)

    def overview(self, query: OverviewQuery) -> Overview:
        """For a large fleet, until the end of the last quarter hour, from summaries."""
        until, now = self.writer.summarized, self._now()
        if until is not None and not query.start < until - SECONDS < now:
            until = None
        with self.view(summarized_until=until) as view:
            return answer_overview(view, query, self._prices, self._find_group, now if until is None else until)

    def runs(self, query: RunsQuery) -> Runs:
        with self.view() as view:
            return find_runs(view, query, self._now())

    def run(self, key: int) -> Run | None:
        with self.view() as view:
            return find_run(view, key, self._now())

    def verdicts(self, queries: Sequence[VerdictQuery]) -> list[RunVerdict]:
        """Verdicts on runs that are over are cached. Late samples do not change a cached verdict."""
        found = [self._judged.get(query) for query in queries]
        wanted = [place for place, verdict in enumerate(found) if verdict is None]
        if wanted:
            with self.view() as view:
                asked = [queries[place] for place in wanted]
                for place, columns in read_columns(view, asked, partial(find_starts, view)):
                    verdict = found[wanted[place]] = judge_run(columns)
                    if asked[place].is_over:
                        self._judged[asked[place]] = verdict
            while len(self._judged) > _MAX_JUDGED:
                self._judged.pop(next(iter(self._judged)), None)
        return [verdict for verdict in found if verdict is not None]

    def moment(self, query: MomentQuery) -> Iterator[PastHost]:
        with self.view() as view:
            yield from find_hosts(view, query, self._now())

    def stats(self) -> StoreStats:
        writer = self.writer
        with self.view() as view:
            size = measure_file(view, self.path)
        return StoreStats(
            kind="embedded",
            size_bytes=size.file_bytes,
            samples_taken=writer.taken,
            samples_dropped=writer.dropped,
            samples_late=writer.late,
            rows=writer.rows,
            oldest=size.oldest,
            newest=self.newest,
            behind_seconds=0.0 if not writer.waiting else 1.0,
            parts={part.name: part.bytes for part in size.parts if part.bytes is not None},
            problem=writer.problem,
        )

    def close(self) -> None:
        self.writer.close()
        for connection in self._connections:
            connection.close()

    @contextmanager
    def view(self, *, summarized_until: int | None = None) -> Iterator[HistoryView]:
        """A consistent view of the file and the open hours. Raises Temporary if the file cannot be read."""
        writer = self.writer
        try:
            connection = self._connection()
            with writer.lock:
                connection.execute("BEGIN")
                connection.execute("SELECT value FROM meta").fetchone()  # the transaction begins with the first read
                open_hours = dict(writer.open_hours)
            try:
                yield HistoryView(connection, writer.keys, open_hours, writer.damage, summarized_until)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            hint = "`gpudeck history verify`, on the hub's machine, shows what is damaged."
            raise Temporary(f"the history cannot be read: {error}.", hint) from error

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._thread, "connection", None)
        if connection is None or self._thread.opened != self.writer.opened:
            self._thread.opened = self.writer.opened
            connection = self._thread.connection = open_to_read(self.path)
            self._connections.append(connection)
        return connection


@contextmanager
def view_file(path: Path) -> "Iterator[HistoryView]":
    """A view of a file that a hub may be writing to, without the samples of its last second."""
    with closing(open_to_read(path)) as connection:
        connection.execute("BEGIN")
        keys = KeyRegistry(connection)
        damage = DamageLog()
        open_hours = OpenHours(connection, keys.by_key.values())
        open_hours.recover(keys.by_key, damage.note, 0.0)
        yield HistoryView(connection, keys, open_hours, damage)


def find_runs(view: HistoryView, query: RunsQuery, now: float) -> Runs:
    """Raises HistoryRefused."""
    if query.start is not None and query.end is not None and query.end <= query.start:
        raise HistoryRefused("bad_range", "the range ends before it begins", "`start` has to be before `end`.")
    where, values = _conditions(query, view)
    where += " ORDER BY first DESC, id DESC LIMIT ?"
    rows = list(view.runs_with_sums(where, (*values, query.limit + 1)))
    page = rows[: query.limit]
    parts: dict[int, dict[int, RunPart]] = {}
    for run, _ in checkpointed(page):
        # A run that ended before has nothing in the hours that are open, and to read those costs most of the time.
        if run.host not in parts and any(one.start <= run.last for one in view.open_hours_of(run.host)):
            parts[run.host] = _open_parts(view, run.host)
    found = [_make_run(view, run, sums, parts.get(run.host, {}), now) for run, sums in page]
    return Runs([run for run in found if run is not None], page[-1][0].key if len(rows) > query.limit else None)


def find_run(view: HistoryView, key: int, now: float) -> Run | None:
    rows = view.runs_with_sums("id = ?", (key,))
    return next((_make_run(view, run, sums, _open_parts(view, run.host), now) for run, sums in rows), None)


def find_starts(view: HistoryView, host: int, start: float, end: float) -> Iterator[RunStart]:
    """The runs of a host that began from `start` until `end`, oldest first. Damaged rows are left out."""
    where = "first >= ? AND first <= ? AND host = ? AND command IS NOT NULL ORDER BY first, id"
    is_open = any(one.start + SECONDS > start for one in view.open_hours_of(host))
    parts = _open_parts(view, host) if is_open else {}
    for run, sums in view.runs_with_sums(where, (start, end, host)):
        if run.key in parts:
            sums.add(parts[run.key])
        seconds = sums.utilization_seconds
        utilization = sums.utilization_sum / seconds if seconds > 0 else None
        yield run.key, (run.user, run.command, run.gpus), EarlierRun(run.first, run.last, utilization)


def _conditions(query: RunsQuery, view: HistoryView) -> tuple[str, list[object]]:
    keys = [key for key, host in view.hosts().items() if query.host in {host.host_id, host.name}]
    if query.host is not None and not keys:
        raise HistoryRefused("unknown_host", f"no host was ever called {query.host}")
    gpu = next((gpu.key for gpu in view.gpus().values() if gpu.uuid == query.gpu), None)
    if query.gpu is not None and gpu is None:
        raise HistoryRefused("unknown_gpu", f"no GPU was ever called {query.gpu}")
    conditions: list[tuple[bool, str, list[object]]] = [
        (query.now, "NOT ended", []),
        # The file does not know yet until when a run goes on.
        (query.start is not None, "(last >= ? OR NOT ended)", [query.start]),
        (query.end is not None, "first < ?", [query.end]),
        (query.user is not None, "user = ?", [query.user]),
        (query.host is not None, f"host IN ({', '.join('?' * len(keys))})", [*keys]),
        (query.gpu is not None, "(',' || gpus || ',') LIKE ?", [f"%,{gpu},%"]),
        (query.before is not None, "(first, id) < (SELECT first, id FROM runs WHERE id = ?)", [query.before]),
    ]
    wanted = [(clause, values) for is_asked, clause, values in conditions if is_asked]
    return " AND ".join(["1", *(clause for clause, _ in wanted)]), [one for _, values in wanted for one in values]


def _open_parts(view: HistoryView, host: int) -> dict[int, RunPart]:
    parts: dict[int, RunPart] = {}
    for open_hour in view.open_hours_of(host):
        for run, part in open_hour.cached("runs", partial(_read_parts, open_hour)).items():
            parts.setdefault(run, RunPart()).add(part)
    return parts


def _read_parts(open_hour: OpenHour) -> dict[int, RunPart]:
    return run_parts(open_hour.snapshot(("utilization_percent", "power_watts")))


def _make_run(
    view: HistoryView, run: KnownRun, part: RunPart, open_parts: Mapping[int, RunPart], now: float
) -> Run | None:
    """Adds the open hours to `part`."""
    host = view.host(run.host)
    if host is None:
        view.damage.note(f"run {run.key}", f"host {run.host} is missing")
        return None
    if run.key in open_parts:
        part.add(open_parts[run.key])
    known = [gpu for gpu in map(view.gpu, run.gpus) if gpu is not None]
    # If a host was last seen in the future, a clock was ahead.
    is_there = run.is_live and abs(now - host.last) < _SILENT
    return Run(
        id=run.key,
        host=host.host_id,
        host_name=host.name,
        pid=run.pid,
        user=run.user,
        command=run.command,
        container=run.container,
        job=run.job,
        gpus=[gpu.uuid for gpu in known],
        labels=[gpu.label for gpu in known],
        model=known[0].model if known else None,
        started_at=run.started_at,
        seen_at=run.first,
        ended_at=None if is_there else min(run.last, max(now, run.first)),
        gpu_seconds=part.seconds,
        idle_seconds=part.idle,
        # Unknown is never zero: what has no seconds has no figure.
        peak_memory_bytes=part.memory_peak if part.memory_seconds > 0 else None,
        mean_memory_bytes=part.memory_sum / part.memory_seconds if part.memory_seconds > 0 else None,
        mean_utilization_percent=(
            part.utilization_sum / part.utilization_seconds if part.utilization_seconds > 0 else None
        ),
        energy_joules=part.joules if part.metered > 0 else None,
    )
