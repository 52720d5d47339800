"""gpudeck agent: reports this machine to a hub, or answers hubs that ask for its report."""

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from gpudeck.cli.options import config_option, read_address
from gpudeck.model.address import split_hubs
from gpudeck.model.errors import UsageError
from gpudeck.model.logs import start_logging
from gpudeck.model.settings import expand_home

if TYPE_CHECKING:
    from gpudeck.agent.run import MakePosts
    from gpudeck.agent.settings import AgentSettings
    from gpudeck.compat.settings import GpuClusterStatusSettings
    from gpudeck.settings import Settings

_EXAMPLES = """\b
Examples:
  gpudeck agent --hub http://hub:8042 --token-file ~/agent.token
  gpudeck agent --hub hub1:8042,hub2:8042 --token-file ~/agent.token    several hubs of one fleet
  gpudeck agent --listen :7080 --token-file ~/agent.token    answer hubs that poll; push nothing
  gpudeck agent --once --config /etc/gpudeck/gpudeck.yaml    one report, for cron
"""


@click.command("agent", epilog=_EXAMPLES)
@config_option
@click.option(
    "--hub",
    metavar="URL[,URL]",
    envvar="GPUDECK_HUB",
    help="The hub's address, or those of several hubs of one fleet. [default: http://127.0.0.1:8042]",
)
@click.option("--listen", metavar="HOST:PORT", help="Listen here for hubs that poll; without --hub, nothing is pushed.")
@click.option(
    "--token-file",
    metavar="FILE",
    help="A copy of the hub's token file. With --listen only, it is created if it does not exist.",
)
@click.option("--ca-file", metavar="FILE", help="The CA certificates to verify the hub with.")
@click.option("--interval", metavar="SECONDS", help="How often to report. [default: 2s]")
@click.option("--name", help="The name to report under. [default: the hostname]")
@click.option(
    "--simulate",
    type=click.IntRange(1, 10_000),
    metavar="HOSTS",
    help="Report this many simulated hosts, to a demo hub.",
)
@click.option("--seed", type=int, default=1, help="The seed of the simulation; the same seed gives the same fleet.")
@click.option("--debug", is_flag=True, help="Print one report as JSON and exit. Nothing is sent.")
@click.option(
    "--once",
    is_flag=True,
    help="Push one report and exit, for cron. --interval is the time between runs. [default: 1m]",
)
@click.option("--until-stdin-closes", is_flag=True, hidden=True)
@click.option("--print-settings", is_flag=True, hidden=True)
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
    print_settings: bool,
    verbose: bool,
) -> None:
    """Report the GPUs of this machine to a hub, or answer hubs that poll it, until stopped. While the hub is down,
    reports are kept and delivered later."""
    start_logging(verbose)
    if once and not verbose:
        # cron mails every output of a job.
        logging.getLogger().setLevel(logging.WARNING)
    given: dict[str, Any] = {
        "hub": None if hub is None else ",".join(split_hubs(hub)),
        "token_file": token_file,
        "ca_file": ca_file,
        "name": name,
    }
    if listen is not None:
        given["listen"] = read_address(listen)
    if interval is not None:
        given["interval"] = _read_interval(interval)
    given = {key: value for key, value in given.items() if value is not None}
    settings, agent = _load(config, given)
    if print_settings:
        click.echo(msgspec.json.encode(agent))
        return
    node = settings.compat.gpu_cluster_status
    from gpudeck.agent.run import check_start, report_once, run_agent  # noqa: PLC0415

    if not once and not debug and simulate is None and node is None:
        from gpudeck.agent.process import AgentStart, become_agent  # noqa: PLC0415 - of an agent that stays

        check_start(agent, is_child=until_stdin_closes)
        become_agent(AgentStart(agent, until_stdin_closes, verbose), sys.argv[1:])
    if once:
        _check_once(listen, simulate)
        from gpudeck.agent.run import push_once  # noqa: PLC0415 - not in an agent that stays

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
        make_posts=_answer_as_node(node),
        reload=lambda: _load(config, given)[1],
    )


def _answer_as_node(settings: "GpuClusterStatusSettings | None") -> "MakePosts | None":
    """The route that a main node of GPU Cluster Status Monitor polls, if configured."""
    if settings is None:
        return None
    from gpudeck.compat.gpu_cluster_status_node import PATH, NodeResponder  # noqa: PLC0415 - few agents are asked so

    return lambda newest: {PATH: NodeResponder(settings.password, newest).answer}


def _load(config: Path | None, given: dict[str, Any]) -> "tuple[Settings, AgentSettings]":
    """All settings, and those of the agent with `given` in place of the file's values. Raises UsageError."""
    from gpudeck.settings import choose_outbox_dir, load_settings  # noqa: PLC0415

    settings, _ = load_settings(config)
    try:
        agent = msgspec.structs.replace(settings.agent, **given)
    except ValueError as error:
        raise UsageError(str(error).rstrip(".") + ".") from error
    if agent.token_file is not None:
        agent = msgspec.structs.replace(agent, token_file=str(expand_home("token_file", agent.token_file)))
    return settings, msgspec.structs.replace(agent, outbox_dir=choose_outbox_dir(settings))


def _check_once(listen: str | None, simulate: int | None) -> None:
    if listen is not None or simulate is not None:
        raise UsageError(
            "--once pushes one report of this machine to a hub.", "Leave out --listen and --simulate, or --once."
        )


def _read_interval(text: str) -> float:
    from gpudeck.agent.settings import MAX_INTERVAL, MIN_INTERVAL  # noqa: PLC0415
    from gpudeck.model.times import format_duration, read_span  # noqa: PLC0415

    seconds = read_span("--interval", text, allow_plain_seconds=True)
    if not MIN_INTERVAL <= seconds <= MAX_INTERVAL:
        limits = f"{format_duration(MIN_INTERVAL)} and {format_duration(MAX_INTERVAL)}"
        raise UsageError(f"--interval must be between {limits}.")
    return seconds
