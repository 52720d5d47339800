"""What no page should meet, and what must stay of it when it does."""

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from e2e.looking import fleet_of, make_envelope, show_instead
from fakes.hubs import HubProcess
from fakes.pushed import send
from fakes.reports import IDLE, make_busy_gpu, make_gpu, make_process
from fakes.waiting import wait_until

pytestmark = pytest.mark.browser
Visits = Callable[..., Page]


def strange_fleet(hub: HubProcess, **changes: Any) -> dict[str, Any]:
    """Three hosts with a GPU each; `changes` are those of the GPU of the one in the middle."""
    for name in ("gpu01", "gpu02", "gpu03"):
        send(hub, make_envelope(name, gpus=[make_busy_gpu(0, "alice")]))
    wait_until(lambda: len(fleet_of(hub)["hosts"]) == 3, "three hosts")
    fleet = fleet_of(hub)
    fleet["hosts"][1]["gpus"][0] |= changes
    return fleet


@pytest.mark.parametrize("view", ["cards", "table"])
@pytest.mark.parametrize("since", [-1e308, 1e308, None, 8.64e12 + 1])
def test_a_time_that_is_none_breaks_nothing(empty: HubProcess, visit: Visits, since: float | None, view: str) -> None:
    page = visit(f"{empty.url}/?view={view}&sort=name")
    show_instead(page, strange_fleet(empty, since=since))
    expect(page.locator("[data-host]")).to_have_count(3)
    expect(page.get_by_text("could not be displayed")).to_have_count(0)
    page.locator("[data-host] [data-slot='0']").nth(1).hover()
    expect(page.locator(".popover .state")).to_have_text("busy")


@pytest.mark.parametrize("view", ["cards", "table"])
def test_a_host_that_cannot_be_drawn_leaves_the_others_and_returns(
    empty: HubProcess, chromium: Browser, view: str
) -> None:
    fleet = strange_fleet(empty)
    fleet["hosts"][1]["problems"] = [None]
    page = chromium.new_page()
    page.goto(f"{empty.url}/?view={view}&sort=name")
    show_instead(page, fleet)
    expect(page.get_by_text("gpu02 could not be displayed")).to_be_visible()
    expect(page.locator("[data-slot='0']")).to_have_count(2)
    page.unroute_all()
    expect(page.locator("[data-slot='0']")).to_have_count(3, timeout=30_000)
    page.close()


def is_inside_the_window(page: Page) -> bool:
    inside = """box => { const { top, right, bottom, left } = box.getBoundingClientRect()
      return top >= 0 && left >= 0 && right <= document.body.clientWidth && bottom <= innerHeight }"""
    return bool(page.locator(".popover").evaluate(inside))


def test_a_crowded_gpu_keeps_its_details_inside_the_window(empty: HubProcess, visit: Visits) -> None:
    crowd = [make_process(pid, f"user{pid}", gib=1) for pid in range(1, 41)]
    send(empty, make_envelope("gpu01", gpus=[make_gpu(0, processes=crowd)]))
    page = visit(empty.url, width=1000, height=420)
    # Everywhere else on the row are links to its users.
    page.locator(".line .label").click()
    details = page.locator(".popover")
    expect(details).to_contain_text("and 32 more users")
    assert is_inside_the_window(page)
    for name in ("copy CUDA_VISIBLE_DEVICES", "close"):
        expect(details.get_by_role("button", name=name)).to_be_in_viewport(ratio=1)


def test_one_process_seen_twice_is_shown_twice(empty: HubProcess, visit: Visits) -> None:
    fleet = strange_fleet(empty)
    gpu = fleet["hosts"][1]["gpus"][0]
    gpu["processes"] *= 2
    page = visit(empty.url + "/?q=host:gpu02")
    show_instead(page, fleet)
    page.locator(".line").hover()
    expect(page.locator(".popover tbody tr")).to_have_count(2)


@pytest.mark.parametrize("width", [900, 1440])
def test_details_in_the_last_column_are_whole(still: HubProcess, visit: Visits, width: int) -> None:
    page = visit(still.url + "/?q=busy", width=width)
    expect(page.locator(".line").first).to_be_visible()
    rightmost = """lines => lines.map(line => line.getBoundingClientRect().left)
      .reduce((best, left, i, all) => left > all[best] ? i : best, 0)"""
    page.locator(".line").nth(int(page.locator(".line").evaluate_all(rightmost))).hover()
    expect(page.locator(".popover")).to_be_visible()
    assert is_inside_the_window(page)
    cut = "box => [box, ...box.querySelectorAll('.inside, table')].filter(part => part.scrollWidth > part.clientWidth)"
    assert page.locator(".popover").evaluate(f"box => ({cut})(box).length") == 0


def test_escape_closes_details_under_the_pointer_for_good(still: HubProcess, visit: Visits) -> None:
    page = visit(still.url + "/?q=busy&sort=name")
    page.locator(".line").first.hover()
    details = page.locator(".popover")
    details.hover()
    page.keyboard.press("Escape")
    expect(details).to_have_count(0)
    page.get_by_role("searchbox").press("End")
    expect(details).to_have_count(0)
    expect(page.get_by_role("searchbox")).to_have_value("busy")
    page.locator(".line").nth(1).hover()
    expect(details).to_be_visible()


def test_a_missing_gpu_is_not_offered_for_work(empty: HubProcess, visit: Visits) -> None:
    send(
        empty,
        make_envelope(
            "gpu01",
            gpus=[make_gpu(0, metrics=dict.fromkeys(IDLE), processes=None, missing="fell off the bus (Xid 79)")],
        ),
    )
    page = visit(empty.url)
    page.locator(".line").click()
    details = page.locator(".popover")
    expect(details).to_contain_text("fell off the bus")
    expect(details.get_by_role("button", name="copy CUDA_VISIBLE_DEVICES")).to_have_count(0)
    expect(details.get_by_role("button", name="close")).to_be_visible()
    expect(details.locator(".not-known")).to_contain_text("not reported: utilization")
