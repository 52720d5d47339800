"""gpudeck show: the fleet or a part of it as a table, boxes, JSON, CSV or a page, once or repeatedly (`--watch`)."""

import gc
import inspect
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec import Struct

from gpudeck.cli.options import has_configuration, hub_option, local_option
from gpudeck.cli.search import HELP, FleetDocument, SearchCommand, choose, complete_search, nothing_fits
from gpudeck.cli.terminal import (
    Screen,
    check_output,
    moves_cursor,
    supports_symbols,
    terminal_width,
    wants_colour,
    write_page,
)
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.times import read_past_moment
from gpudeck.model.view import Fleet
from gpudeck.views.filter import forget_states, join
from gpudeck.views.table import in_ascii
from gpudeck.views.text import NO_HOST, render_fleet

if TYPE_CHECKING:
    from gpudeck.collectors.base import CollectorSettings

_AFTER = """\b
Environment:
  GPUDECK_HUB     the hub's address, if --hub is not given
  GPUDECK_TOKEN   the token to send; `gpudeck login` saves one
  COLUMNS         the width of the table, if it is not written to a terminal
  NO_COLOR        turns colors off

\b
Exit codes:
  0  success, also if Ctrl-C ends --watch
  1  nothing matches; with --ssh: no host could be read
  2  wrong usage, or a word that is not understood
  3  the hub does not answer

\b
Examples:
  gpudeck show                    every GPU of the fleet
  gpudeck show free h200          H200s that are free
  gpudeck show '>40G' -alice      large GPUs without alice; quote < and >
  gpudeck show gpu07 --detail     one host with its processes
  gpudeck show free --watch 5     free GPUs, refreshed every five seconds
  gpudeck show --json | jq '.totals.free'
  gpudeck show --users            users and their GPUs, the most memory first
  gpudeck show gpu05 --at 03:12   who was on gpu05 at 03:12
  gpudeck show --csv > fleet.csv
  gpudeck show --html fleet.html  one file to mail or print
  gpudeck show --local            this machine, without a hub
  gpudeck show --ssh gpu01,gpu02  these hosts over SSH, without a hub; gpu[01-16] is sixteen

\b
See also:
  curl HUB/?q=free+h200           the same table without gpudeck
"""
Read = Callable[[], FleetDocument]


class ShowOptions(Struct, frozen=True):
    """How the fleet is to be shown."""

    form: str
    detail: bool
    color: str
    is_by_user: bool = False
    columns: str | None = None
    refresh: int = 60


@click.command("show", cls=SearchCommand, epilog=_AFTER)
@click.argument("words", nargs=-1, metavar="[WORD…]", shell_complete=complete_search)
@click.option("--detail", is_flag=True, help="Show a box for each host, with processes and faults.")
@click.option("--users", is_flag=True, help="Show a row for each user: memory, processes, and hosts.")
@click.option("--watch", type=str, metavar="[S]", help="Refresh in place every S seconds, until Ctrl-C. [default: 2]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, as the API returns it.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, with a row for each GPU.")
@click.option(
    "--columns", type=click.Choice(["web-gpu-monitor"]), help="With --csv: the columns of another monitor's file."
)
@click.option("--html", metavar="FILE", help="Write a self-contained HTML page to FILE; - is standard output.")
@click.option(
    "--refresh",
    metavar="S",
    type=click.IntRange(0, 86_400),
    help="With --html: the page reloads every S seconds; 0 means never. [default: 60]",
)
@click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    help="When to use colors; auto: in a terminal.",
)
@click.option(
    "--at",
    metavar="TIME",
    help="The fleet as it was recorded: 03:12 (the last), yesterday 17:00, 2h (ago), or 2026-11-16 09:00.",
)
@hub_option
@local_option
@click.option(
    "--ssh",
    metavar="HOST,HOST",
    is_eager=True,
    help="Read these hosts once over SSH, without a hub: [user@]host[:port].",
)
def command(
    words: tuple[str, ...],
    *,
    detail: bool,
    users: bool,
    watch: str | None,
    as_json: bool,
    as_csv: bool,
    columns: str | None,
    html: str | None,
    refresh: int | None,
    color: str,
    at: str | None,
    hub: str,
    local: bool,
    ssh: str | None,
) -> None:
    """Show the fleet, or the part that matches all WORDS. Columns that do not fit into the terminal are left out; lines
    are never wrapped. Unknown values are a dash.

    With --ssh, a host that cannot be read is shown with the reason.
    """
    if local and ssh is not None:
        raise UsageError("--local and --ssh exclude each other.")
    if at is not None and (local or ssh is not None or watch is not None):
        raise UsageError("--at can not be combined with --local, --ssh and --watch: only a hub keeps the past.")
    moment = None if at is None else _read_at(at)
    check_output()
    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other.")
    form = "json" if as_json else "csv" if as_csv else None
    if detail and form == "csv":
        raise UsageError("--detail and --csv exclude each other: a line is a GPU.", "--json has the processes too.")
    if users and (detail or form == "csv" or html is not None):
        raise UsageError("--users can only be combined with --json and --watch: its rows are users, not GPUs.")
    if columns is not None and form != "csv":
        raise UsageError("--columns needs --csv.")
    if html is not None:
        others = [f"--{form}"] if form else ["--detail"] if detail else ["--watch"] if watch else []
        if others:
            raise UsageError(f"--html and {others[0]} exclude each other: a page is of one moment, with all details.")
        form = "html"
    if refresh is not None and html is None:
        raise UsageError("--refresh needs --html.")
    look = ShowOptions(form or "text", detail, color, users, columns, 60 if refresh is None else refresh)
    read = _choose_source(hub, look, words, local=local, ssh=ssh, at=moment)
    if watch is not None:
        _watch(read, words, look, _read_interval(watch, look))
        return
    # This process ends before any of the hundred thousand objects of a large fleet is garbage.
    gc.disable()
    reading = read()
    _show_once(reading, words, look, "-" if html is None else html)
    if ssh is not None and not reading.fleet.totals.hosts_up:
        sys.exit(1)


