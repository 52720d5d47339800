"""gpudeck show: the fleet as a table, or as JSON."""

import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from gpudeck.model.errors import GpudeckError, Unreachable, UsageError
from gpudeck.model.hub_url import DEFAULT_HUB, mask_password
from gpudeck.views.text import choose_hosts, render_fleet

if TYPE_CHECKING:
    from gpudeck.collectors.settings import CollectorSettings

_EXAMPLES = """\b
Examples:
  gpudeck show                    every GPU of the fleet
  gpudeck show gpu07 --detail     one host with its processes
  gpudeck show --json | jq '.totals.free'
  gpudeck show --local            this machine, without any hub
  gpudeck show --ssh gpu01,gpu02  these hosts over SSH, without any hub; gpu[01-16] names sixteen
"""
# Where gpudeck.config.find_config looks too.
_CONFIGURATIONS = ("gpudeck.yaml", "~/.config/gpudeck/gpudeck.yaml", "/etc/gpudeck/gpudeck.yaml")


@click.command("show", epilog=_EXAMPLES)
@click.argument("hosts", nargs=-1, metavar="[HOST…]")
@click.option("--detail", is_flag=True, help="Processes too.")
@click.option("--json", "as_json", is_flag=True, help="The hub's answer as JSON.")
@click.option(
    "--hub", metavar="URL", envvar="GPUDECK_HUB", default=DEFAULT_HUB, show_default=True, help="The hub's address."
)
@click.option("--local", is_flag=True, help="This machine alone, without any hub.")
@click.option("--ssh", metavar="HOST,HOST", help="These hosts over SSH, without any hub: [user@]host[:port].")
def command(hosts: tuple[str, ...], *, detail: bool, as_json: bool, hub: str, local: bool, ssh: str | None) -> None:
    """Show the fleet. Exit code 1 when a named host does not exist, 3 when the hub does not answer.

    With --ssh a host that cannot be read is shown with the reason; the exit code is 1 when there is no other.
    """
    if local and ssh is not None:
        raise UsageError("--local and --ssh exclude each other.")
    if sys.stdout is None:
        raise GpudeckError("the standard output is closed: there is nowhere to show anything.")
    fleet = (
        _read_local()
        if local
        else _decode(_ask(hub), mask_password(hub))
        if ssh is None
        else _read_ssh(ssh, as_json=as_json)
    )
    _check_hosts(fleet, hosts)
    _print(fleet, hosts, detail=detail, as_json=as_json)
    if ssh is not None and not fleet["totals"]["hosts_up"]:
        sys.exit(1)


def _print(fleet: dict[str, Any], hosts: tuple[str, ...], *, detail: bool, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(choose_hosts(fleet, hosts)))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() or "COLUMNS" in os.environ else None
    click.echo(render_fleet(fleet, hosts=hosts, detail=detail, width=width, colour=_wants_colour()), nl=False)


def _ask(hub: str) -> bytes:
    from gpudeck.client import Client, Forbidden  # noqa: PLC0415 - a local reading needs no HTTP

    try:
        return Client(hub, token=os.environ.get("GPUDECK_TOKEN")).fleet()
    except Forbidden:
        # What finds the token of this machine's hub reads the configuration first, which most hubs do not need.
        from gpudeck.app.own_token import find_own_token  # noqa: PLC0415

        return Client(hub, token=find_own_token(hub)).fleet()


def _read_local() -> dict[str, Any]:
    from gpudeck.app.local import read_this_machine  # noqa: PLC0415 - an answer of the hub needs no collectors

    fleet: dict[str, Any] = msgspec.json.decode(read_this_machine(_find_collector_settings()))
    return fleet


def _find_collector_settings() -> "CollectorSettings":
    """What the configuration says of the reading of this machine, as for its agent.

    Most machines have none: then what reads it is not even loaded, which would take longer than reading the GPUs.
    """
    is_named = bool(os.environ.get("GPUDECK_CONFIG"))
    if not is_named and not any(os.path.exists(os.path.expanduser(path)) for path in _CONFIGURATIONS):  # noqa: PTH110, PTH111
        from gpudeck.collectors.settings import CollectorSettings  # noqa: PLC0415 - an answer of the hub needs none

        return CollectorSettings()
    from gpudeck.app.settings import load_settings  # noqa: PLC0415 - see above

    return load_settings(None)[0].agent


def _read_ssh(hosts: str, *, as_json: bool) -> dict[str, Any]:
    from gpudeck.app.settings import load_settings  # noqa: PLC0415 - nothing else here needs it
    from gpudeck.app.ssh_once import ask_password, read_over_ssh  # noqa: PLC0415 - the same
    from gpudeck.discovery.option import read_hosts  # noqa: PLC0415 - the same

    settings, _ = load_settings(None)
    seen = read_over_ssh(read_hosts(hosts, "--ssh"), settings.ssh, ask_password)
    # A table says it by itself; who pipes JSON on looks at the standard error.
    for name, reason in seen.failures.items() if as_json else ():
        click.echo(f"gpudeck: {name}: {reason}", err=True)
    fleet: dict[str, Any] = msgspec.json.decode(seen.fleet)
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
