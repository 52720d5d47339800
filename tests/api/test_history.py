"""Questions about the past over HTTP: what is handed on to the store, and what comes back."""

import asyncio
import csv
import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from fakes.api_app import make_app, make_auth
from fakes.store import RUN, FakeStore
from fakes.waiting import until
from gpudeck.api.access import Commands
from gpudeck.api.history import AT_FULL_SPEED, MAX_WAITING, SHARE, HistoryQueries
from gpudeck.events.service import EventLog
from gpudeck.events.settings import EventSettings
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.visibility import HIDDEN, Visibility
from gpudeck.history.base import (
    Fault,
    HeatQuery,
    HistoryRefused,
    MomentQuery,
    RunsQuery,
    SeriesQuery,
    Store,
    UsageQuery,
    VerdictQuery,
)
from gpudeck.model.cpu_budget import checkpoint
from gpudeck.model.errors import Temporary
from gpudeck.model.event import make_event

T0 = 1_790_000_000
GPU = "/api/v1/history?metric=utilization_percent&gpu=GPU-1"
PAST = f"{GPU}&start={T0 - 7200}&end={T0 - 3600}"


class Place:
    """A hub with a history, and its ASGI application."""

    def __init__(self, store: FakeStore | None = None, commands: Commands = "everyone") -> None:
        self.store = store or FakeStore()
        self.app = make_app(Hub(), history=self.store, commands=commands)

    def client(self, address: str = "192.0.2.7") -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app, client=(address, 40000))  # type: ignore[arg-type]
        return httpx.AsyncClient(transport=transport, base_url="http://hub.example")

    def get(self, path: str, **headers: str) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with self.client() as client:
                return await client.get(path, headers=headers)

        return asyncio.run(ask())

    def refusal(self, path: str) -> tuple[int, str, str]:
        answer = self.get(path)
        error = answer.json()["error"]
        return answer.status_code, error["code"], f"{error['message']} {error['hint']}"


@pytest.fixture
def hub() -> Place:
    return Place()


def test_question_reaches_the_store_as_it_was_asked(hub: Place) -> None:
    answer = hub.get(f"/api/v1/history?metric=power_watts&host=gpu01&by=gpu&start={T0}&end={T0 + 60}&points=10")
    assert hub.store.asked == [SeriesQuery("power_watts", T0, T0 + 60, 10, host="gpu01", by="gpu")]
    assert answer.json()["series"][0]["points"] == [[T0, 50.0, None, 100.0]]
    assert answer.json()["step"] == 60


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        ("fleet=1", {"fleet": True}),
        ("fleet=true", {"fleet": True}),
        ("user=alice", {"user": "alice"}),
        ("run=7", {"run": 7}),
    ],
)
def test_subject_is_one_of_several(hub: Place, query: str, asked: dict[str, Any]) -> None:
    hub.get(f"/api/v1/history?metric=power_watts&start={T0}&end={T0 + 60}&{query}")
    assert hub.store.asked == [SeriesQuery("power_watts", T0, T0 + 60, **asked)]


def test_times_may_be_relative_or_iso(hub: Place) -> None:
    hub.get(f"{GPU}&start=-2h&end=now")
    hub.get(f"{GPU}&start=2026-01-01&end=2026-01-01T01:00+01:00")
    first, second = hub.store.asked
    assert isinstance(first, SeriesQuery)
    assert isinstance(second, SeriesQuery)
    assert first.end - first.start == 7200
    assert (second.start, second.end) == (1_767_225_600, 1_767_225_600)


def test_without_a_range_it_is_the_last_day(hub: Place) -> None:
    before = time.time()
    hub.get(GPU)
    (asked,) = hub.store.asked
    assert isinstance(asked, SeriesQuery)
    assert asked.end - asked.start == 86_400
    assert before <= asked.end <= time.time()


