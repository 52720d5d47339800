"""What happened, and the hub about itself, in a real browser."""

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from e2e.looking import fleet_of, send, show_instead
from fakes.hubs import HubProcess, running_hub
from fakes.reports import make_envelope, make_gpu

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[HubProcess]:
    """A hub to which a new host has reported once, and is not to be missed before all tests are through."""
    with running_quietly(tmp_path_factory.mktemp("quiet")) as hub:
        yield hub


@contextlib.contextmanager
def running_quietly(folder: Path) -> Iterator[HubProcess]:
    (folder / "gpudeck.yaml").write_text("demo: never\nlocal: never\n")
    with running_hub(folder) as hub:
        send(hub, make_envelope("gpu01", interval_seconds=300.0))
        yield hub


def test_events_are_listed_newest_first_with_their_links(quiet: HubProcess, visit: Callable[..., Page]) -> None:
    page = visit(f"{quiet.url}/#/events")
    expect(page.locator("li[data-kind]")).to_have_count(2)
    expect(page.locator("li[data-kind]").first).to_contain_text("gpu01 reports for the first time")
    page.get_by_role("link", name="gpu01").click()
    expect(page).to_have_url(f"{quiet.url}/#/host/gpu01")


def test_event_that_happens_now_comes_in_at_the_top(tmp_path: Path, visit: Callable[..., Page]) -> None:
    with running_quietly(tmp_path) as hub:
        page = visit(f"{hub.url}/#/events")
        expect(page.locator("li[data-kind]")).to_have_count(2)
        send(hub, make_envelope("gpu02", gpus=[make_gpu(uuid="GPU-other")]))
        expect(page.locator("li[data-kind]").first).to_contain_text("gpu02 reports for the first time")
        expect(page.locator("li[data-kind]")).to_have_count(3)
        page.close()


def test_filter_stands_in_the_address(quiet: HubProcess, visit: Callable[..., Page]) -> None:
    page = visit(f"{quiet.url}/#/events?kind=hub_started,hub_stopped,history_problem,history_recovered")
    expect(page.locator("li[data-kind]")).to_have_count(1)
    page.get_by_label("Kind of event").select_option(label="everything")
    expect(page.locator("li[data-kind]")).to_have_count(2)
    page.get_by_label("Search events").fill("first time")
    expect(page.locator("li[data-kind]")).to_have_count(1)
    expect(page).to_have_url(f"{quiet.url}/#/events?q=first+time")
    page.get_by_label("Search events").fill("nothing like it")
    expect(page.get_by_text("Nothing fits")).to_be_visible()
    page.get_by_role("button", name="Show everything").click()
    expect(page.locator("li[data-kind]")).to_have_count(2)


def test_first_alerts_stand_above_and_a_button_shows_the_rest(quiet: HubProcess, visit: Callable[..., Page]) -> None:
    about: dict[str, object] = {
        "gpu": None,
        "label": None,
        "host": "gpu01",
        "silenced_by": None,
        "acknowledged_by": None,
    }
    told = {"rule": "host_down", "severity": "warning", "state": "firing", "action": "Look.", "note": None, "since": 0}
    alerts = [{**about, **told, "id": str(each), "title": f"trouble {each}"} for each in range(9)]
    page = visit(f"{quiet.url}/#/events")
    show_instead(page, {**fleet_of(quiet), "alerts": alerts})
    panel = page.get_by_role("region", name="Alerts")
    expect(panel.get_by_role("heading")).to_have_text("9 alerts")
    expect(panel.get_by_role("listitem")).to_have_count(6)
    panel.get_by_role("button", name="Show all 9").click()
    expect(panel.get_by_role("listitem")).to_have_count(9)


def test_hub_that_cannot_tell_is_said_so(quiet: HubProcess, visit: Callable[..., Page]) -> None:
    page = visit(f"{quiet.url}/#/about")
    expect(page.get_by_text("Running for")).to_be_visible()
    expect(page.locator("dt:text-is('Viewers now') + dd")).to_have_text(re.compile("[1-9]"))
    page.route("**/api/v1/events*", lambda route: route.abort())
    page.goto(f"{quiet.url}/#/events")
    expect(page.get_by_text("What happened cannot be shown")).to_be_visible()
    page.unroute("**/api/v1/events*")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("li[data-kind]")).to_have_count(2)


def test_about_tells_of_the_hub_and_copies_it_without_its_places(quiet: HubProcess, chromium: Browser) -> None:
    context = chromium.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(f"{quiet.url}/#/about")
    expect(page.locator("main")).to_contain_text("1 of 1 up")
    expect(page.locator("main")).to_contain_text(str(quiet.data_dir))
    page.get_by_role("button", name="Copy diagnostics").click()
    expect(page.get_by_text("copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    context.close()
    assert "Taken: 1" in copied
    assert str(quiet.data_dir) not in copied


@pytest.mark.parametrize(("name", "words"), [("events", "gpu01 reports"), ("about", "Running for")])
def test_page_fits_a_phone(quiet: HubProcess, visit: Callable[..., Page], name: str, words: str) -> None:
    page = visit(f"{quiet.url}/#/{name}", width=390, color_scheme="dark")
    expect(page.get_by_text(words)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
