"""Users whom a provider identifies: their accounts follow it, and never those of others."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fakes.api_app import make_auth
from gpudeck.auth.auth import Auth
from gpudeck.auth.claims import map_user
from gpudeck.auth.identities import ProviderUser
from gpudeck.auth.settings import MappingSettings
from gpudeck.model.errors import Refused

MAPPING = MappingSettings(roles={"admin": ["admins"], "user": ["users"]}, default_role="viewer", groups={"lab-*": "*"})
ISSUER = "https://sso.example"


def make_user(subject: str = "1", *, link: bool = False, **claims: Any) -> ProviderUser:
    told = {"preferred_username": "ada", "groups": ["users", "lab-vision"], "email": "ada@example.org"} | claims
    told = {name: value for name, value in told.items() if value is not None}
    return ProviderUser(ISSUER, subject, "company", map_user(told, MAPPING), link)


@pytest.fixture
def auth(tmp_path: Path) -> Auth:
    return make_auth(tmp_path)


def log_in(auth: Auth, user: ProviderUser) -> Any:
    return asyncio.run(auth.identities.log_in(user, "10.0.0.1", "a browser"))


def actions(auth: Auth) -> list[tuple[str, str, str]]:
    return [(one.action, one.subject, one.outcome) for one in reversed(asyncio.run(auth.audit.list()))]


def test_the_first_log_in_makes_an_account_with_group_and_mail(auth: Auth) -> None:
    account, secret = log_in(auth, make_user())
    assert (account.name, account.role, account.has_password) == ("ada", "user", False)
    caller = asyncio.run(auth.find_session(secret))
    assert caller is not None
    assert caller.logins == {"ada"}
    user = auth.users.user_of("ada")
    assert (user.group, user.mail, auth.users.group_of("ada")) == ("vision", "ada@example.org", "vision")
    assert actions(auth) == [("add account", "ada", "done"), ("log in", "ada", "done")]


def test_roles_follow_the_groups_and_a_missing_claim_changes_nothing(auth: Auth) -> None:
    log_in(auth, make_user("2", preferred_username="root", groups=["admins"]))
    assert log_in(auth, make_user(groups=["admins"]))[0].role == "admin"
    assert log_in(auth, make_user(groups=None))[0].role == "admin"
    assert asyncio.run(auth.identities.confirm(make_user(groups=[]))) == asyncio.run(auth.accounts.find("ada"))
    account = asyncio.run(auth.accounts.find("ada"))
    assert account is not None
    assert account.role == "viewer"


def test_the_last_admin_stays_one(auth: Auth, caplog: pytest.LogCaptureFixture) -> None:
    log_in(auth, make_user(groups=["admins"]))
    assert log_in(auth, make_user(groups=[]))[0].role == "admin"
    assert "ada keeps the role admin" in caplog.text


def test_another_user_of_the_same_name_gets_nobodys_account(auth: Auth) -> None:
    log_in(auth, make_user("1"))
    with pytest.raises(Refused, match="belongs to another user of company"):
        log_in(auth, make_user("2"))
    asyncio.run(auth.accounts.add("grace", "admin", None))
    with pytest.raises(Refused, match="already that is not of company"):
        log_in(auth, make_user("3", preferred_username="grace"))
    assert ("log in", "grace", "refused") in actions(auth)
    assert log_in(auth, make_user("3", link=True, preferred_username="grace"))[0].name == "grace"


def test_a_user_who_is_renamed_keeps_the_account(auth: Auth) -> None:
    first, _ = log_in(auth, make_user())
    again, _ = log_in(auth, make_user(preferred_username="lovelace"))
    assert again.id == first.id
    assert again.name == "ada"


def test_a_disabled_account_stays_out(auth: Auth) -> None:
    log_in(auth, make_user())
    asyncio.run(auth.accounts.change("ada", is_disabled=True))
    with pytest.raises(Refused, match="is disabled"):
        log_in(auth, make_user())
    assert asyncio.run(auth.identities.confirm(make_user())) is None


def test_what_a_login_would_give_is_known_before_it(auth: Auth) -> None:
    def foresee(user: ProviderUser) -> tuple[str, str]:
        return asyncio.run(auth.identities.foresee(user))

    assert foresee(make_user()) == ("ada", "user")
    assert asyncio.run(auth.accounts.list()) == []
    log_in(auth, make_user(groups=["admins"]))
    assert foresee(make_user(groups=[])) == ("ada", "admin")  # the last one
    asyncio.run(auth.accounts.add("root", "admin", None))
    assert foresee(make_user(groups=[])) == ("ada", "viewer")
    assert foresee(make_user(groups=None)) == ("ada", "admin")
    assert foresee(make_user(preferred_username="lovelace")) == ("ada", "user")
    with pytest.raises(Refused, match="an account root already"):
        foresee(make_user("2", preferred_username="root"))
    asyncio.run(auth.accounts.change("ada", is_disabled=True))
    with pytest.raises(Refused, match="is disabled"):
        foresee(make_user())


@pytest.mark.parametrize("subject", ["", "x" * 256])
def test_an_id_that_is_none_is_refused(auth: Auth, subject: str) -> None:
    with pytest.raises(Refused):
        log_in(auth, make_user(subject))
