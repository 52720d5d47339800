"""Accounts of the hub and logins on the hosts."""

import pytest

from gpudeck.auth.people import People
from gpudeck.auth.settings import people_problem
from gpudeck.model.errors import UsageError

PEOPLE = {"ada": ["alovelace", "ada"], "grace": ["ghopper"], "viewer": []}


@pytest.fixture
def people() -> People:
    return People(PEOPLE)


@pytest.mark.parametrize(
    ("account", "logins"),
    [
        ("ada", {"alovelace", "ada"}),
        ("grace", {"ghopper"}),
        ("viewer", set()),
        ("alan", {"alan"}),
        ("ghopper", set()),  # an account of that name: its login is grace's
    ],
)
def test_an_account_has_the_logins_of_its_entry_or_its_own_name(people: People, account: str, logins: set[str]) -> None:
    assert people.logins_of(account) == logins


@pytest.mark.parametrize(
    ("login", "account"),
    [
        ("alovelace", "ada"),
        ("ada", "ada"),
        ("ghopper", "grace"),
        ("grace", None),  # the account grace has another login
        ("alan", "alan"),
        ("Ada", None),
        ("DOMAIN\\ada", None),
        ("", None),
    ],
)
def test_a_login_belongs_to_one_account_or_to_none(people: People, login: str, account: str | None) -> None:
    assert people.account_of(login) == account


def test_there_and_back_is_the_same(people: People) -> None:
    accounts = ["ada", "grace", "viewer", "alan", "ghopper"]
    assert {people.account_of(login) for name in accounts for login in people.logins_of(name)} == {
        "ada",
        "grace",
        "alan",
    }


def test_without_entries_everybody_has_their_own_name() -> None:
    assert People().logins_of("ada") == {"ada"}
    assert People().account_of("ada") == "ada"


def test_a_login_of_two_accounts_is_a_mistake_that_names_all_three() -> None:
    twice = {"ada": ["root"], "grace": ["ghopper", "root"]}
    told = "people: the login root belongs to ada and to grace"
    assert told in (people_problem(twice) or "")
    with pytest.raises(UsageError, match=told):
        People(twice)


def test_a_login_named_twice_for_one_account_is_none() -> None:
    assert people_problem({"ada": ["ada", "ada"]}) is None
