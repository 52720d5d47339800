"""PostgreSQL and VictoriaMetrics away: stopped, frozen, and away while the hub starts."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

from alerts.notifiers.sinks import running_webhook
from chaos.compare import compare_samples
from chaos.figures import Outcome, at_most, holds, took
from chaos.hosts import Fleet, reporting
from chaos.hub import ChaosHub, chaos_hub
from fakes.postgres import running_postgres
from fakes.prometheus import StoreProcess, running_store
from fakes.waiting import wait_until

_SILENT = "gpu00"


def postgresql(folder: Path, *, seed: int, short: bool, kills: int) -> Outcome:
    """A host falls silent while the database is away; the hub is killed then, and starts without it."""
    del seed, kills
    outcome = Outcome("PostgreSQL away")
    if not (shutil.which("postgres") or list(Path("/usr/lib/postgresql").glob("*/bin/postgres"))):
        return Outcome(outcome.scenario, not_run="there is no PostgreSQL on this machine")
    with running_postgres() as server, running_webhook() as hook:
        more = f"database: {server.make_database()}"
        with (
            chaos_hub(folder, more=more, webhook=hook.url, down_after="6s") as hub,
            reporting(hub.port, hub.token, 3 if short else 6) as fleet,
        ):
            hub.start()
            wait_until(lambda: fleet.has_reported(0) and fleet.seconds() > 3, "all hosts up", 60)
            frozen = _freeze(server.process, hub, 3 if short else 10)
            server.kill()
            degraded = _becomes(lambda: hub.readiness()[1] not in {"", "ready"}, 30)
            fleet.mute(_SILENT)
            told = _becomes(lambda: hook.taken, 30)
            wait_until(hub.has_noted_message, "a message that is noted", 30)
            hub.kill()
            died = time.monotonic()
            hub.start(wait=False)
            with contextlib.suppress(AssertionError):
                hub.wait_healthy()
            starts = hub.is_running()
            heard = starts and _becomes(lambda: list(hub.statuses().values()).count("up") >= len(fleet.hosts) - 1, 30)
            degraded_again = starts and hub.readiness()[1] not in {"", "ready"}
            server.start()
            back = time.monotonic()
            if not hub.is_running():
                hub.start()
            wait_until(lambda: hub.readiness()[1] == "ready", "readiness", 120)
            recovery = time.monotonic() - back
            _becomes(lambda: hook.taken, 30)
            time.sleep(5)
            fleet.mute()
            _becomes(lambda: len(hook.taken) > 1, 90)
            time.sleep(6)
            alerts = [alert for alert in hub.alerts() if (alert["rule"], alert["host"]) != ("host_down", _SILENT)]
            fleet.stop(deliver=30)
            hub.stop()
            found = compare_samples(hub.samples(fleet.epoch - 60, time.time() + 60), fleet)
    texts = [text.splitlines()[0] for text in hook.texts()]
    ended = [text for text in texts if "Resolved" in text]
    fired = [text for text in texts if text not in ended]
    outcome.figures = [
        *found.figures(fleet, [died]),
        at_most("false alerts", len(alerts), 0),
        at_most("messages beyond these two", max(0, len(fired) - 1) + max(0, len(ended) - 1), 0),
        holds("people are told that it is down, once", len(fired) == 1, f"{len(fired)} times"),
        holds("people are told that it is back, once", len(ended) == 1, f"{len(ended)} times"),
        holds("they are told while the database is away", bool(told)),
        holds("/readyz says degraded while it is away", bool(degraded)),
        holds("the hub starts without it, and shows the hosts", bool(heard)),
        holds("/readyz says degraded after such a start", bool(degraded_again)),
        holds("the hub answers while the database is frozen", bool(frozen)),
        took("recovery: from the database's return until /readyz says ready", [recovery]),
    ]
    outcome.notes = [*found.notes, *(f"message: {text}" for text in texts), *(f"alert: {a['title']}" for a in alerts)]
    if not starts:
        outcome.notes.append(f"start: {hub.read_log().strip().splitlines()[-1][:200]}")
    return outcome


def victoria_metrics(folder: Path, *, seed: int, short: bool, kills: int) -> Outcome:
    """The store is stopped, frozen, and away while the hub is killed and starts."""
    del seed, kills
    outcome = Outcome("VictoriaMetrics away")
    if not shutil.which("victoria-metrics"):
        return Outcome(outcome.scenario, not_run="there is no VictoriaMetrics on this machine")
    seconds = 5 if short else 12
    with running_store("victoria-metrics") as store, running_webhook() as hook:
        history = f", every: 1s, kind: prometheus, write_url: '{store.write_url}', read_url: '{store.read_url}'"
        more = "alerts: {group_wait: 2s, rules: {history_failing: {for: 3s, clear_after: 3s}}}"
        with (
            chaos_hub(folder, history=history, more=more, webhook=hook.url) as hub,
            reporting(hub.port, hub.token, 2 if short else 6) as fleet,
        ):
            hub.start()
            wait_until(lambda: fleet.has_reported(0) and fleet.seconds() > 3, "reports", 60)
            store.stop()
            time.sleep(seconds)
            critical = _critical(hub)
            hub.kill()
            died = time.monotonic()
            hub.start()
            time.sleep(seconds)
            critical += _critical(hub)
            store.start()
            wait_until(lambda: not hub.get("/api/v1/fleet")["problems"], "the queue's way to the store", 120)
            answers = _freeze(store.process, hub, seconds)
            critical += _critical(hub)
            begun = time.monotonic()
            alerts = [alert for alert in hub.alerts() if alert["rule"] != "history_failing"]
            fleet.stop(deliver=30)
            _becomes(lambda: not compare_samples(_read(store, fleet), fleet).lost, 90)
            recovery = time.monotonic() - begun
            found = compare_samples(_read(store, fleet), fleet)
            hub.stop()
    outcome.figures = [
        *found.figures(fleet, [died]),
        at_most("false alerts", len(alerts), 0),
        at_most("critical alerts although nothing is lost", len(critical), 0),
        holds("the hub answers while the store is frozen", answers),
        took("recovery: from the store's return until it has everything", [recovery]),
    ]
    outcome.notes = [*found.notes, *critical[:2], *(f"alert: {alert['title']}" for alert in alerts[:3])]
    return outcome


def _becomes(condition: Callable[[], object], seconds: float) -> bool:
    """Whether it does within so many seconds. A hub that does not answer is one more reason to wait."""

    def holds_now() -> bool:
        with contextlib.suppress(OSError):
            return bool(condition())
        return False

    with contextlib.suppress(AssertionError):
        wait_until(holds_now, "it", seconds)
        return True
    return False


def _freeze(process: "subprocess.Popen[bytes] | None", hub: ChaosHub, seconds: float) -> bool:
    """Stop all processes of a server without ending them; whether the hub answers meanwhile."""
    assert process is not None
    pid = process.pid
    pids = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    for one in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGSTOP)
    try:
        until, longest = time.monotonic() + seconds, 0.0
        while time.monotonic() < until:
            begun = time.monotonic()
            hub.get("/healthz")
            hub.statuses()
            longest = max(longest, time.monotonic() - begun)
            time.sleep(0.2)
    finally:
        for one in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGCONT)
    return longest < 5


def _critical(hub: ChaosHub) -> list[str]:
    found = hub.alerts("firing")
    return [f"critical: {a['title']}" for a in found if a["rule"] == "history_failing" and a["severity"] == "critical"]


def _read(store: StoreProcess, fleet: Fleet) -> list[dict[str, str]]:
    """The samples in the store as rows of an export; who was on a GPU is not among them."""
    store.show_all()
    memory, loads = (
        _read_series(store, name, fleet) for name in ("gpudeck_gpu_memory_used_bytes", "gpudeck_gpu_utilization_ratio")
    )
    return [
        {
            "host": host,
            "gpu": gpu,
            "unix_seconds": str(at / 1000),
            "memory_used_bytes": str(value),
            "utilization_percent": str(round(loads.get((host, gpu, at), -1) * 100, 3)),
        }
        for (host, gpu, at), value in memory.items()
    ]


def _read_series(store: StoreProcess, name: str, fleet: Fleet) -> dict[tuple[str, str, int], float]:
    form = {"match[]": f'{name}{{host_id!=""}}', "start": str(fleet.epoch - 60), "end": str(time.time() + 60)}
    with urllib.request.urlopen(f"{store.read_url}/api/v1/export?{urllib.parse.urlencode(form)}", timeout=30) as answer:
        series = [json.loads(line) for line in answer]
    return {
        (one["metric"]["host"], one["metric"]["uuid"], at): value
        for one in series
        for at, value in zip(one["timestamps"], one["values"], strict=True)
    }
