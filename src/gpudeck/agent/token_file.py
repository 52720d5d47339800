"""Token files: created once, readable by their owner only.

One for all agents and one for the hub's administrator, each in its own file. `agent_tokens` has those of
single hosts.
"""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from gpudeck.agent.push import read_token
from gpudeck.model.errors import UsageError

_CANNOT_LINK = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
"""Errors of file systems without hard links."""


def ensure_token(file: Path) -> str:
    """The token in the file, which is made with a new one if it is not there. It appears whole or not at all, and hubs
    that start at the same time agree on one. Raises UsageError."""
    try:
        if not file.exists():
            with _written(file, f"{secrets.token_urlsafe(32)}\n".encode()) as begun:
                _put(begun, file)
    except OSError as error:
        raise UsageError(
            f"the token file {file} cannot be created: {(error.strerror or str(error)).lower()}.",
            "Free disk space, or choose another path with token_file in gpudeck.yaml.",
        ) from error
    hint = "Check its owner and mode, or delete it: the next start creates a new one, which agents need a copy of."
    return read_token(file, hint)


@contextlib.contextmanager
def _written(file: Path, content: bytes) -> Iterator[Path]:
    """The content in a new file next to that one, for its owner alone, which is gone afterwards if it was not moved."""
    begun = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        yield begun
    finally:
        begun.unlink(missing_ok=True)


def _put(begun: Path, file: Path) -> None:
    try:
        os.link(begun, file)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
        begun.rename(file)


def replace_file(file: Path, content: bytes) -> None:
    """The file has the new content or the old one, whatever happens meanwhile; only its owner can read it."""
    with _written(file, content) as begun:
        begun.replace(file)