@pytest.mark.parametrize(
    ("path", "word"),
    [
        (f"{GPU}&start=yesterday", "start: 'yesterday' is not a time"),
        (f"{GPU}&end=nan", "end: 'nan' is not a time"),
        (f"{GPU}&pionts=5", "did you mean points?"),
        (f"{GPU}&points=many", "points"),
        (f"{GPU}&by=host", "by"),
        ("/api/v1/history?gpu=GPU-1", "metric"),
        (f"{GPU}{'x' * 300}", "gpu"),
        ("/api/v1/history/heat?metric=power_watts&gpu=GPU-1", "there is no parameter 'gpu'"),
        ("/api/v1/usage?by=planet", "by"),
        ("/api/v1/usage?start=never", "start: 'never' is not a time"),
        ("/api/v1/runs?limit=0", "limit"),
        ("/api/v1/runs?limit=100000", "limit"),
        ("/api/v1/runs?usr=alice", "did you mean user?"),
    ],
)
def test_what_cannot_be_understood_is_refused_before_the_store_is_asked(hub: Place, path: str, word: str) -> None:
    status, code, text = hub.refusal(path)
    assert (status, code) == (400, "bad_request")
    assert word in text
    assert hub.store.asked == []


def test_unknown_zone_is_refused(hub: Place) -> None:
    assert hub.refusal("/api/v1/usage?zone=../../etc/passwd")[:2] == (400, "unknown_zone")


@pytest.mark.parametrize(
    ("code", "status"), [("unknown_gpu", 404), ("unknown_host", 404), ("unknown_metric", 400), ("too_long", 400)]
)
def test_refusal_of_the_store_keeps_its_code_and_hint(hub: Place, code: str, status: int) -> None:
    hub.store.trouble = HistoryRefused(code, "no answer", "Ask otherwise.")
    assert hub.refusal(GPU) == (status, code, "no answer Ask otherwise.")


def test_store_out_of_reach_is_503(hub: Place) -> None:
    hub.store.trouble = Temporary("the store does not answer.")
    answer = hub.get(GPU)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize(
    "path",
    [GPU, "/api/v1/history/heat?metric=power_watts", "/api/v1/usage", "/api/v1/usage?format=csv", "/api/v1/runs/7"],
)
def test_hub_without_a_history_says_so(path: str) -> None:
    place = Place()
    place.app = make_app(Hub())
    status, code, text = place.refusal(path)
    assert (status, code) == (404, "no_history")
    assert "history.kind" in text


def test_heat_map_is_of_the_last_week_by_the_hour(hub: Place) -> None:
    answer = hub.get("/api/v1/history/heat?metric=power_watts")
    (asked,) = hub.store.asked
    assert isinstance(asked, HeatQuery)
    assert (asked.end - asked.start, asked.step) == (7 * 86_400, 3600)
    assert answer.json()["rows"] == [{"host": "id-1", "name": "gpu01", "values": [None]}]


def test_answer_about_the_past_may_be_kept_for_a_minute(hub: Place) -> None:
    answer = hub.get(PAST)
    assert answer.headers["cache-control"] == "private, max-age=60"
    assert "Cookie" in answer.headers["vary"]


def test_answer_about_now_is_not_kept(hub: Place) -> None:
    assert hub.get(f"{GPU}&start=-1h&end=2099-01-01").headers["cache-control"] == "no-store"
    assert hub.get("/api/v1/runs").headers["cache-control"] == "no-store"


def test_usage_is_asked_in_its_zone(hub: Place) -> None:
    hub.get("/api/v1/usage?by=group&start=2026-01-01&end=2026-02-01&zone=Europe/Berlin&daily=1&user=alice&model=H200")
    begin, end = 1_767_225_600 - 3600.0, 1_769_904_000 - 3600.0
    asked = UsageQuery("group", begin, end, user="alice", model="H200", daily=True, zone="Europe/Berlin")
    assert hub.store.asked == [asked]


def test_usage_for_spreadsheets_has_no_formulas(hub: Place) -> None:
    hub.store.users = ["alice", '=HYPERLINK("http://evil")', "a,b\r\nc"]
    answer = hub.get("/api/v1/usage?format=csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert "attachment" in answer.headers["content-disposition"]
    rows = list(csv.reader(io.StringIO(answer.text, newline="")))
    assert len(rows) == 4
    assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "@"))]


def test_runs_are_filtered_and_paged(hub: Place) -> None:
    answer = hub.get(f"/api/v1/runs?start={T0}&user=alice&host=gpu01&gpu=GPU-1&now=true&limit=5&before=9")
    assert hub.store.asked == [RunsQuery(T0, None, "alice", "gpu01", "GPU-1", True, 5, 9)]
    assert answer.json()["next"] == 7
    assert answer.json()["runs"][0]["command"] == "python train.py"


def test_one_run_can_be_asked_for(hub: Place) -> None:
    assert hub.get("/api/v1/runs/7").json()["pid"] == 4711
    assert hub.refusal("/api/v1/runs/8")[:2] == (404, "unknown_run")
    assert hub.refusal(f"/api/v1/runs/{2**64}")[:2] == (404, "unknown_run")


