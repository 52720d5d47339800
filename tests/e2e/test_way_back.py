"""Back and forth: every stop is found as it was left."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from fakes.hubs import HubProcess
from fakes.waiting import wait_until

pytestmark = pytest.mark.browser
Visits = Callable[..., Page]

HEIGHT = 500


def scrolled(page: Page) -> int:
    return round(page.evaluate("scrollY"))


def scroll_to(page: Page, y: int) -> None:
    page.evaluate(f"scrollTo(0, {y})")
    wait_until(lambda: scrolled(page) == y, f"a page that is scrolled to {y}")


@pytest.fixture
def fleet(still: HubProcess, visit: Visits) -> Page:
    page = visit(still.url + "/?sort=name&view=cards", height=HEIGHT)
    expect(page.locator("[data-host]").first).to_be_visible()
    return page


def test_back_from_another_page_leads_to_what_was_seen(fleet: Page) -> None:
    scroll_to(fleet, 600)
    fleet.get_by_role("link", name="History", exact=True).click()
    expect(fleet.get_by_role("heading", level=1, name="History")).to_be_visible()
    assert scrolled(fleet) == 0
    fleet.go_back()
    wait_until(lambda: scrolled(fleet) == 600, "the fleet as it was left")
    fleet.go_forward()
    wait_until(lambda: scrolled(fleet) == 0, "the top of the other page")


def test_a_reload_stays_where_it_is(fleet: Page) -> None:
    scroll_to(fleet, 600)
    fleet.reload()
    wait_until(lambda: scrolled(fleet) == 600, "the same part of the fleet")


def test_who_scrolls_meanwhile_is_not_taken_elsewhere(fleet: Page) -> None:
    scroll_to(fleet, 600)
    fleet.evaluate("location.hash = '#/about'")
    expect(fleet.get_by_role("heading", level=1)).to_be_visible()
    fleet.go_back()
    wait_until(lambda: scrolled(fleet) == 600, "the fleet as it was left")
    fleet.mouse.move(400, 300)
    fleet.mouse.wheel(0, -250)
    wait_until(lambda: scrolled(fleet) == 350, "what the wheel asks for")
    fleet.wait_for_timeout(2_500)  # longer than the board takes to arrange itself anew
    assert scrolled(fleet) == 350


def test_a_change_of_the_view_does_not_move_the_page(fleet: Page) -> None:
    scroll_to(fleet, 300)
    fleet.get_by_role("combobox", name="Sort by").select_option("problems")
    assert scrolled(fleet) == 300
