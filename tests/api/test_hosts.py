"""Hosts are added and removed by who may, and each added host gets a token of its own."""

import asyncio
import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from fakes.api_app import ADMIN_TOKEN, AGENT_TOKEN, make_app
from fakes.clock import FakeClock
from fakes.reports import make_envelope
from gpudeck.api.install import pack_installed
from gpudeck.fleet.hub import Hub
from gpudeck.model.target import Target
from gpudeck.wire import encode

ADMIN = {"Authorization": f"Bearer {ADMIN_TOKEN}"}


class Station:
    """A hub and its ASGI application, asked from `client` under the name `host`."""

    def __init__(self, folder: Path, *, is_private: bool = False) -> None:
        self.folder = folder
        self.hub = Hub(now=FakeClock())
        self.is_private = is_private
        self.app = make_app(self.hub, folder=folder, is_private=is_private, is_decided=False)

    def call(
        self, method: str, path: str, *, client: str = "127.0.0.1", host: str = "127.0.0.1:8042", **options: Any
    ) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, client=(client, 40000))  # type: ignore[arg-type]
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as http:
                return await http.request(method, path, **options)

        return asyncio.run(ask())

    def add(self, **new: Any) -> httpx.Response:
        return self.call("POST", "/api/v1/hosts", json=new, headers=ADMIN)

    def make_token(self, host: str) -> str:
        new = {"name": host, "role": "agent", "hosts": host}
        return str(self.call("POST", "/api/v1/tokens", json=new, headers=ADMIN).json()["secret"])

    def report(self, token: str, host: str) -> httpx.Response:
        headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/msgpack",
            "Content-Encoding": "zstd",
        }
        return self.call("POST", "/api/v1/reports", content=encode(make_envelope(host)), headers=headers)

    def names(self) -> list[tuple[str, str]]:
        return [(host["name"], host["status"]) for host in self.call("GET", "/api/v1/hosts").json()["hosts"]]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """To pack them takes longer than all the rest of a test."""
    folder = tmp_path_factory.mktemp("packed") / "wheelhouse"
    pack_installed(folder)
    return folder


@pytest.fixture
def hub(tmp_path: Path, wheels: Path) -> Station:
    shutil.copytree(wheels, tmp_path / "wheelhouse", copy_function=os.link)
    return Station(tmp_path)


def test_added_host_is_expected_and_its_line_holds_its_token_once(hub: Station) -> None:
    answer = hub.add(name="gpu07")
    assert answer.status_code == 201
    added = answer.json()
    assert added["names"] == ["gpu07"]
    script = hub.call("GET", "/install.sh").content
    assert added["command"].startswith(f"echo {added['token']} | {{ s=$(curl -fsS http://hub.example:8042/install.sh)")
    assert f"= {hashlib.sha256(script).hexdigest()} ]" in added["command"]
    assert hub.names() == [("gpu07", "never_seen")]
    assert added["token"] not in hub.call("GET", "/api/v1/hosts").text
    assert added["token"].encode() not in b"".join(file.read_bytes() for file in hub.folder.glob("gpudeck.db*"))


def test_each_host_of_a_range_gets_a_line_with_a_token_of_its_own(hub: Station) -> None:
    added = hub.add(name="gpu[07-08]").json()
    lines = added["command"].splitlines()
    assert (added["names"], added["token"], len(lines)) == (["gpu07", "gpu08"], None, 2)
    for name, line in zip(added["names"], lines, strict=True):
        assert f" | ssh {name} 's=$(curl " in line
        assert hub.report(line.split()[1], name).status_code == 202
    assert hub.report(lines[0].split()[1], "gpu08").status_code == 403


