"""gpudeck hosts: list, add, remove and test hosts; gpudeck wheelhouse: fetch the wheels that install agents."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from gpudeck.cli.hub_access import need_hub, open_client
from gpudeck.cli.options import complete_hosts, hub_config_option, hub_option, parse_labels
from gpudeck.client import Client
from gpudeck.client.connection import in_path
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.target import SOURCES, AddedHosts, RemovedHosts
from gpudeck.model.text import clean, show_count
from gpudeck.settings import find_data_dir, load_settings
from gpudeck.views.text import render_hosts

_EXAMPLES = """\b
Examples:
  gpudeck hosts add gpu07                     print the line that installs the agent on gpu07
  gpudeck hosts add 'gpu[30-41]' | sh         install the agent on twelve hosts over SSH
  gpudeck hosts add 'gpu[01-16]' --via ssh    sixteen hosts without an agent
  gpudeck hosts test gpu07                    test each step of reading a host
  gpudeck hosts list                          all hosts with their status
  gpudeck hosts remove gpu07                  remove a host, and revoke its token
  gpudeck hosts remove --token rack3 --down   all hosts that reported with this token and are down
"""
_WIDEST = 60
_PACKING_SECONDS = 60.0
"""The first time, the hub packs the agent, which may take long on a busy machine."""
_READ = [name for name, kind in SOURCES.items() if "address" not in kind.unused]


@click.group("hosts", epilog=_EXAMPLES)
def command() -> None:
    """List, add, remove and test the hosts of a hub. Adding and removing needs an admin: run it on the hub's machine,
    or with an admin's token in $GPUDECK_TOKEN."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answer as JSON.")
@hub_option
def list_hosts(*, as_json: bool, hub: str) -> None:
    """List all hosts with their source, status and problems."""
    client = open_client(hub)
    click.echo(client.get("/api/v1/hosts") if as_json else render_hosts(client.hosts()), nl=as_json)


@command.command("add")
@click.argument("name")
@click.option(
    "--via",
    type=click.Choice(["push", *_READ]),
    default="push",
    show_default=True,
    help="push: an agent reports to the hub; pull: the hub polls an agent; ssh: no agent; scrape: an exporter; "
    "the others: another monitor that runs there.",
)
@click.option("--address", help="The address to connect to, if it is not NAME.")
@click.option("--port", type=click.IntRange(1, 65535), help="The port, if it is not the default.")
@click.option("--user", help="The login (ssh).")
@click.option("--jump", metavar="HOST", help="The jump host (ssh).")
@click.option("--label", "labels", metavar="KEY=VALUE", multiple=True, help="A label, shown with the name.")
@hub_option
@hub_config_option
def add_host(name: str, hub: str, config: Path | None, labels: tuple[str, ...], **reach: Any) -> None:
    """Monitor NAME, or a range such as 'gpu[01-16]'. For a host with its own agent this prints the line to run there,
    which installs the agent as a service. For a range it prints a line for each host, which installs over SSH: pipe
    them into sh. The tokens in these lines are shown only once."""
    new = {"name": name, "labels": parse_labels(labels)} | {key: value for key, value in reach.items() if value}
    client = open_client(hub, config, _PACKING_SECONDS)
    added = client.read(client.post("/api/v1/hosts", new), AddedHosts)
    if added.via == "push":
        _show_command(added)
        return
    click.echo(f"{', '.join(added.names)}: added, via {added.via}.")
    click.echo(f"`gpudeck hosts test {added.names[0]}` tests it.")


def _show_command(added: AddedHosts) -> None:
    """Only the lines to run go to standard output, so that it can be piped."""
    if added.command is None:
        raise GpudeckError(f"{', '.join(added.names)}: added, but {added.note}")
    if len(added.names) == 1:
        where = f"Run this on {added.names[0]}. It installs the agent as a service. Its token is shown only now:"
    else:
        where = (
            "Run these lines, or pipe them into sh, on a machine where `ssh NAME` logs in as root, or as a user\n"
            "with passwordless sudo. They install the agent as a service. Their tokens are shown only now:"
        )
    if added.note:
        click.echo(f"Note: {added.note}.\n", err=True)
    click.echo(f"{where}\n", err=True)
    click.echo(added.command)


