"""Left out: the hub, networks, the worker that holds the streams. The page's own work in a real Chromium.

A simulated lab in which a fifth of the hosts reports each second: with all hosts in full, and with an overview and the
hosts in view in full, as the page asks for from 1,500 hosts on. Of the largest, what a person does with it.
"""

import json
import re
import shutil
import statistics
import tempfile
import time
import urllib.request
from itertools import islice
from pathlib import Path

from playwright.sync_api import Browser, Page, Route, sync_playwright

from bench.hub import INTERVAL_SECONDS, LAB_HOSTS, run_lab
from bench.page import ARGUMENTS, STAND_IN, heap_mib
from bench.processes import HubUnderTest
from bench.viewers import SHOWN, WARM_UP
from gpudeck.fleet.stream import PublishedEvent

HOSTS = (1_000, 10_000)
LARGEST = 10 * LAB_HOSTS
"""About 75,000 GPUs."""
TICKS = 2 * INTERVAL_SECONDS
PATIENT = """
const repeat = window.setInterval
window.setInterval = (act, delay, ...rest) => (delay === 10000 ? 0 : repeat(act, delay, ...rest))
"""
"""A worker that says nothing for 30 s is given up, and a snapshot of 93 MB takes long on its way from here."""
ACTIONS = """
const timed = async act => {
  await new Promise(done => requestAnimationFrame(() => setTimeout(done)))
  const start = performance.now()
  act()
  for (let turn = 0; turn < 5; turn++) await null
  document.body.offsetHeight
  return performance.now() - start
}
const change = (field, kind, value) => timed(() => {
  field.value = value
  field.dispatchEvent(new Event(kind, { bubbles: true }))
})
window.search = text => change(document.querySelector('input[type=search]'), 'input', text)
window.groupBy = name => change(document.querySelector('select[aria-label="Group by"]'), 'change', name)
window.show = name => timed(() => [...document.querySelectorAll('.views button')]
  .find(({ textContent }) => textContent === name).click())
"""
"""Milliseconds of script and layout until the board stands as it was asked for."""
Events = list[tuple[str, str, str]]
"""What a page is sent: the stream (`event` or `detail`), the kind, and the text."""


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-headless-shell")
    if chromium is None:
        print("\nThe page of a large fleet: no chromium here (Debian, Ubuntu: apt install chromium)")
        return
    print("\n" + (__doc__ or "").strip())
    made = {hosts: make_events(hosts) for hosts in HOSTS}
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        with HubUnderTest(Path(folder), "", "--demo", "24") as hub:
            _wait_for_hosts(hub.url)
            for hosts, (whole, overview) in made.items():
                for name, events in (("all in full", whole), (f"overview, {SHOWN} in full", overview)):
                    print(f"  {hosts:,} hosts, {name}: {measure(browser, hub.url, events)}", flush=True)
            _, overview = make_events(LARGEST)
            print(f"  {LARGEST:,} hosts, overview: {measure(browser, hub.url, overview)}")
            for action, took in measure_actions(browser, hub.url, overview).items():
                print(f"    {action}: {took:.0f} ms", flush=True)
        browser.close()


def make_events(hosts: int) -> tuple[Events, Events]:
    """The events of the same seconds for a page with all hosts, and for one with an overview."""
    lab = run_lab(hosts, WARM_UP + TICKS)
    for hub in islice(lab, WARM_UP):
        hub.stream.tick()
    stream = hub.stream
    shown = frozenset(host.id for host in hub.fleet.ordered()[:SHOWN])
    viewers = [stream.watch(), stream.watch(hosts="overview"), stream.watch(hosts=shown)]
    for hub in lab:
        hub.stream.tick()
    whole, overview, detail = ([_event("event", event) for event in viewer.events] for viewer in viewers)
    both = [one for pair in zip(overview, detail, strict=True) for one in (pair[0], ("detail", *pair[1][1:]))]
    return whole, both


