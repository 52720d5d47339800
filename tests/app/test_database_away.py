"""A hub whose PostgreSQL server goes away, hangs, or is not there when the hub starts, or whose SQLite file is locked:
what goes on, and that nothing is lost or told twice."""

import contextlib
import json
import signal
import sqlite3
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from alerts.notifiers.sinks import Webhook, running_webhook
from fakes.hubs import HubProcess, gpudeck, running_hub
from fakes.postgres import PostgresServer, running_postgres
from fakes.reports import make_envelope, make_gpu
from fakes.waiting import wait_until
from gpudeck.wire import encode

HOT = make_gpu(metrics={"temperature_celsius": 92})


@pytest.fixture(scope="module")
def shared() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture
def server(shared: PostgresServer) -> PostgresServer:
    """One that answers, whatever the test before left."""
    shared.kill()
    shared.start()
    return shared


def configure(folder: Path, server: PostgresServer | None, hook: Webhook) -> None:
    (folder / "gpudeck.yaml").write_text(
        f"""
demo: never
local: never
read: open
database: {server.make_database() if server else "null"}
alerts:
  group_wait: 0s
  rules: {{gpu_hot: {{for: 0s}}}}
notify:
  channels: {{hook: "{hook.url}"}}
"""
    )


class Site:
    """A hub, and whoever asks it. `cookie` is a session's."""

    def __init__(self, hub: HubProcess) -> None:
        self.hub = hub
        self.sequence = 0

    def ask(self, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        usual = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.hub.url + path, data, usual | headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def report(self, token: str, gpu: Any) -> int:
        self.sequence += 1
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/msgpack"}
        body = encode(make_envelope(sequence=self.sequence, gpus=[gpu], boot_id=f"boot-{id(self)}"))
        request = urllib.request.Request(f"{self.hub.url}/api/v1/reports", body, headers | {"Content-Encoding": "zstd"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def database(self) -> dict[str, Any]:
        """The check of `/readyz`, with the answer's own status."""
        status, told = self.ask("/readyz")
        checks = {one["name"]: one for one in told["checks"]}
        return {"http": status, "overall": told["status"], **checks["database"]}

    def gpu(self) -> dict[str, Any]:
        hosts = self.ask("/api/v1/fleet")[1]["hosts"]
        found: dict[str, Any] = hosts[0]["gpus"][0]
        return found


def test_hub_goes_on_without_its_database_also_after_a_kill_and_catches_up(
    tmp_path: Path, server: PostgresServer
) -> None:
    with running_webhook() as hook:
        configure(tmp_path, server, hook)
        admin = {"Authorization": ""}
        with running_hub(tmp_path) as hub:
            site = Site(hub)
            admin["Authorization"] = f"Bearer {(tmp_path / 'admin.token').read_text().strip()}"
            token = site.ask("/api/v1/tokens", {"name": "rack", "role": "agent"}, **admin)[1]["secret"]
            assert site.report(token, make_gpu()) < 300
            uuid = make_gpu().uuid
            reservation = {"gpus": [uuid], "for": "1h", "note": "training"}
            assert site.ask("/api/v1/reservations", reservation, **admin)[0] < 300
            assert site.database()["overall"] == "ready"
            wait_until(lambda: uuid in read(tmp_path / "reservations.json"), "the copy of the reservations")
            wait_until(lambda: "rack" in read(tmp_path / "tokens.json"), "the copy of the tokens")
            assert (tmp_path / "tokens.json").stat().st_mode & 0o777 == 0o600
            server.kill()
            wait_until(lambda: site.database()["status"] == "degraded", "a hub that says so")
            assert site.database()["overall"] == "degraded"
            check = site.database()
            assert (check["http"], check["status"], check["problem"]) == (
                200,
                "degraded",
                "the hub's database cannot be reached: connection refused.",
            )
            assert check["since"] > 0
            assert "alerts" in check["effect"]
            assert site.ask("/api/v1/fleet", Cookie=f"gpudeck_session={'x' * 43}")[0] == 200
            login = {"name": "ada", "password": "a long password"}
            status, refused = site.ask("/api/v1/login", login)
            # Where the database is concerns nobody who may not look at the hub.
            assert (status, refused["error"]["message"]) == (503, check["problem"])
            assert site.ask("/api/v1/accounts", Cookie=f"gpudeck_session={'x' * 43}")[0] == 503
            assert site.report(token, HOT) < 300
            wait_until(lambda: len(hook.texts()) == 1, "the message, without the database")
            # What a hub is sending at the moment of its death may arrive twice: this one has noted that it was sent.
            wait_until(lambda: count(tmp_path, "outbox WHERE state = 'sent'") == 1, "the note that it was sent")
            hub.stop(signal.SIGKILL)
        with running_hub(tmp_path) as hub:
            site = Site(hub)
            assert site.database()["overall"] == "degraded"
            assert site.report(token, make_gpu()) < 300
            assert site.report("not-a-token", make_gpu()) == 401
            wait_until(lambda: site.gpu()["availability"] == "reserved", "the reservation of before")
            assert site.report(token, HOT) < 300
            assert site.ask("/api/v1/queue")[0] == 503
            server.start()
            wait_until(lambda: site.database()["overall"] == "ready", "a hub that is whole again", 60)
            # Events wait in memory: that of the alert was lost with the first hub.
            wanted = ["host_seen", "hub_started", "hub_started"]
            wait_until(lambda: wanted == [one for one in sorted(kinds(site)) if one in wanted], "what happened", 60)
            assert site.ask("/api/v1/queue", **admin)[0] == 200
            assert [one["rule"] for one in site.ask("/api/v1/alerts")[1]["alerts"]] == ["gpu_hot"]
        assert len(hook.texts()) == 1


def test_server_that_hangs_is_as_one_that_is_away(tmp_path: Path, server: PostgresServer) -> None:
    with running_webhook() as hook:
        configure(tmp_path, server, hook)
        with running_hub(tmp_path) as hub:
            site = Site(hub)
            token = (tmp_path / "agent.token").read_text().strip()
            assert site.report(token, make_gpu()) < 300
            server.freeze()
            try:
                assert site.report(token, HOT) < 300
                wait_until(lambda: len(hook.texts()) == 1, "the message, while the database hangs")
                wait_until(lambda: site.database()["status"] == "degraded", "a hub that says so", 60)
                assert site.database()["problem"] == "the hub's database does not answer in time."
                assert site.ask("/api/v1/fleet", Cookie=f"gpudeck_session={'x' * 43}")[0] == 200
            finally:
                server.thaw()
            wait_until(lambda: site.database()["overall"] == "ready", "a hub that is whole again", 60)
            wait_until(lambda: "alert_fired" in kinds(site), "what happened meanwhile", 60)
            server.freeze()
            try:
                wait_until(lambda: site.database()["status"] == "degraded", "a hub that says so", 60)
                assert hub.stop() == 0
            finally:
                server.thaw()
        assert len(hook.texts()) == 1


def test_file_that_is_locked_holds_up_no_message(tmp_path: Path) -> None:
    with running_webhook() as hook:
        configure(tmp_path, None, hook)
        with running_hub(tmp_path) as hub:
            site = Site(hub)
            token = (tmp_path / "agent.token").read_text().strip()
            assert site.report(token, make_gpu()) < 300
            with contextlib.closing(sqlite3.connect(tmp_path / "gpudeck.db", isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                assert site.report(token, HOT) < 300
                wait_until(lambda: len(hook.texts()) == 1, "the message, while the file is locked")
                wait_until(lambda: site.database()["status"] == "degraded", "a hub that says so")
                assert site.database()["problem"] == "the hub's database is locked by another process."
            wait_until(lambda: site.database()["overall"] == "ready", "a hub that is whole again", 60)
            wait_until(lambda: "alert_fired" in kinds(site), "what happened meanwhile", 60)
            wait_until(lambda: count(tmp_path, "outbox WHERE state = 'sent'", "gpudeck.db") == 1, "the note", 60)
        assert len(hook.texts()) == 1


def test_server_that_refuses_the_hub_stops_its_start(tmp_path: Path, server: PostgresServer) -> None:
    (tmp_path / "gpudeck.yaml").write_text(f"demo: never\ndatabase: {server.address('nowhere')}\n")
    ended = gpudeck(tmp_path, "up", "--listen", "127.0.0.1:0")
    assert ended.returncode == 2
    assert 'database "nowhere" does not exist. Make that database' in ended.stderr


def read(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def count(folder: Path, rows: str, file: str = "local.db") -> int:
    with contextlib.closing(sqlite3.connect(folder / file, timeout=10)) as database:
        return int(database.execute(f"SELECT count(*) FROM {rows}").fetchone()[0])


def kinds(site: Site) -> list[str]:
    status, told = site.ask("/api/v1/events")
    return [one["kind"] for one in told["events"]] if status == 200 else []
