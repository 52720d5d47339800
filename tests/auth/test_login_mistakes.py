"""Mistakes in the settings of logins: each names its setting and the next step."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from click.testing import CliRunner

from fakes.api_app import make_app, make_auth
from gpudeck.auth.settings import AuthSettings, OidcSettings
from gpudeck.cli import gpudeck
from gpudeck.fleet.hub import Hub

SSO = {"name": "sso", "issuer": "https://sso.example.org", "client_id": "gpudeck", "client_secret_file": "secret"}
PAGE = "https://gpus.example.org"


def check(folder: Path, login: dict[str, Any], public_url: str = PAGE) -> list[str]:
    """What `gpudeck check` says."""
    file = folder / "gpudeck.yaml"
    file.write_bytes(msgspec.json.format(msgspec.json.encode({"public_url": public_url, "login": login})))
    done = CliRunner().invoke(gpudeck, ["check", "--config", str(file)])
    return (str(done.exception) if done.exception else done.output).replace(str(folder), "").splitlines()


@pytest.mark.parametrize("content", [None, "folder", "", "\n", "a\x07b"])
def test_all_files_that_cannot_be_read_are_named_with_their_settings(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "file"
    if content == "folder":
        file.mkdir()
    elif content is not None:
        file.write_text(content)
    (tmp_path / "secret").write_text("a secret")
    named, good = str(file), str(tmp_path / "secret")
    directory = {"urls": ["ldaps://ldap.example"], "base": "dc=example", "bind_dn": "cn=a", "bind_password_file": named}
    oidc = [
        {**SSO, "client_secret_file": named},
        {**SSO, "name": "b", "issuer": "https://b.example", "client_secret_file": good, "ca_file": named},
    ]
    lines = check(tmp_path, {"oidc": oidc, "ldap": directory})
    assert len(lines) == 3
    assert lines[0].startswith("/gpudeck.yaml: login.oidc sso: client_secret_file: /file ")
    assert lines[1].startswith("/gpudeck.yaml: login.oidc b: ca_file: the certificates in /file cannot be read")
    assert lines[2].startswith("/gpudeck.yaml: login.ldap.bind_password_file: /file ")
    assert all("user" in line for line in lines)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"issuer": "http://sso.example.org"}, "login.oidc[0].issuer: http://sso.example.org has to begin with https"),
        ({"name": "ldap"}, "login.oidc[0].name: ldap is the directory's; choose another one"),
        ({"mapping": {"default_role": "none"}}, "found 'none', expected one of admin, user, viewer or null"),
    ],
)
def test_mistakes_of_a_provider_are_named_once(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    (line,) = check(tmp_path, {"oidc": [{**SSO, **changes}]})
    assert words in line
    assert "issuer: issuer:" not in line


def test_issuers_that_differ_in_the_last_slash_are_the_same(tmp_path: Path) -> None:
    (line,) = check(tmp_path, {"oidc": [SSO, {**SSO, "name": "b", "issuer": f"{SSO['issuer']}/"}]})
    assert "two providers have the same name or issuer" in line


@pytest.mark.parametrize(
    "url", ["https://ada:secret@gpus.example.org", "https://gpus.example.org:99999/", "https://./"]
)
def test_public_url_is_the_address_of_a_page(tmp_path: Path, url: str) -> None:
    (line,) = check(tmp_path, {"oidc": [SSO]}, url)
    assert "is not the address of a page" in line
    assert "public_url: public_url" not in line
    assert "secret" not in line


def test_provider_that_the_running_hub_does_not_know_says_to_restart_it(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a secret")
    settings = OidcSettings(**{**SSO, "client_secret_file": str(tmp_path / "secret")})  # type: ignore[arg-type]
    auth = make_auth(tmp_path, AuthSettings(oidc=[settings]), public_url=PAGE)

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(make_app(Hub(), auth=auth))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url=PAGE) as http:
            return await http.get("/api/v1/login/oidc/third")

    answer = asyncio.run(ask())
    assert answer.status_code == 404
    assert "this hub has no login provider 'third'. If it is new in the configuration, restart the hub." in str(
        " ".join(answer.json()["error"][part] for part in ("message", "hint"))
    )
