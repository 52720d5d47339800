"""The page in a real Chromium, fed by a real hub."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from e2e.looking import DEMO_HOSTS, Visit, count_hosts
from fakes.hubs import HubProcess, RunningHub, running_hub, shared_hub
from fakes.still_fleet import running_still_hub
from fakes.waiting import wait_until

CHROMIUM_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # One process that draws and one for all pages take a seventh less CPU time than one each.
    "--in-process-gpu",
    "--renderer-process-limit=1",
]
# Playwright's 5 s are too few for a page on a machine that is busy with other tests.
expect.set_options(timeout=30_000)


def find_chromium() -> str | None:
    """The headless shell, if there is one: without the windows of a whole browser a page takes 40 % of the CPU time.
    Debian and Ubuntu name the browser differently."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser")
    return next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    path = find_chromium()
    if path is None:
        pytest.skip("no chromium here (Debian, Ubuntu: apt install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[RunningHub]:
    """A hub with a simulated fleet and its last day, one for all tests that only look at it, in all workers. Which of
    its GPUs is free, and whose the others are, is a matter of the hour: a test that needs one of them uses `still`."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "demo"
    folder.mkdir(exist_ok=True)
    # Tests look far more often than people do, and all from one address.
    (folder / "gpudeck.yaml").write_text("limits: {unlimited: [127.0.0.1]}\n")
    with shared_hub(folder, "--demo", str(DEMO_HOSTS), "--demo-days", "1") as hub:
        wait_until(lambda: count_hosts(hub) >= DEMO_HOSTS - 2, "the simulated fleet")
        yield hub


@pytest.fixture(scope="session")
def still(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[HubProcess]:
    """A hub with a fleet in which nothing happens, one for all tests that only look."""
    with running_still_hub(tmp_path_factory.mktemp("still")) as hub:
        yield hub


@pytest.fixture
def empty(tmp_path: Path, chromium: Browser) -> Iterator[HubProcess]:
    """A hub that shows only what a test sends to it."""
    (tmp_path / "gpudeck.yaml").write_text("demo: never\nlocal: never\n")
    with running_hub(tmp_path) as hub:
        yield hub


@contextlib.contextmanager
def visiting(chromium: Browser) -> Iterator[Callable[..., Page]]:
    """Opens a page: `visit(url, width=390, color_scheme="dark")`. Every visit has to end without a mistake."""
    visits: list[Visit] = []

    def open_page(url: str, width: int = 1440, height: int = 900, **options: object) -> Page:
        context = chromium.new_context(viewport={"width": width, "height": height}, **options)  # type: ignore[arg-type]
        visits.append(Visit(context.new_page(), url))
        visits[-1].open()
        return visits[-1].page

    yield open_page
    for each in visits:
        each.page.context.close()
        assert each.mistakes == []
        assert each.strangers == []


@pytest.fixture
def visit(chromium: Browser) -> Iterator[Callable[..., Page]]:
    with visiting(chromium) as open_page:
        yield open_page


@pytest.fixture(scope="module")
def visit_once(chromium: Browser) -> Iterator[Callable[..., Page]]:
    """For a page that several tests of a file only look at: to load it costs a second or two of CPU time."""
    with visiting(chromium) as open_page:
        yield open_page
