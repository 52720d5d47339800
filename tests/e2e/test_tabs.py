"""Many tabs of one browser: a browser opens six connections to a site, and a stream keeps one for good."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from e2e.looking import NO_WORKER, count_hosts, fleet_of
from fakes.hubs import HubProcess, running_hub
from fakes.ports import free_port
from fakes.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow]
TABS = 12
NO_LOCKS = "Object.defineProperty(Navigator.prototype, 'locks', { get: () => undefined })"
NOT_SEEN = """
Object.defineProperty(Document.prototype, 'hidden', { get: () => window.isHidden ?? false })
window.hide = isHidden => { window.isHidden = isHidden; document.dispatchEvent(new Event('visibilitychange')) }
const wait = window.setTimeout
window.setTimeout = (act, delay, ...rest) => wait(act, delay === 60000 ? 100 : delay, ...rest)
const repeat = window.setInterval
window.setInterval = (act, delay, ...rest) => repeat(act, delay === 60000 ? 500 : delay, ...rest)
"""
"""A headless browser shows every tab: which one is seen is told here, and a minute in the background is short."""


@pytest.fixture
def own_hub(tmp_path: Path, chromium: Browser) -> Iterator[HubProcess]:
    """A hub of one's own: who looks at it is counted."""
    with running_hub(tmp_path, "--demo", "6", "--listen", f"127.0.0.1:{free_port()}") as hub:
        wait_until(lambda: count_hosts(hub) >= 5, "the simulated fleet")
        yield hub


@pytest.fixture
def tabs(chromium: Browser, own_hub: HubProcess) -> Iterator[Callable[..., list[Page]]]:
    """Opens tabs of one browser: `tabs(count, script)`; the script runs in each before the page's own."""
    contexts: list[BrowserContext] = []

    def open_tabs(count: int, script: str = "") -> list[Page]:
        contexts.append(chromium.new_context())
        contexts[0].add_init_script(script or "void 0")
        pages = [contexts[0].new_page() for _ in range(count)]
        for page in pages:
            page.goto(own_hub.url)
        return pages

    yield open_tabs
    for context in contexts:
        context.close()


def viewers(hub: HubProcess) -> int:
    found = re.search(r"^gpudeck_viewers (\d+)", hub.get("/metrics").decode(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def expect_live(pages: list[Page]) -> None:
    for page in pages:
        expect(page.locator("[data-host]").first).to_be_visible(timeout=20_000)
        expect(page.locator(".live.live")).to_have_text("live", timeout=20_000)


def remember(page: Page, word: str = "seen") -> None:
    """Mark the moment: `changed` tells whether the page's figures moved since."""
    page.evaluate(f"window.{word} = document.querySelector('main').innerText")


def changed(page: Page, word: str = "seen") -> bool:
    return bool(page.evaluate(f"document.querySelector('main').innerText !== window.{word}"))


@pytest.mark.parametrize("script", ["", NO_WORKER], ids=["worker", "leader"])
def test_a_dozen_tabs_share_one_stream(own_hub: HubProcess, tabs: Callable[..., list[Page]], script: str) -> None:
    pages = tabs(TABS, script)
    expect_live(pages)
    # A tab that comes later reads one snapshot from a connection of its own.
    wait_until(lambda: viewers(own_hub) == 1, "one stream for all")
    for page in pages:
        remember(page)
    for page in pages:
        wait_until(lambda page=page: changed(page), "a change in every tab")  # type: ignore[misc]
    assert viewers(own_hub) == 1


def test_without_either_each_tab_has_a_stream(own_hub: HubProcess, tabs: Callable[..., list[Page]]) -> None:
    expect_live(tabs(2, NO_WORKER + "\n" + NO_LOCKS))
    assert viewers(own_hub) == 2


@pytest.mark.parametrize("script", ["", NO_WORKER], ids=["worker", "leader"])
def test_the_first_tab_is_closed_and_nobody_notices(
    own_hub: HubProcess, tabs: Callable[..., list[Page]], script: str
) -> None:
    first, *others = tabs(3, script)
    expect_live([first, *others])
    for page in others:
        page.evaluate(
            "window.alarms = 0; new MutationObserver(() => {"
            " if (document.querySelector('.live.live') === null) window.alarms++"
            "}).observe(document.body, { childList: true, subtree: true, attributes: true })"
        )
    first.close()
    wait_until(lambda: viewers(own_hub) == 1, "one stream again")
    for page in others:
        remember(page)
        wait_until(lambda page=page: changed(page), "a change after the first is gone")  # type: ignore[misc]
        page.wait_for_timeout(4_500)  # longer than silence stays unnoticed
        assert page.evaluate("window.alarms") == 0


@pytest.mark.parametrize("script", ["", NO_WORKER], ids=["worker", "leader"])
def test_every_tab_is_back_after_the_hub(tmp_path: Path, chromium: Browser, script: str) -> None:
    listen = ("--listen", f"127.0.0.1:{free_port()}", "--demo", "6")
    context = chromium.new_context()
    context.add_init_script(script or "void 0")
    pages = [context.new_page() for _ in range(3)]
    with running_hub(tmp_path, *listen) as hub:
        wait_until(lambda: count_hosts(hub) >= 5, "the simulated fleet")
        for page in pages:
            page.goto(hub.url)
        expect_live(pages)
    for page in pages:
        expect(page.get_by_role("alert")).to_contain_text("No connection to the hub", timeout=15_000)
    with running_hub(tmp_path, *listen) as hub:
        for page in pages:
            expect(page.locator(".live.live")).to_have_text("live", timeout=30_000)
            expect(page.get_by_role("alert")).to_have_count(0)
        wait_until(lambda: viewers(hub) == 1, "one stream again")
    context.close()


@pytest.mark.parametrize("script", ["", NO_WORKER], ids=["worker", "leader"])
def test_a_tab_that_nobody_sees_lets_go_and_catches_up(
    own_hub: HubProcess, tabs: Callable[..., list[Page]], script: str
) -> None:
    [page] = tabs(1, f"{script}\n{NOT_SEEN}")
    expect_live([page])
    page.evaluate("window.hide(true)")
    wait_until(lambda: viewers(own_hub) == 0, "a stream that is let go")
    with page.expect_response("**/api/v1/totals"):
        expect(page).to_have_title(re.compile(r"^\d+ free"))
    wait_until(lambda: page.title().startswith(f"{fleet_of(own_hub)['totals']['free']} free"), "the number of now")
    expect(page.get_by_role("alert")).to_have_count(0)
    page.evaluate("window.hide(false)")
    expect_live([page])
    expect(page).to_have_title(re.compile(r"^\d+ free"))
    wait_until(lambda: viewers(own_hub) == 1, "its stream")
