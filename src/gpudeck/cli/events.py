"""gpudeck events: what happened in the fleet, and with --follow what happens."""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from datetime import tzinfo

import click
import msgspec

from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.event import KINDS, SEVERITIES, Event
from gpudeck.model.hub_url import DEFAULT_HUB

_EXAMPLES = """\b
Examples:
  gpudeck events                                  the last 24 hours
  gpudeck events --since 7d --host gpu07          a week of one host
  gpudeck events --severity warning --follow      what is wrong, as it happens
  gpudeck events --kind xid --since 30d --csv > faults.csv
"""
_MOST = 1000
_FOLLOW_SECONDS = 2.0


@click.command("events", epilog=_EXAMPLES)
@click.option("--since", metavar="TIME", default="24h", show_default=True, help="A time ago (12h), or a date.")
@click.option("--until", metavar="TIME", help="The same. (default: now)")
@click.option("--host", help="Only this host: its name or id.")
@click.option("--user", help="Only what concerns this user's processes.")
@click.option("--kind", help="Only these kinds, with commas: host_down,xid.")
@click.option("--severity", type=click.Choice(SEVERITIES), help="Only what is at least that bad.")
@click.option("--limit", type=click.IntRange(1, _MOST), default=200, show_default=True, help="At most so many.")
@click.option("--follow", is_flag=True, help="Go on with what happens, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="One event a line, as JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="As CSV, for spreadsheets.")
@click.option(
    "--hub", metavar="URL", envvar="GPUDECK_HUB", default=DEFAULT_HUB, show_default=True, help="The hub's address."
)
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
    """What happened in the fleet, the newest last: hosts down and up, GPUs lost, faults, and what the hub met.

    Exit code 1 where nothing happened, 3 when the hub does not answer.
    """
    from gpudeck.cli.span import local_zone, read_period  # noqa: PLC0415 - the help needs none

    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other.")
    if follow and (as_csv or until is not None):
        raise UsageError("--follow has no end: it goes with neither --until nor --csv.")
    start, end = read_period(since, until, time.time(), local_zone())
    query = _query(wanted) | {"start": repr(start), "limit": str(limit)}
    ask = _asker(hub)
    found = ask(query | ({"end": repr(end)} if until is not None else {}))
    printer = _Printer("json" if as_json else "csv" if as_csv else None)
    printer.show(found[::-1])
    if follow:
        with contextlib.suppress(KeyboardInterrupt):
            _follow(ask, query, found, printer)
    elif not found:
        click.echo(f"Nothing happened.{_doubt(wanted['kind'])}", err=True)
        sys.exit(1)
    elif len(found) == limit:
        click.echo(f"At most {limit} are shown, the newest: --limit or a shorter --since changes that.", err=True)


def _doubt(kinds: str | None) -> str:
    """A kind is an open word, so that none is refused; but one that the hub does not use may be a slip."""
    strange = [kind for word in (kinds or "").split(",") if (kind := word.strip()) and kind not in KINDS]
    if not strange:
        return ""
    import difflib  # noqa: PLC0415 - needed by mistakes alone

    near = difflib.get_close_matches(strange[0], KINDS, 1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(KINDS)}."
    return f" The hub itself tells of no {strange[0]!r}: {hint}"


def _query(wanted: dict[str, str | None]) -> dict[str, str]:
    query = {name: value for name, value in wanted.items() if value is not None}
    if "severity" in query:
        query["severity"] = ",".join(SEVERITIES[SEVERITIES.index(query["severity"]) :])
    return query


Ask = Callable[[dict[str, str]], list[Event]]


class _Answer(msgspec.Struct):
    events: list[Event]


def _asker(hub: str) -> Ask:
    """The way to the hub, with the token of this machine where the hub wants one."""
    from gpudeck.client import Client, Forbidden  # noqa: PLC0415 - the help needs none
    from gpudeck.client.answers import read_answer  # noqa: PLC0415 - the same

    client = Client(hub, token=os.environ.get("GPUDECK_TOKEN"))

    def ask(query: dict[str, str]) -> list[Event]:
        nonlocal client
        try:
            body = client.events(query)
        except Forbidden:
            from gpudeck.settings import find_own_token  # noqa: PLC0415 - most hubs do not need it

            client = Client(hub, token=find_own_token(hub))
            body = client.events(query)
        return read_answer(body, _Answer, hub).events

    return ask


def _follow(ask: Ask, query: dict[str, str], shown: list[Event], printer: "_Printer") -> None:
    """Ask again every two seconds. What is told late, as it had happened before, comes too. A hub that goes away is
    waited for."""
    known = {event.id for event in shown}
    is_lost = False
    while True:
        time.sleep(_FOLLOW_SECONDS)
        try:
            found = ask(query)
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
        from gpudeck.cli.terminal import knows_our_signs, wants_colour  # noqa: PLC0415 - the help needs none

        self._form = form
        self._colour = wants_colour()
        self._has_signs = knows_our_signs()
        self._day = ""

    def show(self, events: list[Event]) -> None:
        if self._form == "csv":
            from gpudeck.views.csv import write_events  # noqa: PLC0415 - few ask for it

            click.echo(write_events(events), nl=False)
        for event in events if self._form != "csv" else ():
            click.echo(msgspec.json.encode(event).decode() if self._form == "json" else self._text(event), color=True)
        if sys.stdout is not None:
            sys.stdout.flush()

    def _text(self, event: Event) -> str:
        from gpudeck.views.lists import render_day, render_event  # noqa: PLC0415 - the help needs none
        from gpudeck.views.table import in_ascii  # noqa: PLC0415 - the same

        zone = _zone()
        day = render_day(event.at, zone, colour=self._colour)
        head, self._day = ("" if day == self._day else f"{day}\n"), day
        text = head + render_event(event, zone, colour=self._colour)
        return text if self._has_signs else in_ascii(text)


def _zone() -> tzinfo:
    from gpudeck.cli.span import local_zone  # noqa: PLC0415 - the help needs none
    from gpudeck.history.time_range import load_zone  # noqa: PLC0415 - the same

    return load_zone(local_zone())
