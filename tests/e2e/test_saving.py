"""Charts and tables as files."""

import csv
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from e2e.looking import send
from fakes.hubs import HubProcess, RunningHub
from fakes.reports import make_envelope, make_gpu, make_process

pytestmark = pytest.mark.browser
Visits = Callable[..., Page]


def save(page: Page, button: Locator) -> tuple[str, bytes]:
    with page.expect_download() as waiting:
        button.click()
    return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes()


def read(content: bytes) -> list[list[str]]:
    return list(csv.reader(content.decode("utf-8-sig").splitlines()))


def test_chart_is_saved_as_picture_and_as_points(demo: RunningHub, visit: Visits) -> None:
    page = visit(f"{demo.url}/#/history?range=24h")
    menu = page.get_by_role("button", name="Save Power", exact=True)
    menu.click()
    name, content = save(page, page.get_by_role("button", name="PNG picture"))
    width, height = struct.unpack(">II", content[16:24])
    assert (name, content[:8]) == ("power.png", b"\x89PNG\r\n\x1a\n")
    assert width > 200
    assert height > 160
    menu.click()
    name, content = save(page, page.get_by_role("button", name="CSV of the points"))
    rows = read(content)
    assert name == "power.csv"
    assert rows[0] == ["time_utc", "Power (watts)"]
    assert len(rows) > 2
    assert all(float(value) > 0 for _, value in rows[1:])


def test_heat_map_and_days_are_saved(demo: RunningHub, visit: Visits) -> None:
    page = visit(f"{demo.url}/#/history?range=24h")
    for title, head in (("Utilization by host", "name"), ("GPU-hours and active hours", "day")):
        menu = page.get_by_role("button", name=f"Save {title}")
        menu.click()
        _, content = save(page, page.get_by_role("button", name="PNG picture"))
        assert struct.unpack(">II", content[16:24]) > (400, 100)
        menu.click()
        _, content = save(page, page.get_by_role("button", name="CSV of the"))
        rows = read(content)
        assert rows[0][0] == head
        assert len(rows) > 1
        assert len({len(row) for row in rows}) == 1


def test_menu_closes_with_escape_and_keeps_the_focus(demo: RunningHub, visit: Visits) -> None:
    page = visit(f"{demo.url}/#/history?range=24h")
    menu = page.get_by_role("button", name="Save Power", exact=True)
    menu.focus()
    page.keyboard.press("Enter")
    expect(menu).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="PNG picture")).to_be_focused()
    page.keyboard.press("Escape")
    expect(menu).to_be_focused()
    expect(menu).to_have_attribute("aria-expanded", "false")


def test_rows_shown_are_saved(still: HubProcess, visit: Visits) -> None:
    page = visit(f"{still.url}/?q=free")
    expect(page.locator(".line").first).to_be_visible()
    name, content = save(page, page.get_by_role("button", name="CSV"))
    head, *rows = read(content)
    assert name == "fleet.csv"
    assert rows
    assert {row[head.index("availability")] for row in rows} == {"free"}
    page = visit(f"{still.url}/#/people")
    name, content = save(page, page.get_by_role("button", name="Save these rows as CSV"))
    head, *rows = read(content)
    assert (name, head[:2]) == ("users.csv", ["User", "GPUs"])
    assert rows


@pytest.mark.parametrize("name", ["=cmd|calc", "@sum"])
def test_name_is_never_a_formula(empty: HubProcess, visit: Visits, name: str) -> None:
    send(empty, make_envelope("gpu01", gpus=[make_gpu(0, processes=[make_process(7, name, gib=1)])]))
    page = visit(f"{empty.url}/#/people")
    _, content = save(page, page.get_by_role("button", name="Save these rows as CSV"))
    assert read(content)[1][0] == f"'{name}"
