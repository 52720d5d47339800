"""gpudeck history: commands on the hub's own history file, on the hub's machine. A hub may be running."""

import time
from datetime import datetime, timezone
from pathlib import Path

import click
import msgspec

from gpudeck.cli.hub_access import need_hub
from gpudeck.cli.options import hub_config_option
from gpudeck.cli.period import local_zone, read_period
from gpudeck.model.text import show_count

with need_hub("the history is on the hub's machine"):
    from gpudeck.history.base import SamplesQuery
    from gpudeck.history.embedded.export import FileUsage, measure_file
    from gpudeck.history.sample import GPU_NAMES
    from gpudeck.ops import history_file

_EXAMPLES = """\b
Examples:
  gpudeck history stats                                        its size and contents
  gpudeck history verify                                       check it for damage
  gpudeck history repair                                       set damaged parts aside; the hub must be stopped
  gpudeck history accept-clock                                 the clock is right: old data may be deleted
  gpudeck history export --since -24h --host gpu07 > gpu07.csv
"""
_FILE = click.option("--file", type=click.Path(path_type=Path), help="The history file. [default: the hub's]")
_PART_NAMES = {
    "chunks": "samples, a host's hour each",
    "quarters": "quarter hours of the GPUs",
    "host_hours": "hours of the hosts",
    "fleet_quarters": "quarter hours of the fleet",
    "uses": "who used what, by hour and host",
    "uses_of_all": "who used what, by hour",
    "runs": "runs",
    "journal": "not sealed yet",
}


@click.group("history", epilog=_EXAMPLES)
def command() -> None:
    """Inspect, repair and export the samples that a hub has kept. Run this on the hub's machine, as a user who can read
    its files."""


@command.command("stats")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_FILE
@hub_config_option
def show_stats(*, as_json: bool, file: Path | None, config: Path | None) -> None:
    """Show the size of the history, the time it covers, and the size of its parts."""
    with history_file.opened(file, config) as (view, path):
        size = measure_file(view, path)
    click.echo(msgspec.json.encode(size) if as_json else _render_size(size), nl=as_json)


@command.command("verify")
@_FILE
@hub_config_option
def verify(*, file: Path | None, config: Path | None) -> None:
    """Verify every checksum, and list what is damaged. Exit code 1 if anything is."""
    path, count = history_file.find_path(file, config), 0
    for sentence in history_file.verify(path):
        count += 1
        click.echo(sentence)
    if count:
        places = "1 place is damaged" if count == 1 else f"{count} places are damaged"
        click.echo(f"{path}: {places}. Stop the hub, then run: gpudeck history repair", err=True)
        raise SystemExit(1)
    click.echo(f"{path}: everything can be read.")


@command.command("repair")
@_FILE
@hub_config_option
def repair(*, file: Path | None, config: Path | None) -> None:
    """Set damaged parts aside, so that the rest can be read. The hub must be stopped.

    Nothing is deleted: a file with damaged pages is kept under another name, damaged rows in the table set_aside.
    """
    path = history_file.find_path(file, config)
    done = history_file.repair(path)
    if done.aside is not None:
        click.echo(f"The file had damaged pages: it is now {done.aside}. {done.copied:,} rows of it were copied.")
    for sentence in done.found:
        click.echo(f"set aside: {sentence}")
    is_sound = done.aside is None and not done.found
    click.echo(f"{path}: {'nothing is damaged.' if is_sound else 'everything that is left can be read.'}")


@command.command("export")
@click.option("--since", default="-24h", show_default=True, help="The start: -24h, 2026-10-01, 2026-10-01T08:00.")
@click.option("--until", default="now", show_default=True, help="The end.")
@click.option("--host", "hosts", multiple=True, help="Only this host; may be given several times.")
@click.option("--gpu", "gpus", multiple=True, metavar="UUID", help="Only this GPU; may be given several times.")
@click.option("--metric", "metrics", multiple=True, help="Only this metric; may be given several times.")
@_FILE
@hub_config_option
def export(  # noqa: PLR0917 - click gives each option by itself
    since: str,
    until: str,
    hosts: tuple[str, ...],
    gpus: tuple[str, ...],
    metrics: tuple[str, ...],
    file: Path | None,
    config: Path | None,
) -> None:
    """Write samples as CSV to standard output: a row for each GPU and time, in UTC."""
    start, end = read_period(since, until, time.time(), local_zone())
    with history_file.opened(file, config) as (view, _):
        for part in history_file.export(view, SamplesQuery(start, end, metrics or GPU_NAMES, hosts, gpus)):
            click.echo(part, nl=False)


@command.command("accept-clock")
@hub_config_option
def accept_clock(*, config: Path | None) -> None:
    """Confirm that this machine's clock is right, when the hub asks for it.

    A hub whose clock has jumped ahead deletes no old data until its agents' clocks agree, or you confirm it here.
    """
    now = history_file.accept_clock(config)
    click.echo(f"Accepted: it is {now}. A running hub uses it within a minute.")


def _render_size(size: FileUsage) -> str:
    lines = [
        f"{size.path}: {_megabytes(size.file_bytes)}",
        f"{show_count(size.hosts, 'host')}, {show_count(size.gpus, 'GPU')}, "
        f"from {_moment(size.oldest)} to {_moment(size.newest)}",
        "",
    ]
    for part in size.parts:
        inside = "" if part.bytes is None else _megabytes(part.bytes)
        lines.append(f"{part.rows:>10,} {inside:>10}  {_PART_NAMES.get(part.name, part.name)}")
    return "\n".join(lines) + "\n"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def _moment(at: float | None) -> str:
    return "–" if at is None else f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d %H:%M} UTC"
