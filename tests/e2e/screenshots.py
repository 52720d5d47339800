"""Pictures of the demo fleet for README and docs: `make screenshots`. Making its past takes some minutes."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import Browser, sync_playwright

from e2e.conftest import CHROMIUM_ARGUMENTS, find_chromium
from e2e.looking import fleet_of
from fakes.hubs import HubProcess, running_hub
from fakes.waiting import wait_until

IMAGES = Path(__file__).parent.parent.parent / "docs" / "images"
PAST_SECONDS = 1_200
"""How long the making of a past may take on a slow machine."""


class Shot(NamedTuple):
    """`address` is made from a fleet: which GPU is worth a picture shows when it is there."""

    name: str
    address: Callable[[dict[str, Any]], str]
    width: int = 1440
    height: int = 860
    scheme: str = "light"


def busiest_gpu(fleet: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The hardest working GPU that has an owner, with its host."""
    found = [(host, gpu) for host in fleet["hosts"] for gpu in host["gpus"] if gpu["users"]]
    return max(found, key=lambda pair: pair[1]["utilization_percent"] or 0)


def busiest_user(fleet: dict[str, Any]) -> str:
    users: list[str] = [user for host in fleet["hosts"] for gpu in host["gpus"] for user in gpu["users"]]
    return max(sorted(set(users)), key=users.count)


OF_24 = (
    Shot("fleet.png", lambda _: ""),
    Shot("fleet-dark.png", lambda _: "", scheme="dark"),
    Shot("phone.png", lambda _: "?q=free", width=390, height=780),
    Shot("time-machine.png", lambda fleet: f"?at={int(fleet['time']) - 7200}", height=640),
    Shot("host.png", lambda fleet: f"#/host/{busiest_gpu(fleet)[0]['name']}"),
    Shot("gpu.png", lambda fleet: f"#/gpu/{busiest_gpu(fleet)[1]['uuid']}"),
    Shot("people.png", lambda _: "#/people", height=640),
    Shot("person.png", lambda fleet: f"#/user/{busiest_user(fleet)}"),
    Shot("history.png", lambda _: "#/history"),
    Shot("reservations.png", lambda _: "#/reservations?reserved=1", height=720),
    Shot("events.png", lambda _: "#/events", height=640),
    # Not where things are: that is a folder of whoever takes the picture.
    Shot("about.png", lambda _: "#/about", height=465),
)
OF_1000 = (Shot("thousand.png", lambda _: ""),)


def hosts_up(hub: HubProcess) -> int:
    """From a small answer: a large fleet asked for again and again is more than one caller may have."""
    return int(json.loads(hub.get("/api/v1/about"))["totals"]["hosts_up"])


def take(browser: Browser, hub: HubProcess, shot: Shot) -> None:
    page = browser.new_page(
        viewport={"width": shot.width, "height": shot.height},
        color_scheme=shot.scheme,  # type: ignore[arg-type]
    )
    page.goto(f"{hub.url}/{shot.address(fleet_of(hub))}")
    page.locator("main :is([data-host], h1, h2)").first.wait_for(timeout=30_000)
    page.wait_for_load_state("load")
    # Answers about the past come, and flashes of the first changes fade: the page as it is most of the time.
    page.wait_for_timeout(4_000)
    page.screenshot(path=IMAGES / shot.name)
    page.close()
    print(f"wrote docs/images/{shot.name}")


def take_all(browser: Browser, hosts: int, days: int, shots: tuple[Shot, ...]) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        running_hub(Path(folder), "--demo", str(hosts), "--demo-days", str(days)) as hub,
    ):
        wait_until(lambda: hosts_up(hub) > 0.9 * hosts, "a fleet that is up", seconds=90)
        log = Path(folder) / "log"
        wait_until(lambda: days == 0 or "simulated past" in log.read_text(), "its past", seconds=PAST_SECONDS)
        for shot in shots:
            take(browser, hub, shot)


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_ARGUMENTS)
        take_all(browser, 24, 9, OF_24)
        take_all(browser, 1000, 0, OF_1000)
        browser.close()


if __name__ == "__main__":
    main()
