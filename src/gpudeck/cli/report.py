"""gpudeck report: who used how many GPU-hours, how well, and what was flaky; gpudeck job and jobs: what the jobs of
schedulers did with their GPUs; gpudeck runs: programs with a verdict and a suggestion for each; gpudeck digest."""

import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, get_args
from urllib.parse import quote

import click
import msgspec

from gpudeck.cli.hub_access import ask, fetch, machine_zone
from gpudeck.cli.options import hub_option, period_options
from gpudeck.cli.period import local_zone, read_period
from gpudeck.cli.terminal import check_output, show_answer
from gpudeck.client import Client
from gpudeck.history.time_range import load_zone
from gpudeck.history.usage import to_csv
from gpudeck.model.errors import UsageError
from gpudeck.model.event import Reliability
from gpudeck.model.job import JobList, JobReports, Runs, write_summary
from gpudeck.model.text import clean, propose
from gpudeck.model.usage import DigestPreview, Usage, UsageBy, Waste
from gpudeck.views.jobs import render_job, render_jobs, render_runs
from gpudeck.views.lists import render_reliability
from gpudeck.views.usage import render_usage, render_waste

_EXAMPLES = """\b
Examples:
  gpudeck report                                      the last 30 days, by user
  gpudeck report --by group --since last-month        the whole of last month
  gpudeck report --since 2026-10-01 --until 2026-10-31 --format csv > october.csv
  gpudeck report --by account --since last-month      of jobs, with allocated and unused hours
  gpudeck report --waste --by group                   idle, unused and over-sized GPUs, with their cost
  gpudeck report --reliability --since 90d            the flakiest GPUs, with the evidence
"""

_PATIENCE = 120.0
"""Seconds: the hub reads when each GPU of a large fleet was idle, among its other work."""


@click.command("report", epilog=_EXAMPLES)
@click.option(
    "--by",
    metavar="NAME",
    help="What to group by: user, host, model or group; of jobs account, partition, namespace or label:NAME; with "
    "--reliability gpu or host. [default: user, with --reliability gpu]",
)
@period_options("30d")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="The output format; json is the hub's answer.",
)
@click.option("--waste", is_flag=True, help="Show hours that were idle, unused or on larger GPUs than needed instead.")
@click.option("--reliability", is_flag=True, help="Rank GPUs or hosts by faults, lost time and throttling instead.")
@click.option("--daily", is_flag=True, help="Show each day separately, in the time zone of this machine.")
@hub_option
def command(
    *, by: str | None, since: str, until: str | None, form: str, waste: bool, reliability: bool, daily: bool, hub: str
) -> None:
    """Report who used the GPUs: GPU-hours, active and idle hours, peak memory, energy and cost; where a scheduler gives
    GPUs to jobs also allocated hours, and those that were not used.

    Unknown values are a dash. Without --until, `yesterday` and `last-month` are complete periods; all others end now.
    Exit code 3 if the hub does not answer.
    """
    check_output()
    zone = local_zone()
    start, end = read_period(since, until, time.time(), zone)
    if waste and (reliability or daily or form == "csv"):
        raise UsageError("--waste is available as a table or as --format json, without --daily and --reliability.")
    if reliability:
        _report_reliability(by or "gpu", start, end, form, daily=daily, zone=zone, hub=hub)
        return
    query = _read_by(by) | {"start": repr(start), "end": repr(end)}
    if waste:
        wasted, body = fetch(hub, Waste, "/api/v1/waste", query, timeout=_PATIENCE)
        show_answer(body, form == "json", render_waste, wasted, load_zone(zone))
        return
    query |= {"daily": "true", "zone": zone} if daily else {}
    usage, body = fetch(hub, Usage, "/api/v1/usage", query)
    if form == "csv":
        click.echo(to_csv(usage, daily=daily), nl=False)
    else:
        show_answer(body, form == "json", render_usage, usage, load_zone(zone))


def _read_by(by: str | None) -> dict[str, str]:
    name, _, label = (by or "user").partition(":")
    if name == "gpu":
        raise UsageError("--by gpu needs --reliability: usage is by user, host, model or group.")
    if name not in get_args(UsageBy) or (name == "label") != bool(label):
        hint = "Use label:NAME, such as label:team." if name == "label" else propose(name, get_args(UsageBy))
        raise UsageError(f"--by {by} is not known.", hint)
    return {"by": name} | ({"label": label} if label else {})


def _report_reliability(by: str, start: float, end: float, form: str, *, daily: bool, zone: str, hub: str) -> None:
    if by not in {"gpu", "host"}:
        raise UsageError(f"--reliability ranks by gpu or host, not by {by}.")
    if daily or form == "csv":
        raise UsageError("--reliability is available as a table or as --format json, without --daily.")
    query = {"by": by, "start": repr(start), "end": repr(end)}
    found, body = fetch(hub, Reliability, "/api/v1/reliability", query)
    show_answer(body, form == "json", render_reliability, found, load_zone(zone))


_JOB_EXAMPLES = """\b
Examples:
  gpudeck job 4711                  one job: allocated, used and idle time of each GPU
  gpudeck job 4711_3                a task of an array
"""
_LIST_EXAMPLES = """\b
Examples:
  gpudeck jobs                      the newest jobs
  gpudeck jobs --state running --account vision
"""


_JOB = re.compile(r"(?!\.)[\w.+-]{1,256}(/(?!\.)[\w.-]{1,256})?")


