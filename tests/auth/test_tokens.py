"""Tokens: what is worth something, for whom, since when, and what finding one costs."""

import asyncio
import contextlib
import logging
import re
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import delete, insert, select, update

from fakes.clock import FakeClock
from gpudeck.auth.accounts import hash_secret
from gpudeck.auth.caller import TOKEN_ROLES, Role, is_for
from gpudeck.auth.tokens import FLUSH_SECONDS, SECRET_LENGTH, Token, Tokens
from gpudeck.database import schema
from gpudeck.database.engine import Database
from gpudeck.model.errors import Temporary, UsageError


class UnreachableDatabase:
    """A database whose server has gone."""

    kind = "postgresql"
    execute = Database.execute

    @contextlib.asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        raise Temporary("the database does not answer.")
        yield


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def tokens(database: Database, clock: FakeClock) -> Tokens:
    return open_tokens(database, clock)


def open_tokens(database: Database, clock: FakeClock) -> Tokens:
    """The tokens as a process that has just started sees them."""
    opened = Tokens(database, clock)
    asyncio.run(opened.load())
    return opened


def create(tokens: Tokens, name: str = "one", role: Role = "agent", **others: Any) -> tuple[Token, str]:
    return asyncio.run(tokens.create(name, role, **others))


def add_account(database: Database, role: str = "user", **others: Any) -> int:
    return asyncio.run(_add_account(database, {"name": "alice", "role": role, "created_at": 1.0} | others))


async def _add_account(database: Database, values: dict[str, Any]) -> int:
    async with database.begin() as connection:
        added = await connection.execute(insert(schema.accounts).values(values).returning(schema.accounts.c.id))
        return int(added.scalar_one())


async def execute(database: Database, statement: Any) -> list[Any]:
    async with database.begin() as connection:
        result = await connection.execute(statement)
        return list(result.all()) if result.returns_rows else []


@pytest.mark.parametrize("role", TOKEN_ROLES)
def test_new_token_is_known_at_once_here_and_after_a_start(tokens: Tokens, clock: FakeClock, role: Role) -> None:
    token, secret = create(tokens, "backup script", role, created_by="alice")
    assert re.fullmatch(rf"gd_{role}_[A-Za-z0-9_-]{{43}}", secret)
    assert (token.name, token.role, token.created_at, token.created_by) == ("backup script", role, clock(), "alice")
    assert tokens.find(secret) == token
    assert open_tokens(tokens.database, clock).find(secret) == token


def test_secret_is_kept_nowhere(tokens: Tokens) -> None:
    _, secret = create(tokens)
    (row,) = asyncio.run(execute(tokens.database, select(schema.tokens)))
    assert row.hash == hash_secret(secret)
    assert secret[9:] not in repr(tuple(row))


@pytest.mark.parametrize(
    "secret", ["", "gd_agent_", "gd_agent_" + "x" * 43, "é" * 43, "\udcff", "\x00", "x" * SECRET_LENGTH * 1000]
)
def test_whatever_else_is_shown_is_no_token(tokens: Tokens, secret: str) -> None:
    create(tokens)
    assert tokens.find(secret) is None


def test_hash_of_a_token_is_no_token(tokens: Tokens) -> None:
    _, secret = create(tokens)
    assert tokens.find(hash_secret(secret)) is None


def test_revoked_token_is_worth_nothing_at_once(tokens: Tokens, clock: FakeClock) -> None:
    token, secret = create(tokens)
    other, other_secret = create(tokens, "other")
    clock.advance(5)
    revoked = asyncio.run(tokens.revoke(token.id))
    assert revoked is not None
    assert revoked.revoked_at == clock()
    assert tokens.find(secret) is None
    assert tokens.find(other_secret) == other
    assert open_tokens(tokens.database, clock).find(secret) is None


def test_token_revoked_twice_keeps_its_first_time(tokens: Tokens, clock: FakeClock) -> None:
    token, _ = create(tokens)
    first = asyncio.run(tokens.revoke(token.id))
    clock.advance(5)
    assert asyncio.run(tokens.revoke(token.id)) == first


@pytest.mark.parametrize("wrong", [0, -1, 7, 2**63, 10**30])
def test_revoking_what_is_not_there_says_so(tokens: Tokens, wrong: int) -> None:
    assert asyncio.run(tokens.revoke(wrong)) is None


