"""Maintenance in a real browser: a host is drained, seen everywhere, and given back."""

import json
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from e2e.axe import serious_violations
from e2e.looking import is_wider_than_its_window
from fakes.hubs import HubProcess
from fakes.still_fleet import running_still_hub

pytestmark = pytest.mark.browser
Visits = Callable[..., Page]


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[HubProcess]:
    with running_still_hub(tmp_path_factory.mktemp("still")) as hub:
        yield hub


def windows_of(hub: HubProcess) -> list[dict[str, Any]]:
    return list(json.loads(hub.get("/api/v1/maintenance"))["maintenance"])


def wait_in_queue(hub: HubProcess) -> None:
    """A request of bob's that cannot be met. Asked again, it stays for another minute."""
    body = json.dumps({"key": "a key of bob's", "user": "bob", "gpus": 8, "same_host": True}).encode()
    question = urllib.request.Request(f"{hub.url}/api/v1/queue", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(question, timeout=30).close()


def test_host_is_drained_until_tomorrow_seen_and_given_back(still: HubProcess, visit: Visits) -> None:
    page = visit(f"{still.url}/#/host/gpu01")
    page.get_by_role("button", name="Maintenance…").click()
    form = page.get_by_role("form", name="Drain gpu01")
    form.get_by_label("Reason").fill("new fans")
    assert serious_violations(page) == []
    page.keyboard.press("Enter")
    expect(page.get_by_text("In maintenance until").first).to_contain_text("09:00: new fans")
    (window,) = windows_of(still)
    assert (window["host"], window["gpu"], window["state"]) == ("gpu01", None, "running")
    page.goto(f"{still.url}/?q=gpu01")
    card = page.get_by_role("article", name="gpu01")
    expect(card.locator(".note.drained")).to_contain_text("09:00: new fans")
    # The GPU that alice is on works on, and says that it will not become free.
    expect(card.get_by_role("row").nth(1)).to_contain_text("In maintenance until")
    expect(card.get_by_role("row").nth(2)).to_contain_text("alice in maintenance")
    expect(page.get_by_role("button", name="drained 1")).to_be_visible()
    assert serious_violations(page) == []
    page.goto(f"{still.url}/#/events")
    listed = page.get_by_role("region", name="Maintenance")
    expect(listed.get_by_role("listitem")).to_contain_text("new fans")
    listed.get_by_role("button", name="End maintenance of gpu01").click()
    expect(listed).to_have_count(0)
    page.locator(".toast").get_by_role("button", name="Undo").click()
    expect(listed.get_by_role("listitem")).to_contain_text("gpu01 until")
    listed.get_by_role("button", name="End maintenance of gpu01").click()
    expect(listed).to_have_count(0)
    assert windows_of(still) == []


def test_one_gpu_is_drained_on_a_phone_and_mistakes_are_named(still: HubProcess, visit: Visits) -> None:
    page = visit(f"{still.url}/#/gpu/GPU-gpu01-0", width=390, height=780, color_scheme="dark")
    page.get_by_role("button", name="Maintenance…").click()
    form = page.get_by_role("form", name="Drain gpu01:0")
    form.get_by_label("Reason").fill("memory test")
    form.get_by_label("End").select_option("until I end it")
    assert not is_wider_than_its_window(page)
    assert serious_violations(page) == []
    form.get_by_role("button", name="Drain").click()
    expect(page.get_by_text("In maintenance: memory test")).to_be_visible()
    page.get_by_role("button", name="End now").click()
    expect(page.get_by_role("button", name="Maintenance…")).to_be_visible()
    assert windows_of(still) == []


def test_owner_who_has_no_channel_is_named(still: HubProcess, visit: Visits) -> None:
    page = visit(f"{still.url}/#/gpu/GPU-gpu01-2?ask=1")
    form = page.get_by_role("form", name="Ask bob")
    form.get_by_label("Message").fill("may I have it?")
    assert serious_violations(page) == []


def test_mine_shows_my_gpus_runs_and_queue_by_a_login_that_is_chosen_once(still: HubProcess, visit: Visits) -> None:
    wait_in_queue(still)
    page = visit(f"{still.url}/#/mine", width=390, height=780)
    page.get_by_label("Login").fill("bob")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{still.url}/#/mine?login=bob")
    expect(page.get_by_role("link", name="gpu01: 2")).to_be_visible()
    queue = page.get_by_role("region", name="Queue")
    expect(queue.get_by_role("row").last).to_contain_text("8 GPUs on one host")
    assert not is_wider_than_its_window(page)
    assert serious_violations(page) == []
    wait_in_queue(still)
    page.goto(f"{still.url}/#/reservations")
    expect(page.get_by_role("region", name="Queue")).to_contain_text("bob")
    page.get_by_role("link", name="Mine").click()
    expect(page).to_have_url(f"{still.url}/#/mine?login=bob")
    page.get_by_role("button", name="Not bob?").click()
    expect(page.get_by_label("Login")).to_be_visible()
