"""The fleet page: what it shows, how it is searched, and that a view can be shared."""

import itertools
import json
import re
from collections.abc import Callable
from urllib.parse import unquote

import pytest
from playwright.sync_api import Locator, Page, expect

from e2e.looking import STATES, fleet_of, is_wider_than_its_window, shown_totals
from fakes.hubs import HubProcess, RunningHub
from fakes.waiting import wait_until

pytestmark = pytest.mark.browser
Visits = Callable[..., Page]
GIB = 2**30


@pytest.fixture(scope="module")
def moving(demo: RunningHub, visit_once: Visits) -> Page:
    """A simulated fleet, for tests that only look."""
    page = visit_once(demo.url)
    expect(page.locator("[data-host]").first).to_be_visible()
    # Which hosts have nothing free, and so are collapsed, is a matter of chance.
    page.locator(".chevron[aria-expanded='false']").evaluate_all("all => all.forEach(each => each.click())")
    return page


@pytest.fixture(scope="module")
def shown(still: HubProcess, visit_once: Visits) -> Page:
    """A fleet in which nothing happens, for tests that only look."""
    page = visit_once(still.url)
    page.get_by_role("button", name="expand all").click()
    return page


def line_of(page: Page, host: str, gpu: int) -> Locator:
    return page.get_by_role("article", name=host).locator(f"[data-slot='{gpu}']")


def test_totals_agree_with_the_api(demo: RunningHub, moving: Page) -> None:
    def agrees() -> bool:
        totals = fleet_of(demo)["totals"]
        return shown_totals(moving) == {state: totals[state] for state in STATES}

    wait_until(agrees, "the same totals on the page and in the API")


def test_every_host_and_every_gpu_is_there(still: HubProcess, shown: Page) -> None:
    totals = fleet_of(still)["totals"]
    expect(shown.locator("[data-host]")).to_have_count(totals["hosts"])
    expect(shown.locator(".line")).to_have_count(totals["gpus"])


def test_a_gpu_reads_as_in_the_api(still: HubProcess, shown: Page) -> None:
    for host in fleet_of(still)["hosts"][:3]:
        for slot, gpu in enumerate(host["gpus"]):
            line = line_of(shown, host["name"], slot)
            expect(line).to_have_attribute(
                "aria-label", re.compile(rf"^GPU {gpu['label']}\b.*\b{gpu['availability']}\b")
            )
            expect(line).to_contain_text(", ".join(gpu["users"]))


def test_numbers_move_without_a_reload(moving: Page) -> None:
    expect(moving.locator(".live.live")).to_have_text("live")
    before = moving.locator("main").inner_text()
    wait_until(lambda: moving.locator("main").inner_text() != before, "a change on the page")


def test_demo_data_is_labelled(moving: Page, shown: Page) -> None:
    expect(moving.get_by_text("demo data", exact=True)).to_be_visible()
    expect(shown.get_by_text("demo data", exact=True)).to_have_count(0)


def test_tab_title_and_icon_carry_the_number_of_free_gpus(still: HubProcess, shown: Page) -> None:
    free = fleet_of(still)["totals"]["free"]
    expect(shown).to_have_title(f"{free} free · gpudeck")
    assert f">{free}</text>" in unquote(shown.locator("link[rel=icon]").get_attribute("href") or "")


def test_search_is_in_the_address_and_survives_a_reload(still: HubProcess, visit: Visits) -> None:
    page = visit(still.url)
    page.get_by_role("searchbox").fill("busy >40G")
    expect(page).to_have_url(re.compile(r"\?q=busy\+%3E40G$"))
    page.reload()
    expect(page.get_by_role("searchbox")).to_have_value("busy >40G")
    expect(page.locator(".chip.busy")).to_have_attribute("aria-pressed", "true")
    shown = page.locator(".line")
    expect(shown.first).to_be_visible()
    sizes = shown.locator(".memory").all_inner_texts()
    assert all(float(size.rpartition("/")[2].removesuffix("G")) * GIB > 40e9 for size in sizes)


