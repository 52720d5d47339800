"""Logging in, on SQLite and PostgreSQL: what is told, what it costs, and what it leaves behind."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest
from argon2 import PasswordHasher

from fakes.clock import FakeClock
from fakes.passwords import CountingHasher
from gpudeck.auth.accounts import Account, Accounts, Passwords
from gpudeck.auth.audit import Audit
from gpudeck.auth.login import (
    AT_ONCE,
    FREE_TRIES,
    MAX_WAITING,
    Login,
    LoginRefused,
    LoginThrottle,
    describe_wait,
    fold_name,
)
from gpudeck.auth.sessions import Sessions
from gpudeck.auth.settings import AuthSettings
from gpudeck.database.engine import Database

Result = TypeVar("Result")
PASSWORD = "correct horse battery"
HOME, OFFICE = "198.51.100.7", "203.0.113.9"


def run(doing: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(doing)


class SlowPasswords(Passwords):
    """Something happens while a password is compared."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def verify(self, password_hash: str | None, password: str) -> bool:
        is_right = await super().verify(password_hash, password)
        meanwhile, self.meanwhile = self.meanwhile, None
        await (meanwhile or _nothing)()
        return is_right


async def _nothing() -> None:
    pass


class Stage:
    """A hub with three accounts: ada may log in, grace is disabled, hal has no password."""

    def __init__(self, database: Database) -> None:
        self.clock = FakeClock()
        self.hasher = CountingHasher()
        self.passwords = SlowPasswords(self.hasher)
        self.accounts = Accounts(database, self.passwords, self.clock)
        self.sessions = Sessions(database, AuthSettings(), self.clock)
        self.audit = Audit(database, self.clock)
        self.throttle = LoginThrottle(self.clock)
        self.login = Login(self.accounts, self.sessions, self.passwords, self.throttle, self.audit)
        self.ada = run(self.accounts.add("ada", "admin", PASSWORD))
        run(self.accounts.add("grace", "user", PASSWORD))
        run(self.accounts.change("grace", is_disabled=True))
        run(self.accounts.add("hal", "user", None))
        self.hasher.hashed = 0

    async def log_in(self, name: str, password: str = PASSWORD, address: str = HOME) -> tuple[Account, str]:
        return await self.login.log_in(name, password, address, "Firefox")

    def refusal(self, name: str, password: str = PASSWORD, address: str = HOME) -> LoginRefused:
        with pytest.raises(LoginRefused) as refused:
            run(self.log_in(name, password, address))
        return refused.value


@pytest.fixture
def stage(database: Database) -> Stage:
    return Stage(database)


REFUSED = [
    ("nobody", PASSWORD),
    ("", ""),
    ("no name\x00", PASSWORD),
    ("ada", "wrong password"),
    ("ada", ""),
    ("ada", "x" * 5000),
    ("grace", PASSWORD),
    ("grace", "wrong password"),
    ("hal", PASSWORD),
    ("hal", ""),
]


def test_the_right_password_logs_in(stage: Stage) -> None:
    account, secret = run(stage.log_in("Ada"))
    assert (account.name, account.last_login_at) == ("ada", stage.clock())
    assert run(stage.sessions.find(secret)) == account
    (session,) = run(stage.sessions.list(account.id))
    assert (session.address, session.user_agent) == (HOME, "Firefox")


def test_each_login_gets_a_secret_of_its_own(stage: Stage) -> None:
    assert len({run(stage.log_in("ada"))[1] for _ in range(3)}) == 3


def test_whatever_was_wrong_the_same_is_told(stage: Stage) -> None:
    refusals = [stage.refusal(name, password, f"10.0.0.{number}") for number, (name, password) in enumerate(REFUSED)]
    assert {(str(refused), refused.retry_after) for refused in refusals} == {
        ("the name or the password is wrong. Try again, or ask an admin for a new password.", 0.0)
    }


