"""gpudeck show: the fleet or a part of it as a table, boxes, JSON, CSV or a page, once or repeatedly (`--watch`)."""

import inspect
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec import Struct

from gpudeck.cli.terminal import Screen, check_output, knows_our_signs, moves_cursor, terminal_width, wants_colour
from gpudeck.cli.words import HELP, Reading, WordsCommand, choose, complete_words, nothing_fits
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.hub_url import DEFAULT_HUB
from gpudeck.model.view import Fleet
from gpudeck.views.filter import forget_states, join
from gpudeck.views.table import in_ascii
from gpudeck.views.text import NO_HOST, render_fleet

if TYPE_CHECKING:
    from gpudeck.collectors.base import CollectorSettings

_AFTER = """\b
Environment:
  GPUDECK_HUB     the hub's address, where --hub is not given
  GPUDECK_TOKEN   what to show to a hub that wants to know who asks
  COLUMNS         how wide the table may be, where it is not the terminal
  NO_COLOR        no colours, whatever the terminal can do

\b
Exit codes:
  0  done, also when Ctrl-C ends --watch
  1  nothing fits the words; with --ssh: no host could be read
  2  wrong use, or a word that is not understood
  3  the hub does not answer

\b
Examples:
  gpudeck show                    every GPU of the fleet
  gpudeck show free h200          H200s that are free
  gpudeck show '>40G' -alice      large ones without alice; quote < and >
  gpudeck show gpu07 --detail     one host with its processes
  gpudeck show free --watch 5     what is free, again every five seconds
  gpudeck show --json | jq '.totals.free'
  gpudeck show --users            who is on which GPUs, the most memory first
  gpudeck show --csv > fleet.csv
  gpudeck show --html fleet.html  one file to mail or print, for any browser
  gpudeck show --local            this machine, without any hub
  gpudeck show --ssh gpu01,gpu02  these hosts over SSH, without any hub; gpu[01-16] names sixteen

\b
See also:
  curl HUB/?q=free+h200           the same table without gpudeck
"""
# Where gpudeck.config.find_config looks too.
_CONFIGURATIONS = ("gpudeck.yaml", "~/.config/gpudeck/gpudeck.yaml", "/etc/gpudeck/gpudeck.yaml")

Read = Callable[[], Reading]


class Look(Struct, frozen=True):
    """How the fleet is to be shown."""

    form: str
    detail: bool
    color: str
    is_by_user: bool = False
    columns: str | None = None
    refresh: int = 60


@click.command("show", cls=WordsCommand, epilog=_AFTER)
@click.argument("words", nargs=-1, metavar="[WORD…]", shell_complete=complete_words)
@click.option("--detail", is_flag=True, help="A box a host, with processes and faults.")
@click.option("--users", is_flag=True, help="A line a person: memory, processes, and where.")
@click.option("--watch", type=str, metavar="[S]", help="Again every S seconds (2) in place, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, as the API has it.")
@click.option("--csv", "as_csv", is_flag=True, help="As CSV, a line a GPU, for spreadsheets.")
@click.option("--columns", type=click.Choice(["web-gpu-monitor"]), help="With --csv: those of its load_data.csv.")
@click.option("--html", metavar="FILE", help="Into FILE, as a page that needs nothing else; - is the standard output.")
@click.option(
    "--refresh",
    metavar="S",
    type=click.IntRange(0, 86_400),
    help="With --html: the page loads itself again every S seconds (60); 0 is never.",
)
@click.option(
    "--color", type=click.Choice(["auto", "always", "never"]), default="auto", help="auto: if it is a terminal."
)
@click.option(
    "--hub", metavar="URL", envvar="GPUDECK_HUB", default=DEFAULT_HUB, show_default=True, help="The hub's address."
)
@click.option("--local", is_flag=True, help="This machine alone, without any hub.")
@click.option("--ssh", metavar="HOST,HOST", help="These hosts over SSH, without any hub: [user@]host[:port].")
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
    hub: str,
    local: bool,
    ssh: str | None,
) -> None:
    """Show the fleet, or what of it fits all WORDS. A column that the terminal has no room for is left out; no line is
    wrapped. What is unknown is a dash.

    With --ssh a host that cannot be read is shown with the reason.
    """
    if local and ssh is not None:
        raise UsageError("--local and --ssh exclude each other.")
    check_output()
    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other.")
    form = "json" if as_json else "csv" if as_csv else None
    if detail and form == "csv":
        raise UsageError("--detail and --csv exclude each other: a line is a GPU.", "--json has the processes too.")
    if users and (detail or form == "csv" or html is not None):
        raise UsageError("--users goes with --json, --watch or nothing: its lines are people, not GPUs.")
    if columns is not None and form != "csv":
        raise UsageError("--columns goes with --csv.")
    if html is not None:
        from gpudeck.cli.terminal import check_alone  # noqa: PLC0415 - few ask for it

        form = check_alone(form, detail=detail, watch=watch)
    if refresh is not None and html is None:
        raise UsageError("--refresh goes with --html.")
    look = Look(form or "text", detail, color, users, columns, 60 if refresh is None else refresh)
    read = _choose_source(hub, local=local, ssh=ssh, is_table=look.form == "text")
    if watch is not None:
        _watch(read, words, look, _read_interval(watch, look))
        return
    reading = read()
    _show_once(reading, words, look, "-" if html is None else html)
    if ssh is not None and not reading.fleet.totals.hosts_up:
        sys.exit(1)


command.help = f"{inspect.cleandoc(command.help or '')}\n\n{HELP}"


def _choose(reading: Reading, words: tuple[str, ...]) -> Reading:
    return Reading(choose(reading.fleet, words), reading.document)


