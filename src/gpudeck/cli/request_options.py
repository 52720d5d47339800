"""Options of `gpudeck free`, `wait`, `watch` and `reserve` that say which GPUs are wanted."""

import getpass
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from gpudeck.model.errors import UsageError
from gpudeck.model.hub_url import DEFAULT_HUB
from gpudeck.model.quantity import parse_bytes
from gpudeck.model.wanted import MOST_GPUS, Wanted

_ANSWER_SECONDS = 40.0
"""Longer than a question about a place in the queue is kept open."""

T = TypeVar("T")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def complete_hosts(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """What a shell offers for the name of a host."""
    from gpudeck.cli.words import complete_hosts as complete  # noqa: PLC0415 - only shells ask

    return complete(ctx, parameter, incomplete)


_KIND = (
    click.option("--memory", metavar="AMOUNT", help="With at least so much memory: 40G (10^9 bytes), 37GiB."),
    click.option("--model", metavar="TEXT", help="Whose model has this in its name: H200."),
    click.option("--same-host", is_flag=True, help="All of them on one host."),
    click.option("--host", metavar="HOST", help="On this host.", shell_complete=complete_hosts),
)
_PLACE = (
    click.option("--hub", metavar="URL", envvar="GPUDECK_HUB", help=f"The hub's address. (default: {DEFAULT_HUB})"),
    click.option("--local", is_flag=True, help="This machine alone, without any hub."),
)


def kind_options(function: Decorated) -> Decorated:
    """--memory, --model, --same-host, --host."""
    return _add(function, _KIND)


def place_options(function: Decorated) -> Decorated:
    """--hub, None where nobody named one, and --local."""
    return _add(function, _PLACE)


def _add(function: Decorated, options: tuple[Callable[[Any], Any], ...]) -> Decorated:
    for option in reversed(options):
        function = option(function)
    return function


def read_wanted(
    gpus: int, memory: str | None, model: str | None, host: str | None, *, same_host: bool, near: str | None = None
) -> Wanted:
    """Raises UsageError."""
    if not 1 <= gpus <= MOST_GPUS:
        raise UsageError(f"--gpus has to be between 1 and {MOST_GPUS}.")
    for option, text in (("--model", model), ("--host", host)):
        if text is not None and not 1 <= len(text) <= 256:
            raise UsageError(f"{option} has to have between 1 and 256 characters.")
    try:
        least = None if memory is None else parse_bytes(memory)
    except ValueError as error:
        raise UsageError(f"--memory: {error}.") from error
    return Wanted(gpus=gpus, memory_bytes=least, model=model, same_host=same_host, host=host, near=near)


def this_user() -> str:
    """The login of whoever runs this; the number of one whom the system does not know, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def ask_hub(hub: str, question: Callable[[Any], T]) -> T:
    """What the hub answers to a `Client`, with the token of this machine where the hub wants one. Raises Unreachable
    where no hub answers, and Forbidden where it lets nobody in."""
    from gpudeck.client import Client, Forbidden  # noqa: PLC0415 - a local reading needs no HTTP

    try:
        return question(Client(hub, token=os.environ.get("GPUDECK_TOKEN"), timeout=_ANSWER_SECONDS))
    except Forbidden:
        # What finds the token of this machine's hub reads the configuration first, which most hubs do not need.
        from gpudeck.settings import find_own_token  # noqa: PLC0415

        return question(Client(hub, token=find_own_token(hub), timeout=_ANSWER_SECONDS))


def check_place(hub: str | None, *, local: bool) -> str:
    """The hub to ask. Raises UsageError where both were named on the line."""
    context = click.get_current_context(silent=True)
    source = None if context is None else context.get_parameter_source("hub")
    if local and source is click.core.ParameterSource.COMMANDLINE:
        raise UsageError("--hub and --local exclude each other.")
    return hub or DEFAULT_HUB