def test_verdicts_on_runs_are_asked_for_with_the_faults_of_their_gpus(hub: Place, tmp_path: Path) -> None:
    auth = make_auth(tmp_path)
    events = EventLog(auth.database, EventSettings())
    hub.app = make_app(Hub(), auth=auth, history=hub.store, events=events)
    fault = make_event(RUN.seen_at + 60, "xid", "XID 79 on gpu01:0: it fell off the bus", gpu="GPU-100")
    other = make_event(RUN.seen_at + 60, "xid", "XID 79 on gpu02:0: it fell off the bus", gpu="GPU-200")
    earlier = make_event(RUN.seen_at - 60, "xid", "XID 31 on gpu01:0: illegal memory access", gpu="GPU-100")
    for event in (fault, other, earlier):
        events.add(event)
    (run,) = hub.get("/api/v1/runs?verdict=true").json()["runs"]
    assert run["verdict"]["suggestions"][0]["rule"] == "idle_after_work"
    (asked,) = [one for one in hub.store.asked if isinstance(one, VerdictQuery)]
    assert (asked.run, asked.gpus, asked.command, asked.is_over) == (7, ("GPU-100",), "python train.py", False)
    assert asked.faults == (Fault(RUN.seen_at + 60, 79),)
    assert hub.get("/api/v1/runs").json()["runs"][0]["verdict"] is None
    assert hub.get("/api/v1/runs/7").json()["verdict"]["rating"] == "poor"


@pytest.mark.parametrize("path", ["/api/v1/runs", "/api/v1/runs/7"])
def test_command_lines_of_runs_are_for_those_who_see_them_live(path: str) -> None:
    place = Place(commands="admin")
    hidden = place.get(path, Authorization="Bearer viewer-token").text
    assert "train.py" not in hidden
    assert HIDDEN in hidden
    assert "train.py" in place.get(path, Authorization="Bearer admin-token").text


def test_people_see_the_command_lines_of_their_own_runs() -> None:
    visibility = Visibility("own", frozenset({"alice"}))
    assert [visibility.shows_commands_of(user) for user in ("alice", "bob", None)] == [True, False, False]


def test_few_questions_are_answered_at_once_and_all_in_the_end(hub: Place) -> None:
    async def flood() -> list[int]:
        async with hub.client() as client:
            answers = await asyncio.gather(*(client.get(GPU) for _ in range(12)))
            return [answer.status_code for answer in answers]

    assert asyncio.run(flood()) == [200] * 12
    assert hub.store.at_once == 1


def test_too_many_that_wait_are_told_to_come_back(hub: Place) -> None:
    async def flood() -> list[httpx.Response]:
        hub.store.may_answer.clear()
        async with hub.client() as client:
            asked = [asyncio.create_task(client.get(GPU)) for _ in range(1 + MAX_WAITING + 3)]
            await until(lambda: sum(task.done() for task in asked) == 3)
            live = await client.get("/api/v1/fleet")
            hub.store.may_answer.set()
            return [live, *await asyncio.gather(*asked)]

    live, *answers = asyncio.run(flood())
    refused = [answer for answer in answers if answer.status_code == 503]
    assert live.status_code == 200
    assert len(refused) == 3
    assert int(refused[0].headers["retry-after"]) > 0


def test_one_question_neither_waits_for_a_crowd_of_another_address_nor_finds_no_room_for_it(hub: Place) -> None:
    async def flood() -> tuple[list[int], int, int]:
        hub.store.may_answer.clear()
        async with hub.client("192.0.2.66") as greedy, hub.client() as honest:
            crowd = [asyncio.create_task(greedy.get(GPU)) for _ in range(1 + MAX_WAITING + 1)]
            await until(lambda: sum(task.done() for task in crowd) == 1)
            asked = asyncio.create_task(honest.get(PAST))
            await until(lambda: sum(task.done() for task in crowd) == 2)
            hub.store.may_answer.set()
            status = (await asked).status_code
            place = next(
                at for at, ask in enumerate(hub.store.asked) if isinstance(ask, SeriesQuery) and ask.end == T0 - 3600
            )
            return [answer.status_code for answer in await asyncio.gather(*crowd)], status, place

    crowd, status, place = asyncio.run(flood())
    assert (status, place) == (200, 1)
    assert crowd.count(503) == 2


