"""The fleet as text over HTTP: what curl may ask for, and what it is told when it asks for what is not there."""

import asyncio
import re
from typing import Any

import httpx
import pytest

from fakes.api_app import AGENT_TOKEN, make_app
from fakes.clock import FakeClock
from fakes.reports import make_busy_gpu, make_envelope
from gpudeck.fleet.hub import Hub


class Api:
    """The ASGI application of a hub that tests report to directly."""

    def __init__(self, *, is_readable: bool = True) -> None:
        self.hub = Hub(now=FakeClock())
        self.app: Any = make_app(self.hub, is_readable=is_readable)

    def report(self, **facts: Any) -> None:
        self.hub.fleet.apply(make_envelope(**facts), via="push", now=self.hub.stream.time)
        self.hub.stream.tick()

    def get(self, path: str, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://hub") as client:
                return await client.get(path, **options)

        return asyncio.run(ask())


@pytest.fixture
def api() -> Api:
    return Api()


CURL = {"User-Agent": "curl/8"}


def test_terminal_may_ask_for_one_host(api: Api) -> None:
    api.report(host="gpu01")
    api.report(host="gpu02")
    answer = api.get("/gpu02", headers=CURL)
    assert (answer.status_code, "gpu01" in answer.text, "gpu02" in answer.text) == (200, False, True)
    assert answer.text == api.get("/gpu02?term=true").text


def test_host_that_nobody_knows_is_a_404_in_text_with_names_that_are_near(api: Api) -> None:
    api.report(host="gpu01")
    answer = api.get("/gpu99%1b[2J", headers=CURL)
    assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (404, "text/plain")
    assert answer.text == "no host is called gpu99\ufffd[2J. Without a name all hosts are shown.\n"
    assert api.get("/gpu11", headers=CURL).text == "no host is called gpu11. Did you mean gpu01?\n"


def test_browser_that_asks_for_a_host_gets_no_page_of_it(api: Api) -> None:
    api.report(host="gpu01")
    answer = api.get("/gpu01", headers={"User-Agent": "Mozilla/5.0"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("", {"gpu01", "gpu02", "gpu03"}),
        ("?free", {"gpu01"}),
        ("?free=true", {"gpu01"}),
        ("?free=false", {"gpu01", "gpu02", "gpu03"}),
        ("?user=alice", {"gpu02"}),
        ("?user=ali", set()),
        ("?q=busy+-alice", {"gpu03"}),
        ("?q=gpu02+gpu03", {"gpu02", "gpu03"}),
        ("?free&q=user:bob", set()),
        ("?q=busy&sort=name&view=cards", {"gpu02", "gpu03"}),
    ],
)
def test_terminal_may_ask_for_a_part(api: Api, query: str, shown: set[str]) -> None:
    api.report(host="gpu01")
    api.report(host="gpu02", gpus=[make_busy_gpu(user="alice")])
    api.report(host="gpu03", gpus=[make_busy_gpu(user="bob")])
    text = api.get(f"/{query}", headers=CURL).text
    assert set(re.findall(r"gpu0\d", text)) == shown
    assert ("Nothing matches." in text) == (not shown)


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("fre", "did you mean free?"),
        ("free=maybe", "free has to be true or false, not 'maybe'"),
        ("columns=wide", "columns has to be a number of columns, not 'wide'"),
        ("refresh=soon", "refresh has to be 1 to 86400 seconds, not 'soon'"),
        ("refresh=0", "refresh has to be 1 to 86400 seconds, not '0'"),
        ("refresh=00000000099999999", "refresh has to be 1 to 86400 seconds"),
        ("color=red", "color has to be never, always or auto, not 'red'"),
        ("q=%3Elots", "'>lots' is not understood"),
        (f"user={'x' * 300}", "user is longer than 256 characters"),
        ("%1b[2J=1", "there is no parameter '\ufffd[2J'"),
    ],
)
def test_parameter_that_says_nothing_is_told_in_text(api: Api, query: str, told: str) -> None:
    answer = api.get(f"/?{query}", headers=CURL)
    assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (400, "text/plain")
    assert told in answer.text


