"""Left out: a network between browser and hub, a live fleet that changes meanwhile, and a file on a cold disk.

The time machine's slider in a real Chromium, with the past of `bench.history_page` behind a real hub: steps to a moment
that was fetched ahead, and moves to any other. A redraw is from the slider's event until the figures of that moment are
laid out.
"""

import argparse
import shutil
import statistics
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

from bench.history_page import OPEN_SECONDS, generate
from bench.history_size import HOUR
from bench.page import ARGUMENTS
from bench.processes import HubUnderTest
from bench.reports import make_rounds
from bench.tables import Row, print_table

CONFIG = "demo: never\nlocal: never\nlimits: {unlimited: [127.0.0.1]}\n"
STEPS = [60 * step for step in (1, 2, 3, 4, 3, 2, 1, 0, -1, -2, -3, -4)]
MOVES = [-780, 540, -540, 300, -300, 780]
REST_MS = 5_000
"""Between two steps: the neighbours come meanwhile, and the hub's questions get back their time at full speed."""
MOVE = """async seconds => {
  const machine = document.querySelector('.machine'), slider = machine.querySelector('input[type=range]')
  const begin = performance.now()
  slider.value = Number(slider.value) + seconds
  slider.dispatchEvent(new Event('input', { bubbles: true }))
  await null
  while (machine.ariaBusy !== 'false') await new Promise(requestAnimationFrame)
  document.body.offsetHeight
  return performance.now() - begin
}"""
ASKED = """() => performance.getEntriesByType('resource').filter(({ name }) => name.includes('/api/v1/fleet?at'))
  .map(({ responseEnd, startTime, encodedBodySize, decodedBodySize }) =>
    [responseEnd - startTime, encodedBodySize, decodedBodySize])"""


def open_past(browser: Browser, hub: HubUnderTest, at: float) -> Page:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(f"{hub.url}/?at={at:.0f}")
    page.wait_for_selector(".machine[aria-busy=false]", timeout=60_000)
    page.wait_for_selector("[data-host]")
    page.get_by_role("button", name="6h").click()
    return page


def move(page: Page, places: Sequence[int]) -> list[tuple[float, float]]:
    """To each of these places, in seconds from here. Milliseconds, and those of the page's main thread at work."""
    meter, times, before = page.context.new_cdp_session(page), list[tuple[float, float]](), 0
    meter.send("Performance.enable", {"timeDomain": "threadTicks"})
    for place in places:
        page.wait_for_timeout(REST_MS)
        worked = _worked(meter)
        times.append((float(page.evaluate(MOVE, place - before)), 1000 * (_worked(meter) - worked)))
        before = place
    page.evaluate(MOVE, -before)
    return times


def _worked(meter: CDPSession) -> float:
    metrics = meter.send("Performance.getMetrics")["metrics"]
    return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))


def report(hub: HubUnderTest, hosts: int) -> None:
    """The page asks for the whole of a small fleet."""
    token = (hub.folder / "agent.token").read_text().strip()
    headers = {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/msgpack",
        "Content-Encoding": "zstd",
    }
    for body in make_rounds(hosts, 1)[0]:
        urllib.request.urlopen(urllib.request.Request(f"{hub.url}/api/v1/reports", body, headers), timeout=30).close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench slider")
    parser.add_argument("--hosts", type=int, default=1000)
    hosts = parser.parse_known_args()[0].hosts
    print((__doc__ or "").partition("\n\n")[0])
    chromium = shutil.which("chromium") or shutil.which("chromium-headless-shell")
    if chromium is None:
        print("\nThe slider: no chromium here (Debian, Ubuntu: apt install chromium)")
        return
    with tempfile.TemporaryDirectory() as folder:
        _, now = generate(Path(folder), hosts, has_sums=False)
        middle = (now // HOUR) * HOUR + OPEN_SECONDS / 2
        with sync_playwright() as playwright, HubUnderTest(Path(folder), CONFIG) as hub:
            report(hub, hosts)
            browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
            page = open_past(browser, hub, middle)
            rows: list[Row] = []
            for name, promised, moves in (
                ("a step to a moment fetched ahead", "≤ 250 ms", STEPS),
                ("a move to any moment", "", MOVES),
            ):
                times, worked = zip(*move(page, moves), strict=True)
                rows += [
                    (f"{name}: median", f"{statistics.median(times):.0f} ms", promised, ""),
                    ("  slowest", f"{max(times):.0f} ms", promised, ""),
                    ("  CPU of the page's main thread, median", f"{statistics.median(worked):.0f} ms", "", ""),
                ]
            answers = page.evaluate(ASKED)
            rows += [
                ("an answer of the hub, median", f"{statistics.median(one[0] for one in answers):.0f} ms", "", ""),
                ("  on the network, as JSON", f"{answers[0][1] / 1e6:.1f} MB, {answers[0][2] / 1e6:.1f} MB", "", ""),
            ]
            browser.close()
    print_table(f"The time machine's slider: {hosts:,} hosts, {hosts * 8:,} GPUs", "", rows)
