"""gpudeck events: what happened in the fleet, and with --follow what happens."""

import contextlib
import sys
import time
from collections.abc import Mapping

import click
import msgspec

from gpudeck.cli.hub_access import fetch, machine_zone
from gpudeck.cli.options import hub_option, severities_from
from gpudeck.cli.period import local_zone, read_period
from gpudeck.cli.terminal import supports_symbols, wants_colour
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.event import KINDS, SEVERITIES, Event, EventList
from gpudeck.model.text import propose
from gpudeck.views.csv import write_events
from gpudeck.views.lists import render_day, render_event
from gpudeck.views.table import in_ascii

_EXAMPLES = """\b
Examples:
  gpudeck events                                  the last 24 hours
  gpudeck events --since 7d --host gpu07          a week of one host
  gpudeck events --severity warning --follow      warnings and worse, as they happen
  gpudeck events --kind xid --since 30d --csv > faults.csv
"""
_MOST = 1000
_FOLLOW_SECONDS = 2.0


@click.command("events", epilog=_EXAMPLES)
@click.option("--since", metavar="TIME", default="24h", show_default=True, help="The start: 12h (ago), or a date.")
@click.option("--until", metavar="TIME", help="The end. [default: now]")
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
@click.option("--follow", is_flag=True, help="Print new events as they happen, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@hub_option
def command(
    *,
    since: str,
    until: str | None,
    limit: int,
    follow: bool,
    as_json: bool,
    as_csv: bool,
    hub: str,
    **wanted: str | None,
) -> None:
    """List what happened in the fleet, newest last: hosts down and up, lost GPUs, faults, and problems of the hub.

    Exit code 1 if there are no events, 3 if the hub does not answer.
    """
    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other.")
    if follow and (as_csv or until is not None):
        raise UsageError("--follow excludes --until and --csv.")
    start, end = read_period(since, until, time.time(), local_zone())
    query = wanted | {"severity": severities_from(wanted["severity"]), "start": repr(start), "limit": str(limit)}
    found = _ask(hub, query | ({"end": repr(end)} if until is not None else {}))
    printer = _Printer("json" if as_json else "csv" if as_csv else None)
    printer.show(found[::-1])
    if follow:
        with contextlib.suppress(KeyboardInterrupt):
            _follow(hub, query, found, printer)
    elif not found:
        click.echo(f"Nothing happened.{_doubt(wanted['kind'])}", err=True)
        sys.exit(1)
    elif len(found) == limit:
        click.echo(f"Only the newest {limit} events are shown. Use --limit or a shorter --since.", err=True)


def _doubt(kinds: str | None) -> str:
    """A kind is an open word, so that none is refused; but one that the hub does not use may be a slip."""
    strange = [kind for word in (kinds or "").split(",") if (kind := word.strip()) and kind not in KINDS]
    if not strange:
        return ""
    return f" The hub itself tells of no {strange[0]!r}: {propose(strange[0], KINDS)}"


def _ask(hub: str, query: Mapping[str, str | None]) -> list[Event]:
    return fetch(hub, EventList, "/api/v1/events", query)[0].events


def _follow(hub: str, query: Mapping[str, str | None], shown: list[Event], printer: "_Printer") -> None:
    """Ask again every two seconds. Late events are shown too. A hub that goes away is
    waited for."""
    known = {event.id for event in shown}
    is_lost = False
    while True:
        time.sleep(_FOLLOW_SECONDS)
        try:
            found = _ask(hub, query)
        except UsageError:
            raise
        except GpudeckError as error:
            if not is_lost:
                click.echo(f"gpudeck: {error}", err=True)
            is_lost = True
            continue
        is_lost = False
        printer.show([event for event in found[::-1] if event.id not in known])
        known |= {event.id for event in found}


class _Printer:
    """Writes events as they come; days are written above the first of theirs."""

    def __init__(self, form: str | None) -> None:
        self._form = form
        self._colour = wants_colour()
        self._has_signs = supports_symbols()
        self._day = ""

    def show(self, events: list[Event]) -> None:
        if self._form == "csv":
            click.echo(write_events(events), nl=False)
        for event in events if self._form != "csv" else ():
            click.echo(msgspec.json.encode(event).decode() if self._form == "json" else self._text(event), color=True)
        if sys.stdout is not None:
            sys.stdout.flush()

    def _text(self, event: Event) -> str:
        zone = machine_zone()
        day = render_day(event.at, zone, colour=self._colour)
        head, self._day = ("" if day == self._day else f"{day}\n"), day
        text = head + render_event(event, zone, colour=self._colour)
        return text if self._has_signs else in_ascii(text)
