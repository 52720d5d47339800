"""What a hub does with accounts and tokens when it starts."""

import asyncio
import json
import logging
import shutil
import urllib.error
from pathlib import Path
from typing import Any

import pytest

from fakes.hubs import HubProcess, running_hub, wait_until
from gpudeck.app.auth import running_auth
from gpudeck.app.database_file import DatabaseFile
from gpudeck.app.settings import Settings
from gpudeck.app.tokens import ensure_token


def start(folder: Path, config: Path | None) -> list[tuple[str, str]]:
    """Start and stop once; what the audit log then has."""

    async def run() -> list[tuple[str, str]]:
        ensure_token(folder / "agent.token")
        ensure_token(folder / "admin.token")
        async with running_auth(Settings(), folder, folder / "agent.token", config) as auth:
            return [(entry.action, entry.details) for entry in await auth.audit.list()]

    return asyncio.run(run())


def test_changed_configuration_is_in_the_audit_log_once(tmp_path: Path) -> None:
    config = tmp_path / "gpudeck.yaml"
    config.write_text("demo: never\n")
    assert len(start(tmp_path, config)) == 1
    assert len(start(tmp_path, config)) == 1
    config.write_text("demo: auto\n")
    entries = start(tmp_path, config)
    assert [action for action, _ in entries] == ["read configuration", "read configuration"]
    assert entries[0] != entries[1]


def test_tokens_in_files_are_known_from_the_start_and_a_new_one_replaces_the_old(tmp_path: Path) -> None:
    async def run() -> tuple[bool, bool]:
        old = ensure_token(tmp_path / "agent.token")
        ensure_token(tmp_path / "admin.token")
        async with running_auth(Settings(), tmp_path, tmp_path / "agent.token") as auth:
            known = auth.tokens.find(old) is not None
        (tmp_path / "agent.token").unlink()
        ensure_token(tmp_path / "agent.token")
        async with running_auth(Settings(), tmp_path, tmp_path / "agent.token") as auth:
            return known, auth.tokens.find(old) is not None

    assert asyncio.run(run()) == (True, False)


def readiness(hub: HubProcess) -> tuple[int, Any]:
    try:
        return 200, json.loads(hub.get("/readyz"))
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def problems(hub: HubProcess) -> list[str]:
    told: list[str] = json.loads(hub.get("/api/v1/fleet"))["problems"]
    return told


def test_database_that_is_moved_away_under_a_running_hub_is_told_until_it_is_back(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text("demo: never\nlocal: never\n")
    with running_hub(tmp_path) as hub:
        assert readiness(hub)[0] == 200
        (tmp_path / "gpudeck.db").rename(tmp_path / "elsewhere.db")
        wait_until(lambda: readiness(hub)[0] == 503, "a hub that is not ready")
        status, told = readiness(hub)[1]["status"], readiness(hub)[1]["reason"]
        assert status == "not keeping changes"
        assert told == (
            "the hub's database is gone, and what is changed now will be lost: put it back, or start the hub again."
        )
        wait_until(lambda: problems(hub) == [told], "the problem on the page")
        (tmp_path / "elsewhere.db").rename(tmp_path / "gpudeck.db")
        wait_until(lambda: readiness(hub)[0] == 200, "a hub that is ready again")
        wait_until(lambda: problems(hub) == [], "the problem's end")
    log = (tmp_path / "log").read_text()
    assert log.count(f"the database {tmp_path}/gpudeck.db is gone") == 1
    assert log.count("is the file again that the hub has open") == 1


def test_database_that_is_replaced_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "gpudeck.db"
    file.write_bytes(b"old")
    told: list[str | None] = []
    watched = DatabaseFile(file, told.append)

    def look() -> None:
        asyncio.run(watched.look())

    with caplog.at_level(logging.INFO):
        look()
        shutil.copy(file, tmp_path / "backup")
        (tmp_path / "backup").replace(file)
        look()
        look()
    assert [text and text.partition(",")[0] for text in told] == [
        "the hub's database was replaced while the hub runs",
    ]
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_database_that_is_written_stays_the_same_file(tmp_path: Path) -> None:
    file = tmp_path / "gpudeck.db"
    file.write_bytes(b"old")
    told: list[str | None] = []
    watched = DatabaseFile(file, told.append)
    file.write_bytes(b"new and longer")
    asyncio.run(watched.look())
    assert told == []
