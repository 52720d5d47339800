"""Asking a hub for its fleet, with the token of this machine where the hub wants one."""

import os

from gpudeck.client import Client, Forbidden
from gpudeck.client.answers import read_answer
from gpudeck.model.view import Fleet
from gpudeck.views.reading import Reading


def ask_fleet(hub: str) -> Reading:
    """The fleet, and its document as the hub sent it. Raises Unreachable where no hub answers."""
    try:
        body = Client(hub, token=os.environ.get("GPUDECK_TOKEN")).fleet()
    except Forbidden:
        # What finds the token of this machine's hub reads the configuration first, which most hubs do not need.
        from gpudeck.settings import find_own_token  # noqa: PLC0415

        body = Client(hub, token=find_own_token(hub)).fleet()
    return Reading(read_answer(body, Fleet, hub), body)