def test_view_and_sort_are_in_the_address_and_survive_a_reload(still: HubProcess, visit: Visits) -> None:
    page = visit(still.url)
    page.get_by_role("button", name="table", exact=True).click()
    page.get_by_role("combobox", name="Sort by").select_option("name")
    expect(page).to_have_url(re.compile(r"\?view=table&sort=name$"))
    page.reload()
    names = page.locator(".row .name a")
    expect(names.nth(20)).to_be_visible()
    shown = names.all_inner_texts()
    assert shown == sorted(shown)


def test_a_search_without_an_answer_says_so_and_offers_a_way_back(still: HubProcess, visit: Visits) -> None:
    page = visit(still.url + "/?q=nosuchthing")
    expect(page.get_by_role("heading", name="No GPU matches “nosuchthing”")).to_be_visible()
    page.get_by_role("button", name="Clear the search").click()
    expect(page.locator(".line").first).to_be_visible()
    page.get_by_role("searchbox").fill("free >lots")
    expect(page.locator("main").get_by_role("status")).to_contain_text("“>lots” is not understood")
    page.get_by_role("button", name="Clear the search").click()
    expect(page.locator(".line").first).to_be_visible()
    wanted = len(json.loads(still.get("/api/v1/gpus?min_memory=48G"))["gpus"])
    page.get_by_role("searchbox").fill(">= 48G")
    # The same amount of memory as in the API.
    expect(page.locator(".found")).to_contain_text(f"{wanted} GPUs on")


def test_a_word_that_fits_nothing_suggests_the_nearest_one(still: HubProcess, visit: Visits) -> None:
    page = visit(still.url + "/?q=frree+>1")
    notice = page.locator("main").get_by_role("status")
    expect(notice).to_contain_text("1 what? Write >1G")
    page.get_by_role("searchbox").fill("frree >1G")
    notice.get_by_role("button", name="free", exact=True).click()
    expect(page.get_by_role("searchbox")).to_have_value("free >1G")
    expect(page.locator(".line").first).to_be_visible()


def test_a_click_on_a_state_filters_and_back_returns_to_the_former_choice(still: HubProcess, visit: Visits) -> None:
    page = visit(still.url)
    page.locator(".chip.idle").click()
    expect(page).to_have_url(re.compile(r"\?q=idle$"))
    expect(page.locator(".line.idle").first).to_be_visible()
    expect(page.locator(".line:not(.idle)")).to_have_count(0)
    page.locator(".chip.idle").click()
    expect(page).to_have_url(re.compile(r"/$"))
    expect(page.locator(".line.busy").first).to_be_visible()
    page.locator(".chip.idle").click()
    page.get_by_role("button", name="table", exact=True).click()
    page.get_by_role("combobox", name="Sort by").select_option("name")
    expect(page).to_have_url(re.compile(r"\?q=idle&view=table&sort=name$"))
    page.go_back()
    expect(page.get_by_role("combobox", name="Sort by")).to_have_value("free")
    page.go_back()
    expect(page.get_by_role("grid", name="Hosts")).to_have_count(0)
    expect(page.get_by_role("searchbox")).to_have_value("idle")
    page.go_back()
    expect(page.locator(".chip.idle")).to_have_attribute("aria-pressed", "false")
    expect(page).to_have_url(re.compile(r"/$"))
    page.go_forward()
    expect(page.locator(".line:not(.idle)")).to_have_count(0)


def test_back_returns_to_the_former_search_and_not_by_letters(still: HubProcess, visit: Visits) -> None:
    page = visit(still.url)
    search = page.get_by_role("searchbox")
    search.press_sequentially("busy")
    search.press("Enter")
    search.press_sequentially(" h200", delay=20)
    expect(page).to_have_url(re.compile(r"\?q=busy\+h200$"))
    page.go_back()
    expect(search).to_have_value("busy")
    page.go_back()
    expect(search).to_have_value("")


def test_a_pointer_shows_everything_about_a_gpu_and_a_control_collapses_it(still: HubProcess, visit: Visits) -> None:
    page = visit(still.url + "/?q=busy&sort=name")
    line_of(page, "gpu01", 1).hover()
    details = page.locator(".popover")
    expect(details).to_contain_text("SM clock")
    expect(details).to_contain_text("busy for")
    expect(details).to_contain_text("alice")
    page.mouse.move(5, 5)
    expect(details).to_have_count(0)
    control = page.locator(".card .chevron").first
    expect(control).to_have_attribute("aria-expanded", "true")
    control.click()
    expect(control).to_have_attribute("aria-expanded", "false")
    expect(page.locator(".card").first.locator(".line")).to_have_count(0)


