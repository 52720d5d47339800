"""The hub without its HTTP front, history, alerts and viewers: taking reports, ticking, and answering for 1,000 hosts
with 8,000 GPUs."""

import gc
import json
import os
import time
from collections.abc import Iterator

import msgspec

from bench.processes import rss_mib
from bench.reports import make_rounds
from bench.tables import best_of, print_table
from gpudeck.collectors.simulated import SimulatedFleet
from gpudeck.fleet.hub import Hub
from gpudeck.model.gpu_state import FleetSettings
from gpudeck.views.text import render_fleet
from gpudeck.wire import Envelope, decode, decode_any

HOSTS = 1_000
ROUNDS = 6


LAB_HOSTS, INTERVAL_SECONDS = 1_450, 5
"""Simulated hosts that have 8,000 GPUs together, and seconds between two reports of one."""


def run_lab(hosts: int, seconds: int) -> Iterator[Hub]:
    """An afternoon's seconds, each before its tick: a fifth of the hosts has reported in it."""
    lab, start = SimulatedFleet(hosts=hosts), 1_790_000_000.0
    now = start
    hub = Hub(FleetSettings(max_hosts=2 * hosts), now=lambda: now)
    for second in range(seconds):
        now = start + second
        for host in range(second % INTERVAL_SECONDS, hosts, INTERVAL_SECONDS):
            report = lab.report(host, now)
            if report is not None:
                envelope = Envelope(
                    version=1,
                    host=lab.names[host],
                    host_id=lab.host_id(host),
                    boot_id=lab.boot_id(host, now),
                    run_id="run",
                    sequence=second + 1,
                    collected_at=now,
                    interval_seconds=INTERVAL_SECONDS,
                    report=report,
                )
                hub.fleet.apply(envelope, via="push", now=now, sent_at=now)
        hub.fleet.settle()
        yield hub


def measure_lab() -> tuple[int, float, float]:
    """GPUs, KiB of a delta, and the part of GPUs that change."""
    sizes, changed, gpus = [], [], 1
    for second, hub in enumerate(run_lab(LAB_HOSTS, 3 * INTERVAL_SECONDS)):
        delta = hub.stream.tick().plain
        if second >= 2 * INTERVAL_SECONDS:
            sizes.append(len(delta))
            changed.append(len(json.loads(delta.partition(b"data: ")[2])["gpus"]["rows"]))
            gpus = hub.fleet.totals().gpus
    return gpus, sum(sizes) / len(sizes) / 1024, sum(changed) / len(changed) / gpus


def main() -> None:
    rounds, short = make_rounds(HOSTS, ROUNDS), make_rounds(HOSTS, ROUNDS, short=True)
    document = msgspec.json.encode(decode(rounds[0][0], "application/msgpack", "zstd"))
    reference = best_of(20, lambda: [json.loads(document) for _ in range(200)]) / 200
    before = rss_mib(os.getpid())
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    whole_decode, whole_take = measure_whole(rounds)
    hub = Hub()
    figures: dict[str, list[float]] = {"decode": [], "take": [], "tick": [], "document": [], "deflate": []}
    delta_bytes = packed_bytes = 0
    for bodies in short:
        decoding, taking = take(hub, bodies)
        figures["decode"].append(decoding)
        figures["take"].append(taking)
        start = time.perf_counter()
        event = hub.stream.tick()
        figures["tick"].append(time.perf_counter() - start)
        figures["deflate"].append(best_of(1, event.deflated))
        delta_bytes, packed_bytes = len(event.plain), len(event.deflated())
        figures["document"].append(best_of(1, hub.stream.document))
    memory = rss_mib(os.getpid()) - before
    lab_gpus, lab_kib, lab_part = measure_lab()
    # The first round creates the hosts; what a hub does all day is the others.
    best = {name: min(times[1:]) for name, times in figures.items()}
    fleet = hub.fleet.view(hub.stream.time)
    text = best_of(3, lambda: render_fleet(fleet, width=160))

    def ratio(seconds: float) -> str:
        return f"{seconds / reference:,.1f} ×"

    print_table(
        f"Hub in memory: {HOSTS:,} hosts, {HOSTS * 8:,} GPUs, every value changes in every report",
        f"json.loads of one eight-GPU report, {reference * 1e6:.0f} µs ({len(document):,} bytes)",
        [
            ("decode a short report", f"{best['decode'] * 1e6:.0f} µs", "", ratio(best["decode"])),
            ("take it (order, judge)", f"{best['take'] * 1e6:.0f} µs", "≤ 40 µs", ratio(best["take"])),
            ("reports a second on one core", f"{1 / (best['decode'] + best['take']):,.0f}", "≥ 5,000", ""),
            ("one short report on the wire", f"{len(short[1][0]):,} bytes", "", ""),
            ("decode a whole report", f"{whole_decode * 1e6:.0f} µs", "", ratio(whole_decode)),
            ("take it (order, compare, judge)", f"{whole_take * 1e6:.0f} µs", "", ratio(whole_take)),
            ("one whole report on the wire", f"{len(rounds[1][0]):,} bytes", "", ""),
            ("one delta tick, all hosts changed", f"{best['tick'] * 1e3:.1f} ms", "≤ 8 ms", ratio(best["tick"])),
            ("that delta, plain", f"{delta_bytes / 1024:,.0f} KiB", "", ""),
            ("that delta, deflated once for all viewers", f"{packed_bytes / 1024:,.0f} KiB", "", ""),
            ("  deflating it (in a thread)", f"{best['deflate'] * 1e3:.1f} ms", "", ratio(best["deflate"])),
            (f"a delta of the simulated lab, {lab_gpus:,} GPUs", f"{lab_kib:,.0f} KiB", "≤ 60 KiB", ""),
            ("  GPUs of which something changed", f"{100 * lab_part:.0f} %", "", ""),
            ("memory for these hosts, with a document", f"{memory:,.0f} MiB", "", ""),
            ("/api/v1/fleet, made", f"{best['document'] * 1e3:.1f} ms", "≤ 50 ms", ratio(best["document"])),
            ("/api/v1/fleet, size", f"{len(hub.stream.document()) / 2**20:.1f} MiB", "", ""),
            ("the same as text", f"{text * 1e3:.0f} ms", "", ratio(text)),
        ],
    )


def measure_whole(rounds: list[list[bytes]]) -> tuple[float, float]:
    """Seconds to decode and to take a whole report, of the best round."""
    hub, times = Hub(), []
    for bodies in rounds:
        times.append(take(hub, bodies))
        hub.stream.tick()
    return min(decoding for decoding, _ in times[1:]), min(taking for _, taking in times[1:])


def take(hub: Hub, bodies: list[bytes]) -> tuple[float, float]:
    """Seconds to decode one of these reports, and to take it."""
    decoding = taking = 0.0
    for body in bodies:
        start = time.perf_counter()
        envelope = decode_any(body, "application/msgpack", "zstd")
        decoded = time.perf_counter()
        hub.fleet.apply(envelope, via="push", now=time.time(), sent_at=time.time())
        decoding, taking = decoding + decoded - start, taking + time.perf_counter() - decoded
    start = time.perf_counter()
    hub.fleet.settle()
    return decoding / HOSTS, (taking + time.perf_counter() - start) / HOSTS
