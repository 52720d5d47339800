"""kill -9 of the hub, again and again, at random moments while hosts report."""

import random
import time
from pathlib import Path
from typing import Any

from alerts.notifiers.sinks import running_webhook
from chaos.compare import compare_runs, compare_samples
from chaos.figures import Figure, Outcome, at_most, took
from chaos.hosts import reporting
from chaos.hub import ChaosHub, chaos_hub
from fakes.waiting import wait_until


def run(folder: Path, *, seed: int, short: bool, kills: int) -> Outcome:
    outcome = Outcome(f"kill -9 × {kills}")
    chance = random.Random(seed)
    healthy, heard, deaths = [], [], []
    with running_webhook() as hook, chaos_hub(folder, webhook=hook.url) as hub:
        hub.start()
        with reporting(hub.port, hub.token, 4 if short else 8) as fleet:
            start = fleet.epoch
            wait_until(lambda: fleet.has_reported(0), "a report of each host", 60)
            for _ in range(kills):
                time.sleep(chance.uniform(0.3, 1.5 if short else 3.0))
                hub.kill()
                died = time.monotonic()
                deaths.append(died)
                hub.start(wait=False)
                hub.wait_healthy()
                healthy.append(time.monotonic() - died)
                wait_until(lambda since=died: fleet.has_reported(since), "reports after a kill", 60)
                heard.append(max(min(at for at in host.taken.values() if at > died) for host in fleet.hosts) - died)
            time.sleep(3)
            fleet.stop(deliver=30)
        runs = _all_runs(hub)
        alerts = hub.alerts()
        hub.stop()
        found = compare_samples(hub.samples(start - 60, time.time() + 60), fleet)
    compare_runs(runs, fleet, found)
    outcome.figures = [
        at_most("lost seconds a kill (host that lost most)", found.lost_seconds / kills, 1, "s", is_time=short),
        # Counted in samples: under load a hub may write later than once a second, and a kill then costs more of them.
        at_most("lost samples a kill and host", sum(map(len, found.lost.values())) / kills / found.hosts, 3),
        Figure("longest loss of a host", f"{found.longest_loss} s"),
        *found.figures(fleet, deaths),
        at_most("false alerts", len(alerts) + len(hook.taken), 0),
        took("recovery: from the kill until /healthz answers", healthy),
        took("recovery: from the kill until every host is heard", heard),
    ]
    outcome.notes = [*found.notes, *(f"alert: {alert['title']}" for alert in alerts[:5])]
    return outcome


def _all_runs(hub: ChaosHub) -> list[Any]:
    runs: list[Any] = []
    before = ""
    while True:
        page = hub.get(f"/api/v1/runs?limit=1000{before}")
        runs += page["runs"]
        if page["next"] is None:
            return runs
        before = f"&before={page['next']}"