@command.command("remove")
@click.argument("name", required=False, shell_complete=complete_hosts)
@click.option("--token", metavar="NAME-OR-ID", help="Only hosts that this agent token reported.")
@click.option("--down", is_flag=True, help="Only hosts that are down.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@hub_option
@hub_config_option
def remove_host(name: str | None, *, token: str | None, down: bool, yes: bool, hub: str, config: Path | None) -> None:
    """Remove NAME, and revoke its token. A host that still reports with the shared agent token comes back.

    NAME may be a pattern such as 'gpu*'. With a pattern, --token or --down, all matching hosts are removed after
    confirmation."""
    client = open_client(hub, config)
    if name is not None and token is None and not down and not set(name) & set("*?["):
        client.delete(f"/api/v1/hosts/{in_path(name)}")
        click.echo(f"{name} is removed.")
        return
    query = {"name": name, "token": token, "down": "true" if down else None}
    given = {key: value for key, value in query.items() if value is not None}
    if not given:
        raise UsageError("no host is named.", "Give a NAME, a pattern, --token or --down.")
    _remove_all(client, given, yes=yes)


def _remove_all(client: Client, query: dict[str, str], *, yes: bool) -> None:
    found = client.read(client.delete("/api/v1/hosts", query | {"dry_run": "true"}), RemovedHosts)
    if found.kept:
        click.echo(f"{found.kept} more match, but come from a configuration file or discovery: remove them there.")
    if not found.count:
        raise GpudeckError("no host matches.", "`gpudeck hosts list` shows all.")
    names = ", ".join(clean(name) for name in found.names)
    more = found.count - len(found.names)
    click.echo(f"{show_count(found.count, 'host')}: {names}{f', … and {more} more' if more else ''}")
    if not yes:
        click.confirm(f"Remove {'it' if found.count == 1 else 'them'}?", abort=True)
    removed = client.read(client.delete("/api/v1/hosts", query), RemovedHosts)
    click.echo(f"{show_count(removed.count, 'host')} removed.")
    if "token" in query:
        click.echo("Hosts that still report with this token come back. `gpudeck token revoke ID` prevents that.")


@command.command("test")
@click.argument("name", shell_complete=complete_hosts)
@click.option("--via", type=click.Choice(_READ), help="The source, for a host that is not configured.")
@click.option("--port", type=click.IntRange(1, 65535), help="The port, for a host that is not configured.")
@click.option("--user", help="The login, for a host that is not configured.")
@hub_option
@hub_config_option
def test_host(name: str, *, via: str | None, port: int | None, user: str | None, hub: str, config: Path | None) -> None:
    """Read NAME as the hub would, and print each step with its result. Exit code 1 if a step fails."""
    from gpudeck.app.plan import make_poll_methods  # noqa: PLC0415 - needs the hub's parts
    from gpudeck.ops.host_test import find_target, try_host  # noqa: PLC0415 - the same

    settings, _ = load_settings(config)
    target = find_target(settings, name, hub, via=via, port=port, user=user)
    failed: set[str] = set()
    for step in try_host(target, make_poll_methods(settings), hub):
        if not step.is_good:
            failed.add(step.name)
        click.echo(f"{'✓' if step.is_good else '✗'} {step.name:<10} {step.told}")
    if failed <= {"driver", "processes"} and failed:
        raise GpudeckError(f"{name} can be read, but not all of it.", "The step marked ✗ shows what is missing.")
    if failed:
        raise GpudeckError(f"{name} cannot be read yet.", "The step marked ✗ shows what to do.")


_WHEELHOUSE_EXAMPLES = """\b
Examples:
  gpudeck wheelhouse                          for Python 3.10 to 3.14 on this architecture
  gpudeck wheelhouse --machine aarch64        for ARM servers
  gpudeck wheelhouse --from dist/wheelhouse   from a folder of `make wheelhouse`, without a package index
"""
_PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]


@click.command("wheelhouse", epilog=_WHEELHOUSE_EXAMPLES)
@click.option(
    "--python", "pythons", type=click.Choice(_PYTHONS), multiple=True, help="Fetch only for this version of Python."
)
@click.option("--machine", type=click.Choice(["x86_64", "aarch64"]), help="The architecture. [default: this machine's]")
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Take the wheels from this folder instead of a package index.",
)
@hub_config_option
def wheelhouse_command(
    *, pythons: tuple[str, ...], machine: str | None, source: Path | None, config: Path | None
) -> None:
    """Fetch the wheels from which servers install their agent (`gpudeck hosts add`). The hub serves them, so servers
    need no package index. The hub's own version of Python needs no fetch. Run this as the hub's user."""
    with need_hub("wheels are kept on the hub's machine"):
        from gpudeck.api import install  # noqa: PLC0415 - the hub may not be installed
    folder = find_data_dir(load_settings(config)[0]) / "wheelhouse"
    install.pack_installed(folder)
    where = machine or install.this_machine()[1]
    problems = {}
    for python in pythons or _PYTHONS:
        offline = [] if source is None else ["--no-index", "--find-links", str(source)]
        arguments = [*install.download_arguments(python, where, folder), *offline]
        done = subprocess.run(  # noqa: S603 - our own pip
            [sys.executable, "-m", "pip", *arguments],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            problems[python] = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
    sets = install.list_sets(folder)
    for one in sets:
        click.echo(f"Python {one.python} on {one.machine}: {len(one.wheels)} wheels")
    missing = [python for python in pythons or _PYTHONS if (python, where) not in {(one[0], one[1]) for one in sets}]
    if missing:
        reason = problems.get(missing[0], "")
        raise GpudeckError(f"no agent for Python {', '.join(missing)} on {where}: {reason}", "The others are in place.")
