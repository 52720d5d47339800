"""What a hub does with accounts and tokens when it starts."""

import asyncio
from pathlib import Path

from gpudeck.app.auth import running_auth
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
