"""What a host is called: the name that its vesta sender was given, and the one that the fleet knows it by."""

import re
import secrets
from collections.abc import Callable

from gpudeck.wire import HOST_NAME

LONGEST = 128
_FLEET_NAME = re.compile(HOST_NAME)
_NOT_IN_FLEET_NAME = re.compile(r"[^A-Za-z0-9._-]+")


def make_id() -> str:
    """128 random bits in hex, without zeros in front: so the original made them."""
    return f"{secrets.randbits(128):x}"


def make_name(wanted: str, is_taken: Callable[[str], bool]) -> str | None:
    """The name under which a sender is registered that asks for `wanted`; None for what cannot be one.

    Letters of any script stay. What the original replaced becomes `_`, and so does every other sign, blanks and
    control characters among them: over those the original stumbled.
    """
    if not 0 < len(wanted) <= LONGEST:
        return None
    name = "".join(sign if _may_stay(sign) else "_" for sign in wanted)
    if not name.strip("_"):
        return None
    given = name
    while is_taken(given):
        given = f"{name}_{secrets.token_hex(4)}"
    return given


def _may_stay(sign: str) -> bool:
    if sign.isascii():
        return sign.isalnum() or sign == "_"
    return sign.isprintable() and not sign.isspace()


def fleet_name(name: str, registered_id: str) -> str:
    """The name in the fleet, which knows letters, digits, dots, dashes and underscores of ASCII alone.

    Nearly always the same one; else what is left of it with a part of the id, so that no two hosts share it.
    """
    if _FLEET_NAME.match(name):
        return name
    rest = _NOT_IN_FLEET_NAME.sub("_", name).strip("._-")
    return f"{rest or 'host'}_{registered_id[:8]}"
