"""A GPU's own page in a real browser: what it does now, what it did before, and how one looks closer."""

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from e2e.axe import serious_violations
from e2e.looking import (
    DEMO_HOSTS,
    fleet_of,
    is_wider_than_its_window,
    lasting_job,
    make_envelope,
    send_and_record,
    show_instead,
)
from fakes.hubs import HubProcess, RunningHub
from fakes.reports import make_gpu, make_process
from fakes.waiting import wait_until

pytestmark = pytest.mark.browser
Visits = Callable[..., Page]
CHARTS = ("Utilization", "Activity", "Memory", "Power", "Temperature", "Clocks")
HOSTILE = "<script>window.pwned = 1</script>\u202e" + "x" * 300


def past_of(hub: HubProcess, uuid: str, metric: str = "utilization_percent", start: str = "-6h") -> list[Any]:
    answer = json.loads(hub.get(f"/api/v1/history?gpu={uuid}&metric={metric}&start={start}"))
    return answer["series"][0]["points"] if answer["series"] else []


@pytest.fixture(scope="module")
def busy(demo: RunningHub) -> dict[str, Any]:
    """A GPU of the demo fleet that is used for as long as the tests last, once some of its past is made."""
    _, job = lasting_job(DEMO_HOSTS)
    wait_until(lambda: len(past_of(demo, job.gpus[0])) > 100, "six hours of the past", seconds=120)
    gpus = [gpu for host in fleet_of(demo)["hosts"] for gpu in host["gpus"]]
    return next(gpu for gpu in gpus if gpu["uuid"] == job.gpus[0])


@pytest.fixture(scope="module")
def shown(demo: RunningHub, busy: dict[str, Any], visit_once: Visits) -> Page:
    """Its last six hours, for tests that only look."""
    return open_gpu(visit_once, demo, busy, "?range=6h")


@pytest.fixture
def bare(chromium: Browser) -> Iterator[Page]:
    """A page whose refused questions are no mistake."""
    page = chromium.new_page(viewport={"width": 1440, "height": 900})
    yield page
    page.close()


def plot(page: Page, title: str = "Utilization") -> Locator:
    return page.get_by_role("slider", name=f"{title} over time")


def open_gpu(visit: Visits, hub: HubProcess, gpu: dict[str, Any], query: str = "", **options: object) -> Page:
    page = visit(f"{hub.url}/#/gpu/{gpu['uuid']}{query}", **options)
    expect(plot(page)).to_have_attribute("aria-valuetext", re.compile(r"Utilization \d+ %"), timeout=30_000)
    return page


def asked(page: Page) -> dict[str, str]:
    """The parameters behind the page's name in the address."""
    return {name: values[0] for name, values in parse_qs(page.url.partition("?")[2]).items()}


def drag(page: Page, start: float, end: float) -> None:
    """Over the chart of the utilization, from one part of its width to another."""
    field = plot(page).locator(".u-over").bounding_box()
    assert field is not None
    page.mouse.move(field["x"] + field["width"] * start, field["y"] + 40)
    page.mouse.down()
    page.mouse.move(field["x"] + field["width"] * end, field["y"] + 40, steps=4)
    page.mouse.up()


def test_a_gpu_is_shown_as_in_the_fleet(busy: dict[str, Any], shown: Page) -> None:
    expect(shown.get_by_role("heading", level=1)).to_have_text(f"GPU {busy['label']} · {busy['name']}")
    expect(shown.locator("main header code")).to_have_text(busy["uuid"])
    processes = shown.get_by_role("region", name="Processes on this GPU")
    expect(processes).to_contain_text(str(busy["processes"][0]["pid"]))
    expect(processes).to_contain_text(busy["users"][0])


def test_its_figures_change_without_a_reload(shown: Page) -> None:
    figures = shown.locator("main dl").first
    before = figures.inner_text()
    wait_until(lambda: figures.inner_text() != before, "a change of its figures")


def test_every_chart_tells_its_latest_values(busy: dict[str, Any], shown: Page) -> None:
    for title in CHARTS:
        expect(plot(shown, title)).to_have_attribute("aria-valuetext", re.compile(r"\d (%|W|°C|MHz|GiB)"))
        expect(plot(shown, title).locator("canvas")).to_be_visible()
    expect(shown.locator("figure", has=plot(shown, "Memory"))).to_contain_text(busy["users"][0])


