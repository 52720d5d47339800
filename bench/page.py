"""The page in a real Chromium: its size, its first paint, 1,000 hosts with 8,000 GPUs that all change at once, and what
draws most: see `bench.page_views`.

The large fleet is opened once from a real hub. Then it is fed by hand, event by event, through a stand-in for the
worker that holds the stream: what is measured is the page's own work on its main thread, not the hub and the network
beside it on the same cores.
"""

import gzip
import shutil
import tempfile
import time
import urllib.request
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

import gpudeck.api
from bench.page_views import CONFIG as RESERVED
from bench.page_views import fill_reservations, measure_chart, measure_reservations
from bench.processes import HubUnderTest
from bench.reports import make_rounds
from bench.tables import print_table
from gpudeck.fleet.hub import Hub

HOSTS = 1_000
ROUNDS = 12
REPEATS = 4
"""Of these rounds: a page is open all day, and its first ticks, which are twice as slow, are few."""
VISITS = 5
SCROLL_SECONDS = 4
SOAK_TICKS = 1_800
"""Half an hour."""
_CONFIG = "demo: never\nlocal: never\nlimits: {unlimited: [127.0.0.1]}\n"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]

FIRST_HOST = """
new MutationObserver((_, observer) => {
  if (document.querySelector('[data-host]') === null) return
  window.firstHostAt = performance.now()
  observer.disconnect()
}).observe(document, { childList: true, subtree: true })
"""
STAND_IN = """
window.SharedWorker = class {
  port = window.port = { postMessage() {}, close() {} }
}
// Milliseconds of script (parsing, taking and drawing, which waits for the microtasks), of layout after it, and of
// parsing the event alone.
window.feed = async (kind, data, type = 'event') => {
  const start = performance.now()
  window.port.onmessage({ data: { type, event: { kind, id: '', text: data } } })
  for (let turn = 0; turn < 5; turn++) await null
  const drawn = performance.now()
  document.body.offsetHeight
  const laid = performance.now()
  JSON.parse(data)
  return [drawn - start, laid - drawn, performance.now() - laid]
}
window.soak = async (deltas, ticks) => {
  for (let tick = 0; tick < ticks; tick++) {
    await window.feed('delta', deltas[tick % deltas.length])
    await new Promise(setTimeout)
  }
}
"""
WHOLE_FLEET = """
const look = () => {
  const field = document.querySelector('.board .field')
  const isWhole = field !== null && field.parentElement.ariaBusy !== 'true' && field.offsetHeight > 20000
  if (!isWhole) return requestAnimationFrame(look)
  setTimeout(() => { window.wholeAt = performance.now(); document.documentElement.dataset.whole = '' })
}
requestAnimationFrame(look)
"""
"""Set when all hosts are on the page, and the main thread has turned to what comes next."""
LOADED = """() => performance.getEntriesByType('resource')
  .filter(({ name }) => name.includes('/assets/')).reduce((sum, { encodedBodySize }) => sum + encodedBodySize, 0)"""
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
    chromium = shutil.which("chromium") or shutil.which("chromium-headless-shell")
    if chromium is None:
        print("\nThe page: no chromium here (Debian, Ubuntu: apt install chromium)")
        return
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        with HubUnderTest(Path(folder), "", "--demo", "24") as hub:
            paint, shown, loaded = measure_first_paint(browser, hub.url)
            events = make_events()
            large = {view: measure_large_fleet(browser, hub.url, view, events) for view in ("table", "cards")}
            memory = measure_memory(browser, hub.url, events)
            chart, answers = measure_chart(browser, hub.url)
        browser.close()
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        with HubUnderTest(Path(folder), _CONFIG) as hub:
            token = (Path(folder) / "agent.token").read_text().strip()
            whole = measure_opening(browser, hub.url, token)
        browser.close()
    with tempfile.TemporaryDirectory() as folder:
        # Before Playwright, which keeps a loop of its own.
        fill_reservations(Path(folder))
        with sync_playwright() as playwright, HubUnderTest(Path(folder), RESERVED) as hub:
            browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
            token = (Path(folder) / "agent.token").read_text().strip()
            reserved = measure_reservations(browser, hub, token)
            browser.close()
    parse = min(figures["parse"] for figures in large.values())
    print_table(
        f"The page in Chromium without a graphics card; {HOSTS:,} hosts, {HOSTS * 8:,} GPUs, every value changes",
        f"JSON.parse of one delta of {len(events[1]) / 2**10:.0f} KiB, {parse:.1f} ms",
        [
            ("all pages and fonts, gzipped", f"{page_bytes() / 1000:.1f} kB", "≤ 300 kB", ""),
            ("of that for the fleet's page", f"{loaded / 1000:.1f} kB", "≤ 160 kB", ""),
            ("one delta, gzipped", f"{len(gzip.compress(events[1].encode(), 1)) / 2**10:.0f} KiB", "", ""),
            ("first paint, 24 hosts", f"{paint:.0f} ms", "≤ 1,000 ms", f"{paint / parse:.1f} ×"),
            ("first host on the page", f"{shown:.0f} ms", "", f"{shown / parse:.1f} ×"),
            (f"open {HOSTS:,} hosts from a hub", f"{whole:.0f} ms", "≤ 2,000 ms", f"{whole / parse:.1f} ×"),
            *(row for view, figures in large.items() for row in large_rows(view, figures, parse)),
            (f"memory after {ROUNDS} ticks", f"{memory[0]:.1f} MiB", "", ""),
            ("half an hour of ticks later", f"{memory[1]:.1f} MiB", "the same", f"{memory[1] / memory[0]:.2f} ×"),
            (f"charts of 90 days, after the last of {answers} answers", f"{chart:.0f} ms", "≤ 200 ms", ""),
            *(
                (f"reservations of a year: {view}", f"{took:.0f} ms", "≤ 1,000 ms", "")
                for view, took in reserved.items()
            ),
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
    return sum(file.stat().st_size for file in page.rglob("*") if file.suffix in {".gz", ".woff2"})


def measure_first_paint(browser: Browser, url: str) -> tuple[float, float, int]:
    """Milliseconds from the navigation to the first paint and to the first host, each with an empty cache; the bytes
    of the page's files that this took."""
    paints, hosts, loaded = [], [], 0
    for _ in range(VISITS):
        page = browser.new_page()
        page.add_init_script(FIRST_HOST)
        page.goto(url)
        page.wait_for_selector("[data-host]")
        hosts.append(page.evaluate("window.firstHostAt"))
        paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        loaded = page.evaluate(LOADED)
        page.close()
    return min(paints), min(hosts), loaded


def measure_opening(browser: Browser, url: str, token: str) -> float:
    """Milliseconds from the navigation until all hosts of a large fleet are there and the page can be used."""
    headers = {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/msgpack",
        "Content-Encoding": "zstd",
    }
    for body in make_rounds(HOSTS, 1)[0]:
        urllib.request.urlopen(urllib.request.Request(f"{url}/api/v1/reports", body, headers), timeout=30).close()
    times = []
    for _ in range(VISITS):
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.add_init_script(WHOLE_FLEET)
        page.goto(url)
        page.wait_for_selector("html[data-whole]", timeout=60_000)
        times.append(page.evaluate("window.wholeAt"))
        page.close()
    return float(min(times))


def measure_memory(browser: Browser, url: str, events: list[str]) -> tuple[float, float]:
    """MiB of the page's own objects after a few ticks, and after half an hour of them."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.add_init_script(STAND_IN)
    page.goto(f"{url}/?view=table")
    page.wait_for_selector(".live")
    feed(page, "snapshot", events[0])
    page.evaluate("deltas => { window.kept = deltas }", events[1:])
    page.evaluate("ticks => window.soak(window.kept, ticks)", ROUNDS)
    before = heap_mib(page)
    page.evaluate("ticks => window.soak(window.kept, ticks)", SOAK_TICKS)
    after = heap_mib(page)
    page.close()
    return before, after


def heap_mib(page: Page) -> float:
    devtools = page.context.new_cdp_session(page)
    devtools.send("HeapProfiler.collectGarbage")
    used = devtools.send("Runtime.getHeapUsage")["usedSize"]
    devtools.detach()
    return float(used) / 2**20


def make_events() -> list[str]:
    """A snapshot and the deltas after it, as the hub writes them."""
    rounds = make_rounds(HOSTS, ROUNDS)
    hub = Hub()
    events: list[str] = []
    for bodies in rounds:
        for body in bodies:
            hub.ingest.take(body, "application/msgpack", "zstd", sent_at=time.time())
        delta = hub.stream.tick()
        event = delta if events else hub.stream.snapshot()
        events.append(event.plain.decode().partition("data: ")[2].rstrip("\n"))
    return events


def measure_large_fleet(browser: Browser, url: str, view: str, events: list[str]) -> dict[str, float]:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.add_init_script(STAND_IN)
    page.goto(f"{url}/?view={view}")
    # By selector: an expression that is polled would be evaluated in the page, and its policy refuses that.
    page.wait_for_selector(".live")
    snapshot = sum(feed(page, "snapshot", events[0])[:2])
    deltas = [feed(page, "delta", event) for _ in range(REPEATS) for event in events[1:]]
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
