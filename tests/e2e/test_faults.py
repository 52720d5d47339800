"""Faults of a GPU (XIDs) in its details on the page."""

import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from e2e.looking import make_envelope
from fakes.hubs import HubProcess
from fakes.pushed import send
from fakes.reports import make_busy_gpu
from gpudeck.model.report import GpuEvent

pytestmark = pytest.mark.browser


def test_details_tell_the_faults_of_the_last_day(empty: HubProcess, visit: Callable[..., Page]) -> None:
    now = time.time()
    events = [
        GpuEvent(now - 7200, 79, None, "GPU has fallen off the bus."),
        GpuEvent(now - 60, 31, 4711, "MMU Fault <b>at 0x70</b>"),
    ]
    send(empty, make_envelope(gpus=[make_busy_gpu(0, events=events)], collected_at=now))
    page = visit(empty.url)
    page.locator("[data-slot='0']").hover()
    rows = page.get_by_role("table", name="Errors in the last 24h").get_by_role("row")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("XID 31illegal memory access by a program · alice, process 4711")
    expect(rows.nth(0).locator(".fault")).to_have_attribute("title", "MMU Fault <b>at 0x70</b>")
    expect(rows.nth(1)).to_contain_text("XID 79it fell off the bus")
    expect(page.locator(".popover .alarm").first).to_contain_text("XID 79: it fell off the bus, 2h ago; ")
