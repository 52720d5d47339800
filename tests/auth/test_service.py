"""What a hub does with accounts and tokens when it starts."""

import asyncio
import contextlib
import json
import sqlite3
import time
import urllib.error
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.hubs import HubProcess, running_hub
from fakes.waiting import wait_until
from gpudeck.agent.token_file import ensure_token
from gpudeck.auth.auth import Auth
from gpudeck.auth.service import TokenCopy, running_auth
from gpudeck.database import sqlite


def start(folder: Path, config: Path | None) -> list[tuple[str, str]]:
    """Start and stop once; what the audit log then has."""

    async def run() -> list[tuple[str, str]]:
        ensure_token(folder / "agent.token")
        ensure_token(folder / "admin.token")
        async with running_auth(folder, folder / "agent.token", config) as auth:
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
        async with running_auth(tmp_path, tmp_path / "agent.token") as auth:
            known = auth.tokens.find(old) is not None
        (tmp_path / "agent.token").unlink()
        ensure_token(tmp_path / "agent.token")
        async with running_auth(tmp_path, tmp_path / "agent.token") as auth:
            return known, auth.tokens.find(old) is not None

    assert asyncio.run(run()) == (True, False)


def test_start_without_the_database_lets_in_whom_the_last_one_knew_for_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.1)
    own = ensure_token(tmp_path / "agent.token")
    ensure_token(tmp_path / "admin.token")

    @contextlib.asynccontextmanager
    async def locked() -> AsyncIterator[Auth]:
        with contextlib.closing(sqlite3.connect(tmp_path / "gpudeck.db")) as other:
            other.execute("BEGIN EXCLUSIVE")
            async with running_auth(tmp_path, tmp_path / "agent.token") as auth:
                yield auth

    async def run() -> None:
        async with locked() as auth:
            assert auth.database.away is not None
            assert auth.problem == "the hub's database is locked by another process."
            assert auth.has_accounts, "nobody is let in for sitting at the machine"
            assert auth.tokens.find(own) is None, "it may have been revoked, and nobody knows"
        async with running_auth(tmp_path, tmp_path / "agent.token") as auth:
            made, secret = await auth.tokens.create("nightly", "viewer")
            _, revoked = await auth.tokens.create("leaked", "viewer")
            await auth.tokens.revoke(made.id + 1)
        async with locked() as auth:
            assert not auth.has_accounts
            found = [auth.tokens.find(one) is not None for one in (own, secret, revoked, "other")]
            assert found == [True, True, False, False]
            monkeypatch.setattr(auth.tokens, "now", lambda: time.time() + 90_000)
            TokenCopy(auth, tmp_path, tmp_path / "agent.token").use()
            assert [auth.tokens.find(one) is not None for one in (own, secret)] == [True, False]

    asyncio.run(run())


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
        assert readiness(hub)[1]["status"] == "ready"
        (tmp_path / "gpudeck.db").rename(tmp_path / "elsewhere.db")
        wait_until(lambda: readiness(hub)[1]["status"] == "degraded", "a hub that is not whole")
        status, answer = readiness(hub)
        told = {check["name"]: check["problem"] for check in answer["checks"]}["database"]
        assert status == 200
        assert told == (
            "the hub's database is gone, and what is changed now will be lost: put it back, or start the hub again."
        )
        wait_until(lambda: problems(hub) == [told], "the problem on the page")
        (tmp_path / "elsewhere.db").rename(tmp_path / "gpudeck.db")
        wait_until(lambda: readiness(hub)[1]["status"] == "ready", "a hub that is ready again")
        wait_until(lambda: problems(hub) == [], "the problem's end")
    log = (tmp_path / "log").read_text()
    assert log.count(f"the database {tmp_path}/gpudeck.db is gone") == 1
    assert log.count("/gpudeck.db answers again") == 1
