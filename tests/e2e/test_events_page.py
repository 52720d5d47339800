"""What happened, and the hub about itself, in a real browser."""

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from e2e.axe import serious_violations
from e2e.looking import fleet_of, make_envelope
from fakes.hubs import HubProcess, running_hub
from fakes.pushed import send
from fakes.reports import make_gpu
from fakes.waiting import wait_until
from gpudeck.model.report import GpuEvent

pytestmark = pytest.mark.browser
HOT_HOSTS = 220


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[HubProcess]:
    """A hub to which a new host has reported once, and is not to be missed before all tests are through."""
    with running_quietly(tmp_path_factory.mktemp("quiet")) as hub:
        yield hub


@contextlib.contextmanager
def running_quietly(folder: Path) -> Iterator[HubProcess]:
    (folder / "gpudeck.yaml").write_text("demo: never\nlocal: never\n")
    with running_hub(folder) as hub:
        send(hub, make_envelope("gpu01", interval_seconds=300.0))
        yield hub


def test_events_are_listed_newest_first_with_their_links(quiet: HubProcess, visit: Callable[..., Page]) -> None:
    page = visit(f"{quiet.url}/#/events")
    expect(page.locator("li[data-kind]")).to_have_count(2)
    expect(page.locator("li[data-kind]").first).to_contain_text("gpu01 reports for the first time")
    page.get_by_role("link", name="gpu01").click()
    expect(page).to_have_url(f"{quiet.url}/#/host/gpu01")


def test_event_that_happens_now_comes_in_at_the_top(tmp_path: Path, visit: Callable[..., Page]) -> None:
    with running_quietly(tmp_path) as hub:
        page = visit(f"{hub.url}/#/events")
        expect(page.locator("li[data-kind]")).to_have_count(2)
        send(hub, make_envelope("gpu02", gpus=[make_gpu(uuid="GPU-other")]))
        expect(page.locator("li[data-kind]").first).to_contain_text("gpu02 reports for the first time")
        expect(page.locator("li[data-kind]")).to_have_count(3)
        page.close()


def test_filter_stands_in_the_address(quiet: HubProcess, visit: Callable[..., Page]) -> None:
    page = visit(f"{quiet.url}/#/events?kind=hub_started,hub_stopped,history_problem,history_recovered")
    expect(page.locator("li[data-kind]")).to_have_count(1)
    page.get_by_label("Kind of event").select_option(label="all events")
    expect(page.locator("li[data-kind]")).to_have_count(2)
    page.get_by_label("Search events").fill("first time")
    expect(page.locator("li[data-kind]")).to_have_count(1)
    expect(page).to_have_url(f"{quiet.url}/#/events?q=first+time")
    page.get_by_label("Search events").fill("nothing like it")
    expect(page.get_by_text("No matching events")).to_be_visible()
    page.get_by_role("button", name="Show all events").click()
    expect(page.locator("li[data-kind]")).to_have_count(2)


@pytest.fixture(scope="module")
def hot(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[HubProcess]:
    """A hub with an alert on each of more hosts than its stream names."""
    folder = tmp_path_factory.mktemp("hot")
    (folder / "gpudeck.yaml").write_text("demo: never\nlocal: never\nalerts: {rules: {gpu_hot: {for: 0s}}}\n")
    with running_hub(folder) as hub:
        for number in range(HOT_HOSTS):
            gpu = make_gpu(uuid=f"GPU-{number}", metrics={"temperature_celsius": 90})
            send(hub, make_envelope(f"gpu{number:03}", gpus=[gpu], interval_seconds=300.0))
        wait_until(lambda: fleet_of(hub)["alert_counts"]["total"] == HOT_HOSTS, "an alert of every host")
        yield hub


def alerts_of(hub: HubProcess) -> list[dict[str, Any]]:
    return list(json.loads(hub.get("/api/v1/alerts"))["alerts"])


def mutes_of(hub: HubProcess) -> list[dict[str, Any]]:
    return list(json.loads(hub.get("/api/v1/mutes"))["mutes"])


def test_alerts_stand_by_cause_and_their_number_is_that_of_the_navigation(
    hot: HubProcess, visit: Callable[..., Page]
) -> None:
    page = visit(f"{hot.url}/#/events")
    panel = page.get_by_role("region", name="Alerts")
    expect(panel.get_by_role("heading")).to_contain_text(f"{HOT_HOSTS} alerts need attention")
    expect(page.get_by_role("link", name="Events")).to_contain_text(str(HOT_HOSTS))
    expect(panel.get_by_role("listitem")).to_have_count(1)
    expect(panel.get_by_role("listitem")).to_contain_text(f"GPU hot {HOT_HOSTS} alerts on {HOT_HOSTS} hosts")
    panel.get_by_role("button", name="GPU hot", expanded=False).first.click()
    expect(panel.locator("[data-rule]")).to_have_count(20)
    assert serious_violations(page) == []
    panel.get_by_role("button", name=f"Show all {HOT_HOSTS} hosts").click()
    expect(panel.locator("[data-rule]")).to_have_count(HOT_HOSTS)


def test_hundreds_are_muted_seen_and_unmuted(hot: HubProcess, visit: Callable[..., Page]) -> None:
    page = visit(f"{hot.url}/#/events")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if request.method == "POST" else None)
    panel, mutes = page.get_by_role("region", name="Alerts"), page.get_by_role("region", name="Mutes")
    expect(panel.get_by_role("button", name=f"Acknowledge {HOT_HOSTS}")).to_be_visible()
    panel.get_by_role("button", name="Mute… GPU hot").click()
    panel.get_by_label("Reason").fill("new fans")
    assert serious_violations(page) == []
    page.keyboard.press("Enter")
    expect(mutes.get_by_role("listitem")).to_contain_text(re.compile("GPU hot on gpu.* until .*: new fans"))
    expect(panel.get_by_role("heading")).to_contain_text("No alert needs attention")
    expect(page.get_by_role("link", name="Events")).to_have_text("Events")
    assert sent == [f"{hot.url}/api/v1/mutes"]
    assert [len(mute["hosts"]) for mute in mutes_of(hot)] == [HOT_HOSTS]
    mutes.get_by_role("button", name="Unmute").click()
    expect(panel.get_by_role("heading")).to_contain_text(f"{HOT_HOSTS} alerts need attention")
    expect(mutes).to_have_count(0)
    assert mutes_of(hot) == []
    # What was ended by mistake comes back, and goes again.
    page.locator(".toast").filter(has_text="Unmuted").get_by_role("button", name="Undo").click()
    expect(mutes.get_by_role("listitem")).to_contain_text("new fans")
    mutes.get_by_role("button", name="Unmute").click()
    expect(mutes).to_have_count(0)


