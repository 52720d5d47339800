"""The fleet at a moment of the past: the last sample of each host until then, whatever has become of it since."""

import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from contract.history_fleet import END, START, STRANGE, VANISHING, samples
from fakes.clock import FakeClock
from fakes.waiting import wait_until
from gpudeck.history.base import HistoryRefused, MomentQuery, PastHost
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.past_fleet import PastFleetBuilder
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES, NOTHING, STATES, GpuSample, HostSample
from gpudeck.history.settings import DAY, HistorySettings
from gpudeck.model.clock import RetentionClock
from gpudeck.model.gpu_state import FleetSettings
from gpudeck.model.times import show_utc
from gpudeck.model.view import Host, PastFleet

HOUR = 3600.0


@pytest.fixture(scope="module")
def taken() -> list[HostSample]:
    return samples()


@pytest.fixture(scope="module", params=["sealed", "open", "both", "late"])
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, taken: list[HostSample]
) -> Iterator[EmbeddedStore]:
    """The same samples, in hours that are over, in hours that are still written, and in hours that got late ones."""
    clock = FakeClock(START)
    path = tmp_path_factory.mktemp("moment") / "history.db"
    with closing(EmbeddedStore(path, HistorySettings(), clock)) as made:
        if request.param == "open":
            made.take(taken)
            assert made.flush()
            clock.advance(END - START)
        else:
            is_late = [request.param == "late" and number % 7 == 3 for number in range(len(taken))]
            for hour in range(3):
                clock.advance(HOUR)
                made.take(
                    [
                        one
                        for one, late in zip(taken, is_late, strict=True)
                        if not late and START + hour * HOUR <= one.at < START + (hour + 1) * HOUR
                    ]
                )
                assert made.flush()
            if request.param != "both":
                clock.advance(2 * HOUR)
                assert made.flush()
                wait_until(lambda: not made.writer.open_hours, "hours that are sealed")
            made.take([one for one, late in zip(taken, is_late, strict=True) if late])
            if request.param == "late":
                assert made.flush()
                clock.advance(60)
                wait_until(lambda: not made.writer.open_hours, "late samples that are sealed")
        assert made.flush()
        yield made


def hosts_at(store: EmbeddedStore, at: float, metrics: frozenset[str] | None = None) -> dict[str, PastHost]:
    return {one.sample.host_id: one for one in store.moment(MomentQuery(at, metrics))}


def plain(gpu: GpuSample) -> tuple[object, ...]:
    """Without the order of processes."""
    return (*gpu[:5], None if gpu.processes is None else sorted(gpu.processes))


def assert_same(found: HostSample, expected: HostSample) -> None:
    assert (found.host_id, found.name, found.values) == (expected.host_id, expected.name, expected.values)
    assert found.at == pytest.approx(expected.at, abs=0.001)
    assert {gpu.uuid: plain(gpu) for gpu in found.gpus} == {gpu.uuid: plain(gpu) for gpu in expected.gpus}


def test_any_moment_has_the_last_sample_until_it(store: EmbeddedStore, taken: list[HostSample]) -> None:
    rng = random.Random(3)
    edges = [START + 3600, START + 3599.999, START + 7200.0, END - 0.5, START + 1000, START + 7400]
    for at in [*edges, *(rng.uniform(START + 1, END - 1) for _ in range(40))]:
        found = hosts_at(store, at)
        expected = {one.host_id: one for one in taken if one.at <= at}
        assert found.keys() == expected.keys()
        for host_id, past in found.items():
            assert_same(past.sample, expected[host_id])


def test_a_state_is_as_old_as_its_last_change_within_the_hour(store: EmbeddedStore, taken: list[HostSample]) -> None:
    at = START + 2 * HOUR - 5
    for past in hosts_at(store, at).values():
        for gpu, since in zip(past.sample.gpus, past.since, strict=True):
            mine = [
                (one.at, other.state)
                for one in taken
                if one.host_id == past.sample.host_id and START + HOUR <= one.at <= at
                for other in one.gpus
                if other.uuid == gpu.uuid
            ]
            changes = [now for (_, before), (now, state) in pairwise(mine) if before != state]
            # It may be unknown in an hour that is still written. It is never wrong.
            assert since is None or since == pytest.approx(changes[-1], abs=0.001)


