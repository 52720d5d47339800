"""The file and the open hours at one moment: `history.past.Past` for whoever answers questions."""

import logging
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache, cached_property, partial
from typing import Final, TypeVar

from gpudeck.history import chunk, rollup
from gpudeck.history.base import Use, UseKey
from gpudeck.history.codec import Damaged
from gpudeck.history.embedded.keys import Keys, OpenRun, split_gpus
from gpudeck.history.embedded.merge import merge
from gpudeck.history.embedded.seal import read_layout, uses_of
from gpudeck.history.embedded.tables import key_of, keys_between, split_key
from gpudeck.history.embedded.tail import Tail
from gpudeck.history.hour import QUARTER, SECONDS, Hour
from gpudeck.history.past import KnownGpu, KnownHost, KnownRun
from gpudeck.history.rollup import Quarters, Totals
from gpudeck.history.stacks import FLEET, Stack, decode_stack, join, stack
from gpudeck.model.turns import paced

log = logging.getLogger(__name__)

T = TypeVar("T")

_FOR_USES: Final = ("utilization_percent", "power_watts", "memory_used_bytes")
_BATCH: Final = 5_000
"""Totals that are in memory at once as they are in the file: about 1 KB each."""
_Place = tuple[int, int]
"""The host, or FLEET, and when the step begins."""
_SUMS_OF_USES: Final = ", ".join(f"{'max' if name == 'peak' else 'sum'}({name})" for name in Use.__struct_fields__)


