"""gpudeck watch: one notification when GPUs are free; and gpudeck ask: a message to the owner of an idle GPU."""

import time
from typing import Any

import click
import msgspec

from gpudeck.cli.hub_access import ask, fetch, find_owner
from gpudeck.cli.options import complete_hosts, hub_option, kind_options, read_wanted
from gpudeck.cli.terminal import show_answer
from gpudeck.client import Client
from gpudeck.client.answers import read_answer
from gpudeck.model.errors import UsageError
from gpudeck.model.gpu_request import WatchList, WatchView
from gpudeck.model.text import clean, show_length
from gpudeck.model.times import read_span
from gpudeck.views.lists import render_watches

_EXAMPLES = """\b
Examples:
  gpudeck watch --gpus 2 --memory 40G        notify me when two such GPUs are free
  gpudeck watch list
  gpudeck watch remove 7
"""
_PATH = "/api/v1/watches"


@click.group("watch", invoke_without_command=True, epilog=_EXAMPLES)
@click.option("--gpus", type=int, default=1, show_default=True, metavar="N", help="The number of GPUs.")
@kind_options
@click.option("--expire", default="7d", show_default=True, metavar="DURATION", help="How long to watch, at most 30d.")
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answer as JSON.")
@hub_option
@click.pass_context
def command(context: click.Context, /, *, gpus: int, expire: str, as_json: bool, hub: str, **kind: Any) -> None:
    """Get one notification when matching GPUs are free: an event, and mail or Slack if the hub's setting `users` has
    your address. This does not reserve them: `gpudeck wait` queues for GPUs, `gpudeck reserve` reserves them."""
    if context.invoked_subcommand is not None:
        return
    wanted = read_wanted(gpus, **kind)
    request = {name: value for name, value in msgspec.to_builtins(wanted).items() if value is not None}
    request["expire_seconds"] = read_span("--expire", expire, allow_plain_seconds=True)

    def add(client: Client) -> bytes:
        user = find_owner(client, None)
        return client.post(_PATH, request if user is None else request | {"user": user})

    body = ask(hub, add)
    if as_json:
        click.echo(body)
        return
    made = read_answer(body, WatchView, hub)
    ways = "by mail or Slack" if made.is_sent else "by an event only: the hub has no address for you"
    span = show_length(made.expires_at - made.created_at)
    click.echo(f"Watch {made.id}: {made.description}, for {span}. You are notified {ways}.")


@command.command("list")
@click.option("--mine", is_flag=True, help="As an admin: list only your own.")
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answer as JSON. Times are Unix seconds.")
@hub_option
def list_watches(*, mine: bool, as_json: bool, hub: str) -> None:
    """List your watches, and for a week those that have fired. Admins see everyone's."""
    listed, body = fetch(hub, WatchList, _PATH, {"mine": "true"} if mine else {})
    if listed.watches or as_json:
        show_answer(body, as_json, render_watches, listed.watches, time.time())
    else:
        click.echo("There are no watches. `gpudeck watch --gpus 2 --memory 40G` adds one.")


@command.command("remove")
@click.argument("number", type=click.IntRange(min=1), metavar="ID")
@hub_option
def remove_watch(*, number: int, hub: str) -> None:
    """Remove watch ID. Exit code 1 if there is none."""
    ask(hub, lambda client: client.delete(f"{_PATH}/{number}"))
    click.echo(f"Watch {number} is removed.")


_ASK_EXAMPLES = """\b
Examples:
  gpudeck ask gpu07:3                                   do you still need it?
  gpudeck ask gpu07:3 "deadline tonight, may I have it?"
"""


@click.command("ask", epilog=_ASK_EXAMPLES)
@click.argument("place", metavar="HOST:GPU", shell_complete=complete_hosts)
@click.argument("message", required=False, default="")
@hub_option
def ask_command(place: str, message: str, *, hub: str) -> None:
    """Ask the owner of an idle GPU whether they still need it. They get a message with your name, the GPU and how
    long it is idle, through the channel that the hub has for them.

    Exit code 2 if nobody could be asked: the GPU is not idle, or its owner has no channel or does not want to be asked.
    """
    host, _, gpu = place.partition(":")
    if not host or not gpu:
        raise UsageError(f"{place[:80]!r} is not HOST:GPU.", "Such as gpu07:3.")
    answer: dict[str, Any] = msgspec.json.decode(
        ask(hub, lambda client: client.post("/api/v1/ask", {"host": host, "gpu": gpu, "message": message}))
    )
    click.echo(f"Asked {clean(', '.join(answer['asked']))}.")
    for one in answer["not_asked"]:
        click.echo(f"Not asked: {clean(one['user'])} {clean(one['reason'])}.", err=True)
