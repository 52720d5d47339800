"""The data folder of a hub: its locks, its database for commands on the same machine, and replacing files atomically.

A running hub holds a shared lock, as does each command that works on the database; a restore takes the exclusive one.
In addition, a hub locks its fleet: two hubs of one fleet would write the same history. A restore gathers new files in
the folder `.restoring`. The rename to `.restored` is the commit point: before it nothing has changed; after it the
files are moved, if necessary by the next process that takes the lock.
"""

import asyncio
import contextlib
import errno
import fcntl
import getpass
import io
import logging
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import IO, Final, TypeVar

import msgspec
from msgspec import Struct

from gpudeck.auth.caller import Caller
from gpudeck.database import Outdated
from gpudeck.database.engine import Database, open_database
from gpudeck.database.sqlite import FILE_NAME
from gpudeck.model.errors import UsageError
from gpudeck.settings import find_data_dir, load_settings

FILE = "hub.lock"
FLEET_FILE: Final = "hub-{}.lock"
_HELD = {errno.EWOULDBLOCK, errno.EACCES}
log = logging.getLogger(__name__)

_STAGE: Final = ".restoring"
_DECIDED: Final = ".restored"
_PLAN: Final = "plan.json"
_SQLITE_SUFFIXES: Final = ("-wal", "-shm", "-journal")
"""SQLite's files next to a database belong to it: with another database they would damage it."""
_T = TypeVar("_T")


def lock_for_hub(data_dir: Path, hint: str = "Start the hub when it is done.") -> IO[bytes]:
    """The lock that a running hub holds until it closes it, or is killed. Raises UsageError during a restore. An
    interrupted restore is completed first, or undone."""
    problem = f"a backup is being restored in {data_dir}."
    # A restore is in progress or was interrupted.
    if (data_dir / _DECIDED).exists() or (data_dir / _STAGE).exists():
        with _lock(data_dir / FILE, fcntl.LOCK_EX, problem, hint):
            _finish(data_dir)
    return _lock(data_dir / FILE, fcntl.LOCK_SH, problem, hint)


def lock_fleet(data_dir: Path, fleet: str) -> IO[bytes]:
    """The lock of the one hub that serves this fleet from this folder, until it closes it or is killed. Raises
    UsageError if another hub holds it."""
    file = data_dir / FLEET_FILE.format(fleet)
    try:
        other = file.read_text(errors="replace").strip()
    except OSError:
        other = ""
    opened = _lock(
        file,
        fcntl.LOCK_EX,
        f"another hub runs on {data_dir}{f' (process {other})' if other.isdigit() else ''}.",
        "Stop it first, or give this hub its own folder: `data_dir` in gpudeck.yaml, or GPUDECK_DATA_DIR.",
    )
    with contextlib.suppress(OSError):  # a full disk: the number is only for the message above
        os.pwrite(opened.fileno(), f"{os.getpid():<12}".encode(), 0)
    return opened


@contextlib.contextmanager
def lock_exclusively(data_dir: Path) -> Iterator[None]:
    """While this lock is held, no hub runs on that folder, and none starts. Raises UsageError if one runs."""
    with _lock(
        data_dir / FILE,
        fcntl.LOCK_EX,
        f"a hub runs on {data_dir}, or a command is changing its accounts or tokens, or making a backup.",
        "Stop it first, as with `systemctl stop gpudeck-hub`, and start it again when this is done.",
    ):
        _finish(data_dir)
        yield


def _finish(data_dir: Path) -> None:
    try:
        finish_restore(data_dir)
    except OSError as error:
        raise UsageError(
            f"a restore in {data_dir} was interrupted and cannot be completed: {error}.",
            "Run this as the user that runs the hub, or as root.",
        ) from error


class _LockFile(io.FileIO):
    def close(self) -> None:
        """Unlocks explicitly: a child process of another thread has the descriptor too, until it runs its program."""
        if not self.closed:
            with contextlib.suppress(OSError):
                fcntl.flock(self, fcntl.LOCK_UN)
        super().close()


def _lock(file: Path, kind: int, problem: str, hint: str) -> IO[bytes]:
    opened = _LockFile(_open(file), "r+")
    try:
        fcntl.flock(opened, kind | fcntl.LOCK_NB)
    except OSError as error:
        # A file system that knows no locks is no reason to do without a hub.
        if error.errno in _HELD:
            opened.close()
            raise UsageError(problem, hint) from error
    return opened


