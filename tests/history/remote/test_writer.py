"""The sender: nothing is lost that a store would take, and nothing that it refuses stands in the way of the rest."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.certificates import Authority
from fakes.waiting import wait_until
from gpudeck.history.remote.client import PromClient
from gpudeck.history.remote.encoder import EncodedSeries
from gpudeck.history.remote.writer import MAX_VALUES, DiskQueue, QueuedRecord, RemoteWriteSender
from gpudeck.history.settings import HistorySettings
from gpudeck.model.errors import UsageError
from history.remote.servers import TAKEN, Answer, Asked, in_turn, scripted_server

LATE: Answer = (400, {}, b"out of order sample\n")


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[DiskQueue]:
    made = DiskQueue(tmp_path / "queue", 10**6)
    yield made
    made.close()


def fill(queue: DiskQueue, *bodies: bytes, values: int = 1) -> None:
    queue.append([EncodedSeries(body, values, 1.0) for body in bodies])


def sender_to(url: str, queue: DiskQueue, settings: HistorySettings | None = None) -> RemoteWriteSender:
    return RemoteWriteSender(queue, PromClient(url, settings or HistorySettings(), seconds=5.0))


def send_all(sender: RemoteWriteSender, queue: DiskQueue) -> float:
    return sender.send(queue.peek(MAX_VALUES))


def test_request_is_as_remote_write_wants_it(queue: DiskQueue) -> None:
    with scripted_server(in_turn(TAKEN)) as server:
        fill(queue, b"one", b"two")
        assert send_all(sender_to(f"{server.url}/insert/0/prometheus/api/v1/write", queue), queue) == 0
    (asked,) = server.asked
    assert asked.path == "/insert/0/prometheus/api/v1/write"
    assert asked.series == b"onetwo"
    assert asked.headers["content-encoding"] == "snappy"
    assert asked.headers["content-type"] == "application/x-protobuf"
    assert asked.headers["x-prometheus-remote-write-version"] == "0.1.0"
    assert queue.is_empty()


def test_no_request_has_more_than_ten_thousand_values(queue: DiskQueue) -> None:
    fill(queue, b"a", b"b", b"c", values=4_000)
    assert [waiting.part.body for waiting in queue.peek(MAX_VALUES)] == [b"a", b"b"]


@pytest.mark.parametrize("status", [500, 502, 503, 301, 408, 401, 403, 404])
def test_what_may_be_taken_later_stays(queue: DiskQueue, status: int) -> None:
    with scripted_server(in_turn((status, {}, b"not now"), TAKEN)) as server:
        fill(queue, b"one")
        sender = sender_to(server.url, queue)
        assert send_all(sender, queue) > 0
        assert not queue.is_empty()
        assert (sender.sent.problem or "").endswith(f"answers {status}")
        assert send_all(sender, queue) == 0
    assert queue.is_empty()
    assert sender.sent.problem is None
    assert sender.sent.last_success is not None


def test_store_says_how_long_to_wait(queue: DiskQueue) -> None:
    with scripted_server(in_turn((429, {"Retry-After": "40"}, b""))) as server:
        fill(queue, b"one")
        pause = send_all(sender_to(server.url, queue), queue)
    assert 40 <= pause <= 60
    assert not queue.is_empty()


def test_pauses_grow_up_to_half_a_minute(queue: DiskQueue) -> None:
    with scripted_server(in_turn((503, {}, b""))) as server:
        fill(queue, b"one")
        sender = sender_to(server.url, queue)
        pauses = [send_all(sender, queue) for _ in range(12)]
    assert pauses[0] <= 0.5
    assert 15 <= pauses[-1] <= 30


def test_store_that_is_not_there_is_waited_for(queue: DiskQueue) -> None:
    with scripted_server(in_turn(TAKEN)) as server:
        url = server.url
    fill(queue, b"one")
    sender = sender_to(url, queue)
    assert send_all(sender, queue) > 0
    assert "connection refused" in (sender.sent.problem or "").lower()
    assert not queue.is_empty()


def refuse_bad(answer: Answer) -> object:
    return lambda asked: answer if b"bad" in asked.series else TAKEN


def test_refused_record_costs_itself_only(queue: DiskQueue, caplog: pytest.LogCaptureFixture) -> None:
    with scripted_server(refuse_bad((422, {}, b"label too long"))) as server:  # type: ignore[arg-type]
        fill(queue, b"a", b"b", b"bad", b"c", b"bad", b"d", b"e")
        sender = sender_to(server.url, queue)
        assert send_all(sender, queue) == 0
    taken = b"".join(asked.series for asked in server.asked if b"bad" not in asked.series)
    assert taken == b"abcde"
    assert (sender.sent.refused, sender.sent.refused_late, sender.sent.records) == (2, 0, 5)
    assert queue.is_empty()
    assert caplog.text.count("label too long") == 1


def test_store_that_refuses_everything_is_a_problem_that_is_told(queue: DiskQueue) -> None:
    with scripted_server(in_turn((400, {}, b"unsupported path requested: /"))) as server:
        fill(queue, b"a", b"b")
        sender = sender_to(server.url, queue)
        send_all(sender, queue)
    assert (sender.sent.problem or "").endswith("refuses samples with 400.")
    assert sender.sent.refused == 2


def test_late_samples_that_a_store_refuses_are_counted_and_said_once(
    queue: DiskQueue, caplog: pytest.LogCaptureFixture
) -> None:
    with scripted_server(refuse_bad(LATE)) as server:  # type: ignore[arg-type]
        fill(queue, b"a", b"bad", b"b", b"bad")
        sender = sender_to(server.url, queue)
        send_all(sender, queue)
    assert (sender.sent.refused, sender.sent.refused_late, sender.sent.records) == (0, 2, 2)
    assert caplog.text.count("come late") == 1


def test_trouble_in_the_middle_sends_nothing_twice_that_was_taken_apart(queue: DiskQueue) -> None:
    def answer(asked: Asked) -> Answer:
        return LATE if len(asked.series) > 1 else (503, {}, b"") if asked.series == b"c" else TAKEN

    with scripted_server(answer) as server:
        fill(queue, b"a", b"b", b"c", b"d")
        assert send_all(sender_to(server.url, queue), queue) > 0
    assert [waiting.part.body for waiting in queue.peek(MAX_VALUES)] == [b"c", b"d"]


def test_new_token_needs_no_restart(queue: DiskQueue, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")

    def answer(asked: Asked) -> Answer:
        return TAKEN if asked.headers["authorization"] == "Bearer new" else (401, {}, b"who are you")

    with scripted_server(answer) as server:
        fill(queue, b"one")
        sender = sender_to(server.url, queue, HistorySettings(token_file=str(token)))
        token.write_text("new\n")
        assert send_all(sender, queue) > 0
        assert send_all(sender, queue) == 0
    assert queue.is_empty()


def test_name_password_and_tenant_go_with_every_request(queue: DiskQueue, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("open sesame\n")
    settings = HistorySettings(user="hub", password_file=str(tmp_path / "password"), headers={"X-Scope-OrgID": "gpus"})
    with scripted_server(in_turn(TAKEN)) as server:
        fill(queue, b"one")
        send_all(sender_to(server.url, queue, settings), queue)
    (asked,) = server.asked
    assert asked.headers["authorization"] == "Basic aHViOm9wZW4gc2VzYW1l"
    assert asked.headers["x-scope-orgid"] == "gpus"


def test_certificate_of_a_private_authority(queue: DiskQueue, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with scripted_server(in_turn(TAKEN), authority.server_context()) as server:
        fill(queue, b"one")
        distrustful = sender_to(server.url, queue)
        assert send_all(distrustful, queue) > 0
        assert "certificate" in (distrustful.sent.problem or "")
        assert send_all(sender_to(server.url, queue, HistorySettings(ca_file=str(authority.ca_file))), queue) == 0


@pytest.mark.parametrize("header", [{"X-Tenant": "a\nb"}, {"no name": "x"}, {"X": "ü"}])
def test_header_that_cannot_be_sent_is_a_mistake_of_the_configuration(header: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="headers"):
        PromClient("http://store", HistorySettings(headers=header), seconds=1.0)


def test_missing_secret_is_a_mistake_of_the_configuration(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="token"):
        PromClient("http://store", HistorySettings(token_file=str(tmp_path / "none")), seconds=1.0)


def test_thread_survives_what_it_cannot_send(queue: DiskQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudeck.history.remote.writer.MAX_PAUSE", 0.01)
    stop, more, tries = threading.Event(), threading.Event(), []

    def fail(values: int) -> list[QueuedRecord]:
        tries.append(values)
        raise RuntimeError("broken")

    monkeypatch.setattr(queue, "peek", fail)
    thread = threading.Thread(target=sender_to("http://127.0.0.1:1", queue).run, args=(stop, more))
    thread.start()
    wait_until(lambda: len(tries) > 2, "another try")
    stop.set()
    thread.join(10)


def test_thread_sends_what_comes_and_ends_when_told(queue: DiskQueue) -> None:
    stop, more = threading.Event(), threading.Event()
    with scripted_server(in_turn((503, {}, b""), TAKEN)) as server:
        thread = threading.Thread(target=sender_to(server.url, queue).run, args=(stop, more))
        thread.start()
        fill(queue, b"one")
        more.set()
        wait_until(queue.is_empty, "the record's way")
        stop.set()
        more.set()
        thread.join(10)
    assert not thread.is_alive()
    assert server.asked[-1].series == b"one"