def test_script_names_wheels_that_the_hub_serves_and_nothing_else(hub: Station) -> None:
    script = hub.call("GET", "/install.sh").text
    named = re.findall(r"^3\.\d+ \S+ ([0-9a-f]{64}) (\S+\.whl)$", script, re.MULTILINE)
    assert {"gpudeck", "click", "msgspec"} <= {name.partition("-")[0] for _, name in named}
    for digest, name in named:
        assert hashlib.sha256(hub.call("GET", f"/install/{name}").content).hexdigest() == digest
    (hub.folder / "wheelhouse" / "other.whl").write_text("")
    assert hub.call("GET", "/install/other.whl").status_code == 404
    assert hub.call("GET", "/install/..%2fgpudeck.db").status_code == 404


def test_token_of_an_added_host_is_good_for_that_host_alone(hub: Station) -> None:
    token = hub.add(name="gpu07").json()["token"]
    assert hub.report(token, "gpu07").status_code == 202
    refused = hub.report(token, "gpu08")
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "other_host"
    assert hub.names() == [("gpu07", "up")]


def test_tokens_and_hosts_outlive_a_restart(hub: Station) -> None:
    token = hub.add(name="gpu07").json()["token"]
    again = Station(hub.folder)
    assert again.report(token, "gpu07").status_code == 202
    assert again.report(AGENT_TOKEN, "gpu09").status_code == 202


def test_removed_host_is_gone_and_its_token_is_worth_nothing(hub: Station) -> None:
    token = hub.add(name="gpu07").json()["token"]
    hub.report(token, "gpu07")
    assert hub.call("DELETE", "/api/v1/hosts/gpu07", headers=ADMIN).status_code == 200
    assert hub.names() == []
    assert hub.report(token, "gpu07").status_code == 401


def test_agent_is_packed_before_the_host_is_there_and_ends_a_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, was_there = Station(tmp_path), list[bool]()

    def pack(folder: Path) -> None:
        was_there.append((hub.folder / "hosts.yaml").exists())
        pack_installed(folder)

    monkeypatch.setattr("gpudeck.api.install.pack_installed", pack)
    assert hub.add(name="gpu07").status_code == 201
    assert (was_there, (hub.folder / "hosts.yaml").exists()) == ([False], True)


def test_range_of_hosts_is_added_at_once_and_loses_one(hub: Station) -> None:
    assert hub.add(name="gpu[01-03]", via="ssh", user="monitor").json()["names"] == ["gpu01", "gpu02", "gpu03"]
    assert hub.call("DELETE", "/api/v1/hosts/gpu02", headers=ADMIN).status_code == 200
    assert hub.names() == [("gpu01", "never_seen"), ("gpu03", "never_seen")]
    assert hub.add(name="gpu03", via="ssh").status_code == 409


@pytest.mark.parametrize(
    ("new", "status", "told"),
    [
        ({"name": "configured"}, 409, "configured is there already, by gpudeck.yaml: change it there"),
        ({"name": "gpu[16-01]", "via": "ssh"}, 400, "goes down"),
        ({"name": "-rf", "via": "ssh"}, 400, "no name of a host"),
        ({"name": "a", "via": "fax"}, 400, "fax"),
        ({"name": "a", "key_file": "/etc/shadow"}, 400, "key_file"),
        ({"name": "a", "user": "x"}, 400, "user is of no use"),
        ({}, 400, "name"),
    ],
)
def test_host_that_makes_no_sense_is_refused_with_the_reason(
    hub: Station, new: dict[str, Any], status: int, told: str
) -> None:
    answer = hub.add(**new)
    assert answer.status_code == status
    assert told in answer.json()["error"]["message"]


def test_host_of_a_file_is_not_removed_here(hub: Station) -> None:
    answer = hub.call("DELETE", "/api/v1/hosts/configured", headers=ADMIN)
    assert answer.status_code == 409
    assert "named by gpudeck.yaml" in answer.json()["error"]["message"]


def test_host_that_nobody_knows_cannot_be_removed(hub: Station) -> None:
    assert hub.call("DELETE", "/api/v1/hosts/gpu99", headers=ADMIN).status_code == 404