def test_the_same_values_are_there_as_a_table(shown: Page) -> None:
    table = shown.get_by_role("table", name="Utilization", exact=True)
    expect(table.get_by_role("row").nth(5)).to_contain_text(re.compile(r"\d %"))


def test_a_drag_zooms_all_charts_and_the_view_can_be_shared(
    demo: RunningHub, busy: dict[str, Any], visit: Visits
) -> None:
    page = open_gpu(visit, demo, busy, "?range=6h")
    drag(page, 0.25, 0.75)
    expect(page).to_have_url(re.compile(r"start=\d+&end=\d+$"))
    start, end = int(asked(page)["start"]), int(asked(page)["end"])
    assert 0.45 * 6 * 3600 < end - start < 0.55 * 6 * 3600
    page.reload()
    expect(page.get_by_role("button", name="until now")).to_be_visible()
    expect(plot(page)).to_have_attribute("aria-valuetext", re.compile(r"Utilization"), timeout=30_000)
    assert asked(page) == {"start": str(start), "end": str(end)}


def test_what_stands_under_the_resting_pointer_is_told_after_a_zoom(
    demo: RunningHub, busy: dict[str, Any], visit: Visits
) -> None:
    page = open_gpu(visit, demo, busy, "?range=6h", timezone_id="UTC")
    drag(page, 0.25, 0.75)
    expect(page).to_have_url(re.compile(r"start=\d+&end=\d+$"))
    start, end = int(asked(page)["start"]), int(asked(page)["end"])
    under = start + 0.75 * (end - start)
    # A step of the range that was zoomed into is shorter than two minutes.
    near = {time.strftime("%H:%M", time.gmtime(under + 60 * minutes)) for minutes in range(-2, 3)}

    def is_told() -> bool:
        times = page.locator("figcaption time").all_inner_texts()
        return all(any(each in text for each in near) for text in times)

    wait_until(is_told, "the time under the pointer")


def test_a_double_click_and_the_browsers_way_back_undo_a_zoom(
    demo: RunningHub, busy: dict[str, Any], visit: Visits
) -> None:
    page = open_gpu(visit, demo, busy, "?range=6h")
    drag(page, 0.25, 0.75)
    expect(page).to_have_url(re.compile(r"start=\d+"))
    plot(page).locator(".u-over").dblclick()
    expect(page).to_have_url(re.compile(r"range=6h$"))
    drag(page, 0.5, 0.75)
    expect(page).to_have_url(re.compile(r"start=\d+"))
    page.go_back()
    expect(page).to_have_url(re.compile(r"range=6h$"))
    expect(page.get_by_role("button", name="6h", exact=True)).to_have_attribute("aria-pressed", "true")


def test_shift_and_a_drag_pan(demo: RunningHub, busy: dict[str, Any], visit: Visits) -> None:
    page = open_gpu(visit, demo, busy, "?range=6h")
    page.keyboard.down("Shift")
    drag(page, 0.25, 0.5)
    page.keyboard.up("Shift")
    expect(page).to_have_url(re.compile(r"start=\d+&end=\d+$"))
    assert int(asked(page)["end"]) - int(asked(page)["start"]) == 6 * 3600


def test_a_finger_pans(demo: RunningHub, busy: dict[str, Any], visit: Visits) -> None:
    page = open_gpu(visit, demo, busy, "?range=6h", width=390, height=844, has_touch=True)
    plot(page).scroll_into_view_if_needed()
    field = plot(page).locator(".u-over").bounding_box()
    assert field is not None
    fingers = page.context.new_cdp_session(page)
    for kind, part in (("touchStart", 0.3), ("touchMove", 0.45), ("touchMove", 0.6), ("touchMove", 0.7)):
        points = [{"x": field["x"] + field["width"] * part, "y": field["y"] + 40}]
        fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    fingers.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    expect(page).to_have_url(re.compile(r"start=\d+&end=\d+$"))
    assert int(asked(page)["end"]) - int(asked(page)["start"]) == 6 * 3600


