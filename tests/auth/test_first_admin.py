"""The link that makes the first admin, on SQLite and PostgreSQL."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from fakes.clock import FakeClock
from fakes.passwords import quick_hasher
from gpudeck.auth.accounts import Accounts, Passwords
from gpudeck.auth.login import VALID_SECONDS, FirstAdmin
from gpudeck.database.engine import Database
from gpudeck.model.errors import GpudeckError, RequestRefused

Result = TypeVar("Result")
PASSWORD = "correct horse battery"


def run(doing: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(doing)


class Stage:
    def __init__(self, database: Database) -> None:
        self.clock = FakeClock()
        self.accounts = Accounts(database, Passwords(quick_hasher()), self.clock)
        self.first = FirstAdmin(self.accounts, self.clock)

    def make(self) -> str:
        return run(self.first.make()) or ""

    def refusal(self, secret: str, name: str = "ada", password: str = PASSWORD) -> str:
        with pytest.raises(GpudeckError) as refused:
            run(self.first.redeem(secret, name, password, lambda _: ()))
        return str(refused.value)


@pytest.fixture
def stage(database: Database) -> Stage:
    return Stage(database)


def test_the_secret_makes_one_admin_once(stage: Stage) -> None:
    secret = stage.make()
    made = run(stage.first.redeem(secret, "Ada", PASSWORD, lambda _: ()))
    assert (made.name, made.role, made.has_password) == ("ada", "admin", True)
    assert "this link does not work" in stage.refusal(secret, "mallory")
    assert [account.name for account in run(stage.accounts.list())] == ["ada"]


def test_there_is_none_where_there_is_an_account(stage: Stage) -> None:
    run(stage.accounts.add("viewer", "viewer", None))
    assert run(stage.first.make()) is None
    assert "gpudeck account add NAME --role admin" in stage.refusal("")


def test_an_account_that_was_made_meanwhile_ends_it(stage: Stage) -> None:
    secret = stage.make()
    run(stage.accounts.add("ada", "admin", PASSWORD, lambda _: ()))
    assert "this hub has accounts by now" in stage.refusal(secret, "mallory")
    assert run(stage.accounts.count()) == 1


def test_it_works_for_an_hour(stage: Stage) -> None:
    secret = stage.make()
    stage.clock.advance(VALID_SECONDS + 1)
    assert "this link does not work" in stage.refusal(secret)
    stage.clock.advance(-1)
    assert run(stage.first.redeem(secret, "ada", PASSWORD, lambda _: ())).name == "ada"


def test_one_that_was_printed_before_works_for_another_hour(stage: Stage) -> None:
    assert not stage.first.is_open
    secret = stage.make()
    stage.clock.advance(VALID_SECONDS - 1)
    assert stage.first.is_open
    next_hub = FirstAdmin(stage.accounts, stage.clock)
    assert run(next_hub.make(secret)) == secret
    stage.clock.advance(VALID_SECONDS)
    assert (stage.first.is_open, next_hub.is_open) == (False, True)
    assert run(next_hub.redeem(secret, "ada", PASSWORD, lambda _: ())).name == "ada"
    assert not next_hub.is_open


def test_another_secret_does_nothing(stage: Stage) -> None:
    older = stage.make()
    secret = stage.make()
    for wrong in ("", older, secret[:-1], f"{secret}x", "ü", "\ud800"):
        assert "this link does not work" in stage.refusal(wrong)
    assert run(stage.first.redeem(secret, "ada", PASSWORD, lambda _: ())).name == "ada"


def test_before_any_was_made_none_works(stage: Stage) -> None:
    assert "this link does not work" in stage.refusal("")


def test_a_bad_name_or_password_can_be_mended(stage: Stage) -> None:
    secret = stage.make()
    assert "fewer than 10" in stage.refusal(secret, password="short")
    assert "is no name" in stage.refusal(secret, name="a b")
    assert run(stage.first.redeem(secret, "ada", PASSWORD, lambda _: ())).name == "ada"


def test_of_two_who_come_at_once_one_is_refused(stage: Stage) -> None:
    secret = stage.make()

    async def coming() -> list[object]:
        both = (stage.first.redeem(secret, name, PASSWORD, lambda _: ()) for name in ("ada", "mallory"))
        return list(await asyncio.gather(*both, return_exceptions=True))

    first, second = run(coming())
    assert isinstance(second, RequestRefused)
    assert run(stage.accounts.list()) == [first]


def test_the_secret_itself_is_kept_nowhere(stage: Stage) -> None:
    secret = stage.make()
    assert secret not in str(vars(stage.first))
