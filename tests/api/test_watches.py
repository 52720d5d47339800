"""Watches, mutes and saved views over HTTP: whose they are, what is refused."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from fakes.api_app import ADMIN_TOKEN, make_app, make_auth
from fakes.clock import FakeClock
from gpudeck.auth.saved_views import read_views
from gpudeck.auth.settings import UserSettings
from gpudeck.fleet.hub import Hub


class Site:
    """A hub's ASGI application, and accounts with a token each; ada has a mail address."""

    def __init__(self, folder: Path) -> None:
        self.auth = make_auth(folder)
        self.auth.users.take({"ada": UserSettings(mail="ada@example.org", mute=["gpu_hot"])})
        self.app: Any = make_app(Hub(now=FakeClock()), auth=self.auth)
        self.tokens = {"admin": ADMIN_TOKEN, "script": "user-token"}
        for name in ("ada", "bob"):
            account = asyncio.run(self.auth.accounts.add(name, "user", None))
            made = self.auth.tokens.create(name, "user", account_id=account.id, created_by="a test")
            self.tokens[name] = asyncio.run(made)[1]

    def call(self, who: str, method: str, path: str = "watches", body: Any = None) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            headers = {"Authorization": f"Bearer {self.tokens[who]}"}
            async with httpx.AsyncClient(transport=transport, base_url="http://hub.example", headers=headers) as http:
                return await http.request(method, f"/api/v1/{path}", json=body)

        return asyncio.run(ask())

    def users(self, who: str, query: str = "") -> list[str]:
        return [one["user"] for one in self.call(who, "GET", f"watches{query}").json()["watches"]]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_watch_is_told_as_it_was_asked_for(site: Site) -> None:
    made = site.call("ada", "POST", body={"gpus": 2, "memory_bytes": 40 * 2**30, "expire_seconds": 3600})
    assert made.status_code == 201
    one = made.json()
    assert (one["user"], one["description"], one["fired_at"]) == ("ada", "2 GPUs with 40 GiB", None)
    assert one["expires_at"] - one["created_at"] == pytest.approx(3600)
    assert site.call("ada", "GET").json() == {"watches": [one]}


def test_everybody_sees_their_own_and_admins_all(site: Site) -> None:
    site.call("ada", "POST", body={})
    site.call("bob", "POST", body={})
    assert (site.users("ada"), site.users("bob"), site.users("script")) == (["ada"], ["bob"], [])
    assert (site.users("admin"), site.users("admin", "?mine=true")) == (["ada", "bob"], [])


def test_nobody_watches_as_somebody_else(site: Site) -> None:
    assert site.call("bob", "POST", body={"user": "ada"}).json()["user"] == "bob"
    script = site.call("script", "POST", body={"user": "ada"}).json()
    assert (script["user"].startswith("token "), script["is_sent"]) == (True, False)


def test_admin_without_an_account_watches_as_the_login_of_the_machine(site: Site) -> None:
    one = site.call("admin", "POST", body={"user": "ada"}).json()
    assert (one["user"], one["is_sent"]) == ("ada", True)


def test_it_is_said_whether_somebody_can_be_told(site: Site) -> None:
    assert site.call("ada", "POST", body={}).json()["is_sent"] is True
    assert site.call("bob", "POST", body={}).json()["is_sent"] is False


def test_watch_is_removed_by_its_owner_and_by_admins_alone(site: Site) -> None:
    site.call("ada", "POST", body={"gpus": 1})
    site.call("ada", "POST", body={"gpus": 2})
    assert site.call("bob", "DELETE", "watches/1").status_code == 403
    assert site.call("ada", "DELETE", "watches/1").status_code == 200
    assert site.call("admin", "DELETE", "watches/2").status_code == 200
    gone = site.call("ada", "DELETE", "watches/1")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "unknown_watch")


