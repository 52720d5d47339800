"""gpudeck alerts: what is wrong; look after it, or have nobody told of it for a while."""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpudeck.model.alert import ALERT_STATES, AlertList, SilenceList
from gpudeck.model.errors import UsageError
from gpudeck.model.event import SEVERITIES
from gpudeck.model.hub_url import DEFAULT_HUB

if TYPE_CHECKING:
    from gpudeck.client import Client

T = TypeVar("T")

_EXAMPLES = """\b
Examples:
  gpudeck alerts                                   what is wrong now
  gpudeck alerts --severity critical --host gpu07  what is critical there
  gpudeck alerts --state resolved                  what was wrong
  gpudeck alerts ack 3eca30b04c                    I look after it: it is not told again
  gpudeck alerts silence --host 'gpu-1*' --for 4h "new switch"
  gpudeck alerts silences                          of what nobody is told, and why
  gpudeck alerts unsilence 9f8e7d6c                told again from now on
"""
_HUB = click.option(
    "--hub", metavar="URL", envvar="GPUDECK_HUB", default=DEFAULT_HUB, show_default=True, help="The hub's address."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="The hub's answer as JSON.")


@click.group("alerts", epilog=_EXAMPLES, invoke_without_command=True)
@click.option("--state", type=click.Choice(ALERT_STATES), help="Only those. (default: firing and acknowledged)")
@click.option("--severity", type=click.Choice(SEVERITIES), help="Only what is at least that bad.")
@click.option("--host", help="Only this host: its name or id.")
@click.option("--rule", help="Only this rule, such as gpu_hot.")
@_JSON
@_HUB
@click.pass_context
def command(ctx: click.Context, /, *, as_json: bool, hub: str, **wanted: str | None) -> None:
    """What is wrong in the fleet, the worst first.

    Exit code 0 where nothing is, 1 where something is, 3 when the hub does not answer.
    """
    ctx.ensure_object(dict)["hub"] = hub
    if ctx.invoked_subcommand is not None:
        return
    query = {name: value for name, value in wanted.items() if value is not None}
    if "severity" in query:
        query["severity"] = ",".join(SEVERITIES[SEVERITIES.index(query["severity"]) :])
    body = _ask(hub, lambda client: client.alerts(query))
    from gpudeck.client.answers import read_answer  # noqa: PLC0415 - the help needs none

    found = read_answer(body, AlertList, hub)
    if as_json:
        click.echo(body)
    else:
        _print(found)
    if found.alerts:
        sys.exit(1)


@command.command("ack")
@click.argument("alert", metavar="ID")
@_HUB
@click.pass_context
def acknowledge(ctx: click.Context, alert: str, *, hub: str) -> None:
    """Say that you look after alert ID: it is not told again. It ends when what is wrong does."""
    made = _ask(_hub_of(ctx, hub), lambda client: client.acknowledge(alert))
    from gpudeck.model.printable import clean  # noqa: PLC0415 - the help needs none

    click.echo(f"{clean(made.acknowledged_by or '')} looks after: {clean(made.title)}")


@command.command("silence")
@click.argument("reason")
@click.option("--host", metavar="NAME", help="Only these hosts; * stands for anything.")
@click.option("--rule", metavar="NAME", help="Only these rules; * stands for anything.")
@click.option("--label", "labels", metavar="KEY=VALUE", multiple=True, help="Only hosts with this label.")
@click.option("--for", "length", metavar="SPAN", required=True, help="For how long: 2h, 1d 6h.")
@_HUB
@click.pass_context
def silence(ctx: click.Context, /, reason: str, *, labels: tuple[str, ...], length: str, hub: str, **fits: Any) -> None:
    """Have nobody told of what fits, for a while, and say why. It is shown all the same. For admins."""
    wanted = {name: value for name, value in fits.items() if value is not None}
    if not wanted and not labels:
        raise UsageError("say what is silenced: --host, --rule or --label.")
    wanted |= {"reason": reason, "for": length, "labels": _parse_labels(labels)}
    made = _ask(_hub_of(ctx, hub), lambda client: client.add_silence(wanted))
    click.echo(f"Silence {made.id} lasts until {_show_moment(made.end)}.")


@command.command("silences")
@_JSON
@_HUB
@click.pass_context
def list_silences(ctx: click.Context, *, as_json: bool, hub: str) -> None:
    """Of what nobody is told now or later, until when, who wanted that, and why."""
    from gpudeck.client.answers import read_answer  # noqa: PLC0415 - the help needs none
    from gpudeck.model.printable import clean  # noqa: PLC0415 - the same

    body = _ask(_hub_of(ctx, hub), lambda client: client.silences())
    if as_json:
        click.echo(body)
        return
    found = read_answer(body, SilenceList, hub).silences
    for one in found:
        labels = [f"{name}={value}" for name, value in one.labels.items()]
        what = " ".join(part for part in (one.rule, one.host, *labels) if part)
        click.echo(
            f"{one.id}  {clean(what)}  until {_show_moment(one.end)}, {clean(one.created_by)}: {clean(one.reason)}"
        )
    if not found:
        click.echo("Nothing is silenced.")


@command.command("unsilence")
@click.argument("silence_id", metavar="ID")
@_HUB
@click.pass_context
def unsilence(ctx: click.Context, silence_id: str, *, hub: str) -> None:
    """End silence ID now. What still fires is told then. For admins."""
    _ask(_hub_of(ctx, hub), lambda client: client.end_silence(silence_id))
    click.echo(f"Silence {silence_id} is over.")


def _hub_of(ctx: click.Context, hub: str) -> str:
    """`gpudeck alerts --hub URL ack ID` and `gpudeck alerts ack ID --hub URL` mean the same."""
    is_given = ctx.get_parameter_source("hub") is not click.core.ParameterSource.DEFAULT
    return hub if is_given else str(ctx.obj["hub"])


def _ask(hub: str, question: "Callable[[Client], T]") -> T:
    from gpudeck.cli.hub_access import ask  # noqa: PLC0415 - the help needs none

    return ask(hub, question)


def _print(found: AlertList) -> None:
    from gpudeck.cli.terminal import knows_our_signs, wants_colour  # noqa: PLC0415 - JSON needs none
    from gpudeck.views.table import in_ascii  # noqa: PLC0415 - the same
    from gpudeck.views.text import render_alerts  # noqa: PLC0415 - the same

    if not found.alerts:
        click.echo("Nothing is wrong.")
        return
    text = render_alerts(found.alerts, found.time, colour=wants_colour())
    click.echo(text if knows_our_signs() else in_ascii(text), nl=False, color=True)


def _parse_labels(labels: tuple[str, ...]) -> dict[str, str]:
    for label in labels:
        if "=" not in label or label.startswith("="):
            raise UsageError(f"--label {label!r} has to be KEY=VALUE.")
    return dict(label.split("=", 1) for label in labels)


def _show_moment(at: float) -> str:
    from gpudeck.cli.hub_access import machine_zone  # noqa: PLC0415 - the help needs none
    from gpudeck.model.moments import show_moment  # noqa: PLC0415 - the same

    return show_moment(at, machine_zone(), time.time())
