"""Which hub the commands and the client use, and the saved login (`gpudeck login`).

In this order: an explicit address, $GPUDECK_HUB, the saved login, for commands `agent.hub` or `listen` of the
configuration found, the hub of this machine's agent, http://127.0.0.1:8042.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from gpudeck.model.address import DEFAULT_HUB, is_same_hub, split_hubs
from gpudeck.model.errors import UsageError

HUB_VARIABLE: Final = "GPUDECK_HUB"


class HubChoice(NamedTuple):
    """An address, or several separated by commas, and its origin: `--hub`, `$GPUDECK_HUB`, `the saved login`, …"""

    url: str
    named_by: str


class SavedLogin(Struct, frozen=True):
    """The hub and the personal token of `gpudeck login`. Times are Unix seconds."""

    hub: str
    name: str
    token: str
    expires_at: float


def find_hub(option: str | None = None, find_configured: Callable[[], HubChoice | None] | None = None) -> HubChoice:
    """The hub to use; `option` is an explicit address. Raises UsageError for an invalid address."""
    if option:
        return HubChoice(check_address(option), "--hub")
    if named := os.environ.get(HUB_VARIABLE):
        return HubChoice(check_address(named), f"${HUB_VARIABLE}")
    if (saved := load_login()) is not None:
        return HubChoice(check_address(saved.hub), "the saved login")
    if find_configured is not None and (configured := find_configured()) is not None:
        return configured
    from gpudeck.agent.lock_files import find_agent_hubs  # noqa: PLC0415 - seldom needed

    hubs = find_agent_hubs()
    if hubs and hubs[0].is_trusted:
        return HubChoice(hubs[0].url, "the agent of this machine")
    return HubChoice(DEFAULT_HUB, "default")


def check_address(text: str) -> str:
    """One address, or several separated by commas. Raises UsageError."""
    return ",".join(split_hubs(text))


def find_token(hub: str) -> str | None:
    """$GPUDECK_TOKEN, or the token of the saved login if that is for this hub: it is sent to no other one."""
    if named := os.environ.get("GPUDECK_TOKEN"):
        return named
    saved = load_login()
    return saved.token if saved is not None and is_same_hub(saved.hub, hub) else None


def login_file() -> Path:
    """Raises UsageError for a user without a home folder."""
    base = os.environ.get("XDG_CONFIG_HOME")
    try:
        return (Path(base) if base else Path.home() / ".config") / "gpudeck" / "login.json"
    except RuntimeError as error:
        raise UsageError("this user has no home folder for the login.", "Set $XDG_CONFIG_HOME.") from error


def load_login() -> SavedLogin | None:
    """None if there is none, or if it cannot be read."""
    try:
        return msgspec.json.decode(login_file().read_bytes(), type=SavedLogin)
    except (OSError, UsageError, msgspec.DecodeError):
        return None


def save_login(login: SavedLogin) -> Path:
    """Readable by this user only. Raises OSError."""
    file = login_file()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    from gpudeck.agent.token_file import replace_file  # noqa: PLC0415 - seldom needed

    replace_file(file, msgspec.json.encode(login))
    return file


def forget_login() -> None:
    with contextlib.suppress(FileNotFoundError):
        login_file().unlink()