@pytest.mark.parametrize(
    ("query", "term", "is_coloured"),
    [
        ("", "", False),
        ("?color=auto", "", False),
        ("?color=always", "", True),
        ("?color=always", "dumb", True),
        ("", "xterm-256color", True),
        ("", "dumb", False),
        ("?color=never", "xterm-256color", False),
    ],
)
def test_text_has_colours_where_they_are_asked_for(api: Api, query: str, term: str, is_coloured: bool) -> None:
    api.report()
    answer = api.get(f"/{query}", headers=CURL | {"Term": term})
    assert ("\x1b[32m" in answer.text) == is_coloured
    assert answer.headers["vary"] == "User-Agent, Term"


@pytest.mark.parametrize(("query", "widest"), [("columns=60", 60), ("columns=1", 20), ("columns=99999999999", 1000)])
def test_text_is_as_wide_as_asked_within_reason(api: Api, query: str, widest: int) -> None:
    api.report(host="a-host-with-a-rather-long-name", gpus=[make_busy_gpu()])
    lines = api.get(f"/?{query}&detail=true", headers=CURL).text.splitlines()
    assert max(map(len, lines)) <= widest


def test_people_are_a_line_each_in_place_of_the_gpus(api: Api) -> None:
    api.report(host="gpu01", gpus=[make_busy_gpu(0, "ada"), make_busy_gpu(1, "ada")])
    text = api.get("/?users", headers=CURL).text
    assert text.splitlines()[1].split() == ["ada", "40.0", "1", "gpu01-0,1"]
    assert api.get("/?term=true&users=true").text == text
    (person,) = api.get("/api/v1/users").json()["users"]
    assert (person["user"], person["gpu_count"], person["gpus"]) == ("ada", 2, ["gpu01-0,1"])


def test_browser_asks_for_the_text_again_where_that_is_wanted(api: Api) -> None:
    assert api.get("/?term=true&refresh=5").headers["refresh"] == "5"
    assert "refresh" not in api.get("/?term=true").headers


@pytest.mark.parametrize("path", ["/", "/gpu01", "/?free"])
@pytest.mark.parametrize("agent", ["curl/8", "Wget/1.21", "HTTPie/3"])
def test_terminal_is_told_in_text_that_it_has_to_log_in(path: str, agent: str) -> None:
    answer = Api(is_readable=False).get(path, headers={"User-Agent": agent})
    assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (401, "text/plain")
    assert answer.text.startswith("this hub shows its fleet only to users who are logged in. Send a token (curl -H ")
    assert answer.text.count("\n") == 1


@pytest.mark.parametrize(
    ("path", "agent", "kind"),
    [
        ("/", "curl/8", "text/plain"),
        ("/gpu01?detail=true", "curl/8", "text/plain"),
        ("/?term=true", "Mozilla/5.0", "text/plain"),
        ("/?term=false", "curl/8", "application/json"),
        ("/", "Mozilla/5.0", "application/json"),
        ("/metrics", "curl/8", "application/json"),
        ("/api/v1/fleet", "curl/8", "application/json"),
    ],
)
def test_token_that_nobody_knows_is_told_in_text_where_text_is_read(path: str, agent: str, kind: str) -> None:
    answer = Api().get(path, headers={"User-Agent": agent, "Authorization": "Bearer wrong"})
    assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (401, kind)
    assert "the token is unknown to this hub, expired or revoked" in answer.text


def test_agents_token_is_told_in_text_that_it_may_not_look() -> None:
    answer = Api(is_readable=False).get("/", headers=CURL | {"Authorization": f"Bearer {AGENT_TOKEN}"})
    assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (403, "text/plain")
    assert "this needs the role viewer. Use a token with the role viewer, or the login of an account.\n" in answer.text