def _show_once(reading: Reading, words: tuple[str, ...], look: Look, file: str) -> None:
    part = _choose(reading, words)
    is_missing = bool(words) and not part.fleet.hosts
    # Who pipes it on gets an empty list; who reads a table gets one line that says it.
    if file != "-":
        from gpudeck.cli.terminal import write_page  # noqa: PLC0415 - few ask for it

        write_page(file, _present(part, words, look))
    elif not is_missing or look.form != "text":
        _print(_present(part, words, look))
    if is_missing:
        raise nothing_fits(reading.fleet, words)


def _choose_source(hub: str, *, local: bool, ssh: str | None, is_table: bool) -> Read:
    if local:
        return _read_local
    if ssh is not None:
        return lambda: _read_ssh(ssh, is_table=is_table)
    from gpudeck.cli.hub_access import ask_fleet  # noqa: PLC0415 - a local reading needs no HTTP

    return lambda: ask_fleet(hub)


def _present(part: Reading, words: tuple[str, ...], look: Look) -> str:
    fleet = part.fleet
    if look.is_by_user:
        return _present_people(fleet, look)
    if look.form == "json":
        return f"{part.encoded(is_part=bool(words)).decode()}\n"
    if look.columns is not None:
        from gpudeck.compat.web_gpu_monitor.importer import write_load_data  # noqa: PLC0415 - few ask for it

        return write_load_data(fleet)
    if look.form == "csv":
        from gpudeck.views.csv import render_sheet  # noqa: PLC0415 - few ask for it

        return render_sheet(fleet)
    if look.form == "html":
        from gpudeck.views.static_page import render_page  # noqa: PLC0415 - few ask for it

        return render_page(fleet, look.refresh)
    empty = "Nothing fits." if words else NO_HOST
    text = render_fleet(fleet, detail=look.detail, width=terminal_width(), colour=wants_colour(look.color), empty=empty)
    return text if knows_our_signs() else in_ascii(text)


def _present_people(fleet: Fleet, look: Look) -> str:
    from gpudeck.views.people import describe_people, render_people  # noqa: PLC0415 - few ask for it

    if look.form == "json":
        return f"{msgspec.json.encode(describe_people(fleet)).decode()}\n"
    text = render_people(fleet, width=terminal_width(), colour=wants_colour(look.color))
    return text if knows_our_signs() else in_ascii(text)


def _print(text: str) -> None:
    # Colours were decided upon: click would take them out wherever it sees no terminal.
    click.echo(text, nl=False, color=True)


def _read_interval(text: str, look: Look) -> float:
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError as error:
        raise UsageError(f"--watch {text!r} is not a number of seconds.") from error
    if not 0.2 <= seconds <= 3600:
        raise UsageError("--watch has to be between 0.2 and 3600 seconds.")
    if look.form == "csv":
        raise UsageError("--watch and --csv exclude each other.", "--json gives one line a reading.")
    return seconds


def _watch(read: Read, words: tuple[str, ...], look: Look, seconds: float) -> None:
    from gpudeck.cli.terminal import Screen  # noqa: PLC0415 - one look needs none

    watching = WatchLoop(lambda: _choose(read(), words), lambda part: _present(part, words, look), seconds, words)
    is_table = look.form == "text"
    try:
        with Screen(in_place=is_table and moves_cursor(), gap="\n" if is_table else "") as screen:
            watching.run(screen, has_title=is_table)
    except KeyboardInterrupt:
        return


def _read_local() -> Reading:
    from gpudeck.app.local import read_this_machine  # noqa: PLC0415 - an answer of the hub needs no collectors

    return Reading(read_this_machine(find_collector_settings()))


def find_collector_settings() -> "CollectorSettings":
    """What the configuration says of the reading of this machine, as for its agent.

    Most machines have none: then what reads it is not even loaded, which would take longer than reading the GPUs.
    """
    is_named = bool(os.environ.get("GPUDECK_CONFIG"))
    if not is_named and not any(os.path.exists(os.path.expanduser(path)) for path in _CONFIGURATIONS):  # noqa: PTH110, PTH111
        from gpudeck.collectors.base import CollectorSettings  # noqa: PLC0415 - an answer of the hub needs none

        return CollectorSettings()
    from gpudeck.settings import load_settings  # noqa: PLC0415 - see above

    return load_settings(None)[0].agent


def _read_ssh(hosts: str, *, is_table: bool) -> Reading:
    from gpudeck.app.ssh_once import ask_password, read_over_ssh  # noqa: PLC0415 - the same
    from gpudeck.discovery.static import read_option  # noqa: PLC0415 - the same
    from gpudeck.settings import load_settings  # noqa: PLC0415 - nothing else here needs it

    settings, _ = load_settings(None)
    seen = read_over_ssh(read_option(hosts, "--ssh"), settings.ssh, ask_password)
    # A table says it by itself; who pipes JSON on looks at the standard error.
    for name, reason in {} if is_table else seen.failures.items():
        click.echo(f"gpudeck: {name}: {reason}", err=True)
    return Reading(seen.fleet)


class WatchLoop:
    """`read` gives what is shown of the fleet and blocks, `present` makes it text."""

    def __init__(
        self, read: Callable[[], Reading], present: Callable[[Reading], str], seconds: float, words: tuple[str, ...]
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
        return self._present(Reading(fleet, self._reading.document))

    def _title(self) -> str:
        clock = time.strftime("%H:%M:%S")
        if self._lost is not None:
            since = time.strftime("%H:%M:%S", time.localtime(self._read_at))
            return f"OUT OF REACH since {since}, asked again at {clock}: {self._lost.message}"
        return f"gpudeck show {join(self._words)}".rstrip() + f"   every {self._seconds:g} s   {clock}"
