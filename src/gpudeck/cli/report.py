"""gpudeck report: who used how many GPU-hours, how well, and what of the period was observed; and what was flaky."""

import time
from typing import get_args

import click

from gpudeck.cli.hub_access import ask
from gpudeck.cli.options import hub_option
from gpudeck.cli.period import local_zone, read_period
from gpudeck.cli.terminal import check_output, terminal_width, wants_colour
from gpudeck.client.answers import read_answer
from gpudeck.history.time_range import load_zone
from gpudeck.history.usage import to_csv
from gpudeck.model.errors import UsageError
from gpudeck.model.reliability import Reliability
from gpudeck.model.text import propose
from gpudeck.model.view import Usage, UsageBy
from gpudeck.views.lists import render_reliability
from gpudeck.views.usage import render_usage

_EXAMPLES = """\b
Examples:
  gpudeck report                                      the last 30 days, by user
  gpudeck report --by group --since last-month        the whole of last month
  gpudeck report --since 2026-10-01 --until 2026-10-31 --format csv > october.csv
  gpudeck report --by host --since 7d --daily         day by day
  gpudeck report --by account --since last-month      of jobs, with allocated and unused hours
  gpudeck report --by label:team                      of pods, by their label `team`
  gpudeck report --format json | jq '.total.gpu_hours'
  gpudeck report --reliability --since 90d            the flakiest GPUs, with the evidence
"""


@click.command("report", epilog=_EXAMPLES)
@click.option(
    "--by",
    metavar="NAME",
    help="What to group by: user, host, model or group; of jobs account, partition, namespace or label:NAME; with "
    "--reliability gpu or host. [default: user, with --reliability gpu]",
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
@click.option("--reliability", is_flag=True, help="Rank GPUs or hosts by faults, lost time and throttling instead.")
@click.option("--daily", is_flag=True, help="Show each day separately, in the time zone of this machine.")
@hub_option
def command(
    *, by: str | None, since: str, until: str | None, form: str, reliability: bool, daily: bool, hub: str
) -> None:
    """Report who used the GPUs: GPU-hours, active and idle hours, peak memory, energy and cost; where a scheduler gives
    GPUs to jobs also allocated hours, and those that were not used.

    Unknown values are a dash. Without --until, `yesterday` and `last-month` are complete periods; all others end now.
    Exit code 3 if the hub does not answer.
    """
    check_output()
    zone = local_zone()
    start, end = read_period(since, until, time.time(), zone)
    if reliability:
        _report_reliability(by or "gpu", start, end, form, daily=daily, zone=zone, hub=hub)
        return
    query = _read_by(by) | {"start": repr(start), "end": repr(end)}
    query |= {"daily": "true", "zone": zone} if daily else {}
    _print(ask(hub, lambda client: client.usage(query)), form, daily=daily, zone=zone, hub=hub)


def _read_by(by: str | None) -> dict[str, str]:
    name, _, label = (by or "user").partition(":")
    if name == "gpu":
        raise UsageError("--by gpu needs --reliability: usage is by user, host, model or group.")
    if name not in get_args(UsageBy) or (name == "label") != bool(label):
        hint = "Use label:NAME, such as label:team." if name == "label" else propose(name, get_args(UsageBy))
        raise UsageError(f"--by {by} is not known.", hint)
    return {"by": name} | ({"label": label} if label else {})


def _report_reliability(by: str, start: float, end: float, form: str, *, daily: bool, zone: str, hub: str) -> None:
    if by not in {"gpu", "host"}:
        raise UsageError(f"--reliability ranks by gpu or host, not by {by}.")
    if daily or form == "csv":
        raise UsageError("--reliability is available as a table or as --format json, without --daily.")
    query = {"by": by, "start": repr(start), "end": repr(end)}
    body = ask(hub, lambda client: client.reliability(query))
    found = read_answer(body, Reliability, hub)
    if form == "json":
        click.echo(body)
    else:
        text = render_reliability(found, load_zone(zone), width=terminal_width(), colour=wants_colour())
        click.echo(text, nl=False)


def _print(body: bytes, form: str, *, daily: bool, zone: str, hub: str) -> None:
    usage = read_answer(body, Usage, hub)
    if form == "json":
        click.echo(body)
    elif form == "csv":
        click.echo(to_csv(usage, daily=daily), nl=False)
    else:
        click.echo(render_usage(usage, load_zone(zone), width=terminal_width(), colour=wants_colour()), nl=False)
