"""gpudeck runs: programs on GPUs, with a verdict and a suggestion for each."""

import sys
import time
from typing import TYPE_CHECKING

import click

from gpudeck.cli.hub_access import ask, find_name, machine_zone
from gpudeck.cli.options import hub_option
from gpudeck.cli.terminal import check_output, terminal_width, wants_colour
from gpudeck.client.answers import read_answer
from gpudeck.model.errors import UsageError
from gpudeck.views.runs import ShownRuns, render_runs

if TYPE_CHECKING:
    from gpudeck.client import Client

_EXAMPLES = """\b
Examples:
  gpudeck runs --mine               your newest runs, and what would make them better
  gpudeck runs --now                those that are there now
  gpudeck runs --host gpu07 --since -7d
  gpudeck runs --mine --json | jq '.runs[].verdict.suggestions[0]'
"""


@click.command("runs", epilog=_EXAMPLES)
@click.option("--mine", is_flag=True, help="Only your own.")
@click.option("--user", metavar="NAME", help="Only runs of this user.")
@click.option("--host", metavar="NAME", help="Only runs on this host.")
@click.option("--now", "is_now", is_flag=True, help="Only those that are there now.")
@click.option("--since", "start", metavar="TIME", help="Only runs that had not ended by then: -7d, 2026-10-01.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="The most runs to show.")
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answer as JSON. Times are Unix seconds.")
@hub_option
def command(*, mine: bool, is_now: bool, limit: int, as_json: bool, hub: str, **wanted: str | None) -> None:
    """List programs that were on GPUs, newest first: how long, how well they used them, and one suggestion each.

    Exit code 1 if there are none, 3 if the hub does not answer.
    """
    if mine and wanted["user"] is not None:
        raise UsageError("--mine and --user exclude each other.")
    check_output()

    def search(client: "Client") -> bytes:
        query = {name: value for name, value in wanted.items() if value is not None}
        query |= {"limit": str(limit), "verdict": "true"} | ({"now": "true"} if is_now else {})
        return client.get("/api/v1/runs", query | ({"user": find_name(client)} if mine else {}))

    body = ask(hub, search)
    found = read_answer(body, ShownRuns, hub).runs
    if as_json:
        click.echo(body)
    elif found:
        text = render_runs(found, machine_zone(), time.time(), width=terminal_width(), colour=wants_colour())
        click.echo(text, nl=False)
    if not found:
        click.echo("No runs.", err=True)
        sys.exit(1)
