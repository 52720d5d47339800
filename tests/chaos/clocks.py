"""A hub's clock that is wrong: at its start, and while it runs. The hosts' clocks are right all the while."""

import time
from pathlib import Path

from alerts.notifiers.sinks import running_webhook
from chaos.compare import Difference, compare_samples
from chaos.figures import Outcome, at_most, took
from chaos.hosts import Fleet, reporting
from chaos.hub import NO_COMPILER, ChaosHub, chaos_hub
from fakes.waiting import wait_until

DAY = 86_400


def at_start(folder: Path, *, seed: int, short: bool, kills: int) -> Outcome:
    """Samples of three days ago and of today; then the hub starts with its clock 40 days ahead, and is set right."""
    del seed, kills
    outcome = Outcome("clock 40 days ahead at a start")
    if NO_COMPILER:
        return Outcome(outcome.scenario, not_run=NO_COMPILER)
    number, seconds = (2, 4) if short else (4, 8)
    with running_webhook() as hook, chaos_hub(folder, webhook=hook.url) as hub:
        old = _report_for(hub, number, seconds, -3 * DAY, "long ago")
        today = _report_for(hub, number, seconds, 0, "today")
        hub.set_clock(40 * DAY)
        _report_wrongly(hub, number, 8 if short else 20)
        begun = time.monotonic()
        right = _report_for(hub, number, seconds, 0, "set right")
        recovery = time.monotonic() - begun - seconds
        found = [_compare(hub, fleet) for fleet in (old, today, right)]
        hub.start()
        alerts = hub.alerts()
        hub.stop()
    outcome.figures = [
        at_most("deleted: seconds from before (host that lost most)", max(one.lost_seconds for one in found[:2]), 0),
        at_most("lost seconds after the clock is right", found[2].lost_seconds, 0, "s"),
        at_most("duplicates", sum(one.duplicates for one in found), 0),
        at_most("wrong values", sum(one.wrong for one in found), 0),
        at_most("false alerts", len(alerts) + len(hook.taken), 0),
        took("recovery: from the right clock until samples are kept", [recovery]),
    ]
    outcome.notes = [note for one in found for note in one.notes] + [f"alert: {alert['title']}" for alert in alerts[:5]]
    return outcome


def while_running(folder: Path, *, seed: int, short: bool, kills: int) -> Outcome:
    """An hour ahead, right again, an hour behind, right again."""
    del seed, kills
    outcome = Outcome("clock steps of an hour while the hub runs")
    if NO_COMPILER:
        return Outcome(outcome.scenario, not_run=NO_COMPILER)
    number, seconds = (2, 4) if short else (4, 10)
    wrong: list[tuple[float, float]] = []
    with running_webhook() as hook, chaos_hub(folder, webhook=hook.url) as hub:
        hub.set_clock(0)
        hub.start()
        with reporting(hub.port, hub.token, number) as fleet:
            down = 0
            for offset in (0, 3600, 0, -3600, 0):
                changed = time.time()
                hub.set_clock(offset)
                until = changed + seconds
                while time.time() < until:
                    down += sum(status == "down" for status in hub.statuses().values())
                    time.sleep(0.3)
                if offset:
                    wrong.append((changed - 2, time.time() + 2))
            fleet.stop(deliver=20)
        time.sleep(5)
        alerts = hub.alerts()
        hub.stop()
        rows = hub.samples(fleet.epoch - DAY, time.time() + DAY)
        found = compare_samples(rows, fleet, dated=lambda second: not _is_in(fleet.epoch + second, wrong))
    outcome.figures = [
        *found.figures(),
        at_most("false alerts", len(alerts) + len(hook.taken), 0),
        at_most("times a host was seen down", down, 0),
    ]
    outcome.notes = found.notes + [f"alert: {alert['title']}" for alert in alerts[:5]]
    return outcome


def _report_for(hub: ChaosHub, number: int, seconds: int, offset: int, run_id: str) -> Fleet:
    """Start the hub at that offset of its clock, with hosts that have the same, and stop it."""
    hub.set_clock(offset)
    hub.start()
    with reporting(hub.port, hub.token, number, clock=lambda: time.time() + offset, run_id=run_id, epoch=None) as fleet:
        wait_until(lambda: fleet.seconds() >= seconds, f"{seconds} seconds", 60)
        fleet.stop(deliver=20)
    # A late hour is sealed two seconds after the last sample.
    time.sleep(3)
    hub.stop()
    return fleet


def _report_wrongly(hub: ChaosHub, number: int, seconds: int) -> None:
    """The hosts' clocks are right."""
    hub.start()
    with reporting(hub.port, hub.token, number, run_id="wrong clock"):
        time.sleep(seconds)
    hub.stop()


def _compare(hub: ChaosHub, fleet: Fleet) -> Difference:
    return compare_samples(hub.samples(fleet.epoch - 1, fleet.epoch + fleet.last_second() + 2), fleet)


def _is_in(moment: float, spans: list[tuple[float, float]]) -> bool:
    return any(first <= moment <= last for first, last in spans)
