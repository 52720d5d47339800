"""Sessions, on SQLite and PostgreSQL: how they begin, count, and end."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from fakes.clock import FakeClock
from fakes.passwords import quick_hasher
from fakes.sessions import start_session
from gpudeck.auth.accounts import Account, Accounts, Passwords
from gpudeck.auth.sessions import AWAY_SECONDS, CACHE_SECONDS, MAX_EACH, SEEN_SECONDS, Sessions
from gpudeck.auth.settings import AuthSettings
from gpudeck.database import DatabaseOutage, DatabaseTrouble
from gpudeck.database.engine import Database
from gpudeck.model.errors import Temporary

Result = TypeVar("Result")
SETTINGS = AuthSettings(idle=3600.0, expire=10_000.0)


def run(doing: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(doing)


class Stage:
    """A hub's sessions, and two accounts: ada and grace."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.clock = FakeClock()
        self.sessions = self.another_hub()
        self.accounts = Accounts(database, Passwords(quick_hasher()), self.clock)
        self.accounts.watch(self.sessions.forget)
        self.ada = run(self.accounts.add("ada", "user", None))
        self.grace = run(self.accounts.add("grace", "admin", None))

    def another_hub(self) -> Sessions:
        return Sessions(self.database, SETTINGS, self.clock)

    def start(self, account: Account | None = None) -> str:
        return run(start_session(self.sessions, account or self.ada, "10.0.0.7", "Firefox"))

    def find(self, secret: str) -> Account | None:
        return run(self.sessions.find(secret))

    def rows(self, query: str) -> list[Any]:
        async def asking() -> list[Any]:
            async with self.database.begin() as connection:
                return list(await connection.execute(text(query)))

        return run(asking())

    def seen_at(self) -> float:
        return float(self.rows("SELECT seen_at FROM sessions")[0][0])


@pytest.fixture
def stage(database: Database) -> Stage:
    return Stage(database)


def test_whoever_shows_the_secret_is_that_account(stage: Stage) -> None:
    adas, graces = stage.start(), stage.start(stage.grace)
    assert (stage.find(adas), stage.find(graces)) == (stage.ada, stage.grace)


def test_each_login_has_a_new_secret_of_256_bits(stage: Stage) -> None:
    secrets = {stage.start() for _ in range(5)}
    assert len(secrets) == 5
    assert {len(secret) for secret in secrets} == {43}


def test_the_database_has_no_secret_but_a_hash_that_opens_nothing(stage: Stage) -> None:
    secret = stage.start()
    ((kept, *others),) = stage.rows("SELECT * FROM sessions")
    assert secret not in str((kept, others))
    assert len(kept) == 64
    assert (stage.find(kept), stage.find(kept[:43])) == (None, None)


def test_what_is_no_secret_is_nobody(stage: Stage) -> None:
    stage.start()
    for secret in ("", "x", "x" * 43, "x" * 10_000, "\x00" * 43, "\ud800" * 43, "ü" * 43):
        assert stage.find(secret) is None


def test_a_session_that_is_used_lasts_until_it_expires(stage: Stage) -> None:
    secret = stage.start()
    begun = stage.clock()
    for _ in range(5):
        stage.clock.advance(2000)
        assert stage.find(secret) == stage.ada
    assert stage.clock() - begun == SETTINGS.expire
    stage.clock.advance(1)
    assert stage.find(secret) is None


def test_a_session_that_is_not_used_ends_early(stage: Stage) -> None:
    secret = stage.start()
    stage.clock.advance(SETTINGS.idle)
    assert stage.find(secret) == stage.ada
    stage.clock.advance(SETTINGS.idle + 1)
    assert stage.find(secret) is None


def test_the_cache_does_not_outlive_the_session(stage: Stage) -> None:
    secret = stage.start()
    stage.clock.advance(SETTINGS.idle)
    kept = stage.find(secret)
    stage.clock.advance(SETTINGS.expire - SETTINGS.idle)
    stage.rows("UPDATE sessions SET seen_at = created_at + 9999 RETURNING 1")
    last = stage.find(secret)
    stage.clock.advance(CACHE_SECONDS / 2)
    assert (kept, last, stage.find(secret)) == (stage.ada, stage.ada, None)


def test_being_seen_is_written_at_most_once_a_minute(stage: Stage) -> None:
    secret = stage.start()
    begun = stage.clock()
    stage.clock.advance(SEEN_SECONDS - 1)
    stage.find(secret)
    assert stage.seen_at() == begun
    stage.clock.advance(1)
    stage.find(secret)
    # Cached only from the reading before: a second more than the cache lasts.
    stage.clock.advance(CACHE_SECONDS)
    stage.find(secret)
    assert stage.seen_at() == begun + SEEN_SECONDS + CACHE_SECONDS
    stage.clock.advance(30)
    stage.find(secret)
    assert stage.seen_at() == begun + SEEN_SECONDS + CACHE_SECONDS


def test_a_session_is_asked_of_the_database_once_in_a_while(stage: Stage) -> None:
    secret = stage.start()
    stage.find(secret)
    stage.rows("DELETE FROM sessions RETURNING 1")
    stage.clock.advance(CACHE_SECONDS / 2)
    from_the_cache = stage.find(secret)
    stage.clock.advance(CACHE_SECONDS / 2)
    assert (from_the_cache, stage.find(secret)) == (stage.ada, None)


