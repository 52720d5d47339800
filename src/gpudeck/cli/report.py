"""gpudeck report: who used how many GPU-hours, how well, and what of the period was observed."""

import os
import sys
import time

import click

from gpudeck.model.errors import GpudeckError
from gpudeck.model.hub_url import DEFAULT_HUB

_EXAMPLES = """\b
Examples:
  gpudeck report                                      everybody's last 30 days
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
    help="What a row stands for.",
)
@click.option(
    "--since",
    metavar="TIME",
    default="30d",
    show_default=True,
    help="A time ago (12h), a date (2026-10-01), today, yesterday, this-month or last-month.",
)
@click.option("--until", metavar="TIME", help="The same; of a date or a month its end. (default: now)")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="csv for spreadsheets; json as the hub answers.",
)
@click.option("--daily", is_flag=True, help="Each day by itself, in this machine's time zone.")
@click.option(
    "--hub", metavar="URL", envvar="GPUDECK_HUB", default=DEFAULT_HUB, show_default=True, help="The hub's address."
)
def command(*, by: str, since: str, until: str | None, form: str, daily: bool, hub: str) -> None:
    """Who used the GPUs: hours held, worked and held idle, peak memory, energy and cost. What is unknown is a dash.

    `yesterday` and `last-month` are whole: without --until they end where they do. Exit code 3 when the hub does not
    answer.
    """
    from gpudeck.cli.span import local_zone, read_period  # noqa: PLC0415 - the help needs none

    if sys.stdout is None:
        raise GpudeckError("the standard output is closed: there is nowhere to show anything.")
    zone = local_zone()
    start, end = read_period(since, until, time.time(), zone)
    query = {"by": by, "start": repr(start), "end": repr(end)} | ({"daily": "true", "zone": zone} if daily else {})
    _print(_ask(hub, query), form, daily=daily, zone=zone, hub=hub)


def _ask(hub: str, query: dict[str, str]) -> bytes:
    from gpudeck.client import Client, Forbidden  # noqa: PLC0415 - the help needs none

    try:
        return Client(hub, token=os.environ.get("GPUDECK_TOKEN")).usage(query)
    except Forbidden:
        # What finds the token of this machine's hub reads the configuration first, which most hubs do not need.
        from gpudeck.settings import find_own_token  # noqa: PLC0415

        return Client(hub, token=find_own_token(hub)).usage(query)


def _print(body: bytes, form: str, *, daily: bool, zone: str, hub: str) -> None:
    from gpudeck.client.answers import read_answer  # noqa: PLC0415 - the help needs none
    from gpudeck.model.usage import Usage  # noqa: PLC0415 - the same

    usage = read_answer(body, Usage, hub)
    if form == "json":
        click.echo(body)
    elif form == "csv":
        from gpudeck.history.usage import to_csv  # noqa: PLC0415 - few ask for it

        click.echo(to_csv(usage, daily=daily), nl=False)
    else:
        from gpudeck.cli.terminal import terminal_width, wants_colour  # noqa: PLC0415 - the same
        from gpudeck.history.time_range import load_zone  # noqa: PLC0415
        from gpudeck.views.usage import render_usage  # noqa: PLC0415

        click.echo(render_usage(usage, load_zone(zone), width=terminal_width(), colour=wants_colour()), nl=False)
