"""Who may come in, as whom, and what they may do: accounts and tokens on the page of a hub that asks for them."""

import json
import re
import socket
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from e2e.looking import is_wider_than_its_window
from fakes.hubs import HubProcess, running_hub

pytestmark = pytest.mark.browser
Opens = Callable[..., Page]

PASSWORD = "four-random-words"
CLOSED = "read: login\nlocal: never\n"


def first_admin_link(hub: HubProcess) -> str:
    found = re.search(r"http\S+#first-admin=\S+", hub.greeting)
    assert found is not None, hub.greeting
    return found[0]


def call(hub: HubProcess, path: str, body: dict[str, Any], cookie: str = "") -> str:
    """Ask the hub to do something; the cookie that it answers with, if any."""
    headers = {"Content-Type": "application/json", "Cookie": cookie}
    request = urllib.request.Request(f"{hub.url}/api/v1/{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(answer.headers.get("Set-Cookie", "")).partition(";")[0]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[HubProcess]:
    """A hub that shows nothing to strangers: the admin ada, the user uli, the viewer vera."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "gpudeck.yaml").write_text(CLOSED + "people:\n  ada: [ada, ada-l]\n")
    with running_hub(folder, "--demo", "3") as hub:
        secret = first_admin_link(hub).partition("=")[2]
        cookie = call(hub, "first-admin", {"secret": secret, "name": "ada", "password": PASSWORD})
        call(hub, "accounts", {"name": "uli", "role": "user", "password": PASSWORD}, cookie)
        call(hub, "accounts", {"name": "vera", "role": "viewer", "password": PASSWORD}, cookie)
        yield hub


@pytest.fixture
def opened(chromium: Browser) -> Iterator[Opens]:
    """A browser of its own for each page; refusals are no mistakes of a page, scripts that fail are."""
    pages: list[Page] = []
    mistakes: list[str] = []

    def open_page(url: str, width: int = 1440, height: int = 900, **options: Any) -> Page:
        page = chromium.new_context(viewport={"width": width, "height": height}, **options).new_page()
        page.on("pageerror", lambda error: mistakes.append(str(error)))
        page.on("console", lambda message: mistakes.extend(re.findall("Content Security.*", message.text)))
        page.goto(url)
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.context.close()
    assert mistakes == []


def log_in(page: Page, name: str, password: str = PASSWORD) -> None:
    page.get_by_role("textbox", name="Name").fill(name)
    page.get_by_role("textbox", name="Password").fill(password)
    page.keyboard.press("Enter")


def choose(page: Page, name: str, entry: str) -> Locator:
    """Open an entry of somebody's menu."""
    page.get_by_role("banner").get_by_role("button", name=name).click()
    page.get_by_role("list", name="Account").get_by_role("button", name=entry, exact=True).click()
    return page.get_by_role("dialog")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_the_link_of_the_hub_makes_the_first_admin_whose_session_can_end(
    tmp_path: Path, chromium: Browser, opened: Opens
) -> None:
    (tmp_path / "gpudeck.yaml").write_text(CLOSED)
    arguments = ("--listen", f"127.0.0.1:{free_port()}", "--demo", "2")
    with running_hub(tmp_path, *arguments) as hub:
        page = opened(hub.url, width=390, height=844)
        expect(page.get_by_role("heading")).to_have_text("This hub has no accounts yet")
        expect(page.locator("code").last).to_have_text("gpudeck account add NAME --role admin")
        assert not is_wider_than_its_window(page)
        page.goto(first_admin_link(hub))
        expect(page.get_by_role("heading")).to_have_text("The first admin of this hub")
        assert "#" not in page.url
        page.get_by_role("textbox", name="Name").fill("ada")
        page.get_by_role("textbox", name="Password", exact=True).fill("short")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("at least 10 characters")
        page.get_by_role("textbox", name="Password", exact=True).fill(PASSWORD)
        page.get_by_role("textbox", name="again").fill(PASSWORD)
        page.keyboard.press("Enter")
        expect(page.locator(".card").first).to_be_visible()
        assert page.request.post(f"{hub.url}/api/v1/logout-everywhere").ok
    with running_hub(tmp_path, *arguments):
        expect(page.get_by_text("Your session has ended. Log in again.")).to_be_visible(timeout=20_000)
        expect(page.locator(".card")).to_have_count(0)
        log_in(page, "ada")
        expect(page.locator(".card").first).to_be_visible()


def test_a_wrong_password_is_told_and_too_many_have_to_wait(guarded: HubProcess, opened: Opens) -> None:
    page = opened(guarded.url, width=390, height=844, color_scheme="dark")
    password = page.get_by_role("textbox", name="Password")
    expect(page.get_by_role("textbox", name="Name")).to_be_focused()
    expect(page.get_by_role("textbox", name="Name")).to_have_attribute("autocomplete", "username")
    expect(password).to_have_attribute("autocomplete", "current-password")
    log_in(page, "nobody-of-this-name", "a wrong one")
    expect(page.get_by_role("alert")).to_contain_text("The name or the password is wrong.")
    expect(password).to_be_focused()
    expect(password).to_have_value("")
    page.route(
        "**/api/v1/login",
        lambda route: route.fulfill(
            status=429,
            headers={"Retry-After": "2"},
            json={
                "error": {"code": "too_many", "message": "there were too many failed tries. Try again in 2 seconds."}
            },
        ),
    )
    page.keyboard.type("a wrong one")
    page.keyboard.press("Enter")
    expect(page.get_by_text(re.compile(r"Try again in \d s\."))).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("There were too many failed tries.")
    expect(page.get_by_role("button", name="Log in")).to_be_disabled()
    page.unroute("**/api/v1/login")
    expect(page.get_by_role("button", name="Log in")).to_be_enabled()
    log_in(page, "uli")
    expect(page.locator(".card").first).to_be_visible()
