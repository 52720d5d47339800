"""A screen on the wall: large figures, no controls, and back by itself when the hub is."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from e2e.axe import serious_violations
from fakes.hubs import HubProcess, running_hub
from fakes.ports import free_port

pytestmark = pytest.mark.browser
Visits = Callable[..., Page]


def test_figures_are_large_and_nothing_can_be_pressed(still: HubProcess, visit: Visits) -> None:
    page = visit(still.url + "/#/kiosk", width=1920, height=1080)
    free = page.locator(".first b")
    expect(free).to_have_text(str(json.loads(still.get("/api/v1/totals"))["free"]))
    box = free.bounding_box()
    assert box is not None
    assert box["height"] > 300
    expect(page.get_by_role("button")).to_have_count(0)
    expect(page.get_by_role("navigation")).to_have_count(0)
    assert serious_violations(page) == []


def test_slides_follow_each_other_and_escape_leaves(still: HubProcess, visit: Visits) -> None:
    page = visit(still.url + "/#/kiosk")
    expect(page.get_by_role("heading", name="All GPUs")).to_be_visible()
    expect(page.get_by_role("heading", name="By model")).to_be_visible(timeout=30_000)
    expect(page.get_by_role("rowheader").first).to_be_visible()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("heading", name="All GPUs")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("searchbox")).to_be_visible()


def test_it_wakes_when_the_hub_is_back(tmp_path: Path, chromium: Browser) -> None:
    listen = ("--listen", f"127.0.0.1:{free_port()}", "--demo", "2")
    page = chromium.new_page()
    with running_hub(tmp_path, *listen) as hub:
        page.goto(hub.url + "/#/kiosk")
        expect(page.locator("footer")).to_contain_text("2 of 2 hosts up", timeout=30_000)
    expect(page.get_by_text("No connection")).to_be_visible(timeout=60_000)
    with running_hub(tmp_path, *listen):
        expect(page.get_by_text("No connection")).to_have_count(0, timeout=60_000)
        expect(page.locator("footer")).to_contain_text("2 of 2 hosts up", timeout=60_000)
    page.close()