def test_the_wheel_scrolls_the_page_and_nothing_else(shown: Page) -> None:
    shown.evaluate("scrollTo(0, 0)")
    plot(shown).locator(".u-over").hover()
    before = shown.evaluate("scrollY")
    shown.mouse.wheel(0, 200)
    wait_until(lambda: shown.evaluate("scrollY") > before, "a page that has scrolled")
    assert asked(shown) == {"range": "6h"}


def test_the_crosshair_is_shared_and_its_values_stand_in_fixed_places(
    demo: RunningHub, busy: dict[str, Any], visit: Visits
) -> None:
    page = open_gpu(visit, demo, busy, "?range=6h")
    times = page.locator("figcaption time")
    before = times.first.inner_text()
    place = times.first.bounding_box()
    plot(page).locator(".u-over").hover(position={"x": 100, "y": 40})
    expect(times.first).not_to_have_text(before)
    expect(times).to_have_text([times.first.inner_text()] * len(CHARTS))
    assert times.first.bounding_box() == place


def test_keys_move_the_crosshair_of_all_charts_and_zoom(demo: RunningHub, busy: dict[str, Any], visit: Visits) -> None:
    page = open_gpu(visit, demo, busy, "?range=6h")
    # Before they have their values there is nothing to move along.
    for name in CHARTS:
        expect(plot(page, name)).not_to_have_attribute("aria-valuetext", re.compile("^loading"))
    plot(page, "Power").focus()
    page.keyboard.press("Home")
    first = plot(page, "Power").get_attribute("aria-valuetext") or ""
    times = page.locator("figcaption time")
    expect(times).to_have_text([first.partition(": ")[0]] * len(CHARTS))
    page.keyboard.press("ArrowRight")
    expect(plot(page, "Power")).not_to_have_attribute("aria-valuetext", first)
    page.keyboard.press("+")
    expect(page).to_have_url(re.compile(r"start=\d+&end=\d+$"))
    page.keyboard.press("Backspace")
    expect(page).to_have_url(re.compile(r"range=6h$"))


def test_a_button_chooses_the_range(demo: RunningHub, busy: dict[str, Any], visit: Visits) -> None:
    page = open_gpu(visit, demo, busy)
    for name, written in (("1h", "range=1h"), ("90d", "range=90d"), ("1y", "range=1y")):
        page.get_by_role("button", name=name, exact=True).click()
        expect(page).to_have_url(re.compile(f"{written}$"))
        expect(page.get_by_role("button", name=name, exact=True)).to_have_attribute("aria-pressed", "true")


def test_the_range_goes_along_to_other_pages_and_back(demo: RunningHub, busy: dict[str, Any], visit: Visits) -> None:
    page = open_gpu(visit, demo, busy)
    page.get_by_role("button", name="7d", exact=True).click()
    for link in ("History", "Events", "History"):
        page.get_by_role("navigation", name="Pages").get_by_role("link", name=link).click()
        expect(page).to_have_url(re.compile(rf"#/{link.lower()}\?range=7d$"))
        expect(page.get_by_role("button", name="7d", exact=True)).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="this month", exact=True).click()
    page.goto(f"{demo.url}/#/gpu/{busy['uuid']}")
    expect(page).to_have_url(re.compile(r"range=month$"))
    page.go_back()
    page.go_back()
    expect(page).to_have_url(re.compile(r"#/history\?range=7d$"))


def test_runs_on_it_are_those_of_the_api(demo: RunningHub, busy: dict[str, Any], shown: Page) -> None:
    table = shown.get_by_role("region", name="Runs", exact=True)
    now = json.loads(demo.get(f"/api/v1/runs?gpu={busy['uuid']}&now=true"))["runs"]
    expect(table.get_by_role("row").nth(1)).to_be_visible()
    for run in now:
        expect(table.get_by_role("row").filter(has_text=run["user"]).filter(has_text="so far").first).to_be_visible()


def test_what_makes_programs_run_on_it_is_copied(demo: RunningHub, busy: dict[str, Any], visit: Visits) -> None:
    page = open_gpu(visit, demo, busy, permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="copy UUID").click()
    assert page.evaluate("navigator.clipboard.readText()") == busy["uuid"]
    page.get_by_role("button", name="copy CUDA_VISIBLE_DEVICES").click()
    assert page.evaluate("navigator.clipboard.readText()") == f"CUDA_VISIBLE_DEVICES={busy['uuid']}"


