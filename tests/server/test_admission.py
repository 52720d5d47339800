"""Callers who ask too often are told to wait, and nobody else is."""

import asyncio
import threading
import tracemalloc
from collections import Counter
from typing import Any, cast

import httpx
import msgspec
import pytest
import zstandard

from fakes.api_app import make_app
from fakes.clock import FakeClock
from fakes.reports import make_envelope, make_gpu
from gpudeck.api import history as questions_module
from gpudeck.api.fleet import GPUS_AT_ONCE
from gpudeck.api.history import HistoryQueries
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.visibility import Visibility
from gpudeck.history.base import Store
from gpudeck.model.settings import LimitsSettings
from gpudeck.model.view import Gpu
from gpudeck.server.addresses import Callers, count_as
from gpudeck.server.admission import BYTES_A_REQUEST, FILES_A_REQUEST, AdmissionGate, exclude_wait
from gpudeck.server.asgi import ErrorBody
from gpudeck.server.rate_limits import RateLimiter
from gpudeck.wire import MAX_DECODED_BYTES, encode

GOOD = {"Authorization": "Bearer agent-token", "Content-Type": "application/msgpack", "Content-Encoding": "zstd"}
BAD = GOOD | {"Authorization": "Bearer guessed"}
FEW = LimitsSettings(
    requests_per_second=1.0,
    requests_burst=3,
    reports_per_second=1.0,
    reports_burst=5,
    logins_per_second=0.1,
    logins_burst=2,
    streams_per_address=2,
    streams=3,
)


class Guarded:
    """The hub's ASGI application behind limits, asked from whatever address."""

    def __init__(self, settings: LimitsSettings = FEW, **options: Any) -> None:
        self.clock = FakeClock()
        self.hub = Hub()
        self.app = AdmissionGate(make_app(self.hub), settings, now=self.clock, hold=0.0, **options)
        self._sequence = 0

    def call(self, method: str, path: str, address: str = "192.0.2.1", **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, client=(address, 4711))  # type: ignore[arg-type]
            async with httpx.AsyncClient(transport=transport, base_url="http://hub") as client:
                return await client.request(method, path, **options)

        return asyncio.run(ask())

    def get(self, address: str = "192.0.2.1", path: str = "/healthz", **headers: str) -> int:
        return self.call("GET", path, address, headers=headers).status_code

    def report(self, address: str = "192.0.2.1", headers: dict[str, str] = GOOD) -> int:
        self._sequence += 1
        body = encode(make_envelope(sequence=self._sequence))
        return self.call("POST", "/api/v1/reports", address, content=body, headers=headers).status_code


@pytest.fixture
def guarded() -> Guarded:
    return Guarded()


def test_an_address_that_asks_too_often_waits_and_others_are_served(guarded: Guarded) -> None:
    assert [guarded.get() for _ in range(5)] == [200, 200, 200, 429, 429]
    assert guarded.get("192.0.2.2") == 200
    assert guarded.app.hits == {"requests": 2}
    guarded.clock.advance(1.0)
    assert [guarded.get(), guarded.get()] == [200, 429]


def test_a_refusal_says_when_to_come_back_in_the_one_shape_of_errors() -> None:
    guarded = Guarded(LimitsSettings(requests_per_second=0.1, requests_burst=1))
    guarded.get()
    answer = guarded.call("GET", "/api/v1/fleet")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "10")
    assert msgspec.json.decode(answer.content, type=ErrorBody).error.code == "too_many"
    guarded.clock.advance(10.0)
    assert guarded.get() == 200


def test_a_good_token_is_heard_while_others_at_its_address_flood(guarded: Guarded) -> None:
    assert guarded.report() == 202
    assert [guarded.get() for _ in range(3)] == [200, 200, 429]
    assert [guarded.report() for _ in range(5)] == [202, 202, 202, 202, 429]
    assert guarded.app.hits == {"requests": 1, "reports": 1}
    assert guarded.report("192.0.2.2") == 202


def test_guessing_tokens_counts_however_many_are_guessed(guarded: Guarded) -> None:
    guesses = [BAD | {"Authorization": f"Bearer guess-{number}"} for number in range(5)]
    assert [guarded.report(headers=guess) for guess in guesses] == [401, 401, 401, 429, 429]


def test_logging_in_has_a_measure_of_its_own(guarded: Guarded) -> None:
    answers = [guarded.call("POST", "/api/v1/login", json={}).status_code for _ in range(4)]
    assert answers[2:] == [429, 429]
    assert 429 not in answers[:2]
    assert guarded.get() == 200


