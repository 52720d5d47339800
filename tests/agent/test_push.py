"""The sender against a real HTTP server that misbehaves as told."""

import random
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from fakes.moody_hub import MoodyHub
from fakes.waiting import wait_until
from gpudeck.agent.outbox import EncodedReport, Outbox, ReportTime
from gpudeck.agent.push import FIRST_PAUSE, JITTER, MAX_PAUSE, Sender, read_token
from gpudeck.model.backoff import Backoff
from gpudeck.model.errors import GpudeckError, Unreachable, UsageError


@pytest.fixture
def hub() -> Iterator[MoodyHub]:
    moody = MoodyHub()
    yield moody
    moody.close()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    return file


@pytest.fixture
def outbox() -> Outbox:
    return Outbox(1000, 1_000_000)


@pytest.fixture
def sending(hub: MoodyHub, outbox: Outbox, token_file: Path) -> Iterator[Sender]:
    sender, stop = Sender(outbox, hub.url, token_file, pace=0.0, now=lambda: 123.5), threading.Event()
    thread = threading.Thread(target=sender.run, args=(stop,))
    thread.start()
    yield sender
    stop.set()
    thread.join(10)


def put(outbox: Outbox, *bodies: bytes) -> None:
    for body in bodies:
        outbox.put(EncodedReport("gpu01", body))


def send_next(sender: Sender, outbox: Outbox, count: int) -> list[float]:
    """Send that many reports as the sender's thread would; returns its pauses."""
    pauses = [sender.send_next(0) for _ in range(count)]
    sender.close()
    return [pause for pause in pauses if pause is not None]


def test_first_answer_of_a_hub_that_takes_late_reports_lets_the_newest_go_first(
    hub: MoodyHub, outbox: Outbox, token_file: Path
) -> None:
    sender = Sender(outbox, hub.url, token_file, pace=0.0)
    put(outbox, b"1", b"2", b"3", b"4")
    send_next(sender, outbox, 3)
    put(outbox, b"5")
    send_next(sender, outbox, 2)
    assert hub.taken == [b"1", b"4", b"2", b"5", b"3"]


def test_hub_that_was_away_gets_the_newest_report_first(hub: MoodyHub, outbox: Outbox, token_file: Path) -> None:
    sender = Sender(outbox, hub.url, token_file, pace=0.0)
    put(outbox, b"1")
    send_next(sender, outbox, 1)
    hub.moods = [503]
    put(outbox, b"2")
    send_next(sender, outbox, 1)
    put(outbox, b"3", b"4")
    send_next(sender, outbox, 3)
    assert hub.taken == [b"1", b"4", b"2", b"3"]


def test_hub_that_takes_no_late_reports_gets_the_oldest_first(hub: MoodyHub, outbox: Outbox, token_file: Path) -> None:
    hub.takes_late = False
    sender = Sender(outbox, hub.url, token_file, pace=0.0)
    put(outbox, b"1", b"2", b"3")
    send_next(sender, outbox, 3)
    assert hub.taken == [b"1", b"2", b"3"]


def test_answer_to_a_repeated_report_says_nothing_of_late_ones(hub: MoodyHub, outbox: Outbox, token_file: Path) -> None:
    sender = Sender(outbox, hub.url, token_file, pace=0.0)
    hub.moods = [202, 200]
    put(outbox, b"1")
    send_next(sender, outbox, 1)
    put(outbox, b"2")
    send_next(sender, outbox, 1)
    put(outbox, b"3", b"4", b"5")
    send_next(sender, outbox, 3)
    assert hub.taken == [b"1", b"5", b"3", b"4"]


