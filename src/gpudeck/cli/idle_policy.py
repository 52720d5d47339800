"""gpudeck policy: the idle policy now, and what it would have done; gpudeck keep: keep an idle GPU for a time."""

import time
from datetime import datetime, tzinfo

import click

from gpudeck.cli.hub_access import ask, fetch, machine_zone
from gpudeck.cli.maintenance import read_place
from gpudeck.cli.options import complete_hosts, hub_option, period_options, refuse_options
from gpudeck.cli.period import local_zone, read_period
from gpudeck.cli.terminal import check_output, terminal_width, wants_colour
from gpudeck.client.answers import read_answer
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.idle_policy import IdleLadder, IdlePolicyState, Keep, KeepList, PolicyReport, PolicyStep, PolicyUser
from gpudeck.model.text import clean, show_length, without_maker
from gpudeck.model.times import read_span, show_moment
from gpudeck.views.table import CellColumn, tabulate

_PATIENCE = 120.0
_MAX_STEPS = 20
_EXAMPLES = """\b
Examples:
  gpudeck policy                                 the idle GPUs, what was done, and what comes next
  gpudeck policy --dry-run --since 30d           what would have happened, to whom, and what it would have saved
"""
_KEEP_EXAMPLES = """\b
Examples:
  gpudeck keep                                         what is kept
  gpudeck keep gpu07:3 --for 8h --reason "demo at 4"   your GPU, although it is idle
"""


@click.command("policy", epilog=_EXAMPLES)
@click.option("--dry-run", is_flag=True, help="Report what the rules would have done in the past. Nothing is sent.")
@period_options("30d")
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answer as JSON. Times are Unix seconds.")
@hub_option
def policy_command(*, dry_run: bool, since: str, until: str | None, as_json: bool, hub: str) -> None:
    """Show the idle policy: idle GPUs with what was done and what comes next, or what the rules would have done.

    --since and --until are for --dry-run.
    """
    check_output()
    now, zone = time.time(), machine_zone()
    if not dry_run:
        refuse_options("--dry-run", "since", "until")
        state, body = fetch(hub, IdlePolicyState, "/api/v1/idle-policy")
        click.echo(body if as_json else _show_state(state, now, zone))
        return
    start, end = read_period(since, until, now, local_zone())
    query = {"start": repr(start), "end": repr(end)}
    report, body = fetch(hub, PolicyReport, "/api/v1/idle-policy/dry-run", query, timeout=_PATIENCE)
    click.echo(body if as_json else _show_report(report, now, zone))


@click.command("keep", epilog=_KEEP_EXAMPLES)
@click.argument("place", metavar="[HOST:GPU]", required=False, shell_complete=complete_hosts)
@click.option("--for", "span", metavar="SPAN", help="For how long, from now on: 2h, 1d.")
@click.option("--reason", metavar="TEXT", help="Why; visible to all users. Required with --for.")
@click.option("--end", is_flag=True, help="End the keep of that GPU.")
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answer as JSON. Times are Unix seconds.")
@hub_option
def keep_command(
    *, place: str | None, span: str | None, reason: str | None, end: bool, as_json: bool, hub: str
) -> None:
    """Keep a GPU that you use although it is idle: the idle policy does nothing to it. Without HOST:GPU, list
    what is kept.

    Admins can keep any GPU. How long and how many is bounded by the hub's settings.
    """
    now, zone = time.time(), machine_zone()
    if end and (span is not None or reason is not None):
        raise UsageError("--end excludes --for and --reason.")
    if place is None:
        refuse_options("HOST:GPU", "span", "reason", "end")
        listed, body = fetch(hub, KeepList, "/api/v1/keeps")
        lines = [_describe_keep(one, now, zone) for one in listed.keeps] or ["Nothing is kept."]
        click.echo(body if as_json else "\n".join(lines))
        return
    host, gpu = read_place(place)
    if gpu is None:
        raise UsageError(f"{clean(place)[:80]} names no GPU.", "Such as gpu07:3.")
    if end:
        body = _end(host, gpu, hub)
    elif span is None or not (reason or "").strip():
        raise UsageError("--for and --reason are missing.", 'Such as --for 8h --reason "demo at 4".')
    else:
        wanted = {"host": host, "gpu": gpu, "for": read_span("--for", span), "reason": reason}
        body = ask(hub, lambda client: client.post("/api/v1/keeps", wanted))
    if as_json:
        click.echo(body)
    else:
        keep = read_answer(body, Keep, hub)
        ended = f"{clean(keep.host)}:{clean(keep.label)} is no longer kept."
        click.echo(ended if end else _describe_keep(keep, now, zone))


