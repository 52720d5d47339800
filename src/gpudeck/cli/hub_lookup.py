"""Which hub a command asks, the same for all commands, and the saved login (`gpudeck login`).

In this order: --hub, $GPUDECK_HUB, the saved login, `agent.hub` or `listen` of the configuration found, the hub that
this machine's agent reports to, http://127.0.0.1:8042.
"""

import contextlib
import os
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from gpudeck.model.address import DEFAULT_HUB, is_same_hub, split_hubs
from gpudeck.model.errors import UsageError

HUB_VARIABLE: Final = "GPUDECK_HUB"
# Where gpudeck.config.find_config looks too.
_CONFIGURATIONS: Final = ("gpudeck.yaml", "~/.config/gpudeck/gpudeck.yaml", "/etc/gpudeck/gpudeck.yaml")


class HubChoice(NamedTuple):
    """An address, or several separated by commas, and what names it: `--hub`, `$GPUDECK_HUB`, `the saved login`, …"""

    url: str
    named_by: str


class SavedLogin(Struct, frozen=True):
    """The hub and the personal token of `gpudeck login`. Times are Unix seconds."""

    hub: str
    name: str
    token: str
    expires_at: float


def find_hub(option: str | None = None) -> HubChoice:
    """The hub to ask; `option` is what --hub says. Raises UsageError for an address that makes no sense, and
    ConfigurationError for a configuration with mistakes."""
    if option:
        return HubChoice(_check(option), "--hub")
    if named := os.environ.get(HUB_VARIABLE):
        return HubChoice(_check(named), f"${HUB_VARIABLE}")
    if (saved := load_login()) is not None:
        return HubChoice(_check(saved.hub), "the saved login")
    if (configured := find_configured_hub()) is not None:
        return configured
    from gpudeck.agent.lock_files import find_agent_hubs  # noqa: PLC0415 - seldom needed

    hubs = find_agent_hubs()
    if hubs and hubs[0].is_trusted:
        return HubChoice(hubs[0].url, "the agent of this machine")
    return HubChoice(DEFAULT_HUB, "default")


def _check(text: str) -> str:
    return ",".join(split_hubs(text))


def has_configuration() -> bool:
    """Whether a configuration would be found. Most machines have none: what reads it need not be loaded there."""
    is_named = bool(os.environ.get("GPUDECK_CONFIG"))
    return is_named or any(os.path.exists(os.path.expanduser(path)) for path in _CONFIGURATIONS)  # noqa: PTH110, PTH111


def find_configured_hub() -> HubChoice | None:
    """What the configuration found says: `agent.hub`, or where the hub of this machine listens. None without a file,
    and for one that this user may not read. Raises ConfigurationError."""
    if not has_configuration():
        return None
    from gpudeck.settings import find_file, load_settings, own_address  # noqa: PLC0415 - see above

    found = find_file(None)
    if found is None or not os.access(found, os.R_OK):
        return None
    settings, file = load_settings(None)
    if settings.agent.hubs:
        return HubChoice(_check(settings.agent.hubs), f"agent.hub in {file}")
    return HubChoice(own_address(settings), f"listen in {file}")


def find_token(hub: str) -> str | None:
    """$GPUDECK_TOKEN, or the token of the saved login if that is for this hub: it goes to no other one."""
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
    """None where there is none, or it cannot be read."""
    try:
        return msgspec.json.decode(login_file().read_bytes(), type=SavedLogin)
    except (OSError, UsageError, msgspec.DecodeError):
        return None


def save_login(login: SavedLogin) -> Path:
    """For this user alone. Raises OSError."""
    file = login_file()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(msgspec.json.encode(login))
        fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)
    return file


def forget_login() -> None:
    with contextlib.suppress(FileNotFoundError):
        login_file().unlink()
