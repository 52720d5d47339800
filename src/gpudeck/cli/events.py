"""gpudeck events: what happened in the fleet."""

import sys
import time

import click
import msgspec

from gpudeck.cli.hub_access import fetch, machine_zone
from gpudeck.cli.options import hub_option, period_options, severities_from
from gpudeck.cli.period import local_zone, read_period
from gpudeck.cli.terminal import show, wants_colour
from gpudeck.model.event import KINDS, SEVERITIES, EventList
from gpudeck.model.text import propose
from gpudeck.views.lists import render_events

_EXAMPLES = """\b
Examples:
  gpudeck events                                  the last 24 hours
  gpudeck events --since 7d --host gpu07          a week of one host
  gpudeck events --severity warning               warnings and worse
"""
_MOST = 1000


@click.command("events", epilog=_EXAMPLES)
@period_options("24h")
@click.option("--host", help="Only events of this host (name or id).")
@click.option("--user", help="Only events about this user's processes.")
@click.option("--kind", help="Only these kinds, separated by commas: host_down,xid.")
@click.option("--severity", type=click.Choice(SEVERITIES), help="The lowest severity to show.")
@click.option(
    "--limit",
    type=click.IntRange(1, _MOST),
    default=200,
    show_default=True,
    help="The most events to show, newest first.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@hub_option
def command(*, since: str, until: str | None, limit: int, as_json: bool, hub: str, **wanted: str | None) -> None:
    """List what happened in the fleet, newest last: hosts down and up, lost GPUs, faults, and problems of the hub.

    Exit code 1 if there are no events, 3 if the hub does not answer.
    """
    start, end = read_period(since, until, time.time(), local_zone())
    query = wanted | {"severity": severities_from(wanted["severity"]), "start": repr(start), "limit": str(limit)}
    query |= {"end": None if until is None else repr(end)}
    found = fetch(hub, EventList, "/api/v1/events", query)[0].events[::-1]
    if as_json:
        click.echo(b"".join(msgspec.json.encode(event) + b"\n" for event in found), nl=False)
    else:
        show(render_events(found, machine_zone(), colour=wants_colour()))
    if not found:
        click.echo(f"Nothing happened.{_doubt(wanted['kind'])}", err=True)
        sys.exit(1)
    if len(found) == limit:
        click.echo(f"Only the newest {limit} events are shown. Use --limit or a shorter --since.", err=True)


def _doubt(kinds: str | None) -> str:
    """A hint for kinds that the hub itself does not use. Other kinds are allowed, because plugins may add some."""
    strange = [kind for word in (kinds or "").split(",") if (kind := word.strip()) and kind not in KINDS]
    if not strange:
        return ""
    return f" The hub itself tells of no {strange[0]!r}: {propose(strange[0], KINDS)}"
