"""gpudeck hosts: which hosts a hub watches; add one, remove one, try one."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.hub_url import DEFAULT_HUB
from gpudeck.model.printable import clean

if TYPE_CHECKING:
    from gpudeck.client import Client

_EXAMPLES = """\b
Examples:
  gpudeck hosts add gpu07                     prints the line to run on gpu07
  gpudeck hosts add 'gpu[01-16]' --via ssh    sixteen hosts without any agent
  gpudeck hosts test gpu07                    what works, step by step
  gpudeck hosts list                          all hosts with their state
  gpudeck hosts remove gpu07                  forgotten, and its token taken back
  gpudeck hosts remove --token rack3 --down   all that this token brought and that are down
"""
_HUB = click.option(
    "--hub", metavar="URL", envvar="GPUDECK_HUB", default=DEFAULT_HUB, show_default=True, help="The hub's address."
)
_CONFIG = click.option("--config", type=click.Path(path_type=Path), help="The hub's configuration file.")
_WIDEST = 60
_READ = ["pull", "ssh", "scrape", "gpu-cluster-status", "gpumonitor", "gpu-monitor"]


def _complete_hosts(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from gpudeck.cli.words import complete_hosts  # noqa: PLC0415 - only shells ask

    return complete_hosts(ctx, parameter, incomplete)


@click.group("hosts", epilog=_EXAMPLES)
def command() -> None:
    """The hosts that a hub watches. What changes them is run on the hub's machine, or with its admin token in
    $GPUDECK_TOKEN."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="The hub's answer as JSON.")
@_HUB
def list_hosts(*, as_json: bool, hub: str) -> None:
    """All hosts with their way in, their state, and what is wrong."""
    from gpudeck.client import Client  # noqa: PLC0415 - the same
    from gpudeck.settings import find_own_token  # noqa: PLC0415 - the help needs none

    client = Client(hub, token=find_own_token(hub))
    body = client.hosts()
    if as_json:
        click.echo(body)
        return
    from gpudeck.model.view import HostList  # noqa: PLC0415 - JSON needs none
    from gpudeck.views.text import render_hosts  # noqa: PLC0415 - the same

    click.echo(render_hosts(client.read(body, HostList).hosts), nl=False)


@command.command("add")
@click.argument("name")
@click.option(
    "--via",
    type=click.Choice(["push", *_READ]),
    default="push",
    show_default=True,
    help="push: its own agent reports; pull: its agent listens; ssh: no agent; scrape: an exporter runs there; "
    "the others: an older monitor does.",
)
@click.option("--address", help="What to connect to, where that is not the name.")
@click.option("--port", type=click.IntRange(1, 65535), help="The port, where it is not the usual one.")
@click.option("--user", help="Who logs in (ssh).")
@click.option("--jump", metavar="HOST", help="The host through which it is reached (ssh).")
@click.option("--label", "labels", metavar="KEY=VALUE", multiple=True, help="Shown beside the name.")
@_HUB
@_CONFIG
def add_host(name: str, hub: str, config: Path | None, labels: tuple[str, ...], **reach: Any) -> None:
    """Watch NAME, or a range such as 'gpu[01-16]'. For a host that will report by itself this prints the line to run
    there, with its token: it is shown only this once."""
    from gpudeck.client import Client  # noqa: PLC0415 - the same
    from gpudeck.settings import find_own_token  # noqa: PLC0415 - the help needs none

    new = {"name": name, "labels": _parse_labels(labels)} | {key: value for key, value in reach.items() if value}
    added = Client(hub, token=find_own_token(hub, config)).add_host(new)
    if added.command is None:
        click.echo(f"{', '.join(added.names)}: watched from now on, via {added.via}.")
        click.echo(f"`gpudeck hosts test {added.names[0]}` says what works.")
        return
    click.echo(f"Run this on {name} (gpudeck has to be installed there; the token in it is shown only now):\n")
    click.echo(f"  {added.command}\n")
    if added.note:
        click.echo(f"Note: {added.note}.")