def test_a_clock_that_goes_back_does_not_keep_the_cache(stage: Stage) -> None:
    secret = stage.start()
    stage.find(secret)
    stage.rows("DELETE FROM sessions RETURNING 1")
    stage.clock.advance(-3600)
    assert stage.find(secret) is None


def test_whoever_is_logged_in_stays_so_for_an_hour_while_the_database_is_away(stage: Stage) -> None:
    known, unknown = stage.start(), stage.start()
    assert stage.find(known) == stage.ada
    stage.database.is_watched = True
    stage.database.away = DatabaseOutage(DatabaseTrouble("does not answer in time", ""), stage.clock())
    stage.clock.advance(AWAY_SECONDS - 1)
    assert stage.find(known) == stage.ada
    with pytest.raises(Temporary):
        stage.find(unknown)
    with pytest.raises(Temporary):
        run(stage.another_hub().find(known))
    stage.clock.advance(2)
    with pytest.raises(Temporary):
        stage.find(known)


def test_logging_out_counts_at_once(stage: Stage) -> None:
    here, there = stage.start(), stage.start()
    stage.find(here)
    run(stage.sessions.end(here))
    run(stage.sessions.end(here))
    assert (stage.find(here), stage.find(there)) == (None, stage.ada)


def test_logging_out_everywhere_is_for_one_account_only(stage: Stage) -> None:
    adas, graces = [stage.start(), stage.start()], stage.start(stage.grace)
    found = [stage.find(secret) for secret in adas]
    run(stage.sessions.end_all(stage.ada.id))
    assert found == [stage.ada, stage.ada]
    assert [stage.find(secret) for secret in [*adas, graces]] == [None, None, stage.grace]


def test_a_disabled_account_is_out_at_once_also_in_the_cache(stage: Stage) -> None:
    secret = stage.start()
    before = stage.find(secret)
    run(stage.accounts.change("ada", is_disabled=True))
    assert (before, stage.find(secret)) == (stage.ada, None)


def test_a_disabled_account_is_out_even_if_its_session_is_still_there(stage: Stage) -> None:
    secret = stage.start()
    stage.rows("UPDATE accounts SET is_disabled = 1 WHERE name = 'ada' RETURNING 1")
    assert stage.find(secret) is None


def test_what_another_hub_changes_counts_after_the_cache(stage: Stage) -> None:
    secret = stage.start()
    stage.find(secret)
    others = Accounts(stage.database, Passwords(quick_hasher()), stage.clock)
    run(others.change("ada", is_disabled=True))
    stage.clock.advance(CACHE_SECONDS)
    assert stage.find(secret) is None


def test_a_new_role_counts_at_once(stage: Stage) -> None:
    secret = stage.start(stage.ada)
    stage.find(secret)
    run(stage.accounts.change("ada", role="viewer"))
    found = stage.find(secret)
    assert found is not None
    assert found.role == "viewer"


def test_a_reading_from_before_a_change_is_not_cached(stage: Stage) -> None:
    secret = stage.start()

    async def changing() -> Account | None:
        reading = asyncio.create_task(stage.sessions.find(secret))
        await asyncio.sleep(0)  # it waits for the database
        stage.sessions.forget(stage.ada.id)
        return await reading

    assert run(changing()) == stage.ada
    stage.rows("DELETE FROM sessions RETURNING 1")
    assert stage.find(secret) is None


def test_sessions_are_listed_with_where_they_come_from(stage: Stage) -> None:
    stage.start()
    stage.clock.advance(10)
    run(start_session(stage.sessions, stage.ada, "10.0.0.8", "curl"))
    stage.start(stage.grace)
    listed = run(stage.sessions.list(stage.ada.id))
    assert [(session.address, session.user_agent) for session in listed] == [
        ("10.0.0.8", "curl"),
        ("10.0.0.7", "Firefox"),
    ]
    assert len({session.id for session in listed}) == 2


def test_sessions_that_are_over_are_neither_listed_nor_kept(stage: Stage) -> None:
    stage.start()
    stage.clock.advance(SETTINGS.idle + 1)
    left = stage.start()
    listed = run(stage.sessions.list(stage.ada.id))
    trimmed = run(stage.sessions.trim(stage.clock.now))
    assert (len(listed), trimmed, len(stage.rows("SELECT 1 FROM sessions"))) == (1, 1, 1)
    assert stage.find(left) == stage.ada


def test_a_request_may_say_anything_about_itself(stage: Stage) -> None:
    run(start_session(stage.sessions, stage.ada, "x" * 1000, "bad\x00agent\x1b[31m\ud800" + "y" * 1000))
    (session,) = run(stage.sessions.list(stage.ada.id))
    assert (len(session.address), len(session.user_agent)) == (64, 256)
    assert session.user_agent.isprintable()


def test_one_account_has_a_bounded_number_of_sessions(stage: Stage) -> None:
    graces = stage.start(stage.grace)
    oldest = stage.start()
    stage.find(oldest)
    for _ in range(MAX_EACH):
        stage.clock.advance(0.01)
        newest = stage.start()
    assert len(run(stage.sessions.list(stage.ada.id))) == MAX_EACH
    assert (stage.find(oldest), stage.find(newest), stage.find(graces)) == (None, stage.ada, stage.grace)


def test_a_session_of_an_account_that_is_gone_cannot_begin(stage: Stage) -> None:
    run(stage.accounts.remove("ada"))
    with pytest.raises(IntegrityError):
        stage.start(stage.ada)
