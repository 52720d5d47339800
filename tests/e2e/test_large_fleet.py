"""A thousand hosts: only what can be seen exists."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from e2e.looking import NO_WORKER, count_hosts
from fakes.hubs import HubProcess, running_hub
from fakes.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow]
Visits = Callable[..., Page]

HOSTS = 1000
MAX_NODES = 6000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[HubProcess]:
    folder = tmp_path_factory.mktemp("large")
    # The whole fleet counts as some forty requests (api/limits.py): who asks for it again and again has to wait.
    (folder / "gpudeck.yaml").write_text("limits: {unlimited: [127.0.0.1]}\n")
    with running_hub(folder, "--demo", str(HOSTS)) as hub:
        wait_until(lambda: count_hosts(hub) > 0.95 * HOSTS, "the simulated fleet", seconds=300)
        yield hub


def count_nodes(page: Page) -> int:
    return int(page.evaluate("document.querySelectorAll('*').length"))


@pytest.mark.parametrize("view", ["table", "cards"])
def test_a_large_fleet_scrolls_to_its_end_with_few_nodes(large: HubProcess, visit: Visits, view: str) -> None:
    page = visit(f"{large.url}/?view={view}&sort=name")
    expect(page.locator("[data-host]").first).to_be_visible(timeout=30_000)
    first = page.locator("[data-host]").first.get_attribute("data-host")
    assert count_nodes(page) < MAX_NODES
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    expect(page.locator(f"[data-host='{first}']")).to_have_count(0)
    expect(page.locator("[data-host]").last).to_be_visible()
    assert count_nodes(page) < MAX_NODES


def test_a_large_fleet_begins_as_a_table(large: HubProcess, visit: Visits) -> None:
    page = visit(large.url)
    expect(page.get_by_role("grid", name="Hosts")).to_be_visible(timeout=30_000)

    def agrees() -> bool:
        return page.get_by_role("grid", name="Hosts").get_attribute("aria-rowcount") == str(count_hosts(large) + 1)

    wait_until(agrees, "a row for each host, and the head")


def test_a_search_finds_one_host_among_a_thousand(large: HubProcess, visit: Visits) -> None:
    page = visit(large.url)
    expect(page.get_by_role("grid", name="Hosts")).to_be_visible(timeout=30_000)
    name = page.locator(".row .name a").last.inner_text()
    page.get_by_role("searchbox").fill(f"host:{name}")
    expect(page.locator(".row .name a").first).to_have_text(name)
    assert page.locator(".row").count() < 12


def test_the_keyboard_walks_beyond_what_exists(large: HubProcess, visit: Visits) -> None:
    page = visit(large.url + "/?sort=name")
    expect(page.get_by_role("grid", name="Hosts")).to_be_visible(timeout=30_000)
    page.locator("[data-slot='-1']").first.focus()
    page.keyboard.press("End")
    wait_until(lambda: page.evaluate("scrollY") > 20_000, "the end of a thousand rows")
    expect(page.locator("[data-slot]:focus")).to_be_in_viewport()


@pytest.fixture
def first_look(large: HubProcess, visit: Visits) -> tuple[Page, list[Route]]:
    """A page that has only what came with it: its stream is kept waiting."""
    page, waiting = visit(large.url + "/?sort=name"), list[Route]()

    def keep(route: Route) -> None:
        waiting.append(route)

    page.add_init_script(NO_WORKER)
    page.route("**/api/v1/stream", keep)
    page.reload()
    expect(page.locator(".board")).to_have_attribute("aria-busy", "true", timeout=30_000)
    return page, waiting


def test_the_end_may_be_asked_for_before_it_is_here(first_look: tuple[Page, list[Route]]) -> None:
    page, waiting = first_look
    page.locator("[data-slot='-1']").first.focus()
    page.keyboard.press("End")
    waiting.pop().continue_()
    wait_until(lambda: page.evaluate("scrollY") > 20_000, "the end of a thousand rows")
    expect(page.locator("[data-slot]:focus")).to_be_in_viewport()


def test_nothing_is_said_to_be_missing_before_all_is_here(first_look: tuple[Page, list[Route]]) -> None:
    page, waiting = first_look
    page.get_by_role("searchbox").fill("user:nobody-of-that-name")
    expect(page.get_by_text("Loading the fleet")).to_be_visible()
    waiting.pop().continue_()
    expect(page.get_by_text("No GPU matches")).to_be_visible(timeout=30_000)