def test_removing_a_host_that_nobody_knows_is_in_the_audit_log_for_its_tokens_are_revoked(hub: Station) -> None:
    made = hub.call("POST", "/api/v1/tokens", json={"name": "r", "role": "agent", "hosts": "gpu3*"}, headers=ADMIN)
    assert hub.call("DELETE", "/api/v1/hosts/gpu3*", headers=ADMIN).status_code == 404
    assert hub.report(made.json()["secret"], "gpu31").status_code == 401
    newest = hub.call("GET", "/api/v1/audit", headers=ADMIN).json()["entries"][0]
    assert (newest["action"], newest["subject"], newest["outcome"]) == ("remove host", "gpu3*", "refused")


def test_hub_that_others_can_reach_takes_changes_with_the_admin_token_alone(hub: Station) -> None:
    assert hub.call("POST", "/api/v1/hosts", json={"name": "a"}).status_code == 401
    for token, status in ((AGENT_TOKEN, 403), ("user-token", 403), ("rubbish", 401)):
        headers = {"Authorization": f"Bearer {token}"}
        assert hub.call("POST", "/api/v1/hosts", json={"name": "a"}, headers=headers).status_code == status
    assert hub.names() == []


def test_who_sits_at_the_machine_of_a_private_hub_may_change_it(tmp_path: Path) -> None:
    hub = Station(tmp_path, is_private=True)
    origin = {"Origin": "http://127.0.0.1:8042"}
    assert hub.call("POST", "/api/v1/hosts", json={"name": "a"}, headers=origin).status_code == 201
    assert hub.call("DELETE", "/api/v1/hosts/a").status_code == 200


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"headers": {"Origin": "http://evil.example"}}, "made by a page of http://evil.example"),
        ({"headers": {"Origin": "null"}}, "made by a page of null"),
        ({"host": "evil.example:8042"}, "reached as evil.example:8042"),
        ({"headers": {"X-Forwarded-For": "192.0.2.7"}}, "reached through a proxy"),
        ({"headers": {"Via": "1.1 squid"}}, "reached through a proxy"),
        ({"client": "192.0.2.7"}, "reached through a proxy"),
    ],
)
def test_web_pages_and_proxies_are_not_at_the_machine(tmp_path: Path, options: dict[str, Any], told: str) -> None:
    hub = Station(tmp_path, is_private=True)
    answer = hub.call("POST", "/api/v1/hosts", json={"name": "a"}, **options)
    assert answer.status_code == 403
    assert told in answer.json()["error"]["message"]
    assert hub.names() == []


def test_host_is_not_added_where_the_database_takes_no_token(hub: Station) -> None:
    database = hub.folder / "gpudeck.db"
    kept = database.read_bytes()
    database.write_bytes(b"no database at all" * 100)
    assert hub.add(name="gpu07").status_code == 503
    assert "gpu07" not in (hub.folder / "hosts.yaml").read_text()
    database.write_bytes(kept)
    assert hub.add(name="gpu07").status_code == 201
    assert hub.names() == [("gpu07", "never_seen")]


def test_host_stays_where_the_database_does_not_take_its_token_back(hub: Station) -> None:
    token = hub.add(name="gpu07").json()["token"]
    written = (hub.folder / "hosts.yaml").read_text()
    database = hub.folder / "gpudeck.db"
    kept = database.read_bytes()
    database.write_bytes(b"no database at all" * 100)
    assert hub.call("DELETE", "/api/v1/hosts/gpu07", headers=ADMIN).status_code == 503
    database.write_bytes(kept)
    assert (hub.folder / "hosts.yaml").read_text() == written
    assert hub.report(token, "gpu07").status_code == 202
    assert hub.call("DELETE", "/api/v1/hosts/gpu07", headers=ADMIN).status_code == 200
    assert hub.report(token, "gpu07").status_code == 401


