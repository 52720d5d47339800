"""Short reports: what a hub makes of them is what it makes of the same reports sent whole."""

import math
import random
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fakes.clock import FakeClock
from fakes.random_machine import Machine
from fakes.reports import HOST, make_busy_gpu, make_envelope, make_gpu, make_process
from gpudeck.events.detector import EventDetector
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.identity import TokenName
from gpudeck.history.recorder import Recorder, Sample, as_host_samples
from gpudeck.model.errors import ReportRefused
from gpudeck.model.event import Event
from gpudeck.model.report import Disk, GpuEvent, Report
from gpudeck.model.reservation import GpuReservation, ReservationMark
from gpudeck.model.target import Target
from gpudeck.wire import Envelope, ShortReport, describe, encode, pack_numbers

MSGPACK = "application/msgpack"


def shorten(envelope: Envelope, **others: Any) -> ShortReport:
    """The same report, short."""
    head = {name: getattr(envelope, name) for name in Envelope.__struct_fields__ if name not in {"report", "version"}}
    numbers = pack_numbers(envelope.report)
    assert numbers is not None
    return ShortReport(**(head | {"version": 2, "description": describe(envelope.report), "numbers": numbers} | others))


def name(envelope: Envelope) -> Envelope:
    """The report with the description that short ones may refer to."""
    return replace(envelope, description=describe(envelope.report))


