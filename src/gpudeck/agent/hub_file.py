"""Which hub the agent of this machine reports to: a small file for all users of the machine, locked while it runs.

`gpudeck wait` asks here, so that users do not queue on this machine alone while others queue at the hub. A service's
file is in its runtime directory, which only root can make; that of an agent that a user started is in the folder for
locks, where every user could write one: only root's and the user's own are trusted there.
"""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from gpudeck.agent.lock_files import VARIABLE, find_places, lock_folder, look_at, make_locked
from gpudeck.model.address import check_hub_url
from gpudeck.model.errors import GpudeckError

log = logging.getLogger(__name__)
SERVICE_FOLDER: Final = Path("/run/gpudeck-agent")
"""RuntimeDirectory= of gpudeck-agent.service."""
_PATTERN: Final = "agent-*"


class _HubFile(Struct, frozen=True):
    hub: str


class AgentHub(Struct, frozen=True):
    """The hub of a running agent. `is_trusted`: root, a service or this user runs it; else user number `uid`."""

    url: str
    uid: int
    is_trusted: bool


@contextlib.contextmanager
def announcing(hub: str) -> Iterator[None]:
    """While this lasts, other processes of the machine find out that its agent reports to that hub."""
    descriptor, file = None, None
    try:
        service = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
        folder = Path(service) if service else lock_folder()
        file = folder / f"agent-{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            # Of a process that had the same number.
            file.unlink()
        # A URL may hold a name and a password, which are the agent's alone.
        parts = urlsplit(check_hub_url(hub))
        url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        descriptor = make_locked(file, msgspec.json.encode(_HubFile(url)))
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
        url = check_hub_url(msgspec.json.decode(text, type=_HubFile).hub)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, GpudeckError):
        return None
    return AgentHub(url, uid, folder == SERVICE_FOLDER or uid in {0, os.getuid()})
