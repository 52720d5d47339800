"""The fleet over time and who used how much of it, on the screen and on paper, in a real browser."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from decimal import ROUND_HALF_UP, Decimal
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from e2e.axe import serious_violations
from e2e.looking import is_wider_than_its_window
from fakes.hubs import HubProcess, running_hub
from fakes.waiting import wait_until

pytestmark = pytest.mark.browser
Visits = Callable[..., Page]


OVERVIEW = re.compile(r"api/v1/history/overview\?")
PATIENCE_MS = 30_000
"""A hub that makes up its past while it is asked about it takes its time."""


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[HubProcess]:
    """A hub with a few simulated hosts, once it has made some of their past."""
    with running_hub(tmp_path_factory.mktemp("past"), "--demo", "3", "--demo-days", "2") as hub:
        wait_until(lambda: has_past(hub), "some past", seconds=90)
        yield hub


def has_past(hub: HubProcess) -> bool:
    usage = json.loads(hub.get("/api/v1/usage?start=-24h"))
    return usage["monitored_gpu_hours"] > 100


@pytest.fixture
def bare(chromium: Browser) -> Iterator[Page]:
    """A page whose refused questions are no mistake."""
    page = chromium.new_page(viewport={"width": 1440, "height": 900})
    yield page
    page.close()


def load_with_usage(page: Page) -> dict[str, Any]:
    """Loads the page again; what the hub answered to it, and in `asked` what it was asked."""
    address = page.url
    # An answer to the page as it was before would be taken for the one that is waited for.
    page.goto("about:blank")
    with page.expect_response(OVERVIEW, timeout=PATIENCE_MS) as answer:
        page.goto(address)
    usage: dict[str, Any] = answer.value.json()["usage"]
    usage["asked"] = parse_qs(urlsplit(answer.value.url).query)
    return usage


def rows(page: Page) -> list[list[str]]:
    cells = "rows => rows.map(row => [...row.querySelectorAll('th,td')].map(cell => cell.textContent.trim()))"
    found: list[list[str]] = page.locator(".usage tbody tr").evaluate_all(cells)
    return found


def written(hours: float) -> str:
    """As the page writes hours: browsers round 1.65 up, as it is written, though the float is a little less."""
    digits = Decimal("0.1") if hours < 100 else Decimal(1)
    return "< 0.1" if 0 < hours < 0.05 else f"{Decimal(str(hours)).quantize(digits, ROUND_HALF_UP):,}"


def test_the_table_tells_what_the_api_tells(past: HubProcess, visit: Visits) -> None:
    page = visit(f"{past.url}/#/history?range=24h")
    usage = load_with_usage(page)
    expect(page.locator(".usage tbody tr")).to_have_count(len(usage["rows"]))
    assert [row[1] for row in rows(page)] == [written(row["gpu_hours"]) for row in usage["rows"]]
    assert [row[0] for row in rows(page)] == [row.get("user", "unknown user") for row in usage["rows"]]
    expect(page.locator(".usage tfoot")).to_contain_text(written(usage["total"]["gpu_hours"]))
    expect(page.locator(".coverage")).to_contain_text(re.compile(r"Coverage (100|\d+\.\d) %"))
    start, end = (float(usage["asked"][name][0]) for name in ("start", "end"))
    assert end - start == 86_400


@pytest.mark.parametrize("width", [1280, 390])
def test_waste_is_what_the_api_tells(past: HubProcess, visit: Visits, width: int) -> None:
    page = visit(f"{past.url}/#/history?range=24h", width=width)
    with page.expect_response(re.compile(r"api/v1/waste\?"), timeout=PATIENCE_MS) as answer:
        page.get_by_role("button", name="Waste", exact=True).click()
    assert page.url.endswith("#/history?range=24h&show=waste")
    waste = answer.value.json()
    expect(page.locator(".usage tbody tr")).to_have_count(len(waste["rows"]), timeout=PATIENCE_MS)
    assert [row[1] for row in rows(page)] == [written(row["gpu_hours"]) for row in waste["rows"]]
    expect(page.locator(".saved b")).to_have_text(f"{written(waste['total']['released']['hours'])} GPU-hours")
    # The files are those of usage.
    expect(page.get_by_role("link", name="CSV")).to_have_count(0)
    assert not is_wider_than_its_window(page)
    assert serious_violations(page) == []


def test_charts_and_map_are_drawn(past: HubProcess, visit: Visits) -> None:
    page = visit(f"{past.url}/#/history?range=24h")
    for title in ("GPUs by state", "Utilization of all GPUs", "Power"):
        expect(page.get_by_role("heading", name=title, exact=True)).to_be_visible()
    expect(page.locator(".charts canvas")).to_have_count(3)
    expect(page.locator(".charts").get_by_text("Loading…")).to_have_count(0, timeout=PATIENCE_MS)
    expect(page.locator(".charts figcaption").first).to_contain_text(re.compile(r"busy\s*\d"))
    assert serious_violations(page) == []
    expect(page.locator(".heat li").first).to_be_visible(timeout=PATIENCE_MS)


@pytest.mark.parametrize("by", ["group", "host", "model"])
def test_rows_stand_for_what_was_asked(past: HubProcess, visit: Visits, by: str) -> None:
    page = visit(f"{past.url}/#/history?range=24h")
    expect(page.locator(".usage tbody tr").first).to_be_visible(timeout=PATIENCE_MS)
    with page.expect_response(re.compile(rf"api/v1/history/overview\?by={by}&"), timeout=PATIENCE_MS) as answer:
        page.get_by_role("button", name=f"by {by}", exact=True).click()
    assert page.url.endswith(f"#/history?range=24h&by={by}")
    expect(page.locator(".usage tbody tr")).to_have_count(len(answer.value.json()["usage"]["rows"]))
    page.go_back()
    expect(page.get_by_role("button", name="by user")).to_have_attribute("aria-pressed", "true")


def test_figures_of_the_choice_before_are_pale_until_the_new_ones_are_there(past: HubProcess, visit: Visits) -> None:
    page = visit(f"{past.url}/#/history?range=24h")
    expect(page.locator("tbody tr").first).to_be_visible(timeout=PATIENCE_MS)
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route(OVERVIEW, hold)
    page.get_by_role("button", name="by host", exact=True).click()
    table = page.locator(".usage table")
    expect(table).to_have_css("opacity", "0.45")
    for route in held:
        route.continue_()
    page.unroute(OVERVIEW)
    expect(table.locator("thead button").first).to_have_text("Host", timeout=PATIENCE_MS)
    expect(table).to_have_css("opacity", "1")


def test_the_sheet_has_the_same_figures(past: HubProcess, visit: Visits) -> None:
    page = visit(f"{past.url}/#/history?range=24h&by=model")
    expect(page.locator(".usage tbody tr").first).to_be_visible(timeout=PATIENCE_MS)
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV", exact=True).click()
    lines = list(csv.DictReader(io.StringIO(download.value.path().read_text())))
    assert {line["model"] for line in lines} >= {row[0] for row in rows(page)}
    assert download.value.suggested_filename == "usage-by-model.csv"


def test_periods_are_days_of_the_viewer(past: HubProcess, chromium: Browser) -> None:
    # Berlin turned its clocks back on this day: it has 25 hours.
    context = chromium.new_context(timezone_id="Europe/Berlin")
    page = context.new_page()
    page.goto(f"{past.url}/#/history?from=2025-10-26&to=2025-10-26")
    usage = load_with_usage(page)
    start, end = (float(usage["asked"][name][0]) for name in ("start", "end"))
    assert (end - start, usage["asked"]["zone"]) == (25 * 3600, ["Europe/Berlin"])
    expect(page.locator(".range .text")).to_have_text("Oct 26, 2025")
    context.close()


def test_dates_are_chosen_by_hand(past: HubProcess, visit: Visits) -> None:
    page = visit(f"{past.url}/#/history")
    page.get_by_role("button", name="dates…").click()
    page.get_by_label("from", exact=True).fill("2026-01-05")
    page.get_by_label("to", exact=True).fill("2026-01-02")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.locator("form").get_by_role("alert")).to_contain_text("The end date must not be before the start date")
    page.get_by_label("to", exact=True).fill("2026-01-31")
    page.keyboard.press("Enter")
    expect(page.locator(".range .text")).to_have_text("Jan 5 – 31, 2026")
    assert page.url.endswith("#/history?from=2026-01-05&to=2026-01-31")


def test_a_time_without_anything_says_so(past: HubProcess, visit: Visits) -> None:
    page = visit(f"{past.url}/#/history?from=2020-01-01&to=2020-01-31")
    expect(page.get_by_role("heading", name="Nothing was recorded in this period")).to_be_visible(timeout=PATIENCE_MS)
    expect(page.locator(".coverage")).to_have_text(re.compile("No GPU was monitored in this period"))


def test_a_cell_of_the_map_opens_its_host_at_that_time(past: HubProcess, visit: Visits) -> None:
    page = visit(f"{past.url}/#/history?range=24h")
    page.locator(".heat .view").focus(timeout=PATIENCE_MS)
    for key in ("ArrowRight", "ArrowLeft", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    page.wait_for_url(re.compile(r"#/host/[^?]+\?start=\d+&end=\d+$"))


def test_columns_sort_by_keyboard_and_in_the_address(past: HubProcess, visit: Visits) -> None:
    page = visit(f"{past.url}/#/history?range=24h&sort=name")
    expect(page.locator(".usage tbody tr").first).to_be_visible(timeout=PATIENCE_MS)
    names = [row[0] for row in rows(page) if row[0] != "unknown user"]
    assert names == sorted(names)
    page.get_by_role("button", name="Idle hours").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("columnheader", name="Idle hours")).to_have_attribute("aria-sort", "descending")
    assert page.url.endswith("sort=idle")


def test_nothing_scrolls_sideways_on_a_phone(past: HubProcess, visit: Visits) -> None:
    page = visit(f"{past.url}/#/history?range=24h", width=390)
    expect(page.locator(".usage tbody tr").first).to_be_visible(timeout=PATIENCE_MS)
    expect(page.locator(".heat li").first).to_be_attached(timeout=PATIENCE_MS)
    assert not is_wider_than_its_window(page)


def test_paper_has_the_report_and_nothing_else(past: HubProcess, visit: Visits) -> None:
    page = visit(f"{past.url}/#/history?range=24h", color_scheme="dark")
    expect(page.locator(".usage tbody tr").first).to_be_visible(timeout=PATIENCE_MS)
    page.emulate_media(media="print", color_scheme="dark")
    expect(page.get_by_role("heading", name=re.compile("^GPU usage by user: "))).to_be_visible()
    expect(page.locator(".coverage")).to_contain_text("Coverage")
    for left_out in ("nav", ".range", ".charts", ".heat", ".bar button", "a[download]"):
        expect(page.locator(left_out).first).to_be_hidden()
    ink = page.locator(".usage tbody th").first.evaluate("cell => getComputedStyle(cell).color")
    assert ink == "rgb(0, 0, 0)"
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_paper_has_all_rows_though_the_screen_begins_with_a_hundred(past: HubProcess, bare: Page) -> None:
    overview = json.loads(past.get("/api/v1/history/overview?by=user&start=-24h"))
    one = overview["usage"]["rows"][0]
    many = overview["usage"] | {"rows": [one | {"user": f"person{n:03}", "gpu_hours": 500 - n} for n in range(250)]}
    bare.route(OVERVIEW, lambda route: route.fulfill(json=overview | {"usage": many}))
    bare.goto(f"{past.url}/#/history?range=24h")
    visible = bare.locator(".usage tbody tr:visible")
    expect(visible).to_have_count(100)
    bare.emulate_media(media="print")
    expect(visible).to_have_count(250)
    bare.emulate_media(media="screen")
    bare.get_by_role("button", name="show 150 more").click()
    expect(visible).to_have_count(250)


def refuse(status: int, message: str) -> Callable[[Route], None]:
    return lambda route: route.fulfill(status=status, json={"error": {"code": "x", "message": message, "hint": ""}})


@pytest.mark.parametrize(
    ("status", "message", "title"),
    [
        (404, "this hub keeps no history", "This hub keeps no history"),
        (403, "ask the admin", "Access to the history denied"),
        (503, "too many questions about the past are waiting.", "The history could not be loaded"),
    ],
)
def test_refusals_are_told_in_words(past: HubProcess, bare: Page, status: int, message: str, title: str) -> None:
    bare.route(re.compile(r"api/v1/(usage|history)"), refuse(status, message))
    bare.goto(f"{past.url}/#/history")
    expect(bare.get_by_role("heading", name=title)).to_be_visible()


def test_a_hub_that_could_not_tell_is_asked_again(past: HubProcess, bare: Page) -> None:
    bare.route(OVERVIEW, refuse(503, "busy"))
    bare.goto(f"{past.url}/#/history?range=24h")
    again = bare.get_by_role("button", name="Try again")
    expect(again).to_be_visible()
    bare.unroute_all()
    again.click()
    expect(bare.locator(".usage tbody tr").first).to_be_visible(timeout=PATIENCE_MS)


def test_hostile_names_and_prices_are_text(past: HubProcess, bare: Page) -> None:
    overview = json.loads(past.get("/api/v1/history/overview?by=user&start=-24h"))
    one = overview["usage"]["rows"][0] | {"user": "<img src=x onerror=alert(1)>", "cost": 12.5}
    hostile = overview["usage"] | {"rows": [one], "currency": "<b>EUR</b>"}
    bare.route(OVERVIEW, lambda route: route.fulfill(json=overview | {"usage": hostile}))
    bare.goto(f"{past.url}/#/history?range=24h")
    expect(bare.locator(".usage tbody th")).to_have_text("<img src=x onerror=alert(1)>")
    expect(bare.locator(".usage tbody tr")).to_contain_text("12.50 <b>EUR</b>")
    expect(bare.locator("main img")).to_have_count(0)
