"""Logging in programs: a code is confirmed once, by an account, and is worth one token."""

import asyncio

import pytest

from fakes.clock import FakeClock
from fakes.passwords import quick_hasher
from gpudeck.auth.accounts import Passwords
from gpudeck.auth.auth import Auth
from gpudeck.auth.device_login import (
    POLL_SECONDS,
    VALID_SECONDS,
    DeviceLogin,
    DeviceLogins,
    DeviceRefused,
    TooManyLogins,
)
from gpudeck.auth.settings import AuthSettings
from gpudeck.database.engine import Database
from gpudeck.model.errors import UsageError

DAY = 86_400.0


class Stage:
    """A hub with the account ada, and a program that wants to log in."""

    def __init__(self, database: Database) -> None:
        self.clock = FakeClock()
        self.auth = Auth(database, AuthSettings(), passwords=Passwords(quick_hasher()), now=self.clock)
        self.devices = DeviceLogins(self.auth.tokens, self.auth.audit, self.clock)
        self.ada = self.auth.caller_of(asyncio.run(self.auth.accounts.add("ada", "viewer", None)))

    def begin(self, port: int | None = None, address: str = "10.0.0.7") -> DeviceLogin:
        return asyncio.run(self.devices.begin("gpudeck login on gpu01", DAY, address, port))

    def decide(self, begun: DeviceLogin, *, is_approved: bool = True) -> str | None:
        return asyncio.run(self.devices.decide(begun.user_code, self.ada, is_approved=is_approved))

    def redeem(self, begun: DeviceLogin, code: str = "") -> str:
        self.clock.advance(POLL_SECONDS)
        return asyncio.run(self.devices.redeem(begun.device_code, code, "10.0.0.7"))[1]

    def refusal(self, begun: DeviceLogin, code: str = "") -> str:
        with pytest.raises(DeviceRefused) as refused:
            self.redeem(begun, code)
        return refused.value.code


@pytest.fixture
def stage(database: Database) -> Stage:
    return Stage(database)


def test_code_that_was_confirmed_is_worth_one_token_of_that_account(stage: Stage) -> None:
    begun = stage.begin()
    assert stage.refusal(begun) == "authorization_pending"
    assert stage.decide(begun) == ""
    secret = stage.redeem(begun)
    caller = stage.auth.find_token(secret)
    assert caller is not None
    assert (caller.name, caller.role) == ("ada", "viewer")
    assert stage.refusal(begun) == "expired_token"
    stage.clock.advance(DAY)
    assert stage.auth.find_token(secret) is None
    actions = [(entry.who, entry.action) for entry in asyncio.run(stage.auth.audit.list())]
    assert actions == [("ada", "create token"), ("ada", "confirm login")]


def test_code_that_was_denied_is_worth_nothing(stage: Stage) -> None:
    begun = stage.begin()
    assert stage.decide(begun, is_approved=False) == ""
    assert stage.refusal(begun) == "access_denied"
    assert asyncio.run(stage.auth.tokens.list()) == []


def test_code_is_found_however_it_is_typed_and_decided_once(stage: Stage) -> None:
    begun = stage.begin()
    typed = f" {begun.user_code.lower().replace('-', ' ')}"
    found = asyncio.run(stage.devices.find(typed, 1))
    assert found is not None
    assert (found.name, found.address, found.user_code) == ("gpudeck login on gpu01", "10.0.0.7", begun.user_code)
    stage.decide(begun, is_approved=False)
    assert stage.decide(begun) is None


def test_code_expires(stage: Stage) -> None:
    begun = stage.begin()
    stage.clock.advance(VALID_SECONDS + 1)
    assert stage.decide(begun) is None
    assert stage.refusal(begun) == "expired_token"


def test_with_a_listener_the_token_needs_what_the_browser_brought_there(stage: Stage) -> None:
    begun = stage.begin(port=40_000)
    redirect = stage.decide(begun) or ""
    address, _, code = redirect.partition("?code=")
    assert address == "http://127.0.0.1:40000/"
    stolen = stage.begin(port=40_000)
    stage.decide(stolen)
    assert stage.refusal(stolen, "") == "access_denied"
    assert stage.redeem(begun, code)
    assert stage.decide(stage.begin(port=40_000), is_approved=False) == "http://127.0.0.1:40000/?denied=1"


def test_account_that_was_disabled_meanwhile_gets_no_token(stage: Stage) -> None:
    begun = stage.begin()
    stage.decide(begun)
    asyncio.run(stage.auth.accounts.change("ada", is_disabled=True))
    with pytest.raises(UsageError, match="disabled"):
        stage.redeem(begun)


def test_who_asks_guesses_or_begins_too_often_has_to_wait(stage: Stage) -> None:
    begun = stage.begin()
    codes = set()
    for _ in range(20):
        with pytest.raises(DeviceRefused) as refused:
            asyncio.run(stage.devices.redeem(begun.device_code, "", ""))
        codes.add(refused.value.code)
    assert codes == {"authorization_pending", "slow_down"}
    for _ in range(10):
        assert asyncio.run(stage.devices.find("BBBB-BBBB", 1)) is None
    with pytest.raises(TooManyLogins):
        asyncio.run(stage.devices.find(begun.user_code, 1))
    for _ in range(9):
        stage.begin()
    with pytest.raises(TooManyLogins):
        stage.begin()
    assert stage.begin(address="10.0.0.8")