def _end(host: str, gpu: str, hub: str) -> bytes:
    listed = fetch(hub, KeepList, "/api/v1/keeps")[0].keeps
    found = [one for one in listed if one.host.lower() == host.lower() and gpu in {one.gpu, one.label}]
    if not found:
        raise GpudeckError(f"{clean(host)}:{clean(gpu)} is not kept.", "`gpudeck keep` lists what is.")
    return ask(hub, lambda client: client.delete(f"/api/v1/keeps/{found[0].id}"))


def _describe_keep(one: Keep, now: float, zone: tzinfo) -> str:
    until = show_moment(one.end, zone, now)
    return f"{clean(one.host)}:{clean(one.label)} is kept by {clean(one.user)} until {until}: {clean(one.reason)}"


def _show_state(state: IdlePolicyState, now: float, zone: tzinfo) -> str:
    if not state.rules:
        return "There is no idle policy: idle_policy.rules is empty in gpudeck.yaml."
    lines = [f"Idle policy, mode {state.mode}. Rules: {', '.join(map(clean, state.rules))}."]
    if state.ladders:
        columns: list[CellColumn[IdleLadder]] = [
            CellColumn("GPU", 100, cell=lambda one: f"{one.host}:{one.label}"),
            CellColumn("USERS", 99, cell=lambda one: ", ".join(one.users) or "(unknown)"),
            CellColumn("IDLE FOR", 98, cell=lambda one: show_length(max(0.0, now - one.idle_since))),
            CellColumn(
                "DONE",
                97,
                widest=60,
                cell=lambda one: (
                    ", ".join(f"{step.kind} {show_moment(step.at, zone, now)}" for step in one.done) or None
                ),
            ),
            CellColumn("NEXT", 96, widest=60, cell=lambda one: _next(one, now, zone)),
        ]
        lines += ["", *tabulate(columns, state.ladders, terminal_width(), wants_colour())]
    else:
        lines += ["", "No idle GPU is covered by a rule."]
    return "\n".join(lines)


def _next(one: IdleLadder, now: float, zone: tzinfo) -> str | None:
    if one.reason:
        return one.reason
    if one.kept_until is not None:
        return f"kept until {show_moment(one.kept_until, zone, now)}"
    return None if one.next is None else f"{one.next.kind} {show_moment(one.next.at, zone, now)} ({one.next.rule})"


def _show_report(report: PolicyReport, now: float, zone: tzinfo) -> str:
    def show(at: float) -> str:
        return f"{datetime.fromtimestamp(at, zone):%Y-%m-%d %H:%M}"

    total, cost = report.total, clean(f"COST {report.currency}".rstrip())
    lines = [f"Dry run of the idle policy, {show(report.start)} to {show(report.end)}. Nothing was sent or stopped."]
    columns: list[CellColumn[PolicyUser]] = [
        CellColumn("USER", 100, cell=lambda row: "total" if row is total else row.user or "(unknown)"),
        CellColumn("NOTIFIED", 90, "right", cell=lambda row: f"{row.notified:,}"),
        CellColumn("WARNED", 89, "right", cell=lambda row: f"{row.warned:,}"),
        CellColumn("ACTED", 88, "right", cell=lambda row: f"{row.acted:,}"),
        CellColumn("SAVED GPU-HOURS", 99, "right", cell=lambda row: f"{row.saved_hours:,.1f}"),
        CellColumn(cost, 80, "right", cell=lambda row: None if row.saved_cost is None else f"{row.saved_cost:,.2f}"),
    ]
    lines += ["", *tabulate(columns, [*report.users, total], terminal_width(), wants_colour(), has_total=True)]
    if report.steps:
        lines += ["", f"The newest of {report.step_count:,} steps:"]
        lines += [_describe_step(step, now, zone) for step in report.steps[:_MAX_STEPS]]
    coverage = "–" if report.coverage is None else f"{100 * report.coverage:.1f} %"
    told = f"Idle in all: {report.idle_hours:,.1f} GPU-hours, {report.exempt_hours:,.1f} without a rule or an owner."
    return "\n".join([*lines, "", told, f"Coverage {coverage}."])


def _describe_step(step: PolicyStep, now: float, zone: tzinfo) -> str:
    whose = ", ".join(map(clean, step.users)) or "(unknown)"
    saved = "" if step.saved_hours is None else f", saves {step.saved_hours:,.1f} GPU-hours"
    place = f"{clean(step.host)}:{clean(step.label)} ({clean(without_maker(step.model))})"
    at = show_moment(step.at, zone, now)
    return f"  {at}  {step.kind:6}  {place} of {whose}, idle for {show_length(step.idle_seconds)}{saved}"
