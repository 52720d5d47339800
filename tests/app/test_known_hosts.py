"""A real hub that is killed knows its hosts, their GPUs and their alerts when it is started again."""

import contextlib
import os
import signal
import sqlite3
import urllib.request
from pathlib import Path
from typing import Any

import msgspec

from fakes.hubs import HubProcess, gpudeck
from fakes.reports import make_envelope, make_gpu
from fakes.waiting import wait_until
from gpudeck.wire import encode

CONFIG = "demo: never\nlocal: never\nfleet: {down_after: 2s}\n"


def start(folder: Path) -> HubProcess:
    return HubProcess(folder, ["--listen", "127.0.0.1:0", "--config", str(folder / "gpudeck.yaml")])


def kill(hub: HubProcess) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(hub.process.pid, signal.SIGKILL)
    hub.stop(signal.SIGKILL)


def report(hub: HubProcess, name: str, *, interval: float) -> None:
    envelope = make_envelope(name, gpus=[make_gpu(uuid=name)], interval_seconds=interval)
    headers = {
        "Authorization": f"Bearer {hub.token_file.read_text().strip()}",
        "Content-Type": "application/msgpack",
        "Content-Encoding": "zstd",
    }
    request = urllib.request.Request(f"{hub.url}/api/v1/reports", encode(envelope), headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 202


def hosts(hub: HubProcess) -> dict[str, Any]:
    return {host["name"]: host for host in msgspec.json.decode(hub.get("/api/v1/hosts"))["hosts"]}


def alerts(hub: HubProcess, state: str = "firing") -> list[tuple[str, str]]:
    found = msgspec.json.decode(hub.get(f"/api/v1/alerts?state={state}"))["alerts"]
    return [(alert["id"], alert["title"]) for alert in found]


def remembered(folder: Path) -> list[tuple[str, int]]:
    with contextlib.closing(sqlite3.connect(folder / "gpudeck.db", timeout=10)) as database:
        return database.execute("SELECT id, is_down FROM hosts ORDER BY id").fetchall()


def test_killed_hub_knows_its_hosts_and_one_that_was_removed_does_not_come_back(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text(CONFIG)
    hub = start(tmp_path)
    try:
        report(hub, "dead1", interval=0.5)
        report(hub, "gpu01", interval=600.0)
        wait_until(lambda: alerts(hub), "an alert of the host that is down", 30)
        wait_until(lambda: remembered(tmp_path) == [("dead1", 1), ("gpu01", 0)], "both hosts in the database", 30)
        (before,), seen = alerts(hub), hosts(hub)
        kill(hub)

        hub = start(tmp_path)
        now = hosts(hub)
        assert [(name, host["status"]) for name, host in now.items()] == [("dead1", "down"), ("gpu01", "late")]
        assert [now[name]["last_report_at"] for name in now] == [seen[name]["last_report_at"] for name in now]
        assert [gpu["availability"] for host in now.values() for gpu in host["gpus"]] == ["unknown", "unknown"]
        assert alerts(hub) == [before]
        report(hub, "gpu01", interval=600.0)
        assert hosts(hub)["gpu01"]["status"] == "up"

        removed = gpudeck(tmp_path, "hosts", "remove", "dead*", "--yes", GPUDECK_HUB=hub.url)
        assert (removed.returncode, removed.stdout) == (0, "1 host: dead1\n1 host removed.\n"), removed.stderr
        assert alerts(hub) == []
        kill(hub)

        hub = start(tmp_path)
        assert list(hosts(hub)) == ["gpu01"]
        assert alerts(hub) == []
    finally:
        kill(hub)
