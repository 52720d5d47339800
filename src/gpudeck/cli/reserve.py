"""gpudeck reserve: book GPUs, those of a host or any that fit, from now or a time, for a while."""

import re
import time
from typing import TYPE_CHECKING, Any

import click

from gpudeck.cli.request_options import complete_hosts, read_wanted
from gpudeck.model.errors import UsageError
from gpudeck.model.hub_url import DEFAULT_HUB
from gpudeck.model.reservation import ShownReservation

if TYPE_CHECKING:
    from datetime import tzinfo

    from gpudeck.client import Client

_LABEL = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4})?")
_LONGEST_NOTE = 1000

_EXAMPLES = """\b
Examples:
  gpudeck reserve gpu07:0,1 --for 4h                     two GPUs of gpu07, from now
  gpudeck reserve gpu07 --for '1d 6h' --note 'paper'     the whole host
  gpudeck reserve --gpus 2 --memory 40G --same-host --for 4h
  gpudeck reserve gpu07:0 --from 'tomorrow 9:00' --until 'tomorrow 17:00'
  gpudeck reserve gpu07:3 --for 8h                       what I use already: it is mine until then
"""


@click.command("reserve", epilog=_EXAMPLES)
@click.argument("place", metavar="[HOST[:GPU,GPU]]", required=False, shell_complete=complete_hosts)
@click.option("--for", "span", metavar="SPAN", help="For how long: 4h, 1d 6h.")
@click.option("--from", "begin", metavar="TIME", help="From when: 14:00, tomorrow 9:00, +2h. (default: now)")
@click.option("--until", "end", metavar="TIME", help="Until when, in place of --for; 17:00: the next after --from.")
@click.option("--note", metavar="TEXT", default="", help="What it is for; everybody sees it.")
@click.option("--gpus", metavar="N", type=click.IntRange(1, 1024), help="Any N GPUs that fit, in place of HOST.")
@click.option("--memory", metavar="AMOUNT", help="Each with at least so much memory: 40G, 37GiB.")
@click.option("--model", metavar="TEXT", help="Only models with this in their name: H100.")
@click.option("--same-host", is_flag=True, help="All of them on one host.")
@click.option("--user", metavar="NAME", help="For somebody else; admins can.")
@click.option("--json", "as_json", is_flag=True, help="The reservation as the hub tells it.")
@click.option(
    "--hub", metavar="URL", envvar="GPUDECK_HUB", default=DEFAULT_HUB, show_default=True, help="The hub's address."
)
def command(**options: Any) -> None:
    """Book GPUs: HOST alone is all of its GPUs, HOST:0,2 two of them; without HOST, --gpus many that fit are chosen.

    Times are those of this machine's zone. Where others have them booked, the booking is named and the next free time
    offered: exit code 1. 2 is for what cannot be, 3 for a hub that does not answer.
    """
    from gpudeck.cli.hub_access import ask, explain_refusal, find_owner, machine_zone  # noqa: PLC0415 - the help needs none
    from gpudeck.client import Taken  # noqa: PLC0415 - the same
    from gpudeck.client.answers import read_answer  # noqa: PLC0415 - the same

    now, zone = time.time(), machine_zone()
    body = _read(options, now, zone)

    def reserve(client: "Client") -> bytes:
        owner = find_owner(client, options["user"])
        return client.reserve(body | ({} if owner is None else {"user": owner}))

    try:
        answer = ask(options["hub"], reserve)
    except Taken as error:
        raise explain_refusal(error, now, zone) from error
    click.echo(
        answer if options["as_json"] else _describe(read_answer(answer, ShownReservation, options["hub"]), now, zone)
    )


def _read(options: dict[str, Any], now: float, zone: "tzinfo") -> dict[str, Any]:
    """The hub's question. Raises UsageError."""
    from gpudeck.model.moments import read_moment, read_span  # noqa: PLC0415 - the help needs none

    if (options["span"] is None) == (options["end"] is None):
        raise UsageError("a reservation needs --for or --until, and not both.", "Such as --for 4h.")
    if len(options["note"]) > _LONGEST_NOTE:
        raise UsageError(f"--note has {len(options['note'])} characters.", f"The most is {_LONGEST_NOTE}.")
    body: dict[str, Any] = _read_place(options) | {"note": options["note"]}
    if options["begin"] is not None:
        body["start"] = read_moment("--from", options["begin"], now, zone)
    if options["end"] is not None:
        body["end"] = read_moment("--until", options["end"], now, zone, start=body.get("start"))
    else:
        body["for"] = read_span("--for", options["span"])
    return body


def _read_place(options: dict[str, Any]) -> dict[str, Any]:
    # The hub reads these again; what it would say of them are a pattern's words.
    read_wanted(options["gpus"] or 1, options["memory"], options["model"], None, same_host=False)
    fitting = {
        "memory": options["memory"],
        "model": options["model"],
        "same_host": options["same_host"] or None,
    }
    given = {name: value for name, value in fitting.items() if value is not None}
    if options["gpus"] is not None:
        if options["place"] is not None and ":" in options["place"]:
            raise UsageError("--gpus chooses among GPUs, and these are named already.", "Leave one of both out.")
        place = {} if options["place"] is None else {"host": options["place"]}
        return {"any": {"gpus": options["gpus"]} | given | place}
    if options["place"] is None:
        raise UsageError("which GPUs?", "Name HOST or HOST:0,1, or say --gpus 2.")
    if given:
        raise UsageError("--memory, --model and --same-host go with --gpus.", "Say how many GPUs.")
    host, _, labels = options["place"].partition(":")
    named = [label.strip() for label in labels.split(",") if label.strip()]
    if not host or (":" in options["place"] and not named) or not all(map(_LABEL.fullmatch, named)):
        raise UsageError(f"{options['place'][:80]!r} is not HOST or HOST:GPU,GPU.", "Such as gpu07:0,1.")
    return {"host": host} | ({"indexes": named} if named else {})


def _describe(made: ShownReservation, now: float, zone: "tzinfo") -> str:
    from gpudeck.cli.hub_access import name_gpus  # noqa: PLC0415 - JSON needs none
    from gpudeck.model.moments import show_moment  # noqa: PLC0415 - the same
    from gpudeck.model.printable import clean  # noqa: PLC0415 - the same
    from gpudeck.model.quantity import show_length  # noqa: PLC0415 - the same

    begin, end = show_moment(made.start, zone, now), show_moment(made.end, zone, now)
    length = show_length(made.end - made.start)
    return (
        f"{name_gpus(made.gpus)} for {clean(made.user)} from {begin} until {end} ({length}): "
        f"reservation {made.id}.\n`gpudeck release {made.id}` gives it back."
    )
