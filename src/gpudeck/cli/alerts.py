"""gpudeck alerts: list alerts, acknowledge them, or mute them for a while."""

import sys
import time
from collections.abc import Iterator
from typing import Any

import click

from gpudeck.alerts.expression import ExpressionError, parse_expression
from gpudeck.cli.hub_access import ask, fetch, machine_zone
from gpudeck.cli.options import hub_option, parse_labels, period_options, severities_from
from gpudeck.cli.period import local_zone, read_period
from gpudeck.cli.terminal import show, wants_colour
from gpudeck.client.answers import read_answer
from gpudeck.client.connection import in_path
from gpudeck.model.alert import ALERT_STATES, Alert, AlertList, AlertTest, Mute, MuteList, name_hosts
from gpudeck.model.errors import UsageError
from gpudeck.model.event import SEVERITIES
from gpudeck.model.text import clean, show_count, show_length, show_span
from gpudeck.model.times import show_moment
from gpudeck.views.text import render_alerts

_EXAMPLES = """\b
Examples:
  gpudeck alerts                                   what is wrong now
  gpudeck alerts --severity critical --host gpu07  critical alerts of one host
  gpudeck alerts mute --host 'gpu-1*' --for 4h "new switch"
  gpudeck alerts ack 3eca30b04c                    stop its notifications
  gpudeck alerts mutes                             what is muted, and why
  gpudeck alerts unmute 9f8e7d6c                   send notifications again
  gpudeck alerts test idle_memory --since 30d      how often a rule of yours would have fired
  gpudeck alerts test --expr 'power_watts > 500 for 10m'
"""
_MUTES = "/api/v1/mutes"
_PATIENCE = 60.0
"""Seconds: the hub reads the history of each host."""
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the hub's answer as JSON.")


@click.group("alerts", epilog=_EXAMPLES, invoke_without_command=True)
@click.option(
    "--state", type=click.Choice(ALERT_STATES), help="Only alerts in this state. [default: firing and acknowledged]"
)
@click.option("--severity", type=click.Choice(SEVERITIES), help="The lowest severity to show.")
@click.option("--host", help="Only alerts of this host (name or id).")
@click.option("--rule", help="Only alerts of this rule, such as gpu_hot.")
@_JSON
@hub_option
@click.pass_context
def command(ctx: click.Context, /, *, as_json: bool, hub: str, **wanted: str | None) -> None:
    """List the alerts of the fleet, most severe first.

    Exit code 0 if there are none, 1 if there are some, 3 if the hub does not answer.
    """
    if ctx.invoked_subcommand is not None:
        if ctx.get_parameter_source("hub") is click.core.ParameterSource.COMMANDLINE:
            raise UsageError(f"--hub stands behind {ctx.invoked_subcommand}.")
        return
    query = wanted | {"severity": severities_from(wanted["severity"])}
    found, body = fetch(hub, AlertList, "/api/v1/alerts", query)
    if as_json:
        click.echo(body)
    elif found.alerts:
        show(render_alerts(found.alerts, found.time, colour=wants_colour()))
    else:
        click.echo("Nothing is wrong.")
    if found.alerts:
        sys.exit(1)


@command.command("ack")
@click.argument("alert", metavar="ID")
@hub_option
def acknowledge(alert: str, *, hub: str) -> None:
    """Acknowledge alert ID: no more notifications are sent. It is resolved when its cause ends."""
    body = ask(hub, lambda client: client.post(f"/api/v1/alerts/{in_path(alert)}/acknowledge"))
    made = read_answer(body, Alert, hub)
    click.echo(f"{clean(made.acknowledged_by or '')} acknowledged: {clean(made.title)}")


@command.command("mute")
@click.argument("reason")
@click.option("--host", metavar="NAME", help="Only hosts with this name; * matches anything.")
@click.option("--rule", metavar="NAME", help="Only rules with this name; * matches anything.")
@click.option("--label", "labels", metavar="KEY=VALUE", multiple=True, help="Only hosts with this label.")
@click.option("--for", "length", metavar="SPAN", required=True, help="The duration: 2h, 1d 6h.")
@hub_option
def mute(reason: str, *, labels: tuple[str, ...], length: str, hub: str, **fits: Any) -> None:
    """Mute matching alerts for a while, with a REASON. They are still shown. For admins."""
    wanted = {name: value for name, value in fits.items() if value is not None}
    if not wanted and not labels:
        raise UsageError("nothing to mute is named.", "Give --host, --rule or --label.")
    wanted |= {"reason": reason, "for": length, "labels": parse_labels(labels)}
    made = read_answer(ask(hub, lambda client: client.post(_MUTES, wanted)), Mute, hub)
    click.echo(f"Mute {made.id} lasts until {_show_moment(made.end)}.")


