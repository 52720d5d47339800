"""The fleet page as of a moment of the past: what it shows is what the history says of that moment."""

import json
import re
import time
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError

import pytest
from playwright.sync_api import Page, expect

from e2e.looking import DEMO_HOSTS
from fakes.hubs import HubProcess, RunningHub
from fakes.waiting import wait_until

HOUR = 3600
Visits = Callable[..., Page]


@pytest.fixture
def moment(demo: RunningHub) -> int:
    """One that is recorded: the demo writes its past while it runs."""
    at = int(time.time() - 2 * HOUR) // 10 * 10
    wait_until(lambda: is_recorded(demo, at), "the demo's past", seconds=120, every=0.5)
    return at


def is_recorded(hub: HubProcess, at: int) -> bool:
    try:
        return int(fleet_at(hub, at)["totals"]["hosts"]) >= DEMO_HOSTS - 2
    except HTTPError:
        # The past comes newest first: that moment is still before its beginning.
        return False


def fleet_at(hub: HubProcess, at: int) -> dict[str, Any]:
    fleet: dict[str, Any] = json.loads(hub.get(f"/api/v1/fleet?at={at}"))
    return fleet


def open_moment(visit: Visits, hub: HubProcess, at: int, query: str = "") -> Page:
    page = visit(f"{hub.url}/?at={at}{query}")
    expect(page.locator(".machine").get_by_role("status")).to_contain_text("Coverage")
    return page


def test_a_moment_shows_what_was_recorded(demo: RunningHub, visit: Visits, moment: int) -> None:
    page = open_moment(visit, demo, moment)
    fleet = fleet_at(demo, moment)
    for word in ("free", "busy", "idle", "unknown"):
        expect(page.get_by_role("button", name=re.compile(rf"^{word} {fleet['totals'][word]}$"))).to_be_visible()
    host = fleet["hosts"][0]
    card = page.locator(f"[data-host='{host['id']}']").first
    expect(card.locator(".line")).to_have_count(len(host["gpus"]))
    users = {user for gpu in host["gpus"] for user in gpu["users"]}
    for user in users:
        expect(card.get_by_role("link", name=user).first).to_be_visible()


def test_nothing_can_be_taken_or_reserved_in_the_past(demo: RunningHub, visit: Visits, moment: int) -> None:
    page = open_moment(visit, demo, moment)
    page.locator(".line").first.click()
    details = page.locator(".popover")
    expect(details.get_by_role("link", name="GPU page")).to_be_visible()
    for name in ("Use it", "copied"):
        expect(details.get_by_role("button", name=name)).to_have_count(0)
    expect(details.get_by_role("link", name="Reserve")).to_have_count(0)


def test_the_slider_moves_and_back_to_live_is_live(demo: RunningHub, visit: Visits, moment: int) -> None:
    page = open_moment(visit, demo, moment, "&q=gpu01")
    expect(page.locator("[data-phase=past]")).to_be_visible()
    page.get_by_role("button", name="Earlier").click()
    expect(page).to_have_url(re.compile(rf"at=(?!{moment})\d+"))
    expect(page.locator(".machine").get_by_role("status")).to_contain_text("Coverage")
    page.get_by_role("button", name="Back to live").click()
    expect(page.locator(".machine")).to_have_count(0)
    expect(page.locator("[data-phase=live]")).to_be_visible()
    expect(page).to_have_url(re.compile(r"q=gpu01(?!.*at=)"))


def test_the_toolbar_leads_into_the_past(demo: RunningHub, visit: Visits, moment: int) -> None:
    page = visit(demo.url)
    page.get_by_role("button", name="time machine").click()
    expect(page.locator(".machine")).to_be_visible()
    expect(page).to_have_url(re.compile(r"at=\d+"))
    page.get_by_role("slider", name="Moment").focus()
    before = page.url
    page.keyboard.press("ArrowLeft")
    wait_until(lambda: page.url != before, "another moment")
