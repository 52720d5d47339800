"""Who may come in, as whom, and what they may do: accounts and tokens on the page of a hub that asks for them."""

import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from e2e.looking import NO_FIRST_LOOK, NO_WORKER, is_wider_than_its_window
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
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.headers.get("Set-Cookie", "")).partition(";")[0]


def post(hub: HubProcess, path: str, body: dict[str, Any]) -> str:
    """What the hub answers to a program."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{hub.url}/api/v1/{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.read().decode())


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[HubProcess]:
    """A hub that shows nothing to strangers: the admin ada, the user uli, the viewer vera."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "gpudeck.yaml").write_text(CLOSED + "users:\n  ada: [ada, ada-l]\n")
    with running_hub(folder, "--demo", "1") as hub:
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


def test_the_link_of_the_hub_makes_the_first_admin(tmp_path: Path, chromium: Browser, opened: Opens) -> None:
    (tmp_path / "gpudeck.yaml").write_text(CLOSED)
    with running_hub(tmp_path, "--demo", "1") as hub:
        page = opened(hub.url, width=390, height=844)
        expect(page.get_by_role("heading")).to_have_text("This hub has no accounts yet")
        expect(page.locator("code").last).to_have_text("gpudeck account add NAME --role admin")
        assert not is_wider_than_its_window(page)
        page.goto(first_admin_link(hub))
        expect(page.get_by_role("heading")).to_have_text("Create the first admin account")
        assert "#" not in page.url
        page.get_by_role("textbox", name="Name").fill("ada")
        page.get_by_role("textbox", name="Password", exact=True).fill("short")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("at least 10 characters")
        page.get_by_role("textbox", name="Password", exact=True).fill(PASSWORD)
        page.get_by_role("textbox", name="Repeat password").fill(PASSWORD)
        page.keyboard.press("Enter")
        expect(page.locator(".card").first).to_be_visible()
        expect(page.get_by_role("banner").get_by_role("button", name="ada")).to_be_visible()


def test_a_session_that_has_ended_leads_back_to_the_door(guarded: HubProcess, opened: Opens) -> None:
    page = opened(guarded.url)
    assert page.request.post(f"{guarded.url}/api/v1/login", data={"name": "vera", "password": PASSWORD}).ok
    # A stream that breaks after its first event, as behind a proxy that closes connections.
    event = f"retry: 200\nevent: snapshot\ndata: {page.request.get(f'{guarded.url}/api/v1/fleet').text()}\n\n"
    page.add_init_script(NO_WORKER)
    page.route("**/api/v1/stream", lambda route: route.fulfill(body=event, content_type="text/event-stream"))
    page.reload()
    expect(page.locator(".card").first).to_be_visible()
    assert page.request.post(f"{guarded.url}/api/v1/logout-everywhere").ok
    page.unroute("**/api/v1/stream")
    expect(page.get_by_text("Your session has ended. Log in again.")).to_be_visible()
    log_in(page, "vera")
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
            headers={"Retry-After": "1"},
            json={"error": {"code": "too_many", "message": "there were too many failed tries. Try again in 1 second."}},
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