class Stage:
    """A hub with its history, events and stream."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.hub = Hub(now=self.clock)
        self.fleet = self.hub.fleet
        self.samples: list[Sample] = []
        self.events: list[Event] = []
        self.fleet.observers.add(Recorder(2.0, self.samples.extend))
        self.fleet.observers.add(EventDetector(self.events.append, self.clock()))

    def send(self, report: Envelope | ShortReport, **others: Any) -> bool:
        return self.fleet.apply(report, **({"via": "push", "now": self.clock(), "sent_at": self.clock()} | others))

    def document(self) -> Any:
        return msgspec.json.decode(self.fleet.encoded(self.clock()))

    def tick(self) -> Any:
        self.fleet.age(self.clock())
        return msgspec.json.decode(self.hub.stream.tick().plain.split(b"\ndata: ")[1])


class ShortStage(Stage):
    """Gets short reports wherever an agent would send one."""

    def __init__(self) -> None:
        super().__init__()
        self.described: dict[str, str] = {}
        self.short = self.refused = 0

    def send(self, report: Envelope | ShortReport, **others: Any) -> bool:
        assert isinstance(report, Envelope)
        description = "" if pack_numbers(report.report) is None else describe(report.report)
        if description and self.described.get(report.host) == description:
            try:
                self.short += 1
                return super().send(shorten(report), **others)
            except ReportRefused as refusal:
                if refusal.code != "description_needed":
                    raise
                self.short, self.refused = self.short - 1, self.refused + 1
        taken = super().send(replace(report, description=description), **others)
        if taken:
            self.described[report.host] = description
        return taken


def result(stage: Stage, report: Envelope | ShortReport, **others: Any) -> object:
    try:
        return stage.send(report, **others)
    except ReportRefused as refusal:
        return refusal.code


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32))
def test_short_reports_make_the_same_document_stream_events_and_history_as_whole_ones(seed: int) -> None:
    chance = random.Random(seed)
    whole, short = Stage(), ShortStage()
    machines = [Machine(f"gpu{number:02}", chance) for number in range(4)]
    waiting: list[Envelope] = []
    for _ in range(160):
        step = chance.choice((0.0, 1.0, 5.0, 5.0, 30.0, 700.0 if chance.random() < 0.2 else 2.0))
        for stage in (whole, short):
            stage.clock.advance(step)
        now, draw, machine = whole.clock(), chance.random(), chance.choice(machines)
        if draw < 0.75:
            report = machine.report(now, steady=0.9)
            if chance.random() < 0.1:
                waiting.append(report)
            else:
                others: dict[str, Any] = {"sent_at": now + machine.skew + chance.choice((0.0, 0.0, 0.04, 0.3))}
                others |= chance.choice(({}, {}, {}, {"token": TokenName(1, "a")}, {"only": report.host}))
                if chance.random() < 0.05:
                    others |= {"via": "pull", "target": chance.choice(machines).name}
                assert result(whole, report, **others) == result(short, report, **others)
        elif draw < 0.8 and waiting:
            late = waiting.pop(0)
            sent_at = now + next(one.skew for one in machines if one.name == late.host)
            assert result(whole, late, sent_at=sent_at) == result(short, late, sent_at=sent_at)
        elif draw < 0.85:
            mark = ReservationMark(GpuReservation(1, "ann", now + 60, "", "reservation"), since=now - 5)
            marks = chance.choice(({}, {f"GPU-{machine.name}-0": mark}, {"": ReservationMark(None, is_unknown=True)}))
            for stage in (whole, short):
                stage.fleet.mark(marks, now)
        elif draw < 0.87:
            for stage in (whole, short):
                if machine.name in stage.fleet.hosts:
                    stage.fleet.remove(machine.name)
        elif draw < 0.89:
            named = chance.sample(machines, chance.randrange(3))
            targets = [Target(name=one.name, via=chance.choice(("push", "pull"))) for one in named]
            for stage in (whole, short):
                stage.fleet.expect(targets)
        else:
            assert whole.tick() == short.tick()
        if chance.random() < 0.3:
            assert whole.document() == short.document()
    assert whole.document() == short.document()
    assert whole.tick() == short.tick()
    assert list(as_host_samples(whole.samples)) == list(as_host_samples(short.samples))
    assert whole.events == short.events
    assert whole.fleet.counters == short.fleet.counters
    assert short.short > 0


@pytest.fixture
def stage() -> Stage:
    return Stage()


def full(sequence: int, **others: Any) -> Envelope:
    """A report with each kind of number."""
    gpus = [make_busy_gpu(0), make_gpu(1, processes=[make_process(), make_process(4712, "bob")])]
    report = Report(gpus=gpus, metrics=dict(HOST), disks=[Disk("/data", 5, 10)])
    return make_envelope(sequence=sequence, report=report, collected_at=others.pop("at", 1_790_000_000.0), **others)


def refusal(stage: Stage, report: Envelope | ShortReport, **others: Any) -> tuple[int, str]:
    with pytest.raises(ReportRefused) as caught:
        stage.send(report, **others)
    return caught.value.status, caught.value.code


NEEDED = (428, "description_needed")


def test_short_report_without_a_whole_one_is_asked_for_whole(stage: Stage) -> None:
    assert refusal(stage, shorten(full(1))) == NEEDED
    assert not stage.fleet.hosts


@pytest.mark.parametrize(
    "other",
    [
        {"description": "0123456789abcdef"},
        {"run_id": "run-2"},
        {"boot_id": "boot-2"},
        {"host": "gpu02"},
        {"host": "gpu02", "host_id": "machine-2"},
        {"sequence": 3},
    ],
    ids=str,
)
def test_description_counts_for_the_newest_report_of_its_host_and_run_alone(
    stage: Stage, other: dict[str, Any]
) -> None:
    stage.send(name(full(4)))
    before = stage.document()
    assert refusal(stage, shorten(full(5), **other)) == NEEDED
    assert stage.document() == before


def test_description_is_forgotten_with_a_whole_report_without_one(stage: Stage) -> None:
    stage.send(name(full(1)))
    stage.send(full(2))
    assert refusal(stage, shorten(full(3))) == NEEDED


def test_description_is_forgotten_with_its_host(stage: Stage) -> None:
    stage.send(name(full(1)))
    stage.fleet.remove("gpu01")
    assert refusal(stage, shorten(full(2))) == NEEDED


def test_gpu_that_another_host_took_over_comes_back_with_a_whole_report(stage: Stage) -> None:
    stage.send(name(full(1)))
    stage.fleet.hosts["gpu01"].release_gpu("GPU-0")
    assert refusal(stage, shorten(full(2))) == NEEDED
    stage.send(name(full(3)))
    assert list(stage.fleet.hosts["gpu01"].gpus) == ["GPU-0", "GPU-1"]


def test_short_report_is_for_those_who_may_report_as_its_host() -> None:
    hub = Hub(now=FakeClock())
    hub.ingest.take(encode(name(full(1))), MSGPACK, "zstd", only="gpu01")
    with pytest.raises(ReportRefused, match="this token is for gpu02"):
        hub.ingest.take(encode(shorten(full(2))), MSGPACK, "zstd", only="gpu02")


def test_repeated_short_report_changes_nothing(stage: Stage) -> None:
    stage.send(name(full(1)))
    assert stage.send(shorten(full(2)))
    assert not stage.send(shorten(full(2)))
    assert stage.fleet.counters["reports_outdated"] == 1


def test_faults_of_a_gpu_age_while_reports_are_short(stage: Stage) -> None:
    start = stage.clock()
    gpus = [make_gpu(events=[GpuEvent(at=start - 86_000, code=79)])]
    stage.send(name(make_envelope(sequence=1, gpus=gpus, collected_at=start)))
    (before,) = stage.document()["hosts"]
    stage.clock.advance(1000)
    stage.send(shorten(make_envelope(sequence=2, gpus=gpus, collected_at=start + 1000)))
    (after,) = stage.document()["hosts"]
    assert (before["gpus"][0]["health"], after["gpus"][0]["health"]) == ("critical", "ok")


NUMBERS = pack_numbers(full(1).report) or b""
DOUBLES = list(struct.unpack(f"<{len(NUMBERS) // 8}d", NUMBERS))


def with_number(place: int, value: float) -> ShortReport:
    doubles = [*DOUBLES[: len(DOUBLES) + place], value, *DOUBLES[len(DOUBLES) + place + 1 :]]
    return shorten(full(2), numbers=struct.pack(f"<{len(doubles)}d", *doubles))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *[(-1, value) for value in (math.nan, math.inf, -1.0, 0.5, 2.0**60)],
        *[(-2, value) for value in (math.inf, -math.inf, -0.5, 100.5)],
        *[(-3, value) for value in (math.inf, -1.0, 0.5, 2.0**53)],
        *[(-8, value) for value in (math.inf, -1.0, 1.1e10)],
    ],
)
def test_number_that_a_whole_report_could_not_have_is_refused(stage: Stage, place: int, value: float) -> None:
    stage.send(name(full(1)))
    stage.send(name(full(1, host="gpu02")))
    before = stage.document()
    assert refusal(stage, with_number(place, value)) == (422, "invalid_report")
    assert stage.document() == before
    assert stage.send(shorten(full(2)))


@pytest.mark.parametrize("numbers", [b"", NUMBERS[:-8], NUMBERS[:-1], NUMBERS + NUMBERS[:8], bytes(2**16)], ids=len)
def test_numbers_of_another_length_are_refused(stage: Stage, numbers: bytes) -> None:
    stage.send(name(full(1)))
    assert refusal(stage, shorten(full(2), numbers=numbers)) == (422, "invalid_report")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_metric_that_cannot_be_is_unknown_and_counted(stage: Stage, value: float) -> None:
    stage.send(name(full(1)))
    stage.send(with_number(-len(DOUBLES), value))
    (host,) = stage.document()["hosts"]
    assert host["cpu_percent"] is None
    assert "cpu_percent" in host["reasons"]
    assert host["cpu_count"] == 64
    assert stage.fleet.counters["values_rejected"] == 1


@given(st.lists(st.tuples(st.integers(0, len(DOUBLES) - 1), st.floats()), max_size=5), st.binary(max_size=16))
def test_any_numbers_are_taken_or_refused_and_the_neighbour_is_untouched(
    damages: list[tuple[int, float]], rest: bytes
) -> None:
    stage, doubles = Stage(), [*DOUBLES]
    stage.send(name(full(1)))
    stage.send(name(full(1, host="gpu02")))
    for place, value in damages:
        doubles[place] = value
    report = shorten(full(2), numbers=struct.pack(f"<{len(doubles)}d", *doubles) + rest)
    assert result(stage, report) in {True, "invalid_report"}
    hosts = stage.document()["hosts"]
    assert hosts[1]["gpus"][0]["utilization_percent"] == 97
    stage.tick()