@click.command("job", epilog=_JOB_EXAMPLES)
@click.argument("job")
@click.option("--scheduler", metavar="NAME", help="The scheduler, if several have a job of that id.")
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answer as JSON. Times are Unix seconds.")
@click.option("--jobstats", is_flag=True, help="Print the newest start as a summary of Jobstats (JS1:...).")
@hub_option
def job_command(*, job: str, scheduler: str | None, as_json: bool, jobstats: bool, hub: str) -> None:
    """Show what a job was allocated and what it used: time, utilization, memory, energy and cost of each GPU, idle
    stretches, and a verdict with suggestions.

    Exit code 1 if the hub does not know the job, 3 if the hub does not answer.
    """
    if as_json and jobstats:
        raise UsageError("--json and --jobstats exclude each other.")
    if not _JOB.fullmatch(job):
        raise UsageError(f"{job[:80]!r} is not the id of a job.", "Write 4711, 4711_3 or namespace/pod.")
    check_output()
    found, body = fetch(hub, JobReports, f"/api/v1/jobs/{quote(job)}", {"scheduler": scheduler})
    if jobstats:
        click.echo(write_summary(found.jobs[0]))
    else:
        show_answer(body, as_json, render_job, found, machine_zone(), time.time())


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
    check_output()
    listed, body = fetch(hub, JobList, "/api/v1/jobs", wanted | {"limit": str(limit)}, mine=mine)
    _show_list(body, as_json, render_jobs, listed.jobs, "jobs")


def _show_list(body: bytes, as_json: bool, render: Callable[..., str], found: Sequence[object], what: str) -> None:
    """Exit code 1 where there is none."""
    if found or as_json:
        show_answer(body, as_json, render, found, machine_zone(), time.time())
    if not found:
        click.echo(f"No {what}.", err=True)
        sys.exit(1)


_RUNS_EXAMPLES = """\b
Examples:
  gpudeck runs --mine               your newest runs, and what would make them better
  gpudeck runs --now                those that are there now
"""


@click.command("runs", epilog=_RUNS_EXAMPLES)
@click.option("--mine", is_flag=True, help="Only your own.")
@click.option("--user", metavar="NAME", help="Only runs of this user.")
@click.option("--host", metavar="NAME", help="Only runs on this host.")
@click.option("--now", "is_now", is_flag=True, help="Only those that are there now.")
@click.option("--since", "start", metavar="TIME", help="Only runs that had not ended by then: -7d, 2026-10-01.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="The most runs to show.")
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answer as JSON. Times are Unix seconds.")
@hub_option
def runs_command(*, mine: bool, is_now: bool, limit: int, as_json: bool, hub: str, **wanted: str | None) -> None:
    """List programs that were on GPUs, newest first: how long, how well they used them, and one suggestion each.

    Exit code 1 if there are none, 3 if the hub does not answer.
    """
    check_output()
    query = wanted | {"limit": str(limit), "verdict": "true", "now": "true" if is_now else None}
    listed, body = fetch(hub, Runs, "/api/v1/runs", query, mine=mine)
    _show_list(body, as_json, render_runs, listed.runs, "runs")


_DIGEST_EXAMPLES = """\b
Examples:
  gpudeck digest --dry-run                        your digest of the last period, as text
  gpudeck digest --dry-run --user '#ops' --every month   that of a channel, for admins
  gpudeck digest --off                            stop your digests
"""
_DIGEST_SECONDS = 60.0
_MUTES = "/api/v1/me/mutes"
_TOPIC = "digest"


@click.command("digest", epilog=_DIGEST_EXAMPLES)
@click.option("--dry-run", is_flag=True, help="Print the digest as it would be sent. Nothing is sent.")
@click.option("--html", "as_html", is_flag=True, help="With --dry-run: as HTML.")
@click.option("--user", metavar="NAME", help="With --dry-run: of this account, or #CHANNEL; for admins.")
@click.option("--every", type=click.Choice(["week", "month"]), help="With --dry-run: of the last week or month.")
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: print the hub's answer as JSON.")
@click.option("--off", "is_off", is_flag=True, help="Stop your own digests.")
@click.option("--on", "is_on", is_flag=True, help="Start your own digests again, with the next one.")
@hub_option
def digest_command(
    *,
    dry_run: bool,
    as_html: bool,
    user: str | None,
    every: str | None,
    as_json: bool,
    is_off: bool,
    is_on: bool,
    hub: str,
) -> None:
    """Preview the digest of the last week or month, or stop and start your own digests.

    Exit code 1 if nothing would be sent, with the reason.
    """
    check_output()
    if dry_run + is_off + is_on != 1:
        raise UsageError("say what to do: --dry-run, --off or --on.")
    if not dry_run and (as_html or as_json or user is not None or every is not None):
        raise UsageError(
            "--html, --json, --user and --every need --dry-run.", "--off and --on are about your own digests."
        )
    if not dry_run:
        ask(hub, lambda client: _choose(client, is_wanted=is_on))
        click.echo("You get digests again, if they are configured." if is_on else "You get no more digests.")
        return
    query = {"user": user, "every": every}
    found, body = fetch(hub, DigestPreview, "/api/v1/digest", query, timeout=_DIGEST_SECONDS, mine=user is None)
    click.echo(body if as_json else found.html if as_html else found.text, nl=as_json)
    if found.not_sent is not None:
        click.echo(f"Not sent: {clean(found.not_sent)}", err=True)
        raise SystemExit(1)


def _choose(client: Client, *, is_wanted: bool) -> None:
    muted: dict[str, Any] = msgspec.json.decode(client.get(_MUTES))
    others = [rule for rule in muted["rules"] if rule != _TOPIC]
    client.put(_MUTES, {"rules": others if is_wanted else [*others, _TOPIC]})