class View:
    """`history.past.Past` at one moment."""

    def __init__(self, connection: sqlite3.Connection, keys: Keys, tails: dict[tuple[int, int], Tail]) -> None:
        self.connection = connection
        self._keys = keys
        self._tails = tails

    def gpus(self) -> dict[int, KnownGpu]:
        return dict(self._keys.gpus)

    def hosts(self) -> dict[int, KnownHost]:
        return {
            key: KnownHost(key, host.host_id, host.name, host.first, host.last)
            for key, host in list(self._keys.by_key.items())
        }

    def run(self, key: int) -> KnownRun | None:
        row = self.connection.execute(
            "SELECT id, host, gpus, user, first, last, pid FROM runs WHERE id = ?", (key,)
        ).fetchone()
        if row is None:
            return None
        live = self.live_run(row[1], row[6], key)
        if live is not None:
            return KnownRun(key, row[1], tuple(sorted(live.gpus)), row[3], live.first, self._keys.by_key[row[1]].last)
        return KnownRun(key, row[1], split_gpus(row[2]), row[3], row[4], row[5])

    def raw_since(self) -> float:
        """The oldest sample of any host."""
        starts = [start for _, start in self._tails]
        for host in list(self._keys.by_key):
            bounds = keys_between(host, 0, 7e9)
            row = self.connection.execute("SELECT min(key) FROM chunks WHERE key BETWEEN ? AND ?", bounds).fetchone()
            if row[0] is not None:
                starts.append(split_key(row[0])[1])
        return float(min(starts, default=0))

    def hours(
        self, host: int, start: float, end: float, metrics: Collection[str], *, runs: bool = False
    ) -> Iterator[Hour]:
        open_hours = self._open(host, start, end)
        rows = self.connection.execute(
            "SELECT key, body FROM chunks WHERE key BETWEEN ? AND ? ORDER BY key", keys_between(host, start, end)
        )
        for key, body in paced(rows):
            begin = split_key(key)[1]
            for earlier in [at for at in open_hours if at < begin]:
                yield open_hours.pop(earlier).picture(metrics, runs=runs)
            tail = open_hours.pop(begin, None)
            late = None if tail is None else tail.picture(metrics, runs=runs)
            hour = _read_or_leave("samples", host, begin, partial(chunk.decode, body, metrics, runs=runs))
            found = merge(hour, late) if hour is not None and late is not None else hour or late
            if found is not None:
                yield found
        for tail in paced(open_hours.values()):
            yield tail.picture(metrics, runs=runs)

    def quarters(self, host: int, start: float, end: float, metrics: Collection[str]) -> Iterator[Quarters]:
        open_hours = self._open(host, start, end)
        rows = self.connection.execute(
            "SELECT key, body FROM quarters WHERE key BETWEEN ? AND ? ORDER BY key", keys_between(host, start, end)
        )
        for key, body in paced(rows):
            begin = split_key(key)[1]
            if begin not in open_hours:
                found = _read_or_leave("quarter hours", host, begin, partial(rollup.decode, body, metrics))
                if found is not None:
                    yield found
        for begin, tail in paced(open_hours.items()):
            if tail.is_late:
                for hour in self.hours(host, begin, begin + SECONDS, metrics):
                    yield rollup.quarters(hour)
            else:
                yield rollup.quarters(tail.picture(metrics, runs=False))

    def host_hours(self, start: int, end: int, metrics: Collection[str]) -> Stack:
        more, sealed_too = {}, set()
        for key, tail in paced(self._tails.items()):
            if start <= key[1] < end:
                late = self._late_hour(*key, tail, metrics)
                sealed_too |= {key} if late is None else set()
                more[key] = _hour_of(tail, metrics) if late is None else rollup.hour_totals(rollup.quarters(late[1]))
        rows = self.connection.execute(
            "SELECT host, hour, layout, body FROM host_hours WHERE hour >= ? AND hour < ?", (start, end)
        )

        def join_late(sealed: Totals, key: _Place) -> Totals:
            return rollup.extend(more[key], sealed) if key in sealed_too else more[key]

        return self._stack(rows, more, join_late, metrics, SECONDS)

    def fleet_quarters(self, start: int, end: int, metrics: Collection[str]) -> Stack:
        more: dict[_Place, Totals] = {}
        less: dict[_Place, Totals] = {}
        for (host, hour), tail in paced(self._tails.items()):
            if start - SECONDS < hour < end:
                late = self._late_hour(host, hour, tail, metrics)
                _add_quarters(more, _quarters_of(tail, metrics) if late is None else _quarters_in(late[1]))
                if late is not None:
                    _add_quarters(less, _quarters_in(late[0]))
        for key in [key for key in more if not start <= key[1] < end]:
            del more[key]
        rows = self.connection.execute(
            "SELECT ?, start, layout, body FROM fleet_quarters WHERE start >= ? AND start < ?", (FLEET, start, end)
        )

        def join_late(sealed: Totals, key: _Place) -> Totals:
            return rollup.add(more[key], rollup.subtract(sealed, less[key]) if key in less else sealed)

        return self._stack(rows, more, join_late, metrics, QUARTER)

    def _late_hour(self, host: int, start: int, tail: Tail, metrics: Collection[str]) -> tuple[Hour, Hour] | None:
        """An hour that was sealed and got late samples since: as it was, and as it is with them. None where it was not
        sealed, or where nobody knows its samples any more."""
        if not tail.is_late:
            return None
        find = "SELECT body FROM chunks WHERE key = ?"
        row = self.connection.execute(find, (key_of(host, start),)).fetchone()
        read = partial(chunk.decode, row[0], metrics, runs=False) if row is not None else None
        sealed = None if read is None else _read_or_leave("samples", host, start, read)
        return None if sealed is None else (sealed, merge(sealed, tail.picture(metrics, runs=False)))

    def uses(self, start: int, end: int, *, by_host: bool) -> Iterator[tuple[UseKey, Use]]:
        table, host = ("uses", "host") if by_host else ("uses_of_all", "0")
        rows = self.connection.execute(
            f"SELECT {host}, user, model, {_SUMS_OF_USES} FROM {table} "  # noqa: S608
            "WHERE hour >= ? AND hour < ? GROUP BY 1, user, model",
            (start, end),
        )
        names = {key: known.host_id for key, known in list(self._keys.by_key.items())}
        for of, user, model, *numbers in paced(rows):
            yield (start, names.get(of, ""), self._words.get(user), self._words[model]), Use(*numbers)
        for of, _, (user, model), use in self._open_uses(start, end):
            yield (start, names[of] if by_host else "", user, model), use

    def hourly_uses(self, start: int, end: int) -> Iterator[tuple[UseKey, Use]]:
        rows = self.connection.execute(
            f"SELECT hour, user, model, {', '.join(Use.__struct_fields__)} FROM uses_of_all "  # noqa: S608
            "WHERE hour >= ? AND hour < ?",
            (start, end),
        )
        for hour, user, model, *numbers in paced(rows):
            yield (hour, "", self._words.get(user), self._words[model]), Use(*numbers)
        for _, hour, (user, model), use in self._open_uses(start, end):
            yield (hour, "", user, model), use

    def observed(self, start: int, end: int) -> float:
        row = self.connection.execute(
            "SELECT total(observed) FROM fleet_quarters WHERE start >= ? AND start < ?", (start, end)
        ).fetchone()
        seconds = float(row[0])
        for (_, hour), tail in paced(self._tails.items()):
            if start - SECONDS < hour < end:
                picture = tail.work_out("observed", partial(tail.picture, (), runs=False))
                is_inside = (picture.times >= start) & (picture.times < end)
                seconds += float((picture.observed * is_inside).sum())
        return seconds

    def owner(self, run: int) -> str | None:
        row = self.connection.execute("SELECT user FROM runs WHERE id = ?", (run,)).fetchone()
        return None if row is None else row[0]

    def live_run(self, host: int, pid: int, key: int) -> OpenRun | None:
        """That run, if it was there when its host was last sampled."""
        run = self._keys.by_key[host].runs.get(pid)
        return run if run is not None and run.key == key else None

    def open_hours(self, host: int) -> list[Tail]:
        """What of that host is not sealed yet."""
        return [tail for (of, _), tail in self._tails.items() if of == host]

    def _open(self, host: int, start: float, end: float) -> dict[int, Tail]:
        """That host's open hours in the span, in order."""
        found = {begin: tail for (of, begin), tail in self._tails.items() if of == host}
        return {begin: found[begin] for begin in sorted(found) if start - SECONDS < begin < end}

    def _open_uses(self, start: int, end: int) -> Iterator[tuple[int, int, tuple[str | None, str], Use]]:
        """The host, the hour, who used what model and how, of hours that are not sealed yet."""
        for (host, hour), tail in paced(self._tails.items()):
            if start <= hour < end:
                found = tail.work_out("uses", partial(self._uses_of, tail))
                yield from ((host, hour, key, use) for key, use in found.items())

    def _uses_of(self, tail: Tail) -> dict[tuple[str | None, str], Use]:
        return uses_of(tail.picture(_FOR_USES), self._keys, self.connection)

    @cached_property
    def _words(self) -> dict[int, str]:
        """Users and models by their number."""
        return dict(self.connection.execute("SELECT id, text FROM words").fetchall())

    @cached_property
    def _layouts(self) -> dict[int, tuple[str, ...]]:
        return {
            number: read_layout(names) for number, names in self.connection.execute("SELECT id, names FROM layouts")
        }

    def _stack(
        self,
        rows: sqlite3.Cursor,
        more: dict[_Place, Totals],
        join_late: Callable[[Totals, _Place], Totals],
        metrics: Collection[str],
        seconds: int,
    ) -> Stack:
        """Sealed totals, and `more` of hours that are open. Where there are both, `join_late` tells what they are."""
        sealed = []
        while batch := rows.fetchmany(_BATCH):
            for row in [row for row in batch if row[:2] in more]:
                more[row[:2]] = join_late(rollup.decode_totals(row[3], self._layouts[row[2]], metrics), row[:2])
            alone = [row for row in batch if row[:2] not in more]
            sealed.append(decode_stack(alone, self._layouts, metrics, seconds))
        return join([*sealed, stack(more, metrics, seconds)])


