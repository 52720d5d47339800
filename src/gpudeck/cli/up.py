"""gpudeck up: the hub."""

import gc
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click
import msgspec

from gpudeck import __version__
from gpudeck.cli.hub_access import need_hub
from gpudeck.cli.options import config_option, find_hub, read_address
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.logs import start_logging

if TYPE_CHECKING:
    from gpudeck.app.hub import HubStartInfo
    from gpudeck.app.plan import Plan
    from gpudeck.model.target import Target
    from gpudeck.settings import Settings

_EXAMPLES = """\b
Examples:
  gpudeck up                          the GPUs of this machine, or a simulated fleet if it has none
  gpudeck up --ssh gpu01,gpu02        these hosts over SSH, with nothing installed on them
  gpudeck up --demo 500               a simulated fleet of 500 hosts
  gpudeck up --config gpudeck.yaml    settings from this file, such as `listen` and `read`
"""


@click.command("up", epilog=_EXAMPLES)
@config_option
@click.option("--listen", metavar="HOST:PORT", help="The address to listen on. [default: 127.0.0.1:8042]")
@click.option(
    "--demo",
    type=click.IntRange(1, 10_000),
    is_flag=False,
    flag_value=24,
    metavar="[HOSTS]",
    help="Show a simulated fleet. [default: 24 hosts]",
)
@click.option(
    "--demo-days",
    type=click.FloatRange(0, 60),
    default=60,
    show_default=True,
    envvar="GPUDECK_DEMO_DAYS",
    help="How many days of simulated history a demo starts with.",
)
@click.option("--ssh", metavar="HOST,HOST", help="Monitor these hosts over SSH, without an agent: gpu01,gpu[02-16].")
@click.option("--ask-password", is_flag=True, help="Prompt for the SSH password, for hosts that accept no key.")
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
    """Start the hub and print the address of its page. If this machine has GPUs, the hub monitors it too."""
    start_logging(verbose)
    # The hub's import creates hundreds of thousands of objects that all stay: garbage collection would be wasted.
    gc.disable()
    with need_hub():
        from gpudeck.app.hub import HubServer, run_hub  # noqa: PLC0415 - the hub may not be installed
        from gpudeck.app.plan import make_plan  # noqa: PLC0415
    from gpudeck.collectors.machine import has_gpus  # noqa: PLC0415

    settings, file = _load(config, listen)
    targets = _read_ssh(ssh, demo)
    plan = msgspec.structs.replace(make_plan(settings, demo, has_gpus, ssh_hosts=len(targets)), demo_days=demo_days)
    password: str | None = click.prompt("SSH password", hide_input=True, err=True) if ask_password else None
    opened = HubServer(
        settings, plan, file, targets=targets, ssh_password=password, reread=lambda: _load(config, listen)[0]
    )
    run_hub(opened, _greet)


def _load(config: Path | None, listen: str | None) -> "tuple[Settings, Path | None]":
    """The settings with `listen` in place of the file's value, and the file. Raises UsageError."""
    from gpudeck.settings import exposure_problem, load_settings  # noqa: PLC0415

    settings, file = load_settings(config)
    if listen is None:
        return settings, file
    address = read_address(listen)
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


def _greet(started: "HubStartInfo") -> None:
    plan = started.plan
    if plan.watch_this_machine:
        shows = f"this machine's GPUs, and {_others(plan)}"
    elif plan.demo_hosts is None:
        shows = _others(plan)
    else:
        until = "" if plan.demo_is_asked else ", until the first real host reports or is added"
        shows = f"a simulated fleet of {plan.demo_hosts} host{'s' * (plan.demo_hosts != 1)} (demo data){until}"
    elsewhere = "" if started.url_elsewhere is None else f"  elsewhere    {started.url_elsewhere}/\n"
    click.echo(
        f"gpudeck {__version__} shows {shows}.\n"
        f"  page         {started.url}/\n"
        f"{elsewhere}"
        f"  terminal     {_command(started, 'show')}\n"
        f"{_invite(started)}"
        f"{_first_admin(started)}"
        "Ctrl-C stops it."
    )


def _command(started: "HubStartInfo", arguments: str) -> str:
    """A command line that works as typed in this folder."""
    return f"{_program()} {arguments}{'' if _is_found(started.url) else f' --hub {started.url}'}"


def _is_found(url: str) -> bool:
    """Whether commands find this hub without --hub. The configuration here may have errors if the hub uses another
    one."""
    try:
        return find_hub().url == url
    except GpudeckError:
        return False


def _program() -> str:
    """How to start this program from here: by its name if the shell finds it, otherwise as it was typed."""
    typed = sys.argv[0]
    if not os.access(typed, os.X_OK) or typed.endswith(".py"):
        return f"{shlex.quote(sys.executable)} -m gpudeck"
    found = shutil.which("gpudeck")
    is_found = found is not None and os.path.realpath(found) == os.path.realpath(typed)
    return "gpudeck" if is_found else shlex.quote(typed)


def _others(plan: "Plan") -> str:
    if plan.named_hosts is None:
        return "every host that reports"
    hosts = "host" if plan.named_hosts == 1 else "hosts"
    return f"{plan.named_hosts} {hosts} over SSH" if plan.named_hosts else "the configured hosts"


def _invite(started: "HubStartInfo") -> str:
    """How to add another host. A demo that was requested accepts no real hosts."""
    if started.plan.demo_is_asked:
        return ""
    if started.url_elsewhere is not None:
        return f"  add a host   {_command(started, 'hosts add NAME')}\n"
    port = urlsplit(started.url).port or 8042
    return (
        f"  add a host   {_command(started, 'hosts add NAME --via ssh')}\n"
        f"               Agents on other machines cannot reach this hub until `listen: :{port}` and `read: open`\n"
        f"               (or login) are set in {_file_to_edit(started.config)}\n"
    )


def _first_admin(started: "HubStartInfo") -> str:
    """How to create the first account. The secret is in the fragment (#), so no server or proxy logs it."""
    if started.first_admin is None:
        return ""
    return (
        f"  first admin  {started.first_admin}\n"
        f"               (works once, within an hour; or run: {_program()} account add NAME --role admin)\n"
    )


def _file_to_edit(file: Path | None) -> str:
    return str(file) if file is not None else "./gpudeck.yaml (a new file)"