def test_whatever_was_wrong_the_same_work_is_done(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, transactions = Database.begin, []
    monkeypatch.setattr(Database, "begin", lambda self: transactions.append(1) or begin(self))
    work = []
    for number, (name, password) in enumerate(REFUSED):
        stage.hasher.verified.clear()
        transactions.clear()
        stage.refusal(name, password, f"10.0.0.{number}")
        work.append((list(stage.hasher.verified), stage.hasher.hashed, len(transactions)))
    run(stage.log_in("ada"))
    assert len(work[0][0]) == 1
    assert work == [work[0]] * len(REFUSED)
    assert stage.hasher.verified[-1:] == work[0][0]


def test_a_refusal_starts_no_session(stage: Stage) -> None:
    stage.refusal("ada", "wrong password")
    assert run(stage.sessions.list(stage.ada.id)) == []


def test_the_audit_log_has_logins_and_refusals_without_secrets(stage: Stage) -> None:
    run(stage.log_in("ada"))
    stage.refusal("ada", "wrong password", OFFICE)
    stage.refusal("my secret password", "oops", OFFICE)
    entries = run(stage.audit.list())
    assert [(entry.who, entry.action, entry.subject, entry.outcome, entry.address) for entry in entries] == [
        ("nobody", "log in", "a name that nobody has", "refused", OFFICE),
        ("nobody", "log in", "ada", "refused", OFFICE),
        ("ada", "log in", "ada", "done", HOME),
    ]


def test_whoever_guesses_has_to_wait_and_is_told_how_long(stage: Stage) -> None:
    for _ in range(FREE_TRIES):
        stage.refusal("ada", "wrong password")
    stage.hasher.verified.clear()
    refused = stage.refusal("ada")
    assert (refused.retry_after, stage.hasher.verified) == (1.0, [])
    assert str(refused) == "too many failed logins. Try again in 1 second."
    stage.clock.advance(1)
    assert run(stage.log_in("ada"))[0].name == "ada"


def test_names_that_nobody_has_wait_like_all_others(stage: Stage) -> None:
    for _ in range(FREE_TRIES):
        stage.refusal("ada", "wrong password", HOME)
        stage.refusal("nobody", "wrong password", OFFICE)
    known, unknown = stage.refusal("ada", address=HOME), stage.refusal("nobody", address=OFFICE)
    assert (str(known), known.retry_after) == (str(unknown), unknown.retry_after)


def test_the_owner_logs_in_elsewhere_while_somebody_guesses(stage: Stage) -> None:
    for _ in range(FREE_TRIES):
        stage.refusal("ada", "wrong password", OFFICE)
    assert stage.refusal("ada", address=OFFICE).retry_after > 0
    assert run(stage.log_in("ada", address=HOME))[0].name == "ada"


def test_guesses_that_come_all_at_once_are_counted_one_by_one(stage: Stage) -> None:
    async def guessing() -> list[BaseException | tuple[Account, str]]:
        guesses = (stage.log_in("ada", f"wrong password {number}") for number in range(AT_ONCE + MAX_WAITING))
        return await asyncio.gather(*guesses, return_exceptions=True)

    stage.hasher.verified.clear()
    outcomes = run(guessing())
    assert {type(outcome) for outcome in outcomes} == {LoginRefused}
    assert len(stage.hasher.verified) == FREE_TRIES


def test_right_passwords_never_make_anybody_wait(stage: Stage) -> None:
    for _ in range(FREE_TRIES * 5):
        run(stage.log_in("ada"))
    assert stage.throttle.wait_before("grace", HOME) == 0


def test_too_many_logins_at_once_are_sent_away(stage: Stage) -> None:
    async def crowding() -> list[BaseException | tuple[Account, str]]:
        tries = (
            stage.log_in(f"nobody{number}", address=f"10.0.0.{number}") for number in range(AT_ONCE + MAX_WAITING + 3)
        )
        return await asyncio.gather(*tries, return_exceptions=True)

    outcomes = run(crowding())
    told = [str(outcome) for outcome in outcomes if "too many users" in str(outcome)]
    assert told == ["too many users are logging in right now. Try again in 2 seconds."] * 3
    assert run(stage.log_in("ada"))[0].name == "ada"


def test_in_a_flood_from_many_addresses_the_one_with_the_fewest_attempts_goes_first(stage: Stage) -> None:
    async def flooding() -> list[BaseException | tuple[Account, str]]:
        count = AT_ONCE + MAX_WAITING
        for _ in range(2):
            tries = (stage.log_in(f"nobody{number}", address=f"10.0.0.{number}") for number in range(count))
            await asyncio.gather(*tries, return_exceptions=True)
        flood = [stage.log_in(f"nobody{number}", address=f"10.0.0.{number}") for number in range(count)]
        return await asyncio.gather(*flood, stage.log_in("ada", address=OFFICE), return_exceptions=True)

    entered = run(flooding())[-1]
    assert not isinstance(entered, BaseException)
    assert entered[0].name == "ada"


@pytest.mark.parametrize(
    "change",
    [
        lambda accounts: accounts.change("mia", password="another good password"),
        lambda accounts: accounts.change("mia", is_disabled=True),
        lambda accounts: accounts.remove("mia"),
    ],
    ids=["new password", "disabled", "removed"],
)
def test_an_account_that_changes_while_its_password_is_compared_stays_out(
    stage: Stage, change: Callable[[Accounts], Awaitable[object]]
) -> None:
    mia = run(stage.accounts.add("mia", "user", PASSWORD))
    stage.passwords.meanwhile = lambda: change(stage.accounts)
    refused = stage.refusal("mia")
    assert refused.retry_after == 0
    assert run(stage.sessions.list(mia.id)) == []


def test_a_password_that_an_admin_sets_meanwhile_is_not_replaced(stage: Stage) -> None:
    run(stage.accounts.add("mia", "user", PASSWORD))
    stage.passwords.meanwhile = lambda: stage.accounts.change("mia", password="what the admin chose")
    with pytest.raises(LoginRefused):
        run(stage.login.change_password("mia", PASSWORD, "what mia chose", HOME, "Firefox"))
    assert run(stage.log_in("mia", "what the admin chose"))[0].name == "mia"


def test_who_guesses_the_old_password_waits_as_who_logs_in(stage: Stage) -> None:
    for _ in range(FREE_TRIES):
        with pytest.raises(LoginRefused):
            run(stage.login.change_password("ada", "wrong password", "what ada chose", HOME, "Firefox"))
    assert stage.refusal("ada").retry_after > 0


def test_disabling_somebody_counts_at_once(stage: Stage) -> None:
    run(stage.accounts.add("mia", "user", PASSWORD))
    _, secret = run(stage.log_in("mia"))
    before = run(stage.sessions.find(secret))
    run(stage.accounts.change("mia", is_disabled=True))
    assert before is not None
    assert run(stage.sessions.find(secret)) is None


def test_a_hash_of_an_older_cost_is_made_anew_at_the_next_login(stage: Stage) -> None:
    older = Passwords(PasswordHasher(time_cost=2, memory_cost=8, parallelism=1))
    run(Accounts(stage.accounts.database, older, stage.clock).add("mia", "user", PASSWORD))
    _, before = run(stage.accounts.find_with_hash("mia"))
    _, secret = run(stage.log_in("mia"))
    _, after = run(stage.accounts.find_with_hash("mia"))
    run(stage.log_in("mia"))
    assert (before != after, stage.hasher.hashed) == (True, 1)
    assert run(stage.sessions.find(secret)) is not None


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.2, "1 second"),
        (1.0, "1 second"),
        (1.1, "2 seconds"),
        (119, "119 seconds"),
        (120, "2 minutes"),
        (301, "6 minutes"),
    ],
)
def test_a_wait_is_told_rounded_up(seconds: float, told: str) -> None:
    assert describe_wait(seconds) == told


@pytest.mark.parametrize("typed", ["Ada", " ada ", "a da", "\uff41da", "\xc1da", "a\xadda", "a\u200bda"])
def test_spellings_that_a_directory_may_take_for_one_name_share_their_attempts(typed: str) -> None:
    assert fold_name(typed) == "ada"