def test_an_admin_makes_changes_and_removes_accounts_but_not_the_last_admin(guarded: HubProcess, opened: Opens) -> None:
    page = opened(guarded.url, width=390, height=844)
    log_in(page, "ada")
    people = choose(page, "ada", "Accounts")
    people.get_by_role("button", name="New account").click()
    people.get_by_role("textbox", name="Name").fill("grace")
    people.get_by_role("textbox", name="Password").fill("short")
    page.keyboard.press("Enter")
    expect(people.get_by_role("alert")).to_contain_text("fewer than 10 characters")
    people.get_by_role("textbox", name="Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    grace = people.get_by_role("listitem").filter(has_text="grace")
    expect(grace).to_contain_text("user · never logged in")
    grace.get_by_role("button", name="Edit grace").click()
    people.get_by_role("combobox", name="Role").select_option("viewer")
    people.get_by_role("button", name="Save").click()
    expect(grace).to_contain_text("viewer · never logged in")
    grace.get_by_role("button", name="Edit grace").click()
    grace.get_by_role("button", name="Disable").click()
    expect(grace).to_contain_text("disabled")
    assert not is_wider_than_its_window(page)
    grace.get_by_role("button", name="Edit grace").click()
    grace.get_by_role("button", name="Remove…").click()
    expect(grace.get_by_role("button", name="Cancel")).to_be_focused()
    grace.get_by_role("button", name="Remove", exact=True).click()
    expect(grace).to_have_count(0)
    people.get_by_role("button", name="Edit ada").click()
    people.get_by_role("combobox", name="Role").select_option("viewer")
    people.get_by_role("button", name="Save").click()
    expect(people.get_by_role("alert")).to_contain_text("last")
    page.keyboard.press("Escape")
    log = choose(page, "ada", "Audit log")
    expect(log.get_by_role("listitem").first).to_contain_text("ada: remove account grace")
    expect(log).to_contain_text("ada: add account uli")


def test_a_token_is_shown_once_and_worth_nothing_when_it_is_revoked(guarded: HubProcess, opened: Opens) -> None:
    page = opened(guarded.url)
    log_in(page, "uli")
    tokens = choose(page, "uli", "Your tokens")
    expect(tokens).to_contain_text("No tokens yet.")
    tokens.get_by_role("button", name="New token").click()
    page.keyboard.press("Enter")
    expect(tokens.get_by_role("alert")).to_contain_text("Enter a name that says what the token is for")
    tokens.get_by_role("textbox", name="Name").fill("nightly")
    roles = tokens.get_by_role("combobox", name="Role").locator("option")
    assert [text.partition(":")[0] for text in roles.all_inner_texts()] == ["viewer", "user", "calendar"]
    tokens.get_by_role("combobox", name="Expires").select_option("30 days")
    tokens.get_by_role("button", name="Create").click()
    secret = tokens.locator("code").inner_text()
    reads = {"headers": {"Authorization": f"Bearer {secret}"}}
    assert page.request.get(f"{guarded.url}/api/v1/fleet", **reads).status == 200
    page.keyboard.press("Escape")
    tokens = choose(page, "uli", "Your tokens")
    line = tokens.get_by_role("listitem").filter(has_text="nightly")
    expect(line).to_contain_text("viewer · of uli")
    assert secret not in page.content()
    line.get_by_role("button", name="Revoke nightly").click()
    line.get_by_role("button", name="Revoke", exact=True).click()
    expect(line).to_contain_text("revoked")
    assert page.request.get(f"{guarded.url}/api/v1/fleet", **reads).status == 401


def test_a_viewer_is_offered_little_and_told_who_may_not(guarded: HubProcess, opened: Opens) -> None:
    page = opened(guarded.url)
    log_in(page, "vera")
    expect(page.locator(".card").first).to_be_visible()
    expect(page.get_by_role("button", name="Add a host")).to_have_count(0)
    page.get_by_role("banner").get_by_role("button", name="vera").click()
    expect(page.get_by_role("list", name="Account").get_by_role("button")).to_have_text(
        ["Your account", "About this hub", "Log out"]
    )
    page.keyboard.press("Escape")
    expect(page.get_by_role("list", name="Account")).to_have_count(0)
    # Somebody whose rights were taken away while the page stood open.
    me = page.request.get(f"{guarded.url}/api/v1/me").json()
    rights = {"may_write": True, "may_administer": True}
    page.add_init_script(NO_FIRST_LOOK)
    page.route("**/api/v1/me", lambda route: route.fulfill(json=me | rights))
    page.reload()
    for entry in ("Accounts", "Tokens", "Audit log"):
        dialog = choose(page, "vera", entry)
        expect(dialog.get_by_role("alert")).to_contain_text("Not allowed: vera has the role viewer")
        page.keyboard.press("Escape")


def test_what_somebody_does_not_want_to_hear_is_theirs_to_choose(guarded: HubProcess, opened: Opens) -> None:
    page = opened(guarded.url)
    log_in(page, "uli")
    boxes = choose(page, "uli", "Your account").get_by_role("group", name="Notify me about")
    expect(boxes.get_by_role("checkbox", checked=True)).to_have_count(8)
    for at in range(8):
        # Each is sent by itself, and until it is answered no other can be ticked.
        boxes.get_by_role("checkbox", disabled=False).nth(at).uncheck()
    expect(boxes.get_by_role("checkbox", checked=False, disabled=False)).to_have_count(8)
    boxes.get_by_role("checkbox", name="free GPUs you asked for with “Notify me”").check()
    expect(boxes.get_by_role("checkbox", disabled=False)).to_have_count(8)
    page.reload()
    boxes = choose(page, "uli", "Your account").get_by_role("group", name="Notify me about")
    expect(boxes.get_by_role("checkbox", checked=True)).to_have_count(1)
    mutes = page.evaluate("fetch('api/v1/me/mutes').then(answer => answer.json())")
    assert mutes["rules"] == [
        "ask",
        "digest",
        "gpu_idle",
        "reservation_conflict",
        "reservation_no_show",
        "reservation_overrun",
        "xid",
    ]


def test_saved_views_are_there_wherever_one_logs_in(guarded: HubProcess, opened: Opens) -> None:
    office, home = opened(guarded.url), opened(guarded.url)
    log_in(office, "uli")
    office.get_by_role("button", name="save view…").click()
    office.get_by_label("Save this view as").fill("Mine")
    office.keyboard.press("Enter")
    expect(office.get_by_label("Saved view")).to_have_value("Mine")
    log_in(home, "uli")
    home.get_by_label("Saved view").select_option(" ")
    expect(home.get_by_role("heading", name="Saved for uli")).to_be_visible()
    home.get_by_role("button", name="Default: Mine").click()
    office.goto("about:blank")
    office.goto(guarded.url)
    expect(office).to_have_url(re.compile("view=cards"))


def test_a_password_is_changed_and_somebody_logs_out(guarded: HubProcess, opened: Opens) -> None:
    page = opened(guarded.url)
    log_in(page, "ada")
    own = choose(page, "ada", "Your account")
    expect(own).to_contain_text("Your logins on the hosts: ada, ada-l")
    expect(own.get_by_role("listitem").filter(has_text="(this browser)")).to_have_count(1)
    own.get_by_role("button", name="Change password").click()
    own.get_by_label("Current password").fill("not this one")
    own.get_by_label("New password", exact=True).fill(PASSWORD)
    own.get_by_label("Repeat new password").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(own.get_by_label("Current password")).to_have_accessible_description("Wrong password.")
    own.get_by_label("Current password").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(own.locator("p[role=status]")).to_have_text("Password changed. All other sessions were logged out.")
    expect(own.get_by_role("listitem")).to_have_count(1)
    page.keyboard.press("Escape")
    page.get_by_role("banner").get_by_role("button", name="ada").click()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    assert page.context.cookies() == []


def test_a_terminal_is_logged_in_with_a_code_on_a_phone(guarded: HubProcess, opened: Opens) -> None:
    begun = json.loads(post(guarded, "device", {"name": "gpudeck login on laptop"}))
    page = opened(f"{guarded.url}/#/device?code={begun['user_code'].lower()}", width=390, height=844)
    # Logging in leads to where the link pointed.
    log_in(page, "vera")
    expect(page.get_by_text("gpudeck login on laptop wants to use this hub as vera (viewer)")).to_be_visible()
    expect(page.get_by_text(begun["user_code"])).to_be_visible()
    assert not is_wider_than_its_window(page)
    page.get_by_role("button", name="Confirm").click()
    expect(page.get_by_text("gpudeck login on laptop is logged in as vera. Go back to the terminal.")).to_be_visible()
    made = json.loads(post(guarded, "device/token", {"device_code": begun["device_code"]}))
    assert made["account"] == "vera"
    page.goto(f"{guarded.url}/#/device?code=BCDF-GHJK")
    expect(page.get_by_text("No login waits under this code")).to_be_visible()


def test_an_admin_logs_somebody_else_out(guarded: HubProcess, opened: Opens) -> None:
    vera, ada = opened(guarded.url), opened(guarded.url)
    log_in(vera, "vera")
    expect(vera.locator(".card").first).to_be_visible()
    log_in(ada, "ada")
    dialog = choose(ada, "ada", "Sessions")
    buttons = dialog.get_by_role("button", name=re.compile("Log out vera"))
    expect(buttons.first).to_be_visible()
    for _ in range(buttons.count()):
        before = buttons.count()
        buttons.first.click()
        expect(buttons).to_have_count(before - 1)
    vera.reload()
    expect(vera.get_by_role("heading")).to_have_text("Log in")
