"""Accounts of the hub and logins on the hosts."""

import pytest

from gpudeck.auth.people import PeopleDirectory
from gpudeck.auth.settings import People as Entries
from gpudeck.auth.settings import PersonSettings, groups_with, people_problem
from gpudeck.model.errors import UsageError

PEOPLE: Entries = {
    "ada": ["alovelace", "ada"],
    "grace": ["ghopper"],
    "viewer": [],
    "edsger": PersonSettings(mail="edsger@example.org", slack="U0EWD", group="proofs", mute=["held_idle"]),
    "barbara": PersonSettings(logins=["bliskov", "bl"], group="types"),
}


@pytest.fixture
def people() -> PeopleDirectory:
    return PeopleDirectory(PEOPLE)


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
    people: PeopleDirectory, account: str, logins: set[str]
) -> None:
    assert people.logins_of(account) == logins


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
def test_a_login_belongs_to_one_account_or_to_none(people: PeopleDirectory, login: str, account: str | None) -> None:
    assert people.account_of(login) == account


def test_there_and_back_is_the_same(people: PeopleDirectory) -> None:
    accounts = ["ada", "grace", "viewer", "alan", "ghopper"]
    assert {people.account_of(login) for name in accounts for login in people.logins_of(name)} == {
        "ada",
        "grace",
        "alan",
    }


def test_without_entries_everybody_has_their_own_name() -> None:
    assert PeopleDirectory().logins_of("ada") == {"ada"}
    assert PeopleDirectory().account_of("ada") == "ada"


def test_a_login_of_two_accounts_is_a_mistake_that_names_all_three() -> None:
    twice: Entries = {"ada": ["root"], "grace": ["ghopper", "root"]}
    told = "people: the login root belongs to ada and to grace"
    assert told in (people_problem(twice) or "")
    with pytest.raises(UsageError, match=told):
        PeopleDirectory(twice)


def test_a_login_named_twice_for_one_account_is_none() -> None:
    assert people_problem({"ada": ["ada", "ada"]}) is None


def test_somebody_in_slack_is_one_account_or_none(people: PeopleDirectory) -> None:
    assert people.account_of_slack("U0EWD") == "edsger"
    assert people.account_of_slack("U0OTHER") is None
    twice: Entries = {"ada": PersonSettings(slack="U1"), "grace": PersonSettings(slack="U1")}
    assert "the Slack ID U1 belongs to ada and to grace" in (people_problem(twice) or "")


def test_the_own_name_of_an_entry_without_logins_is_nobody_elses() -> None:
    assert "the login grace belongs to ada and to grace" in (
        people_problem({"ada": ["grace"], "grace": PersonSettings(mail="g@example.org")}) or ""
    )


def test_who_has_no_entry_is_reached_in_no_way(people: PeopleDirectory) -> None:
    assert people.person_of("alan") == PersonSettings()
    assert people.person_of("edsger").mail == "edsger@example.org"


def test_the_group_of_a_person_counts_for_logins_that_stand_in_no_group_of_usage() -> None:
    groups = groups_with({"vision": ["bl", "ada"], "types": ["alan"]}, PEOPLE)
    assert groups == {"vision": ["bl", "ada"], "types": ["alan", "bliskov"], "proofs": ["edsger"]}
