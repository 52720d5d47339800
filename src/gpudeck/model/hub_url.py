"""A hub's address as people type it."""

import re
from urllib.parse import urlsplit

from gpudeck.model.errors import UsageError

DEFAULT_HUB = "http://127.0.0.1:8042"

_PASSWORD = re.compile(r"(?<=//)[^\s/?#]*:[^\s/?#]*@")


def check_hub_url(text: str) -> str:
    """The address without a trailing slash; raises UsageError saying what is wrong with it."""
    hint = f"Give it as {DEFAULT_HUB} or https://host/path."
    shown = repr(mask_password(text))
    try:
        parts = urlsplit(text.strip())
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError as error:
        raise UsageError(f"the hub's address {shown} is not a URL of http or https.", hint) from error
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port_is_valid:
        raise UsageError(f"the hub's address {shown} is not a URL of http or https.", hint)
    if parts.query or parts.fragment:
        raise UsageError(f"the hub's address {shown} has a part after ? or #.", hint)
    return text.strip().rstrip("/")


def mask_password(url: str) -> str:
    """The address as it may be shown: without the password it may hold, and without the name that belongs to it."""
    return _PASSWORD.sub("…@", url)


def show_url(url: str) -> str:
    """The address as it may be shown: without a password, and without its query, in which some put their tokens."""
    return mask_password(url).partition("?")[0]
