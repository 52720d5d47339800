"""A past that is known all at once, written into the file: of each host whole spans of hours, with column operations.
`embedded.seal` does the same for one hour at a time; a past of weeks would take minutes that way."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct, structs

from gpudeck.history.accounting import RunPart, run_parts, uses_by_step
from gpudeck.history.codec import Floats
from gpudeck.history.embedded.keys import HostKeys, KeyRegistry
from gpudeck.history.embedded.tables import checked_columns, checksum, key_of, open_to_write
from gpudeck.history.hour import QUARTER, SECONDS, UNKNOWN, Hour, cut_hour, encode_hour
from gpudeck.history.rollup import encode_quarters, merge_steps, roll_up, stack_steps
from gpudeck.history.sample import ProcessSample
from gpudeck.history.totals import HIGH, LOW, TOTAL, StepTotals, encode_totals, sum_known, utilization_of, which_sum

_RESERVED_RUNS: Final = 10_000_000
_EXTEND_RUN: Final = (
    "UPDATE runs SET first = min(first, ?), seconds = seconds + ?, wall_seconds = wall_seconds + ?, "
    "memory_sum = memory_sum + ?, memory_seconds = memory_seconds + ?, memory_peak = max(memory_peak, ?), "
    "utilization_sum = utilization_sum + ?, utilization_seconds = utilization_seconds + ?, idle = idle + ?, "
    "joules = joules + ?, metered = metered + ? WHERE id = ?"
)


class PastSpan(NamedTuple):
    """When a run was first and last seen. One that is not over may go on with the first sample after the past."""

    first: float
    last: float
    is_over: bool


class _FleetSpan(Struct):
    """Sums of all hosts: (quarter hours, names, columns of Totals), (quarter hours, states), and by the numbers of user
    and model (hours, fields of UsageAmounts)."""

    names: tuple[str, ...]
    tables: Floats
    states: Floats
    uses: dict[tuple[int, int], Floats]


class PastWriter:
    """All hosts have the same spans. Everything waits in memory until `flush` writes it in one short transaction, so
    that a hub may have the file open: `reserve` has set numbers apart that it does not assign. Raises sqlite3.Error."""

    def __init__(self, path: Path) -> None:
        self._connection = open_to_write(path)
        self.keys = KeyRegistry(self._connection)
        self._runs: dict[int, tuple[tuple[object, ...], RunPart]] = {}
        self._more: dict[int, tuple[float, RunPart]] = {}
        """Of runs that the file has: since when they were there before, and what they did."""
        self._fleet: dict[int, _FleetSpan] = {}
        self._rows: dict[str, list[tuple[object, ...]]] = {}

    def reserve(self, words: Iterable[str]) -> None:
        """Before a hub opens the file. `words` are all users and models that are going to come."""
        for word in words:
            self.keys.word(word)
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES ('newest_runs', ?)", (_RESERVED_RUNS,))

    def add_run(self, key: int, host: HostKeys, process: ProcessSample, gpus: Iterable[int], seen: PastSpan) -> None:
        """Before the spans that it is in: what it did is added up from them. `key` is one that no other run has."""
        texts = process.user, process.command, process.container, process.job
        known = process.pid, process.started_at, *texts, ",".join(map(str, sorted(gpus)))
        self._runs[key] = (host.key, *known, seen.first, seen.last, int(seen.is_over)), RunPart()
        self.keys.owners[key] = process.user

    def extend_run(self, key: int, user: str | None, first: float) -> None:
        self._more[key] = first, RunPart()
        self.keys.owners[key] = user

    def add(self, host: HostKeys, span: Hour, hours: int, *, keep_samples: bool) -> None:
        """`span` begins at a full hour and has samples in each of its hours, of which there are at most HOURS_A_ROW."""
        quarters = roll_up(span, hours * SECONDS // QUARTER)
        if keep_samples:
            self._add_samples(host, span, hours)
        self._insert("quarters", [(key_of(host.key, span.start), quarters.count, encode_quarters(quarters))])
        self._add_hours(host, span.start, *stack_steps(merge_steps(quarters, SECONDS // QUARTER)))
        self._add_to_fleet(span.start, _FleetSpan(*stack_steps(quarters), self._add_uses(host, span, hours)))
        for run, part in run_parts(span).items():
            (self._runs if run in self._runs else self._more)[run][1].add(part)

    def flush(self) -> None:
        self._insert("runs", [(key, *row, *structs.astuple(part)) for key, (row, part) in self._runs.items()])
        self._runs.clear()
        self._connection.execute("BEGIN IMMEDIATE")
        self.keys.write_new()
        for table, rows in self._rows.items():
            marks = ", ".join("?" * len(rows[0]))
            self._connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)  # noqa: S608
        more = [(first, *structs.astuple(part), key) for key, (first, part) in self._more.items()]
        self._connection.executemany(_EXTEND_RUN, more)
        for host in self.keys.by_key.values():
            if host.is_changed:
                self.keys.write_seen(host)
        self._connection.execute("COMMIT")
        self._rows.clear()
        self._more.clear()

    def close(self) -> None:
        for start, span in self._fleet.items():
            self._add_fleet(start, span)
        self.flush()
        self._connection.close()

    def _add_samples(self, host: HostKeys, span: Hour, hours: int) -> None:
        for hour in range(hours):
            start = span.start + hour * SECONDS
            key = key_of(host.key, start)
            body = encode_hour(cut_hour(span, start + SECONDS, start))
            self._insert("chunks", [(key, body)])
            self._insert("sealed", [(key, 0)])

    def _add_hours(self, host: HostKeys, start: int, names: tuple[str, ...], tables: Floats, states: Floats) -> None:
        layout, rows = self.keys.layout(names), []
        for number, (table, seconds) in enumerate(zip(tables, states, strict=True)):
            totals = StepTotals(start + number * SECONDS, SECONDS, names, table, seconds)
            rows.append((totals.start, host.key, layout, encode_totals(totals), *utilization_of(totals)))
        self._insert("host_hours", rows)

    def _add_uses(self, host: HostKeys, span: Hour, hours: int) -> dict[tuple[int, int], Floats]:
        models = [self.keys.gpus[gpu].model for gpu in span.gpus]
        starts = span.times.searchsorted(span.start + SECONDS * np.arange(hours))
        found = uses_by_step(span, models, self.keys.owners, starts)
        uses = {(self.keys.word(user), self.keys.word(model)): table for (user, model), table in found.items()}
        rows = [
            (span.start + hour * SECONDS, host.key, *key, *line)
            for key, table in uses.items()
            for hour, line in enumerate(table.tolist())
            if line[0] > 0
        ]
        self._insert("uses", rows)
        return uses

    def _add_to_fleet(self, start: int, new: _FleetSpan) -> None:
        old = self._fleet.setdefault(start, new)
        if old is new:
            return
        tables = old.tables + new.tables
        tables[..., TOTAL] = sum_known(old.tables[..., TOTAL], new.tables[..., TOTAL])
        is_sum = which_sum(old.names)
        for column, pick in ((LOW, np.fmin), (HIGH, np.fmax)):
            both = old.tables[..., column], new.tables[..., column]
            tables[..., column] = np.where(is_sum, sum_known(*both), pick(*both))
        old.tables, old.states = tables, old.states + new.states
        for key, table in new.uses.items():
            mine = old.uses.get(key)
            if mine is None:
                old.uses[key] = table
            else:
                mine[:, :-1] += table[:, :-1]
                np.maximum(mine[:, -1], table[:, -1], out=mine[:, -1])

    def _add_fleet(self, start: int, span: _FleetSpan) -> None:
        layout, rows = self.keys.layout(span.names), []
        for number, (table, seconds) in enumerate(zip(span.tables, span.states, strict=True)):
            totals = StepTotals(start + number * QUARTER, QUARTER, span.names, table, seconds)
            observed = float(seconds[UNKNOWN + 1 :].sum())
            rows.append((totals.start, layout, observed, encode_totals(totals)))
        self._insert("fleet_quarters", rows)
        uses = [
            (start + hour * SECONDS, *key, *line)
            for key, table in span.uses.items()
            for hour, line in enumerate(table.tolist())
            if line[0] > 0
        ]
        self._insert("uses_of_all", uses)

    def _insert(self, table: str, rows: Sequence[tuple[object, ...]]) -> None:
        if rows:
            is_checked = table in checked_columns()
            self._rows.setdefault(table, []).extend(
                [(*row, checksum(*_as_bytes(row))) if is_checked else row for row in rows]
            )


def _as_bytes(row: tuple[object, ...]) -> list[object]:
    return [one.encode() if isinstance(one, str) else one for one in row]
