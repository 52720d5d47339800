"""The audit log, on SQLite and PostgreSQL."""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from sqlalchemy import text

from fakes.clock import FakeClock
from gpudeck.auth.audit import MAX_DETAILS, MAX_ENTRIES, Audit, AuditEntry
from gpudeck.auth.caller import LOCAL_ADMIN, NOBODY, Caller
from gpudeck.database import sqlite
from gpudeck.database.engine import Database, open_database

Result = TypeVar("Result")
DAY = 86_400.0
ALICE = Caller("account", "admin", "alice", account_id=1, address="10.0.0.7")
BACKUP = Caller("token", "user", "alice", account_id=1, token_id=7)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def audit(database: Database, clock: FakeClock) -> Audit:
    return Audit(database, clock)


def run(doing: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(doing)


def test_entry_says_who_did_what_when_and_from_where(audit: Audit, clock: FakeClock) -> None:
    run(audit.record(ALICE, "remove host", "gpu07", outcome="refused", details="it reports"))
    (entry,) = run(audit.list())
    assert msgspec.structs.replace(entry, id=0) == AuditEntry(
        0, clock.now, "alice", "remove host", "gpu07", "refused", "10.0.0.7", "it reports"
    )


def test_token_cannot_pass_for_the_account_whose_name_it_has(audit: Audit) -> None:
    async def playing() -> list[str]:
        for caller in (ALICE, BACKUP, NOBODY, LOCAL_ADMIN):
            await audit.record(caller, "add host")
        return [entry.who for entry in await audit.list()]

    assert run(playing()) == ["local admin", "nobody", "alice (token 7)", "alice"]


def test_newest_entries_come_first_and_paging_misses_none(audit: Audit) -> None:
    async def playing() -> list[list[str]]:
        for number in range(5):
            await audit.record(ALICE, "add host", f"gpu{number}")
        first = await audit.list(limit=2)
        await audit.record(ALICE, "add host", "gpu9")
        second = await audit.list(limit=2, before_id=first[-1].id)
        third = await audit.list(limit=2, before_id=second[-1].id)
        return [[entry.subject for entry in page] for page in (first, second, third)]

    assert run(playing()) == [["gpu4", "gpu3"], ["gpu2", "gpu1"], ["gpu0"]]


@pytest.mark.parametrize(("asked", "given"), [(-1, 0), (0, 0), (1, 1), (10**12, 3)])
def test_any_limit_is_answered(audit: Audit, asked: int, given: int) -> None:
    async def playing() -> int:
        for _ in range(3):
            await audit.record(ALICE, "login")
        return len(await audit.list(limit=asked))

    assert run(playing()) == given
    assert given <= MAX_ENTRIES


def test_entries_older_than_asked_are_deleted_and_counted(audit: Audit, clock: FakeClock) -> None:
    async def playing() -> tuple[int, list[str]]:
        for subject in ("old", "older than a day by a second", "a day old"):
            await audit.record(ALICE, "add host", subject)
            clock.advance({"old": DAY, "older than a day by a second": 1.0, "a day old": DAY}[subject])
        return await audit.trim(clock.now - DAY), [entry.subject for entry in await audit.list()]

    assert run(playing()) == (2, ["a day old"])


def test_ids_of_deleted_entries_are_not_given_again(audit: Audit, clock: FakeClock) -> None:
    async def playing() -> tuple[int, int]:
        await audit.record(ALICE, "login")
        (before,) = await audit.list()
        clock.advance(2 * DAY)
        await audit.trim(clock.now - DAY)
        await audit.record(ALICE, "logout")
        (after,) = await audit.list()
        return before.id, after.id

    before, after = run(playing())
    assert after > before


@pytest.mark.parametrize("character", ["x", "é", "\x00", "\x1b", "\ud800", "\n", "😀"])
def test_text_from_outside_of_any_length_is_recorded_cut_and_clean(audit: Audit, character: str) -> None:
    async def playing() -> AuditEntry:
        caller = Caller("account", "user", character * 9000, address=character * 9000)
        await audit.record(
            caller, character * 9000, character * 9000, outcome=character * 9000, details=character * 9000
        )
        (entry,) = await audit.list()
        return entry

    entry = run(playing())
    texts = (entry.who, entry.action, entry.subject, entry.outcome, entry.address, entry.details)
    assert [len(text) for text in texts] == [160, 64, 256, 16, 64, MAX_DETAILS]
    assert all(text.endswith("…") and text.isprintable() for text in texts)


def test_text_that_just_fits_is_not_cut(audit: Audit) -> None:
    run(audit.record(ALICE, "a" * 64, "s" * 256))
    (entry,) = run(audit.list())
    assert (entry.action, entry.subject) == ("a" * 64, "s" * 256)


def test_entry_that_the_database_cannot_take_is_in_the_log_and_the_caller_goes_on(
    database: Database, audit: Audit, caplog: pytest.LogCaptureFixture
) -> None:
    run(drop_table(database))
    with caplog.at_level(logging.WARNING):
        run(audit.record(ALICE, "remove host", "gpu07"))
    (line,) = caplog.messages
    assert (
        line
        == "not in the audit log: who: alice, action: remove host, subject: gpu07, outcome: done, address: 10.0.0.7"
    )


def test_entry_for_which_the_database_has_no_time_is_in_the_log_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)

    async def playing() -> None:
        database = await open_database(None, tmp_path)
        with contextlib.closing(sqlite3.connect(tmp_path / "gpudeck.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            await Audit(database).record(ALICE, "logout")
        await database.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(playing())
    (line,) = caplog.messages
    assert line.startswith(
        "not in the audit log: who: alice, action: logout, outcome: done, address: 10.0.0.7; because"
    )
    assert "gpudeck.db is locked by another process" in line


async def drop_table(database: Database) -> None:
    async with database.begin() as connection:
        await connection.execute(text("DROP TABLE audit"))
