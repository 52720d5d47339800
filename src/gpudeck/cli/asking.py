"""Asking a hub for its fleet, with the token of this machine where the hub wants one."""

import os
from typing import Any

import msgspec

from gpudeck.client import Client, Forbidden
from gpudeck.model.errors import Unreachable
from gpudeck.model.hub_url import mask_password


def ask_fleet(hub: str) -> dict[str, Any]:
    """The fleet as the hub tells it (see model.view.Fleet). Raises Unreachable where no hub answers."""
    try:
        body = Client(hub, token=os.environ.get("GPUDECK_TOKEN")).fleet()
    except Forbidden:
        # What finds the token of this machine's hub reads the configuration first, which most hubs do not need.
        from gpudeck.app.own_token import find_own_token  # noqa: PLC0415

        body = Client(hub, token=find_own_token(hub)).fleet()
    return _decode(body, mask_password(hub))


def _decode(body: bytes, hub: str) -> dict[str, Any]:
    try:
        fleet = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise Unreachable(f"{hub} answers, but is no gpudeck hub.") from error
    if not isinstance(fleet, dict) or "hosts" not in fleet:
        raise Unreachable(f"{hub} answers, but is no gpudeck hub.")
    return fleet
