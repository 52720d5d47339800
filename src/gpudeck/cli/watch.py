"""gpudeck watch: be told once when GPUs are free."""

import time
from typing import TYPE_CHECKING

import click
import msgspec

from gpudeck.cli.request_options import kind_options, read_wanted
from gpudeck.model.errors import UsageError
from gpudeck.model.hub_url import DEFAULT_HUB
from gpudeck.model.quantity import show_length
from gpudeck.model.watch import WatchList, WatchView

if TYPE_CHECKING:
    from gpudeck.client import Client

_EXAMPLES = """\b
Examples:
  gpudeck watch --gpus 2 --memory 40G        tell me when two such GPUs are free
  gpudeck watch --gpus 8 --same-host --model H200 --expire 2d
  gpudeck watch list
  gpudeck watch remove 7

\b
See also:
  gpudeck wait                               stands in line, and starts a program
"""
_HUB = click.option(
    "--hub", metavar="URL", envvar="GPUDECK_HUB", default=DEFAULT_HUB, show_default=True, help="The hub's address."
)


@click.group("watch", invoke_without_command=True, epilog=_EXAMPLES)
@click.option("--gpus", type=int, default=1, show_default=True, metavar="N", help="How many.")
@kind_options
@click.option(
    "--expire", default="7d", show_default=True, metavar="DURATION", help="For how long it counts: at most 30d."
)
@click.option("--json", "as_json", is_flag=True, help="As the hub tells it.")
@_HUB
@click.pass_context
def command(
    context: click.Context,
    *,
    gpus: int,
    memory: str | None,
    model: str | None,
    same_host: bool,
    host: str | None,
    expire: str,
    as_json: bool,
    hub: str,
) -> None:
    """Be told once when such GPUs are free: by mail or Slack where the hub's settings know yours (`people`), and among
    the events. Nothing is held: `gpudeck wait` stands in line, `gpudeck reserve` books."""
    if context.invoked_subcommand is not None:
        return
    from gpudeck.cli.hub_access import ask, find_owner  # noqa: PLC0415 - the help needs none
    from gpudeck.client.answers import read_answer  # noqa: PLC0415 - the same

    wanted = read_wanted(gpus, memory, model, host, same_host=same_host)
    request = {name: value for name, value in msgspec.to_builtins(wanted).items() if value is not None}
    request["expire_seconds"] = _read_expire(expire)

    def add(client: "Client") -> bytes:
        user = find_owner(client, None)
        return client.add_watch(request if user is None else request | {"user": user})

    body = ask(hub, add)
    if as_json:
        click.echo(body)
        return
    made = read_answer(body, WatchView, hub)
    ways = "by mail or Slack" if made.is_sent else "among the events alone: the hub has no way to write to you"
    span = show_length(made.expires_at - made.created_at)
    click.echo(f"Watch {made.id}: {made.description}, for {span}. You are told {ways}.")


@command.command("list")
@click.option("--mine", is_flag=True, help="Of an admin: not those of others.")
@click.option("--json", "as_json", is_flag=True, help="As the hub tells them. Times are Unix seconds.")
@_HUB
def list_watches(*, mine: bool, as_json: bool, hub: str) -> None:
    """What I want to be told of, and for a week what I was told. Admins see those of all."""
    from gpudeck.cli.hub_access import ask  # noqa: PLC0415 - the help needs none
    from gpudeck.client.answers import read_answer  # noqa: PLC0415 - the same

    body = ask(hub, lambda client: client.watches({"mine": "true"} if mine else {}))
    if as_json:
        click.echo(body)
        return
    found = read_answer(body, WatchList, hub).watches
    if not found:
        click.echo("Nobody wants to be told of anything. `gpudeck watch --gpus 2 --memory 40G` asks for it.")
        return
    from gpudeck.cli.terminal import terminal_width, wants_colour  # noqa: PLC0415 - JSON needs none
    from gpudeck.views.lists import render_watches  # noqa: PLC0415 - the same

    click.echo(render_watches(found, time.time(), terminal_width(), colour=wants_colour()), nl=False)


@command.command("remove")
@click.argument("number", type=click.IntRange(min=1), metavar="ID")
@_HUB
def remove_watch(*, number: int, hub: str) -> None:
    """Forget a watch. Exit code 1 where there is none."""
    from gpudeck.cli.hub_access import ask  # noqa: PLC0415 - the help needs none

    ask(hub, lambda client: client.remove_watch(number))
    click.echo(f"Watch {number} is forgotten.")


def _read_expire(text: str) -> float:
    from gpudeck.config import parse_duration  # noqa: PLC0415 - the help needs none

    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--expire: {error}.") from error
    if not 60 <= seconds <= 30 * 86_400:
        raise UsageError("--expire has to be between 1m and 30d.")
    return seconds
