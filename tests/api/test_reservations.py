"""Reservations over HTTP: reserved, changed, given back, found, and read as a calendar."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from icalendar import Calendar

from fakes.api_app import make_app, make_auth
from fakes.clock import FakeClock
from fakes.reports import GIB, make_busy_gpu, make_envelope, make_gpu
from gpudeck.api.reservations import ANONYMOUS_BURST
from gpudeck.fleet.hub import Hub
from gpudeck.reservations.calendar import ReservationCalendar
from gpudeck.reservations.settings import ReservationSettings
from gpudeck.reservations.store import ReservationStore

NOW = 1_790_000_000.0
HOUR = 3600.0


class Site:
    """A hub with two hosts of two GPUs each, the accounts ada and bob, and root, who is an admin."""

    def __init__(self, folder: Path, *, is_readable: bool = True, reserves_without_account: bool = False) -> None:
        self.clock = FakeClock(NOW)
        self.auth = make_auth(folder)
        self.hub = Hub(now=self.clock)
        for host in ("gpu01", "gpu02"):
            gpus = [make_gpu(index, uuid=f"{host}-{index}") for index in range(2)]
            self.hub.fleet.apply(make_envelope(host, gpus=gpus, host_id=host), via="push", now=NOW)
        self.hub.stream.tick()
        self.calendar = ReservationCalendar(ReservationStore(self.auth.database), ReservationSettings(), self.clock)
        self.app: Any = make_app(
            self.hub,
            auth=self.auth,
            is_readable=is_readable,
            reserves_without_account=reserves_without_account,
            reservations=self.calendar,
        )
        self.secrets: dict[str, str] = {}
        for name, role in (("ada", "user"), ("bob", "user"), ("root", "admin")):
            account = asyncio.run(self.auth.accounts.add(name, role, None))  # type: ignore[arg-type]
            made = asyncio.run(self.auth.tokens.create(name, role, account_id=account.id))  # type: ignore[arg-type]
            self.secrets[name] = made[1]

    def ask(self, method: str, path: str, body: Any = None, *, who: str | None = "ada") -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.secrets[who]}"} if who else {}

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, client=("192.0.2.7", 40000))
            async with httpx.AsyncClient(transport=transport, base_url="http://hub.example") as http:
                return await http.request(method, f"/api/v1{path}", json=body, headers=headers)

        return asyncio.run(ask())

    def reserve(self, who: str = "ada", **body: Any) -> dict[str, Any]:
        answer = self.ask("POST", "/reservations", {"for": "4h"} | body, who=who)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_reservation_is_made_found_and_read(site: Site) -> None:
    made = site.reserve(host="gpu01", indexes=[1], note="training")
    assert made["gpus"] == [{"uuid": "gpu01-1", "host": "gpu01", "label": "1", "is_there": True}]
    assert (made["user"], made["start"], made["end"], made["state"]) == ("ada", NOW, NOW + 4 * HOUR, "running")
    assert site.ask("GET", "/reservations", who=None).json() == {"reservations": [made], "time": NOW, "is_cut": False}
    assert site.ask("GET", f"/reservations/{made['id']}", who=None).json() == made


@pytest.mark.parametrize(
    ("body", "uuids"),
    [
        ({"gpus": ["gpu01-0", "gpu02-1"]}, ["gpu01-0", "gpu02-1"]),
        ({"host": "gpu02"}, ["gpu02-0", "gpu02-1"]),
        ({"host": "gpu02", "indexes": ["1", 0]}, ["gpu02-0", "gpu02-1"]),
        ({"any": {"gpus": 2, "memory": "40GiB", "model": "a100", "same_host": True}}, ["gpu01-0", "gpu01-1"]),
        ({"any": {"host": "gpu02"}}, ["gpu02-0"]),
    ],
)
def test_gpus_are_named_in_several_ways(site: Site, body: dict[str, Any], uuids: list[str]) -> None:
    assert [gpu["uuid"] for gpu in site.reserve(**body)["gpus"]] == uuids


def test_times_are_seconds_or_text_with_a_zone(site: Site) -> None:
    body = {"gpus": ["gpu01-0"], "start": "2026-10-25T02:30+02:00", "end": "2026-10-25T02:30:00+01:00"}
    made = site.ask("POST", "/reservations", body, who="root").json()
    # In the night in which clocks are set back this is an hour.
    assert (made["end"] - made["start"], made["start"]) == (HOUR, 1_792_888_200.0)


def test_conflict_tells_who_and_when_it_is_free(site: Site) -> None:
    made = site.reserve(gpus=["gpu01-0"], note="nightly")
    answer = site.ask("POST", "/reservations", {"gpus": ["gpu01-0"], "for": "1h"}, who="bob")
    assert answer.status_code == 409
    body = answer.json()
    assert (body["error"]["code"], body["conflicts"]) == ("conflict", [made])
    assert body["error"]["message"] == "GPU 0 of gpu01 is reserved by ada (nightly): reservation 1."
    assert (body["next_free"]["start"], body["next_free"]["end"]) == (NOW + 4 * HOUR, NOW + 5 * HOUR)


def test_second_of_two_edits_sees_the_newer_version(site: Site) -> None:
    made = site.reserve(gpus=["gpu01-0"])
    path = f"/reservations/{made['id']}"
    changed = site.ask("PATCH", path, {"version": 1, "for": "6h", "note": "longer"}).json()
    assert (changed["version"], changed["end"], changed["note"]) == (2, NOW + 6 * HOUR, "longer")
    answer = site.ask("PATCH", path, {"version": 1, "for": "2h"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "changed")
    assert answer.json()["reservation"] == changed
    assert "conflicts" not in answer.json()


def test_others_are_for_admins(site: Site) -> None:
    made = site.reserve(gpus=["gpu01-0"])
    path = f"/reservations/{made['id']}"
    assert site.ask("PATCH", path, {"note": "mine"}, who="bob").status_code == 403
    assert site.ask("DELETE", path, who="bob").status_code == 403
    assert (
        site.ask("POST", "/reservations", {"host": "gpu02", "for": "1h", "user": "ada"}, who="bob").status_code == 403
    )
    assert site.ask("PATCH", path, {"user": "bob"}).status_code == 403
    assert site.ask("PATCH", path, {"user": "bob"}, who="root").json()["user"] == "bob"
    theirs = site.reserve("root", host="gpu02", user="Zoë 訓練", **{"for": "40d"})
    assert (theirs["user"], theirs["created_by"]) == ("Zoë 訓練", "root")


def test_owner_has_to_have_a_name(site: Site) -> None:
    body = {"host": "gpu01", "for": "1h", "user": "\x01\0"}
    assert site.ask("POST", "/reservations", body, who="root").status_code == 400


def test_release_ends_what_runs_and_takes_back_what_does_not(site: Site) -> None:
    running, planned = site.reserve(gpus=["gpu01-0"]), site.reserve(gpus=["gpu01-0"], start=NOW + 5 * HOUR)
    site.clock.advance(HOUR)
    ended = site.ask("DELETE", f"/reservations/{running['id']}").json()
    assert (ended["state"], ended["end"]) == ("released", NOW + HOUR)
    assert site.ask("DELETE", f"/reservations/{planned['id']}").json()["state"] == "cancelled"
    assert site.ask("DELETE", f"/reservations/{planned['id']}").status_code == 409
    found = site.ask("GET", "/reservations?start=0").json()["reservations"]
    assert [one["id"] for one in found] == [running["id"]]
    assert site.ask("GET", "/reservations/99").status_code == 404


def test_audit_log_has_before_and_after(site: Site) -> None:
    made = site.reserve(gpus=["gpu01-0"], note="short")
    site.ask("PATCH", f"/reservations/{made['id']}", {"for": "6h"})
    entry = asyncio.run(site.auth.audit.list())[0]
    assert (entry.who, entry.action, entry.subject) == ("ada (token 5)", "change reservation", "reservation 1")
    assert entry.details == (
        "before: ada, GPU 0 of gpu01, 2026-09-21 14:13 UTC to 2026-09-21 18:13 UTC, note 'short'; "
        "after: ada, GPU 0 of gpu01, 2026-09-21 14:13 UTC to 2026-09-21 20:13 UTC, note 'short'"
    )


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"note": "short"},
        {"version": 1, "gpus": ["gpu01-0"], "for": "4h", "start": NOW, "user": "ada"},
        {"host": "gpu01", "indexes": [0], "end": NOW + 4 * HOUR, "note": " short "},
    ],
)
def test_change_that_changes_nothing_leaves_no_trace(site: Site, body: dict[str, Any]) -> None:
    made = site.reserve(gpus=["gpu01-0"], note="short")
    site.clock.advance(60)
    answer = site.ask("PATCH", f"/reservations/{made['id']}", body)
    assert (answer.status_code, answer.json()) == (200, made)
    assert asyncio.run(site.auth.audit.list())[0].action == "reserve GPUs"


def test_nothing_is_left_as_it_is_also_beyond_a_limit(site: Site) -> None:
    made = site.reserve("root", gpus=["gpu01-0"], user="ada", **{"for": "40d"})
    site.calendar.settings = ReservationSettings(most_gpus=0)
    assert site.ask("PATCH", f"/reservations/{made['id']}", {}).status_code == 200
    assert site.ask("PATCH", f"/reservations/{made['id']}", {"note": "other"}).status_code == 400


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"start": 1.0e12}, "start: that is no time from 1970 to 9999; numbers are Unix seconds"),
        ({"end": -1, "for": None}, "end: that is no time from 1970"),
        ({"start": 253_400_000_000}, "the end is more than ten years away."),
        ({"start": "9999-12-31T00:00Z"}, "the end is more than ten years away."),
        ({"for": -5}, "for: -5 seconds are no length"),
        ({"for": 1e300}, "for: 1e+300 seconds are no length"),
    ],
)
def test_time_beyond_all_calendars_is_refused_in_words(site: Site, body: dict[str, Any], told: str) -> None:
    answer = site.ask("POST", "/reservations", {"gpus": ["gpu01-0"], "for": "1h"} | body)
    assert (answer.status_code, told in answer.json()["error"]["message"]) == (400, True), answer.text


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"gpus": ["gpu01-0"]}, 400, "bad_request"),
        ({"gpus": ["gpu01-0"], "for": "4h", "end": NOW + HOUR}, 400, "bad_request"),
        ({"gpus": ["gpu01-0"], "for": "soon"}, 400, "bad_request"),
        ({"gpus": ["gpu01-0"], "for": "0h"}, 400, "past"),
        ({"gpus": ["gpu01-0"], "for": "8d"}, 400, "limit"),
        ({"gpus": ["gpu01-0"], "for": "1h", "start": "2026-10-25T02:30"}, 400, "bad_request"),
        ({"gpus": ["gpu01-0"], "for": "1h", "start": "yesterday"}, 400, "bad_request"),
        ({"gpus": ["gpu01-0"], "for": "1h", "start": NOW - HOUR}, 400, "past"),
        ({"gpus": ["nothing"], "for": "1h"}, 404, "unknown_gpu"),
        ({"gpus": [], "for": "1h"}, 400, "bad_request"),
        ({"host": "gpu09", "for": "1h"}, 404, "unknown_gpu"),
        ({"host": "gpu01", "indexes": [9], "for": "1h"}, 404, "unknown_gpu"),
        ({"host": "gpu01", "gpus": ["gpu01-0"], "for": "1h"}, 400, "bad_request"),
        ({"any": {"gpus": 1}, "host": "gpu01", "for": "1h"}, 400, "bad_request"),
        ({"any": {"gpus": 9}, "for": "1h"}, 404, "unknown_gpu"),
        ({"host": "gpu01", "for": "1h", "colour": "red"}, 400, "bad_request"),
        ({"host": "gpu01", "for": "1h", "note": "x" * 1001}, 400, "bad_request"),
    ],
)
def test_what_makes_no_sense_is_refused(site: Site, body: dict[str, Any], status: int, code: str) -> None:
    answer = site.ask("POST", "/reservations", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text


def test_limit_is_named_and_not_for_admins(site: Site) -> None:
    body = {"gpus": ["gpu01-0"], "for": "8d"}
    assert "reservations.longest" in site.ask("POST", "/reservations", body).json()["error"]["hint"]
    assert site.ask("POST", "/reservations", body, who="root").status_code == 201


@pytest.mark.parametrize(
    "wanted",
    [
        {"any": {"gpus": 2, "same_host": True}},
        {"any": {"gpus": 1, "model": "A100"}, "start": NOW + 30 * HOUR},
        {"host": "gpu02", "indexes": [1]},
        {"gpus": ["gpu01-1", "gpu02-0"], "start": NOW + HOUR},
    ],
)
def test_preview_is_what_is_reserved_then_and_reserves_nothing(site: Site, wanted: dict[str, Any]) -> None:
    site.reserve("bob", gpus=["gpu01-0"], **{"for": "2h"})
    body = wanted | {"for": "4h"}
    answer = site.ask("POST", "/reservations/preview", body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert len(site.ask("GET", "/reservations").json()["reservations"]) == 1
    made = site.reserve(**wanted)
    assert [gpu["uuid"] for gpu in found["gpus"]] == [gpu["uuid"] for gpu in made["gpus"]]
    assert (found["start"], found["end"]) == (made["start"], made["end"])


def test_preview_tells_who_is_on_the_gpus_and_what_else_is_reserved_there(site: Site) -> None:
    gpus = [make_busy_gpu(user="bob", uuid="gpu03-0"), make_gpu(1, uuid="gpu03-1"), make_gpu(2, uuid="gpu03-2")]
    site.hub.fleet.apply(make_envelope("gpu03", gpus=gpus, host_id="gpu03"), via="push", now=NOW)
    beside = site.reserve("bob", gpus=["gpu03-2"], start=NOW + 20 * HOUR, note="nightly")
    site.reserve("bob", gpus=["gpu01-0"], start=NOW + 20 * HOUR)
    site.reserve("bob", gpus=["gpu03-1"], **{"for": "1h"})
    wanted = {"host": "gpu03", "indexes": [0, 1], "start": NOW + 18 * HOUR, "for": "4h"}
    found = site.ask("POST", "/reservations/preview", wanted).json()
    assert [(gpu["label"], gpu["availability"], gpu["users"]) for gpu in found["gpus"]] == [
        ("0", "busy", ["bob"]),
        ("1", "free", []),
    ]
    assert [gpu["reservation"] and gpu["reservation"]["user"] for gpu in found["gpus"]] == [None, "bob"]
    assert (found["reservations"], found["is_cut"], found["time"]) == ([beside], False, NOW)


def test_preview_takes_no_mig_slices_unless_they_are_asked_for(site: Site) -> None:
    slices = [make_gpu(0, uuid=f"gpu03-{part}", parent="board", instance=part) for part in range(4)]
    site.hub.fleet.apply(make_envelope("gpu03", gpus=slices, host_id="gpu03"), via="push", now=NOW)
    ask = {"for": "4h", "start": NOW + 24 * HOUR}
    refused = site.ask("POST", "/reservations/preview", ask | {"any": {"gpus": 4, "same_host": True}})
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "unknown_gpu")
    found = site.ask("POST", "/reservations/preview", ask | {"any": {"gpus": 4, "same_host": True, "mig": True}}).json()
    assert {gpu["host"] for gpu in found["gpus"]} == {"gpu03"}


@pytest.mark.parametrize(
    ("body", "who", "status"),
    [
        ({"gpus": ["gpu01-0"], "for": "1h"}, "bob", 409),
        ({"host": "gpu02", "for": "8d"}, "ada", 400),
        ({"host": "gpu02", "for": "8d"}, "root", 200),
        ({"host": "gpu02", "for": "1h", "user": "ada"}, "bob", 403),
        ({"any": {"gpus": 1}, "host": "gpu01", "for": "1h"}, "ada", 400),
        ({"host": "gpu02", "for": "1h"}, None, 401),
    ],
)
def test_preview_is_refused_as_the_reservation_would_be(
    site: Site, body: dict[str, Any], who: str | None, status: int
) -> None:
    site.reserve(gpus=["gpu01-0"])
    asked = site.ask("POST", "/reservations/preview", body, who=who)
    made = site.ask("POST", "/reservations", body, who=who)
    assert (asked.status_code, made.status_code) == (status, 201 if status == 200 else status)
    assert asked.json().get("error") == made.json().get("error")
    assert asked.json().get("next_free") == made.json().get("next_free")


def test_preview_without_an_account_needs_no_name_and_is_not_counted(tmp_path: Path) -> None:
    site = Site(tmp_path, reserves_without_account=True)
    body = {"host": "gpu01", "for": "1h"}
    for _ in range(ANONYMOUS_BURST + 1):
        assert site.ask("POST", "/reservations/preview", body, who=None).status_code == 200
    assert site.ask("POST", "/reservations", body | {"user": "zoe"}, who=None).status_code == 201


def test_next_free_is_found(site: Site) -> None:
    site.reserve(host="gpu01")
    site.reserve("bob", host="gpu02", **{"for": "2h"})
    answer = site.ask("GET", "/reservations/next?gpus=2&memory=40GiB&for=4h&same_host=1", who=None).json()
    assert (answer["next_free"]["start"], answer["time"]) == (NOW + 2 * HOUR, NOW)
    assert [gpu["uuid"] for gpu in answer["next_free"]["gpus"]] == ["gpu02-0", "gpu02-1"]
    assert site.ask("GET", "/reservations/next?gpus=2", who=None).status_code == 400
    assert site.ask("GET", "/reservations/next?gpus=9&for=1h", who=None).json()["error"]["code"] == "unknown_gpu"
    assert site.ask("GET", "/reservations/next?for=1h&colour=red", who=None).status_code == 400


def test_gpu_in_use_is_claimed_by_its_user_alone(site: Site) -> None:
    gpu = make_busy_gpu(user="ada", uuid="gpu03-0")
    site.hub.fleet.apply(make_envelope("gpu03", gpus=[gpu], host_id="gpu03"), via="push", now=NOW)
    refused = site.ask("POST", "/reservations", {"host": "gpu03", "for": "1h"}, who="bob")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "in_use")
    assert site.reserve(host="gpu03")["user"] == "ada"


def test_reservation_of_a_gpu_that_has_vanished_stays_and_says_so(site: Site) -> None:
    made = site.reserve(host="gpu01")
    left = make_gpu(0, uuid="gpu01-0", metrics={"memory_total_bytes": 80 * GIB})
    site.hub.fleet.apply(make_envelope("gpu01", 2, [left], host_id="gpu01"), via="push", now=NOW + 2)
    (shown,) = site.ask("GET", "/reservations").json()["reservations"]
    assert [gpu["is_there"] for gpu in shown["gpus"]] == [True, False]
    # What is there to be changed still can be.
    assert site.ask("PATCH", f"/reservations/{made['id']}", {"for": "5h"}).status_code == 200


def test_list_is_narrowed(site: Site) -> None:
    first, second = site.reserve(host="gpu01"), site.reserve("bob", gpus=["gpu02-0"], start=NOW + 5 * HOUR)

    def find(query: str) -> list[int]:
        return [one["id"] for one in site.ask("GET", f"/reservations?{query}").json()["reservations"]]

    assert find("") == [first["id"], second["id"]]
    assert find(f"start={NOW + 4 * HOUR}") == [second["id"]]
    assert find(f"end={NOW + HOUR}") == [first["id"]]
    assert find("host=gpu02") == find("gpu=gpu02-0") == find("user=bob") == [second["id"]]
    assert site.ask("GET", "/reservations?owner=bob").status_code == 400
    assert site.ask("GET", "/reservations?limit=1").json()["is_cut"] is True


def test_calendar_has_all_or_one_persons_or_one_hosts(site: Site) -> None:
    site.reserve(host="gpu01")
    site.reserve("bob", host="gpu02")

    def read(query: str = "") -> list[str]:
        answer = site.ask("GET", f"/reservations.ics{query}", who=None)
        assert answer.headers["content-type"] == "text/calendar; charset=utf-8"
        return [str(event["summary"]) for event in Calendar.from_ical(answer.content).walk("VEVENT")]

    assert read() == ["ada: GPUs 0, 1 of gpu01", "bob: GPUs 0, 1 of gpu02"]
    assert read("?user=ada") == ["ada: GPUs 0, 1 of gpu01"]
    assert read("?host=gpu02") == ["bob: GPUs 0, 1 of gpu02"]


def test_private_calendar_opens_with_a_calendars_token_in_its_address(tmp_path: Path) -> None:
    site = Site(tmp_path, is_readable=False)
    site.reserve(host="gpu01")
    made = site.ask("POST", "/tokens", {"name": "phone", "role": "calendar"}).json()
    site.secrets["phone"] = made["secret"]

    def read(query: str, who: str | None = None) -> int:
        return site.ask("GET", f"/reservations.ics{query}", who=who).status_code

    assert read(f"?token={made['secret']}") == read("", "phone") == read("", "ada") == 200
    assert (read(""), read("?token=made-up")) == (401, 401)
    # In an address nothing may stand that opens more.
    assert read(f"?token={site.secrets['ada']}") == 403
    assert site.ask("GET", "/reservations", who="phone").status_code == 403
    asyncio.run(site.auth.tokens.revoke(made["token"]["id"]))
    assert read(f"?token={made['secret']}") == 401


def test_without_an_account_nobody_books_unless_that_is_allowed(site: Site, tmp_path: Path) -> None:
    body = {"host": "gpu01", "indexes": [0], "for": "4h", "user": "Émile"}
    assert site.ask("POST", "/reservations", body, who=None).status_code == 401
    assert site.ask("GET", "/me", who=None).json()["may_reserve"] is False


def test_where_it_is_allowed_anybody_books_by_a_name_and_changes_what_was_reserved_so(tmp_path: Path) -> None:
    site = Site(tmp_path, reserves_without_account=True)
    assert site.ask("GET", "/me", who=None).json()["may_reserve"] is True
    body = {"host": "gpu01", "indexes": [0], "for": "4h"}
    assert site.ask("POST", "/reservations", body, who=None).status_code == 400
    made = site.ask("POST", "/reservations", body | {"user": "Émile"}, who=None)
    assert (made.status_code, made.json()["user"], made.json()["created_by"]) == (201, "Émile", "")
    path = f"/reservations/{made.json()['id']}"
    assert site.ask("POST", "/reservations", body | {"user": "zoe"}, who=None).status_code == 409
    assert site.ask("PATCH", path, {"for": "2h"}, who="bob").status_code == 403
    assert site.ask("PATCH", path, {"for": "2h"}, who=None).status_code == 200
    assert site.ask("PATCH", path, {"user": "zoe"}, who=None).status_code == 403
    assert site.ask("DELETE", path, who=None).status_code == 200
    entries = asyncio.run(site.auth.audit.list())
    assert [
        (entry.action, entry.address) for entry in entries if "reserv" in entry.action or "reserve" in entry.action
    ] == [
        ("release reservation", "192.0.2.7"),
        ("change reservation", "192.0.2.7"),
        ("reserve GPUs", "192.0.2.7"),
    ]


def test_without_an_account_nobody_acts_for_one_that_has_one(tmp_path: Path) -> None:
    site = Site(tmp_path, reserves_without_account=True)
    body = {"host": "gpu01", "indexes": [0], "for": "4h"}
    for name in ("ada", "Ada"):
        refused = site.ask("POST", "/reservations", body | {"user": name}, who=None)
        assert (refused.status_code, "log in" in refused.text) == (401, True)
    path = f"/reservations/{site.reserve(host='gpu01')['id']}"
    assert site.ask("DELETE", path, who=None).status_code == 403
    assert site.ask("PATCH", path, {"for": "1h"}, who=None).status_code == 403


def test_without_an_account_an_address_books_only_so_often(tmp_path: Path) -> None:
    site = Site(tmp_path, reserves_without_account=True)
    codes = [site.ask("DELETE", "/reservations/99", who=None).status_code for _ in range(ANONYMOUS_BURST + 1)]
    assert codes == [404] * ANONYMOUS_BURST + [429]
    site.reserve(host="gpu01")
    site.clock.advance(60)
    assert site.ask("DELETE", "/reservations/99", who=None).status_code == 404
