"""gpudeck agent: reports this machine to a hub, or answers hubs that ask for its report."""

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from gpudeck.cli.terminal import start_logging
from gpudeck.model.errors import UsageError
from gpudeck.model.settings import Address

if TYPE_CHECKING:
    from gpudeck.agent.settings import AgentSettings
    from gpudeck.settings import Settings

_EXAMPLES = """\b
Examples:
  gpudeck agent --hub http://hub:8042 --token-file ~/agent.token
  gpudeck agent --hub https://hub.example --ca-file company-ca.pem --token-file ~/agent.token
  gpudeck agent --listen :7080 --token-file ~/agent.token    answer hubs that ask, and push nothing
  gpudeck agent --config /etc/gpudeck/gpudeck.yaml
  gpudeck agent --once --config /etc/gpudeck/gpudeck.yaml    one report, for a line in a crontab
  gpudeck agent --debug                                      what would be reported, printed once
"""


@click.command("agent", epilog=_EXAMPLES)
@click.option("--config", type=click.Path(path_type=Path), help="The configuration file (default: see the docs).")
@click.option("--hub", metavar="URL", envvar="GPUDECK_HUB", help="The hub's address (default http://127.0.0.1:8042).")
@click.option("--listen", metavar="HOST:PORT", help="Answer hubs that ask here; without --hub nothing is pushed.")
@click.option("--token-file", metavar="FILE", help="A copy of the hub's token file; made for --listen alone.")
@click.option("--ca-file", metavar="FILE", help="Certificates of the authority that signed the hub's.")
@click.option("--interval", metavar="SECONDS", help="How often to report (default 2s).")
@click.option("--name", help="The name to report under (default: the host's name).")
@click.option(
    "--simulate", type=click.IntRange(1, 10_000), metavar="HOSTS", help="Report simulated hosts, to a demo hub."
)
@click.option("--seed", type=int, default=1, help="Which simulated fleet: the same seed gives the same one.")
@click.option("--debug", is_flag=True, help="Print one report as JSON and exit; nothing is sent anywhere.")
@click.option("--once", is_flag=True, help="Push one report and end; --interval says when the next one comes (1m).")
@click.option("--until-stdin-closes", is_flag=True, hidden=True)
@click.option("--verbose", is_flag=True, help="Log more.")
def command(
    *,
    config: Path | None,
    hub: str | None,
    listen: str | None,
    token_file: str | None,
    ca_file: str | None,
    interval: str | None,
    name: str | None,
    simulate: int | None,
    seed: int,
    debug: bool,
    once: bool,
    until_stdin_closes: bool,
    verbose: bool,
) -> None:
    """Report this machine's GPUs to a hub until stopped, or to hubs that ask. Survives the hub's absence."""
    start_logging(verbose)
    if once and not verbose:
        # What a crontab calls is mailed to somebody as soon as it says anything.
        logging.getLogger().setLevel(logging.WARNING)
    from gpudeck.app.agent import report_once, run_agent  # noqa: PLC0415

    given: dict[str, Any] = {"hub": hub, "token_file": token_file, "ca_file": ca_file, "name": name}
    try:
        if listen is not None:
            given["listen"] = _read_address(listen)
        if interval is not None:
            given["interval"] = _read_interval(interval)
    except ValueError as error:
        raise UsageError(str(error).rstrip(".") + ".") from error
    given = {key: value for key, value in given.items() if value is not None}
    settings, agent = _load(config, given)
    if once:
        _check_once(listen, simulate)
        from gpudeck.app.agent import push_once  # noqa: PLC0415 - not in an agent that stays

        told = push_once(agent, every=given.get("interval"))
        if verbose or sys.stdout.isatty():
            click.echo(told)
        return
    if debug:
        click.echo(report_once(agent, simulate=simulate, seed=seed))
        return
    run_agent(
        agent,
        simulate=simulate,
        seed=seed,
        until_stdin_closes=until_stdin_closes,
        as_node=settings.compat.gpu_cluster_status,
        reload=lambda: _load(config, given)[1],
    )


def _load(config: Path | None, given: dict[str, Any]) -> "tuple[Settings, AgentSettings]":
    """The whole file, and what it says of the agent where nothing was given for it. Raises UsageError."""
    from gpudeck.settings import choose_outbox_dir, find_token_file, load_settings  # noqa: PLC0415

    settings, _ = load_settings(config)
    try:
        agent = msgspec.structs.replace(settings.agent, **given)
    except ValueError as error:
        raise UsageError(str(error).rstrip(".") + ".") from error
    if agent.token_file is not None:
        agent = msgspec.structs.replace(agent, token_file=str(find_token_file(agent.token_file)))
    return settings, msgspec.structs.replace(agent, outbox_dir=choose_outbox_dir(settings))


def _check_once(listen: str | None, simulate: int | None) -> None:
    if listen is not None or simulate is not None:
        raise UsageError(
            "--once pushes one report of this machine to a hub.", "Leave out --listen and --simulate, or --once."
        )


def _read_address(text: str) -> Address:
    """Raises ValueError."""
    from gpudeck.config import parse_address  # noqa: PLC0415

    try:
        return Address(*parse_address(text))
    except ValueError as error:
        raise ValueError(f"--listen: {error}") from error


def _read_interval(text: str) -> float:
    """Raises ValueError."""
    from gpudeck.agent.settings import LONGEST_INTERVAL, SHORTEST_INTERVAL  # noqa: PLC0415
    from gpudeck.config import format_duration, parse_duration  # noqa: PLC0415

    seconds = parse_duration(text)
    if not SHORTEST_INTERVAL <= seconds <= LONGEST_INTERVAL:
        limits = f"{format_duration(SHORTEST_INTERVAL)} and {format_duration(LONGEST_INTERVAL)}"
        raise ValueError(f"--interval has to be between {limits}")
    return seconds
