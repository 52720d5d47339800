"""The directory (LDAP), against a real OpenLDAP server: who is let in, their groups, TLS, hostile names, outages."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.certificates import Authority
from fakes.clock import FakeClock
from fakes.ports import free_port
from fakes.slapd import (
    BASE,
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
from gpudeck.auth.ldap import DirectoryUser, LdapDirectory, find_lock
from gpudeck.auth.settings import LdapSettings
from gpudeck.model.errors import Temporary, Wrong

ENTRIES = "".join(
    (
        person("ada", "Ada Lovelace"),
        person("bob", "Bob"),
        person("mallory", "Mallory *)(uid=ada"),
        person("carol", "Carol").replace("mail:", "shadowExpire: 1\nmail:"),
        group("gpu-users", "bob", "cn=leads"),
        group("leads", "cn=board"),
        group("board", "ada", "cn=gpu-users"),  # a ring
        f"\ndn: cn=posix,{GROUPS}\nobjectClass: posixGroup\ncn: posix\ngidNumber: 7\nmemberUid: bob\n",
    )
)


@pytest.fixture(scope="module")
def slapd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slapd]:
    with running_slapd(tmp_path_factory.mktemp("slapd"), ENTRIES) as server:
        yield server


def settings_of(server: Slapd, **changes: Any) -> LdapSettings:
    usual = {
        "urls": [server.url],
        "base": PEOPLE,
        "group_base": GROUPS,
        "bind_dn": SERVICE,
        "bind_password_file": str(server.password_file),
        "ca_file": str(server.authority.ca_file),
        "timeout": 2.0,
    }
    return LdapSettings(**(usual | changes))  # type: ignore[arg-type]


def log_in(settings: LdapSettings, name: str, password: str = PASSWORD) -> DirectoryUser | None:
    directory = LdapDirectory(settings)
    try:
        return asyncio.run(directory.authenticate(name, password))
    finally:
        directory.close()


def test_user_is_found_with_mail_and_groups_through_groups(slapd: Slapd) -> None:
    ada = log_in(settings_of(slapd), "ada")
    assert ada is not None
    assert len(ada.subject) == 36
    assert ada.claims["preferred_username"] == "ada"
    assert ada.claims["email"] == "ada@ex.org"
    assert ada.claims["groups"] == ["board", "leads", "gpu-users"]
    assert "userPassword" not in ada.claims
    bob = log_in(settings_of(slapd, nested="no"), "bob")
    assert bob is not None
    assert sorted(bob.claims["groups"]) == ["gpu-users", "posix"]  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("ada", "wrong"),
        ("ada", ""),
        ("nobody", PASSWORD),
        ("carol", PASSWORD),  # expired
        ("*", PASSWORD),
        ("a*", PASSWORD),
        ("ada)(objectClass=*", PASSWORD),
        ("*)(uid=ada))(|(uid=*", PASSWORD),
        ("ada,ou=people", PASSWORD),
        ("ada\x00", PASSWORD),
        ("\\61da", PASSWORD),
    ],
)
@pytest.mark.parametrize("way", ["search", "direct"])
def test_wrong_password_unknown_disabled_and_hostile_names_are_refused(
    slapd: Slapd, way: str, name: str, password: str
) -> None:
    direct = {"user_dn": f"uid={{name}},{PEOPLE}", "bind_dn": None, "bind_password_file": None}
    assert log_in(settings_of(slapd, **(direct if way == "direct" else {})), name, password) is None


@pytest.mark.parametrize("password", ["\x07", "\xad", "a\u0627", "\ue000"])
def test_password_that_no_directory_can_have_is_wrong_and_stops_nobody_else(slapd: Slapd, password: str) -> None:
    directory = LdapDirectory(settings_of(slapd))
    assert asyncio.run(directory.authenticate("ada", password)) is None
    assert asyncio.run(directory.authenticate("ada", PASSWORD)) is not None
    assert directory.problem is None
    directory.close()


def test_direct_bind_needs_no_account_for_the_search(slapd: Slapd) -> None:
    direct = settings_of(slapd, user_dn=f"uid={{name}},{PEOPLE}", bind_dn=None, bind_password_file=None)
    ada = log_in(direct, "ada")
    assert ada is not None
    assert ada.claims["groups"] == ["board", "leads", "gpu-users"]
    assert not LdapDirectory(direct).can_look_up


def test_filter_decides_who_may_log_in(slapd: Slapd) -> None:
    some = settings_of(slapd, user_filter="(&(uid={name})(cn=Bob))")
    assert log_in(some, "bob") is not None
    assert log_in(some, "ada") is None
    several = settings_of(slapd, user_filter="(|(uid={name})(objectClass=inetOrgPerson))")
    assert log_in(several, "ada") is None


@pytest.mark.parametrize("url", ["tls", "starttls"])
def test_certificate_is_checked_before_any_password_is_sent(slapd: Slapd, url: str, tmp_path: Path) -> None:
    urls = [slapd.tls_url if url == "tls" else slapd.url]
    assert log_in(settings_of(slapd, urls=urls), "ada") is not None
    stranger = Authority(tmp_path, "Another").ca_file
    with pytest.raises(Temporary, match=r"not believed: [\w -]+ \(`ca_file`, or the name in `urls`\)"):
        log_in(settings_of(slapd, urls=urls, ca_file=str(stranger)), "ada")
    elsewhere = [one.replace("127.0.0.1", "localhost") for one in urls]
    with pytest.raises(Temporary, match="certificate"):
        log_in(settings_of(slapd, urls=elsewhere), "ada")


def test_first_server_that_answers_is_asked(slapd: Slapd) -> None:
    assert log_in(settings_of(slapd, urls=[f"ldap://127.0.0.1:{free_port()}", slapd.url]), "ada") is not None


def test_wrong_password_of_the_hubs_own_account_is_a_mistake_of_the_configuration(slapd: Slapd, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text("another\n")
    with pytest.raises(Wrong, match="bind_dn") as wrong:
        log_in(settings_of(slapd, bind_password_file=str(tmp_path / "wrong")), "ada")
    assert "another" not in str(wrong.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"base": f"ou=nowhere,{BASE}"}, r"noSuchObject \(correct `base` or `group_base`, or let `bind_dn` read it\)"),
        ({"user_filter": "(uid={name})(cn=x)"}, "`user_filter` is no LDAP filter"),
        ({"urls": [f"ldap://127.0.0.1:{free_port()}"]}, r"no connection \(connection refused\)"),
    ],
)
def test_mistake_of_the_configuration_is_named_with_its_setting(
    slapd: Slapd, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(Temporary, match=rf"cannot be asked: 127\.0\.0\.1: {words}\."):
        log_in(settings_of(slapd, **changes), "ada")


def test_groups_that_cannot_be_read_are_missing_rather_than_none(slapd: Slapd) -> None:
    """A missing claim takes no role away."""
    ada = log_in(settings_of(slapd, group_base=f"ou=nowhere,{BASE}"), "ada")
    assert ada is not None
    assert "groups" not in ada.claims


def test_directory_says_who_is_still_there(slapd: Slapd) -> None:
    directory = LdapDirectory(settings_of(slapd))
    ids = [user.subject for name in ("ada", "bob") if (user := log_in(settings_of(slapd), name))]
    gone = "00000000-0000-0000-0000-000000000000"
    found = asyncio.run(directory.look_up([*ids, gone]))
    assert [user and user.claims["preferred_username"] for user in found.values()] == ["ada", "bob", None]
    directory.close()


def test_server_that_stops_is_told_and_asked_again(tmp_path: Path) -> None:
    with running_slapd(tmp_path / "own", ENTRIES) as server:
        directory = LdapDirectory(settings_of(server))
        server.stop()
        with pytest.raises(Temporary, match=r"the directory LDAP cannot be asked: 127\.0\.0\.1") as down:
            asyncio.run(directory.authenticate("ada", PASSWORD))
        assert PASSWORD not in str(down.value)
        assert SERVICE_PASSWORD not in str(down.value)
        assert directory.problem is not None
        server.start()
        assert log_in(settings_of(server), "ada") is not None
        directory.close()


@pytest.mark.parametrize("says", [b"", b"0"])
def test_server_that_hangs_or_drips_is_given_up(slapd: Slapd, says: bytes) -> None:
    """Its socket is closed: no thread waits for it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ended = threading.Event()

        def serve() -> None:
            taken, _ = listening.accept()
            with taken:
                taken.sendall(says)
                while taken.recv(1024):
                    pass
            ended.set()

        threading.Thread(target=serve, daemon=True).start()
        url = f"ldap://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(Temporary, match="cannot be asked"):
            log_in(settings_of(slapd, urls=[url], start_tls=False, timeout=0.5), "ada")
        assert ended.wait(30)


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({}, ""),
        ({"userAccountControl": [b"512"]}, ""),
        ({"userAccountControl": [b"514"]}, "userAccountControl"),
        ({"accountExpires": [b"9223372036854775807"]}, ""),
        ({"accountExpires": [b"0"]}, ""),
        ({"accountExpires": [b"132000000000000000"]}, "accountExpires"),
        ({"NSACCOUNTLOCK": [b"TRUE"]}, "nsAccountLock"),
        ({"pwdAccountLockedTime": [b"000001010000Z"]}, "pwdAccountLockedTime"),
        ({"shadowExpire": [b"-1"]}, ""),
        ({"shadowExpire": [b"1"]}, "shadowExpire"),
    ],
)
def test_marks_of_disabled_users_are_known(attributes: dict[str, list[bytes]], words: str) -> None:
    assert words in find_lock(attributes, FakeClock()())
    assert bool(words) == bool(find_lock(attributes, FakeClock()()))


