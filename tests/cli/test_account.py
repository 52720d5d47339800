"""gpudeck account: as a person and as a script use it, on the database of this machine's hub."""

import asyncio
import json
import os
import pty
import select
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.commands import gpudeck_here
from fakes.hubs import environment, gpudeck
from fakes.sessions import start_session
from gpudeck.auth.accounts import Accounts, Passwords
from gpudeck.auth.audit import Audit, AuditEntry
from gpudeck.auth.sessions import Sessions
from gpudeck.auth.settings import AuthSettings
from gpudeck.database.engine import Database, open_database

PASSWORD = "correct horse battery"
NEW_PASSWORD = "another good password"


def account(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return gpudeck_here(folder, "account", *arguments)


def python(folder: Path, *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python with something at its input, which is no terminal."""
    return subprocess.run(
        [sys.executable, *arguments],
        input=typed,
        capture_output=True,
        text=True,
        env=environment(folder),
        cwd=folder,
        timeout=60,
        check=False,
    )


def done(folder: Path, *arguments: str) -> str:
    """What a command that worked told."""
    answer = account(folder, *arguments)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def refused(folder: Path, *arguments: str) -> str:
    """Why a command did nothing."""
    answer = account(folder, *arguments)
    assert (answer.returncode, answer.stdout) == (2, ""), answer.stderr
    assert "Traceback" not in answer.stderr
    return answer.stderr


def list_accounts(folder: Path) -> list[dict[str, Any]]:
    answer = account(folder, "list", "--json")
    assert (answer.returncode, answer.stderr) == (0, "")
    listed: list[dict[str, Any]] = json.loads(answer.stdout)["accounts"]
    return listed


async def is_password(database: Database, name: str, password: str) -> bool:
    passwords = Passwords()
    _, kept = await Accounts(database, passwords).find_with_hash(name)
    return await passwords.verify(kept, password)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A machine on which no hub ever ran, with a file that has a password in it."""
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    return tmp_path


@pytest.fixture
def settings(database: Database, database_address: str | None, folder: Path) -> Path:
    """A machine whose configuration names the database, where it is not the file in the data folder."""
    (folder / "gpudeck.yaml").write_text(f"database: {database_address or 'null'}\n")
    return folder


def test_the_first_admin_is_made_before_the_hub_ever_ran(folder: Path) -> None:
    answer = gpudeck(folder, "account", "add", "Ada", "--role", "admin", "--password-file", "password")
    assert (answer.returncode, answer.stdout, answer.stderr) == (
        0,
        "Account ada is created, with the role admin.\n",
        "",
    )
    assert stat.S_IMODE((folder / "gpudeck.db").stat().st_mode) == 0o600

    async def check() -> bool:
        database = await open_database(None, folder)
        try:
            return await is_password(database, "ada", PASSWORD)
        finally:
            await database.close()

    assert asyncio.run(check())


def test_accounts_live_through_all_their_changes(settings: Path, database: Database) -> None:
    done(settings, "add", "ada", "--role", "admin", "--no-password")
    done(settings, "add", "grace", "--password-file", "password")
    grace = asyncio.run(Accounts(database, Passwords()).find("grace"))
    assert grace is not None
    sessions = Sessions(database, AuthSettings())
    secret = asyncio.run(start_session(sessions, grace))
    (settings / "new").write_text(NEW_PASSWORD)
    assert "new password" in done(settings, "password", "grace", "--password-file", "new")
    assert asyncio.run(sessions.find(secret)) is None
    assert asyncio.run(is_password(database, "grace", NEW_PASSWORD))
    done(settings, "role", "grace", "viewer")
    done(settings, "disable", "grace")
    before = list_accounts(settings)
    done(settings, "enable", "grace")
    after = list_accounts(settings)
    done(settings, "remove", "grace")
    assert [(one["name"], one["role"], one["is_disabled"], one["has_password"]) for one in before] == [
        ("ada", "admin", False, False),
        ("grace", "viewer", True, True),
    ]
    assert after[1]["is_disabled"] is False
    assert [one["name"] for one in list_accounts(settings)] == ["ada"]
    entries: list[AuditEntry] = asyncio.run(Audit(database).list())
    assert [(entry.action, entry.subject, entry.details) for entry in reversed(entries)] == [
        ("add account", "ada", "admin"),
        ("add account", "grace", "user"),
        ("change password", "grace", ""),
        ("change role", "grace", "viewer"),
        ("disable account", "grace", ""),
        ("enable account", "grace", ""),
        ("remove account", "grace", ""),
    ]
    assert all(entry.who.endswith("on the hub's machine") for entry in entries)


def test_a_list_is_for_people_and_for_scripts(folder: Path) -> None:
    assert "gpudeck account add NAME --role admin" in done(folder, "list")
    assert list_accounts(folder) == []
    done(folder, "add", "ada", "--no-password", "--role", "admin")
    header, row = done(folder, "list").splitlines()
    assert header.split() == ["NAME", "ROLE", "STATE", "LOGS", "IN", "WITH", "LAST", "LOGIN", "CREATED"]
    assert row.split()[:5] == ["ada", "admin", "enabled", "provider", "never"]


def test_whoever_adds_no_admin_is_told(folder: Path) -> None:
    answer = account(folder, "add", "ada", "--no-password")
    assert (answer.returncode, answer.stdout) == (0, "Account ada is created, with the role user.\n")
    assert "no account is an admin yet" in answer.stderr


def test_what_cannot_be_done_is_refused_with_the_reason(folder: Path) -> None:
    done(folder, "add", "ada", "--role", "admin", "--no-password")
    assert "ada is the last admin and cannot be removed" in refused(folder, "remove", "ada")
    assert "there is an account ada already" in refused(folder, "add", "ada", "--password-file", "password")
    assert "there is no account 'hal'" in refused(folder, "password", "hal", "--password-file", "password")
    assert "there is no account 'hal'" in refused(folder, "disable", "hal")
    assert "'a b' is no name for an account" in refused(folder, "add", "a b", "--no-password")
    assert "'owner' is not one of" in refused(folder, "role", "ada", "owner")


def test_a_bad_password_file_is_refused_without_telling_what_is_in_it(folder: Path) -> None:
    (folder / "short").write_text("hunter2\n")
    (folder / "binary").write_bytes(b"\xff\xfe hunter2 hunter2\n")
    (folder / "empty").write_text("")
    told = [refused(folder, "add", "ada", "--password-file", name) for name in ("short", "binary", "empty", "absent")]
    both = refused(folder, "add", "ada", "--password-file", "short", "--no-password")
    assert ["fewer than 10" in told[0], "not text in UTF-8" in told[1], "fewer than 10" in told[2]] == [True] * 3
    assert "password file absent cannot be read" in told[3]
    assert "exclude each other" in both
    assert "hunter2" not in "".join(told)
    assert list_accounts(folder) == []


def test_no_argument_takes_a_password(folder: Path) -> None:
    assert "unexpected extra argument" in refused(folder, "add", "ada", PASSWORD)
    assert "No such option" in refused(folder, "add", "ada", "--password", PASSWORD)


def test_a_password_comes_from_the_input_where_that_is_asked_for(folder: Path) -> None:
    answer = python(folder, "-m", "gpudeck", "account", "add", "ada", "--password-file", "-", typed=PASSWORD)
    assert (answer.returncode, answer.stdout) == (0, "Account ada is created, with the role user.\n")
    assert [one["has_password"] for one in list_accounts(folder)] == [True]


def test_without_a_terminal_nobody_is_asked(folder: Path) -> None:
    answer = python(folder, "-m", "gpudeck", "account", "add", "ada", typed=f"{PASSWORD}\n{PASSWORD}\n")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "--password-file" in answer.stderr


def test_a_base_install_says_how_to_get_the_hub(folder: Path) -> None:
    program = (
        "import sys; sys.modules['sqlalchemy'] = None; sys.argv[1:] = ['account', 'list']; "
        "from gpudeck.cli import main; main()"
    )
    answer = python(folder, "-c", program)
    assert (answer.returncode, answer.stderr.count("\n")) == (2, 1)
    assert "pip install 'gpudeck[hub]'" in answer.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files for others")
def test_what_root_makes_belongs_to_the_owner_of_the_folder(folder: Path) -> None:
    os.chown(folder, 12345, 12346)
    done(folder, "add", "ada", "--role", "admin", "--no-password")
    owners = {(file.stat().st_uid, file.stat().st_gid) for file in folder.glob("gpudeck.db*")}
    assert owners == {(12345, 12346)}


class Terminal:
    """A command at a terminal of its own. `shown` is all that stands on the screen."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.shown = ""
        self._screen, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpudeck", "account", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(folder),
            cwd=folder,
            start_new_session=True,
        )
        os.close(theirs)

    def answer(self, question: str, typed: str) -> None:
        self._read_until(question)
        os.write(self._screen, f"{typed}\n".encode())

    def finish(self) -> int:
        self._read_until(None)
        return self.process.wait(20)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._screen)

    def _read_until(self, question: str | None) -> None:
        """Until the question stands there anew, or to the end."""
        seen, deadline = len(self.shown), time.monotonic() + 40
        while question is None or question not in self.shown[seen:]:
            ready, _, _ = select.select([self._screen], [], [], deadline - time.monotonic())
            assert ready, f"only {self.shown!r}"
            try:
                self.shown += os.read(self._screen, 4096).decode()
            except OSError:  # the other end is closed
                return


@pytest.fixture
def terminal(folder: Path) -> Iterator[Terminal]:
    opened = Terminal(folder, "add", "ada", "--role", "admin")
    yield opened
    opened.close()


def test_a_password_is_typed_twice_and_not_shown(folder: Path, terminal: Terminal) -> None:
    terminal.answer("Password: ", PASSWORD)
    terminal.answer("Once more: ", PASSWORD)
    assert terminal.finish() == 0
    assert "Account ada is created, with the role admin." in terminal.shown
    assert PASSWORD not in terminal.shown
    assert [one["has_password"] for one in list_accounts(folder)] == [True]


def test_a_password_that_was_mistyped_is_asked_for_again(folder: Path, terminal: Terminal) -> None:
    terminal.answer("Password: ", PASSWORD)
    terminal.answer("Once more: ", NEW_PASSWORD)
    terminal.answer("Password: ", NEW_PASSWORD)
    terminal.answer("Once more: ", NEW_PASSWORD)
    assert terminal.finish() == 0
    assert PASSWORD not in terminal.shown
    assert [one["name"] for one in list_accounts(folder)] == ["ada"]


def test_a_name_that_is_taken_is_told_before_a_password_is_typed(folder: Path, terminal: Terminal) -> None:
    terminal.answer("Password: ", PASSWORD)
    terminal.answer("Once more: ", PASSWORD)
    terminal.finish()
    again = Terminal(folder, "add", "ADA")
    code = again.finish()
    again.close()
    assert code == 2
    assert "Password:" not in again.shown