def test_token_of_a_host_stays_where_the_host_cannot_be_written(hub: Station) -> None:
    token = hub.make_token("gpu07")
    (hub.folder / "hosts.yaml").mkdir()
    assert hub.add(name="gpu07").status_code == 500
    assert hub.report(token, "gpu07").status_code == 202
    (hub.folder / "hosts.yaml").rmdir()
    added = hub.add(name="gpu07").json()["token"]
    assert [hub.report(one, "gpu07").status_code for one in (token, added)] == [401, 200]


def test_hosts_that_were_added_are_told_from_those_of_files_and_those_that_report_by_themselves(hub: Station) -> None:
    hub.hub.fleet.expect([Target(name="configured", origin="gpudeck.yaml", via="push")])
    hub.report(AGENT_TOKEN, "configured")
    hub.report(AGENT_TOKEN, "stranger")
    hub.add(name="gpu07", via="ssh")
    answer = hub.call("GET", "/api/v1/host-origins", headers=ADMIN).json()
    assert {(one["name"], one["origin"], one["is_added"]) for one in answer["hosts"]} == {
        ("configured", "gpudeck.yaml", False),
        ("gpu07", "hosts added here", True),
        ("stranger", None, False),
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("address", "127.0.0.1/@x"),
        ("address", "127.0.0.1:80"),
        ("address", "ada:secret@127.0.0.1"),
        ("address", "127.0.0.1\r\nHost: x"),
        ("address", "127.0.0.1?x"),
        ("address", "-oProxyCommand=x"),
        ("address", "gpu\x1b[31m"),
        ("address", "gpu\u202e"),
        ("address", "gpu 01"),
        ("user", "-oProxyCommand=x"),
        ("user", "ada\x00"),
        ("user", "ada:secret"),
        ("jump", "gate\nProxyCommand x"),
        ("jump", "gate x"),
        ("labels", {"rack": "\x1b]0;x\x07"}),
        ("labels", {"rack": "a\x00b"}),
    ],
)
def test_place_that_says_more_than_a_place_is_refused(hub: Station, field: str, value: Any) -> None:
    answer = hub.add(**{"name": "gpu07", "via": "ssh", field: value})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")
    assert answer.json()["error"]["message"].startswith(field)
    assert hub.names() == []


@pytest.mark.parametrize("path", ["/metrics x", "/metrics\r\nHost: x"])
def test_path_that_is_more_than_a_path_is_refused(hub: Station, path: str) -> None:
    assert hub.add(name="gpu07", via="scrape", path=path).json()["error"]["message"].startswith("path")


@pytest.mark.parametrize(
    "place",
    [
        {"address": "10.0.0.7", "user": "gpudeck", "jump": "ada@gate:2222,other"},
        {"address": "fe80::1%eth0", "user": "DOMAIN\\ada"},
        {"address": "::1", "user": "ada.lovelace@example.org"},
        {"address": "gpu_07.example.org.", "user": "svc-gpu$"},
        {"address": "gpu-rechner.bücher.example", "labels": {"rack": "Büro 3, links"}},
    ],
)
def test_places_as_people_write_them_are_taken(hub: Station, place: dict[str, Any]) -> None:
    assert hub.add(name="gpu07", via="ssh", **place).status_code == 201


def test_host_with_the_longest_name_gets_a_token(hub: Station) -> None:
    name = f"{'x' * 60}.{'x' * 60}.{'x' * 60}.{'x' * 60}"
    token = hub.add(name=name).json()["token"]
    assert hub.report(token, name).status_code == 202


def test_body_that_is_nested_without_end_is_a_mistake_of_the_caller(
    hub: Station, caplog: pytest.LogCaptureFixture
) -> None:
    headers = ADMIN | {"Content-Type": "application/json"}
    answer = hub.call("POST", "/api/v1/hosts", content="[" * 100_000, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")
    assert [record.exc_info for record in caplog.records] == [None]
