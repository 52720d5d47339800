"""Logging in and out, sessions, proxies, and what other sites cannot make a browser do."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from fakes.api_app import ADMIN_TOKEN, make_app, make_auth
from fakes.clock import FakeClock
from fakes.reports import make_busy_gpu, make_envelope
from gpudeck.auth.settings import AuthSettings, ProxySettings
from gpudeck.fleet.hub import Hub
from gpudeck.model.settings import LimitsSettings
from gpudeck.server.admission import AdmissionGate

PASSWORD = "correct horse battery"


class Browser:
    """Keeps cookies, as browsers do, and says from which page it asks."""

    def __init__(self, station: "Station", client: str = "192.0.2.7") -> None:
        self.station = station
        self.client = client
        self.cookies = httpx.Cookies()

    def call(self, method: str, path: str, headers: Any = None, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.station.app, client=(self.client, 40000))
            base = f"{self.station.scheme}://{self.station.name}"
            async with httpx.AsyncClient(transport=transport, base_url=base, cookies=self.cookies) as http:
                answer = await http.request(method, path, headers=_with_origin(base, headers), **options)
                self.cookies = http.cookies
                return answer

        return asyncio.run(ask())

    def log_in(self, name: str = "ada", password: str = PASSWORD) -> httpx.Response:
        return self.call("POST", "/api/v1/login", json={"name": name, "password": password})

    def me(self) -> Any:
        return self.call("GET", "/api/v1/me").json()

    def fleet_status(self) -> int:
        return self.call("GET", "/api/v1/fleet").status_code


def _with_origin(origin: str, headers: Any) -> list[tuple[str, str]]:
    """A list may name a header twice."""
    told = list(httpx.Headers(headers or {}).multi_items())
    return told if "origin" in dict(told) else [("origin", origin), *told]


class Station:
    def __init__(self, folder: Path, settings: AuthSettings | None = None, **options: Any) -> None:
        self.name = "hub.example"
        self.scheme = "http"
        self.hub = Hub(now=FakeClock())
        gpus = [make_busy_gpu(0, "ada"), make_busy_gpu(1, "bob", uuid="GPU-b")]
        self.hub.fleet.apply(make_envelope("gpu01", 1, gpus), via="push", now=self.hub.stream.time)
        self.hub.stream.tick()
        self.auth = make_auth(folder, settings)
        self.app: Any = make_app(self.hub, auth=self.auth, settings=settings, **({"is_readable": False} | options))

    def add(self, name: str, role: Any, password: str | None = PASSWORD) -> None:
        asyncio.run(self.auth.accounts.add(name, role, password))
        self.auth.note_account()


@pytest.fixture
def hub(tmp_path: Path) -> Station:
    station = Station(tmp_path)
    station.add("ada", "user")
    return station


def test_who_logs_in_may_look_until_they_log_out(hub: Station) -> None:
    ada = Browser(hub)
    assert ada.fleet_status() == 401
    answer = ada.log_in()
    assert (answer.status_code, answer.json()["name"], answer.json()["role"]) == (200, "ada", "user")
    assert ada.fleet_status() == 200
    assert ada.me()["logins"] == ["ada"]
    ada.call("POST", "/api/v1/logout")
    assert ada.fleet_status() == 401


def test_cookie_is_for_the_hub_alone(hub: Station) -> None:
    cookie = Browser(hub).log_in().headers["set-cookie"]
    assert cookie.startswith("gpudeck_session=")
    assert {"HttpOnly", "SameSite=lax", "Path=/"} <= {part.strip() for part in cookie.split(";")}


def test_cookie_that_was_taken_before_the_logout_opens_nothing_after_it(hub: Station) -> None:
    ada, thief = Browser(hub), Browser(hub)
    ada.log_in()
    thief.cookies = httpx.Cookies(ada.cookies)
    assert thief.fleet_status() == 200
    ada.call("POST", "/api/v1/logout-everywhere")
    assert thief.fleet_status() == 401


def test_wrong_password_and_unknown_name_get_the_same_answer(hub: Station) -> None:
    wrong = Browser(hub, "192.0.2.1").log_in("ada", "wrong horse battery")
    unknown = Browser(hub, "192.0.2.2").log_in("nobody", "wrong horse battery")
    assert (wrong.status_code, wrong.content) == (unknown.status_code, unknown.content)
    assert wrong.status_code == 401


def test_who_guesses_is_told_to_wait_and_others_are_not(hub: Station) -> None:
    guesser = Browser(hub, "192.0.2.66")
    answers = [guesser.log_in("ada", f"guess number {number}") for number in range(12)]
    assert answers[-1].status_code == 429
    assert int(answers[-1].headers["retry-after"]) > 0
    assert Browser(hub, "192.0.2.9").log_in().status_code == 200


def test_new_password_ends_all_other_sessions(hub: Station) -> None:
    ada, elsewhere = Browser(hub), Browser(hub)
    ada.log_in()
    elsewhere.log_in()
    change = {"old": PASSWORD, "new": "another horse entirely"}
    assert ada.call("POST", "/api/v1/me/password", json=change).status_code == 200
    assert (ada.fleet_status(), elsewhere.fleet_status()) == (200, 401)
    assert Browser(hub).log_in().status_code == 401
    assert Browser(hub).log_in(password="another horse entirely").status_code == 200


def test_old_password_is_asked_for(hub: Station) -> None:
    ada = Browser(hub)
    ada.log_in()
    change = {"old": "not the old one", "new": "another horse entirely"}
    assert ada.call("POST", "/api/v1/me/password", json=change).status_code == 401


def test_sessions_are_listed_and_this_one_is_marked(hub: Station) -> None:
    ada = Browser(hub)
    Browser(hub).log_in()
    ada.log_in()
    sessions = ada.call("GET", "/api/v1/me/sessions").json()["sessions"]
    assert [session["is_this"] for session in sessions].count(True) == 1
    assert len(sessions) == 2


def test_one_session_is_ended_by_its_owner_or_by_an_admin_and_by_nobody_else(hub: Station) -> None:
    for name, role in (("root", "admin"), ("bob", "user")):
        hub.add(name, role)
    ada, phone, bob, root = (Browser(hub) for _ in range(4))
    for browser, name in ((ada, "ada"), (phone, "ada"), (bob, "bob"), (root, "root")):
        browser.log_in(name)
    listed = ada.call("GET", "/api/v1/me/sessions").json()["sessions"]
    other = next(one["id"] for one in listed if not one["is_this"])
    assert bob.call("DELETE", f"/api/v1/me/sessions/{other}").status_code == 404
    assert bob.call("DELETE", f"/api/v1/sessions/{other}").status_code == 403
    assert phone.fleet_status() == 200
    assert ada.call("DELETE", f"/api/v1/me/sessions/{other}").status_code == 200
    assert (ada.fleet_status(), phone.fleet_status()) == (200, 401)
    found = root.call("GET", "/api/v1/sessions").json()["sessions"]
    assert sorted(one["account"] for one in found) == ["ada", "bob", "root"]
    ids = [one["id"] for one in found if one["account"] == "bob"]
    assert root.call("DELETE", f"/api/v1/sessions/{ids[0]}").status_code == 200
    assert bob.fleet_status() == 401
    (entry, *_) = root.call("GET", "/api/v1/audit").json()["entries"]
    assert (entry["who"], entry["action"], entry["subject"]) == ("root", "end session", "bob")


def test_token_cannot_confirm_the_login_of_another_program(hub: Station) -> None:
    ada = Browser(hub)
    ada.log_in()
    secret = ada.call("POST", "/api/v1/me/token", json={"name": "laptop"}).json()["secret"]
    begun = Browser(hub).call("POST", "/api/v1/device", json={"name": "second"}).json()
    token = {"Authorization": f"Bearer {secret}"}
    path = f"/api/v1/device/{begun['user_code']}"
    assert Browser(hub).call("GET", path, token).status_code == 403
    assert Browser(hub).call("POST", path, token, json={"is_approved": True}).status_code == 403
    waiting = Browser(hub).call("POST", "/api/v1/device/token", json={"device_code": begun["device_code"]})
    assert (waiting.status_code, waiting.json()["error"]["code"]) == (400, "authorization_pending")
    assert begun["verification_uri"] is None
    hub.auth.public_url = "https://gpus.example/gpus/"
    again = Browser(hub).call("POST", "/api/v1/device", json={"name": "third"}).json()
    assert again["verification_uri"] == "https://gpus.example/gpus/#/device"
    elsewhere = {"Origin": "http://evil.example"}
    assert ada.call("POST", path, elsewhere, json={"is_approved": True}).status_code == 403
    assert ada.call("POST", path, json={"is_approved": True}).json() == {"redirect": ""}


def test_token_makes_none_that_outlives_it(hub: Station) -> None:
    ada = Browser(hub)
    ada.log_in()
    secret = ada.call("POST", "/api/v1/me/token", json={"name": "laptop", "expire_seconds": 3600}).json()["secret"]
    token, now = {"Authorization": f"Bearer {secret}"}, hub.auth.tokens.now()

    def make(path: str, **asked: Any) -> int:
        return Browser(hub).call("POST", path, token, json={"name": "more", **asked}).status_code

    assert make("/api/v1/me/token") == 403
    assert make("/api/v1/me/token", expire_seconds=600) == 201
    assert make("/api/v1/tokens", role="viewer") == 403
    assert make("/api/v1/tokens", role="calendar", expires_at=now + 7200) == 403
    assert make("/api/v1/tokens", role="viewer", expires_at=now + 600) == 201
    hub.add("root", "admin")
    root = Browser(hub)
    root.log_in("root")
    token["Authorization"] = f"Bearer {root.call('POST', '/api/v1/me/token', json={'name': 'laptop'}).json()['secret']}"
    assert make("/api/v1/tokens", role="agent") == 201


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://hub.example.evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_page_of_another_site_changes_nothing_with_the_visitors_cookie(hub: Station, headers: dict[str, str]) -> None:
    ada = Browser(hub)
    ada.log_in()
    answer = ada.call("POST", "/api/v1/tokens", headers, json={"name": "t", "role": "viewer"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "other_site")


def test_admin_manages_accounts_and_users_do_not(hub: Station) -> None:
    hub.add("root", "admin")
    admin, ada = Browser(hub), Browser(hub)
    admin.log_in("root")
    ada.log_in()
    new = {"name": "Bob", "role": "viewer", "password": PASSWORD}
    assert ada.call("POST", "/api/v1/accounts", json=new).status_code == 403
    assert admin.call("POST", "/api/v1/accounts", json=new).status_code == 201
    assert Browser(hub).log_in("bob").json()["role"] == "viewer"
    assert admin.call("PATCH", "/api/v1/accounts/bob", json={"is_disabled": True}).status_code == 200
    assert Browser(hub, "192.0.2.3").log_in("bob").status_code == 401
    assert admin.call("DELETE", "/api/v1/accounts/root").status_code == 400
    assert admin.call("DELETE", "/api/v1/accounts/bob").status_code == 200
    names = [account["name"] for account in admin.call("GET", "/api/v1/accounts").json()["accounts"]]
    assert names == ["ada", "root"]


def test_tokens_of_a_user_do_no_more_than_the_user(hub: Station) -> None:
    ada = Browser(hub)
    ada.log_in()
    refused = [
        ada.call("POST", "/api/v1/tokens", json={"name": "t", "role": role}).status_code for role in ("admin", "agent")
    ]
    assert refused == [403, 403]
    made = ada.call("POST", "/api/v1/tokens", json={"name": "script", "role": "viewer"}).json()
    script = {"Authorization": f"Bearer {made['secret']}"}
    assert Browser(hub).call("GET", "/api/v1/fleet", script).status_code == 200
    assert made["secret"] not in ada.call("GET", "/api/v1/tokens").text
    assert ada.call("DELETE", f"/api/v1/tokens/{made['token']['id']}").status_code == 200
    assert Browser(hub).call("GET", "/api/v1/fleet", script).status_code == 401


def test_what_was_done_is_in_the_audit_log(hub: Station) -> None:
    hub.add("root", "admin")
    admin = Browser(hub)
    admin.log_in("root", "not this one at all")
    admin.log_in("root")
    made = admin.call("POST", "/api/v1/tokens", json={"name": "gpu07", "role": "agent", "hosts": "gpu07"}).json()
    entries = admin.call("GET", "/api/v1/audit").json()["entries"]
    assert [(entry["action"], entry["outcome"]) for entry in entries] == [
        ("create token", "done"),
        ("log in", "done"),
        ("log in", "refused"),
    ]
    assert made["secret"] not in admin.call("GET", "/api/v1/audit").text


def test_first_admin_is_made_once_with_the_link(tmp_path: Path) -> None:
    hub = Station(tmp_path)
    secret = asyncio.run(hub.auth.first_admin.make())
    browser = Browser(hub)
    assert browser.me()["needs_first_admin"]
    wrong = {"secret": "made-up", "name": "root", "password": PASSWORD}
    assert browser.call("POST", "/api/v1/first-admin", json=wrong).status_code == 403
    right = wrong | {"secret": secret}
    assert browser.call("POST", "/api/v1/first-admin", json=right | {"password": "short"}).status_code == 400
    assert browser.call("POST", "/api/v1/first-admin", json=right).json()["role"] == "admin"
    assert browser.me()["may_administer"]
    assert Browser(hub).call("POST", "/api/v1/first-admin", json=right | {"name": "b"}).status_code == 403


def test_name_of_a_trusted_proxy_logs_in_and_of_anybody_else_does_not(tmp_path: Path) -> None:
    hub = Station(tmp_path, AuthSettings(proxy=ProxySettings(header="Remote-User", addresses=["192.0.2.1"])))
    told = {"Remote-User": "Carol"}
    assert Browser(hub, "192.0.2.1").call("GET", "/api/v1/me", told).json()["name"] == "carol"
    assert Browser(hub, "192.0.2.2").call("GET", "/api/v1/me", told).json()["kind"] == "nobody"


@pytest.mark.parametrize(
    ("commands", "nobody", "ada", "root"),
    [("everyone", 2, 2, 2), ("login", 0, 2, 2), ("admin", 0, 0, 2), ("owner", 0, 1, 2)],
)
def test_commands_are_seen_by_whom_the_settings_say(
    tmp_path: Path, commands: str, nobody: int, ada: int, root: int
) -> None:
    hub = Station(tmp_path, commands=commands, is_readable=True)
    hub.add("ada", "user")
    hub.add("root", "admin")
    people = [Browser(hub), Browser(hub), Browser(hub)]
    people[1].log_in("ada")
    people[2].log_in("root")
    for path in ("/api/v1/fleet", "/api/v1/hosts", "/api/v1/hosts/gpu01", "/api/v1/gpus", "/?term=true&detail=true"):
        seen = [person.call("GET", path).text.count("python train.py") for person in people]
        assert seen == [nobody, ada, root], path


def test_hub_on_loopback_asks_nothing_of_who_sits_there_until_there_are_accounts(tmp_path: Path) -> None:
    hub = Station(tmp_path, is_private=True, is_decided=False)
    hub.name = "127.0.0.1:8042"
    here = Browser(hub, "127.0.0.1")
    assert (here.me()["kind"], here.me()["role"], here.fleet_status()) == ("local", "admin", 200)
    hub.add("root", "admin")
    assert here.fleet_status() == 401


def test_hub_on_loopback_that_is_reached_under_another_name_shows_nothing(tmp_path: Path) -> None:
    hub = Station(tmp_path, is_private=True, is_decided=False)
    answer = Browser(hub, "127.0.0.1").call("GET", "/api/v1/fleet")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "undecided")
    assert "read: open" in answer.json()["error"]["hint"]


def test_proxy_is_trusted_by_its_own_address_and_not_by_the_one_it_speaks_for(tmp_path: Path) -> None:
    settings = AuthSettings(proxy=ProxySettings(header="Remote-User", addresses=["192.0.2.1"]))
    hub = Station(tmp_path, settings)
    hub.app = AdmissionGate(hub.app, LimitsSettings(), proxies=settings.proxy.addresses)
    told = {"Remote-User": "carol", "X-Forwarded-For": "198.51.100.9"}
    assert Browser(hub, "192.0.2.1").call("GET", "/api/v1/me", told).json()["name"] == "carol"
    liar = told | {"X-Forwarded-For": "192.0.2.1"}
    assert Browser(hub, "203.0.113.5").call("GET", "/api/v1/me", liar).json()["kind"] == "nobody"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_page_of_another_site_cannot_log_its_visitor_in(hub: Station, site: str) -> None:
    form = {"Content-Type": "text/plain", "Sec-Fetch-Site": site}
    told = {"name": "ada", "password": PASSWORD}
    answer = Browser(hub).call("POST", "/api/v1/login", form, json=told)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "other_site")
    assert "set-cookie" not in answer.headers


def test_who_comes_through_a_proxy_that_changes_the_hubs_name_can_log_in(hub: Station) -> None:
    headers = {"Origin": "https://gpus.example", "Sec-Fetch-Site": "same-origin"}
    told = {"name": "ada", "password": PASSWORD}
    assert Browser(hub).call("POST", "/api/v1/login", headers, json=told).status_code == 200


def test_token_of_a_calendar_neither_sees_nor_ends_sessions(hub: Station) -> None:
    ada = Browser(hub)
    ada.log_in()
    made = ada.call("POST", "/api/v1/tokens", json={"name": "phone", "role": "calendar"}).json()
    calendar = {"Authorization": f"Bearer {made['secret']}"}
    assert Browser(hub).call("GET", "/api/v1/me/sessions", calendar).status_code == 403
    assert Browser(hub).call("POST", "/api/v1/logout-everywhere", calendar).status_code == 403
    assert ada.fleet_status() == 200


def test_logging_out_with_a_made_up_cookie_leaves_no_trace(hub: Station) -> None:
    stranger = {"Cookie": "gpudeck_session=made-up"}
    assert Browser(hub).call("POST", "/api/v1/logout", stranger).status_code == 200
    assert asyncio.run(hub.auth.audit.list()) == []


@pytest.mark.parametrize(
    "change",
    [
        {"role": "admin", "password": "short"},
        {"role": "admin", "is_disabled": True, "password": "ada"},
        {"is_disabled": True, "password": "short"},
    ],
)
def test_change_of_an_account_is_made_as_a_whole_or_not_at_all(hub: Station, change: dict[str, Any]) -> None:
    hub.add("root", "admin")
    admin, ada = Browser(hub), Browser(hub)
    admin.log_in("root")
    ada.log_in()
    before = admin.call("GET", "/api/v1/accounts").json()
    assert admin.call("PATCH", "/api/v1/accounts/ada", json=change).status_code == 400
    assert admin.call("GET", "/api/v1/accounts").json() == before
    assert ada.fleet_status() == 200
    assert "change account" not in {entry.action for entry in asyncio.run(hub.auth.audit.list())}


def test_change_of_an_account_is_one_entry_of_the_audit_log(hub: Station) -> None:
    hub.add("root", "admin")
    admin = Browser(hub)
    admin.log_in("root")
    change = {"role": "viewer", "is_disabled": False, "password": "another horse entirely"}
    assert admin.call("PATCH", "/api/v1/accounts/Ada", json=change).json()["role"] == "viewer"
    newest = admin.call("GET", "/api/v1/audit").json()["entries"][0]
    told = (newest["action"], newest["subject"], newest["details"])
    assert told == ("change account", "ada", "role viewer, enabled, new password")


def test_new_password_that_will_not_do_leaves_all_sessions_as_they_are(hub: Station) -> None:
    ada, elsewhere = Browser(hub), Browser(hub)
    ada.log_in()
    elsewhere.log_in()
    before = asyncio.run(hub.auth.audit.list())
    for new in ("short", "ada", "\ud800 is no letter"):
        body = json.dumps({"old": PASSWORD, "new": new})
        answer = ada.call("POST", "/api/v1/me/password", {"Content-Type": "application/json"}, content=body)
        assert answer.status_code == 400, new
    assert len(ada.call("GET", "/api/v1/me/sessions").json()["sessions"]) == 2
    assert (ada.fleet_status(), elsewhere.fleet_status()) == (200, 200)
    assert asyncio.run(hub.auth.audit.list()) == before


def test_changed_password_leaves_one_session_and_one_entry_of_the_audit_log(hub: Station) -> None:
    ada = Browser(hub)
    ada.log_in()
    ada.call("POST", "/api/v1/me/password", json={"old": "not the old one", "new": "another horse entirely"})
    ada.call("POST", "/api/v1/me/password", json={"old": PASSWORD, "new": "another horse entirely"})
    assert len(ada.call("GET", "/api/v1/me/sessions").json()["sessions"]) == 1
    entries = asyncio.run(hub.auth.audit.list())
    assert [(entry.action, entry.outcome) for entry in entries] == [
        ("change password", "done"),
        ("change password", "refused"),
        ("log in", "done"),
    ]


def test_first_admin_is_logged_in_though_somebody_at_that_address_guessed_before(tmp_path: Path) -> None:
    hub = Station(tmp_path)
    secret = asyncio.run(hub.auth.first_admin.make())
    browser = Browser(hub)
    for _ in range(20):
        hub.auth.login.throttle.note_failure("root", browser.client)
    answer = browser.call("POST", "/api/v1/first-admin", json={"secret": secret, "name": "root", "password": PASSWORD})
    assert answer.status_code == 201
    assert browser.me()["may_administer"]


@pytest.mark.parametrize(
    "cookies", ['prefs={"a": 1}; %s', "%s; gpudeck_session=of-another-hub", "=;;a b; %s", "xgpudeck_session=x;%s"]
)
def test_cookies_of_others_do_not_hide_the_session(hub: Station, cookies: str) -> None:
    cookie = Browser(hub).log_in().headers["set-cookie"].partition(";")[0]
    assert Browser(hub).call("GET", "/api/v1/fleet", {"Cookie": cookies % cookie}).status_code == 200


def test_token_is_named_once_in_the_audit_log(hub: Station) -> None:
    hub.add("root", "admin")
    root = Browser(hub)
    root.log_in("root")
    made = root.call("POST", "/api/v1/tokens", json={"name": "nightly", "role": "user"}).json()
    for secret in (ADMIN_TOKEN, made["secret"]):
        bearer = {"Authorization": f"Bearer {secret}"}
        assert Browser(hub).call("POST", "/api/v1/tokens", bearer, json={"name": "t", "role": "viewer"}).is_success
    who = [entry.who for entry in asyncio.run(hub.auth.audit.list())]
    assert who == [f"root (token {made['token']['id']})", "token admin", "root", "root"]


@pytest.mark.parametrize("path", ["/api/v1/me", "/api/v1/fleet", "/api/v1/reports", "/"])
@pytest.mark.parametrize("second", [f"Bearer {ADMIN_TOKEN}", "Bearer made-up", "", "Basic eDp5"])
def test_request_with_several_tokens_is_refused(hub: Station, path: str, second: str) -> None:
    headers = [("Authorization", f"Bearer {ADMIN_TOKEN}"), ("Authorization", second)]
    for told in (headers, headers[::-1]):
        answer = Browser(hub).call("POST" if path.endswith("reports") else "GET", path, told)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")
        assert "several Authorization headers" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/api/v1/login", "/api/v1/logout", "/api/v1/first-admin"])
@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "https://evil.example", "null", "http://hub.example:81", "http://hub.example@evil"],
)
def test_page_of_another_site_cannot_log_its_visitor_in_over_plain_http(hub: Station, path: str, origin: str) -> None:
    told = {"name": "ada", "password": PASSWORD}
    answer = Browser(hub).call("POST", path, {"Origin": origin}, json=told)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "other_site")
    assert "set-cookie" not in answer.headers


def test_program_that_says_no_origin_can_log_in(hub: Station) -> None:
    async def ask() -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(hub.app), base_url="http://hub.example") as http:
            told = {"name": "ada", "password": PASSWORD}
            return (await http.post("/api/v1/login", json=told)).status_code

    assert asyncio.run(ask()) == 200


@pytest.mark.parametrize(
    ("scheme", "prefix", "name", "path"),
    [
        ("http", "", "gpudeck_session", "/"),
        ("http", "/gpus", "gpudeck_session", "/gpus/"),
        ("https", "", "__Host-gpudeck_session", "/"),
        ("https", "/gpus", "__Secure-gpudeck_session", "/gpus/"),
    ],
)
def test_cookie_is_called_so_that_a_browser_keeps_it_to_tls_and_to_this_name(
    tmp_path: Path, scheme: str, prefix: str, name: str, path: str
) -> None:
    hub = Station(tmp_path, prefix=prefix)
    hub.add("ada", "user")
    hub.scheme = scheme
    ada = Browser(hub)
    told = {"name": "ada", "password": PASSWORD}
    cookie = ada.call("POST", f"{prefix}/api/v1/login", json=told).headers["set-cookie"]
    parts = {part.strip() for part in cookie.split(";")}
    assert cookie.startswith(f"{name}=")
    assert f"Path={path}" in parts
    assert ("Secure" in parts) == (scheme == "https")
    assert not any(part.startswith("Domain") for part in parts)
    assert ada.call("GET", f"{prefix}/api/v1/fleet").status_code == 200
    assert [one["is_this"] for one in ada.call("GET", f"{prefix}/api/v1/me/sessions").json()["sessions"]] == [True]
    assert ada.call("POST", f"{prefix}/api/v1/logout").headers["set-cookie"].startswith(f'{name}="";')
    assert ada.call("GET", f"{prefix}/api/v1/fleet").status_code == 401


@pytest.mark.parametrize("name", ["gpudeck_session", "__Secure-gpudeck_session", "__host-gpudeck_session"])
def test_cookie_that_a_neighbour_could_have_set_does_not_count_over_tls(hub: Station, name: str) -> None:
    hub.scheme = "https"
    secret = Browser(hub).log_in().headers["set-cookie"].partition(";")[0].partition("=")[2]
    assert Browser(hub).call("GET", "/api/v1/fleet", {"Cookie": f"{name}={secret}"}).status_code == 401
    right = {"Cookie": f"__Host-gpudeck_session={secret}"}
    assert Browser(hub).call("GET", "/api/v1/fleet", right).status_code == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
@pytest.mark.parametrize(
    "headers",
    [
        [("Authorization", "Bearer made-up")],
        [("Authorization", "Basic eDp5")],
        [("Authorization", f"Bearer {ADMIN_TOKEN}"), ("Authorization", "Bearer made-up")],
        [("Cookie", "gpudeck_session=made-up")],
    ],
)
def test_probes_are_answered_whatever_comes_with_them(hub: Station, path: str, headers: Any) -> None:
    assert Browser(hub).call("GET", path, headers).status_code == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes_are_answered_where_nobody_has_decided_who_may_look(tmp_path: Path, path: str) -> None:
    hub = Station(tmp_path, is_private=True, is_decided=False)
    assert Browser(hub, "127.0.0.1").call("GET", path).status_code == 200


def test_readiness_tells_its_counters_to_who_may_look(hub: Station) -> None:
    admin = [("Authorization", f"Bearer {ADMIN_TOKEN}")]
    hosts = [Browser(hub).call("GET", "/readyz", headers).json()["hosts"] for headers in ([], admin)]
    assert hosts == [None, 1]


def test_readiness_tells_strangers_that_events_fail_and_not_why(hub: Station) -> None:
    hub.hub.fleet.set_problems("events", ["some events of the past cannot be read."])
    admin = [("Authorization", f"Bearer {ADMIN_TOKEN}")]
    told = [Browser(hub).call("GET", "/readyz", headers).json() for headers in ([], admin)]
    checks = [{one["name"]: one for one in answer["checks"]}["events"] for answer in told]
    assert [answer["status"] for answer in told] == ["degraded", "degraded"]
    assert [(one["status"], one["problem"]) for one in checks] == [
        ("degraded", ""),
        ("degraded", "some events of the past cannot be read."),
    ]


def test_me_says_whether_a_proxy_tells_who_people_are(tmp_path: Path, hub: Station) -> None:
    (tmp_path / "proxied").mkdir()
    proxy = ProxySettings(header="Remote-User", addresses=["192.0.2.1"])
    proxied = Station(tmp_path / "proxied", AuthSettings(proxy=proxy))
    assert (Browser(hub).me()["has_proxy"], Browser(proxied).me()["has_proxy"]) == (False, True)


def test_account_that_a_proxy_makes_is_in_the_audit_log_with_the_callers_address(tmp_path: Path) -> None:
    settings = AuthSettings(proxy=ProxySettings(header="Remote-User", addresses=["192.0.2.1"]))
    hub = Station(tmp_path, settings)
    hub.app = AdmissionGate(hub.app, LimitsSettings(), proxies=settings.proxy.addresses)
    Browser(hub, "192.0.2.1").call("GET", "/api/v1/me", {"Remote-User": "carol", "X-Forwarded-For": "198.51.100.9"})
    (entry,) = asyncio.run(hub.auth.audit.list())
    assert (entry.who, entry.action, entry.address) == ("carol", "add account", "198.51.100.9")
