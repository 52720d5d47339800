"""gpudeck top: the live fleet, in the whole terminal."""

import inspect
import logging
import os
import sys
from typing import TYPE_CHECKING

import click

from gpudeck.cli.terminal import knows_our_signs, moves_cursor
from gpudeck.cli.words import HELP, WordsCommand, complete_words
from gpudeck.model.errors import UsageError
from gpudeck.model.hub_url import DEFAULT_HUB
from gpudeck.views.filter import join, parse_query

if TYPE_CHECKING:
    from gpudeck.tui.feed import Feed

_AFTER = """\b
Keys:
  ? h            all keys              q              quit
  / filter       s n search            enter esc      details and back
  f p u          fleet, processes, people
  P M T N U      sort by utilization, memory, time, host, user; I turns around, < > the column beside
  g              group by host, model, user, nothing
  k              end a process of your own on this machine

\b
Environment:
  GPUDECK_HUB     the hub's address, where --hub is not given
  GPUDECK_TOKEN   what to show to a hub that wants to know who asks
  NO_COLOR        no colours, whatever the terminal can do

\b
Exit codes:
  0  left with q or Ctrl-C
  2  wrong use, or a terminal that cannot show it
  3  the hub does not answer; one that goes away later is waited for

\b
Examples:
  gpudeck top                     the fleet of the hub on this machine, or of $GPUDECK_HUB
  gpudeck top free h200           what fits the words; / changes them
  gpudeck top --local             this machine, without any hub
  gpudeck top --mouse             clicks choose rows and sort, the wheel scrolls
"""


@click.command("top", cls=WordsCommand, epilog=_AFTER)
@click.argument("words", nargs=-1, metavar="[WORD…]", shell_complete=complete_words)
@click.option(
    "--hub", metavar="URL", envvar="GPUDECK_HUB", default=DEFAULT_HUB, show_default=True, help="The hub's address."
)
@click.option("--local", is_flag=True, help="This machine alone, without any hub, once a second.")
@click.option("--mouse", is_flag=True, help="Take the mouse. Text is then selected with Shift held down.")
def command(words: tuple[str, ...], *, hub: str, local: bool, mouse: bool) -> None:
    """The live fleet, or what of it fits all WORDS: hosts, GPUs, processes and people, until you press q.

    When the hub goes away everything turns grey and unknown, and comes back with it.
    """
    # Textual draws on the standard error, so that the standard output may be used for results.
    if not moves_cursor() or not sys.stdin.isatty() or not sys.stderr.isatty():
        raise UsageError(
            "gpudeck top needs a terminal that can move its cursor.", "`gpudeck show` prints the same table anywhere."
        )
    text = join(words)
    if unclear := parse_query(text).unclear:
        raise UsageError(f"{unclear[0]!r} is not understood.", "`gpudeck top --help` tells the words.")
    # Whatever is logged would be written across the picture.
    logging.getLogger("gpudeck").addHandler(logging.NullHandler())
    logging.getLogger("gpudeck").propagate = False
    if not os.environ.get("NO_COLOR"):
        # Textual counts an empty one, too.
        os.environ.pop("NO_COLOR", None)
    for name in ("COLUMNS", "LINES"):
        # Textual would believe them for ever; the terminal knows its size, and tells when that changes.
        os.environ.pop(name, None)
    feed = _watch_locally() if local else _watch_hub(hub)
    first = feed.first()
    from gpudeck.collectors.host import machine_id  # noqa: PLC0415 - help and mistakes need none of these
    from gpudeck.tui.app import TopApp  # noqa: PLC0415 - Textual takes longer to load than a hub to answer

    TopApp(feed, first, words=text, own_id=machine_id(), plain=not knows_our_signs()).run(mouse=mouse)


command.help = f"{inspect.cleandoc(command.help or '')}\n\n{HELP}"


def _watch_hub(hub: str) -> "Feed":
    from gpudeck.client import Client  # noqa: PLC0415 - see above
    from gpudeck.tui.feed import SILENCE, HubFeed  # noqa: PLC0415 - see above

    def find_token() -> str | None:
        # It reads the configuration, which most hubs do not need.
        from gpudeck.settings import find_own_token  # noqa: PLC0415

        return find_own_token(hub)

    return HubFeed(Client(hub, SILENCE, token=os.environ.get("GPUDECK_TOKEN")), find_token)


def _watch_locally() -> "Feed":
    from gpudeck.app.local import watch_locally  # noqa: PLC0415 - a hub's answer needs no collectors
    from gpudeck.cli.show import find_collector_settings  # noqa: PLC0415 - the same
    from gpudeck.tui.feed import LocalFeed  # noqa: PLC0415 - the same

    watch = watch_locally(find_collector_settings())
    return LocalFeed(watch.read, watch.close)
