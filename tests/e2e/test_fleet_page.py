"""The fleet page of a demo hub: what it shows, how it is searched, and that a view can be shared."""

import json
import re
from collections.abc import Callable
from urllib.parse import unquote

import pytest
from playwright.sync_api import Page, expect

from e2e.looking import STATES, fleet_of, is_wider_than_its_window, shown_totals
from fakes.hubs import HubProcess
from fakes.waiting import wait_until

pytestmark = pytest.mark.browser
Visits = Callable[..., Page]
GIB = 2**30


def test_totals_agree_with_the_api(demo: HubProcess, visit: Visits) -> None:
    page = visit(demo.url)
    expect(page.locator(".chip.free")).to_be_visible()

    def agrees() -> bool:
        totals = fleet_of(demo)["totals"]
        return shown_totals(page) == {state: totals[state] for state in STATES}

    wait_until(agrees, "the same totals on the page and in the API")


def test_every_host_and_every_gpu_is_there(demo: HubProcess, visit: Visits) -> None:
    page = visit(demo.url)
    page.get_by_role("button", name="unfold all").click()

    def agrees() -> bool:
        totals = fleet_of(demo)["totals"]
        return (page.locator("[data-host]").count(), page.locator(".line").count()) == (totals["hosts"], totals["gpus"])

    wait_until(agrees, "a card for each host and a line for each GPU")


def test_a_gpu_reads_as_in_the_api(demo: HubProcess, visit: Visits) -> None:
    page = visit(demo.url + "/?q=busy")
    expect(page.locator(".line").first).to_be_visible()
    wanted = {(host["id"], gpu["label"]): gpu for host in fleet_of(demo)["hosts"] for gpu in host["gpus"]}
    card = page.locator("[data-host]").first
    line = card.locator(".line").first
    gpu = wanted[str(card.get_attribute("data-host")), line.locator(".label").inner_text()]
    expect(line).to_have_attribute("aria-label", re.compile(rf"^GPU {re.escape(gpu['label'])} .*, busy"))
    expect(line).to_contain_text(gpu["users"][0])


def test_numbers_move_without_a_reload(demo: HubProcess, visit: Visits) -> None:
    page = visit(demo.url)
    expect(page.locator(".live.live")).to_have_text("live")
    before = page.locator("main").inner_text()
    wait_until(lambda: page.locator("main").inner_text() != before, "a change on the page")


def test_demo_data_is_labelled(demo: HubProcess, visit: Visits) -> None:
    expect(visit(demo.url).get_by_text("demo data", exact=True)).to_be_visible()


def test_tab_title_and_icon_carry_the_number_of_free_gpus(demo: HubProcess, visit: Visits) -> None:
    page = visit(demo.url)
    expect(page).to_have_title(re.compile(r"^\d+ free · gpudeck$"))

    def icon_agrees() -> bool:
        icon = unquote(page.locator("link[rel=icon]").get_attribute("href") or "")
        return f">{page.title().split()[0]}</text>" in icon

    wait_until(icon_agrees, "the same number in title and icon")


def test_search_is_in_the_address_and_survives_a_reload(demo: HubProcess, visit: Visits) -> None:
    page = visit(demo.url)
    page.get_by_role("searchbox").fill("busy >40G")
    expect(page).to_have_url(re.compile(r"\?q=busy\+%3E40G$"))
    page.reload()
    expect(page.get_by_role("searchbox")).to_have_value("busy >40G")
    expect(page.locator(".chip.busy")).to_have_attribute("aria-pressed", "true")
    shown = page.locator(".line")
    expect(shown.first).to_be_visible()
    sizes = shown.locator(".memory").all_inner_texts()
    assert all(float(size.rpartition("/")[2].removesuffix("G")) * GIB > 40e9 for size in sizes)


def test_a_click_on_a_state_filters_and_a_second_one_undoes_it(demo: HubProcess, visit: Visits) -> None:
    page = visit(demo.url)
    page.locator(".chip.held").click()
    expect(page).to_have_url(re.compile(r"\?q=held$"))
    expect(page.locator(".line.held").first).to_be_visible()
    expect(page.locator(".line:not(.held)")).to_have_count(0)
    page.locator(".chip.held").click()
    expect(page).to_have_url(re.compile(r"/$"))
    expect(page.locator(".line.busy").first).to_be_visible()


def test_view_and_sort_are_in_the_address_and_survive_a_reload(demo: HubProcess, visit: Visits) -> None:
    page = visit(demo.url)
    page.get_by_role("button", name="table", exact=True).click()
    page.get_by_role("combobox", name="Sort by").select_option("name")
    expect(page).to_have_url(re.compile(r"\?view=table&sort=name$"))
    page.reload()
    names = page.locator(".row .name button")
    expect(names.nth(20)).to_be_visible()
    shown = names.all_inner_texts()
    assert shown == sorted(shown)


def test_a_search_without_an_answer_says_so_and_offers_a_way_back(demo: HubProcess, visit: Visits) -> None:
    page = visit(demo.url + "/?q=nosuchthing")
    expect(page.get_by_role("heading", name="No GPU fits “nosuchthing”")).to_be_visible()
    page.get_by_role("button", name="Clear the search").click()
    expect(page.locator(".line").first).to_be_visible()


