"""The page without a pointer."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from fakes.hubs import HubProcess

pytestmark = pytest.mark.browser
Visits = Callable[..., Page]


@pytest.fixture
def page(still: HubProcess, visit: Visits) -> Page:
    page = visit(still.url + "/?sort=name")
    expect(page.locator(".line").first).to_be_visible()
    return page


def enter_the_board(page: Page) -> None:
    """By Tab from the last tool above the board."""
    page.get_by_role("button", name="notify me").focus()
    page.keyboard.press("Tab")


def test_the_first_stop_skips_to_the_content(page: Page) -> None:
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator("[data-host]").first.locator("[data-slot='-1']")).to_be_focused()


def test_slash_searches_and_escape_clears(page: Page) -> None:
    search = page.get_by_role("searchbox")
    page.keyboard.press("/")
    expect(search).to_be_focused()
    page.keyboard.type("free h")
    expect(search).to_have_value("free h")
    page.keyboard.press("Escape")
    expect(search).to_have_value("")
    page.keyboard.press("Escape")
    expect(search).not_to_be_focused()


def test_tab_enters_the_board_once_and_leaves_it_again(page: Page) -> None:
    enter_the_board(page)
    expect(page.locator("[data-host]").first.locator("[data-slot='-1']")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator("[data-slot]:focus")).to_have_count(0)


def test_arrows_walk_among_hosts_and_gpus(page: Page) -> None:
    first = page.locator("[data-host]").first
    enter_the_board(page)
    page.keyboard.press("ArrowDown")
    expect(first.locator("[data-slot='0']")).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(first.locator("[data-slot='1']")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.locator("[data-host]").nth(1).locator("[data-slot]:focus")).to_have_count(1)
    page.keyboard.press("End")
    expect(page.locator("[data-slot]:focus")).to_be_in_viewport()
    page.keyboard.press("Home")
    expect(first.locator("[data-slot='-1']")).to_be_focused()


def test_focus_shows_the_details_and_enter_goes_into_them(page: Page) -> None:
    enter_the_board(page)
    page.keyboard.press("ArrowDown")
    line = page.locator("[data-host]").first.locator("[data-slot='0']")
    details = page.locator(".popover")
    expect(details).to_be_visible()
    expect(line).to_be_focused()
    page.keyboard.press("Enter")
    expect(details.get_by_role("button", name="Use it")).to_be_focused()
    page.keyboard.press("Escape")
    expect(details).to_have_count(0)
    expect(line).to_be_focused()


def test_enter_collapses_a_host_by_its_own_control(page: Page) -> None:
    control = page.locator("[data-host]").first.locator(".chevron")
    enter_the_board(page)
    page.keyboard.press("Tab")
    expect(control).to_be_focused()
    page.keyboard.press("Enter")
    expect(control).to_have_attribute("aria-expanded", "false")
    expect(control).to_be_focused()


def test_enter_on_the_name_of_a_host_opens_it(page: Page) -> None:
    enter_the_board(page)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("#/host/"))


def test_v_turns_cards_into_the_table(page: Page) -> None:
    page.keyboard.press("v")
    expect(page.get_by_role("grid", name="Hosts")).to_be_visible()
    page.keyboard.press("v")
    expect(page.get_by_role("grid", name="Hosts")).to_have_count(0)


def test_rows_of_the_table_are_numbered(page: Page) -> None:
    page.keyboard.press("v")
    rows = page.get_by_role("grid", name="Hosts").get_by_role("row")
    expect(rows.nth(5)).to_be_visible()
    indexes = rows.evaluate_all("rows => rows.map(row => Number(row.getAttribute('aria-rowindex')))")
    assert indexes == list(range(1, len(indexes) + 1))


def test_question_mark_shows_the_help_and_escape_closes_it(page: Page) -> None:
    page.keyboard.press("?")
    help_dialog = page.get_by_role("dialog", name="Help")
    expect(help_dialog).to_be_visible()
    expect(help_dialog).to_contain_text(">40G")
    page.keyboard.press("Escape")
    expect(help_dialog).to_have_count(0)


def test_two_keys_lead_to_each_page_and_back(page: Page) -> None:
    for keys, name in (("gp", "People"), ("gh", "History"), ("gr", "Reservations"), ("ge", "Events"), ("gf", "Fleet")):
        page.keyboard.press(keys[0])
        page.keyboard.press(keys[1])
        expect(page.get_by_role("navigation").get_by_role("link", name=name)).to_have_attribute("aria-current", "page")
    expect(page.locator(".line").first).to_be_visible()
    page.go_back()
    expect(page).to_have_url(re.compile("#/events$"))


def test_letters_in_the_search_are_only_letters(page: Page) -> None:
    page.keyboard.press("/")
    page.keyboard.type("v?/c")
    expect(page.get_by_role("searchbox")).to_have_value("v?/c")
    expect(page.get_by_role("dialog")).to_have_count(0)
