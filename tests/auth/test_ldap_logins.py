"""Logging in as a user of a real OpenLDAP server: accounts, roles, sessions, and the end of those who are gone."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from click.testing import CliRunner, Result

from fakes.api_app import make_app
from fakes.clock import FakeClock
from fakes.passwords import quick_hasher
from fakes.slapd import (
    GROUPS,
    PASSWORD,
    PEOPLE,
    SERVICE,
    SERVICE_PASSWORD,
    Slapd,
    group,
    person,
    running_slapd,
)
from fakes.tables import open_file, put_tables
from gpudeck.auth.accounts import Account, Passwords
from gpudeck.auth.auth import Auth
from gpudeck.auth.ldap_logins import LdapLogins, try_login
from gpudeck.auth.login import LoginRefused
from gpudeck.auth.settings import AuthSettings, LdapSettings, MappingSettings
from gpudeck.auth.trials import Trial
from gpudeck.cli import gpudeck
from gpudeck.fleet.hub import Hub
from gpudeck.model.errors import GpudeckError, Wrong

ENTRIES = "".join(
    (
        person("ada"),
        person("bob"),
        person("root"),
        person("eve"),
        group("gpu-admins", "cn=leads"),
        group("leads", "ada"),
        group("gpu-users", "ada", "bob", "root"),
    )
)
MAPPING = MappingSettings(
    roles={"admin": ["gpu-admins"], "user": ["gpu-*"]}, default_role=None, groups={"gpu-*": "team *"}
)


@pytest.fixture
def slapd(tmp_path: Path) -> Iterator[Slapd]:
    with running_slapd(tmp_path / "slapd", ENTRIES) as server:
        yield server


class Stage:
    """A hub with the account root of its own, and a directory."""

    def __init__(self, folder: Path, slapd: Slapd, **changes: Any) -> None:
        usual = {
            "urls": [slapd.url],
            "base": PEOPLE,
            "group_base": GROUPS,
            "bind_dn": SERVICE,
            "bind_password_file": str(slapd.password_file),
            "ca_file": str(slapd.authority.ca_file),
            "timeout": 5.0,
            "mapping": MAPPING,
        }
        self.settings = LdapSettings(**(usual | changes))  # type: ignore[arg-type]
        self.clock = FakeClock()
        put_tables(folder)
        auth_settings = AuthSettings(ldap=self.settings)
        self.auth = Auth(open_file(folder), auth_settings, passwords=Passwords(quick_hasher()), now=self.clock)
        assert self.auth.ldap is not None
        self.ldap: LdapLogins = self.auth.ldap
        asyncio.run(self.auth.accounts.add("root", "admin", "a password of the hub"))

    def log_in(self, name: str, password: str = PASSWORD) -> tuple[Account, str]:
        return asyncio.run(self.auth.login.log_in(name, password, "192.0.2.7", "Firefox"))

    def refusal(self, name: str, password: str = PASSWORD) -> str:
        with pytest.raises(LoginRefused) as refused:
            self.log_in(name, password)
        return str(refused.value)

    def is_in(self, secret: str) -> bool:
        return asyncio.run(self.auth.find_session(secret)) is not None

    def token(self, account: Account) -> str:
        made = asyncio.run(self.auth.tokens.create("laptop", account.role, account_id=account.id))
        return made[1]

    def check(self) -> None:
        """As the hub does after the refresh time."""
        self.clock.advance(self.settings.refresh + 1)
        asyncio.run(self.ldap.check_users())

    def audit(self) -> list[tuple[str, str, str]]:
        entries = asyncio.run(self.auth.audit.list())
        return [(entry.action, entry.subject, entry.outcome) for entry in entries]


@pytest.fixture
def stage(tmp_path: Path, slapd: Slapd) -> Iterator[Stage]:
    stage = Stage(tmp_path, slapd)
    yield stage
    asyncio.run(stage.ldap.close())


def test_first_login_makes_an_account_with_role_group_and_mail(stage: Stage) -> None:
    ada, secret = stage.log_in("Ada")
    assert (ada.name, ada.role, ada.has_password) == ("ada", "admin", False)
    assert stage.is_in(secret)
    assert (stage.auth.users.user_of("ada").mail, stage.auth.users.logins_of("ada")) == ("ada@ex.org", {"ada"})
    bob, _ = stage.log_in("bob")
    assert (bob.role, stage.auth.users.user_of("bob").group) == ("user", "team users")
    assert "by LDAP" in asyncio.run(stage.auth.audit.list())[0].details


def test_wrong_password_and_unknown_name_get_the_same_answer(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    wrong = "the name or the password is wrong. Try again, or ask an admin for a new password."
    assert stage.refusal("ada", "wrong") == wrong
    assert stage.refusal("nobody") == wrong
    assert stage.refusal("ada)(uid=*") == wrong
    assert stage.refusal("root", "wrong") == wrong
    refused = "from 192.0.2.7 is refused: the name or the password is wrong"
    assert caplog.messages == [f"log in as {who} {refused}" for who in (*["a name that nobody has"] * 3, "root")]


def test_user_without_a_group_is_told_so_and_nobody_takes_over_an_account_of_the_hub(stage: Stage) -> None:
    assert "eve is in none of the groups" in stage.refusal("eve")
    assert "an account root already" in stage.refusal("root")
    assert [entry[2] for entry in stage.audit()[:2]] == ["refused", "refused"]
    account, _ = stage.log_in("root", "a password of the hub")
    assert account.has_password


def test_role_follows_the_directory_while_somebody_is_logged_in(stage: Stage, slapd: Slapd) -> None:
    _, secret = stage.log_in("ada")
    leads = f"cn=gpu-users,{GROUPS}"
    slapd.modify(f"dn: cn=gpu-admins,{GROUPS}\nchangetype: modify\nreplace: member\nmember: {leads}\n")
    stage.check()
    assert stage.is_in(secret)
    caller = asyncio.run(stage.auth.find_session(secret))
    # Whoever is in gpu-users is in gpu-admins now; ada still is.
    assert caller is not None
    assert caller.role == "admin"
    slapd.modify(f"dn: cn=gpu-admins,{GROUPS}\nchangetype: delete\n")
    stage.check()
    caller = asyncio.run(stage.auth.find_session(secret))
    assert caller is not None
    assert caller.role == "user"


@pytest.mark.parametrize("how", ["expired", "without-group"])
def test_user_who_is_gone_is_out_with_session_and_token_and_may_come_back(stage: Stage, slapd: Slapd, how: str) -> None:
    bob, secret = stage.log_in("bob")
    token = stage.token(bob)
    assert stage.auth.find_token(token) is not None
    dn, members = f"uid=bob,{PEOPLE}", f"cn=gpu-users,{GROUPS}"
    away = {
        "expired": f"dn: {dn}\nchangetype: modify\nadd: shadowExpire\nshadowExpire: 1\n",
        "without-group": f"dn: {members}\nchangetype: modify\ndelete: member\nmember: {dn}\n",
    }
    back = {
        "expired": f"dn: {dn}\nchangetype: modify\ndelete: shadowExpire\n",
        "without-group": f"dn: {members}\nchangetype: modify\nadd: member\nmember: {dn}\n",
    }
    slapd.modify(away[how])
    assert stage.is_in(secret)
    stage.check()
    assert not stage.is_in(secret)
    assert stage.auth.find_token(token) is None
    assert ("disable account", "bob", "done") in stage.audit()
    stage.refusal("bob")
    slapd.modify(back[how])
    again, fresh = stage.log_in("bob")
    assert again.id == bob.id
    assert stage.is_in(fresh)
    asyncio.run(stage.auth.refresh())
    assert stage.auth.find_token(token) is not None


def test_new_user_with_the_name_of_a_removed_one_does_not_get_their_account(stage: Stage, slapd: Slapd) -> None:
    _, secret = stage.log_in("bob")
    slapd.modify(f"dn: uid=bob,{PEOPLE}\nchangetype: delete\n")
    stage.check()
    assert not stage.is_in(secret)
    slapd.modify(person("bob").strip().replace("objectClass", "changetype: add\nobjectClass", 1))
    assert "the account bob belongs to another user of LDAP" in stage.refusal("bob")


def test_last_admin_who_is_gone_is_out_as_well(tmp_path: Path, slapd: Slapd) -> None:
    stage = Stage(tmp_path, slapd)
    ada, secret = stage.log_in("ada")
    token = stage.token(ada)
    asyncio.run(stage.auth.accounts.remove("root"))
    slapd.modify(f"dn: uid=ada,{PEOPLE}\nchangetype: delete\n")
    stage.check()
    assert not stage.is_in(secret)
    assert stage.auth.find_token(token) is None
    # Once, although the account cannot be disabled.
    stage.check()
    assert [entry for entry in stage.audit() if entry[0] == "suspend account"] == [("suspend account", "ada", "done")]
    asyncio.run(stage.ldap.close())


def test_directory_is_not_asked_about_users_whose_tokens_have_expired(stage: Stage, slapd: Slapd) -> None:
    bob, secret = stage.log_in("bob")
    end = stage.clock() + 60
    asyncio.run(stage.auth.tokens.create("laptop", "viewer", account_id=bob.id, expires_at=end))
    asyncio.run(stage.auth.sessions.end(secret))
    slapd.modify(f"dn: uid=bob,{PEOPLE}\nchangetype: delete\n")
    stage.check()
    assert ("disable account", "bob", "done") not in stage.audit()


def test_wrong_password_of_the_hubs_own_account_ends_nothing_and_is_named_until_it_is_right_again(
    stage: Stage, slapd: Slapd, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gpudeck")
    _, secret = stage.log_in("bob")
    slapd.modify(f"dn: {SERVICE}\nchangetype: modify\nreplace: userPassword\nuserPassword: another\n")
    slapd.modify(f"dn: uid=bob,{PEOPLE}\nchangetype: delete\n")
    for _ in range(2):
        with pytest.raises(Wrong):
            stage.check()
    assert stage.is_in(secret)
    (problem,) = stage.auth.login_problems
    assert "the directory LDAP does not accept `bind_dn` and its password" in problem
    assert [record.levelname for record in caplog.records if "bind_dn" in record.message] == ["WARNING"]
    slapd.modify(f"dn: {SERVICE}\nchangetype: modify\nreplace: userPassword\nuserPassword: {SERVICE_PASSWORD}\n")
    stage.check()
    assert not stage.is_in(secret)
    assert stage.auth.login_problems == []
    assert "the directory LDAP can be asked again" in caplog.text


def test_password_of_a_direct_bind_says_nothing_about_that_of_the_hubs_own_account(
    tmp_path: Path, slapd: Slapd
) -> None:
    (tmp_path / "wrong").write_text("another\n")
    file = str(tmp_path / "wrong")
    stage = Stage(tmp_path, slapd, user_dn=f"uid={{name}},{PEOPLE}", bind_password_file=file)
    _, secret = stage.log_in("bob")
    with pytest.raises(Wrong):
        stage.check()
    stage.log_in("bob")
    assert len(stage.auth.login_problems) == 1
    assert stage.is_in(secret)
    asyncio.run(stage.ldap.close())


def test_account_that_an_admin_disabled_stays_disabled(stage: Stage) -> None:
    stage.log_in("bob")
    asyncio.run(stage.auth.accounts.change("bob", is_disabled=True))
    assert "disabled" in stage.refusal("bob")


@pytest.mark.parametrize("was_enabled", [True, False])
def test_admins_word_counts_more_than_that_of_the_directory(stage: Stage, slapd: Slapd, was_enabled: bool) -> None:
    """Out by the directory, then disabled by an admin: the directory lets them in again, the hub does not."""
    stage.log_in("bob")
    dn = f"dn: uid=bob,{PEOPLE}\nchangetype: modify\n"
    slapd.modify(f"{dn}add: shadowExpire\nshadowExpire: 1\n")
    stage.check()
    if was_enabled:
        asyncio.run(stage.auth.accounts.change("bob", is_disabled=False))
    asyncio.run(stage.auth.accounts.change("bob", is_disabled=True))
    slapd.modify(f"{dn}delete: shadowExpire\n")
    assert "disabled" in stage.refusal("bob")


def test_while_the_directory_is_down_accounts_of_the_hub_log_in_and_sessions_stay(stage: Stage, slapd: Slapd) -> None:
    _, secret = stage.log_in("bob")
    slapd.stop()
    refusal = stage.refusal("bob")
    assert refusal.startswith("the name or the password is wrong, or the directory LDAP cannot be asked: 127.0.0.1")
    assert "Accounts of the hub itself can log in meanwhile." in refusal
    assert stage.refusal("root", "wrong").startswith("the name or the password is wrong, or the directory")
    assert stage.log_in("root", "a password of the hub")[0].name == "root"
    with pytest.raises(Exception, match="cannot be asked"):
        stage.check()
    assert stage.is_in(secret)


def test_with_direct_bind_alone_sessions_end_some_time_after_the_password(tmp_path: Path, slapd: Slapd) -> None:
    direct = {"user_dn": f"uid={{name}},{PEOPLE}", "bind_dn": None, "bind_password_file": None}
    stage = Stage(tmp_path, slapd, **direct)
    _, secret = stage.log_in("bob")
    stage.check()
    assert stage.is_in(secret)
    stage.clock.advance(stage.settings.expire)
    asyncio.run(stage.ldap.check_users())
    assert not stage.is_in(secret)
    assert stage.is_in(stage.log_in("bob")[1])
    asyncio.run(stage.ldap.close())


def try_it(stage: Stage, name: str, password: str | None = None) -> Trial:
    asked, known = Trial("", "ldap", "", 0.0), stage.auth.identities
    return asyncio.run(try_login(stage.ldap.directory, asked, name, password, known))


def test_trial_shows_claims_and_what_becomes_of_them(stage: Stage) -> None:
    ada = try_it(stage, "ada", PASSWORD)
    assert (ada.state, ada.name, ada.role) == ("done", "ada", "admin")
    assert ada.claims["groups"] == ["leads", "gpu-users", "gpu-admins"]
    assert any("gpu-admins matches gpu-admins" in reason.why for reason in ada.reasons)
    eve = try_it(stage, "eve")
    assert (eve.state, "in none of the groups" in eve.problem) == ("refused", True)
    assert try_it(stage, "ada", "wrong").problem


def test_trial_is_refused_where_the_login_would_be(stage: Stage) -> None:
    root = try_it(stage, "root", PASSWORD)
    assert root.state == "refused"
    assert root.problem in stage.refusal("root")
    assert any(reason.what == "role" for reason in root.reasons)


def test_trial_names_groups_that_cannot_be_read(tmp_path: Path, slapd: Slapd) -> None:
    stage = Stage(tmp_path, slapd, group_base="ou=nowhere,dc=ex,dc=org")
    bob = try_it(stage, "bob", PASSWORD)
    assert bob.state == "refused"
    assert f"the groups of uid=bob,{PEOPLE} cannot be read: noSuchObject" in bob.problem
    assert "bob has no role on this hub" in bob.problem
    assert "bob has no role on this hub" in stage.refusal("bob")
    asyncio.run(stage.ldap.close())


def test_names_that_no_account_can_have_are_looked_for(tmp_path: Path, slapd: Slapd) -> None:
    mail = f"dn: uid=bob,{PEOPLE}\nchangetype: modify\nadd: mail\nmail: bob+gpu@ex.org\n"
    slapd.modify(mail)
    stage = Stage(tmp_path, slapd, user_filter="(mail={name})")
    assert stage.log_in("Bob+GPU@ex.org")[0].name == "bob"
    assert "wrong" in stage.refusal("bob+gpu@ex.org", "wrong")
    assert "wrong" in stage.refusal("bob+*@ex.org")
    asyncio.run(stage.ldap.close())


def test_entry_that_gives_no_name_for_an_account_is_told_so(stage: Stage, slapd: Slapd) -> None:
    slapd.modify(person("o'brien").strip().replace("objectClass", "changetype: add\nobjectClass", 1))
    assert "gives no name for an account" in stage.refusal("o'brien")
    assert "gives no name for an account" in try_it(stage, "o'brien", PASSWORD).problem
    assert stage.audit()[0] == ("log in", "o'brien", "refused")


def test_admin_tries_a_login_of_the_directory_on_the_page(stage: Stage) -> None:
    async def ask() -> list[httpx.Response]:
        (_, secret), path = await stage.auth.tokens.create("admin", "admin"), "/api/v1/login/trials"
        transport = httpx.ASGITransport(make_app(Hub(), auth=stage.auth))  # type: ignore[arg-type]
        headers = {"Authorization": f"Bearer {secret}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8042", headers=headers) as http:
            me = await http.get("/api/v1/me")
            asked = {"provider": "ldap", "name": "ada"}
            return [me, await http.post(path, json=asked), await http.post(path, json={**asked, "password": "wrong"})]

    me, found, wrong = asyncio.run(ask())
    assert me.json()["directory"] == "LDAP"
    assert (found.json()["state"], found.json()["role"]) == ("done", "admin")
    assert found.json()["claims"]["groups"] == ["leads", "gpu-users", "gpu-admins"]
    assert wrong.json()["state"] == "refused"
    assert "wrong" not in str(asyncio.run(stage.auth.audit.list())[0])


def test_check_tries_a_login_without_making_an_account(
    stage: Stage, slapd: Slapd, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "gpudeck.yaml"
    told = {"ldap": msgspec.to_builtins(stage.settings)}
    file.write_bytes(msgspec.json.encode({"read": "login", "login": told}))

    def check(typed: str) -> Result:
        return CliRunner().invoke(gpudeck, ["check", "--config", str(file), "--login", "ldap"], input=typed)

    done = check(f"ada\n{PASSWORD}\n")
    assert done.exit_code == 0, done.output
    assert "role: admin (the group gpu-admins matches gpu-admins)" in done.output
    assert "This user would log in as ada, with the role admin." in done.output
    assert PASSWORD not in done.output
    wrong = check("ada\nwrong\n")
    assert isinstance(wrong.exception, GpudeckError)
    assert "this login is refused: no entry fits the name" in str(wrong.exception)
    assert asyncio.run(stage.auth.accounts.find("ada")) is None
    slapd.stop()
    caplog.clear()
    assert "no connection (connection refused)" in str(check("ada\nwrong\n").exception)
    assert caplog.messages == []  # once is enough


def test_hub_without_passwords_of_its_own_takes_those_of_the_directory(tmp_path: Path, slapd: Slapd) -> None:
    stage = Stage(tmp_path, slapd)
    settings = AuthSettings(ldap=stage.settings, local=False)
    stage.auth = Auth(stage.auth.database, settings, passwords=Passwords(quick_hasher()), now=stage.clock)
    assert stage.log_in("bob")[0].name == "bob"
    assert stage.refusal("root", "a password of the hub").startswith("the name or the password is wrong")
    slapd.stop()
    assert "Accounts of the hub itself" not in stage.refusal("bob")