@command.command("remove")
@click.argument("name", required=False, shell_complete=_complete_hosts)
@click.option("--token", metavar="NAME-OR-ID", help="Only hosts that this agent token reported.")
@click.option("--down", is_flag=True, help="Only hosts that are down.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_HUB
@_CONFIG
def remove_host(name: str | None, *, token: str | None, down: bool, yes: bool, hub: str, config: Path | None) -> None:
    """Forget NAME, and take back its token. A host that still reports with the token of all agents comes back.

    NAME may be a pattern such as 'gpu*'. With a pattern, --token or --down all hosts that fit are removed, after a
    question."""
    from gpudeck.client import Client  # noqa: PLC0415 - the same
    from gpudeck.settings import find_own_token  # noqa: PLC0415 - the help needs none

    client = Client(hub, token=find_own_token(hub, config))
    if name is not None and token is None and not down and not set(name) & set("*?["):
        client.remove_host(name)
        click.echo(f"{name} is removed.")
        return
    query = {"name": name, "token": token, "down": "true" if down else None}
    given = {key: value for key, value in query.items() if value is not None}
    if not given:
        raise UsageError("no host is named.", "Give a NAME, a pattern, --token or --down.")
    _remove_all(client, given, yes=yes)


def _remove_all(client: "Client", query: dict[str, str], *, yes: bool) -> None:
    found = client.remove_hosts(query | {"dry_run": "true"})
    if found.kept:
        click.echo(f"{found.kept} more fit, but a configuration file or discovery names them: remove them there.")
    if not found.count:
        raise GpudeckError("no host fits.", "`gpudeck hosts list` shows all.")
    names = ", ".join(clean(name) for name in found.names)
    more = found.count - len(found.names)
    click.echo(f"{_count(found.count)}: {names}{f', … and {more} more' if more else ''}")
    if not yes:
        click.confirm(f"Remove {'it' if found.count == 1 else 'them'}?", abort=True)
    removed = client.remove_hosts(query)
    click.echo(f"{_count(removed.count)} removed.")
    if "token" in query:
        click.echo("What still reports with this token comes back: `gpudeck token revoke ID` ends that.")


def _count(number: int) -> str:
    return f"{number} host{'' if number == 1 else 's'}"


@command.command("test")
@click.argument("name", shell_complete=_complete_hosts)
@click.option("--via", type=click.Choice(_READ), help="How to reach a host that is not configured.")
@click.option("--port", type=click.IntRange(1, 65535), help="Its port, if it is not configured.")
@click.option("--user", help="Who logs in, if it is not configured.")
@_HUB
@_CONFIG
def test_host(name: str, *, via: str | None, port: int | None, user: str | None, hub: str, config: Path | None) -> None:
    """Try to read NAME as the hub would, and say step by step what works. Exit code 1 when something does not."""
    from gpudeck.app.host_test import find_target, try_host  # noqa: PLC0415 - needs the hub's parts
    from gpudeck.settings import load_settings  # noqa: PLC0415

    settings, _ = load_settings(config)
    target = find_target(settings, name, hub, via=via, port=port, user=user)
    failed: set[str] = set()
    for step in try_host(settings, target, hub):
        if not step.is_good:
            failed.add(step.name)
        click.echo(f"{'✓' if step.is_good else '✗'} {step.name:<10} {step.told}")
    if failed <= {"driver", "processes"} and failed:
        raise GpudeckError(f"{name} can be read, but not all of it.", "The step marked ✗ says what is missing.")
    if failed:
        raise GpudeckError(f"{name} cannot be read yet.", "The step marked ✗ says what to do.")


def _parse_labels(words: tuple[str, ...]) -> dict[str, str]:
    pairs = [word.partition("=") for word in words]
    if wrong := next((word for word, found, _ in pairs if not found or not word), None):
        raise UsageError(f"--label {wrong!r} is not KEY=VALUE.")
    return {key: value for key, _, value in pairs}
