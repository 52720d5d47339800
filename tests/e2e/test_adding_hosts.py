"""Hosts that are added and removed on the page, from each source."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from e2e.looking import fleet_of, is_wider_than_its_window, make_envelope
from fakes.hubs import HubProcess, RunningHub, running_hub
from fakes.pushed import send
from fakes.reports import make_gpu
from fakes.waiting import wait_until

pytestmark = pytest.mark.browser
Visits = Callable[..., Page]

WITHOUT_CLIPBOARD = """
  window.kept = navigator.clipboard
  Object.defineProperty(navigator, 'clipboard', { value: undefined })
"""


@pytest.fixture
def named(tmp_path: Path, chromium: Browser) -> Iterator[HubProcess]:
    """A hub below a path prefix whose file names a host that cannot be read, and a list that is not there."""
    (tmp_path / "gpudeck.yaml").write_text(
        "demo: never\nlocal: never\npath_prefix: /gpus\n"
        "hosts:\n  - {name: gpu01, via: ssh, address: 127.0.0.1, port: 1}\n"
        "discovery:\n  hosts_files: [racks.txt]\n  allow_addresses: [127.0.0.0/8]\n"
    )
    with running_hub(tmp_path) as hub:
        yield hub


def open_form(page: Page) -> Locator:
    page.get_by_role("banner").get_by_role("button", name="Add a host").click()
    return page.get_by_role("dialog", name="Add a host")


def fill_ssh(form: Locator, name: str) -> None:
    form.get_by_label("SSH: nothing to install").check()
    form.get_by_role("textbox", name="Name").fill(name)
    form.get_by_role("textbox", name="Address").fill("127.0.0.1")
    form.get_by_role("textbox", name="Port").fill("1")


def ask_to_remove(page: Page, name: str) -> None:
    page.get_by_role("article", name=name).get_by_role("heading").get_by_role("link").click()
    page.get_by_role("button", name="Remove this host…").click()
    page.get_by_role("button", name="Remove", exact=True).click()


def test_a_host_that_reports_by_itself_gets_a_command_and_is_seen_to_report(empty: HubProcess, visit: Visits) -> None:
    page = visit(empty.url, permissions=["clipboard-read", "clipboard-write"])
    page.add_init_script(WITHOUT_CLIPBOARD)
    page.reload()
    page.locator("main").get_by_role("button", name="Add a host").click()
    form = page.get_by_role("dialog", name="Add a host")
    expect(form.get_by_role("textbox", name="Name")).to_be_focused()
    page.keyboard.type("gpu07")
    page.keyboard.press("Enter")
    line = form.locator("code")
    expect(line).to_contain_text("/install.sh")
    expect(form).to_contain_text("It is shown only once")
    form.get_by_role("button", name="copy").click()
    expect(form.get_by_role("button", name="copied")).to_be_visible()
    assert page.evaluate("kept.readText()") == line.inner_text()
    expect(form.locator("[role=status]:not(.toasts)").last).to_contain_text("gpu07 waiting for the first report…")
    token = re.findall(r"echo (\S+) \|", line.inner_text())[0]
    send(empty, make_envelope("gpu07", gpus=[make_gpu(0)]), token)
    expect(form.locator("[role=status]:not(.toasts)").last).to_contain_text("gpu07 reporting: 1× A100-SXM4-80GB")
    page.keyboard.press("Escape")
    expect(form).to_have_count(0)
    expect(page.locator(".card .name")).to_have_text("gpu07")
    assert token not in page.content()


def test_a_host_by_ssh_says_why_it_cannot_be_read_and_is_removed(named: HubProcess, visit: Visits) -> None:
    page = visit(named.url + "/", width=390, height=844)
    form = open_form(page)
    fill_ssh(form, "gpu07")
    page.keyboard.press("Enter")
    expect(form).to_contain_text("gpu07 is now monitored via ssh.")
    expect(form.locator("[role=status]:not(.toasts)")).to_contain_text("gpu07 (127.0.0.1:1) refuses connections")
    assert not is_wider_than_its_window(page)
    form.get_by_role("button", name="Close").click()
    expect(page.get_by_role("banner").get_by_role("button", name="Add a host")).to_be_focused()
    card = page.get_by_role("article", name="gpu07")
    expect(card).to_contain_text("via ssh")
    expect(card.locator(".note")).to_contain_text("refuses connections")
    expect(card.locator("footer")).to_have_count(0)
    ask_to_remove(page, "gpu07")
    expect(page).to_have_url(re.compile(r"#/$"))
    expect(card).to_have_count(0)
    assert [host["name"] for host in fleet_of(named)["hosts"]] == ["gpu01"]


def test_a_host_that_a_file_names_is_not_removed_and_the_file_is_told(named: HubProcess, chromium: Browser) -> None:
    page = chromium.new_page()
    page.goto(named.url + "/")
    page.get_by_role("article", name="gpu01").get_by_role("heading").get_by_role("link").click()
    expect(page.get_by_role("main")).to_contain_text(re.compile(r"Configured in .*gpudeck\.yaml.*\. Remove it there\."))
    expect(page.get_by_role("button", name="Remove this host…")).to_have_count(0)
    page.close()


def test_problems_of_the_hub_are_told_and_can_be_put_away(named: HubProcess, visit: Visits) -> None:
    page = visit(named.url + "/")
    sentence = page.get_by_text("racks.txt")
    expect(sentence).to_be_visible()
    page.get_by_role("button", name="Hide these problems").click()
    expect(sentence).to_have_count(0)


def test_what_the_hub_refuses_stands_at_its_field(empty: HubProcess, chromium: Browser) -> None:
    page = chromium.new_page()
    page.goto(empty.url)
    form = open_form(page)
    name = form.get_by_role("textbox", name="Name")
    page.keyboard.press("Enter")
    expect(form.get_by_role("alert")).to_have_text("Enter a name.")
    page.keyboard.type("gpu 07")
    page.keyboard.press("Enter")
    expect(name).to_have_accessible_description(re.compile("'gpu 07' is no name of a host"))
    expect(name).to_be_focused()
    expect(name).to_have_attribute("aria-invalid", "true")
    page.keyboard.press("Escape")
    expect(form).to_have_count(0)
    page.close()


def test_who_may_not_add_is_told_the_command_instead(empty: HubProcess, chromium: Browser) -> None:
    page = chromium.new_page()
    page.goto(empty.url)
    form = open_form(page)
    fill_ssh(form, "gpu07")
    refusal = {"error": {"code": "forbidden", "message": "vera has the role viewer, and this needs admin"}}
    page.route("**/api/v1/hosts", lambda route: route.fulfill(status=403, json=refusal))
    form.get_by_role("button", name="Add", exact=True).click()
    expect(form.get_by_role("alert")).to_contain_text("Not allowed: vera has the role viewer")
    command = "gpudeck hosts add gpu07 --via ssh --address 127.0.0.1 --port 1"
    expect(form.locator("code")).to_have_text(command)
    page.close()


def test_strangers_are_not_offered_what_they_may_not_do(tmp_path: Path, chromium: Browser, visit: Visits) -> None:
    (tmp_path / "gpudeck.yaml").write_text("demo: never\nlocal: never\nread: open\n")
    with running_hub(tmp_path, "--listen", "0.0.0.0:0") as hub:
        page = visit(re.sub(r"//[^:/]+", "//127.0.0.1", hub.url))
        expect(page.get_by_text("No host has reported yet")).to_be_visible()
        expect(page.get_by_role("button", name="Add a host")).to_have_count(0)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("dialog")).to_contain_text("gpudeck account add NAME --role admin")


def test_a_demo_ends_when_a_host_is_added(tmp_path: Path, chromium: Browser, visit: Visits) -> None:
    (tmp_path / "gpudeck.yaml").write_text("local: never\n")
    with running_hub(tmp_path) as hub:
        wait_until(lambda: fleet_of(hub)["hosts"], "the simulated fleet")
        page = visit(hub.url)
        form = open_form(page)
        expect(form).to_contain_text("This is a demo. It ends when you add a host.")
        page.keyboard.type("gpu07")
        page.keyboard.press("Enter")
        expect(page.get_by_text("demo data", exact=True)).to_have_count(0)
        expect(page.locator(".card .name")).to_have_text("gpu07")


def test_a_demo_that_was_asked_for_says_that_it_stays(demo: RunningHub, visit: Visits) -> None:
    page = visit(demo.url)
    expect(open_form(page)).to_contain_text("If the hub was started with --demo, restart it")
    page.keyboard.press("Escape")
    page.get_by_role("article").first.get_by_role("heading").get_by_role("link").click()
    expect(page.get_by_role("region", name="System")).to_contain_text("Last report")
    expect(page.get_by_role("button", name="Remove this host…")).to_have_count(0)
