"""gpudeck up: the hub."""

import gc
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from gpudeck import __version__
from gpudeck.cli.terminal import start_logging
from gpudeck.model.errors import UsageError
from gpudeck.model.hub_url import DEFAULT_HUB
from gpudeck.model.settings import Address

if TYPE_CHECKING:
    from gpudeck.app.hub import Started
    from gpudeck.app.plan import Plan
    from gpudeck.model.target import Target
    from gpudeck.settings import Settings

_EXAMPLES = """\b
Examples:
  gpudeck up                          this machine's GPUs, or a simulated fleet where there are none
  gpudeck up --ssh gpu01,gpu02        these hosts over SSH, where nothing is installed
  gpudeck up --demo 500               a simulated fleet of 500 hosts
  gpudeck up --listen 127.0.0.1:9000  another port
  gpudeck up --config gpudeck.yaml    listen for others: needs `listen:` and `read: open` in that file
"""


@click.command("up", epilog=_EXAMPLES)
@click.option("--config", type=click.Path(path_type=Path), help="The configuration file (default: see the docs).")
@click.option("--listen", metavar="HOST:PORT", help="Where to listen (default 127.0.0.1:8042).")
@click.option(
    "--demo",
    type=click.IntRange(1, 10_000),
    is_flag=False,
    flag_value=24,
    metavar="[HOSTS]",
    help="Show a simulated fleet (24 hosts).",
)
@click.option(
    "--demo-days",
    type=click.FloatRange(0, 14),
    default=14,
    show_default=True,
    envvar="GPUDECK_DEMO_DAYS",
    help="How many simulated days a demo begins with.",
)
@click.option("--ssh", metavar="HOST,HOST", help="Watch these hosts over SSH, without any agent: gpu01,gpu[02-16].")
@click.option("--ask-password", is_flag=True, help="Ask for the SSH password, for hosts that take no key.")
@click.option("--verbose", is_flag=True, help="Log more.")
def command(
    *,
    config: Path | None,
    listen: str | None,
    demo: int | None,
    demo_days: float,
    ssh: str | None,
    ask_password: bool,
    verbose: bool,
) -> None:
    """Start the hub and print the page's address. It watches this machine too if it has GPUs."""
    start_logging(verbose)
    # Loading the hub makes hundreds of thousands of objects, all of which stay: looking through them is in vain.
    gc.disable()
    try:
        from gpudeck.app.hub import HubServer, run_hub  # noqa: PLC0415 - the hub may not be installed
        from gpudeck.app.plan import make_plan  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            f"the hub's parts are not installed ({error.name}).",
            "Install gpudeck with its hub extra: pip install '<where gpudeck came from>[hub]'.",
        ) from error
    from gpudeck.collectors.machine import has_gpus  # noqa: PLC0415

    settings, file = _load(config, listen)
    targets = _read_ssh(ssh, demo)
    plan = msgspec.structs.replace(make_plan(settings, demo, has_gpus, ssh_hosts=len(targets)), demo_days=demo_days)
    password = _ask_password() if ask_password else None
    opened = HubServer.open(
        settings, plan, file, targets=targets, ssh_password=password, reread=lambda: _load(config, listen)[0]
    )
    run_hub(opened, _greet)


def _load(config: Path | None, listen: str | None) -> "tuple[Settings, Path | None]":
    """The settings, and the file they come from; `listen` counts before what that says. Raises UsageError."""
    from gpudeck.config import parse_address  # noqa: PLC0415
    from gpudeck.settings import exposure_problem, load_settings  # noqa: PLC0415

    settings, file = load_settings(config)
    if listen is None:
        return settings, file
    try:
        address = Address(*parse_address(listen))
    except ValueError as error:
        raise UsageError(f"--listen: {error}.") from error
    problem = exposure_problem(address, settings.read, _file_to_edit(file))
    if problem is not None:
        raise UsageError(f"--listen: {problem}.")
    return msgspec.structs.replace(settings, listen=address), file


def _read_ssh(ssh: str | None, demo: int | None) -> "list[Target]":
    if ssh is None:
        return []
    if demo is not None:
        raise UsageError("--ssh names real hosts, and --demo shows simulated ones.", "Leave out one of the two.")
    from gpudeck.discovery.static import read_option  # noqa: PLC0415 - only here

    return read_option(ssh, "--ssh")


def _ask_password() -> str:
    typed: str = click.prompt("SSH password", hide_input=True, err=True)
    return typed


def _greet(started: "Started") -> None:
    plan = started.plan
    if plan.watch_this_machine:
        shows = f"this machine's GPUs, and {_others(plan)}"
    elif plan.demo_hosts is None:
        shows = _others(plan)
    else:
        until = "" if plan.demo_is_asked else ", until the first real host reports"
        shows = f"a simulated fleet of {plan.demo_hosts} host{'s' * (plan.demo_hosts != 1)} (demo data){until}"
    click.echo(
        f"gpudeck {__version__} shows {shows}.\n"
        f"  page      {started.url}/\n"
        f"  terminal  gpudeck show{'' if started.url == DEFAULT_HUB else f' --hub {started.url}'}\n"
        f"{_invite(started)}"
        f"{_first_admin(started)}"
        "Ctrl-C stops it."
    )


def _others(plan: "Plan") -> str:
    if plan.named_hosts is None:
        return "every host that reports"
    hosts = "host" if plan.named_hosts == 1 else "hosts"
    return f"{plan.named_hosts} {hosts} over SSH" if plan.named_hosts else "the configured hosts"


def _invite(started: "Started") -> str:
    """How another host joins. A demo that was asked for takes no real host."""
    if started.plan.demo_is_asked:
        return ""
    if started.url_elsewhere is None:
        return (
            "  add a host: others cannot reach this hub until `listen: :8042` and `read: open` (or login) are set in\n"
            f"            {_file_to_edit(started.config)}\n"
        )
    return (
        f"  add a host: copy the token file {started.token_file} there, and run\n"
        f"            gpudeck agent --hub {started.url_elsewhere} --token-file {started.token_file.name}\n"
    )


def _first_admin(started: "Started") -> str:
    """How the first account is made. The secret stands behind #: no server and no proxy writes it into a log."""
    if started.first_admin is None:
        return ""
    return (
        f"  first admin {started.first_admin}\n"
        "            (once, within an hour; or: gpudeck account add NAME --role admin)\n"
    )


def _file_to_edit(file: Path | None) -> str:
    return str(file) if file is not None else "./gpudeck.yaml (a new file)"
