"""The page in a real Chromium: its size, its first paint, and 1,000 hosts with 8,000 GPUs that all change at once.

The large fleet is fed by hand, event by event, through a stand-in for the browser's EventSource: what is measured is
the page's own work on its main thread, not the hub and the network beside it on the same cores.
"""

import shutil
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

import gpudeck.api
from bench.processes import HubUnderTest
from bench.reports import make_rounds
from bench.tables import print_table
from gpudeck.hub.hub import Hub

HOSTS = 1_000
ROUNDS = 12
VISITS = 5
SCROLL_SECONDS = 4
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]

FIRST_HOST = """
new MutationObserver((_, observer) => {
  if (document.querySelector('[data-host]') === null) return
  window.firstHostAt = performance.now()
  observer.disconnect()
}).observe(document, { childList: true, subtree: true })
"""
STAND_IN = """
window.sources = []
window.EventSource = class extends EventTarget {
  readyState = 1
  constructor() { super(); window.sources.push(this) }
  close() {}
}
// Milliseconds of script (parsing, taking and drawing, which waits for the microtasks), of layout after it, and of
// parsing the event alone.
window.feed = async (kind, data) => {
  const start = performance.now()
  window.sources.at(-1).dispatchEvent(new MessageEvent(kind, { data }))
  for (let turn = 0; turn < 5; turn++) await null
  const drawn = performance.now()
  document.body.offsetHeight
  const laid = performance.now()
  JSON.parse(data)
  return [drawn - start, laid - drawn, performance.now() - laid]
}
"""
SCROLL = """async seconds => {
  const frames = []
  const end = performance.now() + seconds * 1000
  let last = performance.now()
  while (last < end) {
    await new Promise(requestAnimationFrame)
    const now = performance.now()
    frames.push(now - last)
    last = now
    scrollBy(0, 120)
  }
  return frames.slice(1)
}"""


def main() -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        print("\nThe page: no chromium here (Debian, Ubuntu: apt install chromium)")
        return
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        with HubUnderTest(Path(folder), "", "--demo", "24") as hub:
            paint, shown = measure_first_paint(browser, hub.url)
            events = make_events()
            large = {view: measure_large_fleet(browser, hub.url, view, events) for view in ("table", "cards")}
        browser.close()
    parse = min(figures["parse"] for figures in large.values())
    print_table(
        f"The page in Chromium without a graphics card; {HOSTS:,} hosts, {HOSTS * 8:,} GPUs, every value changes",
        f"JSON.parse of one delta of {len(events[1]) / 2**20:.1f} MiB, {parse:.1f} ms",
        [
            ("everything the browser loads, gzipped", f"{page_bytes() / 1000:.1f} kB", "≤ 150 kB", ""),
            ("first paint, 24 hosts", f"{paint:.0f} ms", "≤ 1,000 ms", f"{paint / parse:.1f} ×"),
            ("first host on the page", f"{shown:.0f} ms", "", f"{shown / parse:.1f} ×"),
            *(row for view, figures in large.items() for row in large_rows(view, figures, parse)),
        ],
    )


def large_rows(view: str, figures: dict[str, float], parse: float) -> list[tuple[str, str, str, str]]:
    return [
        (f"{view}: snapshot to layout", f"{figures['snapshot']:.0f} ms", "", f"{figures['snapshot'] / parse:.1f} ×"),
        (f"{view}: delta, script", f"{figures['script']:.1f} ms", "≤ 16 ms", f"{figures['script'] / parse:.1f} ×"),
        (f"{view}: delta, layout after it", f"{figures['layout']:.1f} ms", "", f"{figures['layout'] / parse:.1f} ×"),
        (f"{view}: scrolling, median frame", f"{figures['frame']:.1f} ms", "≤ 17 ms", ""),
        (f"{view}: scrolling, 95 of 100 frames within", f"{figures['frame_95']:.1f} ms", "", ""),
        (f"{view}: elements on the page", f"{figures['nodes']:.0f}", "", ""),
    ]


def page_bytes() -> int:
    page = Path(gpudeck.api.__path__[0]) / "page"
    return sum(file.stat().st_size for file in page.rglob("*.gz"))


def measure_first_paint(browser: Browser, url: str) -> tuple[float, float]:
    """Milliseconds from the navigation to the first paint and to the first host, each with an empty cache."""
    paints, hosts = [], []
    for _ in range(VISITS):
        page = browser.new_page()
        page.add_init_script(FIRST_HOST)
        page.goto(url)
        page.wait_for_selector("[data-host]")
        hosts.append(page.evaluate("window.firstHostAt"))
        paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        page.close()
    return min(paints), min(hosts)


def make_events() -> list[str]:
    """A snapshot and the deltas after it, as the hub writes them."""
    rounds = make_rounds(HOSTS, ROUNDS)
    hub = Hub()
    events: list[str] = []
    for bodies in rounds:
        for body in bodies:
            hub.ingest.take(body, "application/msgpack", "zstd", sent_at=time.time())
        event = hub.stream.tick().plain.decode()
        events.append(event.partition("data: ")[2].rstrip("\n") if events else hub.stream.document().decode())
    return events


def measure_large_fleet(browser: Browser, url: str, view: str, events: list[str]) -> dict[str, float]:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.add_init_script(STAND_IN)
    page.goto(f"{url}/?view={view}")
    # By selector: an expression that is polled would be evaluated in the page, and its policy refuses that.
    page.wait_for_selector(".live")
    snapshot = sum(feed(page, "snapshot", events[0])[:2])
    deltas = [feed(page, "delta", event) for event in events[1:]]
    frames = sorted(page.evaluate(SCROLL, SCROLL_SECONDS))
    nodes = page.evaluate("document.querySelectorAll('*').length")
    page.close()
    return {
        "snapshot": snapshot,
        "script": sorted(delta[0] for delta in deltas)[len(deltas) // 2],
        "layout": sorted(delta[1] for delta in deltas)[len(deltas) // 2],
        "parse": min(delta[2] for delta in deltas),
        "frame": frames[len(frames) // 2],
        "frame_95": frames[int(len(frames) * 0.95)],
        "nodes": nodes,
    }


def feed(page: Page, kind: str, data: str) -> list[float]:
    figures: list[float] = page.evaluate("([kind, data]) => window.feed(kind, data)", [kind, data])
    return figures


if __name__ == "__main__":
    main()
