"""GET /api/v1/events and /api/v1/about from outside."""

import asyncio
import csv
import io
from pathlib import Path
from typing import Any

import httpx
import pytest

from fakes.api_app import ADMIN_TOKEN, make_app, make_auth
from fakes.clock import FakeClock
from fakes.reports import make_envelope
from gpudeck.events.service import EventLog
from gpudeck.events.settings import EventSettings
from gpudeck.fleet.hub import Hub
from gpudeck.model.event import make_event

NOW = 1_790_000_000.0


class Station:
    """A hub in which three things happened, and one host reports."""

    def __init__(self, folder: Path) -> None:
        self.hub = Hub(now=FakeClock(NOW))
        self.hub.fleet.apply(make_envelope(), via="push", now=NOW)
        self.hub.stream.tick()
        auth = make_auth(folder)
        self.events = EventLog(auth.database, EventSettings())
        self.app = make_app(self.hub, auth=auth, events=self.events)
        self.add(0, "host_down", "gpu01 has stopped reporting", severity="critical", host="gpu01")
        self.add(60, "host_up", "gpu01 reports again", host="gpu01")
        self.add(90, "xid", "XID 31 on GPU 0 of gpu02: =cmd", host="gpu02", gpu="GPU-9", label="0", user="bob")

    def add(self, at: float, kind: str, title: str, **others: Any) -> None:
        self.events.add(make_event(NOW + at, kind, title, **others))

    def get(self, path: str, token: str | None = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}

        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, client=("192.0.2.7", 40000))
            async with httpx.AsyncClient(transport=transport, base_url="http://hub.example") as client:
                return await client.get(path, headers=headers)

        return asyncio.run(call())

    def kinds(self, query: str) -> list[str]:
        return [event["kind"] for event in self.get(f"/api/v1/events?{query}").json()["events"]]


@pytest.fixture
def station(tmp_path: Path) -> Station:
    return Station(tmp_path)


def test_events_come_newest_first_with_every_field(station: Station) -> None:
    answer = station.get("/api/v1/events").json()
    assert [event["kind"] for event in answer["events"]] == ["xid", "host_up", "host_down"]
    assert answer["next"] is None
    assert answer["events"][0] | {"id": ""} == {
        "id": "",
        "at": NOW + 90,
        "kind": "xid",
        "severity": "info",
        "host": "gpu02",
        "host_id": None,
        "gpu": "GPU-9",
        "label": "0",
        "user": "bob",
        "title": "XID 31 on GPU 0 of gpu02: =cmd",
        "detail": "",
    }


@pytest.mark.parametrize(
    ("query", "kinds"),
    [
        ("host=gpu01", ["host_up", "host_down"]),
        ("gpu=GPU-9", ["xid"]),
        ("user=bob", ["xid"]),
        ("kind=xid,host_up", ["xid", "host_up"]),
        ("severity=critical,warning", ["host_down"]),
        ("q=AGAIN", ["host_up"]),
        (f"start={NOW + 1}&end={NOW + 61}", ["host_up"]),
        ("start=2026-01-01&end=2026-01-02", []),
    ],
)
def test_events_are_chosen_by_what_is_asked(station: Station, query: str, kinds: list[str]) -> None:
    assert station.kinds(query) == kinds


def test_pages_follow_each_other(station: Station) -> None:
    first = station.get("/api/v1/events?limit=2").json()
    second = station.get(f"/api/v1/events?limit=2&before={first['next']}").json()
    assert [event["kind"] for event in second["events"]] == ["host_down"]
    assert second["next"] is None


@pytest.mark.parametrize("query", ["severity=bad", "start=yesteryear", "limit=0", "limit=1001", "hots=gpu01"])
def test_question_that_makes_no_sense_is_refused_with_the_reason(station: Station, query: str) -> None:
    answer = station.get(f"/api/v1/events?{query}")
    assert answer.status_code == 400
    assert query.partition("=")[0] in answer.json()["error"]["message"]


def test_events_as_csv_hold_no_formula(station: Station) -> None:
    station.add(100, "duplicate_host", "=HYPERLINK(1)", host="gpu03")
    answer = station.get("/api/v1/events?format=csv")
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["kind"] for row in rows] == ["duplicate_host", "xid", "host_up", "host_down"]
    assert rows[0]["title"] == "'=HYPERLINK(1)"
    assert rows[1]["time_utc"] == "2026-09-21 14:14:50"


def test_about_tells_how_the_hub_is_doing(station: Station) -> None:
    about = station.get("/api/v1/about").json()
    assert about["sources"] == [{"via": "push", "hosts": 1, "up": 1, "late": 0, "down": 0, "never_seen": 0}]
    assert about["ingest"]["reports_taken"] == 1
    assert about["database"] == {"kind": "sqlite", "events": 3, "reason": None, "problem": None}
    assert about["history"]["kind"] == "off"
    assert about["started_at"] == NOW


def test_where_files_are_is_for_admins_alone(station: Station) -> None:
    assert station.get("/api/v1/about").json()["place"] is None
    assert station.get("/api/v1/about", "viewer-token").json()["place"] is None
    assert station.get("/api/v1/about", ADMIN_TOKEN).json()["place"]["data_dir"] == "/the/data/folder"


def test_event_goes_out_with_the_next_delta_and_with_no_other(station: Station) -> None:
    stream = station.hub.stream
    stream.announce(make_event(NOW, "host_up", "gpu01 reports again"))
    assert b'"events":[{"id":' in stream.tick().plain
    assert b'"events"' not in stream.tick().plain
