"""What is wrong, as lines for a terminal: the same for curl, `gpudeck show` and `gpudeck alerts`."""

from collections.abc import Sequence
from typing import Final

from gpudeck.model.alert import Alert
from gpudeck.model.quantity import show_span
from gpudeck.model.view import Fleet
from gpudeck.views.safe import clean
from gpudeck.views.table import paint

MOST_BELOW_A_TABLE: Final = 10
_SIGNS = {"info": "·", "warning": "▲", "critical": "■"}
_COLOURS = {"warning": "yellow", "critical": "red"}


def render_alert(alert: Alert, now: float, *, colour: bool) -> str:
    """One line: how bad, what, for how long, and who looks after it."""
    sign, painted = _SIGNS.get(alert.severity, "·"), _COLOURS.get(alert.severity, "")
    said = paint(f"{sign} {clean(alert.title)}", painted, colour)
    return f"{said}{_aside(alert, now)}"


def render_list(alerts: Sequence[Alert], now: float, *, colour: bool) -> str:
    """Two lines an alert, the second with its id, its rule and the next step; ending in a newline."""
    lines = []
    for alert in alerts:
        lines.append(render_alert(alert, now, colour=colour))
        said = f"{alert.id}  {clean(alert.rule)}  {clean(alert.note or alert.action)}"
        lines.append(f"  {paint(said, 'grey', colour)}")
    return "".join(f"{line}\n" for line in lines)


def for_everybody(fleet: Fleet) -> list[Alert]:
    """The alerts of the hosts that are shown, and of the hub, that somebody should look at. What is silenced, and what
    is for one person alone, is not repeated to everybody."""
    hosts = {host.id for host in fleet.hosts}
    return [
        alert
        for alert in fleet.alerts
        if alert.severity != "info" and alert.silenced_by is None and (alert.host_id is None or alert.host_id in hosts)
    ]


def below_table(fleet: Fleet, colour: bool) -> list[str]:
    """A line for each that is `for_everybody`, but no more than a few."""
    told = for_everybody(fleet)
    lines = [render_alert(alert, fleet.time, colour=colour) for alert in told[:MOST_BELOW_A_TABLE]]
    more = len(told) - len(lines)
    return [*lines, f"{more} more alerts: gpudeck alerts"] if more else lines


def _aside(alert: Alert, now: float) -> str:
    if alert.state == "resolved" and alert.resolved_at is not None:
        return f", over for {show_span(now - alert.resolved_at)}"
    parts = [f"for {show_span(now - alert.since)}"]
    if alert.acknowledged_by is not None:
        parts.append(f"{clean(alert.acknowledged_by)} looks after it")
    if alert.silenced_by is not None:
        parts.append("silenced")
    if alert.state == "pending":
        parts.append("pending")
    return f", {', '.join(parts)}"