def _event(stream: str, event: PublishedEvent) -> tuple[str, str, str]:
    kind, _, data = event.plain.decode().rstrip("\n").split("\n")
    return stream, kind.removeprefix("event: "), data.removeprefix("data: ")


def _wait_for_hosts(url: str) -> None:
    """The page that is opened asks for an overview where it has hosts already."""
    while True:
        with urllib.request.urlopen(f"{url}/api/v1/totals", timeout=30) as answer:
            if json.load(answer)["hosts"] >= INTERVAL_SECONDS:
                return
        time.sleep(0.2)


def _open(browser: Browser, url: str, *, is_overview: bool) -> Page:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.add_init_script(STAND_IN + PATIENT + ACTIONS)
    if is_overview:
        page.route(re.compile(r"/(\?[^/]*)?$"), _enlarge)
    page.goto(f"{url}/?view=table&sort=name")
    page.wait_for_selector(".live")
    return page


def measure_actions(browser: Browser, url: str, events: Events) -> dict[str, float]:
    """Milliseconds by action: the median of a few, after the first ones, which are slower."""
    page = _open(browser, url, is_overview=True)
    left = iter(events)

    def tick() -> float:
        return sum(script + layout for script, layout, _ in (_feed(page, *next(left)) for _ in range(2)))

    def act(name: str, value: str) -> float:
        return float(page.evaluate("([name, value]) => window[name](value)", [name, value]))

    def often(name: str, *values: str) -> float:
        return statistics.median([act(name, values[at % len(values)]) for at in range(6)][2:])

    tick()
    figures = {
        "search": often("search", "h100", "xyzzy"),
        "search cleared": act("search", ""),
        "group by model": often("groupBy", "model", "host"),
        "group by user": often("groupBy", "user", "host"),
    }
    act("groupBy", "user")
    page.wait_for_timeout(2_100)
    figures["a second in which groups are arranged again"] = tick()
    act("groupBy", "host")
    figures["open the map"] = often("show", "map", "table")
    act("show", "map")
    page.wait_for_selector(".map canvas")
    figures["a second of the map"] = statistics.median([tick() for _ in range(3)])
    page.evaluate("location.hash = '#/people'")
    page.wait_for_selector("table.sheet tbody tr")
    figures["a second of people"] = statistics.median([tick() for _ in range(3)])
    page.close()
    return figures


def measure(browser: Browser, url: str, events: Events) -> str:
    is_overview = any(stream == "detail" for stream, _, _ in events)
    page = _open(browser, url, is_overview=is_overview)
    taken: list[tuple[str, float]] = []
    for stream, kind, text in events:
        script, layout, _ = _feed(page, stream, kind, text)
        taken.append((kind, script + layout))
    snapshot = sum(spent for kind, spent in taken if kind == "snapshot")
    per_second = [spent for kind, spent in taken if kind == "delta"]
    if is_overview:
        per_second = [sum(pair) for pair in zip(per_second[::2], per_second[1::2], strict=True)]
    memory = heap_mib(page)
    page.close()
    size = sum(len(text) for _, kind, text in events if kind == "delta") / TICKS
    return (
        f"snapshot {snapshot:.0f} ms, a second {statistics.median(per_second):.1f} ms (most {max(per_second):.1f}), "
        f"{size / 1000:.0f} kB plain, memory {memory:.0f} MiB"
    )


def _enlarge(route: Route) -> None:
    """Makes the fleet seem large enough for an overview when the page is opened."""
    answer = route.fetch()
    route.fulfill(
        response=answer, body=re.sub(r'"hosts":(\d+),"hosts_up"', r'"hosts":\g<1>000,"hosts_up"', answer.text())
    )


def _feed(page: Page, stream: str, kind: str, text: str) -> list[float]:
    figures: list[float] = page.evaluate("([kind, data, type]) => window.feed(kind, data, type)", [kind, text, stream])
    return figures


if __name__ == "__main__":
    main()
