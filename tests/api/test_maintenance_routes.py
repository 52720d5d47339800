"""Maintenance through the API: admins drain, everybody sees it, and nothing is reserved in a window."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from fakes.api_app import make_app, make_auth
from fakes.reports import make_envelope, make_gpu
from gpudeck.events.service import EventLog
from gpudeck.events.settings import EventSettings
from gpudeck.fleet.hub import Hub
from gpudeck.maintenance.service import MaintenanceService
from gpudeck.model import clock
from gpudeck.model.event import Event
from gpudeck.reservations.calendar import ReservationCalendar
from gpudeck.reservations.settings import ReservationSettings
from gpudeck.reservations.store import ReservationStore

HOUR = 3600.0
FANS = {"host": "gpu01", "reason": "new fans"}


class Counter:
    """A hub with two hosts of two GPUs each, the user ada and the admin root."""

    def __init__(self, folder: Path) -> None:
        self.auth = make_auth(folder)
        self.hub = Hub()
        now = clock.wall()
        for host in ("gpu01", "gpu02"):
            gpus = [make_gpu(index, uuid=f"{host}-{index}") for index in range(2)]
            self.hub.fleet.apply(make_envelope(host, gpus=gpus, host_id=host, collected_at=now), via="push", now=now)
        self.hub.stream.tick()
        self.told: list[Event] = []
        events = EventLog(self.auth.database, EventSettings())
        events.subscribe(self.told.append)
        service = MaintenanceService(self.hub, self.auth, events)
        asyncio.run(service.open())
        calendar = ReservationCalendar(
            ReservationStore(self.auth.database), ReservationSettings(), maintenance=lambda: service.windows.all
        )
        self.app: Any = make_app(
            self.hub, auth=self.auth, events=events, reservations=calendar, maintenance=service.windows
        )
        self.secrets: dict[str, str] = {}
        for name, role in (("ada", "user"), ("root", "admin")):
            account = asyncio.run(self.auth.accounts.add(name, role, None))  # type: ignore[arg-type]
            made = asyncio.run(self.auth.tokens.create(name, role, account_id=account.id))  # type: ignore[arg-type]
            self.secrets[name] = made[1]

    def ask(self, method: str, path: str, body: Any = None, *, who: str | None = "root") -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.secrets[who]}"} if who else {}

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, client=("192.0.2.7", 40000))
            async with httpx.AsyncClient(transport=transport, base_url="http://hub.example") as http:
                return await http.request(method, f"/api/v1{path}", json=body, headers=headers)

        return asyncio.run(ask())

    def drain(self, **body: Any) -> dict[str, Any]:
        answer = self.ask("POST", "/maintenance", FANS | body)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())


@pytest.fixture
def counter(tmp_path: Path) -> Counter:
    return Counter(tmp_path)


def test_window_is_planned_listed_audited_and_ended(counter: Counter) -> None:
    made = counter.drain(**{"for": "2h"})["maintenance"]
    assert (made["host"], made["gpu"], made["state"], made["is_there"]) == ("gpu01", None, "running", True)
    assert made["end"] - made["start"] == 2 * HOUR
    assert counter.ask("GET", "/maintenance", who=None).json()["maintenance"] == [made]
    host = counter.ask("GET", "/hosts/gpu01", who=None).json()
    assert host["maintenance"] == {
        "id": made["id"],
        "since": made["start"],
        "until": made["end"],
        "reason": "new fans",
        "by": "root",
    }
    assert [gpu["availability"] for gpu in host["gpus"]] == ["drained", "drained"]
    assert counter.ask("DELETE", f"/maintenance/{made['id']}").status_code == 200
    again = counter.ask("DELETE", f"/maintenance/{made['id']}")
    assert (again.status_code, again.json()["error"]["code"]) == (404, "unknown_maintenance")
    audit = [(entry["action"], entry["subject"]) for entry in counter.ask("GET", "/audit").json()["entries"]]
    assert audit[:2] == [("undrain", "gpu01"), ("drain", "gpu01")]
    assert [event.kind for event in counter.told] == ["maintenance_started", "maintenance_ended"]


def test_planned_window_that_is_cancelled_leaves_nothing(counter: Counter) -> None:
    made = counter.drain(gpu="1", start=clock.wall() + HOUR)["maintenance"]
    assert (made["state"], made["label"]) == ("planned", "1")
    counter.ask("DELETE", f"/maintenance/{made['id']}")
    assert counter.ask("GET", "/maintenance").json()["maintenance"] == []
    assert [event.title.split(",")[0] for event in counter.told] == [
        "root planned maintenance of gpu01:1",
        "root cancelled maintenance of gpu01:1",
    ]


def test_only_admins_drain(counter: Counter) -> None:
    assert counter.ask("POST", "/maintenance", FANS, who="ada").status_code == 403
    number = counter.drain()["maintenance"]["id"]
    assert counter.ask("DELETE", f"/maintenance/{number}", who="ada").status_code == 403


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"reason": " "}, 400, ""),
        ({"reason": "x" * 501}, 400, ""),
        ({"reason": "tab\tand\x1b[31m"}, 201, "tab and�[31m"),
        ({"host": "gpu0"}, 404, "there is no host 'gpu0'."),
        ({"gpu": "9"}, 404, "gpu01 has no GPU '9'."),
        ({"end": "2001-01-01T00:00Z"}, 400, "ago."),
        ({"end": "17:00"}, 400, "names no zone"),
        ({"end": 2e9, "for": "2h"}, 400, "not both"),
        ({"for": "soon"}, 400, "is not a duration"),
        ({"until": 2e9}, 400, ""),
    ],
)
def test_bad_requests_say_what_is_wrong(counter: Counter, body: dict[str, Any], status: int, said: str) -> None:
    answer = counter.ask("POST", "/maintenance", FANS | body)
    assert answer.status_code == status
    assert said in answer.text


def test_nothing_is_reserved_in_a_window_and_the_next_time_is_named(counter: Counter) -> None:
    counter.drain(**{"for": "2h"})
    refused = counter.ask("POST", "/reservations", {"host": "gpu01", "indexes": [0], "for": "1h"}, who="ada")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "maintenance")
    assert "gpu01 is in maintenance until" in refused.json()["error"]["message"]
    slot = refused.json()["next_free"]
    later = {"host": "gpu01", "indexes": [0], "for": "1h", "start": slot["start"]}
    assert counter.ask("POST", "/reservations", later, who="ada").status_code == 201
    chosen = counter.ask("POST", "/reservations", {"any": {"gpus": 2}, "for": "1h"}, who="ada").json()
    assert {gpu["host"] for gpu in chosen["gpus"]} == {"gpu02"}
    none_left = counter.ask("POST", "/reservations", {"any": {"gpus": 3}, "for": "1h"}, who="ada")
    assert none_left.status_code == 409


def test_gpu_without_an_end_is_never_reserved(counter: Counter) -> None:
    counter.drain(gpu="0")
    body = {"host": "gpu01", "for": "1h", "start": clock.wall() + 100 * HOUR}
    refused = counter.ask("POST", "/reservations", body, who="ada").json()
    assert refused["error"]["message"] == "gpu01:0 is in maintenance without an end yet: new fans."
    assert refused["next_free"] is None
    assert counter.ask("POST", "/reservations", body | {"indexes": [1]}, who="ada").status_code == 201


def test_admin_is_told_which_reservations_are_within_the_window(counter: Counter) -> None:
    body = {"host": "gpu01", "indexes": [1], "for": "1h", "note": "paper"}
    made = counter.ask("POST", "/reservations", body, who="ada").json()
    later = clock.wall() + 2 * HOUR
    assert counter.drain(start=later, end=later + HOUR)["reservations"] == []
    assert counter.drain(gpu="0")["reservations"] == []
    (told,) = counter.drain()["reservations"]
    counter.told.clear()
    counter.drain(reason="they are late")
    assert [event.title.split(",")[0] for event in counter.told] == ["root changed maintenance of gpu01"]
    assert (told["id"], told["user"], told["state"]) == (made["id"], "ada", "running")


def test_note_is_written_seen_replaced_and_removed(counter: Counter) -> None:
    def shown() -> Any:
        return counter.ask("GET", "/hosts/gpu01", who=None).json()["note"]

    counter.hub.stream.tick()
    made = counter.ask("PUT", "/hosts/GPU01/note", {"text": " loud\nfan \x07 "})
    assert made.json()["note"].items() >= {"text": "loud fan �", "by": "root"}.items()
    assert shown() == made.json()["note"]
    assert b'"text":"loud fan' in counter.hub.stream.tick().plain
    counter.ask("PUT", "/hosts/gpu01/note", {"text": "quiet"})
    assert shown()["text"] == "quiet"
    assert counter.ask("PUT", "/hosts/gpu01/note", {"text": "  "}).json() == {"note": None}
    assert shown() is None
    entry = counter.ask("GET", "/audit").json()["entries"][0]
    assert (entry["action"], entry["subject"], entry["details"]) == ("note host", "gpu01", "removed")


@pytest.mark.parametrize(
    ("host", "text", "status"), [("gpu1", "x", 404), ("gpu01", "x" * 1001, 400), ("gpu01", None, 400)]
)
def test_bad_note_is_refused(counter: Counter, host: str, text: str | None, status: int) -> None:
    assert counter.ask("PUT", f"/hosts/{host}/note", {"text": text}).status_code == status


def test_only_admins_write_notes(counter: Counter) -> None:
    assert counter.ask("PUT", "/hosts/gpu01/note", {"text": "x"}, who="ada").status_code == 403


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"reason": "x" * 5000}, "reason: at most "),
        ({"reason": ""}, "reason: it is empty"),
        ({"host": " "}, "host: it is empty or has characters that are not allowed"),
    ],
)
def test_message_about_a_wrong_value_does_not_quote_the_schema(
    counter: Counter, body: dict[str, Any], said: str
) -> None:
    answer = counter.ask("POST", "/maintenance", FANS | body)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]
