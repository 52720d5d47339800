"""The map: every GPU as a cell on a canvas."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from e2e.axe import serious_violations
from e2e.looking import fleet_of
from fakes.hubs import HubProcess
from fakes.waiting import wait_until

pytestmark = pytest.mark.browser
Visits = Callable[..., Page]
BELOW_NAME = 20
"""Pixels from the top of the map to the cells of its first host, which are below the host's name."""

CENTRE = """state => {
  const canvas = document.querySelector('.map canvas')
  const cell = document.querySelector('.map .frame').getBoundingClientRect()
  const box = canvas.getBoundingClientRect()
  const ratio = canvas.width / box.width
  const middle = [cell.left + cell.width / 2 - box.left, cell.top + cell.height / 2 - box.top]
  const probe = document.body.appendChild(document.createElement('i'))
  probe.style.color = `var(--${state})`
  const wanted = getComputedStyle(probe).color
  probe.remove()
  const at = middle.map(px => Math.round(px * ratio))
  const [red, green, blue] = canvas.getContext('2d').getImageData(...at, 1, 1).data
  return [`rgb(${red}, ${green}, ${blue})`, wanted]
}"""
"""The colour of the canvas in the middle of the framed cell, and that of a state."""


def open_map(visit: Visits, url: str, search: str = "", **options: object) -> Page:
    page = visit(f"{url}/?view=map&sort=name{search}", **options)
    expect(page.locator(".map canvas")).to_be_visible()
    return page


def frame_first(page: Page) -> str:
    """Frames the first cell; what is said of it."""
    page.get_by_role("application", name="Map of").focus()
    page.keyboard.press("Home")
    return page.locator(".map [aria-live]").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("state", ["free", "busy"])
def test_a_cell_has_the_colour_of_its_state(still: HubProcess, visit: Visits, state: str, scheme: str) -> None:
    page = open_map(visit, still.url, f"&q={state}", color_scheme=scheme)
    assert f", {state}" in frame_first(page)
    drawn, wanted = page.evaluate(CENTRE, state)
    assert drawn == wanted


def test_it_has_a_cell_for_each_gpu(still: HubProcess, visit: Visits) -> None:
    page = open_map(visit, still.url)
    gpus = fleet_of(still)["totals"]["gpus"]
    expect(page.locator(".map")).to_have_attribute("aria-label", re.compile(f"Map of {gpus} GPUs"))


def test_pointing_says_what_is_there_and_a_click_opens_the_host(still: HubProcess, visit: Visits) -> None:
    page = open_map(visit, still.url)
    box = page.locator(".map .field").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 5, box["y"] + BELOW_NAME)
    tip = page.locator(".map .tip")
    expect(tip).to_contain_text("GPU 0")
    name = tip.locator("b").inner_text().split(" ")[0]
    page.mouse.click(box["x"] + 5, box["y"] + BELOW_NAME)
    expect(page.get_by_role("heading", level=1, name=name)).to_be_visible()


def test_arrows_walk_and_enter_opens_the_host(still: HubProcess, visit: Visits) -> None:
    page = open_map(visit, still.url)
    first = frame_first(page)
    page.keyboard.press("ArrowRight")
    expect(page.locator(".map [aria-live]")).to_contain_text("GPU 1")
    page.keyboard.press("End")
    last = page.locator(".map [aria-live]").inner_text()
    assert last.split(",")[0] != first.split(",")[0]
    expect(page.locator(".map .frame")).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name=re.escape(last.split(",")[0].split(" ")[0]))).to_be_visible()


def test_a_touch_shows_the_gpu_and_another_one_opens_the_host(still: HubProcess, visit: Visits) -> None:
    page = open_map(visit, still.url, width=390, has_touch=True)
    box = page.locator(".map .field").bounding_box()
    assert box is not None
    page.touchscreen.tap(box["x"] + 3, box["y"] + BELOW_NAME)
    expect(page.locator(".map .tip")).to_contain_text("GPU 0")
    page.touchscreen.tap(box["x"] + 3, box["y"] + BELOW_NAME)
    expect(page).to_have_url(re.compile("#/host/"))


def test_groups_have_headings_and_a_search_keeps_what_it_finds(still: HubProcess, visit: Visits) -> None:
    page = open_map(visit, still.url, "&group=model")
    models = {gpu["display_name"] for host in fleet_of(still)["hosts"] for gpu in host["gpus"]}
    assert page.locator(".map h2").first.inner_text() in models
    page.get_by_role("searchbox").fill("no-such-gpu")
    expect(page.get_by_text("No GPU matches")).to_be_visible()


def test_the_view_stands_in_the_address_and_changes_with_a_key(still: HubProcess, visit: Visits) -> None:
    page = visit(still.url + "/?view=table")
    expect(page.get_by_role("grid", name="Hosts")).to_be_visible()
    page.keyboard.press("v")
    expect(page.locator(".map canvas")).to_be_visible()
    expect(page).to_have_url(re.compile("view=map"))
    page.keyboard.press("v")
    expect(page.locator(".card").first).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_accessible(still: HubProcess, visit: Visits, scheme: str) -> None:
    page = open_map(visit, still.url, "&group=model", color_scheme=scheme)
    frame_first(page)
    assert serious_violations(page) == []


def test_states_keep_their_colours_where_colours_are_forced(still: HubProcess, visit: Visits) -> None:
    page = open_map(visit, still.url, forced_colors="active")
    count = """canvas => {
      const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)
      const colours = new Set()
      for (let at = 0; at < data.length; at += 4) if (data[at + 3] === 255) colours.add(data.slice(at, at + 3).join())
      return colours.size
    }"""
    # A state's own and its wash, of at least two states.
    wait_until(lambda: int(page.locator(".map canvas").evaluate(count)) >= 4, "cells in colours")
