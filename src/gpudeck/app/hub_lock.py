"""Whether a hub runs on a data folder: each holds a share of a lock there, as does each command that works on the
database, and a restore wants the whole of it."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from gpudeck.app.exchange import finish, is_unfinished
from gpudeck.model.errors import UsageError

FILE = "hub.lock"
_HELD = {errno.EWOULDBLOCK, errno.EACCES}


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
