"""Real reports, ordinary and strange, on their way to the eye."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError

import pytest
from playwright.sync_api import Browser, Page, expect

from e2e.looking import fleet_of, is_wider_than_its_window, make_envelope
from fakes.hubs import HubProcess, running_hub
from fakes.pushed import send
from fakes.reports import HOST, make_busy_gpu, make_gpu
from fakes.waiting import wait_until
from gpudeck.model.report import Report
from gpudeck.wire import Envelope

pytestmark = pytest.mark.browser
Visits = Callable[..., Page]

HOSTILE = (
    "<script>document.title='stolen'</script>",
    '"><img src=x onerror=alert(1)>',
    "\u202egnp.exe",
    "🦊 fox",
    "x" * 250,
)


def test_an_empty_hub_says_how_to_add_a_host_and_shows_the_first_one(empty: HubProcess, visit: Visits) -> None:
    page = visit(f"{empty.url}/?sort=name")
    expect(page.get_by_role("heading", name="No host has reported yet")).to_be_visible()
    expect(page.locator("main code").first).to_have_text("gpudeck hosts add gpu01")
    expect(page.get_by_role("status").filter(has_text="It prints the line to run on that server")).to_be_visible()
    send(empty, make_envelope("gpu01", gpus=[make_gpu(0), make_busy_gpu(1, "alice")]))
    expect(page.locator(".card")).to_contain_text("alice")
    expect(page.locator(".chip.free b")).to_have_text("1")
    expect(page.get_by_text("demo data")).to_have_count(0)


def is_sent(hub: HubProcess, envelope: Envelope) -> bool:
    """An agent repeats a report that a hub between two fleets does not take."""
    try:
        send(hub, envelope)
    except OSError as error:
        print(f"{time.monotonic():.2f}", error, error.read().decode() if isinstance(error, HTTPError) else "")
        return False
    return True


def test_the_demo_leaves_with_the_first_real_host(tmp_path: Path, chromium: Browser, visit: Visits) -> None:
    (tmp_path / "gpudeck.yaml").write_text("local: never\n")
    with running_hub(tmp_path) as hub:
        page = visit(hub.url)
        expect(page.get_by_text("demo data", exact=True)).to_be_visible()
        wait_until(lambda: is_sent(hub, make_envelope("real01")), "the hub that follows the demo")
        expect(page.locator(".card")).to_have_count(1, timeout=20_000)
        expect(page.locator(".card .name")).to_have_count(1, timeout=20_000)
        expect(page.locator(".card .name")).to_have_text("real01")
        expect(page.get_by_text("demo data", exact=True)).to_have_count(0)


def test_a_silent_host_turns_grey_and_nothing_on_it_looks_free(empty: HubProcess, visit: Visits) -> None:
    send(empty, make_envelope("gpu01", interval_seconds=60.0))
    page = visit(empty.url)
    expect(page.locator(".line.free")).to_have_count(1)
    send(empty, make_envelope("gpu01", sequence=2, interval_seconds=1.0))
    expect(page.locator(".card.stale .status")).to_have_text(re.compile(r"^late \d+s$"), timeout=15_000)
    expect(page.locator(".line.free")).to_have_count(0)
    expect(page.locator(".line.unknown.past .who")).to_have_text("last: free")
    expect(page.locator(".chip.free b")).to_have_text("0")
    green = page.locator(".chip.free svg").evaluate("symbol => getComputedStyle(symbol).color")
    painted = "line => [line, ...line.querySelectorAll('*')].map(part => getComputedStyle(part).color)"
    assert green not in page.locator(".line.past").evaluate(painted)


def test_hostile_names_are_shown_as_they_are_and_do_nothing(empty: HubProcess, visit: Visits) -> None:
    gpus = [make_busy_gpu(index, name, uuid=f"GPU-{index}") for index, name in enumerate(HOSTILE)]
    problems = ["<img src=x onerror=alert(1)>"]
    report = Report(gpus=gpus, metrics=dict(HOST), labels={"<b>rack": "<i>r1"}, problems=problems)
    send(empty, make_envelope("gpu01", report=report, interval_seconds=60.0))
    page = visit(empty.url, width=390, height=844)
    page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    expect(page.locator(".line")).to_have_count(len(HOSTILE))
    shown = page.locator(".who").all_inner_texts()
    assert shown[0] == HOSTILE[0]
    assert shown[1] == HOSTILE[1]
    assert shown[2] == "\ufffdgnp.exe"
    assert shown[3] == HOSTILE[3]
    assert not is_wider_than_its_window(page)
    assert page.locator("main script, main img").count() == 0
    page.locator(".line").first.click()
    expect(page.locator(".popover")).to_contain_text(HOSTILE[0])
    page.locator(".popover").get_by_role("button", name="close").click()
    page.get_by_role("button", name="table", exact=True).click()
    assert not is_wider_than_its_window(page)
    page.get_by_role("combobox", name="Group by").select_option("user")
    expect(page.get_by_role("heading", name=HOSTILE[0], exact=True)).to_be_visible()
    assert page.locator("main script, main img").count() == 0
    assert not is_wider_than_its_window(page)
    expect(page).to_have_title("0 free · gpudeck")


def test_an_unknown_value_is_a_dash_with_its_reason_and_never_zero(empty: HubProcess, visit: Visits) -> None:
    blind = make_busy_gpu(
        0,
        metrics={"utilization_percent": None, "temperature_celsius": None},
        unknown={"utilization_percent": "not readable under MIG", "temperature_celsius": "no sensor"},
    )
    send(empty, make_envelope("gpu01", gpus=[blind]))
    page = visit(empty.url)
    expect(page.locator(".figure[title='not readable under MIG']")).to_have_text("–")
    expect(page.locator(".figure[title='no sensor']")).to_have_text("–")


def test_an_unwell_gpu_says_why_and_what_to_do(empty: HubProcess, visit: Visits) -> None:
    send(empty, make_envelope("gpu01", gpus=[make_busy_gpu(0, metrics={"temperature_celsius": 96}), make_gpu(1)]))
    wait_until(lambda: fleet_of(empty)["totals"]["gpus"] == 2, "the report in the fleet")
    page = visit(empty.url + "/?q=critical")
    expect(page.locator(".line")).to_have_count(1)
    page.locator(".line").hover()
    expect(page.locator(".popover .alarm")).to_contain_text("critical: 96 °C. Check the fans")
