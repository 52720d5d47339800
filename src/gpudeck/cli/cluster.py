"""gpudeck cluster: several hubs of one fleet."""

import sys
import time
from pathlib import Path

import click
import msgspec
from msgspec import Struct

from gpudeck.cli.hub_access import fetch, need_hub
from gpudeck.cli.options import hub_config_option, hub_option
from gpudeck.cli.period import local_zone, read_period
from gpudeck.cli.terminal import show_answer
from gpudeck.model.cluster import Cluster
from gpudeck.model.errors import GpudeckError
from gpudeck.views.lists import render_cluster

_EXAMPLES = """\b
Examples:
  gpudeck cluster status                        the hubs, and which of them has which duty
  gpudeck cluster migrate --dry-run             what would be copied, and what is missing
  systemctl stop gpudeck-hub
  gpudeck cluster migrate                       SQLite to PostgreSQL, samples to the store; run it again to continue
"""


@click.group("cluster", epilog=_EXAMPLES)
def command() -> None:
    """Run several hubs of one fleet, on PostgreSQL and a Prometheus-compatible store."""


class _AboutCluster(Struct):
    """The part of api.about.About that describes the cluster."""

    time: float
    cluster: Cluster | None = None


@command.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answer as JSON. Times are Unix seconds.")
@hub_option
def status(*, as_json: bool, hub: str) -> None:
    """List the hubs of the cluster and their duties, as the hub that answers knows them. Exit code 1: a hub is missing
    or has no bus, a duty has no owner, or the hub that answers is cut off."""
    about = fetch(hub, _AboutCluster, "/api/v1/about")[0]
    cluster = about.cluster
    if cluster is None:
        raise GpudeckError(
            "this hub is not part of a cluster.", "docs/high-availability.md: `cluster` in gpudeck.yaml."
        )
    show_answer(msgspec.json.encode(cluster), as_json, render_cluster, cluster, about.time)
    is_whole = cluster.state == "ok" and all(one.is_alive and one.lag_seconds is not None for one in cluster.hubs)
    if not is_whole or any(one.owner is None for one in cluster.duties):
        raise SystemExit(1)


@command.command("migrate")
@click.option("--dry-run", is_flag=True, help="Check everything, say what would be done, and change nothing.")
@click.option(
    "--since", metavar="TIME", help="Leave out samples from before this time: 30d, 2026-10-01. [default: all]"
)
@click.option(
    "--rate",
    type=click.IntRange(min=1000),
    default=500_000,
    show_default=True,
    help="Values sent to the store in a second, at most.",
)
@hub_config_option
def migrate(*, dry_run: bool, since: str | None, rate: int, config: Path | None) -> None:
    """Copy the data of the hub on this machine to PostgreSQL and to the store that its configuration names.

    Stop the hub first, and write the new configuration: `database`, `history`, or both. Accounts, tokens, reservations,
    alerts, events and all other tables go to PostgreSQL, samples to the store. All of it is read back and compared. The
    old files are kept. Usage, runs and sums stay in history.db, where each hub reads them. After an interruption, run
    this again: it continues.
    """
    with need_hub("its data is on the hub's machine"):
        from gpudeck.ops import cluster_migration  # noqa: PLC0415 - the hub may not be installed

    begin = None if since is None else read_period(since, None, time.time(), local_zone())[0]
    with click.progressbar(
        length=1, label="Samples", file=sys.stderr, hidden=not sys.stderr.isatty(), show_pos=False
    ) as bar:

        def show(done: int, among: int) -> None:
            bar.length = max(1, among)
            bar.update(done - bar.pos)

        def tell(line: str) -> None:
            if sys.stderr.isatty():
                click.echo("\r\x1b[K", nl=False, err=True)
            click.echo(line)

        cluster_migration.migrate(config, since=begin, rate=rate, dry_run=dry_run, tell=tell, show=show)
    if not dry_run:
        click.echo("Done. Start the hub with this configuration. The old files are kept.")
