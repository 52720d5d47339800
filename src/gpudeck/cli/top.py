"""gpudeck top: the live fleet, in the whole terminal."""

import inspect
import logging
import os
import sys
from typing import TYPE_CHECKING

import click

from gpudeck.cli.options import find_collector_settings, hub_option, local_option
from gpudeck.cli.search import HELP, SearchCommand, complete_search
from gpudeck.cli.terminal import moves_cursor, supports_symbols
from gpudeck.model.errors import UsageError
from gpudeck.model.plugins import need
from gpudeck.views.filter import explain_unclear, join, parse_query

if TYPE_CHECKING:
    from gpudeck.tui.feed import Feed

_AFTER = """\b
Keys:
  ? h            all keys              q              quit
  / filter       s n search            enter esc      details and back
  f p u          fleet, processes, users
  P M T N U      sort by utilization, memory, time, host, user; I reverses, < > next column
  g              group by host, model, user, nothing
  k              end one of your own processes on this machine

\b
Exit codes:
  0  ended with q or Ctrl-C
  2  wrong usage, or a terminal that cannot show it
  3  the hub does not answer at the start; later, gpudeck top reconnects

\b
Examples:
  gpudeck top                     the fleet of your hub
  gpudeck top free h200           what matches the words; / changes them
  gpudeck top --local             this machine, without a hub
"""


@click.command("top", cls=SearchCommand, epilog=_AFTER)
@click.argument("words", nargs=-1, metavar="[WORD…]", shell_complete=complete_search)
@hub_option
@local_option
def command(words: tuple[str, ...], *, hub: str, local: bool) -> None:
    """Show the fleet live, or the part that matches all WORDS: hosts, GPUs, processes and users. Press q to quit.

    While the hub does not answer, everything is grey and unknown.
    """
    need("top", "gpudeck top")
    # Textual draws on standard error.
    if not moves_cursor() or not sys.stdin.isatty() or sys.stderr is None or not sys.stderr.isatty():
        raise UsageError(
            "gpudeck top needs a terminal that can move its cursor.", "`gpudeck show` prints the same table anywhere."
        )
    text = join(words)
    if unclear := parse_query(text).unclear:
        raise UsageError(f"{explain_unclear(unclear[0])}.", "`gpudeck top --help` lists the words.")
    # Log lines would appear in the middle of the screen.
    logging.getLogger("gpudeck").addHandler(logging.NullHandler())
    logging.getLogger("gpudeck").propagate = False
    if not os.environ.get("NO_COLOR"):
        # Textual counts an empty value, too.
        os.environ.pop("NO_COLOR", None)
    for name in ("COLUMNS", "LINES"):
        # Textual would use these instead of the terminal's real size.
        os.environ.pop(name, None)
    feed = _watch_locally() if local else _watch_hub(hub)
    first = feed.first()
    from gpudeck.collectors.host import machine_id  # noqa: PLC0415 - help and mistakes need none of these
    from gpudeck.tui.app import TopApp  # noqa: PLC0415 - Textual takes longer to load than a hub to answer

    TopApp(feed, first, words=text, own_id=machine_id(), plain=not supports_symbols()).run(mouse=False)


command.help = f"{inspect.cleandoc(command.help or '')}\n\n{HELP}"


def _watch_hub(hub: str) -> "Feed":
    from gpudeck.cli.hub_access import connect  # noqa: PLC0415 - see above
    from gpudeck.tui.feed import SILENCE, HubFeed  # noqa: PLC0415 - see above

    return HubFeed(connect(hub, SILENCE))


def _watch_locally() -> "Feed":
    from gpudeck.tui.feed import LocalFeed  # noqa: PLC0415 - the same
    from gpudeck.views.this_machine import watch_locally  # noqa: PLC0415 - a hub's answer needs no collectors

    watch = watch_locally(find_collector_settings())
    return LocalFeed(watch.read, watch.close)