command.help = f"{inspect.cleandoc(command.help or '')}\n\n{HELP}"


def _read_at(text: str) -> float:
    from gpudeck.cli.hub_access import machine_zone  # noqa: PLC0415 - a local reading needs no HTTP

    return read_past_moment("--at", text, time.time(), machine_zone())


def _choose(reading: FleetDocument, words: tuple[str, ...]) -> FleetDocument:
    return FleetDocument(choose(reading.fleet, words), reading.document)


def _show_once(reading: FleetDocument, words: tuple[str, ...], look: ShowOptions, file: str) -> None:
    part = _choose(reading, words)
    is_missing = bool(words) and not part.fleet.hosts
    # Who pipes it on gets an empty list; who reads a table gets one line that says it.
    if file != "-":
        write_page(file, _present(part, words, look))
    elif not is_missing or look.form != "text":
        # Colours were decided upon: click would take them out wherever it sees no terminal.
        click.echo(_present(part, words, look), nl=False, color=True)
    if is_missing:
        raise nothing_fits(reading.fleet, words)


def _choose_source(
    hub: str, look: ShowOptions, words: tuple[str, ...], *, local: bool, ssh: str | None, at: float | None
) -> Read:
    if local:
        return _read_local
    if ssh is not None:
        return lambda: _read_ssh(ssh, is_table=look.form == "text")
    from gpudeck.cli.hub_access import ask_fleet, ask_past_fleet, ask_table  # noqa: PLC0415 - a local reading needs no HTTP

    if at is not None:
        return lambda: ask_past_fleet(hub, at)
    needs_processes = look.form != "text" or look.detail or look.is_by_user
    return lambda: ask_fleet(hub) if needs_processes else ask_table(hub, words)


def _present(part: FleetDocument, words: tuple[str, ...], look: ShowOptions) -> str:
    fleet = part.fleet
    if look.is_by_user:
        return _present_users(fleet, look)
    if look.form == "json":
        return f"{part.encoded(is_part=bool(words)).decode()}\n"
    if look.columns is not None:
        from gpudeck.compat.web_gpu_monitor import write_load_data  # noqa: PLC0415 - few ask for it

        return write_load_data(fleet)
    if look.form == "csv":
        from gpudeck.views.csv import render_sheet  # noqa: PLC0415 - few ask for it

        return render_sheet(fleet)
    if look.form == "html":
        from gpudeck.views.static_page import render_page  # noqa: PLC0415 - few ask for it

        return render_page(fleet, look.refresh)
    empty = "Nothing matches." if words else NO_HOST
    text = render_fleet(
        fleet,
        detail=look.detail,
        width=terminal_width(),
        colour=wants_colour(look.color),
        empty=empty,
    )
    return text if supports_symbols() else in_ascii(text)


def _present_users(fleet: Fleet, look: ShowOptions) -> str:
    from gpudeck.views.users import describe_users, render_users  # noqa: PLC0415 - few ask for it

    if look.form == "json":
        return f"{msgspec.json.encode(describe_users(fleet)).decode()}\n"
    text = render_users(fleet, width=terminal_width(), colour=wants_colour(look.color))
    return text if supports_symbols() else in_ascii(text)