def test_replaced_agent_keeps_its_backlog_until_it_is_heard_again(
    hub: MoodyHub, outbox: Outbox, token_file: Path
) -> None:
    """A report of the backlog that is refused so is dropped, as any other that is refused."""
    sender = Sender(outbox, hub.url, token_file, pace=0.0)
    put(outbox, b"0")
    send_next(sender, outbox, 1)
    hub.code, hub.moods = "replaced", [409, 409, 202, 409]
    put(outbox, b"1", b"2", b"3", b"4")
    send_next(sender, outbox, 2)
    assert (len(outbox), len(hub.seen)) == (3, 2)
    put(outbox, b"5")
    send_next(sender, outbox, 1)
    put(outbox, b"6")
    send_next(sender, outbox, 5)
    assert (hub.taken, sender.refused) == ([b"0", b"6", b"2", b"3"], 3)


@pytest.mark.parametrize("step", [0.0, 3600.0, -3600.0])
def test_clock_that_is_set_while_a_report_waits_does_not_misfile_it(
    hub: MoodyHub, outbox: Outbox, token_file: Path, step: float
) -> None:
    sender = Sender(outbox, hub.url, token_file, pace=0.0, now=lambda: 1060.0 + step, boottime=lambda: 560.0)
    outbox.put(EncodedReport("gpu01", b"1", ReportTime(1000.0, 500.0)))
    send_next(sender, outbox, 1)
    assert hub.seen == [("Bearer s3cret", "1060.0")]


@pytest.mark.usefixtures("sending")
def test_reports_arrive_with_token_and_time(hub: MoodyHub, outbox: Outbox) -> None:
    put(outbox, b"1", b"2", b"3")
    wait_until(lambda: len(hub.taken) == 3, "three reports")
    assert sorted(hub.taken) == [b"1", b"2", b"3"]
    assert hub.seen[0] == ("Bearer s3cret", "123.5")


@pytest.mark.usefixtures("sending")
@pytest.mark.parametrize("mood", [500, 502, 503, 429, 404])
def test_a_hub_in_trouble_gets_the_same_report_again(hub: MoodyHub, outbox: Outbox, mood: int) -> None:
    hub.moods = [mood, mood]
    put(outbox, b"1", b"2")
    wait_until(lambda: len(hub.taken) == 2, "both reports")
    assert hub.taken == [b"1", b"2"]
    assert len(hub.seen) == 4


