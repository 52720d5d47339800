"""gpudeck drain and undrain: take hosts and GPUs out for maintenance, list what is drained, and end it."""

import re
import time
from datetime import tzinfo
from typing import Any

import click

from gpudeck.cli.hub_access import ask, fetch, machine_zone, name_gpus
from gpudeck.cli.options import complete_hosts, hub_option
from gpudeck.cli.terminal import show_answer
from gpudeck.client.answers import read_answer
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.reservation import MaintenanceChange, MaintenanceList, ShownMaintenance
from gpudeck.model.text import clean
from gpudeck.model.times import read_moment, read_span, show_moment
from gpudeck.views.lists import render_maintenance

_EXAMPLES = """\b
Examples:
  gpudeck drain                                         what is drained, and what is planned
  gpudeck drain gpu07 --reason "new fans"               until `gpudeck undrain gpu07`
  gpudeck drain gpu07 --until 'tomorrow 9:00' --reason "new fans"
  gpudeck drain gpu07 --from 22:00 --for 4h --reason "kernel update"
"""
_UNDRAIN_EXAMPLES = """\b
Examples:
  gpudeck undrain gpu07:3               one GPU
"""
_PATH = "/api/v1/maintenance"
_GPU = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4})?|[A-Z]+-[0-9A-Za-z/-]+")


@click.command("drain", epilog=_EXAMPLES)
@click.argument("place", metavar="[HOST[:GPU]]", required=False, shell_complete=complete_hosts)
@click.option("--reason", metavar="TEXT", help="Why; visible to all users. Required with HOST.")
@click.option("--from", "begin", metavar="TIME", help="The start: 22:00, tomorrow 9:00, +2h. [default: now]")
@click.option("--until", "end", metavar="TIME", help="The end. [default: until `gpudeck undrain`]")
@click.option("--for", "span", metavar="SPAN", help="The duration, instead of --until: 2h, 1d.")
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answer as JSON. Times are Unix seconds.")
@hub_option
def drain_command(*, place: str | None, as_json: bool, hub: str, **options: Any) -> None:
    """Drain a host, or one GPU, for maintenance: it is not free, cannot be reserved, and does not alert. Processes keep
    running. Without HOST, list what is drained or planned. For admins.

    If HOST is drained already, it gets the new end and reason. Times are in the time zone of this machine. Reservations
    within that time are kept and listed.
    """
    now, zone = time.time(), machine_zone()
    if place is None:
        _list(hub, as_json, now, zone, options)
        return
    wanted = _read(place, options, now, zone)
    body = ask(hub, lambda client: client.post(_PATH, wanted))
    click.echo(body if as_json else _describe(read_answer(body, MaintenanceChange, hub), now, zone))


@click.command("undrain", epilog=_UNDRAIN_EXAMPLES)
@click.argument("place", metavar="HOST[:GPU]", shell_complete=complete_hosts)
@hub_option
def undrain_command(place: str, *, hub: str) -> None:
    """End the maintenance of a host or GPU now; if none is running, cancel the next one that is planned. For admins."""
    host, gpu = read_place(place)
    listed = fetch(hub, MaintenanceList, _PATH)[0].maintenance
    own = [one for one in listed if host.lower() in {one.host.lower(), one.host_id.lower()}]
    fitting = [one for one in own if (one.gpu is None if gpu is None else gpu in {one.gpu, one.label})]
    ending = [one for one in fitting if one.state == "running"] or fitting[:1]
    if not ending:
        others = ", ".join(dict.fromkeys(clean(one.place) for one in own or listed[:8]))
        hint = f"In maintenance: {others}." if others else "Nothing is drained."
        raise GpudeckError(f"{clean(place)} is not drained.", hint)
    for one in ending:
        ask(hub, lambda client, number=one.id: client.delete(f"{_PATH}/{number}"))  # type: ignore[misc]
        done = "has ended" if one.state == "running" else "is cancelled"
        click.echo(f"The maintenance of {clean(one.place)} {done}: {clean(one.reason)}")


def _list(hub: str, as_json: bool, now: float, zone: tzinfo, options: dict[str, Any]) -> None:
    if given := [name for name, value in options.items() if value is not None]:
        names = {"begin": "from", "end": "until", "span": "for"}
        raise UsageError(f"--{names.get(given[0], given[0])} needs a host.", "Such as gpudeck drain gpu07.")
    listed, body = fetch(hub, MaintenanceList, _PATH)
    if listed.maintenance or as_json:
        show_answer(body, as_json, render_maintenance, listed.maintenance, now, zone)
    else:
        click.echo("Nothing is drained or planned.")


def _read(place: str, options: dict[str, Any], now: float, zone: tzinfo) -> dict[str, Any]:
    """The hub's question. Raises UsageError."""
    host, gpu = read_place(place)
    if not (options["reason"] or "").strip():
        raise UsageError("--reason is missing.", 'Say why, for everybody who finds it drained: --reason "new fans".')
    if options["end"] is not None and options["span"] is not None:
        raise UsageError("--until and --for exclude each other.")
    body: dict[str, Any] = {"host": host, "reason": options["reason"]} | ({} if gpu is None else {"gpu": gpu})
    if options["begin"] is not None:
        body["start"] = read_moment("--from", options["begin"], now, zone)
    if options["end"] is not None:
        body["end"] = read_moment("--until", options["end"], now, zone, start=body.get("start"))
    if options["span"] is not None:
        body["for"] = read_span("--for", options["span"])
    return body


def read_place(place: str) -> tuple[str, str | None]:
    """A host and perhaps a GPU of `HOST:GPU`. Raises UsageError."""
    host, colon, gpu = place.partition(":")
    if not host or (colon and not _GPU.fullmatch(gpu)):
        raise UsageError(f"{place[:80]!r} is not HOST or HOST:GPU.", "Such as gpu07, or gpu07:3.")
    return host, gpu or None


def _describe(made: MaintenanceChange, now: float, zone: tzinfo) -> str:
    one = made.maintenance
    lines = [f"{clean(one.place)} is {_describe_state(one, now, zone)}: {clean(one.reason)}"]
    for other in made.reservations[:20]:
        span = f"{show_moment(other.start, zone, now)} until {show_moment(other.end, zone, now)}"
        lines.append(
            f"! Reserved within that time: {name_gpus(other.gpus)} by {clean(other.user)}, {span} ({other.id})"
        )
    return "\n".join(lines)


def _describe_state(one: ShownMaintenance, now: float, zone: tzinfo) -> str:
    until = "until you undrain it" if one.end is None else f"until {show_moment(one.end, zone, now)}"
    return f"drained {until}" if one.state == "running" else f"drained from {show_moment(one.start, zone, now)} {until}"
