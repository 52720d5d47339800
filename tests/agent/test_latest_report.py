"""The desk: the newest report in the form that is asked for, with its age told honestly."""

import json

import pytest

from fakes.clock import FakeClock
from fakes.reports import make_envelope
from gpudeck.agent.listen import LatestReport
from gpudeck.agent.outbox import EncodedReport, ReportTime
from gpudeck.wire import decode, encode


@pytest.fixture
def desk() -> LatestReport:
    filled = LatestReport(FakeClock(1_790_000_007.5))
    filled.put(EncodedReport("gpu01", encode(make_envelope(sequence=1))))
    filled.put(EncodedReport("gpu01", encode(make_envelope(sequence=2))))
    return filled


def test_the_newest_report_is_told_with_the_clock_of_the_answer(desk: LatestReport) -> None:
    answer = desk.report("application/msgpack", "zstd")
    envelope = decode(answer.body, answer.headers["Content-Type"], answer.headers["Content-Encoding"])
    assert (answer.status, envelope) == (200, make_envelope(sequence=2))
    assert float(answer.headers["Gpudeck-Sent-At"]) - envelope.collected_at == 7.5


@pytest.mark.parametrize("step", [0.0, 3600.0, -3600.0])
def test_clock_that_is_set_between_reading_and_answering_makes_no_report_old_or_new(step: float) -> None:
    envelope, timer = make_envelope(sequence=1), FakeClock(500.0)
    desk = LatestReport(FakeClock(envelope.collected_at + 2.5 + step), timer)
    desk.put(EncodedReport("gpu01", encode(envelope), ReportTime(envelope.collected_at, 497.5)))
    assert float(desk.report().headers["Gpudeck-Sent-At"]) - envelope.collected_at == 2.5
    assert b'gpudeck_report_age_seconds{host="gpu01"} 2.5\n' in desk.metrics().body


@pytest.mark.parametrize(
    ("accept", "accept_encoding", "media", "encoding"),
    [
        ("", "", "json", ""),
        ("*/*", "gzip", "json", ""),
        ("application/msgpack", "zstd", "msgpack", "zstd"),
        ("APPLICATION/MSGPACK", "gzip, zstd", "msgpack", "zstd"),
        ("application/msgpack", "gzip", "json", ""),
        ("application/msgpack", "zstd;q=0, gzip;q=0.5", "json", ""),
        ("application/msgpack", "zstd;q=rubbish", "json", ""),
        ("application/json", "zstd", "json", ""),
        ("text/html,application/xhtml+xml", "gzip, br, zstd", "json", ""),
    ],
)
def test_callers_choose_the_form(
    desk: LatestReport, accept: str, accept_encoding: str, media: str, encoding: str
) -> None:
    answer = desk.report(accept, accept_encoding)
    told = answer.headers["Content-Type"], answer.headers.get("Content-Encoding", "")
    assert told == (f"application/{media}", encoding)
    assert decode(answer.body, *told) == make_envelope(sequence=2)


def test_before_the_first_reading_callers_are_asked_to_come_again() -> None:
    answers = [LatestReport().report(), LatestReport().metrics()]
    assert [(answer.status, answer.headers["Retry-After"]) for answer in answers] == [(503, "1"), (503, "1")]
    assert json.loads(answers[0].body)["error"]["code"] == "unavailable"
    assert LatestReport().health().status == 200
