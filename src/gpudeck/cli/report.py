"""gpudeck report: who used how many GPU-hours, how well, and what of the period was observed."""

import time

import click

from gpudeck.cli.hub_access import ask
from gpudeck.cli.options import hub_option
from gpudeck.cli.period import local_zone, read_period
from gpudeck.cli.terminal import check_output, terminal_width, wants_colour
from gpudeck.client.answers import read_answer
from gpudeck.history.time_range import load_zone
from gpudeck.history.usage import to_csv
from gpudeck.model.view import Usage
from gpudeck.views.usage import render_usage

_EXAMPLES = """\b
Examples:
  gpudeck report                                      the last 30 days, by user
  gpudeck report --by group --since last-month        the whole of last month
  gpudeck report --since 2026-10-01 --until 2026-10-31 --format csv > october.csv
  gpudeck report --by host --since 7d --daily         day by day
  gpudeck report --format json | jq '.total.gpu_hours'
"""


@click.command("report", epilog=_EXAMPLES)
@click.option(
    "--by",
    type=click.Choice(["user", "host", "model", "group"]),
    default="user",
    show_default=True,
    help="What to group by.",
)
@click.option(
    "--since",
    metavar="TIME",
    default="30d",
    show_default=True,
    help="The start: 12h (ago), 2026-10-01, today, yesterday, this-month or last-month.",
)
@click.option("--until", metavar="TIME", help="The end; a date or a month is included. [default: now]")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="The output format; json is the hub's answer.",
)
@click.option("--daily", is_flag=True, help="Show each day separately, in the time zone of this machine.")
@hub_option
def command(*, by: str, since: str, until: str | None, form: str, daily: bool, hub: str) -> None:
    """Report who used the GPUs: GPU-hours, active and idle hours, peak memory, energy and cost.

    Unknown values are a dash. Without --until, `yesterday` and `last-month` are complete periods; all others end now.
    Exit code 3 if the hub does not answer.
    """
    check_output()
    zone = local_zone()
    start, end = read_period(since, until, time.time(), zone)
    query = {"by": by, "start": repr(start), "end": repr(end)} | ({"daily": "true", "zone": zone} if daily else {})
    _print(ask(hub, lambda client: client.usage(query)), form, daily=daily, zone=zone, hub=hub)


def _print(body: bytes, form: str, *, daily: bool, zone: str, hub: str) -> None:
    usage = read_answer(body, Usage, hub)
    if form == "json":
        click.echo(body)
    elif form == "csv":
        click.echo(to_csv(usage, daily=daily), nl=False)
    else:
        click.echo(render_usage(usage, load_zone(zone), width=terminal_width(), colour=wants_colour()), nl=False)