def test_hundreds_are_acknowledged_at_once_on_a_phone(tmp_path: Path, visit: Callable[..., Page]) -> None:
    (tmp_path / "gpudeck.yaml").write_text("demo: never\nlocal: never\nalerts: {rules: {gpu_hot: {for: 0s}}}\n")
    with running_hub(tmp_path) as hub:
        gpus = [make_gpu(index, metrics={"temperature_celsius": 90}) for index in range(64)]
        send(hub, make_envelope("gpu01", gpus=gpus, interval_seconds=300.0))
        page = visit(f"{hub.url}/#/events", width=390, color_scheme="dark")
        panel = page.get_by_role("region", name="Alerts")
        expect(panel.get_by_role("heading")).to_contain_text("64 alerts need attention")
        sent: list[str] = []
        page.on("request", lambda request: sent.append(request.url) if request.method == "POST" else None)
        panel.get_by_role("button", name="Acknowledge all 64").click()
        expect(panel.get_by_role("heading")).to_contain_text("No alert needs attention")
        expect(page.get_by_role("status").filter(has_text="64 alerts acknowledged")).to_be_visible()
        assert sent == [f"{hub.url}/api/v1/alerts/acknowledge"]
        assert {alert["state"] for alert in alerts_of(hub)} == {"acknowledged"}
        page.get_by_role("button", name="Undo").click()
        expect(panel.get_by_role("heading")).to_contain_text("64 alerts need attention")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert serious_violations(page) == []
        page.close()


def test_hub_that_cannot_tell_is_said_so(quiet: HubProcess, visit: Callable[..., Page]) -> None:
    page = visit(f"{quiet.url}/#/about")
    expect(page.get_by_text("Uptime")).to_be_visible()
    expect(page.locator("dt:text-is('Viewers') + dd")).to_have_text(re.compile("[1-9]"))
    page.route("**/api/v1/events*", lambda route: route.abort())
    page.goto(f"{quiet.url}/#/events")
    expect(page.get_by_text("Events could not be loaded")).to_be_visible()
    page.unroute("**/api/v1/events*")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("li[data-kind]")).to_have_count(2)


def test_about_tells_of_the_hub_and_copies_it_without_its_places(quiet: HubProcess, chromium: Browser) -> None:
    context = chromium.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(f"{quiet.url}/#/about")
    expect(page.locator("main")).to_contain_text("1 of 1 up")
    expect(page.locator("main")).to_contain_text(str(quiet.data_dir))
    page.get_by_role("button", name="Copy diagnostics").click()
    expect(page.get_by_text("copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    context.close()
    assert "Accepted: 1" in copied
    assert str(quiet.data_dir) not in copied


@pytest.mark.parametrize(("name", "words"), [("events", "gpu01 reports"), ("about", "Uptime")])
def test_page_fits_a_phone(quiet: HubProcess, visit: Callable[..., Page], name: str, words: str) -> None:
    page = visit(f"{quiet.url}/#/{name}", width=390, color_scheme="dark")
    expect(page.get_by_text(words)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_flakiest_gpu_is_found_from_any_page(tmp_path: Path, visit: Callable[..., Page]) -> None:
    with running_quietly(tmp_path) as hub:
        now = time.time()
        faults = [GpuEvent(now - 60, 79, None, "GPU has fallen off the bus.")]
        send(
            hub, make_envelope("gpu02", gpus=[make_gpu(uuid="GPU-flaky")], interval_seconds=300.0, collected_at=now - 1)
        )
        flaky = make_gpu(uuid="GPU-flaky", events=faults)
        send(hub, make_envelope("gpu02", gpus=[flaky], interval_seconds=300.0, collected_at=now, sequence=2))
        wait_until(lambda: json.loads(hub.get("/api/v1/reliability"))["rows"], "a fault that is counted")
        page = visit(hub.url)
        page.get_by_role("navigation", name="Pages").get_by_role("link", name="Reliability").click()
        row = page.locator("tbody tr")
        expect(row).to_have_count(1)
        expect(row.get_by_role("rowheader")).to_have_text("gpu02:0")
        expect(row).to_contain_text("1 × XID 79")
        expect(row).to_contain_text("(−20)")
        assert serious_violations(page) == []
        page.get_by_role("button", name="hosts", exact=True).click()
        expect(page).to_have_url(re.compile(r"#/reliability\?by=host$"))
        expect(row.get_by_role("rowheader")).to_have_text("gpu02")
        page.get_by_role("button", name="90d", exact=True).click()
        expect(page).to_have_url(re.compile(r"by=host&range=90d$"))
        row.get_by_role("link", name="events").click()
        expect(page).to_have_url(re.compile(r"#/events\?host=gpu02&range=90d$"))
        page.close()
