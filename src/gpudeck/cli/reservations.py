"""gpudeck reserve, reservations and release: reserve GPUs, list reservations, and give one back."""

import re
import time
from datetime import tzinfo
from typing import Any

import click

from gpudeck.cli.hub_access import ask, explain_refusal, fetch, find_owner, machine_zone, name_gpus
from gpudeck.cli.options import complete_hosts, hub_option, mig_options, read_wanted
from gpudeck.cli.terminal import show_answer
from gpudeck.client import Client, ReservationTaken
from gpudeck.client.answers import read_answer
from gpudeck.model.errors import UsageError
from gpudeck.model.reservation import ReservationList, ShownReservation
from gpudeck.model.text import clean, show_length
from gpudeck.model.times import read_moment, read_span, show_moment
from gpudeck.views.lists import render_reservations

_EXAMPLES = """\b
Examples:
  gpudeck reservations                  current and future reservations
  gpudeck reservations --mine           your own
  gpudeck reservations --format comments-json > data/comments.json
"""
_PATH = "/api/v1/reservations"
_LABEL = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4})?")
_MAX_NOTE_LENGTH = 1000


@click.command("reservations", epilog=_EXAMPLES)
@click.argument("host", required=False, shell_complete=complete_hosts)
@click.option("--mine", is_flag=True, help="Only your own.")
@click.option("--user", metavar="NAME", help="Only reservations of this user.")
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answer as JSON. Times are Unix seconds.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "comments-json"]),
    help="The output format. comments-json: current reservations as gpu-monitor's comments.json.",
)
@hub_option
def command(*, host: str | None, mine: bool, user: str | None, as_json: bool, form: str | None, hub: str) -> None:
    """List current and future reservations, in this machine's time zone. Exit code 3 if the hub does not answer."""
    if as_json and form not in {None, "json"}:
        raise UsageError(f"--json and --format {form} exclude each other.")
    listed, body = fetch(hub, ReservationList, _PATH, {"host": host, "user": user}, mine=mine)
    found, as_json = listed.reservations, as_json or form == "json"
    if form == "comments-json":
        _print_comments(found)
    elif found or as_json:
        show_answer(body, as_json, render_reservations, found, time.time(), machine_zone())
    else:
        where, who = f" on {clean(host)}" if host else "", "you" if mine else clean(user or "")
        whose = f" by {who}" if who else ""
        click.echo(f"Nothing is reserved{where}{whose}. `gpudeck reserve HOST:GPU --for 4h` reserves.")


def _print_comments(found: list[ShownReservation]) -> None:
    from gpudeck.compat.gpu_monitor_import import write_comments  # noqa: PLC0415 - the others need none

    running = [one for one in found if one.state == "running"]
    click.echo(write_comments(running), nl=False)
    if later := len(found) - len(running):
        click.echo(f"gpudeck: {later} that start later are left out: the file has no place for them.", err=True)


_RESERVE_EXAMPLES = """\b
Examples:
  gpudeck reserve gpu07:0,1 --for 4h                     two GPUs of gpu07, from now
  gpudeck reserve gpu07 --for '1d 6h' --note 'paper'     the whole host
  gpudeck reserve --gpus 2 --memory 40G --same-host --for 4h
  gpudeck reserve gpu07:0 --from 'tomorrow 9:00' --until 'tomorrow 17:00'
"""


@click.command("reserve", epilog=_RESERVE_EXAMPLES)
@click.argument("place", metavar="[HOST[:GPU,GPU]]", required=False, shell_complete=complete_hosts)
@click.option("--for", "span", metavar="SPAN", help="The duration: 4h, 1d 6h.")
@click.option("--from", "begin", metavar="TIME", help="The start: 14:00, tomorrow 9:00, +2h. [default: now]")
@click.option("--until", "end", metavar="TIME", help="The end, instead of --for; 17:00 is on the day of the start.")
@click.option("--note", metavar="TEXT", default="", help="The purpose; visible to all users.")
@click.option(
    "--gpus", metavar="N", type=click.IntRange(1, 1024), help="Reserve any N matching GPUs, of all hosts or of HOST."
)
@click.option("--memory", metavar="AMOUNT", help="Only GPUs with at least this much memory, in GiB: 40G.")
@click.option("--model", metavar="TEXT", help="Only GPUs whose model name contains TEXT: H100.")
@click.option("--same-host", is_flag=True, help="All GPUs on one host.")
@mig_options
@click.option("--user", metavar="NAME", help="Reserve for another user; admins only.")
@click.option("--json", "as_json", is_flag=True, help="Print the reservation as JSON.")
@hub_option
def reserve_command(**options: Any) -> None:
    """Reserve GPUs: HOST means all GPUs of that host, HOST:0,2 two of them. Without HOST, --gpus N chooses N GPUs.

    Times are in the time zone of this machine. If the GPUs are already reserved, the conflicting reservation and the
    next free time are printed and the exit code is 1. Exit code 2: the request is invalid; 3: the hub does not answer.
    """
    now, zone = time.time(), machine_zone()
    body = _read_reservation(options, now, zone)

    def reserve(client: Client) -> bytes:
        owner = find_owner(client, options["user"])
        return client.post(_PATH, body | ({} if owner is None else {"user": owner}))

    try:
        answer = ask(options["hub"], reserve)
    except ReservationTaken as error:
        raise explain_refusal(error, now, zone) from error
    made = read_answer(answer, ShownReservation, options["hub"])
    click.echo(answer if options["as_json"] else _describe_made(made, now, zone))