def test_each_bar_stands_behind_its_own_figure_below_the_name_of_its_column(shown: Page) -> None:
    edges = """line => [...line.querySelectorAll('.util, .memory, .meter')]
      .map(part => [part.className.includes('meter'), part.getBoundingClientRect()])
      .map(([isMeter, box]) => [isMeter, box.left, box.right])"""
    line = line_of(shown, "gpu01", 1)
    parts = line.evaluate(edges)
    assert [is_meter for is_meter, _, _ in parts] == [False, True, False, True]
    assert all(left[2] < right[1] for left, right in itertools.pairwise(parts))
    heads = shown.get_by_role("article", name="gpu01").get_by_role("columnheader")
    for name, (_, _, right) in zip(("Util", "Memory"), parts[::2], strict=True):
        box = heads.filter(has_text=re.compile(f"^{name}$")).bounding_box()
        assert box is not None
        assert abs(box["x"] + box["width"] - right) < 1


def test_names_and_figures_stand_on_one_line(shown: Page) -> None:
    baselines = """line => [...line.querySelectorAll('.label, .who, .figure')].map(part => {
      const mark = document.createElement('span')
      mark.style.cssText = 'display: inline-block; width: 0; height: 0'
      part.append(mark)
      const { bottom } = mark.getBoundingClientRect()
      mark.remove()
      return bottom
    })"""
    found = line_of(shown, "gpu01", 1).evaluate(baselines)
    assert max(found) - min(found) <= 1


def test_a_user_on_a_row_leads_to_their_page(still: HubProcess, visit: Visits) -> None:
    page = visit(still.url + "/?q=busy&sort=name")
    line_of(page, "gpu01", 1).get_by_role("link", name="alice").click()
    expect(page).to_have_url(re.compile(r"#/user/alice$"))
    expect(page.locator(".popover")).to_have_count(0)


@pytest.mark.parametrize("width", [1440, 1920])
def test_details_stand_beside_the_row_and_cover_none_below_it(still: HubProcess, visit: Visits, width: int) -> None:
    page = visit(still.url + "/?sort=name", width=width)
    line_of(page, "gpu01", 0).hover()
    details = page.locator(".popover").bounding_box()
    card = page.locator(".card").first.bounding_box()
    assert details is not None
    assert card is not None
    assert details["height"] <= 160
    # No row is cut at the lower edge.
    assert page.locator(".popover .inside").evaluate("inside => inside.clientHeight % 18") == 0
    assert details["x"] >= card["x"] + card["width"]
    # The pointer goes on down the card, and the details go with it.
    for at in (1, 2, 3):
        line_of(page, "gpu01", at).hover()
        expect(page.locator(".popover h3")).to_contain_text(f"GPU {at} ")


def test_compact_shows_more_and_is_kept(still: HubProcess, visit: Visits) -> None:
    page = visit(still.url)
    columns = "cards => new Set(cards.map(card => card.getBoundingClientRect().left)).size"
    expect(page.locator(".card").first).to_be_visible()
    before = page.locator(".card").evaluate_all(columns)
    page.get_by_role("button", name="compact").click()
    wait_until(lambda: page.locator(".card").evaluate_all(columns) > before, "another column of cards")
    page.reload()
    expect(page.get_by_role("button", name="compact")).to_have_attribute("aria-pressed", "true")


def test_the_large_figures_agree_with_the_api(demo: RunningHub, moving: Page) -> None:
    def agrees() -> bool:
        told = moving.locator(".kpi").all_inner_texts()
        fleet = fleet_of(demo)
        slices = sum("." in gpu["label"] for host in fleet["hosts"] for gpu in host["gpus"])
        whole = f"{fleet['totals']['gpus'] - slices} GPUs, {slices} MIG slices"
        return f"Free now\n{fleet['totals']['free']}\nof {whole}" in told[0]

    wait_until(agrees, "the same figures on the page and in the API")
    expect(moving.locator(".kpi").nth(2)).to_contain_text(re.compile(r"Utilization, 24 h\s*\d+\.\d %"))


