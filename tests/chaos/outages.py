"""Hubs that were away for long, and hosts that all fall silent at once."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from alerts.notifiers.sinks import running_webhook
from chaos.compare import compare_samples
from chaos.figures import Outcome, at_most, holds, took
from chaos.hosts import Sender, reporting
from chaos.hub import NO_COMPILER, ChaosHub, chaos_hub
from fakes.reports import GIB, HOST, make_gpu, make_process
from fakes.waiting import wait_until
from gpudeck.model.report import GpuReading, Report
from gpudeck.wire import Envelope

STEP = 10
HOUR = 3600
_IDLE_AFTER = 595
"""Between two samples: at 600 it would depend on milliseconds whether one counts."""
_OLD, _NEW = "580.95.05", "580.159.04"
_NEW_DRIVER = 2400
_DELIVERY = 8.0
"""Seconds that a backlog takes at least: longer than it takes to tell people of a host that is down."""


def backlog(folder: Path, *, seed: int, short: bool, kills: int) -> Outcome:
    """The hub is away for more than an hour; agents go on, and deliver then: the newest first, the rest in order."""
    del seed, kills
    outcome = Outcome("backlog of an hour")
    if NO_COMPILER:
        return Outcome(outcome.scenario, not_run=NO_COMPILER)
    number = 2 if short else 6
    hour = int(time.time()) // HOUR * HOUR - HOUR
    with running_webhook() as hook, _knowing_hub(folder, hook.url) as hub:
        takes_late = _be_there_before(hub, hour - 120, number)
        hub.start()
        returned = time.monotonic()
        heard: set[str] = set()
        with _watching(hub, heard) as statuses:
            _deliver(hub, number, hour, heard, newest_first=takes_late)
            delivered = time.monotonic()
            wait_until(lambda: _is_accounted(hub, hour, number), "the accounts of the backlog", 30)
        used = hub.get(f"/api/v1/usage?by=user&start={hour}&end={hour + HOUR}")
        runs = hub.get(f"/api/v1/runs?start={hour}&end={hour + HOUR}&limit=1000")["runs"]
        with contextlib.suppress(AssertionError):
            wait_until(lambda: len(_new_drivers(hub)) >= number, "the events of the backlog", 20)
        drivers = _new_drivers(hub)
        alerts = hub.alerts()
        time.sleep(4)
        off, notes = _compare_usage(used, number)
        late_events = [
            f"{event['host']} {event['kind']} at {event['at'] - hour:.0f} s of the hour"
            for event in drivers
            if abs(event["at"] - hour - _NEW_DRIVER) > STEP
        ]
        outcome.figures = [
            at_most("usage against delivery in time, largest difference", off, 0.1, "%"),
            at_most("wrong values: runs", len(_wrong_runs(runs, number, hour, notes)), 0),
            at_most("wrong values: events at another time than theirs", len(late_events), 0),
            at_most("duplicates, or lost: events", abs(len(drivers) - number), 0),
            at_most("false alerts", len(alerts) + len(hook.taken), 0),
            at_most("hosts that were down after their return", len(statuses), 0),
            took("recovery: until the backlog is accounted", [time.monotonic() - returned]),
            took("of it: delivery at the pace of this test", [delivered - returned]),
        ]
    if len(drivers) != number:
        notes.append(f"a new driver is told of {sorted(event['host'] for event in drivers)} only")
    outcome.notes = [*notes, *late_events[:3], *(f"alert: {alert['title']}" for alert in alerts[:3]), *sorted(statuses)]
    return outcome


def mass_outage(folder: Path, *, seed: int, short: bool, kills: int) -> Outcome:
    """All hosts fall silent, the hub is killed meanwhile, all come back: one message, and one that it is resolved."""
    del seed, kills
    number = 4 if short else 12
    outcome = Outcome("mass outage and return")
    with running_webhook() as hook, chaos_hub(folder, webhook=hook.url, down_after="6s") as hub:
        hub.start()
        with reporting(hub.port, hub.token, number) as fleet:
            wait_until(lambda: list(hub.statuses().values()).count("up") == number, "all hosts up", 60)
            # New hosts are remembered after ten seconds.
            time.sleep(12)
            fleet.is_cut = True
            cut = time.monotonic()
            with contextlib.suppress(AssertionError):
                wait_until(lambda: hook.taken, "a message", 60)
            told = time.monotonic() - cut
            wait_until(hub.has_noted_message, "a message that is noted", 30)
            hub.kill()
            died = time.monotonic()
            hub.start()
            time.sleep(6 if short else 12)
            known = sum(status in {"down", "late"} for status in hub.statuses().values())
            before = len(hook.taken)
            fleet.is_cut = False
            back = time.monotonic()
            with contextlib.suppress(AssertionError):
                wait_until(lambda: len(hook.taken) > before, "the messages that it is resolved", 60)
            over = time.monotonic() - back
            wait_until(lambda: list(hub.statuses().values()).count("up") == number, "all hosts up again", 60)
            time.sleep(6)
            fleet.stop(deliver=60)
        hub.stop()
        found = compare_samples(hub.samples(fleet.epoch - 60, time.time() + 60), fleet)
    texts = hook.texts()
    fired = [text for text in texts if "reporting" in text and "Resolved" not in text.split("\n")[0]]
    ended = [text for text in texts if text not in fired]
    outcome.figures = [
        at_most("messages that they are down", len(fired), 1),
        holds("all hosts are in that message", bool(fired) and str(number) in fired[0].split("\n")[0]),
        at_most("messages that it is resolved", len(ended), 1),
        holds("the end is told", len(ended) == 1),
        holds("hosts are known to be away after the hub's restart", known == number, f"{known} of {number}"),
        *found.figures(fleet, [died]),
        took("recovery: from the cut until people are told", [told]),
        took("recovery: from the return until people are told", [over]),
    ]
    outcome.notes = [*found.notes, *(f"message: {text.splitlines()[0]}" for text in texts)]
    return outcome


def _new_drivers(hub: ChaosHub) -> list[Any]:
    return [event for event in hub.get("/api/v1/events?limit=1000")["events"] if event["kind"] == "driver_changed"]


def _be_there_before(hub: ChaosHub, moment: float, number: int) -> bool:
    """The hub knew these hosts before it went away: its clock stood at `moment` then. Whether it takes late reports."""
    offset = moment - time.time()
    hub.set_clock(offset)
    hub.start()
    sender = Sender(hub.port, hub.token)
    for host in range(number):
        for ago in (20, 10, 0):
            now = time.time() + offset
            assert sender.post(_report(host, int(moment), now - ago), now)
    # New hosts are remembered after ten seconds.
    time.sleep(12)
    sender.close()
    hub.stop()
    hub.set_clock(0)
    return sender.takes_late


def _deliver(hub: ChaosHub, number: int, hour: int, heard: set[str], *, newest_first: bool) -> None:
    """Everything since `hour`, of all hosts at once. Even hosts begin with their newest report, and send a new one
    whenever it is due; odd ones go from the oldest to the newest. `heard` gets the names of those that have begun."""
    begun = time.monotonic()
    last = int(time.time()) // STEP * STEP
    moments = list(range(hour - 60, last, STEP))
    pause = _DELIVERY / len(moments) / number
    sender = Sender(hub.port, hub.token)
    fresh = last
    modern, old = (range(0, number, 2), range(1, number, 2)) if newest_first else (range(0), range(number))
    for host in modern:
        assert sender.post(_report(host, hour, last + 5), max(time.time(), last + 5.0))
    for place, moment in enumerate(moments):
        for host in range(number):
            assert sender.post(_report(host, hour, moment + 5), time.time())
            heard.add(f"gpu{host:02}")
            ahead = begun + (place * number + host) * pause - time.monotonic()
            time.sleep(max(0.0, ahead))
        if time.time() >= fresh + STEP + 5:
            fresh += STEP
            for host in modern:
                assert sender.post(_report(host, hour, fresh + 5), time.time())
    for moment in range(last, fresh + STEP, STEP):
        for host in old:
            assert sender.post(_report(host, hour, moment + 5), max(time.time(), moment + 5.0))
    sender.close()


def _report(host: int, hour: int, at: float) -> Envelope:
    second = at - hour
    return Envelope(
        version=1,
        host=f"gpu{host:02}",
        host_id=f"machine-{host:02}",
        boot_id="boot-1",
        run_id="run-1",
        sequence=int(at) // STEP,
        collected_at=float(at),
        interval_seconds=float(STEP),
        agent_version="0.1.0",
        report=Report(
            gpus=[_gpu(host, index, second, hour) for index in range(4)],
            metrics=dict(HOST),
            driver_version=_OLD if second < _NEW_DRIVER else _NEW,
        ),
    )


def _gpu(host: int, index: int, second: float, hour: int) -> GpuReading:
    load, people = _script(index, second)
    memory = sum(gib for _, gib in people)
    return make_gpu(
        index,
        uuid=f"GPU-{host:02}-{index}",
        metrics={"utilization_percent": load, "memory_used_bytes": memory * GIB},
        processes=[
            make_process(1000 + index * 10 + place, user, gib, started_at=float(hour - 7200))
            for place, (user, gib) in enumerate(people)
        ],
        idle_seconds=None,
    )


def _script(index: int, second: float) -> tuple[int, list[tuple[str, int]]]:
    """What GPU `index` does at that second of the hour: its utilization, and who is there with how many GiB."""
    if index == 0:
        return 97, [("alice", 40)]
    if index == 1:
        return (80 if second < 1200 else 0), [("bob", 20)]
    if index == 2:
        return (50, [("carol", 30)]) if 900 <= second < 2700 else (0, [])
    return 40, [("alice", 60), ("dave", 20)]


def _truth(number: int) -> dict[str, tuple[float, float, float]]:
    """GPU-hours, active and idle hours by user, from samples every ten seconds that all came in time."""
    seconds: dict[str, list[float]] = {}
    for index in range(4):
        worked_at = -60.0 if index == 1 else 0.0
        for second in range(5, HOUR, STEP):
            load, people = _script(index, second)
            worked_at = second if load else worked_at
            held = sum(gib for _, gib in people)
            for user, gib in people:
                mine = seconds.setdefault(user, [0.0, 0.0, 0.0])
                part = STEP * gib / held
                mine[0] += part
                mine[1] += part * load / 100
                mine[2] += part * (second - worked_at >= _IDLE_AFTER)
    return {user: tuple(number * one / HOUR for one in mine) for user, mine in seconds.items()}  # type: ignore[misc]


def _compare_usage(used: dict[str, object], number: int) -> tuple[float, list[str]]:
    """The largest difference in percent of the user's GPU-hours, and what differs."""
    truth, notes, worst = _truth(number), [], 0.0
    rows = {row["user"]: row for row in used["rows"]}  # type: ignore[attr-defined]
    for user, wanted in truth.items():
        row = rows.get(user, {})
        found = (
            row.get("gpu_hours", 0.0),
            row.get("active_hours", row.get("active_hours")) or 0.0,
            row.get("idle_hours", row.get("idle_hours", 0.0)),
        )
        for name, got, want in zip(("GPU-hours", "active hours", "idle hours"), found, wanted, strict=True):
            off = abs(got - want) / wanted[0] * 100
            worst = max(worst, off)
            if off > 0.1:
                notes.append(f"{user}: {got:.3f} {name} instead of {want:.3f}")
    return worst, notes


