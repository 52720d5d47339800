"""gpudeck job and jobs: what a scheduler's job did with its GPUs, while it runs and afterwards."""

import re
import sys
import time
from typing import TYPE_CHECKING

import click

from gpudeck.cli.hub_access import ask, find_name, machine_zone
from gpudeck.cli.options import hub_option
from gpudeck.cli.terminal import check_output, terminal_width, wants_colour
from gpudeck.client.answers import read_answer
from gpudeck.model.errors import UsageError
from gpudeck.model.job import JobList, JobReports
from gpudeck.model.jobstats import write_summary
from gpudeck.views.job import render_job, render_jobs

if TYPE_CHECKING:
    from gpudeck.client import Client

_EXAMPLES = """\b
Examples:
  gpudeck job 4711                  one job: allocated, used and idle time of each GPU
  gpudeck job 4711_3                a task of an array
  gpudeck job ml/train-0            a pod
  gpudeck job 4711 --json | jq '.jobs[0].gpus[].used_hours'
"""
_LIST_EXAMPLES = """\b
Examples:
  gpudeck jobs                      the newest jobs
  gpudeck jobs --mine               your own
  gpudeck jobs --state running --account vision
"""


_JOB = re.compile(r"(?!\.)[\w.+-]{1,256}(/(?!\.)[\w.-]{1,256})?")


@click.command("job", epilog=_EXAMPLES)
@click.argument("job")
@click.option("--scheduler", metavar="NAME", help="The scheduler, if several have a job of that id.")
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answer as JSON. Times are Unix seconds.")
@click.option("--jobstats", is_flag=True, help="Print the newest start as a summary of Jobstats (JS1:...).")
@hub_option
def command(*, job: str, scheduler: str | None, as_json: bool, jobstats: bool, hub: str) -> None:
    """Show what a job was allocated and what it used: time, utilization, memory, energy and cost of each GPU, idle
    stretches, and a verdict with suggestions.

    Exit code 1 if the hub does not know the job, 3 if the hub does not answer.
    """
    if as_json and jobstats:
        raise UsageError("--json and --jobstats exclude each other.")
    if not _JOB.fullmatch(job):
        raise UsageError(f"{job[:80]!r} is not the id of a job.", "Write 4711, 4711_3 or namespace/pod.")
    check_output()
    body = ask(hub, lambda client: client.job(job, scheduler))
    found = read_answer(body, JobReports, hub)
    if as_json:
        click.echo(body)
        return
    if jobstats:
        click.echo(write_summary(found.jobs[0]))
        return
    text = render_job(found, machine_zone(), time.time(), width=terminal_width(), colour=wants_colour())
    click.echo(text, nl=False)


@click.command("jobs", epilog=_LIST_EXAMPLES)
@click.option("--mine", is_flag=True, help="Only your own.")
@click.option("--user", metavar="NAME", help="Only jobs of this user.")
@click.option("--account", metavar="NAME", help="Only jobs of this account.")
@click.option("--partition", metavar="NAME", help="Only jobs of this partition.")
@click.option("--namespace", metavar="NAME", help="Only pods of this namespace.")
@click.option("--scheduler", metavar="NAME", help="Only jobs of this scheduler.")
@click.option("--state", type=click.Choice(["running", "ended"]), help="Only jobs that run, or that have ended.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="The most jobs to show.")
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answer as JSON. Times are Unix seconds.")
@hub_option
def jobs_command(*, mine: bool, limit: int, as_json: bool, hub: str, **wanted: str | None) -> None:
    """List jobs that had GPUs, newest first, with the share of the time in which they used them.

    Exit code 1 if there are none, 3 if the hub does not answer.
    """
    if mine and wanted["user"] is not None:
        raise UsageError("--mine and --user exclude each other.")
    check_output()

    def search(client: "Client") -> bytes:
        query = {name: value for name, value in wanted.items() if value is not None} | {"limit": str(limit)}
        return client.jobs(query | ({"user": find_name(client)} if mine else {}))

    body = ask(hub, search)
    found = read_answer(body, JobList, hub).jobs
    if as_json:
        click.echo(body)
    elif found:
        text = render_jobs(found, machine_zone(), time.time(), width=terminal_width(), colour=wants_colour())
        click.echo(text, nl=False)
    if not found:
        click.echo("No jobs.", err=True)
        sys.exit(1)
