"""Looking at the page as its tests do, and sending reports to the hub behind it."""

import json
import time
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

from playwright.sync_api import ConsoleMessage, Page, Request

from fakes import reports
from fakes.hubs import RunningHub
from fakes.pushed import send
from fakes.waiting import wait_until
from gpudeck.collectors.simulated import SimulatedFleet, SimulatedJob
from gpudeck.demo.backfill import SEED
from gpudeck.wire import Envelope

STATES = ("free", "busy", "idle", "allocated", "reserved", "drained", "unknown")
DEMO_HOSTS = 12
"""With every fault, MIG and both vendors. To make the past of more takes each worker's hub seconds of CPU time."""


class Visit:
    """A page and what went wrong on it. Lost connections are no mistake of the page: some tests cut them."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.mistakes: list[str] = []
        self.strangers: list[str] = []
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.mistakes.append(str(error)))
        page.on("request", self._on_request)

    def open(self) -> None:
        self.page.goto(self.url)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type not in {"error", "warning"} or "net::ERR_" in message.text:
            return
        # A host or GPU without a report, or with only one, has no history yet: the browser logs it, the page says so.
        url = message.location["url"]
        if "404" not in message.text or not any(path in url for path in ("/api/v1/history?", "/api/v1/runs?")):
            self.mistakes.append(f"{message.text} {url}")

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith("data:") and urlsplit(request.url).netloc != urlsplit(self.url).netloc:
            self.strangers.append(request.url)


def fleet_of(hub: RunningHub) -> dict[str, Any]:
    fleet: dict[str, Any] = json.loads(hub.get("/api/v1/fleet"))
    return fleet


def count_hosts(hub: RunningHub) -> int:
    """Hosts that have reported. A demo fleet has one more that is dead for a while, now and then."""
    return int(fleet_of(hub)["totals"]["hosts"])


def lasting_job(hosts: int) -> tuple[str, SimulatedJob]:
    """The job of a demo fleet of so many hosts that goes on longest, alone on whole NVIDIA GPUs that work; one that
    computes, if there is any. With the name of its host. What a test has seen of it is there when it looks again."""
    fleet, now = SimulatedFleet(hosts, SEED), time.time()
    lasting = []
    for number, name in enumerate(fleet.names):
        slots = fleet.simulator(number).host.slots
        fit = {slot.uuid for slot in slots if (slot.model.vendor, slot.parent, slot.fault) == ("nvidia", None, "none")}
        jobs = fleet.runs(number, now, now + 1)
        lasting += [(name, job) for job in jobs if job.guest is None and fit.issuperset(job.gpus)]
    return max(lasting, key=lambda each: (each[1].kind in {"training", "loader"}, each[1].end))


def make_envelope(host: str = "gpu01", sequence: int = 1, **others: Any) -> Envelope:
    """As `fakes.reports.make_envelope`, but the host is not missed before a browser has drawn it."""
    return reports.make_envelope(host, sequence, **({"interval_seconds": 60.0} | others))


def send_and_record(hub: RunningHub, envelope: Envelope) -> None:
    """The past knows a host a second after its first report: a page that is quicker is told of none."""
    send(hub, envelope)

    def is_known() -> bool:
        try:
            return bool(hub.get(f"/api/v1/history?host={envelope.host}&metric=host_cpu_percent&start=-1h"))
        except HTTPError:
            return False

    wait_until(is_known, "its past")


NO_WORKER = "delete window.SharedWorker"
"""A script for a page whose stream a test takes over: what a worker asks for cannot be caught."""


NO_FIRST_LOOK = """new MutationObserver(() => document.getElementById('first-look')?.remove())
  .observe(document, { childList: true, subtree: true })"""
"""A script for a page that has to ask the hub for everything: what stands in it already cannot be caught either."""


def show_instead(page: Page, fleet: dict[str, Any]) -> None:
    """Let the page see this fleet in place of the hub's: for what no hub would send."""
    event = f"retry: 60000\nevent: snapshot\ndata: {json.dumps(fleet)}\n\n"
    page.add_init_script(NO_WORKER)
    page.route("**/api/v1/stream", lambda route: route.fulfill(body=event, content_type="text/event-stream"))
    page.reload()


def shown_totals(page: Page) -> dict[str, int]:
    """The numbers on the strip, by state. States that many sites never have are left out where none is in them."""
    found = page.locator(".chip b").evaluate_all(
        "all => all.map(each => [each.parentElement.classList[1], Number(each.textContent.replaceAll(',', ''))])"
    )
    return dict.fromkeys(STATES, 0) | {state: count for state, count in found if state in STATES}


def is_wider_than_its_window(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))