@pytest.mark.parametrize("mood", [400, 409, 413, 415, 422])
def test_a_refused_report_does_not_block_the_ones_behind_it(
    hub: MoodyHub, outbox: Outbox, sending: Sender, mood: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    hub.moods = [mood, mood]
    put(outbox, b"bad", b"bad", b"good")
    wait_until(lambda: hub.taken == [b"good"], "the good report")
    wait_until(lambda: "accepts reports again" in caplog.text, "the notice")
    assert sending.refused == 2
    assert (caplog.text.count(f"answered {mood}"), caplog.text.count("accepts reports again")) == (1, 1)


@pytest.mark.usefixtures("sending")
def test_reason_of_a_refusal_is_written_whole_and_as_text(
    hub: MoodyHub, outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    hub.message, hub.hint = "the token 'all agents' has brought 2000 hosts", f"Remove hosts{' that are down' * 20}."
    hub.moods = [429]
    put(outbox, b"1")
    wait_until(lambda: hub.taken == [b"1"], "the report")
    assert f"answered 429: {hub.message}. {hub.hint}" in caplog.text


def test_a_new_token_is_picked_up_after_a_refusal(
    hub: MoodyHub, outbox: Outbox, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Backoff, "fail", lambda *_: 0.0)
    sender, stop = Sender(outbox, hub.url, token_file, pace=0.0), threading.Event()
    hub.moods = [401]
    token_file.write_text("n3w\n")
    put(outbox, b"1")
    thread = threading.Thread(target=sender.run, args=(stop,))
    thread.start()
    wait_until(lambda: hub.taken == [b"1"], "the report")
    stop.set()
    thread.join(10)
    assert [seen[0] for seen in hub.seen] == ["Bearer s3cret", "Bearer n3w"]


def test_a_hub_that_is_away_is_waited_for(outbox: Outbox, token_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens first; the same address is served later; everything arrives, in order."""
    failed = threading.Event()
    monkeypatch.setattr(Backoff, "fail", lambda *_: failed.set() or 0.05)  # type: ignore[func-returns-value]
    moody = MoodyHub()
    port = moody.server.server_port
    moody.close()
    sender, stop = Sender(outbox, moody.url, token_file, pace=0.0), threading.Event()
    thread = threading.Thread(target=sender.run, args=(stop,))
    thread.start()
    put(outbox, b"1", b"2")
    assert failed.wait(10)
    back = ThreadingHTTPServer(("127.0.0.1", port), moody.server.RequestHandlerClass)
    back.daemon_threads = True
    server = threading.Thread(target=back.serve_forever, args=(0.02,))
    server.start()
    wait_until(lambda: moody.taken == [b"1", b"2"], "both reports")
    stop.set()
    thread.join(10)
    back.shutdown()
    back.server_close()
    server.join()


def test_a_backlog_is_sent_at_a_bounded_pace_and_a_single_report_at_once(
    hub: MoodyHub, outbox: Outbox, token_file: Path
) -> None:
    sender = Sender(outbox, hub.url, token_file, pace=7.5)
    put(outbox, b"1", b"2")
    assert send_next(sender, outbox, 2) == [7.5, 0.0]


def make_backoff(seed: int) -> Backoff:
    return Backoff(FIRST_PAUSE, MAX_PAUSE, JITTER, random.Random(seed).random)


def test_pauses_grow_and_never_march_in_step() -> None:
    backoff = make_backoff(1)
    pauses = [backoff.fail() for _ in range(40)]
    others = [make_backoff(seed) for seed in range(50)]
    firsts = {round(other.fail(), 3) for other in others}
    assert max(pauses[:3]) <= 4.0
    assert max(pauses) <= MAX_PAUSE
    assert min(pauses[10:]) >= MAX_PAUSE * 0.2
    assert len(firsts) > 40


def test_what_the_hub_asks_for_is_the_least() -> None:
    assert 30.0 <= make_backoff(1).fail(30.0) <= 45.0


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe", "tökén\n".encode(), b"a\tb\n"])
def test_a_file_without_a_token_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=str(file)):
        read_token(file)


def test_single_report_arrives_past_the_outbox(hub: MoodyHub, outbox: Outbox, token_file: Path) -> None:
    Sender(outbox, hub.url, token_file, pace=0.0).send_now(EncodedReport("gpu01", b"one"))
    assert hub.taken == [b"one"]


@pytest.mark.parametrize(
    ("mood", "kind"), [(401, GpudeckError), (403, GpudeckError), (422, GpudeckError), (503, Unreachable)]
)
def test_single_report_that_is_not_taken_says_why(
    hub: MoodyHub, outbox: Outbox, token_file: Path, mood: int, kind: type[GpudeckError]
) -> None:
    hub.moods = [mood]
    with pytest.raises(GpudeckError) as raised:
        Sender(outbox, hub.url, token_file, pace=0.0).send_now(EncodedReport("gpu01", b"one"))
    assert type(raised.value) is kind


def put_with_short(outbox: Outbox, *numbers: int, description: str = "same", host: str = "gpu01") -> None:
    for number in numbers:
        whole, short = b"whole %d" % number, b"short %d" % number
        outbox.put(EncodedReport(host, whole, description=description, short=short))


@pytest.fixture
def sender(hub: MoodyHub, outbox: Outbox, token_file: Path) -> Sender:
    hub.version = "2"
    return Sender(outbox, hub.url, token_file, pace=0.0)


def send_each(sender: Sender, outbox: Outbox, *numbers: int, description: str = "same") -> None:
    """One report after another, as a hub that is there gets them."""
    for number in numbers:
        put_with_short(outbox, number, description=description)
        send_next(sender, outbox, 1)


def test_reports_are_short_after_a_whole_one_until_the_description_changes(
    hub: MoodyHub, outbox: Outbox, sender: Sender
) -> None:
    send_each(sender, outbox, 1, 2, 3)
    send_each(sender, outbox, 4, 5, description="other")
    send_each(sender, outbox, 6)
    assert hub.bodies == [b"whole 1", b"short 2", b"short 3", b"whole 4", b"short 5", b"whole 6"]


@pytest.mark.parametrize(
    ("version", "is_short"), [(None, False), ("", False), ("1", False), ("two", False), ("²", False), ("3", True)]
)
def test_reports_are_short_only_for_a_hub_that_says_it_reads_them(
    hub: MoodyHub, outbox: Outbox, sender: Sender, version: str | None, is_short: bool
) -> None:
    hub.version = None if version is None else version.encode().decode("latin-1")
    send_each(sender, outbox, 1, 2)
    assert hub.bodies == [b"whole 1", b"short 2" if is_short else b"whole 2"]


def test_each_host_is_described_by_itself(hub: MoodyHub, outbox: Outbox, sender: Sender) -> None:
    send_each(sender, outbox, 1, 2)
    put_with_short(outbox, 3, host="gpu02")
    send_next(sender, outbox, 1)
    assert hub.bodies == [b"whole 1", b"short 2", b"whole 3"]


@pytest.mark.parametrize("mood", [400, 413, 415, 422, 428])
def test_short_report_that_is_refused_is_sent_whole_at_once(
    hub: MoodyHub, outbox: Outbox, sender: Sender, mood: int, caplog: pytest.LogCaptureFixture
) -> None:
    """428: the hub was started again, or is another one. 400: it is an older one now."""
    send_each(sender, outbox, 1)
    hub.moods = [mood]
    send_each(sender, outbox, 2, 3)
    assert hub.bodies == [b"whole 1", b"short 2", b"whole 2", b"short 3"]
    assert (hub.taken, sender.refused, caplog.text) == ([b"whole 1", b"whole 2", b"short 3"], 0, "")


def test_hub_that_refuses_both_forms_gets_each_report_twice_at_most(
    hub: MoodyHub, outbox: Outbox, sender: Sender
) -> None:
    send_each(sender, outbox, 1)
    hub.moods = [428, 422, 422]
    send_each(sender, outbox, 2, 3)
    assert hub.bodies == [b"whole 1", b"short 2", b"whole 2", b"whole 3"]
    assert (sender.refused, len(outbox)) == (2, 0)


def test_hub_that_no_longer_says_it_reads_short_reports_gets_whole_ones(
    hub: MoodyHub, outbox: Outbox, sender: Sender
) -> None:
    send_each(sender, outbox, 1, 2)
    hub.version = None
    send_each(sender, outbox, 3, 4)
    assert hub.bodies == [b"whole 1", b"short 2", b"short 3", b"whole 4"]


def test_whole_report_that_the_hub_had_already_describes_nothing(hub: MoodyHub, outbox: Outbox, sender: Sender) -> None:
    hub.moods = [200]
    send_each(sender, outbox, 1, 2, 3)
    assert hub.bodies == [b"whole 1", b"whole 2", b"short 3"]


def test_short_report_to_a_hub_in_trouble_waits_as_any_other(hub: MoodyHub, outbox: Outbox, sender: Sender) -> None:
    send_each(sender, outbox, 1)
    hub.moods = [503]
    send_each(sender, outbox, 2)
    assert len(outbox) == 1
    send_next(sender, outbox, 1)
    assert hub.bodies == [b"whole 1", b"short 2", b"short 2"]
    assert len(outbox) == 0


def test_hub_that_did_not_answer_gets_a_whole_report_next(hub: MoodyHub, outbox: Outbox, sender: Sender) -> None:
    send_each(sender, outbox, 1)
    hub.close()
    send_each(sender, outbox, 2)
    again = MoodyHub(hub.server.server_port)
    again.version = hub.version
    try:
        send_next(sender, outbox, 1)
        assert again.bodies == [b"whole 2"]
        send_each(sender, outbox, 3)
        assert again.bodies == [b"whole 2", b"short 3"]
    finally:
        again.close()