@command.command("test")
@click.argument("rule", required=False)
@click.option("--expr", metavar="TEXT", help="An expression to test in place of a rule.")
@period_options("7d")
@click.option("--host", metavar="NAME", help="Only this host (name or id).")
@_JSON
@hub_option
def try_rule(*, since: str, until: str | None, as_json: bool, hub: str, **asked: Any) -> None:
    """Test a RULE of your own, or an expression, against the history: how often would it have fired?"""
    if (asked["rule"] is None) == (asked["expr"] is None):
        raise UsageError("name one rule, or give --expr.", "gpudeck alerts test --expr 'power_watts > 500 for 10m'")
    if asked["expr"] is not None:
        try:
            parse_expression(asked["expr"])
        except ExpressionError as error:
            raise UsageError(f"{error}\n    " + "\n    ".join(error.detail.split("\n"))) from error
    start, end = read_period(since, until, time.time(), local_zone())
    query = asked | {"start": f"{start}", "end": f"{end}"}
    found, body = fetch(hub, AlertTest, "/api/v1/alerts/test", query, timeout=_PATIENCE)
    if as_json:
        click.echo(body)
    else:
        show("".join(f"{line}\n" for line in _describe_test(found)))


@command.command("mutes")
@_JSON
@hub_option
def list_mutes(*, as_json: bool, hub: str) -> None:
    """List the mutes: what they match, until when, who added them, and why."""
    listed, body = fetch(hub, MuteList, _MUTES)
    if as_json:
        click.echo(body)
        return
    found = listed.mutes
    for one in found:
        labels = [f"{name}={value}" for name, value in one.labels.items()]
        what = " ".join(part for part in (one.rule, one.host, name_hosts(one.hosts), *labels) if part)
        click.echo(
            f"{one.id}  {clean(what)}  until {_show_moment(one.end)}, {clean(one.created_by)}: {clean(one.reason)}"
        )
    if not found:
        click.echo("Nothing is muted.")


@command.command("unmute")
@click.argument("mute_id", metavar="ID")
@hub_option
def unmute(mute_id: str, *, hub: str) -> None:
    """End mute ID now. Alerts that still fire are then sent. For admins."""
    ask(hub, lambda client: client.delete(f"{_MUTES}/{in_path(mute_id)}"))
    click.echo(f"Mute {mute_id} has ended.")


def _describe_test(found: AlertTest) -> Iterator[str]:
    period = show_length(found.end - found.start)
    if found.step is None or not found.known:
        yield f"Not tested: the history knows nothing of what the rule compares in these {period}."
        return
    places = len({(firing.host_id, firing.gpu) for firing in found.firings})
    where = "" if not found.count else f", on {show_count(places, 'host' if found.firings[0].gpu is None else 'GPU')}"
    name = clean(found.rule or "The rule")
    if found.count:
        yield f"{name} would have fired {show_count(found.count, 'time')} in {period}{where}:"
    else:
        yield f"{name} would never have fired in {period}."
    for firing in found.firings:
        end = firing.resolved_at
        lasted = f"for {show_span(end - firing.since)}" if end is not None else "still true"
        yield f"  {_show_moment(firing.fired_at)}  {lasted:<11}  {clean(firing.title)}"
    if found.count > len(found.firings):
        yield f"  … and {found.count - len(found.firings)} more"
    yield (
        f"Tested on {show_count(found.hosts, 'host')} with means of {show_span(found.step)}: what lasts less than that "
        f"is not seen. {100 * found.known:.0f} % of the time is known."
    )
    if found.hosts_left:
        left = show_count(found.hosts_left, "host")
        yield f"It took too long: not tested on {left}. Give --host or a shorter period."


def _show_moment(at: float) -> str:
    return show_moment(at, machine_zone(), time.time())
