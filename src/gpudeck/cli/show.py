"""gpudeck show: the fleet or a part of it as a table, boxes, JSON, CSV or a page, once or repeatedly (`--watch`)."""

import contextlib
import gc
import inspect
import signal
import sys
import time
from collections.abc import Callable

import click
import msgspec
from msgspec import Struct

from gpudeck.cli.options import find_collector_settings, hub_option, local_option
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
  gpudeck show gpu05 --at 03:12   who was on gpu05 at 03:12
  gpudeck show --html fleet.html  one file to mail or print
  gpudeck show --local            this machine, without a hub
  gpudeck show --ssh gpu01,gpu02  these hosts over SSH, without a hub; gpu[01-16] is sixteen

\b
See also:
  curl HUB/?q=free+h200           the same table without gpudeck
"""
Read = Callable[[], FleetDocument]


class FleetPresenter(Struct, frozen=True):
    """The options that decide what part of the fleet is shown, and how."""

    words: tuple[str, ...]
    form: str
    detail: bool
    color: str
    is_by_user: bool
    columns: str | None
    refresh: int

    def choose(self, reading: FleetDocument) -> FleetDocument:
        return FleetDocument(choose(reading.fleet, self.words), reading.document)

    def present(self, part: FleetDocument) -> str:
        fleet = part.fleet
        if self.form == "json" and self.is_by_user:
            from gpudeck.views.users import describe_users  # noqa: PLC0415 - few ask for it

            return f"{msgspec.json.encode(describe_users(fleet)).decode()}\n"
        if self.form == "json":
            return f"{part.encoded(is_part=bool(self.words)).decode()}\n"
        if self.columns is not None:
            from gpudeck.compat.web_gpu_monitor import write_load_data  # noqa: PLC0415 - few ask for it

            return write_load_data(fleet)
        if self.form == "csv":
            from gpudeck.views.csv import render_sheet  # noqa: PLC0415 - few ask for it

            return render_sheet(fleet)
        if self.form == "html":
            from gpudeck.views.static_page import render_page  # noqa: PLC0415 - few ask for it

            return render_page(fleet, self.refresh)
        width, colour = terminal_width(), wants_colour(self.color)
        if self.is_by_user:
            from gpudeck.views.users import render_users  # noqa: PLC0415 - few ask for it

            text = render_users(fleet, width=width, colour=colour)
        else:
            empty = "Nothing matches." if self.words else NO_HOST
            text = render_fleet(fleet, detail=self.detail, width=width, colour=colour, empty=empty)
        return text if supports_symbols() else in_ascii(text)


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
    page = html is not None
    other = "--json" if as_json else "--csv" if as_csv else "--detail" if detail else "--watch" if watch else ""
    for is_wrong, message in (
        (local and ssh is not None, "--local and --ssh exclude each other."),
        (
            at is not None and (local or ssh is not None or watch is not None),
            "--at can not be combined with --local, --ssh and --watch: only a hub keeps the past.",
        ),
        (as_json and as_csv, "--json and --csv exclude each other."),
        (detail and as_csv, "--detail and --csv exclude each other: a line is a GPU. --json has the processes too."),
        (
            users and (detail or as_csv or page),
            "--users can only be combined with --json and --watch: its rows are users, not GPUs.",
        ),
        (columns is not None and not as_csv, "--columns needs --csv."),
        (page and other, f"--html and {other} exclude each other: a page is of one moment, with all details."),
        (refresh is not None and not page, "--refresh needs --html."),
        (watch is not None and as_csv, "--watch and --csv exclude each other. --json gives one line a reading."),
    ):
        if is_wrong:
            raise UsageError(message)
    moment = None if at is None else _read_at(at)
    seconds = None if watch is None else _read_interval(watch)
    check_output()
    form = "json" if as_json else "csv" if as_csv else "html" if page else "text"
    presenter = FleetPresenter(words, form, detail, color, users, columns, 60 if refresh is None else refresh)
    read = _choose_source(hub, presenter, local=local, ssh=ssh, at=moment)
    if seconds is not None:
        _watch(read, presenter, seconds)
        return
    # This process ends before garbage collection of a large fleet's objects could pay off.
    gc.disable()
    reading = read()
    _show_once(reading, presenter, html)
    if ssh is not None and not reading.fleet.totals.hosts_up:
        sys.exit(1)


command.help = f"{inspect.cleandoc(command.help or '')}\n\n{HELP}"


def _read_at(text: str) -> float:
    from gpudeck.cli.hub_access import machine_zone  # noqa: PLC0415 - a local reading needs no HTTP

    return read_past_moment("--at", text, time.time(), machine_zone())


def _read_interval(text: str) -> float:
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError as error:
        raise UsageError(f"--watch {text!r} is not a number of seconds.") from error
    if not 0.2 <= seconds <= 3600:
        raise UsageError("--watch must be between 0.2 and 3600 seconds.")
    return seconds


def _show_once(reading: FleetDocument, presenter: FleetPresenter, file: str | None) -> None:
    part = presenter.choose(reading)
    is_missing = bool(presenter.words) and not part.fleet.hosts
    # If nothing matches, JSON and CSV are empty lists, and a table is only the error.
    if file is not None and file != "-":
        write_page(file, presenter.present(part))
    elif not is_missing or presenter.form != "text":
        # Colours are decided already: click would remove them from anything but a terminal.
        click.echo(presenter.present(part), nl=False, color=True)
    if is_missing:
        raise nothing_fits(reading.fleet, presenter.words)


def _choose_source(hub: str, presenter: FleetPresenter, *, local: bool, ssh: str | None, at: float | None) -> Read:
    if local:
        return _read_local
    if ssh is not None:
        return lambda: _read_ssh(ssh, is_table=presenter.form == "text")
    from gpudeck.cli.hub_access import ask_fleet, ask_table  # noqa: PLC0415 - a local reading needs no HTTP

    if at is not None or presenter.form != "text" or presenter.detail or presenter.is_by_user:
        return lambda: ask_fleet(hub, at)
    return lambda: ask_table(hub, presenter.words)


def _read_local() -> FleetDocument:
    from gpudeck.views.this_machine import read_this_machine  # noqa: PLC0415 - an answer of the hub needs no collectors

    return _read_once(read_this_machine(find_collector_settings()))


def _read_ssh(hosts: str, *, is_table: bool) -> FleetDocument:
    from gpudeck.discovery.static import read_option  # noqa: PLC0415 - the same
    from gpudeck.settings import load_settings  # noqa: PLC0415 - nothing else here needs it
    from gpudeck.sources.registry import import_ssh  # noqa: PLC0415 - the same

    settings, _ = load_settings(None)
    ssh = import_ssh()
    seen = ssh.read_over_ssh(read_option(hosts, "--ssh"), settings.ssh, ssh.ask_password)
    # A table shows the reasons itself; for JSON and CSV they go to standard error.
    for name, reason in {} if is_table else seen.failures.items():
        click.echo(f"gpudeck: {name}: {reason}", err=True)
    return _read_once(seen.fleet)


def _read_once(fleet: Fleet) -> FleetDocument:
    """After a single reading, the start of a GPU's state is unknown."""
    for host in fleet.hosts:
        for gpu in host.gpus:
            gpu.since = None
    return FleetDocument(fleet)