def _read_reservation(options: dict[str, Any], now: float, zone: tzinfo) -> dict[str, Any]:
    """The hub's question. Raises UsageError."""
    if (options["span"] is None) == (options["end"] is None):
        raise UsageError("a reservation needs either --for or --until.", "Such as --for 4h.")
    if len(options["note"]) > _MAX_NOTE_LENGTH:
        raise UsageError(f"--note has {len(options['note'])} characters.", f"The most is {_MAX_NOTE_LENGTH}.")
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
    mig, allow_mig = options["mig"], options["allow_mig"]
    read_wanted(options["gpus"] or 1, options["memory"], options["model"], None, mig=mig, allow_mig=allow_mig)
    given = {name: options[name] for name in ("memory", "model") if options[name] is not None}
    given |= {name: True for name in ("same_host", "mig", "allow_mig") if options[name]}
    if options["gpus"] is not None:
        if options["place"] is not None and ":" in options["place"]:
            raise UsageError("--gpus chooses GPUs, and HOST:GPU already names them.", "Use one of the two.")
        place = {} if options["place"] is None else {"host": options["place"]}
        return {"any": {"gpus": options["gpus"]} | given | place}
    if options["place"] is None:
        raise UsageError("no GPU is named.", "Give HOST, HOST:0,1, or --gpus 2.")
    if given:
        raise UsageError("--memory, --model, --same-host, --mig and --allow-mig need --gpus.", "Add --gpus N.")
    host, _, labels = options["place"].partition(":")
    named = [label.strip() for label in labels.split(",") if label.strip()]
    if not host or (":" in options["place"] and not named) or not all(map(_LABEL.fullmatch, named)):
        raise UsageError(f"{options['place'][:80]!r} is not HOST or HOST:GPU,GPU.", "Such as gpu07:0,1.")
    return {"host": host} | ({"indexes": named} if named else {})


def _describe_made(made: ShownReservation, now: float, zone: tzinfo) -> str:
    begin, end = show_moment(made.start, zone, now), show_moment(made.end, zone, now)
    length = show_length(made.end - made.start)
    return (
        f"{name_gpus(made.gpus)} for {clean(made.user)} from {begin} until {end} ({length}): "
        f"reservation {made.id}.\n`gpudeck release {made.id}` releases it."
    )


_RELEASE_EXAMPLES = """\b
Examples:
  gpudeck release 12                    the GPUs are available to others
"""


def _read_number(_context: click.Context, _parameter: click.Parameter, text: str) -> int:
    if text.isdecimal() and 0 < int(text) < 2**63:
        return int(text)
    if ":" in text:
        raise UsageError(f"{text[:80]!r} is a reservation of a scheduler.", "Change it there (Slurm: scontrol).")
    raise UsageError(f"{text[:80]!r} is not the id of a reservation.", "`gpudeck reservations` lists them.")


@click.command("release", epilog=_RELEASE_EXAMPLES)
@click.argument("number", metavar="ID", callback=_read_number)
@hub_option
def release_command(number: int, *, hub: str) -> None:
    """End reservation ID now, or cancel it if it has not started. Processes keep running.

    Exit code 1 if it does not exist, has ended, or belongs to another user.
    """
    released = ask(hub, lambda client: client.release(number))
    gpus = name_gpus(released.gpus)
    word = "cancelled" if released.state == "cancelled" else "ended"
    click.echo(f"Reservation {number} of {gpus} is {word}.")
