"""gpudeck token: as a person and as a script use it, on the database of this machine's hub."""

import asyncio
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, update

from fakes.commands import gpudeck_here
from fakes.hubs import environment, gpudeck
from gpudeck.auth.audit import Audit, AuditEntry
from gpudeck.auth.tokens import Tokens
from gpudeck.database import schema
from gpudeck.database.engine import Database, open_database


@pytest.fixture
def settings(database: Database, database_address: str | None, tmp_path: Path) -> Path:
    """A configuration that names the database, where it is not the file in the data folder."""
    file = tmp_path / "gpudeck.yaml"
    file.write_text(f"database: {database_address or 'null'}\n")
    return tmp_path


def token(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return gpudeck_here(folder, "token", *arguments)


def create(folder: Path, *arguments: str) -> str:
    """The new token's secret, as a script would take it."""
    answer = token(folder, "create", *arguments)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.removesuffix("\n")


def list_tokens(folder: Path) -> list[dict[str, Any]]:
    answer = token(folder, "list", "--json")
    assert (answer.returncode, answer.stderr) == (0, "")
    listed: list[dict[str, Any]] = json.loads(answer.stdout)["tokens"]
    return listed


async def load(database: Database) -> Tokens:
    tokens = Tokens(database, time.time)
    await tokens.load()
    return tokens


def execute(database: Database, statement: Any) -> None:
    async def run() -> None:
        async with database.begin() as connection:
            await connection.execute(statement)

    asyncio.run(run())


def test_secret_stands_alone_on_the_standard_output_and_the_hub_knows_it(settings: Path, database: Database) -> None:
    arguments = ("create", "rack 3", "--role", "agent", "--host", "gpu*", "--expires", "90d")
    answer = gpudeck(settings, "token", *arguments)
    assert re.fullmatch(r"gd_agent_[A-Za-z0-9_-]{43}\n", answer.stdout)
    assert answer.stdout.strip() not in answer.stderr
    assert "`gpudeck token revoke 1`" in answer.stderr
    found = asyncio.run(load(database)).find(answer.stdout.strip())
    assert found is not None
    assert (found.name, found.role, found.hosts) == ("rack 3", "agent", "gpu*")
    assert found.expires_at == pytest.approx(found.created_at + 90 * 86_400, abs=60)
    assert found.created_by.endswith(" on the hub's machine")


def test_revoked_token_is_worth_nothing_to_a_hub_that_runs(settings: Path, database: Database) -> None:
    secret = create(settings, "one", "--role", "viewer")
    hub = asyncio.run(load(database))
    answer = token(settings, "revoke", "1")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout == "Token 1 (one) is revoked: a running hub refuses it within seconds.\n"
    asyncio.run(hub.refresh())
    assert hub.find(secret) is None


def test_list_tells_state_and_last_use_and_no_secret(settings: Path, database: Database) -> None:
    secrets = [create(settings, name, "--role", "agent") for name in ("live", "revoked", "expired")]
    token(settings, "revoke", "2")
    tokens = schema.tokens
    execute(database, update(tokens).where(tokens.c.id == 3).values(expires_at=1.0))
    execute(database, update(tokens).where(tokens.c.id == 1).values(last_used_at=time.time() - 7300))
    assert [(row["name"], row["state"]) for row in list_tokens(settings)] == [
        ("live", "live"),
        ("revoked", "revoked"),
        ("expired", "expired"),
    ]
    shown = token(settings, "list").stdout
    assert re.search(r"1 +live +agent +any +live +.* ago +2h 1m ago +never", shown)
    assert re.search(r"3 +expired +agent +any +expired +.* ago +never", shown)
    assert [secret for secret in secrets if secret[9:30] in shown + str(list_tokens(settings))] == []


def test_what_was_done_is_in_the_audit_log_without_the_secret(settings: Path, database: Database) -> None:
    secret = create(settings, "one", "--role", "agent", "--host", "gpu07")
    token(settings, "revoke", "1")
    entries: list[AuditEntry] = asyncio.run(Audit(database, time.time).list())
    assert [(entry.action, entry.subject, entry.details) for entry in entries] == [
        ("revoke token", "1 one", "agent, for gpu07"),
        ("create token", "1 one", "agent, for gpu07"),
    ]
    assert secret[9:] not in str(entries)


def test_token_of_an_account_is_shown_with_it(settings: Path, database: Database) -> None:
    execute(database, insert(schema.accounts).values(name="alice", role="user", created_at=1.0))
    create(settings, "mine", "--role", "user", "--account", "alice")
    refused = token(settings, "create", "more", "--role", "admin", "--account", "alice")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "alice is user, and a token of theirs cannot be admin" in refused.stderr
    execute(database, update(schema.accounts).values(is_disabled=1))
    assert [(row["account"], row["state"]) for row in list_tokens(settings)] == [("alice", "account disabled")]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["create", "x"], 2, "--role"),
        (["create", "x", "--role", "root"], 2, "--role"),
        (["create", "", "--role", "agent"], 2, "1 to 128 printable characters"),
        (["create", "x", "--role", "viewer", "--host", "gpu01"], 2, "only an agent's token"),
        (["create", "x", "--role", "agent", "--host", "gpu[01-16]"], 2, "brackets stand for one character"),
        (["create", "x", "--role", "agent", "--expires", "soon"], 2, "--expires: 'soon' is not a duration"),
        (["create", "x", "--role", "agent", "--expires", "0s"], 2, "expired at once"),
        (["create", "x", "--role", "user", "--account", "bob"], 2, "there is no account 'bob'"),
        (["create", "x", "--role", "user", "--account", "no name"], 2, "account"),
        (["revoke", "7"], 1, "no token has the id 7"),
        (["revoke", "9" * 40], 1, "no token has the id 999"),
        (["revoke", "seven"], 2, "seven"),
        (["list", "--config", "absent.yaml"], 2, "absent.yaml"),
    ],
)
def test_wrong_use_says_what_to_do_and_makes_nothing(
    tmp_path: Path, arguments: list[str], code: int, told: str
) -> None:
    answer = token(tmp_path, *arguments)
    assert (answer.returncode, answer.stdout) == (code, "")
    assert told in answer.stderr
    assert "Traceback" not in answer.stderr
    assert asyncio.run(_count_tokens(tmp_path)) == 0