def test_expired_token_is_worth_nothing_at_once(tokens: Tokens, clock: FakeClock) -> None:
    token, secret = create(tokens, expires_at=clock() + 60)
    clock.advance(59.9)
    assert tokens.find(secret) == token
    clock.advance(0.1)
    assert tokens.find(secret) is None
    assert open_tokens(tokens.database, clock).find(secret) is None


def test_revoking_while_everything_is_read_brings_nothing_back(tokens: Tokens) -> None:
    token, secret = create(tokens)

    async def revoke_meanwhile() -> None:
        await asyncio.gather(tokens.load(), tokens.revoke(token.id), tokens.load())

    asyncio.run(revoke_meanwhile())
    assert tokens.find(secret) is None


@pytest.mark.parametrize(
    ("hosts", "may", "may_not"),
    [
        (None, ["gpu01", "anything"], []),
        ("gpu01", ["gpu01"], ["gpu010", "GPU01", "xgpu01", "gpu1", ""]),
        ("gpu*", ["gpu", "gpu01", "gpu01.example"], ["cpu01", "agpu01", "GPU01"]),
        ("gpu0?", ["gpu01"], ["gpu0", "gpu011"]),
        ("gpu[0-3][0-9].*", ["gpu07.a", "gpu39.b.c"], ["gpu40.a", "gpu07"]),
        ("node.a", ["node.a"], ["node-a", "nodeXa"]),
        ("*", ["gpu01"], []),
    ],
)
def test_agent_may_report_as_the_hosts_of_its_token_alone(
    tokens: Tokens, hosts: str | None, may: list[str], may_not: list[str]
) -> None:
    token, _ = create(tokens, hosts=hosts)
    assert [host for host in may + may_not if is_for(token.hosts, host)] == may


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"name": ""}, "1 to 128 printable"),
        ({"name": " "}, "1 to 128 printable"),
        ({"name": "x" * 129}, "1 to 128 printable"),
        ({"name": "a\nb"}, "1 to 128 printable"),
        ({"role": "nobody"}, "no token has the role 'nobody'"),
        ({"role": "viewer", "hosts": "gpu01"}, "only an agent's token"),
        ({"hosts": ""}, "neither a host's name nor a pattern"),
        ({"hosts": "gpu 1"}, "neither a host's name nor a pattern"),
        ({"hosts": "g" * 254}, "neither a host's name nor a pattern"),
        ({"hosts": "gpu[01-16]"}, "brackets stand for one character"),
        ({"expires_at": 0.0}, "expired at once"),
        ({"expires_at": float("nan")}, "expired at once"),
        ({"expires_at": float("inf")}, "expired at once"),
        ({"account_id": 7}, "there is no such account"),
    ],
)
def test_token_that_makes_no_sense_is_not_made(tokens: Tokens, wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        create(tokens, **wrong)
    assert asyncio.run(tokens.list()) == []


def test_longest_name_pattern_and_maker_fit(tokens: Tokens) -> None:
    token, _ = create(tokens, "ü" * 128, hosts="g" * 253, created_by="x" * 500)
    assert asyncio.run(tokens.list()) == [token]


def test_token_of_an_account_names_it_and_never_ranks_above_it(tokens: Tokens, clock: FakeClock) -> None:
    alice = add_account(tokens.database, "user")
    with pytest.raises(UsageError, match="alice is user, and a token of theirs cannot be admin"):
        create(tokens, role="admin", account_id=alice)
    token, secret = create(tokens, role="user", account_id=alice)
    assert (token.account_id, token.account) == (alice, "alice")
    asyncio.run(execute(tokens.database, update(schema.accounts).values(role="viewer")))
    asyncio.run(tokens.refresh())
    assert [token.role for token in (tokens.find(secret), *asyncio.run(tokens.list())) if token] == ["viewer"] * 2


def test_calendar_of_an_account_stays_a_calendar(tokens: Tokens) -> None:
    token, _ = create(tokens, role="calendar", account_id=add_account(tokens.database, "viewer"))
    assert token.role == "calendar"


def test_token_of_a_disabled_account_is_worth_nothing_until_it_is_enabled(tokens: Tokens, clock: FakeClock) -> None:
    alice = add_account(tokens.database)
    token, secret = create(tokens, role="user", account_id=alice)
    asyncio.run(execute(tokens.database, update(schema.accounts).values(is_disabled=1)))
    asyncio.run(tokens.refresh())
    assert tokens.find(secret) is None
    assert [token.is_live(clock()) for token in asyncio.run(tokens.list())] == [False]
    asyncio.run(execute(tokens.database, update(schema.accounts).values(is_disabled=0)))
    asyncio.run(tokens.refresh())
    assert tokens.find(secret) == token


def test_disabled_account_gets_no_token(tokens: Tokens) -> None:
    alice = add_account(tokens.database, is_disabled=1)
    with pytest.raises(UsageError, match="the account alice is disabled"):
        create(tokens, role="user", account_id=alice)


def test_token_goes_with_its_account(tokens: Tokens) -> None:
    _, secret = create(tokens, role="user", account_id=add_account(tokens.database))
    asyncio.run(execute(tokens.database, delete(schema.accounts)))
    asyncio.run(tokens.refresh())
    assert tokens.find(secret) is None


def test_change_of_an_account_counts_at_once_where_it_is_told(tokens: Tokens) -> None:
    alice = add_account(tokens.database)
    token, secret = create(tokens, role="user", account_id=alice)
    other, other_secret = create(tokens)
    asyncio.run(tokens.refresh())
    tokens.forget_account(alice)
    assert (tokens.find(secret), tokens.find(other_secret)) == (None, other)
    asyncio.run(tokens.refresh())
    assert tokens.find(secret) == token


def test_last_use_is_shown_before_and_after_it_is_written(tokens: Tokens, clock: FakeClock) -> None:
    token, secret = create(tokens)
    assert token.last_used_at is None
    clock.advance(10)
    used_at = clock()
    tokens.note_use(token)
    assert [token.last_used_at for token in asyncio.run(tokens.list())] == [used_at]
    asyncio.run(tokens.flush())
    assert [token.last_used_at for token in asyncio.run(tokens.list())] == [used_at]
    found = open_tokens(tokens.database, clock).find(secret)
    assert found is not None
    assert found.last_used_at == used_at


def test_last_use_is_written_once_a_minute_and_at_the_end(tokens: Tokens, clock: FakeClock) -> None:
    token, _ = create(tokens)
    written = select(schema.tokens.c.last_used_at)
    seen = []
    for seconds, at_once in ((0, False), (FLUSH_SECONDS - 1, False), (1, False), (1, False), (1, True)):
        clock.advance(seconds)
        tokens.note_use(token)
        asyncio.run(tokens.flush(at_once=at_once))
        seen.append(asyncio.run(execute(tokens.database, written))[0][0] - token.created_at)
    assert seen == [0, 0, 60, 60, 62]


def test_later_use_that_another_hub_wrote_stays(tokens: Tokens, clock: FakeClock) -> None:
    token, _ = create(tokens)
    tokens.note_use(token)
    asyncio.run(execute(tokens.database, update(schema.tokens).values(last_used_at=clock() + 5)))
    asyncio.run(tokens.flush())
    assert [token.last_used_at for token in asyncio.run(tokens.list())] == [clock() + 5]


def test_changes_of_another_process_are_seen_after_a_refresh(tokens: Tokens, clock: FakeClock) -> None:
    _, kept_secret = create(tokens, "kept")
    gone, gone_secret = create(tokens, "gone")
    asyncio.run(tokens.refresh())
    other = open_tokens(tokens.database, clock)
    new, new_secret = create(other, "new")
    asyncio.run(other.revoke(gone.id))
    asyncio.run(tokens.refresh())
    assert [tokens.find(secret) is not None for secret in (kept_secret, gone_secret, new_secret)] == [True, False, True]
    assert tokens.find(new_secret) == new


def test_another_secret_in_a_row_is_seen_after_a_refresh(tokens: Tokens, clock: FakeClock) -> None:
    _, secret = create(tokens)
    asyncio.run(tokens.refresh())
    changed = update(schema.tokens).values(hash=hash_secret("new"), created_at=clock() + 1)
    asyncio.run(execute(tokens.database, changed))
    asyncio.run(tokens.refresh())
    assert (tokens.find(secret), tokens.find("new") is not None) == (None, True)


def test_refresh_reads_everything_only_when_something_changed(tokens: Tokens, clock: FakeClock) -> None:
    token, secret = create(tokens)
    asyncio.run(tokens.refresh())
    found = tokens.find(secret)
    tokens.note_use(token)
    asyncio.run(tokens.flush())
    asyncio.run(tokens.refresh())
    assert tokens.find(secret) is found


def test_hub_goes_on_with_what_it_knows_while_the_database_is_away(
    tokens: Tokens, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    token, secret = create(tokens)
    database, tokens.database = tokens.database, UnreachableDatabase()  # type: ignore[assignment]
    tokens.note_use(token)
    for _ in range(3):
        asyncio.run(tokens.flush(at_once=True))
        asyncio.run(tokens.refresh())
    assert tokens.find(secret) == token
    assert len(caplog.records) == 1
    assert secret not in caplog.text
    tokens.database = database
    asyncio.run(tokens.refresh())
    asyncio.run(tokens.flush(at_once=True))
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert asyncio.run(execute(database, select(schema.tokens.c.last_used_at))) == [(clock(),)]


def test_whoever_changes_tokens_is_told_that_the_database_is_away(tokens: Tokens) -> None:
    token, secret = create(tokens)
    tokens.database = UnreachableDatabase()  # type: ignore[assignment]
    for change in (tokens.create("x", "agent"), tokens.revoke(token.id), tokens.load(), tokens.list()):
        with pytest.raises(Temporary):
            asyncio.run(change)
    assert tokens.find(secret) is None


def test_finding_never_touches_the_database_and_costs_the_same_for_ten_thousand(
    tokens: Tokens, clock: FakeClock
) -> None:
    _, secret = create(tokens)
    work_for_one = count_calls(tokens, secret)
    many = [
        {"hash": hash_secret(f"secret {n}"), "name": f"n{n}", "role": "agent", "hosts": f"gpu{n}", "created_at": 1.0}
        for n in range(10_000)
    ]
    asyncio.run(add_rows(tokens.database, many))
    asyncio.run(tokens.refresh())
    tokens.database = UnreachableDatabase()  # type: ignore[assignment]
    found = [tokens.find(f"secret {n}") for n in range(0, 10_000, 500)]
    assert [token.hosts for token in found if token] == [f"gpu{n}" for n in range(0, 10_000, 500)]
    assert [count_calls(tokens, shown) for shown in (secret, "secret 9999", secret[:-1] + "~", "none")] == [
        work_for_one
    ] * 4


async def add_rows(database: Database, rows: list[dict[str, Any]]) -> None:
    async with database.begin() as connection:
        await connection.execute(insert(schema.tokens), rows)


def count_calls(tokens: Tokens, secret: str) -> int:
    """How many functions run, in Python or in C, while a token is looked for."""
    calls = []
    sys.setprofile(lambda frame, event, argument: calls.append(event))
    try:
        tokens.find(secret)
    finally:
        sys.setprofile(None)
    return calls.count("call") + calls.count("c_call")


def test_token_that_is_far_too_long_is_not_even_hashed(tokens: Tokens) -> None:
    usual = count_calls(tokens, "x" * SECRET_LENGTH)
    assert count_calls(tokens, "x" * (SECRET_LENGTH + 1)) < usual


def test_tokens_of_a_host_are_taken_back_together_and_no_others(tokens: Tokens) -> None:
    async def play() -> list[bool]:
        made = [
            (await tokens.create("a", "agent", hosts="gpu07"))[1],
            (await tokens.create("b", "agent", hosts="gpu07"))[1],
            (await tokens.create("c", "agent", hosts="gpu0*"))[1],
            (await tokens.create("d", "agent"))[1],
        ]
        ended = await tokens.revoke_of_hosts(["gpu07"])
        assert len(ended) == 2
        return [tokens.find(secret) is not None for secret in made]

    assert asyncio.run(play()) == [False, False, True, True]


@pytest.mark.parametrize("host", ["a\x00b", "", "x" * 5000, "\x1b"])
def test_host_that_cannot_be_has_no_tokens_to_take_back(tokens: Tokens, host: str) -> None:
    assert asyncio.run(tokens.revoke_of_hosts([host])) == frozenset()


def test_only_token_of_a_host_takes_the_place_of_those_before(tokens: Tokens) -> None:
    async def play() -> list[bool]:
        secrets = [(await tokens.create("gpu07", "agent", hosts="gpu07", is_only=True))[1] for _ in range(3)]
        await tokens.load()
        return [tokens.find(secret) is not None for secret in secrets]

    assert asyncio.run(play()) == [False, False, True]
