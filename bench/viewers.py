"""Left out: HTTP, sending, browsers, networks. Viewers of the stream, in one process.

Simulated labs in which a fifth of the hosts reports each second. All viewers of the whole fleet share its deltas; of
those with a subscription each has one of its own here, of as many hosts as a screen shows. The overview has all hosts
in short. CPU includes compressing.
"""

import time
from collections.abc import Callable
from functools import partial
from itertools import islice

from bench.hub import INTERVAL_SECONDS, run_lab
from gpudeck.fleet.overview import SUMMARY_TICKS
from gpudeck.fleet.stream import PublishedEvent

HOSTS = (1_000, 10_000)
SUBSCRIPTIONS, SHOWN = 20, 60
WARM_UP = 4 * INTERVAL_SECONDS
"""Seconds: in each of them viewers are sent 1,000 new hosts at most."""

Cost = tuple[float, int, int]
"""Of an event: seconds of CPU, bytes packed, bytes plain."""


def main() -> None:
    print("\n" + (__doc__ or "").strip())
    for hosts in HOSTS:
        print(f"\n  {f'{hosts:,} hosts':32}{'CPU':>11}   bytes, packed / plain")
        for name, costs in measure(hosts).items():
            cpu, packed, plain = (sum(values) / len(costs) for values in zip(*costs, strict=True))
            print(f"  {name:32}{cpu * 1e3:8.2f} ms   {packed:,.0f} / {plain:,.0f}", flush=True)


def measure(hosts: int) -> dict[str, list[Cost]]:
    lab = run_lab(hosts, WARM_UP + 2 * INTERVAL_SECONDS + SUMMARY_TICKS)
    for hub in islice(lab, WARM_UP):
        hub.stream.tick()
    whole = [_measure(hub.stream.tick) for hub in islice(lab, INTERVAL_SECONDS)]
    ids = [host.id for host in hub.fleet.ordered()]
    chosen = [frozenset(ids[at * SHOWN // 2 :][:SHOWN]) for at in range(SUBSCRIPTIONS)]
    overview = _measure(partial(hub.stream.snapshot, hosts="overview"))
    alone = sum(cpu for cpu, _, _ in whole) / INTERVAL_SECONDS
    in_short: list[Cost] = []
    viewer = hub.stream.watch(hosts="overview")
    for hub in islice(lab, SUMMARY_TICKS):
        extra = _measure(hub.stream.tick)[0] - alone
        event = viewer.events.pop()
        cpu, size, packed = _measure(lambda event=event: event)  # type: ignore[misc]
        in_short.append((extra + cpu, size, packed))
    hub.stream.unwatch(viewer)
    snapshots = [_measure(partial(hub.stream.snapshot, hosts=of)) for of in chosen]
    viewers = [hub.stream.watch(hosts=of) for of in chosen]
    subscribed: list[Cost] = []
    for hub in lab:
        extra = (_measure(hub.stream.tick)[0] - alone) / SUBSCRIPTIONS
        for viewer in viewers:
            event = viewer.events[-1]
            cpu, size, packed = _measure(lambda event=event: event)  # type: ignore[misc]
            subscribed.append((extra + cpu, size, packed))
    # The last, as the texts that it leaves behind are let go in the ticks after it.
    snapshot = _measure(hub.stream.snapshot)
    return {
        "a second of all hosts": whole,
        f"a second of {SHOWN} hosts": subscribed,
        "a second of the overview": in_short,
        "the snapshot of all hosts": [snapshot],
        "the snapshot of the overview": [overview],
        f"the snapshot of {SHOWN} hosts": snapshots,
    }


def _measure(make: Callable[[], PublishedEvent]) -> Cost:
    start = time.process_time()
    event = make()
    packed = len(event.deflated())
    return time.process_time() - start, packed, len(event.plain)


if __name__ == "__main__":
    main()