async def _count_tokens(data_dir: Path) -> int:
    database = await open_database(None, data_dir)
    count = len(await Tokens(database, time.time).list())
    await database.close()
    return count


def test_list_of_a_new_hub_says_how_to_make_the_first(tmp_path: Path) -> None:
    assert token(tmp_path, "list").stdout == "No token yet. `gpudeck token create NAME --role agent` creates one.\n"


def test_name_of_a_token_cannot_act_on_the_terminal(tmp_path: Path) -> None:
    asyncio.run(_make_evil_token(tmp_path))
    assert "\x1b" not in token(tmp_path, "list").stdout


async def _make_evil_token(data_dir: Path) -> None:
    database = await open_database(None, data_dir)
    async with database.begin() as connection:
        evil = {"name": "\x1b[2Jx", "hash": "0" * 64, "role": "agent", "created_at": 1.0}
        await connection.execute(insert(schema.tokens).values(evil))
    await database.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_secret_that_nobody_could_read_is_taken_back(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        answer = subprocess.run(
            [sys.executable, "-m", "gpudeck", "token", "create", "x", "--role", "agent"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(tmp_path),
            cwd=tmp_path,
            timeout=60,
            check=False,
        )
    assert answer.returncode == 1
    assert "the output cannot be written" in answer.stderr
    assert [row["state"] for row in list_tokens(tmp_path)] == ["revoked"]


def test_a_base_install_says_how_to_get_the_hub(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['sqlalchemy'] = None; sys.argv[1:] = ['token', 'list']; "
        "from gpudeck.cli import main; main()"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment(tmp_path),
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert (answer.returncode, answer.stderr.count("\n")) == (2, 1)
    assert "pip install 'gpudeck[hub]'" in answer.stderr
