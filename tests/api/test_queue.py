"""Standing in line over HTTP: who stands where, whose place it is, what is refused."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from fakes.api_app import ADMIN_TOKEN, make_app, make_auth
from fakes.clock import FakeClock
from fakes.offers import FakeClaims, make_offer
from gpudeck.auth.auth import Auth
from gpudeck.fleet.hub import Hub
from gpudeck.model.settings import LimitsSettings
from gpudeck.queueing.queue import QueueStore, WaitQueue
from gpudeck.queueing.settings import QueueSettings
from gpudeck.server.admission import AdmissionGate


class Site:
    """A hub's ASGI application with a queue, and accounts with a token each."""

    def __init__(self, folder: Path) -> None:
        self.auth: Auth = make_auth(folder)
        self.queue = WaitQueue(QueueStore(self.auth.database), QueueSettings(), FakeClaims())
        self.app: Any = make_app(Hub(now=FakeClock()), auth=self.auth, waiting=self.queue)
        self.tokens = {"admin": ADMIN_TOKEN, "script": "user-token"}

    def add_account(self, name: str) -> None:
        account = asyncio.run(self.auth.accounts.add(name, "user", None))
        _, secret = asyncio.run(self.auth.tokens.create(name, "user", account_id=account.id, created_by="a test"))
        self.tokens[name] = secret

    def call(self, who: str, method: str, path: str = "", body: Any = None) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            headers = {"Authorization": f"Bearer {self.tokens[who]}"}
            async with httpx.AsyncClient(transport=transport, base_url="http://hub.example", headers=headers) as http:
                return await http.request(method, f"/api/v1/queue{path}", json=body)

        return asyncio.run(ask())

    def ask_again_and_again(self, who: str, path: str, times: int) -> list[int]:
        """In one event loop: the queue wakes those who wait in its own."""

        async def ask() -> list[int]:
            transport = httpx.ASGITransport(self.app)
            headers = {"Authorization": f"Bearer {self.tokens[who]}"}
            async with httpx.AsyncClient(transport=transport, base_url="http://hub.example", headers=headers) as http:
                return [(await http.get(f"/api/v1/queue{path}")).status_code for _ in range(times)]

        return asyncio.run(ask())

    def join(self, who: str, **others: Any) -> dict[str, Any]:
        answer = self.call(who, "POST", body={"key": f"the key of {who}"} | others)
        assert answer.status_code == 201, answer.text
        place: dict[str, Any] = answer.json()
        return place


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.add_account("ada")
    made.add_account("bob")
    return made


def test_place_is_told_and_everybody_sees_the_line(site: Site) -> None:
    first = site.join("ada", gpus=2, memory_bytes=40 * 10**9, model="H200", same_host=True, host="gpu07")
    second = site.join("bob")
    assert (first["position"], second["position"], second["granted"], second["estimate_seconds"]) == (1, 2, None, None)
    assert second["estimate_reason"]
    listed = site.call("bob", "GET").json()
    assert [(one["user"], one["position"], one["wanted"]["gpus"]) for one in listed["requests"]] == [
        ("ada", 1, 2),
        ("bob", 2, 1),
    ]


def test_being_kept_waiting_costs_an_address_no_more_than_asking(site: Site) -> None:
    place = site.join("ada")
    site.app = AdmissionGate(site.app, LimitsSettings(requests_per_second=0.01, requests_burst=4), hold=0.0)
    path = f"/{place['id']}?wait=0.2&seen={place['version']}"
    assert site.ask_again_and_again("ada", path, 5) == [200, 200, 200, 200, 429]


def test_account_waits_under_its_own_name_whatever_is_told(site: Site) -> None:
    assert site.join("ada", user="bob")["user"] == "ada"
    assert site.join("script", user="carol")["user"] == "carol"
    assert site.queue.find(1).account == "ada"  # type: ignore[union-attr]


def test_turn_is_told_with_the_gpus(site: Site) -> None:
    number = site.join("ada")["id"]
    asyncio.run(site.queue.step([make_offer("gpu07", 3)]))
    place = site.call("ada", "GET", f"/{number}?wait=5&seen=whatever").json()
    assert (place["position"], place["estimate_seconds"]) == (None, 0)
    assert [(gpu["host"], gpu["uuid"], gpu["label"]) for gpu in place["granted"]["gpus"]] == [
        ("gpu07", "GPU-gpu07-3", "3")
    ]


def test_place_of_somebody_else_is_not_for_others_but_for_admins(site: Site) -> None:
    number = site.join("ada")["id"]
    assert site.call("bob", "GET", f"/{number}").status_code == 403
    assert site.call("script", "DELETE", f"/{number}").status_code == 403
    refused = site.call("bob", "DELETE", f"/{number}")
    assert (refused.status_code, refused.json()["error"]["message"]) == (403, f"place {number} in the queue is ada's.")
    assert site.call("admin", "DELETE", f"/{number}").status_code == 200


def test_place_that_is_gone_is_told_in_a_word_of_its_own(site: Site) -> None:
    number = site.join("ada")["id"]
    assert site.call("ada", "DELETE", f"/{number}").json() == {"status": "done"}
    for method in ("GET", "DELETE"):
        answer = site.call("ada", method, f"/{number}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_request")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"key": "short"},
        {"key": "k" * 65},
        {"key": "with a\0zero"},
        {"key": "long enough", "model": "with a\0zero"},
        {"key": "long enough", "host": "with a\x1bbell"},
        {"key": "long enough", "gpus": 0},
        {"key": "long enough", "gpus": 1025},
        {"key": "long enough", "memory_bytes": -1},
        {"key": "long enough", "model": ""},
        {"key": "long enough", "host": "h" * 257},
        {"key": "long enough", "user": "u" * 65},
        {"key": "long enough", "gpu": 1},
    ],
    ids=str,
)
def test_request_that_makes_no_sense_is_refused(site: Site, body: dict[str, Any]) -> None:
    answer = site.call("ada", "POST", body=body)
    assert answer.status_code == 400
    assert site.queue.list() == []


def test_line_that_is_full_is_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudeck.queueing.queue.MAX_WAITING", 0)
    answer = site.call("ada", "POST", body={"key": "long enough"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "full")


def test_name_that_would_write_on_a_terminal_is_cleaned(site: Site) -> None:
    assert site.join("script", user="ev\x1b[2Jil")["user"] == "ev�[2Jil"
