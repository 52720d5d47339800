"""A real PostgreSQL server of its own: a new folder, a free port and a socket file, trusting whoever asks."""

import asyncio
import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.ports import free_port
from fakes.waiting import wait_until

_WHY_NOT = "there is no PostgreSQL on this machine: run tests/system-packages.sh"
# What is lost when the machine loses its power does not matter here, and nothing lives long enough to be tidied up.
_QUICK = ("fsync=off", "full_page_writes=off", "autovacuum=off", "max_wal_size=128MB")
_MEMORY = Path("/dev/shm")
_ROOM = 2 << 30
"""Bytes: several servers run at once, of 100 to 300 MB each."""


def find_postgres() -> Path:
    """The folder of the server's programs, the newest; skips the test where there are none."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda file: float(file.parts[-3]))
    found = shutil.which("postgres")
    programs = Path(found).resolve() if found else next(reversed(debian), None)
    if programs is None or not (programs.parent / "initdb").exists():
        pytest.skip(_WHY_NOT)
    return programs.parent


def find_user() -> str | None:
    """The server refuses to run as root: then it runs as the user that its package made. None: as whoever we are."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        pytest.skip("root cannot run PostgreSQL, and there is no user postgres")


class PostgresServer:
    """`kill` and `start` again keep the address and what was committed. `socket_folder` has its socket file."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        self._host = host
        self._programs = find_postgres()
        self._user = find_user()
        self._folder = folder
        self._names = itertools.count(1)
        self.process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.socket_folder = folder
        if self._user:
            shutil.chown(folder, self._user)
        self._run("initdb", "--pgdata", f"{folder}/data", "--username", "gpudeck", "--auth", "trust", "--no-sync")
        if host != "127.0.0.1":
            with (folder / "data" / "pg_hba.conf").open("a") as rules:
                rules.write("host all all samenet trust\n")

    def start(self) -> None:
        options = (
            f"listen_addresses={self._host}",
            f"port={self.port}",
            f"unix_socket_directories={self._folder}",
            *_QUICK,
        )
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self._programs / "postgres", "-D", f"{self._folder}/data", *(f"--{option}" for option in options)],
                stdout=log,
                stderr=log,
                user=self._user,
                cwd=self._folder,
            )
        wait_until(self._is_ready, "PostgreSQL's start", 60)

    def kill(self) -> None:
        """End it and every connection at once, as when its machine fails."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(20)
            self.process = None

    def freeze(self) -> None:
        """It keeps its connections and takes new ones, and answers nobody."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: int) -> None:
        assert self.process is not None
        main = self.process.pid
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        for pid in (main, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def address(self, name: str = "postgres") -> str:
        return f"postgresql://gpudeck@{self._host}:{self.port}/{name}"

    def make_database(self) -> str:
        """A new and empty database; its address."""
        name = f"test{next(self._names)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.address(name)

    def make_schema(self) -> str:
        """A new and empty part of a database, for which the server takes a tenth of the time; its address."""
        name = f"test{next(self._names)}"
        self.execute(f"CREATE SCHEMA {name}")
        return f"{self.address()}?search_path={name}"

    def execute(self, statement: str, name: str = "postgres") -> None:
        asyncio.run(_execute(self.address(name), statement))

    def dump(self, schema: str) -> str:
        """The statements that make a part of the database again, with what is in it."""
        options = ("--host", str(self._folder), "--port", str(self.port), "--username", "gpudeck")
        return self._run("pg_dump", *options, "--inserts", "--schema", schema, "postgres")

    def ask_passwords_of(self, user: str) -> None:
        """From now on; everybody else is trusted as before."""
        rules = self._folder / "data" / "pg_hba.conf"
        rules.write_text(f"host all {user} all scram-sha-256\n{rules.read_text()}")
        self.execute("SELECT pg_reload_conf()")

    def _run(self, program: str, *arguments: str) -> str:
        command = [self._programs / program, *arguments]
        return subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=60, user=self._user, cwd=self._folder
        ).stdout

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self._folder / "log").read_text()[-2000:]
        ready = [self._programs / "pg_isready", "--host", self._host, "--port", str(self.port)]
        return subprocess.run(ready, capture_output=True, timeout=20, check=False).returncode == 0


async def _execute(address: str, statement: str) -> None:
    import asyncpg  # noqa: PLC0415 - whoever only asks whether there is a server does without

    connection = await asyncpg.connect(address, timeout=10)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def _find_memory() -> Path | None:
    """Making fifty files takes the server half as long there. None where it is small, as in most containers."""
    has_room = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM
    return _MEMORY if has_room else None


@contextlib.contextmanager
def running_postgres(host: str = "127.0.0.1") -> Iterator[PostgresServer]:
    """A server that is ended at the end. Its folder is not the test's, into which another user could not look."""
    find_postgres()
    with tempfile.TemporaryDirectory(prefix="gpudeck-postgres-", dir=_find_memory()) as folder:
        server = PostgresServer(Path(folder), host)
        try:
            server.start()
            yield server
        finally:
            server.kill()