def _watch(read: Read, presenter: FleetPresenter, seconds: float) -> None:
    """Refresh until Ctrl-C; SIGTERM restores the terminal, too. While the hub does not answer, a table shows every GPU
    as unknown; for JSON, standard error reports it once."""
    # A first failure, such as a wrong address, fails as without `--watch`.
    reading, read_at = read(), time.time()
    lost: GpudeckError | None = None
    is_table = presenter.form == "text"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with (
        contextlib.suppress(KeyboardInterrupt),
        Screen(in_place=is_table and moves_cursor(), gap="\n" if is_table else "") as screen,
    ):
        while True:
            if lost is None or is_table:
                title = f"{_title(presenter, seconds, read_at, lost)}\n" if is_table else ""
                seen = reading if lost is None else _forget(reading, read_at)
                screen.draw(f"{title}{presenter.present(presenter.choose(seen))}")
            screen.wait(seconds)
            try:
                reading, read_at, lost = read(), time.time(), None
            except UsageError:
                raise
            except GpudeckError as error:
                if lost is None and not is_table:
                    print(f"gpudeck: {error}", file=sys.stderr)
                lost = error


def _forget(reading: FleetDocument, read_at: float) -> FleetDocument:
    fleet = forget_states(reading.fleet, "the hub is out of reach")
    fleet.time += time.time() - read_at
    return FleetDocument(fleet, reading.document)


def _title(presenter: FleetPresenter, seconds: float, read_at: float, lost: GpudeckError | None) -> str:
    clock = time.strftime("%H:%M:%S")
    if lost is not None:
        since = time.strftime("%H:%M:%S", time.localtime(read_at))
        return f"OUT OF REACH since {since}, asked again at {clock}: {lost.message}"
    return f"gpudeck show {join(presenter.words)}".rstrip() + f"   every {seconds:g} s   {clock}"
