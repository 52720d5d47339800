"""gpudeck show: the fleet as a table, or as JSON."""

import os
import shutil
import sys
from typing import Any

import click
import msgspec

from gpudeck.model.errors import GpudeckError, Unreachable
from gpudeck.model.hub_url import DEFAULT_HUB, mask_password
from gpudeck.views.text import choose_hosts, render_fleet

_EXAMPLES = """\b
Examples:
  gpudeck show                    every GPU of the fleet
  gpudeck show gpu07 --detail     one host with its processes
  gpudeck show --json | jq '.totals.free'
  gpudeck show --local            this machine, without any hub
"""


@click.command("show", epilog=_EXAMPLES)
@click.argument("hosts", nargs=-1, metavar="[HOST…]")
@click.option("--detail", is_flag=True, help="Processes too.")
@click.option("--json", "as_json", is_flag=True, help="The hub's answer as JSON.")
@click.option(
    "--hub", metavar="URL", envvar="GPUDECK_HUB", default=DEFAULT_HUB, show_default=True, help="The hub's address."
)
@click.option("--local", is_flag=True, help="This machine alone, without any hub.")
def command(hosts: tuple[str, ...], *, detail: bool, as_json: bool, hub: str, local: bool) -> None:
    """Show the fleet. Exit code 1 when a named host does not exist, 3 when the hub does not answer."""
    if sys.stdout is None:
        raise GpudeckError("the standard output is closed: there is nowhere to show anything.")
    fleet = _read_local() if local else _decode(_ask(hub), mask_password(hub))
    _check_hosts(fleet, hosts)
    if as_json:
        click.echo(msgspec.json.encode(choose_hosts(fleet, hosts)))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() or "COLUMNS" in os.environ else None
    click.echo(render_fleet(fleet, hosts=hosts, detail=detail, width=width, colour=_wants_colour()), nl=False)


def _ask(hub: str) -> bytes:
    from gpudeck.client import Client  # noqa: PLC0415 - a local reading needs no HTTP

    return Client(hub).fleet()


def _read_local() -> dict[str, Any]:
    from gpudeck.app.local import read_this_machine  # noqa: PLC0415 - an answer of the hub needs no collectors
    from gpudeck.collectors.settings import CollectorSettings  # noqa: PLC0415 - the same

    fleet: dict[str, Any] = msgspec.json.decode(read_this_machine(CollectorSettings()))
    return fleet


def _decode(body: bytes, hub: str) -> dict[str, Any]:
    try:
        fleet = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise Unreachable(f"{hub} answers, but is no gpudeck hub.") from error
    if not isinstance(fleet, dict) or "hosts" not in fleet:
        raise Unreachable(f"{hub} answers, but is no gpudeck hub.")
    return fleet


def _check_hosts(fleet: dict[str, Any], names: tuple[str, ...]) -> None:
    known = {name for host in fleet["hosts"] for name in (host["name"], host["id"])}
    missing = [name for name in names if name not in known]
    if missing:
        raise GpudeckError(f"no host is called {', '.join(missing)}.", "`gpudeck show` lists the hosts.")


def _wants_colour() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