def _hour_of(tail: Tail, metrics: Collection[str]) -> Totals:
    """An open hour's totals, worked out once a sample."""
    return tail.work_out(
        ("hour", *sorted(metrics)),
        lambda: rollup.hour_totals(rollup.quarters(tail.picture(metrics, runs=False))),
    )


def _quarters_of(tail: Tail, metrics: Collection[str]) -> list[Totals]:
    """Those of its quarters."""
    return tail.work_out(("quarters", *sorted(metrics)), lambda: _quarters_in(tail.picture(metrics, runs=False)))


def _quarters_in(hour: Hour) -> list[Totals]:
    return rollup.quarter_totals(rollup.quarters(hour))


def _add_quarters(found: dict[_Place, Totals], quarters: Iterable[Totals]) -> None:
    """A host's own, to those of the fleet."""
    for totals in quarters:
        key = FLEET, totals.start
        found[key] = rollup.add(found[key], totals) if key in found else totals


def _read_or_leave(what: str, host: int, start: int, read: Callable[[], T]) -> T | None:
    """None where it is damaged: that hour is a gap then, and the others are shown."""
    try:
        return read()
    except Damaged as error:
        _tell(what, host, start, str(error))
        return None


@cache
def _tell(what: str, host: int, start: int, error: str) -> None:
    """Once, and not with every question."""
    log.warning("the %s of host %d from %d on are left out: %s", what, host, start, error)