@pytest.mark.parametrize(
    "wanted",
    [
        "(&(objectCategory=person)(objectClass=user)(sAMAccountName={name}))",
        "(& (| (uid={name}) (mail={name})) (!(nsAccountLock=TRUE)))",
        "(&(uid={name})(memberOf:1.2.840.113556.1.4.1941:=cn=gpu,dc=example,dc=org))",
    ],
)
def test_usual_filters_are_taken(wanted: str) -> None:
    assert LdapSettings(urls=["ldaps://ldap.example"], base=BASE, user_filter=wanted).user_filter == wanted


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"urls": ["ldap://ldap.example"], "start_tls": False}, "plain text"),
        ({"user_filter": "(uid=ada)"}, "{name} is missing"),
        ({"user_filter": "uid={name}"}, "no LDAP filter"),
        ({"user_dn": "uid=ada"}, "{name} is missing"),
        ({"user_filter": "({name})"}, "no LDAP filter"),
        ({"base": "not a dn"}, "base: 'not a dn' is no DN"),
        ({"group_base": "groups"}, "group_base: 'groups' is no DN"),
        ({"bind_dn": "cn=a"}, "belong together"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LdapSettings(**({"urls": ["ldaps://ldap.example"], "base": BASE} | changes))  # type: ignore[arg-type]
