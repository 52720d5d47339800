"""Ctrl-K goes anywhere from the keyboard alone."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from e2e.axe import serious_violations
from fakes.hubs import HubProcess

pytestmark = pytest.mark.browser
Visits = Callable[..., Page]


@pytest.fixture
def page(still: HubProcess, visit: Visits) -> Page:
    page = visit(still.url)
    expect(page.locator(".line").first).to_be_visible()
    return page


def open_palette(page: Page, text: str) -> None:
    expect(page.get_by_role("combobox", name="Go to a page")).to_have_count(0)
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox", name="Go to a page")).to_be_focused()
    page.keyboard.type(text)


def test_a_host_a_gpu_and_a_page_are_reached_with_enter(page: Page) -> None:
    host = page.locator("[data-host] a").first.inner_text()
    open_palette(page, host)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"#/host/{host}$"))
    open_palette(page, f"{host}:0")
    expect(page.get_by_role("dialog").get_by_role("option", selected=True)).to_contain_text(f"{host}:0")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("#/gpu/"))
    open_palette(page, "events")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("#/events$"))


def test_arrows_choose_and_escape_leaves_everything_as_it_was(page: Page) -> None:
    open_palette(page, "")
    options = page.get_by_role("dialog").get_by_role("option")
    expect(options.first).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowDown")
    expect(options.nth(1)).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    expect(options.last).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Escape")
    expect(page.get_by_role("listbox")).to_have_count(0)
    assert "#" not in page.url


def test_an_action_is_done_and_a_text_is_searched(page: Page) -> None:
    open_palette(page, "theme")
    page.keyboard.press("Enter")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    open_palette(page, "no such thing")
    expect(page.get_by_role("dialog").get_by_role("option")).to_have_text([re.compile("Search the fleet for")])
    page.keyboard.press("Enter")
    expect(page.get_by_role("searchbox")).to_have_value("no such thing")
    open_palette(page, "help")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Help")).to_be_visible()


def test_it_opens_while_somebody_types_and_has_no_barriers(page: Page) -> None:
    page.get_by_role("searchbox").focus()
    open_palette(page, "a")
    assert serious_violations(page) == []


def test_view_is_saved_opened_made_the_default_and_deleted(page: Page, still: HubProcess) -> None:
    page.get_by_role("button", name="table", exact=True).click()
    open_palette(page, "save this view")
    page.keyboard.press("Enter")
    page.get_by_label("Save this view as").fill("As a table")
    page.keyboard.press("Enter")
    saved = page.get_by_label("Saved view")
    expect(saved).to_have_value("As a table")
    page.get_by_role("button", name="cards", exact=True).click()
    expect(saved).to_have_value("")
    open_palette(page, "as a table")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("view=table"))
    expect(saved).to_have_value("As a table")
    saved.select_option(" ")
    page.get_by_role("button", name="Default: As a table").click()
    assert serious_violations(page) == []
    page.keyboard.press("Escape")
    page.get_by_role("button", name="cards", exact=True).click()
    page.goto(still.url)
    expect(page).to_have_url(re.compile("view=table"))
    saved.select_option(" ")
    page.get_by_role("button", name="Delete As a table").click()
    expect(saved).to_have_count(0)
    page.get_by_role("dialog").get_by_role("button", name="Undo").click()
    page.keyboard.press("Escape")
    expect(saved).to_have_value("As a table")
