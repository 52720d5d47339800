"""Accounts of the hub and logins on the hosts."""

import pytest

from gpudeck.auth.auth import UserDirectory
from gpudeck.auth.settings import UserEntries as Entries
from gpudeck.auth.settings import UserSettings, groups_with, users_problem
from gpudeck.model.errors import UsageError

PEOPLE: Entries = {
    "ada": ["alovelace", "ada"],
    "grace": ["ghopper"],
    "viewer": [],
    "edsger": UserSettings(mail="edsger@example.org", slack="U0EWD", group="proofs", mute=["gpu_idle"]),
    "barbara": UserSettings(logins=["bliskov", "bl"], group="types"),
}


@pytest.fixture
def users() -> UserDirectory:
    return UserDirectory(PEOPLE)


@pytest.mark.parametrize(
    ("account", "logins"),
    [
        ("ada", {"alovelace", "ada"}),
        ("grace", {"ghopper"}),
        ("viewer", set()),
        ("alan", {"alan"}),
        ("edsger", {"edsger"}),
        ("barbara", {"bliskov", "bl"}),
        ("ghopper", set()),  # an account of that name: its login is grace's
    ],
)
def test_an_account_has_the_logins_of_its_entry_or_its_own_name(
    users: UserDirectory, account: str, logins: set[str]
) -> None:
    assert users.logins_of(account) == logins


@pytest.mark.parametrize(
    ("login", "account"),
    [
        ("alovelace", "ada"),
        ("ada", "ada"),
        ("ghopper", "grace"),
        ("grace", None),  # the account grace has another login
        ("alan", "alan"),
        ("edsger", "edsger"),
        ("bl", "barbara"),
        ("barbara", None),
        ("Ada", None),
        ("DOMAIN\\ada", None),
        ("", None),
    ],
)
def test_a_login_belongs_to_one_account_or_to_none(users: UserDirectory, login: str, account: str | None) -> None:
    assert users.account_of(login) == account


def test_there_and_back_is_the_same(users: UserDirectory) -> None:
    accounts = ["ada", "grace", "viewer", "alan", "ghopper"]
    assert {users.account_of(login) for name in accounts for login in users.logins_of(name)} == {
        "ada",
        "grace",
        "alan",
    }


def test_without_entries_everybody_has_their_own_name() -> None:
    assert UserDirectory().logins_of("ada") == {"ada"}
    assert UserDirectory().account_of("ada") == "ada"


def test_a_login_of_two_accounts_is_a_mistake_that_names_all_three() -> None:
    twice: Entries = {"ada": ["root"], "grace": ["ghopper", "root"]}
    told = "users: the login root belongs to ada and to grace"
    assert told in (users_problem(twice) or "")
    with pytest.raises(UsageError, match=told):
        UserDirectory(twice)


def test_a_login_named_twice_for_one_account_is_none() -> None:
    assert users_problem({"ada": ["ada", "ada"]}) is None


def test_somebody_in_slack_is_one_account_or_none(users: UserDirectory) -> None:
    assert users.account_of_slack("U0EWD") == "edsger"
    assert users.account_of_slack("U0OTHER") is None
    twice: Entries = {"ada": UserSettings(slack="U1"), "grace": UserSettings(slack="U1")}
    assert "the Slack ID U1 belongs to ada and to grace" in (users_problem(twice) or "")


def test_the_own_name_of_an_entry_without_logins_is_nobody_elses() -> None:
    assert "the login grace belongs to ada and to grace" in (
        users_problem({"ada": ["grace"], "grace": UserSettings(mail="g@example.org")}) or ""
    )


def test_who_has_no_entry_is_reached_in_no_way(users: UserDirectory) -> None:
    assert users.user_of("alan") == UserSettings()
    assert users.user_of("edsger").mail == "edsger@example.org"


def test_the_group_of_a_person_counts_for_logins_that_stand_in_no_group_of_usage() -> None:
    groups = groups_with({"vision": ["bl", "ada"], "types": ["alan"]}, PEOPLE)
    assert groups == {"vision": ["bl", "ada"], "types": ["alan", "bliskov"], "proofs": ["edsger"]}
