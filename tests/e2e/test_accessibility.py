"""Every page for everybody: axe-core finds nothing serious, in light and in dark, wide and narrow."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from e2e.axe import serious_violations
from e2e.looking import is_wider_than_its_window
from fakes.hubs import RunningHub

pytestmark = pytest.mark.browser
Visits = Callable[..., Page]
PAGES = (
    "",
    "?view=table",
    "?group=user",
    "?group=model&view=table",
    "?view=map",
    "#/people",
    "#/history",
    "#/reservations",
    "#/events",
    "#/about",
)


@pytest.mark.parametrize("place", PAGES)
def test_no_page_shuts_anybody_out(demo: RunningHub, visit: Visits, place: str) -> None:
    page = visit(f"{demo.url}/{place}")
    expect(page.locator("main h1")).to_have_count(1)
    expect(page.locator(".live.live")).to_have_text("live")
    assert serious_violations(page) == []


@pytest.mark.parametrize("place", PAGES)
def test_no_page_is_wider_than_a_phone_or_dark_beyond_reading(demo: RunningHub, visit: Visits, place: str) -> None:
    page = visit(f"{demo.url}/{place}", width=390, height=844, color_scheme="dark")
    expect(page.locator("main h1")).to_have_count(1)
    expect(page.locator(".live.live")).to_have_text("live")
    assert not is_wider_than_its_window(page)
    assert serious_violations(page) == []


def test_on_a_phone_the_pages_are_within_reach_of_a_thumb(demo: RunningHub, visit: Visits) -> None:
    page = visit(demo.url, width=390, height=844)
    expect(page.locator("[data-host]").first).to_be_visible()
    for name in ("People", "History", "Reservations", "Events", "Fleet"):
        link = page.get_by_role("navigation").get_by_role("link", name=name)
        box = link.bounding_box()
        assert box is not None
        assert box["y"] > 844 * 0.9
        assert box["height"] >= 44
        link.click()
        expect(link).to_have_attribute("aria-current", "page")
