"""A phone logs in through two real providers, behind nginx below /gpus/."""

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from e2e.looking import is_wider_than_its_window
from fakes.oidc_hub import MAPPING, HubPlace, entry
from fakes.oidc_providers import node_provider, prepare_canaille
from fakes.reverse_proxies import nginx

pytestmark = pytest.mark.browser
PROXIED = "  proxy: {addresses: [127.0.0.1]}"


def log_in_at_node(page: Page) -> None:
    page.get_by_role("button", name="Log in with Node account").click()
    page.locator("[name=login]").fill("ada")
    page.locator("[name=password]").fill("any")
    page.get_by_role("button", name="Sign-in").click()
    page.get_by_role("button", name="Continue").click()


def log_in_at_canaille(page: Page) -> None:
    page.get_by_role("button", name="Log in with Canaille account").click()
    page.locator("[name=login]").fill("grace")
    page.keyboard.press("Enter")
    page.locator("[name=password]").fill("correct horse")
    page.keyboard.press("Enter")


def see_mine(page: Page, url: str, name: str) -> None:
    page.goto(f"{url}/#/mine")
    expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()
    assert not is_wider_than_its_window(page)


def test_a_phone_logs_in_through_two_providers_behind_nginx(tmp_path: Path, chromium: Browser, iam_server: Any) -> None:
    place = HubPlace(tmp_path)
    with nginx(tmp_path, place.url) as url, node_provider(tmp_path, url) as node:
        issuer, _, _ = prepare_canaille(iam_server, f"{url}/api/v1/login/oidc/canaille/callback")
        by_mail = f"{MAPPING}        name_claim: email\n        trust_email: true\n"
        entries = [
            entry("node", node.issuer, tmp_path / "s1"),
            entry("canaille", issuer, tmp_path / "s2", by_mail),
        ]
        context = chromium.new_context(viewport={"width": 390, "height": 844})
        page = context.new_page()
        with place.running(*entries, f"\n{PROXIED}", public_url=url):
            page.goto(f"{url}/?q=free#/people")
            expect(page.get_by_role("button", name="Log in with Node account")).to_be_visible()
            assert not is_wider_than_its_window(page)
            log_in_at_node(page)
            expect(page.get_by_role("banner").get_by_role("button", name="ada")).to_be_visible()
            assert page.url == f"{url}/?q=free#/people"
            me = page.request.get(f"{url}/api/v1/me").json()
            assert (me["role"], me["logins"], me["provider"]) == ("admin", ["ada"], "Node account")
            see_mine(page, url, "ada")
            # Out here and at the provider, which sends the browser back.
            page.get_by_role("banner").get_by_role("button", name="ada").click()
            page.get_by_role("button", name="Log out, also of Node account").click()
            page.get_by_role("button", name=re.compile("yes", re.IGNORECASE)).first.click()
            expect(page.get_by_role("button", name="Log in with Canaille account")).to_be_visible()
            log_in_at_canaille(page)
            expect(page.get_by_role("banner").get_by_role("button", name="grace")).to_be_visible()
            assert page.request.get(f"{url}/api/v1/me").json()["role"] == "user"
            see_mine(page, url, "grace")
            # A login that fails is explained where the next one begins.
            page.context.clear_cookies()
            page.goto(f"{url}/api/v1/login/oidc/node/callback?code=of-another&state=of-another")
            expect(page.get_by_role("status")).to_contain_text("this login was not begun in this browser")
            expect(page.get_by_role("button", name="Log in with Node account")).to_be_visible()
            assert not is_wider_than_its_window(page)
        context.close()
