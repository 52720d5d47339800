"""Lock files in a folder shared by the processes of this machine, for coordination without a hub.

The kernel releases a lock when its process ends. One file names the hub of this machine's agent, for `gpudeck wait`. In
the folder for locks every user can write: only root's and the user's own are trusted.
"""

import contextlib
import fcntl
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from gpudeck.model.address import split_hubs
from gpudeck.model.errors import GpudeckError

VARIABLE: Final = "GPUDECK_LOCK_DIR"
_SHARED: Final = Path("/run/lock")
_NAME: Final = "gpudeck"
_LONGEST: Final = 4096
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def lock_folder() -> Path:
    """The folder for locks of all users of this machine, else one of this user. Raises GpudeckError."""
    places = find_places()
    for place in places:
        with contextlib.suppress(OSError):
            return _make_folder(place)
    raise GpudeckError(
        f"no folder for locks can be written: {', '.join(map(str, places))}.", f"Name another with ${VARIABLE}."
    )


def find_places() -> list[Path]:
    own = os.environ.get("XDG_RUNTIME_DIR")
    named = os.environ.get(VARIABLE)
    return [Path(named)] if named else [_SHARED / _NAME, *([Path(own) / _NAME] if own else [])]


def _make_folder(place: Path) -> Path:
    if not place.exists():
        place.mkdir(exist_ok=True)
        # Writable for all users, and sticky: none can remove the files of others.
        place.chmod(0o1777)
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError(place)
    return place


def make_locked(file: Path, text: bytes) -> int:
    """A new file with this text that all may read, locked until the descriptor is closed. Raises OSError."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    # Others have to see its lock, whatever this user's umask says.
    os.fchmod(descriptor, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.write(descriptor, text)
    return descriptor


def look_at(file: Path) -> tuple[bytes, bool]:
    try:
        descriptor = os.open(file, _READ)
    except OSError:
        return b"", False
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b"", False
        text = os.read(descriptor, _LONGEST)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return text, True
        return text, False
    finally:
        os.close(descriptor)


log = logging.getLogger(__name__)
SERVICE_FOLDER: Final = Path("/run/gpudeck-agent")
"""RuntimeDirectory= of gpudeck-agent.service."""
_PATTERN: Final = "agent-*"


class AgentHub(Struct, frozen=True):
    """The hub of a running agent, or several separated by commas. `is_trusted`: root, a service or this user
    runs it; else user number `uid`."""

    url: str
    uid: int
    is_trusted: bool


@contextlib.contextmanager
def announcing(hub: str) -> Iterator[None]:
    """While this lasts, other processes of the machine find out that its agent reports to that hub, or those hubs."""
    descriptor, file = None, None
    try:
        service = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
        folder = Path(service) if service else lock_folder()
        file = folder / f"agent-{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            # Of a process that had the same number.
            file.unlink()
        # A URL may hold a name and a password, which are the agent's alone.
        parts = map(urlsplit, split_hubs(hub))
        shown = ",".join(part._replace(netloc=part.netloc.rpartition("@")[2]).geturl() for part in parts)
        descriptor = make_locked(file, shown.encode())
    except (OSError, GpudeckError) as error:
        log.warning("`gpudeck wait` on this machine cannot find the hub of this agent: %s", error)
    try:
        yield
    finally:
        if file is not None and descriptor is not None:
            with contextlib.suppress(OSError):
                file.unlink()
            os.close(descriptor)


def find_agent_hubs() -> list[AgentHub]:
    """The hubs that running agents of this machine report to, trusted ones first. Empty where none runs."""
    named = os.environ.get(VARIABLE)
    folders = [*([] if named else [SERVICE_FOLDER]), *find_places()]
    found = [hub for folder in folders for file in sorted(folder.glob(_PATTERN)) if (hub := _read(folder, file))]
    return sorted(found, key=lambda one: not one.is_trusted)


def _read(folder: Path, file: Path) -> AgentHub | None:
    text, is_locked = look_at(file)
    if not is_locked:
        return None
    try:
        uid = file.lstat().st_uid
        url = ",".join(split_hubs(text.decode()))
    except (OSError, UnicodeDecodeError, GpudeckError):
        return None
    return AgentHub(url, uid, folder == SERVICE_FOLDER or uid in {0, os.getuid()})
