"""gpudeck export: recorded data as a file for DuckDB, pandas and spreadsheets; gpudeck mcp: a hub's data for a language
model (Model Context Protocol over stdio)."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import click

from gpudeck.cli.hub_access import ask
from gpudeck.cli.options import complete_hosts, hub_option, period_options
from gpudeck.cli.period import local_zone, read_period
from gpudeck.client import Client
from gpudeck.hub_lookup import find_token
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.plugins import need

_EXAMPLES = """\b
Examples:
  gpudeck export --since 24h > samples.csv                     all samples of the last 24 hours
  gpudeck export --since 7d --format parquet -o week.parquet   a week as Parquet
  gpudeck export --host gpu07 --metric power_watts,utilization_percent -o gpu07.csv
  gpudeck export events --since 30d --format parquet -o events.parquet
"""
_PATIENCE = 120.0
"""Seconds to wait for the next part: the hub answers other requests in between."""


@click.command("export", epilog=_EXAMPLES)
@click.argument(
    "table", type=click.Choice(["samples", "runs", "usage", "events"]), default="samples", metavar="[TABLE]"
)
@period_options("24h")
@click.option(
    "--format", "form", type=click.Choice(["csv", "parquet"]), default="csv", show_default=True, help="The format."
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="The file. [default: standard output]"
)
@click.option("--host", metavar="HOST", help="Only this host, by name or id.", shell_complete=complete_hosts)
@click.option("--gpu", metavar="UUID", help="Only this GPU; not of usage.")
@click.option("--user", metavar="NAME", help="Only this user; not of samples.")
@click.option("--metric", metavar="NAMES", help="Of samples: only these metrics, separated by commas.")
@click.option(
    "--by",
    type=click.Choice(["user", "group", "host", "model"]),
    help="Of usage: what a row stands for. [default: user]",
)
@hub_option
def command(
    *, table: str, since: str, until: str | None, form: str, output: Path | None, hub: str, **only: str | None
) -> None:
    """Export TABLE: samples (of each GPU, the default), runs, usage (by day) or events.

    Times are in UTC. The hub sends the file while it reads it. For Parquet it needs gpudeck[export]. Exit code 3 if the
    hub does not answer.
    """
    if output is None and sys.stdout is None:
        raise GpudeckError("the standard output is closed: name a file with --output.")
    if output is None and form == "parquet" and sys.stdout.isatty():
        raise UsageError("Parquet cannot be written to a terminal.", "Name a file with --output.")
    zone = local_zone()
    start, end = read_period(since, until, time.time(), zone)
    query = {name: value for name, value in only.items() if value is not None}
    query |= {"start": repr(start), "end": repr(end), "format": form}
    query |= {"zone": zone} if table == "usage" else {}
    size, parts = ask(hub, lambda client: client.download(f"/api/v1/export/{table}", query), _PATIENCE)
    is_shown = sys.stderr is not None and sys.stderr.isatty() and (output is not None or not sys.stdout.isatty())
    with (
        contextlib.closing(parts),
        _opened(output) as file,
        click.progressbar(length=size or 1, label=table, file=sys.stderr, hidden=not is_shown, show_pos=False) as bar,
    ):
        for part in parts:
            file.write(part)
            # The size is an estimate: show 100 % only at the end.
            bar.update(min(len(part), max(0, bar.length - 1 - bar.pos)) if bar.length else 0)
        bar.update((bar.length or 0) - bar.pos)


@contextlib.contextmanager
def _opened(output: Path | None) -> Iterator[BinaryIO]:
    """The file gets its name when it is complete."""
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    partial = output.with_name(f"{output.name}.part")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(output)
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {(error.strerror or str(error)).lower()}.") from error
    finally:
        partial.unlink(missing_ok=True)


_MCP_EXAMPLES = """\b
Examples:
  gpudeck mcp                                 with the hub and the token of `gpudeck login`
  claude mcp add gpudeck -- gpudeck mcp       for an assistant that starts MCP servers
"""


@click.command("mcp", epilog=_MCP_EXAMPLES)
@hub_option
def mcp_command(*, hub: str) -> None:
    """Serve free GPUs, users, history, usage, runs, events, health and job reports to a language model.

    The assistant starts this command and talks to it over standard input and output. Tools that change something
    (reserve, release, watch) are available only with a token: log in with `gpudeck login`, or set $GPUDECK_TOKEN.
    Needs gpudeck[mcp]. The hub itself serves the same at /mcp.
    """
    need("mcp", "gpudeck mcp")
    from gpudeck.mcp.server import ClientRoutes, serve_stdio  # noqa: PLC0415 - an extra

    token = find_token(hub)
    asyncio.run(serve_stdio(ClientRoutes(Client(hub, 60.0, token=token), has_token=token is not None)))