def test_the_fonts_come_from_the_hub(shown: Page) -> None:
    ready = "document.fonts.check('13px Inter') && document.fonts.check('13px \"JetBrains Mono\"')"
    wait_until(lambda: shown.evaluate(ready), "both fonts")
    loaded = "[...document.fonts].filter(font => font.status === 'loaded').map(font => font.family)"
    assert {family.strip('"') for family in shown.evaluate(loaded)} == {"Inter", "JetBrains Mono"}


def test_a_search_that_leaves_a_gpu_out_closes_its_details(still: HubProcess, visit: Visits) -> None:
    page = visit(still.url)
    line_of(page, "gpu01", 0).click()
    details = page.locator(".popover")
    page.keyboard.press("/")
    page.keyboard.type("gpu0")
    expect(details).to_be_visible()
    page.keyboard.type("2")
    expect(details).to_have_count(0)


@pytest.mark.parametrize(
    ("host", "variable"), [("gpu01", "CUDA_VISIBLE_DEVICES=GPU-gpu01-0"), ("gpu02", "HIP_VISIBLE_DEVICES=0")]
)
def test_a_free_gpu_is_used_with_one_copied_command(still: HubProcess, visit: Visits, host: str, variable: str) -> None:
    page = visit(still.url + "/?q=free", permissions=["clipboard-read", "clipboard-write"])
    line_of(page, host, 0).click()
    details = page.locator(".popover")
    details.get_by_role("button", name="Use it").click()
    assert page.evaluate("navigator.clipboard.readText()") == f"ssh -t {host} '{variable} exec $SHELL -l'"
    details.get_by_role("button", name=f"copy {variable.partition('=')[0]}").click()
    expect(details.get_by_role("button", name="copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == variable


def test_a_card_is_as_high_as_what_is_on_it(demo: RunningHub, still: HubProcess, visit: Visits) -> None:
    others = """cards => cards.map(card => {
      const left = card.getBoundingClientRect().bottom - card.lastElementChild.getBoundingClientRect().bottom
      return [card.scrollHeight - card.clientHeight, Math.round(left)]
    }).filter(([over, left]) => over !== 0 || left !== 1)"""
    for hub in (demo, still):
        page = visit(hub.url)
        expect(page.locator(".card:has(.line)").first).to_be_visible()
        assert page.locator(".card").evaluate_all(others) == []
        controls = page.locator(".chevron[aria-expanded='true']")
        controls.first.click()
        expect(page.locator(".card:not(:has(.line))").first).to_be_visible()
        assert page.locator(".card").evaluate_all(others) == []


@pytest.mark.parametrize("view", ["cards", "table"])
def test_a_phone_needs_no_sideways_scrolling(demo: RunningHub, visit: Visits, view: str) -> None:
    page = visit(f"{demo.url}/?view={view}", width=390, height=844)
    expect(page.locator("[data-host]").first).to_be_visible()
    assert not is_wider_than_its_window(page)


def test_a_tap_opens_a_sheet_that_a_tap_closes(still: HubProcess, visit: Visits) -> None:
    page = visit(still.url, width=390, height=844, has_touch=True, is_mobile=True)
    line_of(page, "gpu01", 0).tap()
    sheet = page.locator(".popover")
    expect(sheet).to_be_in_viewport(ratio=0.99)
    sheet.get_by_role("button", name="close").tap()
    expect(sheet).to_have_count(0)


def paper(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))


def test_dark_and_light_follow_the_system_unless_one_is_chosen(still: HubProcess, visit: Visits) -> None:
    page = visit(still.url, color_scheme="light")
    light = paper(page)
    page.emulate_media(color_scheme="dark")
    dark = paper(page)
    assert dark != light
    page.emulate_media(color_scheme="light")
    page.get_by_role("button", name="Theme: system").click()
    page.get_by_role("button", name="Theme: light").click()
    assert paper(page) == dark
    page.reload()
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    assert paper(page) == dark