@pytest.mark.parametrize("pause", [checkpoint, lambda: None], ids=["with checkpoints", "without"])
def test_questions_without_end_leave_the_processor_to_the_live_fleet(pause: Callable[[], None]) -> None:
    """Time that threads worked, beside the time that passed, over what every page may have at once."""
    spent = list[float]()

    def think(_: Store) -> None:
        began = time.thread_time()
        while time.thread_time() - began < 0.04:
            sum(range(2_000))
            pause()
        spent.append(time.thread_time() - began)

    async def crowd() -> float:
        questions, began = HistoryQueries(cast("Store", object())), time.monotonic()
        for _ in range(int(AT_FULL_SPEED / 0.04) * 2):
            await questions.ask(think)
        return time.monotonic() - began

    passed = asyncio.run(crowd())
    assert sum(spent) < (AT_FULL_SPEED + passed * SHARE) * 1.1


def test_who_leaves_gives_no_turn_away_before_the_store_is_done(hub: Place) -> None:
    async def leave() -> int:
        hub.store.may_answer.clear()
        async with hub.client() as client:
            asked = [asyncio.create_task(client.get(GPU)) for _ in range(6)]
            await until(lambda: hub.store.now_asking == 1)
            for task in asked[:5]:
                task.cancel()
            await asyncio.gather(*asked[:5], return_exceptions=True)
            hub.store.may_answer.set()
            return (await asked[5]).status_code

    assert asyncio.run(leave()) == 200
    assert hub.store.at_once == 1
    assert len(hub.store.asked) == 2


def test_the_fleet_of_a_past_moment_has_the_shape_of_the_live_one(hub: Place) -> None:
    answer = hub.get(f"/api/v1/fleet?at={T0}&metrics=power_watts,host_cpu_percent")
    assert hub.store.asked == [MomentQuery(T0, frozenset({"power_watts", "host_cpu_percent"}), 30 * 86_400.0)]
    found = answer.json()
    assert (found["as_of"], found["time"], found["coverage"], found["resolution"]) == (T0, T0, 1.0, "raw")
    assert (found["totals"]["busy"], found["totals"]["gpus"], found["totals"]["users"]) == (1, 1, 1)
    host = found["hosts"][0]
    (gpu,) = host["gpus"]
    assert (host["name"], host["status"], host["cpu_percent"]) == ("gpu01", "up", 12.5)
    assert (gpu["availability"], gpu["power_watts"], gpu["users"]) == ("busy", 650.0, ["alice"])
    assert gpu["memory_used_bytes"] is None
    assert "memory_used_bytes" not in gpu["reasons"]
    assert set(hub.get("/api/v1/fleet").json()) <= set(found)


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("at=yesterday", 400, "bad_request"),
        (f"at={T0}&metrics=power_wats", 400, "unknown_metric"),
        (f"at={T0}&metrics=", 400, "unknown_metric"),
        (f"at={T0}&shape=columns", 400, "bad_request"),
    ],
)
def test_a_moment_that_makes_no_sense_is_refused(hub: Place, query: str, status: int, code: str) -> None:
    assert hub.refusal(f"/api/v1/fleet?{query}")[:2] == (status, code)


def test_commands_of_a_past_moment_are_hidden_like_those_of_now() -> None:
    place = Place(commands="owner")
    (process,) = place.get(f"/api/v1/fleet?at={T0}").json()["hosts"][0]["gpus"][0]["processes"]
    assert (process["command"], process["reasons"]["command"]) == (None, HIDDEN)


def test_curl_shows_a_past_moment_as_a_table(hub: Place) -> None:
    answer = hub.get(f"/?at={T0}", **{"user-agent": "curl/8.0"})
    assert "As of 2026-09-21 14:13 UTC, coverage 100 %" in answer.text
    assert "alice" in answer.text
    wrong = hub.get("/?at=tomorrow", **{"user-agent": "curl/8.0"})
    assert (wrong.status_code, "is not a time" in wrong.text) == (400, True)


def test_curl_is_told_that_a_moment_is_too_old(hub: Place) -> None:
    hub.store.trouble = HistoryRefused("before_history", "nothing was recorded then", "The history begins today.")
    answer = hub.get(f"/?at={T0}", **{"user-agent": "curl/8.0"})
    assert (answer.status_code, answer.text) == (400, "nothing was recorded then. The history begins today.\n")
