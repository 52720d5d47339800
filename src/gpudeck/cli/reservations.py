"""gpudeck reservations: who has which GPUs, now and later."""

import time
from typing import TYPE_CHECKING

import click

from gpudeck.cli.request_options import complete_hosts
from gpudeck.model.errors import UsageError
from gpudeck.model.hub_url import DEFAULT_HUB
from gpudeck.model.reservation import ReservationList, ShownReservation

if TYPE_CHECKING:
    from gpudeck.client import Client

_EXAMPLES = """\b
Examples:
  gpudeck reservations                  all that count now or are planned
  gpudeck reservations --mine           mine
  gpudeck reservations gpu07            those of one host
  gpudeck reservations --json | jq '.reservations[].user'
  gpudeck reservations --format comments-json > data/comments.json
"""


@click.command("reservations", epilog=_EXAMPLES)
@click.argument("host", required=False, shell_complete=complete_hosts)
@click.option("--mine", is_flag=True, help="Only my own.")
@click.option("--user", metavar="NAME", help="Only this person's.")
@click.option("--json", "as_json", is_flag=True, help="As the hub tells them. Times are Unix seconds.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "comments-json"]),
    help="comments-json: those that run, as gpu-monitor's comments.json.",
)
@click.option(
    "--hub", metavar="URL", envvar="GPUDECK_HUB", default=DEFAULT_HUB, show_default=True, help="The hub's address."
)
def command(*, host: str | None, mine: bool, user: str | None, as_json: bool, form: str | None, hub: str) -> None:
    """What is booked now and later, in the time of this machine's zone. Exit code 3 when the hub does not answer."""
    if mine and user is not None:
        raise UsageError("--mine and --user exclude each other.")
    if as_json and form not in {None, "json"}:
        raise UsageError(f"--json and --format {form} exclude each other.")
    from gpudeck.cli.hub_access import ask, find_name  # noqa: PLC0415 - the help needs none
    from gpudeck.client.answers import read_answer  # noqa: PLC0415 - the same

    def search(client: "Client") -> bytes:
        who = find_name(client) if mine else user
        return client.reservations({name: text for name, text in (("host", host), ("user", who)) if text is not None})

    body = ask(hub, search)
    found = read_answer(body, ReservationList, hub).reservations
    if as_json or form == "json":
        click.echo(body)
    elif form == "comments-json":
        _print_comments(found)
    elif not found:
        click.echo(_describe_nothing(host, "you" if mine else user))
    else:
        _print(found)


def _describe_nothing(host: str | None, who: str | None) -> str:
    from gpudeck.model.printable import clean  # noqa: PLC0415 - most have something

    where, whose = "" if host is None else f" on {clean(host)}", "" if who is None else f" by {clean(who)}"
    return f"Nothing is booked{where}{whose}. `gpudeck reserve HOST:GPU --for 4h` books."


def _print(found: list[ShownReservation]) -> None:
    from gpudeck.cli.hub_access import machine_zone  # noqa: PLC0415 - JSON needs none
    from gpudeck.cli.terminal import terminal_width, wants_colour  # noqa: PLC0415 - the same
    from gpudeck.views.lists import render_reservations  # noqa: PLC0415 - the same

    click.echo(render_reservations(found, time.time(), machine_zone(), terminal_width(), wants_colour()), nl=False)


def _print_comments(found: list[ShownReservation]) -> None:
    from gpudeck.compat.gpu_monitor.comments import write_comments  # noqa: PLC0415 - the others need none

    running = [one for one in found if one.state == "running"]
    click.echo(write_comments(running), nl=False)
    if later := len(found) - len(running):
        click.echo(f"gpudeck: {later} planned for later cannot stand in such a file.", err=True)