def _open(file: Path) -> int:
    """A file that root creates gets the owner of the folder: the hub must be able to open it."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if os.geteuid() == 0:
            owner = file.parent.stat()
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
    except OSError as error:
        raise UsageError(
            f"{file} cannot be opened: {(error.strerror or str(error)).lower()}.",
            "Give it and its folder to the user that runs the hub.",
        ) from error
    return descriptor


class _Plan(Struct, frozen=True):
    """Which files move where, as paths below the data folder; removals come first. `aside` is the folder for these,
    None without any."""

    moves: list[tuple[str, str]]
    aside: str | None


@contextlib.contextmanager
def staging(data_dir: Path) -> Iterator[Path]:
    """An empty folder for the new files. Files that were not put in place are deleted at the end."""
    stage = data_dir / _STAGE
    stage.mkdir(mode=0o700)
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def replace_files(data_dir: Path, names: list[str]) -> Path | None:
    """Put the staged files of these names in place, and move existing ones aside; returns the folder with those. Raises
    OSError; then nothing has changed."""
    plan = _decide(data_dir, names)
    stage, aside = data_dir / _STAGE, None if plan.aside is None else data_dir / plan.aside
    try:
        _carry_out(data_dir, plan)
    except OSError:
        (data_dir / _DECIDED).rename(stage)
        if aside is not None:
            aside.rmdir()
        raise
    return aside


def finish_restore(data_dir: Path) -> None:
    """Finish an interrupted restore, or roll it back if it was not committed. Raises OSError."""
    shutil.rmtree(data_dir / _STAGE, ignore_errors=True)
    file = data_dir / _DECIDED / _PLAN
    if file.exists():
        _carry_out(data_dir, msgspec.json.decode(file.read_bytes(), type=_Plan))
        log.warning("a restore in %s was interrupted and is complete now", data_dir)
    shutil.rmtree(data_dir / _DECIDED, ignore_errors=True)


def _decide(data_dir: Path, names: list[str]) -> _Plan:
    stage = data_dir / _STAGE
    aside = data_dir / f"before-restore-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    old = [*names, *(name + end for name in names for end in _SQLITE_SUFFIXES)]
    moves = [(name, f"{aside.name}/{name}") for name in old if os.path.lexists(data_dir / name)]
    has_old = bool(moves)
    moves += [(f"{_DECIDED}/{name}", name) for name in names if (stage / name).exists()]
    plan = _Plan(moves, aside.name if has_old else None)
    (stage / _PLAN).write_bytes(msgspec.json.encode(plan))
    _belong_to_owner_of(data_dir, [stage, *stage.iterdir()])
    for path in (*stage.iterdir(), stage):
        _sync(path)
    if has_old:
        aside.mkdir(mode=0o700)
        _belong_to_owner_of(data_dir, [aside])
    stage.rename(data_dir / _DECIDED)
    _sync(data_dir)
    return plan


def _carry_out(data_dir: Path, plan: _Plan) -> None:
    """Move one file after another; if one fails, those before it are undone. Can be repeated after an interruption: if
    a file is both moved aside and replaced, the old one is aside already. Raises OSError."""
    decided = data_dir / _DECIDED
    done: list[tuple[Path, Path]] = []
    try:
        for source, target in ((data_dir / source, data_dir / target) for source, target in plan.moves):
            if os.path.lexists(source) and (source.parent == decided or not os.path.lexists(target)):
                source.rename(target)
                done.append((source, target))
    except OSError:
        for source, target in reversed(done):
            target.rename(source)
        raise
    _sync(data_dir)
    # First of all: with the plan gone nothing is moved again.
    (decided / _PLAN).unlink()
    shutil.rmtree(decided, ignore_errors=True)


def _sync(path: Path) -> None:
    """Flush a file or folder to disk, so that a power failure cannot reorder the steps."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _belong_to_owner_of(data_dir: Path, files: list[Path]) -> None:
    """Root restores for the user that runs the hub."""
    if os.geteuid() == 0:
        owner = data_dir.stat()
        for file in files:
            os.chown(file, owner.st_uid, owner.st_gid)


def use_database(config: Path | None, work: Callable[[Database], Awaitable[_T]]) -> _T:
    """Use the database of the configuration. Raises UsageError. Tables of an older gpudeck are migrated only while no
    hub uses them, and never on a PostgreSQL server."""
    settings, _ = load_settings(config)
    folder = find_data_dir(settings)
    if settings.database is not None:
        return asyncio.run(_use(settings.database, folder, work))
    try:
        return _use_file(folder, work)
    except Outdated as outdated:
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(lock_exclusively(folder))
            except UsageError as error:
                raise outdated from error
            asyncio.run(_update(folder))
    return _use_file(folder, work)


def local_admin() -> Caller:
    """The local user: write access to the hub's database means full rights."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"user {os.getuid()}"
    return Caller(kind="local", role="admin", name=f"{user} on the hub's machine")


def _use_file(folder: Path, work: Callable[[Database], Awaitable[_T]]) -> _T:
    # A restore would take the file away from below it, and what is changed would be lost.
    with lock_for_hub(folder, "Try again when it is done."):
        if os.geteuid() == 0 and not (folder / FILE_NAME).exists():
            # With the folder's owner: a hub of that user could not open a file of root.
            os.close(_open(folder / FILE_NAME))
        return asyncio.run(_use(None, folder, work))


async def _update(folder: Path) -> None:
    await (await open_database(None, folder)).close()


async def _use(address: str | None, folder: Path, work: Callable[[Database], Awaitable[_T]]) -> _T:
    database = await open_database(address, folder, changes_tables=False)
    try:
        return await work(database)
    finally:
        await database.close()
