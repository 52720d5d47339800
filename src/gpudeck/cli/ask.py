"""gpudeck ask: a message to the owner of an idle GPU."""

from typing import Any

import click
import msgspec

from gpudeck.cli.hub_access import ask
from gpudeck.cli.options import complete_hosts, hub_option
from gpudeck.model.errors import UsageError
from gpudeck.model.text import clean

_EXAMPLES = """\b
Examples:
  gpudeck ask gpu07:3                                   do you still need it?
  gpudeck ask gpu07:3 "deadline tonight, may I have it?"
"""


@click.command("ask", epilog=_EXAMPLES)
@click.argument("place", metavar="HOST:GPU", shell_complete=complete_hosts)
@click.argument("message", required=False, default="")
@hub_option
def command(place: str, message: str, *, hub: str) -> None:
    """Ask the owner of an idle GPU whether they still need it. They get a message with your name, the GPU and how
    long it is idle, through the channel that the hub has for them.

    Exit code 2 if nobody could be asked: the GPU is not idle, or its owner has no channel or does not want to be asked.
    """
    host, _, gpu = place.partition(":")
    if not host or not gpu:
        raise UsageError(f"{place[:80]!r} is not HOST:GPU.", "Such as gpu07:3.")
    answer: dict[str, Any] = msgspec.json.decode(
        ask(hub, lambda client: client.ask_owner({"host": host, "gpu": gpu, "message": message}))
    )
    click.echo(f"Asked {clean(', '.join(answer['asked']))}.")
    for one in answer["not_asked"]:
        click.echo(f"Not asked: {clean(one['user'])} {clean(one['reason'])}.", err=True)