def _read_interval(text: str, look: ShowOptions) -> float:
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError as error:
        raise UsageError(f"--watch {text!r} is not a number of seconds.") from error
    if not 0.2 <= seconds <= 3600:
        raise UsageError("--watch must be between 0.2 and 3600 seconds.")
    if look.form == "csv":
        raise UsageError("--watch and --csv exclude each other.", "--json gives one line a reading.")
    return seconds


def _watch(read: Read, words: tuple[str, ...], look: ShowOptions, seconds: float) -> None:
    watching = WatchLoop(lambda: _choose(read(), words), lambda part: _present(part, words, look), seconds, words)
    is_table = look.form == "text"
    try:
        with Screen(in_place=is_table and moves_cursor(), gap="\n" if is_table else "") as screen:
            watching.run(screen, has_title=is_table)
    except KeyboardInterrupt:
        return


def _read_local() -> FleetDocument:
    from gpudeck.views.this_machine import read_this_machine  # noqa: PLC0415 - an answer of the hub needs no collectors

    return _read_once(read_this_machine(find_collector_settings()))


def find_collector_settings() -> "CollectorSettings":
    """What the configuration says of the reading of this machine, as for its agent.

    Most machines have none: then what reads it is not even loaded, which would take longer than reading the GPUs.
    """
    if not has_configuration():
        from gpudeck.collectors.base import CollectorSettings  # noqa: PLC0415 - an answer of the hub needs none

        return CollectorSettings()
    from gpudeck.settings import load_settings  # noqa: PLC0415 - see above

    return load_settings(None)[0].agent


def _read_ssh(hosts: str, *, is_table: bool) -> FleetDocument:
    from gpudeck.discovery.static import read_option  # noqa: PLC0415 - the same
    from gpudeck.settings import load_settings  # noqa: PLC0415 - nothing else here needs it
    from gpudeck.sources.registry import import_ssh  # noqa: PLC0415 - the same

    settings, _ = load_settings(None)
    ssh = import_ssh()
    seen = ssh.read_over_ssh(read_option(hosts, "--ssh"), settings.ssh, ssh.ask_password)
    # A table says it by itself; who pipes JSON on looks at the standard error.
    for name, reason in {} if is_table else seen.failures.items():
        click.echo(f"gpudeck: {name}: {reason}", err=True)
    return _read_once(seen.fleet)


def _read_once(fleet: Fleet) -> FleetDocument:
    """A single reading cannot tell since when a GPU has been in its state."""
    for host in fleet.hosts:
        for gpu in host.gpus:
            gpu.since = None
    return FleetDocument(fleet)


class WatchLoop:
    """`read` gives what is shown of the fleet and blocks, `present` makes it text."""

    def __init__(
        self,
        read: Callable[[], FleetDocument],
        present: Callable[[FleetDocument], str],
        seconds: float,
        words: tuple[str, ...],
    ) -> None:
        self._read = read
        self._present = present
        self._seconds = seconds
        self._words = words
        # What fails here fails as without `--watch`: an address may be wrong.
        self._reading, self._read_at = read(), time.time()
        self._lost: GpudeckError | None = None

    def run(self, screen: Screen, *, has_title: bool) -> None:
        """Until Ctrl-C, which raises KeyboardInterrupt here. SIGTERM leaves the terminal as it was, too."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        while True:
            if has_title or self._lost is None:
                screen.draw(f"{self._title()}\n{self._text()}" if has_title else self._text())
            screen.wait(self._seconds)
            self._read_again(is_told=not has_title)

    def _read_again(self, *, is_told: bool) -> None:
        try:
            self._reading, self._read_at, self._lost = self._read(), time.time(), None
        except UsageError:
            raise
        except GpudeckError as error:
            if is_told and self._lost is None:
                print(f"gpudeck: {error}", file=sys.stderr)
            self._lost = error

    def _text(self) -> str:
        if self._lost is None:
            return self._present(self._reading)
        fleet = forget_states(self._reading.fleet, "the hub is out of reach")
        fleet.time += time.time() - self._read_at
        return self._present(FleetDocument(fleet, self._reading.document))

    def _title(self) -> str:
        clock = time.strftime("%H:%M:%S")
        if self._lost is not None:
            since = time.strftime("%H:%M:%S", time.localtime(self._read_at))
            return f"OUT OF REACH since {since}, asked again at {clock}: {self._lost.message}"
        return f"gpudeck show {join(self._words)}".rstrip() + f"   every {self._seconds:g} s   {clock}"