def test_callbacks_beyond_the_limit_of_logins_are_told_so_and_count_as_requests(guarded: Guarded) -> None:
    answers = [guarded.get(path="/api/v1/login/oidc/sso/callback") for _ in range(6)]
    # This hub has no provider.
    assert answers == [404, 404, 404, 404, 404, 429]
    assert guarded.app.hits == {"logins": 4, "requests": 1}


def test_a_prefix_does_not_open_another_limit(guarded: Guarded) -> None:
    answers = [guarded.call("POST", "/gpus/api/v1/login", json={}).status_code for _ in range(3)]
    assert answers[2] == 429


@pytest.mark.parametrize("path", ["/api/v1/login/", "//api/v1/login", "/api/v1//login", "/gpus/api//v1/login//"])
def test_slashes_that_are_too_many_do_not_open_another_limit(guarded: Guarded, path: str) -> None:
    answers = [guarded.call("POST", f"http://hub{path}", json={}).status_code for _ in range(3)]
    assert answers[2] == 429
    assert guarded.app.hits == {"logins": 1}


class Streaming:
    """A stream that stays open until `end`."""

    def __init__(self, app: AdmissionGate, address: str) -> None:
        self._end = asyncio.Event()
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/api/v1/stream",
            "query_string": b"",
            "headers": [],
            "client": (address, 1),
        }
        self._task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self._end.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status.set_result(message["status"])

    async def end(self) -> None:
        self._end.set()
        await self._task


def test_streams_are_counted_while_they_are_open() -> None:
    async def open_streams() -> list[int]:
        app = AdmissionGate(make_app(Hub()), msgspec.structs.replace(FEW, requests_burst=100), hold=0.0)
        streams = []
        for address in ["192.0.2.1"] * 3 + ["192.0.2.2"] * 2:
            streams.append(Streaming(app, address))
            await streams[-1].status
        await streams[0].end()
        streams.append(Streaming(app, "192.0.2.2"))
        statuses = [await stream.status for stream in streams]
        for stream in streams:
            await stream.end()
        assert app.hits == {"streams_per_address": 1, "streams": 1}
        return statuses

    assert asyncio.run(open_streams()) == [200, 200, 429, 200, 429, 200]


def test_addresses_without_limits_are_never_told_to_wait() -> None:
    guarded = Guarded(msgspec.structs.replace(FEW, unlimited=["192.0.2.0/28"]))
    assert [guarded.get() for _ in range(10)] == [200] * 10
    assert [guarded.get("192.0.2.99") for _ in range(4)] == [200, 200, 200, 429]


def test_neighbours_in_ipv6_count_as_one(guarded: Guarded) -> None:
    assert [guarded.get(f"2001:db8::{number:x}") for number in range(4)] == [200, 200, 200, 429]
    assert guarded.get("2001:db8:0:1::1") == 200


def test_an_ipv4_caller_of_a_socket_for_both_is_the_same_caller(guarded: Guarded) -> None:
    assert [guarded.get("192.0.2.1"), guarded.get("::ffff:192.0.2.1"), guarded.get(), guarded.get()] == [
        200,
        200,
        200,
        429,
    ]


def test_an_address_that_an_anonymous_caller_claims_does_not_count(guarded: Guarded) -> None:
    answers = [guarded.get(**{"X-Forwarded-For": f"203.0.113.{number}"}) for number in range(4)]
    assert answers == [200, 200, 200, 429]


def test_behind_a_trusted_proxy_each_caller_counts_alone() -> None:
    guarded = Guarded(proxies=["192.0.2.1"])
    assert [guarded.get(**{"X-Forwarded-For": "203.0.113.7"}) for _ in range(4)] == [200, 200, 200, 429]
    assert guarded.get(**{"X-Forwarded-For": "203.0.113.8"}) == 200
    # Whoever writes the header himself is still the one whom the proxy has heard.
    assert guarded.get(**{"X-Forwarded-For": "198.51.100.1, 203.0.113.7"}) == 429


