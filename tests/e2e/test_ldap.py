"""A phone logs in with a password of a real directory, behind nginx below /gpus/, and confirms a terminal."""

import json
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from e2e.looking import is_wider_than_its_window
from fakes.hubs import running_hub
from fakes.reverse_proxies import nginx
from fakes.slapd import GROUPS, PASSWORD, PEOPLE, SERVICE, Slapd, group, person, running_slapd

pytestmark = pytest.mark.browser
ENTRIES = person("ada") + group("gpu-admins", "cn=leads") + group("leads", "ada")


def write_config(folder: Path, slapd: Slapd) -> None:
    directory = {
        "urls": [slapd.tls_url],
        "ca_file": str(slapd.authority.ca_file),
        "base": PEOPLE,
        "group_base": GROUPS,
        "bind_dn": SERVICE,
        "bind_password_file": str(slapd.password_file),
        "mapping": {"roles": {"admin": ["gpu-admins"]}, "default_role": "viewer"},
    }
    login = {"local": False, "ldap": directory, "proxy": {"addresses": ["127.0.0.1"]}}
    # YAML reads JSON.
    (folder / "gpudeck.yaml").write_text(json.dumps({"read": "login", "local": "never", "login": login}))


def test_a_phone_logs_in_with_ldap_behind_nginx_and_confirms_a_terminal(tmp_path: Path, chromium: Browser) -> None:
    with running_slapd(tmp_path / "slapd", ENTRIES) as slapd:
        write_config(tmp_path, slapd)
        with running_hub(tmp_path, "--demo", "1") as hub, nginx(tmp_path, hub.url) as url:
            context = chromium.new_context(viewport={"width": 390, "height": 844})
            page = context.new_page()
            begun = httpx.post(f"{url}/api/v1/device", json={"name": "gpudeck login on gpu07"}).json()
            page.goto(f"{url}/?q=free#/device?code={begun['user_code']}")
            expect(page.get_by_role("heading")).to_have_text("Log in")
            assert not is_wider_than_its_window(page)
            page.get_by_role("textbox", name="Name").fill("ada")
            page.get_by_role("textbox", name="Password").fill("wrong")
            page.keyboard.press("Enter")
            expect(page.get_by_role("alert")).to_contain_text("The name or the password is wrong.")
            page.keyboard.type(PASSWORD)
            page.keyboard.press("Enter")
            expect(page.get_by_text("gpudeck login on gpu07 wants to use this hub as ada (admin)")).to_be_visible()
            assert page.url == f"{url}/?q=free#/device?code={begun['user_code']}"
            page.get_by_role("button", name="Confirm").click()
            expect(page.get_by_text("Go back to the terminal.")).to_be_visible()
            made = httpx.post(f"{url}/api/v1/device/token", json={"device_code": begun["device_code"]}).json()
            token = {"Authorization": f"Bearer {made['secret']}"}
            me = httpx.get(f"{url}/api/v1/me", headers=token).json()
            assert (me["name"], me["role"], me["logins"]) == ("ada", "admin", ["ada"])
            page.goto(f"{url}/#/mine")
            expect(page.get_by_role("heading", name="ada", exact=True)).to_be_visible()
            # An admin looks up what the directory says about a user.
            page.get_by_role("banner").get_by_role("button", name="ada").click()
            page.get_by_role("button", name="Login providers").click()
            page.get_by_role("textbox", name="Name").fill("ada")
            page.get_by_role("button", name="Try a login").click()
            expect(page.get_by_text("This user would log in as ada, with the role admin.")).to_be_visible()
            expect(page.get_by_text("the group gpu-admins matches gpu-admins")).to_be_visible()
            assert not is_wider_than_its_window(page)
            slapd.stop()
            page.context.clear_cookies()
            page.goto(f"{url}/#/people")
            page.reload()
            page.get_by_role("textbox", name="Name").fill("ada")
            page.get_by_role("textbox", name="Password").fill(PASSWORD)
            page.keyboard.press("Enter")
            expect(page.get_by_role("alert")).to_contain_text("the directory LDAP cannot be asked")
            context.close()
