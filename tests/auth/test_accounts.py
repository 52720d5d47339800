"""Accounts, on SQLite and PostgreSQL: their names, their changes, and that one admin always stays."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from sqlalchemy import text

from fakes.clock import FakeClock
from fakes.passwords import quick_hasher
from fakes.sessions import start_session
from gpudeck.auth.accounts import Account, Accounts, Passwords
from gpudeck.auth.sessions import Sessions
from gpudeck.auth.settings import AuthSettings
from gpudeck.database.engine import Database
from gpudeck.model.errors import UsageError

Result = TypeVar("Result")
PASSWORD = "correct horse battery"


def run(doing: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(doing)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def accounts(database: Database, clock: FakeClock) -> Accounts:
    return Accounts(database, Passwords(quick_hasher()), clock)


@pytest.fixture
def sessions(database: Database, clock: FakeClock) -> Sessions:
    return Sessions(database, AuthSettings(), clock)


def hash_of(accounts: Accounts, name: str) -> str:
    return run(accounts.find_with_hash(name))[1] or ""


def test_what_is_added_is_found(accounts: Accounts, clock: FakeClock) -> None:
    added = run(accounts.add("ada", "user", PASSWORD))
    assert added == Account(added.id, "ada", "user", False, True, clock(), None)
    assert run(accounts.find("ada")) == added
    assert run(accounts.find("Ada")) == added
    assert run(accounts.list()) == [added]
    assert run(accounts.count()) == 1


def test_an_empty_hub_has_nobody(accounts: Accounts) -> None:
    assert (run(accounts.list()), run(accounts.count()), run(accounts.find("ada"))) == ([], 0, None)


def test_an_account_may_have_no_password(accounts: Accounts) -> None:
    assert not run(accounts.add("ada", "viewer", None)).has_password
    assert run(accounts.find_with_hash("ada"))[1] is None


def test_accounts_are_listed_by_name(accounts: Accounts) -> None:
    for name in ("grace", "ada", "Mallory"):
        run(accounts.add(name, "user", None))
    assert [account.name for account in run(accounts.list())] == ["ada", "grace", "mallory"]


def test_a_bad_name_is_refused_and_nobodys(accounts: Accounts) -> None:
    for name in (
        "",
        "a b",
        "-ada",
        "ada-",
        "x" * 65,
        "ada\n",
        "ada\x00",
        "ädä",
        "../ada",
        "\N{KELVIN SIGN}ate",
        "\ud800",
    ):
        with pytest.raises(UsageError, match="is no name for an account"):
            run(accounts.add(name, "user", None))
        with pytest.raises(UsageError, match="there is no account"):
            run(accounts.remove(name))
        assert run(accounts.find(name)) is None


def test_a_name_is_taken_once_in_any_case(accounts: Accounts) -> None:
    run(accounts.add("ada", "user", None))
    with pytest.raises(UsageError, match="there is an account ada already"):
        run(accounts.add("ADA", "admin", PASSWORD))
    assert [account.role for account in run(accounts.list())] == ["user"]


@pytest.mark.parametrize(("role", "password", "told"), [("root", None, "no role"), ("user", "short", "fewer than 10")])
def test_a_bad_role_or_password_adds_nobody(accounts: Accounts, role: Any, password: str | None, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        run(accounts.add("ada", role, password))
    assert run(accounts.count()) == 0


def test_changing_somebody_who_is_not_there_says_so(accounts: Accounts) -> None:
    changes = [
        lambda: accounts.remove("ada"),
        lambda: accounts.change("ada", role="user"),
        lambda: accounts.change("ada", password=PASSWORD),
        lambda: accounts.change("ada", is_disabled=True),
    ]
    for change in changes:
        with pytest.raises(UsageError, match="there is no account 'ada'"):
            run(change())


def test_removed_accounts_are_gone_with_their_sessions(accounts: Accounts, sessions: Sessions) -> None:
    ada = run(accounts.add("ada", "user", PASSWORD))
    secret = run(start_session(sessions, ada))
    assert run(accounts.remove("ada")) == ada
    assert (run(accounts.find("ada")), run(sessions.find(secret)), run(sessions.list(ada.id))) == (None, None, [])


def test_a_role_is_changed(accounts: Accounts) -> None:
    run(accounts.add("ada", "user", None))
    assert run(accounts.change("Ada", role="admin")).role == "admin"
    assert [account.role for account in run(accounts.list())] == ["admin"]
    with pytest.raises(UsageError, match="no role of an account"):
        run(accounts.change("ada", role="owner"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change", [{"role": "viewer", "password": "short"}, {"role": "nobody"}, {"password": PASSWORD, "role": "root"}]
)
def test_a_change_is_made_as_a_whole_or_not_at_all(accounts: Accounts, change: dict[str, Any]) -> None:
    before = run(accounts.add("ada", "user", None))
    with pytest.raises(UsageError):
        run(accounts.change("ada", **{"is_disabled": True} | change))
    assert run(accounts.find("ada")) == before


def test_a_new_password_counts_and_the_old_one_does_not(accounts: Accounts) -> None:
    run(accounts.add("ada", "user", PASSWORD))
    before = hash_of(accounts, "ada")
    run(accounts.change("ada", password="another good password"))
    passwords = Passwords(quick_hasher())
    assert hash_of(accounts, "ada") != before
    assert run(passwords.verify(hash_of(accounts, "ada"), "another good password"))


def test_a_bad_new_password_changes_nothing(accounts: Accounts, sessions: Sessions) -> None:
    ada = run(accounts.add("ada", "user", PASSWORD))
    secret, before = run(start_session(sessions, ada)), hash_of(accounts, "ada")
    with pytest.raises(UsageError, match="fewer than 10"):
        run(accounts.change("ada", password="short"))
    assert (hash_of(accounts, "ada"), run(sessions.find(secret))) == (before, ada)


def test_a_new_password_ends_all_sessions_of_that_account_only(accounts: Accounts, sessions: Sessions) -> None:
    ada, grace = run(accounts.add("ada", "user", PASSWORD)), run(accounts.add("grace", "user", None))
    adas, graces = [run(start_session(sessions, ada)) for _ in range(2)], run(start_session(sessions, grace))
    run(accounts.change("ada", password="another good password"))
    assert [run(sessions.find(secret)) for secret in adas] == [None, None]
    assert run(sessions.find(graces)) == grace


def test_disabled_and_enabled_again(accounts: Accounts, sessions: Sessions) -> None:
    ada = run(accounts.add("ada", "user", PASSWORD))
    secret = run(start_session(sessions, ada))
    assert run(accounts.change("ada", is_disabled=True)).is_disabled
    assert run(sessions.find(secret)) is None
    assert not run(accounts.change("ada", is_disabled=False)).is_disabled
    assert run(sessions.find(secret)) is None


@pytest.fixture
def with_last_admin(accounts: Accounts) -> Accounts:
    """ada is the last admin who is enabled; grace is another, disabled; mallory is a user."""
    run(accounts.add("ada", "admin", None))
    run(accounts.add("grace", "admin", None))
    run(accounts.add("mallory", "user", None))
    run(accounts.change("grace", is_disabled=True))
    return accounts


def test_the_last_enabled_admin_stays(with_last_admin: Accounts) -> None:
    before = run(with_last_admin.list())
    with pytest.raises(UsageError, match="ada is the last admin and cannot be removed"):
        run(with_last_admin.remove("ada"))
    with pytest.raises(UsageError, match="ada is the last admin and cannot be disabled"):
        run(with_last_admin.change("ada", is_disabled=True))
    with pytest.raises(UsageError, match="ada is the last admin and cannot be made a user"):
        run(with_last_admin.change("ada", role="user"))
    assert run(with_last_admin.list()) == before


def test_others_than_the_last_admin_may_go(with_last_admin: Accounts) -> None:
    run(with_last_admin.change("grace", role="viewer"))
    run(with_last_admin.remove("grace"))
    run(with_last_admin.change("mallory", is_disabled=True))
    run(with_last_admin.change("ada", role="admin"))
    run(with_last_admin.change("ada", is_disabled=False))
    assert [account.name for account in run(with_last_admin.list())] == ["ada", "mallory"]


def test_an_admin_may_go_when_another_is_enabled(with_last_admin: Accounts) -> None:
    run(with_last_admin.change("grace", is_disabled=False))
    run(with_last_admin.remove("ada"))
    assert [account.name for account in run(with_last_admin.list())] == ["grace", "mallory"]


def test_of_two_admins_who_remove_each_other_at_once_one_stays(accounts: Accounts) -> None:
    async def removing() -> list[object]:
        return list(
            await asyncio.gather(
                accounts.remove("ada"), accounts.change("grace", is_disabled=True), return_exceptions=True
            )
        )

    for _ in range(5):
        run(accounts.add("ada", "admin", None))
        run(accounts.add("grace", "admin", None))
        outcomes = run(removing())
        left = [account for account in run(accounts.list()) if not account.is_disabled]
        assert sum(isinstance(outcome, UsageError) for outcome in outcomes) == 1
        assert len(left) == 1
        run(wipe(accounts))


async def wipe(accounts: Accounts) -> None:
    async with accounts.database.begin() as connection:
        await connection.execute(text("DELETE FROM accounts"))


def test_watchers_hear_of_every_change(accounts: Accounts) -> None:
    heard: list[int] = []
    accounts.watch(heard.append)
    ada = run(accounts.add("ada", "user", PASSWORD))
    run(accounts.change("ada", role="viewer"))
    run(accounts.change("ada", password="another good password"))
    run(accounts.change("ada", is_disabled=True))
    run(accounts.remove("ada"))
    assert heard == [ada.id] * 4


def test_a_login_is_noted_while_the_password_counts(accounts: Accounts, clock: FakeClock) -> None:
    ada = run(accounts.add("ada", "user", PASSWORD))
    clock.advance(5)
    noted = run(accounts.note_login(ada, hash_of(accounts, "ada")))
    assert noted is not None
    assert noted.last_login_at == clock()
    assert run(accounts.find("ada")) == noted


def test_a_login_with_what_counts_no_more_is_not_noted(accounts: Accounts) -> None:
    ada = run(accounts.add("ada", "user", PASSWORD))
    before = hash_of(accounts, "ada")
    run(accounts.change("ada", password="another good password"))
    with_the_old_one = run(accounts.note_login(ada, before))
    run(accounts.change("ada", is_disabled=True))
    while_disabled = run(accounts.note_login(ada, hash_of(accounts, "ada")))
    assert (with_the_old_one, while_disabled) == (None, None)
    assert [account.last_login_at for account in run(accounts.list())] == [None]
