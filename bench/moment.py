"""Left out: HTTP and its compression, the browser, names and labels of a live fleet, and a file on a cold disk.

The fleet at a moment of the past (`GET /api/v1/fleet?at=…`), from the embedded store: eight GPUs a host, each host
every 5 s. One moment is in an hour that is sealed, one in the hour that is still written. It goes the hub's way: queue,
thread, budget of CPU time, JSON. The reference reads each host's whole hour and takes the sample out of it.
"""

import argparse
import gc
import logging
import sys
import tempfile
from contextlib import closing
from functools import partial
from pathlib import Path

import uvloop

from bench.history_page import BEST_OF, SETTINGS, Question, ask, generate
from bench.history_size import GPUS
from bench.tables import Row, print_table
from gpudeck.api.past_fleet import encode_past
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.visibility import EVERYTHING
from gpudeck.history.base import MomentQuery, Store
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.past_fleet import PastContext
from gpudeck.history.sample import ALL_NAMES
from gpudeck.model.cpu_budget import THREAD_SECONDS

SHOWN = frozenset(
    {"utilization_percent", "memory_used_bytes", "memory_total_bytes", "temperature_celsius", "power_watts"}
)
SEALED_AGO, OPEN_AGO = 5_000.0, 600.0


def whole_hours(store: Store, at: float) -> int:
    """Every host's hour, decoded, for one sample of it."""
    assert isinstance(store, EmbeddedStore)
    with store.view() as view:
        hosts = view.hosts()
        hours = (hour for host in hosts for hour in view.hours(host, at, at + 1, ALL_NAMES, runs=True))
        return sum(bool(hour.times.searchsorted(at, side="right")) for hour in hours)


def measure(path: Path, now: float, hosts: int) -> list[Row]:
    rows: list[Row] = []
    hub = Hub()
    with closing(EmbeddedStore(path, SETTINGS, lambda: now)) as store:
        sealed = now - SEALED_AGO
        long: list[Question] = [lambda store: whole_hours(store, sealed)]
        reference = uvloop.run(ask(store, now, long))
        for name, at, metrics in (
            ("sealed hour, all metrics", sealed, None),
            ("sealed hour, those that the page shows", sealed, SHOWN),
            ("open hour, those that the page shows", now - OPEN_AGO, SHOWN),
        ):
            wanted = MomentQuery(at, metrics)
            one: list[Question] = [
                partial(encode_past, hub=hub, ask=wanted, visibility=EVERYTHING, context=PastContext())
            ]
            best = min((uvloop.run(ask(store, now, one)) for _ in range(BEST_OF // 2)), key=lambda found: found[0])
            rows += [
                (name, f"{best[0]:.2f} s", "≤ 0.3 s" if hosts <= 1000 else "≤ 2 s", f"{best[0] / reference[0]:.3f} ×"),
                ("  CPU", f"{best[1]:.2f} s", "", f"{best[1] / reference[1]:.3f} ×"),
                ("  JSON", f"{best[2] / 1e6:.1f} MB", "", ""),
                ("  longest block of the event loop", f"{best[3] * 1e3:.1f} ms", "≤ 10 ms", ""),
            ]
        rows.append(("the reference", f"{reference[0]:.2f} s, CPU {reference[1]:.2f} s", "", ""))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench moment")
    parser.add_argument("--hosts", type=int, default=1000)
    hosts = parser.parse_known_args()[0].hosts
    print((__doc__ or "").partition("\n\n")[0])
    logging.getLogger("gpudeck").setLevel(logging.ERROR)
    sys.setswitchinterval(THREAD_SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        path, now = generate(Path(folder), hosts, has_sums=False)
        # As in the hub.
        gc.freeze()
        gc.set_threshold(10_000, 5, 1_000)
        rows = measure(path, now, hosts)
    title = f"The fleet at a past moment: {hosts:,} hosts, {hosts * GPUS:,} GPUs"
    print_table(title, "each host's whole hour decoded for one sample of it", rows)