def test_a_gpu_that_left_the_fleet_still_has_its_past(demo: RunningHub, busy: dict[str, Any], visit: Visits) -> None:
    page = open_gpu(visit, demo, busy)
    show_instead(page, fleet_of(demo) | {"hosts": []})
    expect(page.get_by_text("This GPU is no longer in the fleet.")).to_be_visible()
    expect(plot(page)).to_have_attribute("aria-valuetext", re.compile(r"Utilization \d+ %"), timeout=30_000)
    expect(page.get_by_role("heading", level=1)).to_contain_text(busy["name"])


def test_a_gpu_that_nobody_knows_is_said_to_be_unknown(demo: RunningHub, bare: Page) -> None:
    bare.goto(f"{demo.url}/#/gpu/GPU-of-nobody")
    expect(bare.get_by_role("heading", name="GPU not found")).to_be_visible()


def test_the_details_of_a_gpu_lead_to_its_page(still: HubProcess, visit: Visits) -> None:
    page = visit(still.url + "/?q=gpu01")
    page.locator(".line .label").first.click()
    page.get_by_role("dialog").get_by_role("link", name="GPU page").click()
    expect(page).to_have_url(re.compile(r"#/gpu/GPU-gpu01-0$"))
    expect(page.get_by_role("heading", level=1)).to_contain_text("GPU 0")


def test_an_idle_gpu_is_kept_from_the_idle_policy_and_given_back(still: HubProcess, visit: Visits) -> None:
    wait_until(lambda: json.loads(still.get("/api/v1/idle-policy"))["ladders"], "the policy's turn", seconds=60)
    page = visit(f"{still.url}/#/gpu/GPU-gpu01-2", width=390, height=844)
    expect(page.get_by_text("Idle policy (dry run, nothing is sent): next: notify the owner")).to_be_visible()
    page.get_by_role("button", name="Keep…").click()
    page.get_by_role("textbox", name="Reason").fill("demo at 4")
    assert serious_violations(page) == []
    page.get_by_role("button", name="Keep", exact=True).click()
    expect(page.get_by_text("Kept until")).to_contain_text("demo at 4")
    (kept,) = json.loads(still.get("/api/v1/keeps"))["keeps"]
    assert (kept["gpu"], kept["reason"], kept["end"] - kept["start"]) == ("GPU-gpu01-2", "demo at 4", 8 * 3600)
    page.get_by_role("button", name="End now").click()
    expect(page.get_by_role("button", name="Keep…")).to_be_visible()
    assert json.loads(still.get("/api/v1/keeps"))["keeps"] == []


def test_names_from_outside_are_shown_harmlessly(empty: HubProcess, visit: Visits) -> None:
    processes = [make_process(user=HOSTILE[:60], container=HOSTILE[:200])]
    send_and_record(empty, make_envelope(gpus=[make_gpu(uuid="GPU-odd", processes=processes)]))
    page = visit(f"{empty.url}/#/gpu/GPU-odd", width=390)
    expect(page.get_by_role("region", name="Processes on this GPU")).to_contain_text("<script>window.pwned")
    assert page.evaluate("window.pwned") is None
    assert not is_wider_than_its_window(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nobody_is_shut_out(demo: RunningHub, busy: dict[str, Any], visit: Visits, scheme: str) -> None:
    page = open_gpu(visit, demo, busy, "?range=6h", color_scheme=scheme)
    assert serious_violations(page) == []


def test_it_fits_a_phone(demo: RunningHub, busy: dict[str, Any], visit: Visits) -> None:
    page = open_gpu(visit, demo, busy, width=390, height=844)
    expect(page.get_by_role("button", name="copy UUID")).to_be_visible()
    assert not is_wider_than_its_window(page)
    assert serious_violations(page) == []


def test_on_a_phone_everything_about_a_process_is_in_sight(
    demo: RunningHub, busy: dict[str, Any], visit: Visits
) -> None:
    page = open_gpu(visit, demo, busy, width=390)
    table = page.get_by_role("region", name="Processes on this GPU")
    expect(table.locator("td[data-name=for]").first).to_be_visible()
    assert table.evaluate("region => region.scrollWidth <= region.clientWidth")
