"""Asking the owner of an idle GPU: who gets a message, who cannot be asked, and how often."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from fakes.api_app import make_app, make_auth
from fakes.reports import make_busy_gpu, make_envelope, make_gpu, make_process
from gpudeck.alerts.notifiers.rendering import Message
from gpudeck.auth.settings import UserSettings
from gpudeck.fleet.hub import Hub
from gpudeck.model import clock
from gpudeck.model.report import GpuReading

GIB = 2**30
MAIL = {name: UserSettings(mail=f"{name}@example.org") for name in ("bob", "carol", "dora")}


def make_idle(index: int, now: float, *users: str) -> GpuReading:
    processes = [make_process(pid, user=user, started_at=now - 20_000) for pid, user in enumerate(users, start=1)]
    metrics = {"utilization_percent": 0, "memory_used_bytes": 20 * GIB}
    return make_gpu(index, uuid=f"GPU-{index}", processes=processes, metrics=metrics, idle_seconds=3 * 3600.0 + 1)


class Lobby:
    """gpu01 has five GPUs: 0 idle (bob), 1 busy (bob), 2 idle (bob and carol), 3 idle (eve, who has no channel), 4 idle
    (dora, who does not want to be asked). ada asks."""

    def __init__(self, folder: Path) -> None:
        self.auth = make_auth(folder)
        self.auth.users.take(MAIL | {"dora": UserSettings(mail="dora@example.org", mute=["ask"])})
        self.hub = Hub()
        now = clock.wall()
        gpus = [
            make_idle(0, now, "bob"),
            make_busy_gpu(1, "bob", uuid="GPU-1"),
            make_idle(2, now, "bob", "carol"),
            make_idle(3, now, "eve"),
            make_idle(4, now, "dora"),
            make_gpu(5, uuid="GPU-5"),
        ]
        self.hub.fleet.apply(make_envelope("gpu01", gpus=gpus, host_id="gpu01", collected_at=now), via="push", now=now)
        self.sent: list[Message] = []
        self.app: Any = make_app(self.hub, auth=self.auth, outbox=SimpleNamespace(put=self.sent.append))  # type: ignore[arg-type]
        self.secrets: dict[str, str] = {}
        for name in ("ada", "bob", "zoe"):
            account = asyncio.run(self.auth.accounts.add(name, "user", None))
            self.secrets[name] = asyncio.run(self.auth.tokens.create(name, "user", account_id=account.id))[1]

    def ask(self, gpu: str, who: str | None = "ada", **body: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.secrets[who]}"} if who else {}

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, client=("192.0.2.7", 40000))
            async with httpx.AsyncClient(transport=transport, base_url="http://hub.example") as http:
                return await http.post("/api/v1/ask", json={"host": "gpu01", "gpu": gpu} | body, headers=headers)

        return asyncio.run(ask())


@pytest.fixture
def lobby(tmp_path: Path) -> Lobby:
    return Lobby(tmp_path)


def test_owner_gets_a_message_with_the_sender_the_gpu_and_the_idle_time(lobby: Lobby) -> None:
    answer = lobby.ask("0", message=" may I\nhave it? ")
    assert (answer.status_code, answer.json()) == (200, {"asked": ["bob"], "not_asked": []})
    (message,) = lobby.sent
    assert message.title == "ada asks whether you still need GPU 0 of gpu01"
    assert message.lines == ("It is in use by you, and idle for 3h.", "ada writes: may I have it?")
    assert (message.accounts, message.is_personal, message.rule) == (("bob",), True, "ask")
    (entry,) = [one for one in asyncio.run(lobby.auth.audit.list()) if one.action == "ask owner"]
    assert entry.who.startswith("ada ")
    assert (entry.subject, entry.details) == ("gpu01:0", "asked bob: may I have it?")


def test_each_of_several_owners_is_asked_once_and_nobody_asks_themselves(lobby: Lobby) -> None:
    assert lobby.ask("2").json()["asked"] == ["bob", "carol"]
    assert [message.accounts for message in lobby.sent] == [("bob",), ("carol",)]
    assert lobby.ask("GPU-2", "bob").json()["asked"] == ["carol"]


@pytest.mark.parametrize(
    ("gpu", "who", "status", "code", "said"),
    [
        ("1", "ada", 409, "not_idle", "GPU 1 of gpu01 is busy."),
        ("5", "ada", 409, "not_idle", "GPU 5 of gpu01 is free."),
        ("3", "ada", 409, "unreachable", "eve has no channel for messages"),
        ("4", "ada", 409, "unreachable", "dora does not want to be asked"),
        ("0", "bob", 409, "no_owner", "you are its only user"),
        ("9", "ada", 404, "unknown_gpu", "gpu01 has no GPU '9'."),
        ("0", None, 401, "unauthorized", ""),
    ],
)
def test_who_cannot_be_asked_is_said(
    lobby: Lobby, gpu: str, who: str | None, status: int, code: str, said: str
) -> None:
    answer = lobby.ask(gpu, who)
    assert (answer.status_code, answer.json()["error"]["code"], lobby.sent) == (status, code, [])
    assert said in answer.json()["error"]["message"]


def test_questions_are_limited_by_gpu_sender_and_owner(lobby: Lobby) -> None:
    assert lobby.ask("0").status_code == 200
    again = lobby.ask("0")
    assert (again.status_code, again.json()["error"]["code"]) == (429, "too_many")
    assert int(again.headers["Retry-After"]) > 3000
    assert lobby.ask("0", "zoe").status_code == 200
    assert lobby.ask("2", "zoe").status_code == 200
    assert len(lobby.sent) == 4


def test_message_is_bounded(lobby: Lobby) -> None:
    assert lobby.ask("0", message="x" * 501).status_code == 400
    assert lobby.ask("0", message=7).status_code == 400
