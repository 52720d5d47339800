"""What the page does when the hub goes, comes back, or never was there for it."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from e2e.looking import NO_WORKER, make_envelope
from fakes.hubs import HubProcess, running_hub
from fakes.ports import free_port
from fakes.pushed import send
from fakes.waiting import wait_until

pytestmark = pytest.mark.browser
Visits = Callable[..., Page]


def seconds_lost(page: Page) -> int:
    text = page.get_by_role("alert").inner_text()
    found = re.search(r"for\s+(\d+)s", text)
    assert found is not None, text
    return int(found[1])


def free_colour(page: Page) -> str:
    return str(page.locator(".chip.free svg").evaluate("symbol => getComputedStyle(symbol).color"))


def test_a_lost_hub_is_seen_and_its_return_too(tmp_path: Path, chromium: Browser, visit: Visits) -> None:
    (tmp_path / "gpudeck.yaml").write_text("demo: never\nlocal: never\n")
    listen = ("--listen", f"127.0.0.1:{free_port()}")
    with running_hub(tmp_path, *listen) as hub:
        send(hub, make_envelope(interval_seconds=60.0))
        page = visit(hub.url)
        expect(page.locator(".live.live")).to_have_text("live")
        alive = free_colour(page)
        unknown = str(page.locator(".chip.unknown svg").evaluate("symbol => getComputedStyle(symbol).color"))
    # Before it is said aloud.
    expect(page.locator(".live")).to_have_attribute("data-phase", re.compile("waiting|lost"))
    expect(page.get_by_role("alert")).to_contain_text("No connection to the hub", timeout=15_000)
    expect(page).to_have_title("gpudeck")
    first = seconds_lost(page)
    wait_until(lambda: seconds_lost(page) > first, "a ticking age")
    expect(page.locator(".greyed .line").first).to_be_visible(timeout=15_000)
    assert free_colour(page) == unknown != alive
    weights = "parts => parts.map(part => Number(getComputedStyle(part).fontWeight))"
    assert max(page.locator(".chip, .chip b, .line.free .who").evaluate_all(weights)) <= 400
    with running_hub(tmp_path, *listen) as hub:
        expect(page.locator(".live.live")).to_have_text("live", timeout=30_000)
        expect(page.get_by_role("alert")).to_have_count(0)
        expect(page.locator(".greyed")).to_have_count(0)
        assert free_colour(page) == alive


@pytest.mark.parametrize(
    ("status", "title"),
    [
        (403, "Access denied"),
        (404, "No hub at this address"),
        (502, "The hub is not responding"),
    ],
)
def test_a_hub_that_does_not_let_in_is_explained(still: HubProcess, chromium: Browser, status: int, title: str) -> None:
    page = chromium.new_page()
    page.add_init_script(NO_WORKER)
    page.route("**/api/v1/**", lambda route: route.fulfill(status=status))
    page.goto(still.url)
    expect(page.get_by_role("heading", name=title)).to_be_visible()
    page.unroute_all()
    expect(page.locator("[data-host]").first).to_be_visible(timeout=30_000)
    page.close()


def test_the_page_works_below_a_path_prefix(tmp_path: Path, chromium: Browser, visit: Visits) -> None:
    (tmp_path / "gpudeck.yaml").write_text("path_prefix: /gpus\n")
    with running_hub(tmp_path, "--demo", "3") as hub:
        page = visit(hub.url.removesuffix("/gpus") + "/gpus/?q=gpu01")
        expect(page.locator(".live.live")).to_have_text("live")
        expect(page.locator("[data-host]").first).to_be_visible()
        expect(page).to_have_url(re.compile(r"/gpus/\?q=gpu01$"))
