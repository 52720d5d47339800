"""`gpudeck cluster migrate`: from one hub with its own files to PostgreSQL and a store that several hubs share.

All tables of gpudeck.db are copied in one transaction, and read back before it ends. The samples of history.db follow,
oldest first, at their own times; a note in the data folder says how far they were sent, so that a run that was
interrupted goes on there. Both files stay as they are: history.db is also where each hub keeps usage, runs and sums.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct, field
from sqlalchemy import Float, String, Table, func, inspect, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from gpudeck.agent.token_file import replace_file
from gpudeck.database import postgresql
from gpudeck.database.engine import Database, open_database
from gpudeck.database.schema import metadata
from gpudeck.database.sqlite import FILE_NAME
from gpudeck.history.base import KnownHost
from gpudeck.history.embedded.store import view_file
from gpudeck.history.embedded.view import HistoryView
from gpudeck.history.hour import SECONDS, Hour
from gpudeck.history.remote.client import PromClient, PromReader
from gpudeck.history.remote.encoder import EncodedSeries, encode_sample, read_samples
from gpudeck.history.remote.promql import OBSERVED, label_value, over
from gpudeck.history.remote.promql import select as select_series
from gpudeck.history.remote.writer import RetryLater, WriteRefused, post_series
from gpudeck.history.sample import ALL_NAMES
from gpudeck.history.settings import FILE as HISTORY
from gpudeck.history.settings import HistorySettings
from gpudeck.history.time_range import Grid
from gpudeck.model.backoff import Backoff
from gpudeck.model.errors import GpudeckError, Temporary, UsageError
from gpudeck.model.times import show_utc
from gpudeck.ops.data_folder import lock_exclusively
from gpudeck.settings import Settings, choose_data_dir, load_settings

NOTE: Final = "cluster-migration.json"
_BATCH: Final = 2_000
_MAX_VALUES: Final = 100_000
"""The most values in one request, about 2 MB: a larger hour of a host is sent in parts."""
_PATIENCE: Final = 120.0
"""How long a store that does not answer is retried."""
_VISIBLE: Final = 60.0
"""How long a store may take to return what it accepted. VictoriaMetrics needs seconds."""
Tell = Callable[[str], None]
Show = Callable[[int, int], None]


class TableSum(Struct, frozen=True):
    """`checksum` is the sum of the hashes of all rows, independent of their order."""

    rows: int
    checksum: int


class MigrationNote(Struct):
    """The progress. `sent` are the numbers of host samples in the store, by the start of their hour; `last` is the last
    hour and host that was sent completely, None before the first."""

    database: str
    store: str
    tables: dict[str, TableSum] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)
    last: tuple[int, int] | None = None
    is_complete: bool = False

    def pass_host(self, start: int, host: int) -> None:
        self.last = (start, host)


def migrate(config: Path | None, *, since: float | None, rate: float, dry_run: bool, tell: Tell, show: Show) -> None:
    """Migrate tables and samples. `since` leaves out older samples; `rate` limits the values sent per second. Raises
    GpudeckError; running it again then continues."""
    settings, _ = load_settings(config)
    folder = choose_data_dir(settings)
    _check_settings(settings, folder)
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(lock_exclusively(folder))
        except UsageError as error:
            if not dry_run:
                raise
            tell(f"Not yet: {error}")
        note = _read_note(folder, settings)
        if settings.database is not None:
            asyncio.run(_move_tables(settings.database, folder, note, tell, dry_run=dry_run))
        if settings.history.kind != "prometheus":
            tell(f"`history` names no store: the samples stay in {folder / HISTORY}.")
            return
        if note.is_complete or not (folder / HISTORY).is_file():
            tell(f"The samples are in {note.store} already." if note.is_complete else "There are no samples to copy.")
            return
        made = _SampleMover(settings.history, folder, note, rate=rate, tell=tell, show=show)
        mover = held.enter_context(contextlib.closing(made))
        mover.check(since)
        if not dry_run:
            mover.send()
            mover.verify()
            note.is_complete = True
            _write_note(folder, note)


def _check_settings(settings: Settings, folder: Path) -> None:
    if settings.database is None and settings.history.kind != "prometheus":
        raise UsageError(
            "the configuration does not say where the data goes.",
            "Write the new configuration first, with `database: postgresql://…` and `history: {kind: prometheus, "
            "write_url: …, read_url: …}`. The data folder stays the same.",
        )
    if settings.database is not None and not (folder / FILE_NAME).is_file():
        raise UsageError(f"there is no {FILE_NAME} in {folder}.", "Name the hub's folder with data_dir.")


def _read_note(folder: Path, settings: Settings) -> MigrationNote:
    """The note of an earlier run. Raises UsageError if that had another destination."""
    here = MigrationNote(postgresql.name_place(settings.database or ""), settings.history.write_url or "")
    try:
        note = msgspec.json.decode((folder / NOTE).read_bytes(), type=MigrationNote)
    except FileNotFoundError:
        return here
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{folder / NOTE} cannot be read: {error}.", "Delete it to begin again.") from error
    if (note.database, note.store) != (here.database, here.store):
        raise UsageError(
            f"a migration from {folder} to {note.database} and {note.store} has begun.",
            f"Put these back into the configuration, or delete {folder / NOTE} to begin again.",
        )
    return note


def _write_note(folder: Path, note: MigrationNote) -> None:
    replace_file(folder / NOTE, msgspec.json.encode(note))


async def _move_tables(address: str, folder: Path, note: MigrationNote, tell: Tell, *, dry_run: bool) -> None:
    """Copy all tables, unless that was done before. Raises GpudeckError."""
    target = Database("postgresql", note.database, postgresql.make_engine(address), postgresql.explain)
    source = await open_database(None, folder, changes_tables=not dry_run)
    try:
        async with source.begin() as old:
            sums = {table.name: await _sum_table(old, table) for table in metadata.sorted_tables}
        counts = await _count_rows(target)
        rows, filled = sum(one.rows for one in sums.values()), sum(1 for one in sums.values() if one.rows)
        if note.tables:
            if note.tables != sums:
                raise UsageError(
                    f"{folder / FILE_NAME} has changed since it was copied: a hub ran on it.",
                    f"Empty the database {note.database}, delete {folder / NOTE}, and begin again.",
                )
            tell(f"The tables are in {note.database} already.")
        elif found := ", ".join(f"{name} ({count})" for name, count in counts.items() if count):
            raise UsageError(
                f"the database {target.place} has data of another hub: {found}.",
                "Give an empty database: `createdb gpudeck`.",
            )
        else:
            verb = "would be copied" if dry_run else "are being copied"
            tell(f"{rows} rows in {filled} of {len(sums)} tables {verb} from {folder / FILE_NAME} to {note.database}.")
            if not dry_run:
                await _copy_tables(source, target, sums)
                tell(f"Tables: {rows} rows copied, read back and compared.")
        if not dry_run:
            note.tables = sums
            _write_note(folder, note)
    finally:
        await source.close()
        await target.close()


async def _count_rows(target: Database) -> dict[str, int]:
    async with target.begin() as connection:
        there = await connection.run_sync(lambda sync: set(inspect(sync).get_table_names()))
        return {
            table.name: int((await connection.execute(select(func.count()).select_from(table))).scalar_one())
            for table in metadata.sorted_tables
            if table.name in there
        }


async def _copy_tables(source: Database, target: Database, sums: dict[str, TableSum]) -> None:
    """In one transaction. Raises GpudeckError, also if the copies do not have these sums."""
    await target.bring_up_to_date()
    async with source.begin() as old, target.begin() as new:
        for table in metadata.sorted_tables:
            fit, names = _fitting(table), [column.name for column in table.columns]
            try:
                async for rows in _batches(old, table):
                    await new.execute(table.insert(), [dict(zip(names, fit(row), strict=True)) for row in rows])
            except DBAPIError as error:
                reason = str(error.orig).partition("\n")[0].rpartition(">: ")[2]
                raise GpudeckError(f"the table {table.name} cannot be copied: {reason}.") from error
            if await _sum_table(new, table) != sums[table.name]:
                raise GpudeckError(f"the table {table.name} is not the same in {target.place}; nothing was changed.")
        await _set_sequences(old, new)


async def _set_sequences(old: AsyncConnection, new: AsyncConnection) -> None:
    """The next id is one that was never used, not even by deleted rows."""
    for name, last in (await old.execute(text("SELECT name, seq FROM sqlite_sequence"))).all():
        if name in metadata.tables and last:
            asked = text("SELECT setval(pg_get_serial_sequence(:name, 'id'), :last)")
            await new.execute(asked, {"name": name, "last": last})


async def _batches(connection: AsyncConnection, table: Table) -> AsyncIterator[list[tuple[Any, ...]]]:
    result = await connection.stream(select(table))
    async for rows in result.partitions(_BATCH):
        yield [tuple(row) for row in rows]


def _fitting(table: Table) -> Callable[[tuple[Any, ...]], list[Any]]:
    """Rows that PostgreSQL can hold: SQLite does not limit text, allows null characters in it, and has no strict
    types."""

    def fit(value: Any, kind: object) -> Any:
        if isinstance(value, str) and isinstance(kind, String):
            return value.replace("\0", "")[: kind.length]
        return float(value) if isinstance(kind, Float) and isinstance(value, int) else value

    kinds = [column.type for column in table.columns]
    return lambda row: [fit(value, kind) for value, kind in zip(row, kinds, strict=True)]


async def _sum_table(connection: AsyncConnection, table: Table) -> TableSum:
    fit, count, checksum = _fitting(table), 0, 0
    async for rows in _batches(connection, table):
        count += len(rows)
        for row in rows:
            digest = blake2b(msgspec.msgpack.encode(fit(row)), digest_size=7).digest()
            checksum = (checksum + int.from_bytes(digest)) % 2**56
    return TableSum(count, checksum)


class _SampleMover:
    """Sends the samples of history.db to the store. Call `close` at the end."""

    def __init__(
        self, settings: HistorySettings, folder: Path, note: MigrationNote, *, rate: float, tell: Tell, show: Show
    ) -> None:
        self._folder = folder
        self._note = note
        self._rate = rate
        self._tell = tell
        self._show = show
        self._write_client = PromClient(settings.write_url or "", settings, seconds=60.0)
        self._read_client = PromClient(settings.read_url or "", settings, seconds=60.0)
        self._reader = PromReader(self._read_client)
        self._backoff = Backoff(0.5, 15.0)
        self._began = time.monotonic()
        self._noted = self._began
        self._values = 0
        self._start = self._end = 0

    def close(self) -> None:
        self._write_client.close()
        self._read_client.close()

    def check(self, since: float | None) -> None:
        """Find out what has to be sent, and that the store answers and has none of it. Raises GpudeckError."""
        with view_file(self._folder / HISTORY) as view:
            hosts = view.hosts()
            oldest = max(view.raw_since(hosts), since or 0.0)
            newest = max((host.last for host in hosts.values()), default=0.0)
            ids = {label_value(host.host_id) for host in hosts.values()}
        self._start = int(oldest // SECONDS) * SECONDS
        self._end = (int(newest // SECONDS) + 1) * SECONDS if oldest and newest >= oldest else self._start
        count = (self._end - self._start) // SECONDS
        try:
            post_series(self._write_client, b"")
            there = self._hosts_in_store() if count else {}
        except (Temporary, WriteRefused) as error:
            raise GpudeckError(f"the store cannot be used: {error}", "Check history.write_url and read_url.") from error
        foreign = sorted(there.keys() - ids)
        if foreign or (there and self._note.last is None):
            whose = f"another fleet (host {foreign[0]})" if foreign else "these hosts at the same time"
            raise UsageError(
                f"{self._read_client.shown} has samples of {whose}.",
                "Give a store, or a tenant (history.headers), of its own.",
            )
        span = f"from {show_utc(self._start)} until {show_utc(newest)}" if count else "none"
        size = (self._folder / HISTORY).stat().st_size / 2**20
        self._tell(f"Samples of {len(ids)} hosts: {span} ({HISTORY}: {size:.1f} MiB), to {self._write_client.shown}.")
        self._tell(f"Usage, runs, and hourly and quarter-hourly sums stay in {self._folder / HISTORY}.")

    def _hosts_in_store(self) -> dict[str, float]:
        window = self._end - self._start
        found = self._reader.values(
            f"sum by (host_id) (count_over_time({over(select_series(OBSERVED), window)}))", Grid(self._start, window, 1)
        )
        return {labels.get("host_id", ""): float(values[0]) for labels, values in found if not np.isnan(values[0])}

    def send(self) -> None:
        """Send everything that was not sent before. Raises GpudeckError."""
        is_resumed = self._note.last is not None
        if not is_resumed:
            self._note.pass_host(0, 0)
            _write_note(self._folder, self._note)
        else:
            # The store may still be hiding what the run before this one sent last.
            time.sleep(5.0)
        hours = (self._end - self._start) // SECONDS
        with view_file(self._folder / HISTORY) as view:
            gpus, hosts = view.gpus(), sorted(view.hosts().values(), key=lambda host: host.key)
            for place, start in enumerate(range(self._start, self._end, SECONDS)):
                self._show(place, hours)
                for host in hosts:
                    if self._note.last is not None and (start, host.key) <= self._note.last:
                        continue
                    for hour in view.hours(host.key, start, start + SECONDS, ALL_NAMES, runs=True):
                        known = self._find_sent(host, hour) if is_resumed else set()
                        is_resumed = bool(known)
                        self._send_hour(view, host, gpus, hour, known)
                    self._note_sent(start, host.key)
            self._show(hours, hours)
            if view.damage.problem:
                self._tell(f"Left out: {view.damage.problem}.")
        _write_note(self._folder, self._note)
        total = sum(self._note.sent.values())
        self._tell(f"Samples: {total} of hosts ({self._values} values in this run) sent.")

    def _find_sent(self, host: KnownHost, hour: Hour) -> set[int]:
        """The times of samples, in milliseconds, that an earlier run sent but could not record."""
        selector = select_series(OBSERVED, {"host_id": host.host_id})
        found = self._reader.samples(selector, hour.start, hour.start + SECONDS)
        return {round(at * 1000) for _, samples in found for at, _ in samples}

    def _send_hour(
        self, view: HistoryView, host: KnownHost, gpus: Mapping[int, Any], hour: Hour, known: set[int]
    ) -> None:
        owners = {part.run: view.owner(part.run) for part in hour.runs}
        waiting: list[EncodedSeries] = []
        for sample, seconds in read_samples(hour, host, gpus, owners.get):
            if int(sample.at * 100) * 10 not in known:
                waiting += encode_sample(sample, seconds)
            if sum(part.values for part in waiting) >= _MAX_VALUES:
                self._send(waiting, hour.start)
                waiting = []
        self._send(waiting, hour.start)
        self._note.sent[hour.start] = self._note.sent.get(hour.start, 0) + len(hour.times)

    def _send(self, parts: Sequence[EncodedSeries], start: float) -> None:
        if parts:
            self._post(b"".join(part.body for part in parts), start)
            self._keep_to_rate(sum(part.values for part in parts))

    def _post(self, body: bytes, at: float) -> None:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                post_series(self._write_client, body)
            except WriteRefused as refused:
                raise GpudeckError(
                    f"{self._write_client.shown} refuses samples of {show_utc(at)} with {refused.shown}: {refused}.",
                    "Let it accept old samples (Prometheus: out_of_order_time_window), or leave them out with --since.",
                ) from refused
            except Temporary as error:
                if time.monotonic() > deadline:
                    raise GpudeckError(f"{error.message}", "Run this again to continue.") from error
                time.sleep(self._backoff.fail(error.pause if isinstance(error, RetryLater) else None))
            else:
                self._backoff.succeed()
                return

    def _keep_to_rate(self, values: int) -> None:
        self._values += values
        time.sleep(max(0.0, self._values / self._rate - (time.monotonic() - self._began)))

    def _note_sent(self, start: int, host: int) -> None:
        self._note.pass_host(start, host)
        if time.monotonic() - self._noted > 1.0:
            self._noted = time.monotonic()
            _write_note(self._folder, self._note)

    def verify(self) -> None:
        """Compare the number of samples of every hour. Raises GpudeckError for a difference that persists."""
        if not self._note.sent:
            return
        first, last = min(self._note.sent), max(self._note.sent)
        grid = Grid(first, SECONDS, (last - first) // SECONDS + 1)
        query = f"sum(count_over_time({over(select_series(OBSERVED), SECONDS)}))"
        deadline = time.monotonic() + _VISIBLE
        while difference := self._find_difference(query, grid):
            if time.monotonic() > deadline:
                raise GpudeckError(
                    f"{self._read_client.shown} has other samples than were sent: {difference}.",
                    "It may keep samples for a shorter time than the hub did (-retentionPeriod). If so, delete "
                    f"{self._folder / NOTE}, and begin again with --since, and with an empty database and store.",
                )
            time.sleep(1.0)
        self._tell(f"Verified: the number of samples in each of {len(self._note.sent)} hours.")

    def _find_difference(self, query: str, grid: Grid) -> str | None:
        found = self._reader.values(query, grid)
        counts = np.nan_to_num(found[0][1]).astype(int).tolist() if found else [0] * grid.count
        for place, count in enumerate(counts):
            start = grid.start + place * SECONDS
            if count != self._note.sent.get(start, 0):
                return f"{count} of hosts, not {self._note.sent.get(start, 0)}, in the hour from {show_utc(start)}"
        return None
