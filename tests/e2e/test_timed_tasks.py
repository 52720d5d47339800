"""What a first-time user does, and how long that takes by the keystroke-level model: a decision 1.35 s, to
point 1.1 s, a click 0.2 s, a key 0.28 s, hands to the keyboard or back 0.4 s. Waiting is not counted."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from fakes.hubs import HubProcess, running_hub
from fakes.waiting import wait_until

DECIDE, POINT, CLICK, KEY, HOME = 1.35, 1.1, 0.2, 0.28, 0.4
PAST_SECONDS = 300

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[HubProcess]:
    """A demo with its past and its story."""
    folder: Path = tmp_path_factory.mktemp("tasks")
    (folder / "gpudeck.yaml").write_text("limits: {unlimited: [127.0.0.1]}\n")
    with running_hub(folder, "--demo", "12", "--demo-days", "8") as hub:
        log = folder / "log"
        wait_until(lambda: "made a simulated past" in log.read_text(), "its past", seconds=PAST_SECONDS)
        yield hub


class Person:
    """Counts what is done on a page."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.seconds = DECIDE
        self._is_at_keyboard = False

    def click(self, target: Locator) -> None:
        self._move(to_keyboard=False)
        self.seconds += POINT + CLICK
        target.click()

    def type(self, text: str) -> None:
        self._move(to_keyboard=True)
        self.seconds += KEY * len(text)
        self.page.keyboard.type(text)

    def press(self, keys: str) -> None:
        self._move(to_keyboard=True)
        self.seconds += KEY * len(keys.split("+"))
        self.page.keyboard.press(keys)

    def _move(self, *, to_keyboard: bool) -> None:
        self.seconds += HOME * (self._is_at_keyboard != to_keyboard)
        self._is_at_keyboard = to_keyboard

    def go(self, page: str) -> None:
        self.click(self.page.get_by_role("navigation", name="Pages").get_by_role("link", name=page))


@pytest.fixture
def person(hub: HubProcess, visit: Callable[..., Page]) -> Person:
    page = visit(f"{hub.url}/")
    expect(page.locator("[data-host]").first).to_be_visible()
    return Person(page)


def test_owner_of_an_idle_gpu_gets_a_message(person: Person, hub: HubProcess) -> None:
    page = person.page
    owned = page.locator(".line", has_text="idle").filter(has=page.locator(".names a"))
    person.click(owned.first.locator(".figure").first)
    person.click(page.get_by_role("link", name="Ask owner…"))
    expect(page.get_by_role("form", name="Ask").get_by_role("button").first).to_be_visible()
    person.press("Enter")
    wait_until(lambda: b"message_delivered" in hub.get("/api/v1/events?limit=20"), "the message")
    assert person.seconds <= 8


def test_who_was_on_a_gpu_yesterday_night(person: Person) -> None:
    page = person.page
    person.press("Control+k")
    expect(page.get_by_role("combobox", name="Go to a page")).to_be_focused()
    person.type("gpu05:3 yesterday 03:12")
    person.press("Enter")
    expect(page.get_by_label("As of")).to_have_value(re.compile("T03:12$"))
    expect(page.locator("[data-host]")).to_have_count(1)
    assert "at=" in page.url
    assert person.seconds <= 10


def test_two_gpus_are_compared(person: Person) -> None:
    page = person.page
    person.click(page.locator(".line").first)
    person.click(page.get_by_role("link", name="Compare", exact=True))
    expect(page.get_by_role("heading", name="Compare")).to_be_visible()
    person.type("gpu05:3")
    person.press("Enter")
    expect(page).to_have_url(re.compile("GPU-.*GPU-"))
    assert person.seconds <= 10


def test_flakiest_gpu(person: Person) -> None:
    person.go("Reliability")
    expect(person.page.get_by_role("row").nth(1)).to_contain_text("gpu09")
    assert person.seconds <= 6


def test_host_is_put_into_maintenance_until_tomorrow(person: Person) -> None:
    page = person.page
    person.click(page.locator("[data-host] a", has_text="gpu10").first)
    person.click(page.get_by_role("button", name="Maintenance…"))
    expect(page.get_by_role("form", name="Drain gpu10")).to_be_visible()
    person.type("fans")
    person.press("Enter")
    expect(page.get_by_text("In maintenance until").first).to_be_visible()
    assert person.seconds <= 10


def test_my_runs_of_this_week_at_the_first_visit(person: Person) -> None:
    page = person.page
    person.press("Control+k")
    person.type("my runs")
    person.press("Enter")
    expect(page.get_by_label("Login")).to_be_focused()
    person.type("ruth")
    person.press("Enter")
    expect(page.locator("#runs")).to_be_in_viewport()
    assert person.seconds <= 6