def test_only_the_metrics_that_were_asked_for_are_read(store: EmbeddedStore) -> None:
    wanted = frozenset({"power_watts", "host_cpu_percent"})
    for past in hosts_at(store, START + 5000, wanted).values():
        for gpu in past.sample.gpus:
            known = {name for name, value in zip(GPU_NAMES, gpu.values, strict=True) if value is not None}
            assert known <= {"power_watts"}


def test_a_host_and_a_gpu_are_there_while_they_were(store: EmbeddedStore) -> None:
    assert VANISHING in {gpu.uuid for gpu in hosts_at(store, START + 3000)["id-beta"].sample.gpus}
    assert VANISHING not in {gpu.uuid for gpu in hosts_at(store, START + 4000)["id-beta"].sample.gpus}
    assert hosts_at(store, START + 0.1).keys() == {"id-alpha"}


@pytest.mark.parametrize(
    ("at", "code"), [(START - 1.0, "before_history"), (0.0, "before_history"), (END + 30 * DAY, "in_future")]
)
def test_a_moment_of_which_nothing_can_be_known_is_refused(store: EmbeddedStore, at: float, code: str) -> None:
    with pytest.raises(HistoryRefused) as refused:
        hosts_at(store, at)
    assert refused.value.code == code


def test_who_asks_too_far_back_is_told_when_the_history_begins(store: EmbeddedStore) -> None:
    with pytest.raises(HistoryRefused, match=f"begins at {show_utc(START)}"):
        hosts_at(store, START - DAY)


def test_an_empty_history_says_so(tmp_path: Path) -> None:
    with (
        closing(EmbeddedStore(tmp_path / "history.db", HistorySettings(), FakeClock(START))) as empty,
        pytest.raises(HistoryRefused, match="nothing has been recorded yet"),
    ):
        hosts_at(empty, START - 5)


def show(store: EmbeddedStore, at: float) -> tuple[PastFleet, dict[str, Host]]:
    builder = PastFleetBuilder(at, FleetSettings(), lambda _: None)
    hosts = [builder.add(past) for past in store.moment(MomentQuery(at))]
    return builder.finish(demo=False, version="1"), {host.name: host for host in hosts}


def test_a_silent_host_is_down_and_nothing_on_it_looks_free(store: EmbeddedStore) -> None:
    fleet, hosts = show(store, START + 1500)
    assert (hosts["alpha"].status, hosts[STRANGE].status) == ("up", "down")
    assert {gpu.availability for gpu in hosts[STRANGE].gpus} == {"unknown"}
    assert all("no report since" in (gpu.availability_reason or "") for gpu in hosts[STRANGE].gpus)
    assert {gpu.power_watts for gpu in hosts[STRANGE].gpus} == {None}
    assert {gpu.last_seen for gpu in hosts[STRANGE].gpus} <= {"free", "busy", "idle"}
    assert (fleet.totals.unknown, fleet.totals.hosts, fleet.totals.hosts_up, fleet.coverage) == (3, 2, 1, 0.4)


def test_a_host_of_which_nothing_was_read_is_down_and_an_unknown_state_has_its_reason() -> None:
    def look(gpu: GpuSample, cpu: float | None) -> Host:
        own = (cpu, *(None,) * (len(HOST_NAMES) - 1))
        sample = HostSample("id-1", "gpu01", START, 10.0, own, (gpu,))
        return PastFleetBuilder(START + 5, FleetSettings(), lambda _: None).add(PastHost(sample, [None]))

    gpu = GpuSample("GPU-1", "0", "H200", STATES.index("unknown"), NOTHING, None)
    blank, unread = look(gpu, None), look(gpu, 3.5)
    assert (blank.status, unread.status) == ("down", "up")
    assert blank.gpus[0].availability_reason == "nothing of this host could be read at that moment"
    assert unread.gpus[0].availability_reason == "its state could not be read at that moment"