@pytest.mark.parametrize(
    "body",
    [
        {"gpus": 0},
        {"gpus": 10**6},
        {"memory_bytes": -1},
        {"expire_seconds": 1},
        {"expire_seconds": 1e12},
        {"model": ""},
        {"model": "\x00"},
        {"colour": "green"},
        {"gpus": "two"},
    ],
)
def test_wish_that_makes_no_sense_is_refused(site: Site, body: dict[str, Any]) -> None:
    assert site.call("ada", "POST", body=body).status_code == 400


def test_mutes_are_chosen_by_oneself_and_stand_beside_those_of_the_settings(site: Site) -> None:
    assert site.call("ada", "GET", "me/mutes").json() == {"rules": [], "by_settings": ["gpu_hot"]}
    chosen = site.call("ada", "PUT", "me/mutes", {"rules": ["watch", "xid", "watch"]})
    assert chosen.json() == {"rules": ["watch", "xid"], "by_settings": ["gpu_hot"]}
    assert site.call("bob", "GET", "me/mutes").json() == {"rules": [], "by_settings": []}
    assert site.call("ada", "PUT", "me/mutes", {"rules": ["gpu_htot"]}).status_code == 400
    assert site.call("ada", "GET", "me/mutes").json()["rules"] == ["watch", "xid"]
    assert site.call("ada", "PUT", "me/mutes", {"rules": []}).json()["rules"] == []


@pytest.mark.parametrize("rules", [["<script>"], [""], ["x"] * 101, "xid", None])
def test_mutes_that_make_no_sense_are_refused(site: Site, rules: Any) -> None:
    assert site.call("ada", "PUT", "me/mutes", {"rules": rules}).status_code == 400


def test_saved_views_are_those_of_the_account_wherever_it_logs_in(site: Site) -> None:
    views = [
        {"name": "free H200", "href": "?q=free+h200", "is_default": True},
        {"name": "month", "href": "#/history?range=30d"},
    ]
    assert site.call("ada", "GET", "me/views").json() == {"views": None}
    assert site.call("ada", "PUT", "me/views", {"views": views}).status_code == 200
    kept = [views[0], {**views[1], "is_default": False}]
    assert site.call("ada", "GET", "me/views").json() == {"views": kept}
    assert site.call("bob", "GET", "me/views").json() == {"views": None}
    assert site.call("script", "GET", "me/views").status_code == 403
    assert site.call("ada", "PUT", "me/views", {"views": []}).json() == {"views": []}
    assert site.call("ada", "GET", "me/views").json() == {"views": []}


@pytest.mark.parametrize(
    "views",
    [
        None,
        [{"name": "x", "href": "javascript:alert(1)"}],
        [{"name": "x", "href": "https://example.org"}],
        [{"name": "x", "href": "?q=a b"}],
        [{"name": "x", "href": "?q=a\n"}],
        [{"name": "x", "href": "?" + "q" * 2000}],
        [{"name": "", "href": "?q=a"}],
        [{"name": " x", "href": "?q=a"}],
        [{"name": "x" * 61, "href": "?q=a"}],
        [{"name": "x", "href": "?q=a"}, {"name": "x", "href": "?q=b"}],
        [{"name": name, "href": "?q=a", "is_default": True} for name in "ab"],
        [{"name": str(number), "href": "?q=a"} for number in range(51)],
        [{"name": "x", "href": "?q=a", "colour": "green"}],
    ],
)
def test_saved_views_that_make_no_sense_are_refused(site: Site, views: Any) -> None:
    assert site.call("ada", "PUT", "me/views", {"views": views}).status_code == 400
    assert site.call("ada", "GET", "me/views").json() == {"views": None}


def test_saved_views_go_with_their_account(site: Site) -> None:
    site.call("ada", "PUT", "me/views", {"views": [{"name": "mine", "href": "?q=ada"}]})
    asyncio.run(site.auth.accounts.remove("ada"))
    again = asyncio.run(site.auth.accounts.add("ada", "user", None))
    assert asyncio.run(read_views(site.auth.database, again.id)) is None
