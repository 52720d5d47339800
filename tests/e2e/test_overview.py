"""More hosts than the page streams in full: all of them in short, and figures of those in view."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from e2e.looking import NO_WORKER
from fakes.hubs import HubProcess, running_hub
from fakes.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow]
Visits = Callable[..., Page]

HOSTS = 200
SECONDS = 60


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[HubProcess]:
    folder = tmp_path_factory.mktemp("overview")
    (folder / "gpudeck.yaml").write_text("limits: {unlimited: [127.0.0.1]}\n")
    with running_hub(folder, "--demo", str(HOSTS)) as hub:
        wait_until(lambda: totals(hub)["hosts"] > 0.95 * HOSTS, "the simulated fleet", 90)
        yield hub


def open_large(page: Page, url: str) -> Page:
    """The page of a fleet that seems to be ten times as large when it is opened: then it asks for an overview."""

    def enlarge(route: Route) -> None:
        answer = route.fetch()
        html = re.sub(r'"hosts":(\d+),"hosts_up"', r'"hosts":\g<1>0,"hosts_up"', answer.text())
        route.fulfill(response=answer, body=html)

    page.route(re.compile(r"/(\?[^/]*)?$"), enlarge)
    page.goto(url)
    wait_until(lambda: page.evaluate("document.documentElement.scrollHeight") in range(4000, 12000), "all", SECONDS)
    return page


def totals(hub: HubProcess) -> dict[str, Any]:
    counts: dict[str, Any] = json.loads(hub.get("/api/v1/totals"))
    return counts


def find_row_with_figures(page: Page) -> str:
    """The name of the last row in the window that has figures; empty where none has."""
    name = page.evaluate(
        r"""() => [...document.querySelectorAll('.row')].filter(row => {
          const { top, bottom } = row.getBoundingClientRect()
          return top > 200 && bottom < innerHeight && /\d%/.test(row.querySelector('.figure')?.textContent)
        }).at(-1)?.querySelector('.name a').textContent.trim() ?? ''"""
    )
    return str(name)


@pytest.mark.parametrize("script", ["void 0", NO_WORKER], ids=["worker", "no worker"])
def test_hosts_in_view_have_figures_wherever_one_scrolls(large: HubProcess, visit: Visits, script: str) -> None:
    page = visit(large.url)
    page.add_init_script(script)
    open_large(page, large.url + "/?view=table&sort=name")
    first = wait_until(lambda: find_row_with_figures(page), "figures of the first hosts", SECONDS)
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    wait_until(lambda: find_row_with_figures(page) not in {"", first}, "figures of the last hosts", SECONDS)


def test_pages_of_one_host_and_of_one_gpu_have_all_of_it(large: HubProcess, visit: Visits) -> None:
    page = open_large(visit(large.url), large.url + "/?view=table&sort=name")
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    last = wait_until(lambda: find_row_with_figures(page), "figures of the last hosts", SECONDS)
    page.evaluate("scrollTo(0, 0)")
    page.get_by_role("searchbox").fill(f"host:{last}")
    page.get_by_role("link", name=re.compile(f"^{last},")).click()
    expect(page.get_by_role("heading", name="System")).to_be_visible(timeout=1000 * SECONDS)
    page.locator("main a[href*='/gpu/']").first.click()
    expect(page.get_by_role("heading", name="All metrics")).to_be_visible(timeout=1000 * SECONDS)


def test_tabs_share_two_streams_and_each_has_the_figures_of_its_hosts(large: HubProcess, chromium: Browser) -> None:
    context = chromium.new_context(viewport={"width": 1440, "height": 900})
    tabs = [context.new_page() for _ in range(3)]
    for at, tab in enumerate(tabs):
        open_large(tab, large.url + "/?view=table&sort=name")
        tab.evaluate(f"scrollTo(0, {at} * 2000)")
    shown = [wait_until(partial(find_row_with_figures, tab), "figures of its own hosts", SECONDS) for tab in tabs]
    assert len(set(shown)) == len(tabs)
    viewers = [line for line in large.get("/metrics").decode().splitlines() if line.startswith("gpudeck_viewers ")]
    assert viewers == ["gpudeck_viewers 2"]
    context.close()


def test_people_have_their_figures(large: HubProcess, visit: Visits) -> None:
    page = open_large(visit(large.url), large.url + "/?view=table")
    page.goto(large.url + "/#/people")
    busiest = max(json.loads(large.get("/api/v1/users"))["users"], key=lambda row: row["gpu_count"])
    row = page.locator(f"tbody tr[data-user='{busiest['user']}']")
    expect(row.locator("[data-name='memory']")).to_contain_text(re.compile(r"\d GiB"), timeout=1000 * SECONDS)
    expect(row.locator("[data-name='processes']")).to_have_text(re.compile(r"^\d+$"))
    expect(row.locator("[data-name='util']")).to_have_text(re.compile(r"^\d+%$"))
    expect(row.locator("[data-name='since']")).not_to_have_text("–")
