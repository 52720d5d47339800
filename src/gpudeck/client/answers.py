"""A hub's answers as structs. Hubs of other versions are understood as far as they can be."""

from typing import TypeVar

import msgspec
from msgspec import Struct

from gpudeck import __version__
from gpudeck.model.address import mask_password
from gpudeck.model.errors import Unreachable

T = TypeVar("T")


class Identity(Struct, frozen=True):
    """Whom the hub takes the asker for."""

    kind: str
    name: str
    may_administer: bool
    role: str = ""
    can_log_in: bool = False


class PersonalToken(Struct, frozen=True):
    """A new token of `account`. Times are Unix seconds."""

    account: str
    secret: str
    expires_at: float


class _Versioned(Struct):
    version: str | None = None


def read_answer(body: bytes, kind: type[T], hub: str) -> T:
    """What this version does not know is left out, what the hub does not tell gets its default. `hub` is its address.
    Raises Unreachable where a value does not fit."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise explain_misfit(error, body, hub) from error


def explain_misfit(error: msgspec.DecodeError, body: bytes, hub: str) -> Unreachable:
    """Why an answer cannot be read, in one line, with both versions if the hub's is known."""
    try:
        version = msgspec.json.decode(body, type=_Versioned).version
    except msgspec.DecodeError:
        version = None
    versions = f"{'' if version is None else f'it is gpudeck {version}, and '}this is gpudeck {__version__}"
    return Unreachable(
        f"{mask_password(hub)} answers, but not as a hub of this version would: {error}; {versions}.",
        "Install the hub's version here, or this one on the hub.",
    )