def test_a_search_means_the_same_amount_of_memory_as_the_api(demo: HubProcess, visit: Visits) -> None:
    wanted = len(json.loads(demo.get("/api/v1/gpus?min_memory=48G"))["gpus"])
    page = visit(demo.url + "/?q=>%3D+48G")
    expect(page.locator(".found")).to_contain_text(f"{wanted} GPUs on")


def test_a_search_that_is_not_understood_says_so(demo: HubProcess, visit: Visits) -> None:
    page = visit(demo.url + "/?q=free+>lots")
    expect(page.locator("main").get_by_role("status")).to_contain_text("“>lots” is not understood")
    page.get_by_role("button", name="Clear the search").click()
    expect(page.locator(".line").first).to_be_visible()


def test_back_returns_to_the_former_choice(demo: HubProcess, visit: Visits) -> None:
    page = visit(demo.url)
    page.locator(".chip.held").click()
    page.get_by_role("button", name="table", exact=True).click()
    page.get_by_role("combobox", name="Sort by").select_option("name")
    expect(page).to_have_url(re.compile(r"\?q=held&view=table&sort=name$"))
    page.go_back()
    expect(page.get_by_role("combobox", name="Sort by")).to_have_value("free")
    page.go_back()
    expect(page.get_by_role("table")).to_have_count(0)
    expect(page.get_by_role("searchbox")).to_have_value("held")
    page.go_back()
    expect(page.locator(".chip.held")).to_have_attribute("aria-pressed", "false")
    expect(page).to_have_url(re.compile(r"/$"))
    page.go_forward()
    expect(page.locator(".line:not(.held)")).to_have_count(0)


def test_back_returns_to_the_former_search_and_not_by_letters(demo: HubProcess, visit: Visits) -> None:
    page = visit(demo.url)
    search = page.get_by_role("searchbox")
    search.press_sequentially("busy")
    search.press("Enter")
    search.press_sequentially(" h200", delay=20)
    expect(page).to_have_url(re.compile(r"\?q=busy\+h200$"))
    page.go_back()
    expect(search).to_have_value("busy")
    page.go_back()
    expect(search).to_have_value("")


def test_a_pointer_on_a_gpu_shows_everything_about_it(demo: HubProcess, visit: Visits) -> None:
    page = visit(demo.url + "/?q=busy&sort=name")
    line = page.locator(".line.busy").first
    line.hover()
    details = page.locator(".popover")
    expect(details).to_contain_text("SM clock")
    expect(details).to_contain_text("busy for")
    expect(details).to_contain_text(line.locator(".who").inner_text())
    page.mouse.move(5, 5)
    expect(details).to_have_count(0)


def test_cuda_visible_devices_is_copied_by_uuid(demo: HubProcess, visit: Visits) -> None:
    page = visit(demo.url, permissions=["clipboard-read", "clipboard-write"])
    page.locator(".line").first.click()
    details = page.locator(".popover")
    details.get_by_role("button", name="copy CUDA_VISIBLE_DEVICES").click()
    expect(details.get_by_role("button", name="copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == f"CUDA_VISIBLE_DEVICES={details.locator('code').inner_text()}"


def test_a_host_folds_and_unfolds(demo: HubProcess, visit: Visits) -> None:
    page = visit(demo.url + "/?q=busy")
    title = page.locator(".card .title").first
    expect(title).to_have_attribute("aria-expanded", "true")
    title.click()
    expect(title).to_have_attribute("aria-expanded", "false")
    expect(page.locator(".card").first.locator(".line")).to_have_count(0)


def test_a_card_is_as_high_as_it_was_planned(demo: HubProcess, visit: Visits) -> None:
    page = visit(demo.url)
    expect(page.locator(".card").first).to_be_visible()
    overflowing = "cards => cards.filter(card => card.scrollHeight > card.clientHeight).map(card => card.textContent)"
    assert page.locator(".card").evaluate_all(overflowing) == []


@pytest.mark.parametrize("view", ["cards", "table"])
def test_a_phone_needs_no_sideways_scrolling(demo: HubProcess, visit: Visits, view: str) -> None:
    page = visit(f"{demo.url}/?view={view}", width=390, height=844)
    expect(page.locator("[data-host]").first).to_be_visible()
    assert not is_wider_than_its_window(page)


def test_a_tap_opens_a_sheet_that_a_tap_closes(demo: HubProcess, visit: Visits) -> None:
    page = visit(demo.url, width=390, height=844, has_touch=True, is_mobile=True)
    page.locator(".line").first.tap()
    sheet = page.locator(".popover")
    expect(sheet).to_be_in_viewport(ratio=0.99)
    sheet.get_by_role("button", name="close").tap()
    expect(sheet).to_have_count(0)


def paper(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))


def test_dark_and_light_follow_the_system(demo: HubProcess, visit: Visits) -> None:
    light = visit(demo.url, color_scheme="light")
    dark = visit(demo.url, color_scheme="dark")
    assert paper(light) != paper(dark)


def test_a_chosen_theme_is_remembered(demo: HubProcess, visit: Visits) -> None:
    page = visit(demo.url, color_scheme="light")
    light = paper(page)
    page.get_by_role("button", name="Theme: system").click()
    page.get_by_role("button", name="Theme: light").click()
    dark = paper(page)
    assert dark != light
    page.reload()
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    assert paper(page) == dark
