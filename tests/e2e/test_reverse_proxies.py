"""The page below a path, behind real reverse proxies: every page, its files, the stream and the way back."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from e2e.looking import count_hosts
from fakes.hubs import running_hub
from fakes.ports import free_port
from fakes.reverse_proxies import PROXIES, Proxy
from fakes.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow]
Visits = Callable[..., Page]
OPEN = "read: open\n"
"""Behind a proxy somebody has to decide who may look."""
PAGES = ("Fleet", "People", "History", "Events")


@pytest.mark.parametrize("proxy", PROXIES, ids=lambda proxy: proxy.__name__)
def test_every_page_is_there_and_live(tmp_path: Path, chromium: Browser, visit: Visits, proxy: Proxy) -> None:
    (tmp_path / "gpudeck.yaml").write_text(OPEN)
    with running_hub(tmp_path, "--demo", "4") as hub, proxy(tmp_path, hub.url) as url:
        wait_until(lambda: count_hosts(hub) >= 3, "the simulated fleet")
        page = visit(f"{url}/?q=-unknown")
        expect(page.locator("[data-host]").first).to_be_visible()
        expect(page.locator(".live.live")).to_have_text("live")
        before = page.locator("main").inner_text()
        wait_until(lambda: page.locator("main").inner_text() != before, "a change on the page")
        for name in PAGES:
            page.get_by_role("navigation").get_by_role("link", name=name).click()
            expect(page.locator("main h1")).to_have_count(1)
            expect(page.get_by_text("This page could not be loaded")).to_have_count(0)
        expect(page).to_have_url(re.compile(r"/gpus/\?q=-unknown#/events$"))
        page.reload()
        expect(page.get_by_role("navigation").get_by_role("link", name="Events")).to_have_attribute(
            "aria-current", "page"
        )


@pytest.mark.parametrize("proxy", PROXIES, ids=lambda proxy: proxy.__name__)
def test_a_hub_that_comes_back_behind_its_proxy_is_found(tmp_path: Path, chromium: Browser, proxy: Proxy) -> None:
    listen = ("--listen", f"127.0.0.1:{free_port()}", "--demo", "4")
    (tmp_path / "gpudeck.yaml").write_text(OPEN)
    page = chromium.new_page()
    with running_hub(tmp_path, *listen) as hub, proxy(tmp_path, hub.url) as url:
        wait_until(lambda: count_hosts(hub) >= 3, "the simulated fleet")
        page.goto(f"{url}/")
        expect(page.locator(".live.live")).to_have_text("live")
        hub.stop()
        # The proxy answers in the hub's place, with 502: the browser gives up then, the page must not.
        expect(page.get_by_role("alert")).to_contain_text("No connection to the hub", timeout=15_000)
        with running_hub(tmp_path, *listen):
            expect(page.locator(".live.live")).to_have_text("live", timeout=30_000)
            expect(page.get_by_role("alert")).to_have_count(0)
    page.close()
