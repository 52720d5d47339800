"""The hub without its HTTP front, history, alerts and viewers: taking reports, ticking, and answering for 1,000 hosts
with 8,000 GPUs."""

import gc
import json
import time

import msgspec

from bench.reports import make_rounds
from bench.tables import best_of, print_table
from gpudeck.hub.hub import Hub
from gpudeck.views.text import render_fleet
from gpudeck.wire import decode

HOSTS = 1_000
ROUNDS = 6


def main() -> None:
    rounds = make_rounds(HOSTS, ROUNDS)
    document = msgspec.json.encode(decode(rounds[0][0], "application/msgpack", "zstd"))
    reference = best_of(20, lambda: [json.loads(document) for _ in range(200)]) / 200
    hub = Hub()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    figures: dict[str, list[float]] = {"decode": [], "take": [], "tick": [], "document": [], "deflate": []}
    delta_bytes = packed_bytes = 0
    for bodies in rounds:
        decoding = taking = 0.0
        for body in bodies:
            start = time.perf_counter()
            envelope = decode(body, "application/msgpack", "zstd")
            decoded = time.perf_counter()
            hub.fleet.apply(envelope, via="push", now=time.time(), sent_at=time.time())
            decoding, taking = decoding + decoded - start, taking + time.perf_counter() - decoded
        start = time.perf_counter()
        hub.fleet.settle()
        figures["decode"].append(decoding / HOSTS)
        figures["take"].append((taking + time.perf_counter() - start) / HOSTS)
        start = time.perf_counter()
        event = hub.stream.tick()
        figures["tick"].append(time.perf_counter() - start)
        figures["deflate"].append(best_of(1, event.deflated))
        delta_bytes, packed_bytes = len(event.plain), len(event.deflated())
        figures["document"].append(best_of(1, hub.stream.document))
    # The first round creates the hosts; what a hub does all day is the others.
    best = {name: min(times[1:]) for name, times in figures.items()}
    fleet = hub.fleet.view(hub.stream.time, demo=False)
    text = best_of(3, lambda: render_fleet(fleet, width=160))

    def ratio(seconds: float) -> str:
        return f"{seconds / reference:,.1f} ×"

    print_table(
        f"Hub in memory: {HOSTS:,} hosts, {HOSTS * 8:,} GPUs, every value changes in every report",
        f"json.loads of one eight-GPU report, {reference * 1e6:.0f} µs ({len(document):,} bytes)",
        [
            ("decode one report", f"{best['decode'] * 1e6:.0f} µs", "", ratio(best["decode"])),
            ("take it (order, compare, judge)", f"{best['take'] * 1e6:.0f} µs", "≤ 40 µs", ratio(best["take"])),
            ("reports a second on one core", f"{1 / (best['decode'] + best['take']):,.0f}", "≥ 5,000", ""),
            ("one report on the wire", f"{len(rounds[1][0]):,} bytes", "", ""),
            ("one delta tick, all hosts changed", f"{best['tick'] * 1e3:.1f} ms", "≤ 8 ms", ratio(best["tick"])),
            ("that delta, plain", f"{delta_bytes / 1024:,.0f} KiB", "", ""),
            ("that delta, deflated once for all viewers", f"{packed_bytes / 1024:,.0f} KiB", "", ""),
            ("  deflating it (in a thread)", f"{best['deflate'] * 1e3:.1f} ms", "", ratio(best["deflate"])),
            ("/api/v1/fleet, made", f"{best['document'] * 1e3:.1f} ms", "≤ 50 ms", ratio(best["document"])),
            ("/api/v1/fleet, size", f"{len(hub.stream.document()) / 2**20:.1f} MiB", "", ""),
            ("the same as text", f"{text * 1e3:.0f} ms", "", ratio(text)),
        ],
    )
