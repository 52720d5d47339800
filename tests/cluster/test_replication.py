"""Reports go to all hubs: two hubs in one process, with a list in place of the bus."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import zstandard

from fakes.clock import FakeClock
from fakes.reports import make_envelope, make_gpu, make_process
from gpudeck.cluster.replication import FORMAT, WHOLE_SECONDS, Replicator, expand
from gpudeck.fleet.hub import Hub
from gpudeck.history.recorder import Recorder, Sample, as_host_samples
from gpudeck.model.clock import SharedClock
from gpudeck.model.report import Disk, Report
from gpudeck.wire import Envelope, ShortReport, describe, encode, pack_numbers

START = 1_700_000_000.0


class Cluster:
    """Hubs whose messages are carried by `deliver`."""

    def __init__(self, *names: str) -> None:
        self.clock = FakeClock(START)
        self.log: list[bytes] = []
        self.hubs = {name: Hub(now=self.clock) for name in names}
        self.shared: list[tuple[str, str]] = []
        self.is_cut_off = False
        self.replicators = {name: self._join(name, hub) for name, hub in self.hubs.items()}
        self._read = dict.fromkeys(names, 0)

    def join(self, name: str) -> None:
        """A hub that reads the log from its beginning."""
        self.hubs[name] = Hub(now=self.clock)
        self.replicators[name] = self._join(name, self.hubs[name])
        self._read[name] = 0

    def forget_log(self) -> None:
        """As the bus does after a while."""
        self.log.clear()
        self._read = dict.fromkeys(self._read, 0)

    def take(self, name: str, envelope: Envelope | ShortReport, *, sent_at: float | None = None) -> bool:
        """A report that was sent when it was made, unless `sent_at` says otherwise."""
        return self.hubs[name].ingest.take(
            encode(envelope), "application/msgpack", "zstd", sent_at=sent_at or envelope.collected_at
        )

    def deliver(self) -> None:
        for replicator in self.replicators.values():
            replicator.flush(is_heartbeat=True)
        for name, replicator in self.replicators.items():
            for body in self.log[self._read[name] :]:
                asyncio.run(replicator.receive(body, self.clock()))
            self._read[name] = len(self.log)

    def documents(self) -> list[bytes]:
        return [hub.fleet.encoded(self.clock()) for hub in self.hubs.values()]

    def _join(self, name: str, hub: Hub) -> Replicator:
        replicator = Replicator(
            hub,
            name,
            f"run of {name}",
            self.log.append,
            lambda origin, what, _: self.shared.append((origin, what)),
            monotonic=self.clock,
        )
        hub.fleet.join_cluster(replicator.forward, lambda: self.is_cut_off)
        return replicator


@pytest.mark.parametrize(("ahead", "is_read"), [(-FORMAT, True), (0, True), (1, True), (2, False)])
def test_messages_of_the_next_format_are_read_and_none_beyond(ahead: int, is_read: bool) -> None:
    """With a field that this hub does not know."""
    cluster = Cluster("a", "b")
    cluster.take("a", make_envelope(collected_at=START))
    cluster.replicators["a"].flush()
    message = msgspec.msgpack.decode(zstandard.decompress(cluster.log.pop()))
    assert message["format"] == FORMAT
    changed = message | {"format": FORMAT + ahead, "new": [1, 2]}
    asyncio.run(cluster.replicators["b"].receive(zstandard.compress(msgspec.msgpack.encode(changed)), START))
    assert cluster.replicators["b"].counters == ({"received": 1} if is_read else {"unreadable": 1})
    assert bool(cluster.hubs["b"].fleet.hosts) == is_read


def make_report(seed: int) -> Report:
    chance = random.Random(seed)
    gpus = [
        make_gpu(
            index,
            metrics={"utilization_percent": chance.randrange(101), "memory_used_bytes": chance.randrange(2**34)},
            processes=[
                make_process(4000 + index, gib=chance.randrange(1, 20), utilization_percent=chance.choice([None, 7.5]))
            ],
            idle_seconds=chance.choice([None, 12.5]),
        )
        for index in range(3)
    ]
    disks = [Disk(mount="/", total_bytes=10**12, used_bytes=chance.randrange(10**12))]
    return Report(gpus=gpus, metrics={"cpu_percent": chance.random() * 100}, disks=disks)


def whole(sequence: int, seed: int, at: float = START, interval: float = 2.0) -> Envelope:
    report = make_report(seed)
    words = describe(report)
    return make_envelope(
        report=report, sequence=sequence, collected_at=at, description=words, interval_seconds=interval
    )


def short(sequence: int, seed: int, at: float = START) -> ShortReport:
    one = whole(sequence, seed, at)
    numbers = pack_numbers(one.report)
    assert numbers is not None
    return ShortReport(
        version=2,
        host=one.host,
        host_id=one.host_id,
        boot_id=one.boot_id,
        run_id=one.run_id,
        sequence=sequence,
        collected_at=at,
        interval_seconds=one.interval_seconds,
        agent_version=one.agent_version,
        description=one.description,
        numbers=numbers,
    )


@pytest.mark.parametrize("seed", range(8))
def test_a_short_report_becomes_the_whole_one_that_it_stands_for(seed: int) -> None:
    assert expand(short(9, seed), whole(1, seed + 100)) == whole(9, seed)


def test_all_hubs_show_what_one_of_them_was_sent() -> None:
    cluster = Cluster("a", "b", "c")
    assert cluster.take("a", whole(1, 1))
    cluster.deliver()
    first, *others = cluster.documents()
    assert b"gpu" in first
    assert others == [first, first]


def test_an_agent_goes_on_at_another_hub_with_a_short_report() -> None:
    cluster = Cluster("a", "b")
    cluster.take("a", whole(1, 1))
    cluster.deliver()
    cluster.clock.advance(5)
    assert cluster.take("b", short(2, 2, cluster.clock()))
    cluster.deliver()
    first, second = cluster.documents()
    assert first == second
    assert cluster.hubs["a"].fleet.counters["reports_taken"] == 2


def test_a_report_that_two_hubs_took_counts_once_on_each() -> None:
    cluster = Cluster("a", "b")
    for name in ("a", "b"):
        cluster.take(name, whole(1, 1))
    cluster.deliver()
    assert [hub.fleet.counters["reports_taken"] for hub in cluster.hubs.values()] == [1, 1]
    assert [one.counters["duplicates"] for one in cluster.replicators.values()] == [1, 1]


def test_a_hub_that_joins_later_knows_hosts_that_send_short_reports_only() -> None:
    cluster = Cluster("a", "b")
    cluster.take("a", whole(1, 1))
    cluster.deliver()
    cluster.forget_log()
    for sequence in range(2, 16):
        cluster.clock.advance(5)
        cluster.take("a", short(sequence, sequence, cluster.clock()))
    cluster.join("c")
    cluster.deliver()
    assert WHOLE_SECONDS < 14 * 5
    first, *others = (_without_since(one) for one in cluster.documents())
    assert others == [first, first]


def test_a_message_that_was_on_its_way_for_long_makes_no_host_up() -> None:
    """Stale is never free: the age of a report is that of its arrival at the first hub."""
    cluster = Cluster("a", "b")
    cluster.take("a", whole(1, 1))
    cluster.replicators["a"].flush()
    cluster.clock.advance(600)
    cluster.join("b")
    cluster.deliver()
    hub = cluster.hubs["b"]
    hub.fleet.age(cluster.clock())
    (host,) = hub.fleet.hosts.values()
    assert host.status == "down"
    assert hub.fleet.totals().free == 0


def test_a_hub_that_is_cut_off_calls_no_host_down() -> None:
    cluster = Cluster("a")
    hub = cluster.hubs["a"]
    cluster.take("a", whole(1, 1))
    cluster.is_cut_off = True
    cluster.clock.advance(600)
    hub.fleet.age(cluster.clock())
    (host,) = hub.fleet.hosts.values()
    assert host.status == "late"
    assert hub.fleet.totals().free == 0
    cluster.is_cut_off = False
    hub.fleet.age(cluster.clock())
    assert host.status == "down"


def test_reports_that_come_after_newer_ones_are_sampled_at_their_own_times() -> None:
    """The bus was away, and the agent went on at another hub meanwhile."""
    cluster = Cluster("a", "b")
    samples: list[Sample] = []
    recorder = Recorder(1.0, samples.extend)
    cluster.hubs["b"].fleet.observers.add(recorder)
    for sequence in range(1, 13):
        taken = cluster.take("b" if sequence == 12 else "a", whole(sequence, sequence, cluster.clock(), interval=1.0))
        assert taken
        if sequence < 6:
            cluster.deliver()
        cluster.clock.advance(1)
    cluster.deliver()
    hub = cluster.hubs["b"]
    hub.fleet.settle()
    recorder.hand_over()
    assert sorted(sample.at - START for sample in as_host_samples(samples)) == list(range(12))
    (host,) = hub.fleet.hosts.values()
    assert host.observed_at == START + 11


@pytest.mark.parametrize("order", [(12, 11), (11, 12), (12, 10, 11)])
@pytest.mark.parametrize("make", [whole, short])
def test_reports_of_a_hub_that_was_cut_off_count_where_the_agent_went_on(
    make: Callable[[int, int, float], Envelope | ShortReport], order: tuple[int, ...]
) -> None:
    """It took reports until it knew. Meanwhile the agent has sent later ones to another hub, the newest first."""
    cluster = Cluster("a", "b")
    samples: list[Sample] = []
    recorder = Recorder(1.0, samples.extend)
    cluster.hubs["b"].fleet.observers.add(recorder)
    cluster.take("a", whole(1, 1, interval=1.0))
    cluster.deliver()
    for sequence in range(2, min(order)):
        cluster.clock.advance(1)
        assert cluster.take("a", make(sequence, sequence, cluster.clock()))
    cluster.clock.advance(START + 11 - cluster.clock())
    for sequence in order:
        late = whole(sequence, sequence, START + sequence - 1, interval=1.0)
        assert cluster.take("b", late, sent_at=cluster.clock())
    cluster.deliver()
    cluster.hubs["b"].fleet.settle()
    recorder.hand_over()
    assert sorted(sample.at - START for sample in as_host_samples(samples)) == list(range(12))


def test_own_messages_tell_how_far_behind_a_hub_is() -> None:
    cluster = Cluster("a")
    one = cluster.replicators["a"]
    assert one.silent_seconds == float("inf")
    one.flush(is_heartbeat=True)
    cluster.clock.advance(3)
    cluster.deliver()
    assert one.silent_seconds == 0
    cluster.clock.advance(7)
    assert one.silent_seconds == 7


def test_a_hub_that_reads_its_first_message_late_is_behind() -> None:
    """What was published after that one has not been read."""
    cluster = Cluster("a")
    one = cluster.replicators["a"]
    one.flush(is_heartbeat=True)
    first = cluster.log[0]
    cluster.clock.advance(57)
    one.flush(is_heartbeat=True)
    asyncio.run(one.receive(first, cluster.clock()))
    assert one.silent_seconds == one.lag == 57
    cluster.deliver()
    assert one.silent_seconds == 0


def test_hubs_whose_clocks_differ_date_reports_alike() -> None:
    """By the clock of the bus, which they know from their own messages."""
    cluster = Cluster("a")
    monotonic, wrong = FakeClock(50.0), FakeClock(START + 300)
    shared = SharedClock(wrong, monotonic)
    hub, log = Hub(now=shared), list[bytes]()
    replicator = Replicator(hub, "b", "run b", log.append, lambda *_: None, monotonic=monotonic)
    replicator.flush(is_heartbeat=True)
    asyncio.run(replicator.receive(log[0], START))
    cluster.take("a", whole(1, 1))
    cluster.deliver()
    monotonic.advance(2)
    wrong.advance(-1000)
    asyncio.run(replicator.receive(cluster.log[0], START))
    (host,) = hub.fleet.hosts.values()
    assert shared() == START + 2
    assert host.observed_at == pytest.approx(START)


def _without_since(document: bytes) -> Any:
    """As after a restart, a hub that has joined does not know for how long a GPU has been in its state."""
    fleet = msgspec.json.decode(document)
    for gpu in fleet["hosts"][0]["gpus"]:
        gpu.pop("since")
    return fleet