def _wrong_runs(runs: list[dict[str, object]], number: int, hour: int, notes: list[str]) -> list[str]:
    """Each host has one run of everybody; carol's is half an hour long."""
    wrong = []
    counts = Counter((run["host_name"], run["pid"]) for run in runs)
    for host in range(number):
        name = f"gpu{host:02}"
        wrong += [
            f"{name} has {counts[name, pid]} runs of pid {pid} instead of 1"
            for pid in (1000, 1010, 1020, 1030, 1031)
            if counts[name, pid] != 1
        ]
    for run in runs:
        if run["user"] == "carol":
            seen, ended = float(run["seen_at"]) - hour, float(run["ended_at"] or 0) - hour  # type: ignore[arg-type]
            if abs(seen - 900) > STEP or abs(ended - 2700) > STEP:
                wrong.append(f"carol's run on {run['host_name']} is from {seen:.0f} s to {ended:.0f} s of the hour")
    notes += wrong[:4]
    return wrong


def _is_accounted(hub: ChaosHub, hour: int, number: int) -> bool:
    """The writer has taken everything that was delivered: sums no longer change."""
    ask = f"/api/v1/usage?by=user&start={hour}&end={hour + HOUR}"
    first = hub.get(ask)["total"]["gpu_hours"]
    time.sleep(3)
    return bool(first == hub.get(ask)["total"]["gpu_hours"])


def _knowing_hub(folder: Path, webhook: str) -> contextlib.AbstractContextManager[ChaosHub]:
    fleet = f", availability: {{idle_after: {_IDLE_AFTER}s}}"
    return chaos_hub(folder, webhook=webhook, history=", every: 10s", fleet=fleet)


@contextlib.contextmanager
def _watching(hub: ChaosHub, heard: set[str]) -> Iterator[set[str]]:
    """What was wrong with hosts at some moment after they were heard again."""
    bad: set[str] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.25):
            names = set(heard)
            with contextlib.suppress(OSError):
                bad.update(
                    f"{name} was {status} after its return"
                    for name, status in hub.statuses().items()
                    if name in names and status == "down"
                )

    watching = threading.Thread(target=look, daemon=True)
    watching.start()
    try:
        yield bad
    finally:
        over.set()
        watching.join(20)