@pytest.mark.parametrize(
    ("told", "address"),
    [
        ([], "10.0.0.1"),
        ([b""], "10.0.0.1"),
        ([b"203.0.113.7"], "203.0.113.7"),
        ([b"203.0.113.7, 10.0.0.2"], "203.0.113.7"),
        ([b"1.1.1.1, 203.0.113.7, 10.0.0.2"], "203.0.113.7"),
        ([b"203.0.113.7", b"10.0.0.2"], "203.0.113.7"),
        ([b"203.0.113.7:55555"], "203.0.113.7"),
        ([b"[2001:db8::1]:443"], "2001:db8::1"),
        ([b"203.0.113.7, nonsense"], "10.0.0.1"),
        ([b"nonsense, 10.0.0.2"], "10.0.0.2"),
        ([b"10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ([b"::ffff:203.0.113.7"], "203.0.113.7"),
        ([b"," * 100_000 + b"203.0.113.7"], "203.0.113.7"),
        ([b"\xff\xfe"], "10.0.0.1"),
    ],
)
def test_the_rightmost_stranger_is_the_caller(told: list[bytes], address: str) -> None:
    headers = [(b"x-forwarded-for", value) for value in told]
    scope: dict[str, Any] = {"client": ("10.0.0.1", 1), "headers": headers, "scheme": "http"}
    assert Callers(["10.0.0.0/8"]).place(scope) == scope["client"][0] == address


def test_the_scheme_is_what_a_trusted_proxy_says() -> None:
    scopes: list[dict[str, Any]] = [
        {"client": (address, 1), "headers": [(b"x-forwarded-proto", b"https")], "scheme": "http"}
        for address in ("10.0.0.1", "192.0.2.1")
    ]
    callers = Callers(["10.0.0.1"])
    for scope in scopes:
        callers.place(scope)
    assert [scope["scheme"] for scope in scopes] == ["https", "http"]


@pytest.mark.parametrize("address", ["", "unix", "fe80::1%eth0", "not an address"])
def test_an_address_that_is_none_counts_as_something(address: str) -> None:
    assert isinstance(count_as(address), str)


def test_a_burst_in_one_instant_is_allowed_whatever_the_clock_says() -> None:
    for step in range(1000):
        now = 1243.99 + step * 0.0137
        measure = RateLimiter("requests", per_second=0.001, burst=3)
        assert [measure.take("a", now) > 0 for _ in range(4)] == [False, False, False, True]


def test_memory_for_callers_is_bounded_and_recent_ones_are_remembered() -> None:
    measure = RateLimiter("requests", per_second=1.0, burst=1, max_callers=100)
    measure.take("flooding", 0.0)
    refusals = 0
    for number in range(10_000):
        measure.take(f"caller {number}", 0.0)
        refusals += measure.take("flooding", 0.0) > 0
    assert len(measure) <= 200
    assert refusals == 10_000


def test_reports_that_have_to_be_unpacked_to_be_refused_cost_more() -> None:
    guarded = Guarded(msgspec.structs.replace(FEW, requests_burst=30, reports_burst=60))
    bomb = zstandard.ZstdCompressor().compress(bytes(MAX_DECODED_BYTES + 1))

    def send_bomb() -> int:
        return guarded.call("POST", "/api/v1/reports", content=bomb, headers=GOOD).status_code

    assert [send_bomb() for _ in range(3)] == [413, 413, 429]
    guarded.clock.advance(60)
    assert guarded.report() == 202
    assert [send_bomb() for _ in range(4)] == [413, 413, 413, 429]
    assert guarded.report() == 429


def test_large_answers_cost_more() -> None:
    guarded = Guarded(msgspec.structs.replace(FEW, requests_burst=10))
    for number in range(40):
        gpus = [make_gpu(index, uuid=f"{number}-{index}") for index in range(8)]
        envelope = make_envelope(f"gpu{number:03}", 1, gpus, host_id=str(number))
        guarded.hub.fleet.apply(envelope, via="push", now=guarded.hub.started_at)
    size = len(guarded.call("GET", "/api/v1/fleet", "192.0.2.9", headers={"Accept-Encoding": "identity"}).content)
    assert size > BYTES_A_REQUEST
    headers = {"Accept-Encoding": "identity"}
    answers = [guarded.call("GET", "/api/v1/fleet", headers=headers).status_code for _ in range(10)]
    assert 1 <= answers.count(200) <= 10 // (1 + size / BYTES_A_REQUEST) + 1
    assert answers[-1] == 429


def test_the_largest_answer_may_be_asked_for_every_second() -> None:
    clock = FakeClock()

    async def tell_all(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(40 * BYTES_A_REQUEST)})

    app = AdmissionGate(tell_all, LimitsSettings(), now=clock, hold=0.0)

    async def ask() -> int:
        transport = httpx.ASGITransport(app, client=("192.0.2.1", 4711))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://hub") as client:
            status = (await client.get("/")).status_code
        clock.now += 1.0
        return status

    assert [asyncio.run(ask()) for _ in range(30)] == [200] * 30


def test_answers_that_take_long_cost_more_and_no_more_than_so_much() -> None:
    clock = FakeClock()

    async def think(scope: Any, receive: Any, send: Any) -> None:
        clock.now += 3.0 if scope["path"] == "/year" else 0.0
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    settings = LimitsSettings(requests_per_second=1.0, requests_burst=20)
    app = AdmissionGate(think, settings, now=clock, hold=0.0)

    async def ask(path: str) -> int:
        transport = httpx.ASGITransport(app, client=("192.0.2.1", 4711))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://hub") as client:
            return (await client.get(path)).status_code

    quick = [asyncio.run(ask("/now")) for _ in range(5)]
    slow = [asyncio.run(ask("/year")) for _ in range(2)]
    # 5, then 1 + 10 for each of these: the second is still let in, and what comes next has to wait.
    assert [*quick, *slow, asyncio.run(ask("/now"))] == [200] * 7 + [429]
    clock.now += 20.0
    assert asyncio.run(ask("/now")) == 200


@pytest.mark.parametrize("says_its_size", [True, False])
def test_a_report_that_unpacks_into_half_a_gigabyte_takes_no_memory(guarded: Guarded, says_its_size: bool) -> None:
    packer = zstandard.ZstdCompressor(level=3, write_content_size=says_its_size)
    bomb = packer.compress(bytes(64 * MAX_DECODED_BYTES))
    tracemalloc.start()
    try:
        answer = guarded.call("POST", "/api/v1/reports", content=bomb, headers=GOOD)
        highest = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert answer.status_code in {400, 413}
    assert highest < 3 * MAX_DECODED_BYTES
    assert guarded.hub.fleet.hosts == {}


def test_a_network_that_is_none_is_a_mistake_of_the_configuration() -> None:
    with pytest.raises(ValueError, match=r"unlimited names '10\.0\.0\.0/99', which is no address and no network"):
        LimitsSettings(unlimited=["10.0.0.0/99"])


class Starts:
    """A gate with requests that only note in which order they start: each is one of the address with its name."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.gate = AdmissionGate(self._note, LimitsSettings(), hold=0.0)

    async def _note(self, scope: Any, _receive: Any, _send: Any) -> None:
        self.order.append(scope["client"][0])

    async def start(self, name: str) -> None:
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": (name, 1)}
        await self.gate(scope, cast("Any", None), cast("Any", None))

    async def note_turns(self, number: int) -> None:
        for _ in range(number):
            self.order.append("turn")
            await asyncio.sleep(0)


def test_requests_start_one_by_one_and_others_are_served_between_them() -> None:
    async def crowd() -> list[str]:
        starts = Starts()
        await asyncio.gather(*map(starts.start, "abc"), starts.note_turns(6))
        return starts.order

    order = asyncio.run(crowd())
    assert [name for name in order if name != "turn"] == ["a", "b", "c"]
    assert all("turn" in order[order.index(one) : order.index(next_one)] for one, next_one in ("ab", "bc"))


def test_a_caller_with_few_requests_does_not_wait_for_one_with_many() -> None:
    async def crowd() -> list[str]:
        starts = Starts()
        await asyncio.gather(*map(starts.start, ["greedy", "greedy", "greedy", "first", "second"]))
        return starts.order

    assert asyncio.run(crowd()) == ["greedy", "first", "second", "greedy", "greedy"]


def test_what_an_address_has_had_decides_when_it_comes_in() -> None:
    order = list[str]()

    async def note(scope: Any, receive: Any, send: Any) -> None:
        order.append(scope["client"][0])

    async def ask(*addresses: str) -> None:
        app = AdmissionGate(note, LimitsSettings(), hold=0.0)
        scopes = [{"type": "http", "method": "GET", "path": "/", "headers": [], "client": (it, 1)} for it in addresses]
        await asyncio.gather(*(app(scope, cast("Any", None), cast("Any", None)) for scope in scopes))

    asyncio.run(ask(*["192.0.2.1"] * 9, "192.0.2.2"))
    # The first found nobody there, the second waited as the first of its address does.
    assert order.index("192.0.2.2") <= 2
    assert len(order) == 10


@pytest.mark.parametrize("prefix", ["", "/gpus"])
def test_files_of_the_page_cost_a_part_of_a_request(prefix: str) -> None:
    guarded = Guarded(LimitsSettings(requests_per_second=0.01, requests_burst=10), prefix=prefix)
    statuses = [guarded.get(path=f"{prefix}/assets/none.js") for _ in range(9 * FILES_A_REQUEST - 1)]
    assert 429 not in statuses
    assert [guarded.get(path=path) for path in ("/api/v1/fleet", "/assets/none.js")] == [200, 429]


def test_new_addresses_do_not_starve_a_waiting_one() -> None:
    clock, order = FakeClock(), list[str]()

    async def note(scope: Any, receive: Any, send: Any) -> None:
        order.append(scope["client"][0])
        clock.now += 0.01

    async def come(app: AdmissionGate, address: str) -> None:
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": (address, 1)}
        await app(scope, cast("Any", None), cast("Any", None))

    async def crowd() -> None:
        app = AdmissionGate(note, LimitsSettings(), now=clock, hold=0.0)
        waiting = [asyncio.create_task(come(app, "192.0.2.1")) for _ in range(20)]
        # Two new ones in each turn: more than come in.
        for number in range(200):
            waiting += [asyncio.create_task(come(app, f"10.0.{number}.{of}")) for of in range(2)]
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)

    asyncio.run(crowd())
    # What it has had is made up for within 0.4 s, in which 40 come in.
    assert order[:120].count("192.0.2.1") == 20


def test_time_that_a_question_waited_for_others_costs_nothing() -> None:
    clock = FakeClock()

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        clock.now += 3.0
        exclude_wait(3.0)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    app = AdmissionGate(wait, LimitsSettings(requests_per_second=0.01, requests_burst=30), now=clock, hold=0.0)

    async def ask() -> int:
        transport = httpx.ASGITransport(app, client=("192.0.2.1", 4711))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://hub") as client:
            return (await client.get("/history")).status_code

    assert [asyncio.run(ask()) for _ in range(31)] == [200] * 30 + [429]


def test_question_about_the_past_is_charged_for_its_work_and_not_for_its_place_in_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    excused: list[float] = []
    monkeypatch.setattr(questions_module, "exclude_wait", excused.append)
    free = threading.Event()

    async def crowd() -> None:
        questions = HistoryQueries(cast("Store", object()))
        asking = [asyncio.create_task(questions.ask(lambda _: free.wait(20))) for _ in range(3)]
        await asyncio.sleep(0.2)
        free.set()
        await asyncio.gather(*asking)

    asyncio.run(crowd())
    # None of them had a processor to do anything with, and all of them waited.
    assert min(excused) > 0.1
    assert len(excused) == 3


def test_however_many_ask_for_long_lists_one_turn_makes_a_part_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = Guarded(LimitsSettings())
    for number in range(3 * GPUS_AT_ONCE):
        envelope = make_envelope(f"gpu{number:03}", 1, [make_gpu(0, uuid=f"{number}")], host_id=str(number))
        guarded.hub.fleet.apply(envelope, via="push", now=guarded.hub.started_at)
    turn, made = 0, Counter[int]()
    see = Visibility.gpu

    def see_and_count(visibility: Visibility, gpu: Gpu) -> Gpu:
        made[turn] += 1
        return see(visibility, gpu)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def crowd() -> None:
        transport = httpx.ASGITransport(guarded.app, client=("192.0.2.1", 4711))  # type: ignore[arg-type]
        counting = asyncio.create_task(count_turns())
        async with httpx.AsyncClient(transport=transport, base_url="http://hub") as client:
            await asyncio.gather(*(client.get("/api/v1/gpus") for _ in range(5)))
        counting.cancel()

    monkeypatch.setattr(Visibility, "gpu", see_and_count)
    asyncio.run(crowd())
    assert (made.total(), max(made.values())) == (5 * 3 * GPUS_AT_ONCE, GPUS_AT_ONCE)


def test_a_request_that_is_cancelled_while_it_waits_delays_no_other() -> None:
    async def crowd() -> list[str]:
        starts = Starts()
        tasks = [asyncio.create_task(starts.start(name)) for name in "abc"]
        await asyncio.sleep(0)
        tasks[1].cancel()
        async with asyncio.timeout(20):
            await asyncio.gather(*tasks, return_exceptions=True)
            await starts.start("d")
        return starts.order

    assert asyncio.run(crowd()) == ["a", "c", "d"]