def test_counts_are_those_of_the_gpus(store: EmbeddedStore, taken: list[HostSample]) -> None:
    at = START + 2500
    fleet, hosts = show(store, at)
    last = {one.host_id: one for one in taken if one.at <= at}
    words = [STATES[gpu.state] for one in last.values() for gpu in one.gpus]
    for word, count in fleet.totals.by_availability.items():
        assert count == words.count(word)
        assert count == sum(gpu.availability == word for host in hosts.values() for gpu in host.gpus)
    assert (fleet.totals.gpus, fleet.time, fleet.as_of, fleet.coverage, fleet.resolution) == (5, at, at, 1.0, "raw")


def test_a_moment_that_nobody_recorded_says_so(tmp_path: Path) -> None:
    some = [one for one in samples() if one.at < START + 600]
    clock = FakeClock(START + 5 * DAY)
    with closing(EmbeddedStore(tmp_path / "history.db", HistorySettings(), clock)) as store:
        store.take(some)
        assert store.flush()
        fleet, hosts = show(store, START + 3 * DAY)
    assert fleet.coverage == 0.0
    assert "Nothing was recorded at" in fleet.problems[0]
    assert {host.status for host in hosts.values()} == {"down"}


@contextmanager
def kept_as_quarters(folder: Path, taken: list[HostSample]) -> Iterator[EmbeddedStore]:
    """A store whose samples were deleted, because they are old."""
    path, clock = folder / "history.db", FakeClock(START)
    with closing(EmbeddedStore(path, HistorySettings(), clock)) as store:
        for hour in range(3):
            clock.advance(HOUR)
            store.take([one for one in taken if START + hour * HOUR <= one.at < START + (hour + 1) * HOUR])
            assert store.flush()
        clock.advance(5 * HOUR)
        assert store.flush()
        wait_until(lambda: not store.writer.open_hours, "hours that are sealed")
    ticks = FakeClock(0.0)
    retention = RetentionClock(None, clock, ticks)
    clock.advance(40 * HOUR)
    ticks.advance(HOUR)
    retention.confirm(clock.now)
    with closing(EmbeddedStore(path, HistorySettings(raw=HOUR), clock, retention=retention)) as store:
        wait_until(lambda: not store.stats().parts["chunks"], "samples that are deleted")
        yield store


def test_samples_that_are_no_longer_kept_leave_their_quarter_hour(tmp_path: Path, taken: list[HostSample]) -> None:
    with kept_as_quarters(tmp_path, taken) as store:
        at = START + 2200.0
        found = hosts_at(store, at)
        fleet, hosts = show(store, at)
        gap = show(store, START + 7400.0)
    assert all(past.is_rolled for past in found.values())
    assert fleet.resolution == "quarter_hour"
    quarter = [one for one in taken if one.host_id == "id-alpha" and START + 1800 <= one.at < START + 2700]
    place = GPU_NAMES.index("temperature_celsius")
    for gpu in hosts["alpha"].gpus:
        readings = [other.values[place] or 0.0 for one in quarter for other in one.gpus if other.uuid == gpu.uuid]
        assert gpu.temperature_celsius == pytest.approx(sum(readings) / len(readings), abs=1.0)
        assert "mean of the quarter hour" in (gpu.availability_reason or "")
    assert {user for gpu in hosts["alpha"].gpus for user in gpu.users} == {"alice", "bob"}
    # Five of these fifteen minutes were not observed, which is less than half; of another quarter hour nothing was.
    assert {gpu.availability for gpu in gap[1][STRANGE].gpus} <= {"free", "busy", "idle"}
    assert gap[0].coverage == 1.0


def test_a_quarter_hour_that_was_hardly_recorded_is_unknown(tmp_path: Path, taken: list[HostSample]) -> None:
    some = [one for one in taken if one.at < START + 200]
    with kept_as_quarters(tmp_path, some) as store:
        fleet, hosts = show(store, START + 100.0)
    assert {gpu.availability for host in hosts.values() for gpu in host.gpus} == {"unknown"}
    reasons = {gpu.availability_reason for host in hosts.values() for gpu in host.gpus}
    assert reasons == {"less than half of the quarter hour was recorded"}
    assert (fleet.coverage, fleet.totals.unknown) == (0.0, 5)
