"""Two views of the page that draw much: charts of 90 days, and a year of reservations on 500 GPUs. For `bench.page`."""

import asyncio
import json
import math
import random
import time
import urllib.request
from pathlib import Path

import msgspec
from playwright.sync_api import Browser, Page, Route

from bench.processes import HubUnderTest
from bench.reports import make_envelope
from bench.reservations import A_HOST, GPUS, fill
from gpudeck.database.engine import open_database
from gpudeck.wire import encode

DAY = 86_400
CHART_STEP = 21_600
"""Of a chart of 90 days, as the hub answers it."""
VISITS = 5
SETTLE_MS = 4_000
VIEWS = ("day", "month", "week")
CONFIG = "demo: never\nlocal: never\nread: open\nlimits: {unlimited: [127.0.0.1]}\n"

STROKES = """
const strokes = window.strokes = []
const { stroke } = CanvasRenderingContext2D.prototype
CanvasRenderingContext2D.prototype.stroke = function (...path) {
  strokes.push(performance.now())
  return stroke.apply(this, path)
}
"""
"""Notes when anything is drawn on a canvas."""
OPENED = """() => {
  const answers = performance.getEntriesByType('resource').filter(({ name }) => name.includes('/api/v1/history?'))
  const ends = answers.map(({ responseEnd }) => responseEnd).sort((a, b) => b - a)
  for (const answered of ends) {
    const later = window.strokes.filter((at) => at >= answered)
    let drawn = later[0]
    for (const at of later) if (at - drawn < 100) drawn = at
    if (drawn !== undefined) return [drawn - answered, answers.length]
  }
  return [NaN, 0]
}"""
"""From the last answer of which anything was drawn to the last line of that, and how many answers there were."""
SWITCH = """async ([name, day]) => {
  const begin = performance.now()
  location.hash = `#/reservations?view=${name}&day=${day}`
  const isShown = () => document.querySelector(`[aria-busy=false] .timeline.${name} .mark`) !== null
  do await new Promise(requestAnimationFrame)
  while (!isShown())
  document.body.offsetHeight
  return performance.now() - begin
}"""
"""Milliseconds from one view until the next is there with what is reserved in it, the hub's answer included."""
UNFOLD = """async () => {
  const home = document.querySelector('.timeline')
  for (let top = -1; top !== home.scrollTop; ) {
    top = home.scrollTop
    for (let folded; (folded = home.querySelector('[aria-expanded=false]')); ) {
      folded.click()
      await new Promise(requestAnimationFrame)
    }
    home.scrollBy(0, 400)
    await new Promise(requestAnimationFrame)
  }
  home.scrollTo(0, 0)
}"""


def measure_chart(browser: Browser, url: str) -> tuple[float, int]:
    """Milliseconds from the last answer about 90 days of a GPU until its charts are drawn, and how many answers."""
    fleet = json.load(urllib.request.urlopen(f"{url}/api/v1/fleet", timeout=30))
    gpu = next(gpu["uuid"] for host in fleet["hosts"] for gpu in host["gpus"] if gpu["users"])
    times = []
    for _ in range(VISITS):
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.add_init_script(STROKES)
        page.route("**/api/v1/history?*", _answer_full)
        page.goto(f"{url}/#/gpu/{gpu}?range=90d")
        page.wait_for_selector("canvas")
        # All answers, and what is drawn of them: the live stream never ends, so there is nothing else to wait for.
        page.wait_for_timeout(SETTLE_MS)
        times.append(page.evaluate(OPENED))
        page.close()
    # Not the best: which answer comes last differs, and the last may have the least to draw.
    middle = sorted(times)[VISITS // 2]
    return middle[0], int(middle[1])


def _answer_full(route: Route) -> None:
    """What the hub says, with 90 days of points in place of those few that it has by now."""
    answer = route.fetch()
    told = answer.json()
    end = time.time() // CHART_STEP * CHART_STEP
    times = [end - back * CHART_STEP for back in range(90 * DAY // CHART_STEP, 0, -1)]
    for series in told.get("series", []):
        series["points"] = [[at, 50 + 40 * math.sin(at), 5.0, 99.0] for at in times]
    route.fulfill(response=answer, body=json.dumps(told))


def fill_reservations(folder: Path) -> None:
    """A year of reservations, before the hub is started."""

    async def work() -> None:
        database = await open_database(None, folder)
        await fill(database, time.time())
        await database.close()

    asyncio.run(work())


def measure_reservations(browser: Browser, hub: HubUnderTest, token: str) -> dict[str, float]:
    """Milliseconds from one view until the next is there: with all hosts folded, as they are at first, and with all
    unfolded."""
    _report(hub, token)
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(f"{hub.url}/#/reservations?day={_full_day()}")
    page.wait_for_selector(".timeline .mark")
    times = _switch(page, "folded")
    page.evaluate(UNFOLD)
    times |= _switch(page, "unfolded")
    page.close()
    return times


def _full_day() -> str:
    """One on which every GPU is reserved."""
    return time.strftime("%Y-%m-%d", time.localtime(time.time() + 8 * DAY))


def _switch(page: Page, how: str) -> dict[str, float]:
    rounds = [{view: page.evaluate(SWITCH, [view, _full_day()]) for view in VIEWS} for _ in range(VISITS)]
    return {f"{view}, {how}": min(times[view] for times in rounds) for view in VIEWS}


def _report(hub: HubUnderTest, token: str) -> None:
    """The hosts of which the reservations are."""
    headers = {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/msgpack",
        "Content-Encoding": "zstd",
    }
    for number in range(math.ceil(GPUS / A_HOST)):
        made = make_envelope(number, 1, random.Random(number))
        gpus = [
            msgspec.structs.replace(gpu, uuid=f"GPU-{number * A_HOST + gpu.index}") for gpu in made.report.gpus or []
        ]
        report = msgspec.structs.replace(made.report, gpus=gpus)
        envelope = msgspec.structs.replace(made, host=f"gpu{number:02}", interval_seconds=60.0, report=report)
        request = urllib.request.Request(f"{hub.url}/api/v1/reports", encode(envelope), headers)
        urllib.request.urlopen(request, timeout=30).close()
