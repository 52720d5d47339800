"""A host's own page in a real browser: its GPUs and who is on them, its system, its problems."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

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
from fakes.pushed import send
from fakes.reports import make_busy_gpu, make_gpu
from fakes.waiting import wait_until
from gpudeck.collectors.simulated import SimulatedJob

pytestmark = pytest.mark.browser
Visits = Callable[..., Page]
CHARTS = ("GPU memory", "GPU power", "CPU", "RAM", "Disk", "Network")


@pytest.fixture(scope="module")
def job() -> tuple[str, SimulatedJob]:
    return lasting_job(DEMO_HOSTS)


@pytest.fixture(scope="module")
def host(demo: RunningHub, job: tuple[str, SimulatedJob]) -> dict[str, Any]:
    """A host of the demo fleet that is used for as long as the tests last, once some of its past is made."""
    question = f"/api/v1/history?host={job[0]}&metric=host_cpu_percent&start=-6h"

    def has_past() -> bool:
        series = json.loads(demo.get(question))["series"]
        return bool(series) and len(series[0]["points"]) > 100

    wait_until(has_past, "six hours of the past", seconds=120)
    return next(host for host in fleet_of(demo)["hosts"] if host["name"] == job[0])


@pytest.fixture
def bare(chromium: Browser) -> Iterator[Page]:
    """A page whose refused questions are no mistake."""
    page = chromium.new_page(viewport={"width": 1440, "height": 900})
    yield page
    page.close()


def open_host(visit: Visits, hub: HubProcess, host: dict[str, Any], query: str = "", **options: object) -> Page:
    page = visit(f"{hub.url}/#/host/{host['name']}{query}", **options)
    chart = page.get_by_role("slider", name="CPU over time")
    expect(chart).to_have_attribute("aria-valuetext", re.compile(r"CPU \d+ %"), timeout=30_000)
    return page


def test_every_gpu_is_listed_with_its_processes(
    demo: RunningHub, host: dict[str, Any], job: tuple[str, SimulatedJob], visit: Visits
) -> None:
    page = open_host(visit, demo, host)
    expect(page.get_by_role("heading", level=1)).to_have_text(host["display_name"])
    table = page.get_by_role("region", name="GPUs and their processes")
    for gpu in host["gpus"]:
        expect(table.get_by_role("link", name=f"GPU {gpu['label']}", exact=True)).to_be_visible()
    busy = next(gpu for gpu in host["gpus"] if gpu["uuid"] in job[1].gpus)
    row = table.get_by_role("row").filter(has_text=str(busy["processes"][0]["pid"])).first
    expect(row).to_contain_text(busy["processes"][0]["command"])
    expect(row).to_contain_text(busy["processes"][0]["evidence"])


def test_its_system_is_described(demo: RunningHub, host: dict[str, Any], visit: Visits) -> None:
    page = open_host(visit, demo, host)
    system = page.get_by_role("region", name="System")
    for fact in (host["os"], host["driver_version"], host["agent_version"], *host["addresses"]):
        expect(system).to_contain_text(fact)
    for key, value in host["labels"].items():
        expect(page.locator("main header")).to_contain_text(f"{key}={value}")


def test_its_figures_change_without_a_reload(demo: RunningHub, host: dict[str, Any], visit: Visits) -> None:
    page = open_host(visit, demo, host)
    figures = page.locator("main dl").first
    before = figures.inner_text()
    wait_until(lambda: figures.inner_text() != before, "a change of its figures")


def test_every_chart_tells_its_latest_values(demo: RunningHub, host: dict[str, Any], visit: Visits) -> None:
    page = open_host(visit, demo, host, "?range=6h")
    for title in CHARTS:
        chart = page.get_by_role("slider", name=f"{title} over time")
        expect(chart).to_have_attribute("aria-valuetext", re.compile(r"\d (%|W|[MGT]iB|[kMG]B/s)"))


def test_the_map_of_its_gpus_is_walked_with_keys_and_opens_a_gpu(
    demo: RunningHub, host: dict[str, Any], visit: Visits
) -> None:
    page = open_host(visit, demo, host, "?range=6h")
    cells = page.get_by_role("application", name="GPU utilization")
    cells.focus()
    page.keyboard.press("ArrowLeft")
    told = page.locator("figure", has=cells).locator("[aria-live]")
    expect(told).to_have_text(re.compile(r"^GPU \S+, .+: (\d+ %|no data)$"))
    before = told.inner_text()
    page.keyboard.press("ArrowLeft")
    expect(told).not_to_have_text(before)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"#/gpu/.+range=6h$"))


def test_a_gpu_and_a_person_are_one_click_away(demo: RunningHub, host: dict[str, Any], visit: Visits) -> None:
    page = open_host(visit, demo, host)
    table = page.get_by_role("region", name="GPUs and their processes")
    expect(table.locator("a[href^='#/user/']").first).to_be_visible()
    table.get_by_role("link", name=re.compile(r"^GPU ")).first.click()
    expect(page).to_have_url(re.compile(f"#/gpu/{re.escape(host['gpus'][0]['uuid'])}$"))
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text(host["display_name"])


def test_a_range_in_the_address_is_what_is_shown(demo: RunningHub, host: dict[str, Any], visit: Visits) -> None:
    page = open_host(visit, demo, host, "?range=1h")
    expect(page.get_by_role("button", name="1h", exact=True)).to_have_attribute("aria-pressed", "true")
    page.get_by_role("slider", name="CPU over time").focus()
    page.keyboard.press("-")
    expect(page).to_have_url(re.compile(r"range=7200$"))


def test_a_host_that_left_the_fleet_still_has_its_past(demo: RunningHub, host: dict[str, Any], visit: Visits) -> None:
    page = open_host(visit, demo, host)
    show_instead(page, fleet_of(demo) | {"hosts": []})
    expect(page.get_by_text("This host is no longer in the fleet.")).to_be_visible()
    chart = page.get_by_role("slider", name="CPU over time")
    expect(chart).to_have_attribute("aria-valuetext", re.compile(r"CPU \d+ %"), timeout=30_000)


def test_a_host_that_nobody_knows_is_said_to_be_unknown(demo: RunningHub, bare: Page) -> None:
    bare.goto(f"{demo.url}/#/host/nobody")
    expect(bare.get_by_role("heading", name="Host not found")).to_be_visible()


def test_a_silent_host_says_what_to_do(empty: HubProcess, visit: Visits) -> None:
    send_and_record(empty, make_envelope(host="gpu07"))
    page = visit(f"{empty.url}/#/host/gpu07")
    expect(page.get_by_role("heading", level=1)).to_have_text("gpu07")
    fleet = fleet_of(empty)
    fleet["hosts"][0] |= {"status": "down", "last_report_at": fleet["time"] - 180}
    show_instead(page, fleet)
    problems = page.get_by_role("region", name="Problems")
    note = r"No report for 3m \(last at .*\)\. Check that the host is on and that gpudeck agent is running\."
    expect(problems).to_contain_text(re.compile(note))
    expect(problems.locator("code")).to_have_text("gpudeck hosts test gpu07")


def test_a_process_that_starts_appears_by_itself(empty: HubProcess, visit: Visits) -> None:
    send_and_record(empty, make_envelope(host="gpu07", gpus=[make_gpu()]))
    page = visit(f"{empty.url}/#/host/gpu07")
    table = page.get_by_role("region", name="GPUs and their processes")
    expect(table).to_contain_text("free")
    send(empty, make_envelope(host="gpu07", sequence=2, gpus=[make_busy_gpu(user="alice")]))
    expect(table.get_by_role("row").filter(has_text="4711")).to_contain_text("alice")
    expect(table).to_contain_text("busy")


def test_a_host_is_removed_from_its_page(empty: HubProcess, visit: Visits) -> None:
    send_and_record(empty, make_envelope(host="gpu07"))
    page = visit(f"{empty.url}/#/host/gpu07")
    page.get_by_role("button", name="Remove this host…").click()
    expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    page.get_by_role("button", name="Remove", exact=True).click()
    expect(page).to_have_url(re.compile(r"#/$"))
    wait_until(lambda: fleet_of(empty)["hosts"] == [], "a fleet without it")


def test_the_name_of_a_host_leads_to_its_page(demo: RunningHub, host: dict[str, Any], visit: Visits) -> None:
    page = visit(f"{demo.url}/?sort=name&q={host['name']}")
    page.locator(f"[data-host='{host['id']}'] h2 a").click()
    expect(page).to_have_url(re.compile(f"#/host/{re.escape(host['name'])}$"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nobody_is_shut_out(demo: RunningHub, host: dict[str, Any], visit: Visits, scheme: str) -> None:
    assert serious_violations(open_host(visit, demo, host, "?range=6h", color_scheme=scheme)) == []


def test_it_fits_a_phone(demo: RunningHub, host: dict[str, Any], visit: Visits) -> None:
    page = open_host(visit, demo, host, width=390, height=844)
    assert not is_wider_than_its_window(page)
    assert serious_violations(page) == []


def test_a_phone_shows_what_runs(demo: RunningHub, host: dict[str, Any], visit: Visits) -> None:
    page = open_host(visit, demo, host, width=390, height=844)
    command = page.get_by_role("region", name="GPUs and their processes").locator(".command").first
    box = command.bounding_box()
    assert box is not None
    assert box["width"] > 200


def test_its_gpus_are_compared_in_one_chart(demo: RunningHub, host: dict[str, Any], visit: Visits) -> None:
    page = open_host(visit, demo, host, "?range=6h")
    page.get_by_role("link", name="Compare its GPUs").click()
    expect(page).to_have_url(re.compile(r"#/compare\?kind=gpu&of=(GPU|MIG).+&range=6h$"))
    rows = page.locator(".sheet tbody tr")
    expect(rows).to_have_count(min(8, len(host["gpus"])))
    expect(page.get_by_role("status").filter(has_text=re.compile("traggler"))).to_be_visible()
    page.get_by_label("Metric").select_option(label="temperature")
    expect(page).to_have_url(re.compile(r"metric=temperature_celsius"))
    expect(rows.first.locator("[data-name=mean]")).to_have_text(re.compile(r"\d+ °C$"))
    assert serious_violations(page) == []
    gone = rows.first.get_by_role("rowheader").inner_text().split()[0]
    page.get_by_role("button", name=f"Remove {gone}").click()
    expect(rows).to_have_count(min(8, len(host["gpus"])) - 1)
    page.get_by_label("Add to the comparison").fill("nowhere:9")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("alert")).to_have_text("There is no such GPU in the fleet.")
    page.get_by_label("Add to the comparison").fill(gone)
    page.get_by_role("button", name="Add", exact=True).click()
    expect(rows).to_have_count(min(8, len(host["gpus"])))
