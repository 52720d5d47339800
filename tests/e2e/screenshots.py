"""Pictures of the demo fleet for README and docs: `make screenshots`."""

import json
import tempfile
import time
import urllib.request
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from e2e.conftest import CHROMIUM_ARGUMENTS, find_chromium
from e2e.looking import count_hosts, fleet_of
from fakes.hubs import HubProcess, running_hub, wait_until

IMAGES = Path(__file__).parent.parent.parent / "docs" / "images"
BOOKED = 24
"""The fleet of so many hosts has bookings."""
SHOTS = (
    ("fleet.png", 24, "", 1440, 860, "light"),
    ("fleet-dark.png", 24, "", 1440, 860, "dark"),
    ("phone.png", 24, "?q=free", 390, 780, "light"),
    ("bookings.png", 24, "#/bookings?booked=1", 1440, 720, "light"),
    ("thousand.png", 1000, "", 1440, 860, "light"),
)
BOOKINGS = (
    ("mira", 2, [0, 1], 9, 30, "ablations for the rebuttal"),
    ("jonas", 2, [4], 14, 8, "profiling"),
    ("aylin", 2, [5, 6], 33, 47, "fine-tuning, second try"),
    ("leila", 2, [2], 60, 24, ""),
    ("ivan", 3, [0, 1, 2, 3], 20, 52, "pretraining"),
    ("mira", 3, [0, 1], 84, 30, "evaluation"),
    ("ruth", 4, [1], 6, 10, "course"),
    ("ruth", 4, [1], 30, 10, "course"),
    ("ruth", 4, [1], 54, 10, "course"),
    ("jonas", 4, [2, 3], 40, 70, "sweep"),
)
"""Who, on which host of the fleet, on which of its GPUs, hours from now, for how many, why."""


def book(hub: HubProcess) -> None:
    hosts = fleet_of(hub)["hosts"]
    for user, host, indexes, begin, hours, note in BOOKINGS:
        start = (time.time() // 3600 + begin) * 3600
        uuids = [hosts[host]["gpus"][index]["uuid"] for index in indexes]
        body = {"gpus": uuids, "start": start, "for": f"{hours}h", "note": note, "user": user}
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{hub.url}/api/v1/reservations", json.dumps(body).encode(), headers)
        urllib.request.urlopen(request, timeout=10).close()


def take(browser: Browser, url: str, name: str, width: int, height: int, scheme: str) -> None:
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(url)
    page.locator("[data-host]").first.wait_for(timeout=30_000)
    # Flashes of the first changes fade within a second; a calm picture shows the page as it is most of the time.
    page.wait_for_timeout(2_500)
    page.screenshot(path=IMAGES / name)
    page.close()


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_ARGUMENTS)
        for hosts in sorted({shot[1] for shot in SHOTS}):
            with (
                tempfile.TemporaryDirectory() as folder,
                running_hub(Path(folder), "--demo", str(hosts), "--demo-days", "14") as hub,
            ):
                wait_until(lambda hub=hub, hosts=hosts: count_hosts(hub) > 0.9 * hosts, "the fleet", seconds=90)
                if hosts == BOOKED:
                    book(hub)
                for name, _, query, width, height, scheme in (shot for shot in SHOTS if shot[1] == hosts):
                    take(browser, f"{hub.url}/{query}", name, width, height, scheme)
                    print(f"wrote docs/images/{name}")
        browser.close()


if __name__ == "__main__":
    main()
