"""The data folder of a hub: its lock, and replacing several of its files at once.

A running hub holds a shared lock, as does each command that works on the database; a restore takes the exclusive one.

New files are gathered in a folder `.restoring`. One rename to `.restored` decides: before it nothing has changed, and
after it the files are moved, by the next process that takes the lock if this one does not get so far.
"""

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import msgspec
from msgspec import Struct

from gpudeck.model.errors import UsageError

FILE = "hub.lock"
_HELD = {errno.EWOULDBLOCK, errno.EACCES}
log = logging.getLogger(__name__)

_STAGE: Final = ".restoring"
_DECIDED: Final = ".restored"
_PLAN: Final = "plan.json"
_BESIDE: Final = ("-wal", "-shm", "-journal")
"""What SQLite has beside a file belongs to it: with another one it would be damage."""


def share(data_dir: Path, hint: str = "Start the hub when it is done.") -> IO[bytes]:
    """What a running hub holds until it closes it, or is killed. Raises UsageError while a restore is at work.

    A restore that was interrupted is completed first, or undone where it had not begun to change anything.
    """
    problem = f"a backup is being restored in {data_dir}."
    if is_unfinished(data_dir):
        with _lock(data_dir, fcntl.LOCK_EX, problem, hint):
            _finish(data_dir)
    return _lock(data_dir, fcntl.LOCK_SH, problem, hint)


@contextlib.contextmanager
def alone(data_dir: Path) -> Iterator[None]:
    """No hub runs on that folder meanwhile, and none starts. Raises UsageError where one runs."""
    with _lock(
        data_dir,
        fcntl.LOCK_EX,
        f"a hub runs on {data_dir}, or a command is changing its accounts or tokens, or making a backup.",
        "Stop it first, as with `systemctl stop gpudeck-hub`, and start it again when this is done.",
    ):
        _finish(data_dir)
        yield


def _finish(data_dir: Path) -> None:
    try:
        finish(data_dir)
    except OSError as error:
        raise UsageError(
            f"a restore in {data_dir} was interrupted and cannot be completed: {error}.",
            "Run this as the user that runs the hub, or as root.",
        ) from error


def _lock(data_dir: Path, kind: int, problem: str, hint: str) -> IO[bytes]:
    opened = os.fdopen(_open(data_dir / FILE), "r+b")
    try:
        fcntl.flock(opened, kind | fcntl.LOCK_NB)
    except OSError as error:
        # A file system that knows no locks is no reason to do without a hub.
        if error.errno in _HELD:
            opened.close()
            raise UsageError(problem, hint) from error
    return opened


def _open(file: Path) -> int:
    """One that root makes belongs to the owner of the folder: the hub has to open it too."""
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
    """Names in the data folder. `aside` is the folder for those that leave, None where none does."""

    leaving: list[str]
    coming: list[str]
    aside: str | None


@contextlib.contextmanager
def staging(data_dir: Path) -> Iterator[Path]:
    """An empty folder for the new files. What is in it at the end, and was not put in place, is deleted."""
    stage = data_dir / _STAGE
    stage.mkdir(mode=0o700)
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def exchange(data_dir: Path, names: list[str]) -> Path | None:
    """Put the staged files of these names in place, and what has one of these names aside; where that is then.

    None where nothing was there before. Raises OSError; then everything is as it was.
    """
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


def is_unfinished(data_dir: Path) -> bool:
    """Whether an exchange is at work or was interrupted."""
    return (data_dir / _DECIDED).exists() or (data_dir / _STAGE).exists()


def finish(data_dir: Path) -> None:
    """Complete an exchange that was interrupted, or undo it where it was not decided. Raises OSError."""
    shutil.rmtree(data_dir / _STAGE, ignore_errors=True)
    file = data_dir / _DECIDED / _PLAN
    if file.exists():
        _carry_out(data_dir, msgspec.json.decode(file.read_bytes(), type=_Plan))
        log.warning("a restore in %s was interrupted and is complete now", data_dir)
    shutil.rmtree(data_dir / _DECIDED, ignore_errors=True)


def _decide(data_dir: Path, names: list[str]) -> _Plan:
    stage = data_dir / _STAGE
    leaving = [name for name in names if os.path.lexists(data_dir / name)]
    leaving += [name + end for name in names for end in _BESIDE]
    coming = [name for name in names if (stage / name).exists()]
    aside = data_dir / f"before-restore-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    has_old = any(os.path.lexists(data_dir / name) for name in leaving)
    plan = _Plan(leaving, coming, aside.name if has_old else None)
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
    """May be done again after it was interrupted: of a name that leaves and comes, the old file is aside already."""
    moves = []
    if plan.aside is not None:
        aside = data_dir / plan.aside
        moves = [(data_dir / name, aside / name) for name in plan.leaving if _is_left(data_dir / name, aside / name)]
    decided = data_dir / _DECIDED
    moves += [(decided / name, data_dir / name) for name in plan.coming if (decided / name).exists()]
    _move_all(moves)
    _sync(data_dir)
    # First of all: with the plan gone nothing is moved again.
    (decided / _PLAN).unlink()
    shutil.rmtree(decided, ignore_errors=True)


def _is_left(source: Path, target: Path) -> bool:
    return os.path.lexists(source) and not os.path.lexists(target)


def _move_all(moves: list[tuple[Path, Path]]) -> None:
    """One after another; when one fails those before it are undone. Raises OSError."""
    done: list[tuple[Path, Path]] = []
    try:
        for source, target in moves:
            source.rename(target)
            done.append((source, target))
    except OSError:
        for source, target in reversed(done):
            target.rename(source)
        raise


def _sync(path: Path) -> None:
    """A file or folder on the disk itself, so that a power cut does not undo the order of the steps."""
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
