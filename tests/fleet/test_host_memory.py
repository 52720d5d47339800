"""Hosts are remembered across restarts: a hub that starts again knows them, and claims nothing of them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from sqlalchemy import text

from fakes.clock import FakeClock
from fakes.reports import make_busy_gpu, make_envelope, make_gpu, make_process
from fakes.views import show
from gpudeck.alerts.engine import AlertEngine
from gpudeck.alerts.rule import FleetContext
from gpudeck.alerts.selection import HostSelector
from gpudeck.alerts.settings import AlertSettings
from gpudeck.database.engine import Database
from gpudeck.events.detector import EventDetector
from gpudeck.fleet.host_memory import HostMemory
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.identity import TokenName
from gpudeck.fleet.state import FORGET_TICKS
from gpudeck.model.clock import RetentionClock
from gpudeck.model.cpu_budget import finish
from gpudeck.model.errors import Temporary
from gpudeck.model.event import Event
from gpudeck.model.gpu_state import RETURN_SECONDS, FleetSettings
from gpudeck.model.report import Report
from gpudeck.model.reservation import GpuReservation, ReservationMark
from gpudeck.model.target import Target
from gpudeck.model.view import Host

DAY = 86_400.0


class Restarting:
    """A hub on a clock and a database, which can be started again and again."""

    def __init__(self, database: Database, **settings: Any) -> None:
        self.clock = FakeClock()
        self.database = database
        self.settings = FleetSettings(**settings)
        self.sequence = 0
        self.start()

    def start(self, retention: RetentionClock | None = None) -> None:
        """A new process: nothing of the last one is left but the database."""
        self.hub = Hub(self.settings, self.clock, retention=retention)
        self.memory = HostMemory(self.hub, self.database)
        self.do(self.memory.open)

    def stop(self) -> None:
        self.do(self.memory.close)

    def restart(self) -> None:
        self.stop()
        self.start()

    def do(self, step: Callable[[], Awaitable[Any]]) -> None:
        async def run() -> None:
            await step()

        asyncio.run(run())

    def report(self, host: str = "gpu01", *, via: str = "push", target: str | None = None, **others: Any) -> None:
        self.sequence += 1
        token = others.pop("token", None)
        now = self.clock()
        envelope = make_envelope(
            host, self.sequence, **({"gpus": [make_gpu(uuid=f"GPU-{host}")], "collected_at": now} | others)
        )
        self.hub.fleet.apply(envelope, via=via, now=now, sent_at=now, target=target, token=token)
        self.hub.fleet.settle()

    def after(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.hub.fleet.age(self.clock())

    def pass_hour(self) -> None:
        for _ in range(FORGET_TICKS):
            self.hub.fleet.age(self.clock())

    def host(self, name: str = "gpu01") -> dict[str, Any]:
        found = self.hub.fleet.find(name)
        assert found is not None
        return show(found)

    def names(self) -> list[str]:
        return [host.name for host in self.hub.fleet.ordered()]


@pytest.fixture
def hub(database: Database) -> Restarting:
    return Restarting(database)


def test_host_that_was_down_is_down_since_its_last_report_after_a_restart(hub: Restarting) -> None:
    hub.report(gpus=[make_busy_gpu(0), make_gpu(1)], host_id="machine-1", agent_version="1.2.0")
    reported_at = hub.clock()
    hub.after(500)
    hub.restart()
    hub.clock.advance(1)
    view = hub.host()
    assert (view["id"], view["status"], view["last_report_at"]) == ("machine-1", "down", reported_at)
    assert [gpu["availability"] for gpu in view["gpus"]] == ["unknown", "unknown"]
    assert view["gpus"][0]["availability_reason"] == "the host is down: it has not reported since the hub was started"
    assert [gpu["memory_total_bytes"] for gpu in view["gpus"]] == [80 * 2**30] * 2
    assert view["reasons"]["cpu_percent"] == "the host has not reported since the hub was started"
    assert view["gpus"][0]["since"] == reported_at
    assert hub.hub.fleet.totals().unknown == 2


def test_recalled_host_has_exactly_the_fields_of_the_contract(hub: Restarting) -> None:
    mig = make_gpu(1, uuid="MIG-1", parent="GPU-1", instance=2, pci_address="0000:01:00.0")
    place = {"addresses": ["10.0.0.1"], "interfaces": {"10.0.0.1": "eno1"}}
    hub.report(report=Report(gpus=[mig], labels={"rack": "3"}, os="Debian", driver_version="580", **place))  # type: ignore[arg-type]
    hub.restart()
    view = hub.host()
    decoded = msgspec.convert(msgspec.to_builtins(view), Host)
    assert set(view) == set(Host.__struct_fields__)
    assert set(view["gpus"][0]) == set(decoded.gpus[0].__struct_fields__)  # type: ignore[attr-defined]
    gpu = view["gpus"][0]
    assert (gpu["label"], gpu["parent"], gpu["pci_address"]) == ("1.2", "GPU-1", "0000:01:00.0")
    assert (view["labels"], view["addresses"], view["os"], view["driver_version"]) == (
        {"rack": "3"},
        ["10.0.0.1"],
        "Debian",
        "580",
    )
    (host,) = hub.hub.fleet.hosts.values()
    assert host.interfaces == {"10.0.0.1": "eno1"}


def test_host_that_was_up_has_time_to_come_back_and_then_is_down_since_its_last_report(hub: Restarting) -> None:
    hub.report()
    reported_at = hub.clock()
    hub.restart()
    hub.after(1)
    assert hub.host()["status"] == "late"
    assert hub.host()["gpus"][0]["availability"] == "unknown"
    hub.after(RETURN_SECONDS - 2)
    assert hub.host()["status"] == "late"
    hub.after(2)
    assert (hub.host()["status"], hub.host()["last_report_at"]) == ("down", reported_at)


def test_host_that_comes_back_goes_on_under_its_id_and_with_its_new_name(hub: Restarting) -> None:
    hub.report("gpu01", host_id="machine-1")
    hub.restart()
    hub.report("gpu07", host_id="machine-1", gpus=[make_busy_gpu(uuid="GPU-gpu01")])
    assert hub.names() == ["gpu07"]
    assert (hub.host("gpu07")["status"], hub.host("gpu07")["gpus"][0]["availability"]) == ("up", "busy")
    hub.restart()
    assert hub.names() == ["gpu07"]


def test_report_of_the_run_from_before_the_restart_is_taken(hub: Restarting) -> None:
    hub.report(run_id="run", boot_id="boot")
    hub.restart()
    hub.report(run_id="run", boot_id="boot")
    assert hub.host()["status"] == "up"


def test_gpu_that_was_moved_while_the_hub_was_away_is_in_its_new_host_only(hub: Restarting) -> None:
    hub.report("gpu01", gpus=[make_gpu(0, uuid="A"), make_gpu(1, uuid="B")])
    hub.report("gpu02", gpus=[make_gpu(0, uuid="C")])
    hub.restart()
    hub.hub.fleet.take_changes()
    hub.report("gpu02", gpus=[make_gpu(0, uuid="C"), make_gpu(1, uuid="B")])
    assert [gpu["uuid"] for gpu in hub.host("gpu01")["gpus"]] == ["A"]
    assert {host.name for host in hub.hub.fleet.take_changes()[0]} == {"gpu01", "gpu02"}
    assert hub.hub.fleet.totals().gpus == 3


def test_gpu_that_two_hosts_told_of_is_recalled_in_the_one_that_did_so_last(hub: Restarting) -> None:
    hub.report("gpu01", gpus=[make_gpu(0, uuid="A")])
    hub.after(200)
    hub.report("gpu02", gpus=[make_gpu(0, uuid="A")])
    hub.restart()
    assert [len(hub.host(name)["gpus"]) for name in ("gpu01", "gpu02")] == [0, 1]


def test_removed_and_forgotten_hosts_do_not_come_back(hub: Restarting) -> None:
    hub.report("gpu01")
    hub.report("gpu02")
    hub.restart()
    hub.hub.fleet.remove("gpu01")
    hub.restart()
    assert hub.names() == ["gpu02"]


def test_crash_loses_at_most_what_was_not_written_yet(hub: Restarting) -> None:
    hub.report("gpu01")
    hub.do(hub.memory.flush)
    first = hub.clock()
    hub.after(30)
    hub.report("gpu01")
    hub.report("gpu02")
    hub.do(hub.memory.flush)
    hub.start()
    assert hub.names() == ["gpu01", "gpu02"]
    assert hub.host("gpu01")["last_report_at"] == first
    hub.report("gpu01")
    hub.do(lambda: hub.memory.flush(with_times=True))
    hub.start()
    assert hub.host("gpu01")["last_report_at"] == hub.clock()


def test_nothing_is_written_where_nothing_changed(hub: Restarting, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.report()
    hub.do(hub.memory.flush)
    hub.after(2)
    hub.report()
    begun: list[Database] = []
    monkeypatch.setattr(Database, "begin", begun.append)
    hub.do(hub.memory.flush)
    assert begun == []


def test_simulated_hosts_are_not_remembered(hub: Restarting) -> None:
    hub.hub.fleet.is_simulated = True
    hub.report(via="simulated", simulated=True)
    hub.restart()
    assert hub.names() == []


def test_hosts_come_when_the_database_does(hub: Restarting, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.report("gpu01", host_id="machine-1")
    hub.report("gpu02", gpus=[make_gpu(uuid="B")])
    hub.stop()
    with monkeypatch.context() as patch:

        def away(_: Database) -> None:
            raise Temporary("the database does not answer.")

        patch.setattr(Database, "begin", away)
        with pytest.raises(Temporary):
            hub.start()
        assert (hub.names(), hub.memory.problem is not None) == ([], True)
    hub.hub.fleet.expect([Target(name="gpu01", via="push")])
    hub.report("gpu03", gpus=[make_gpu(uuid="B")])
    hub.after(1)
    hub.do(hub.memory.open)
    hub.do(hub.memory.flush)
    assert hub.names() == ["gpu01", "gpu02", "gpu03"]
    assert (hub.host("gpu01")["id"], hub.host("gpu01")["status"]) == ("machine-1", "late")
    assert [len(hub.host(name)["gpus"]) for name in ("gpu02", "gpu03")] == [0, 1]


def test_configured_host_is_recalled_in_place_of_one_never_seen(hub: Restarting) -> None:
    targets = [Target(name="gpu01", via="scrape", labels={"rack": "1"})]
    hub.hub.fleet.expect(targets)
    hub.report("gpu01", via="scrape", target="gpu01")
    hub.restart()
    hub.hub.fleet.expect(targets)
    hub.hub.fleet.note_failure("gpu01", "gpu01 refuses connections.")
    assert (hub.names(), hub.host()["status"], hub.host()["problems"]) == (
        ["gpu01"],
        "late",
        ["gpu01 refuses connections."],
    )
    finish(hub.hub.fleet.remove_unconfigured())
    assert hub.names() == ["gpu01"]
    hub.hub.fleet.expect([])
    assert hub.names() == []


def test_host_that_is_read_by_its_address_is_recalled_under_its_own_name(hub: Restarting) -> None:
    targets = [Target(name="192.0.2.7", via="gpu-cluster-status")]
    hub.hub.fleet.expect(targets)
    hub.report("gpu01", via="gpu-cluster-status", target="192.0.2.7")
    hub.restart()
    hub.hub.fleet.expect(targets)
    finish(hub.hub.fleet.remove_unconfigured())
    assert [(host.name, host.target, host.status) for host in hub.hub.fleet.ordered()] == [
        ("gpu01", "192.0.2.7", "late")
    ]
    # Its agent has taken the place of the node, and tells the machine's id and the GPUs' UUIDs.
    hub.hub.fleet.expect([Target(name="192.0.2.7", via="pull")])
    hub.report("gpu01", via="pull", target="192.0.2.7", host_id="m1", gpus=[make_gpu(uuid="GPU-new")])
    assert [(host.id, host.name, host.status) for host in hub.hub.fleet.ordered()] == [("m1", "gpu01", "up")]


def test_host_that_is_no_longer_configured_is_dismissed_and_one_that_pushes_stays(hub: Restarting) -> None:
    hub.hub.fleet.expect([Target(name="gpu01", via="ssh")])
    hub.report("gpu01", via="ssh", target="gpu01")
    hub.report("gpu02")
    hub.restart()
    finish(hub.hub.fleet.remove_unconfigured())
    assert hub.names() == ["gpu02"]


def test_row_that_cannot_be_read_costs_itself_only(hub: Restarting) -> None:
    hub.report("gpu01")
    hub.report("gpu02")
    hub.stop()

    async def damage() -> None:
        async with hub.database.begin() as connection:
            await connection.execute(text("UPDATE host_facts SET body = '{\"id\": 3}' WHERE id = 'gpu01'"))

    hub.do(damage)
    hub.start()
    assert hub.names() == ["gpu02"]


def test_id_with_a_character_that_postgresql_refuses_is_remembered(hub: Restarting) -> None:
    hub.report("gpu01", host_id="a\0b")
    hub.restart()
    assert hub.host()["id"] == "a\0b"


def test_silent_host_is_forgotten_by_true_time_but_not_by_a_clock_that_jumped(database: Database) -> None:
    hub = Restarting(database, forget_after=30 * DAY)
    hub.report("gpu01")
    hub.report("gpu02")
    hub.stop()
    hub.clock.advance(40 * DAY)
    hub.start(retention=RetentionClock(known=hub.clock() - 40 * DAY, now=hub.clock))
    hub.pass_hour()
    assert hub.names() == ["gpu01", "gpu02"]
    hub.report("gpu02")
    hub.hub.retention.confirm(hub.clock())
    hub.pass_hour()
    assert hub.names() == ["gpu02"]


def test_nobody_is_forgotten_in_the_first_hour_of_a_start(database: Database) -> None:
    hub = Restarting(database, forget_after=30 * DAY)
    hub.report("gpu01")
    hub.stop()
    hub.clock.advance(40 * DAY)
    hub.start()
    hub.report("hub")
    for _ in range(FORGET_TICKS - 1):
        hub.hub.fleet.age(hub.clock())
    assert hub.names() == ["gpu01", "hub"]


def test_host_that_was_down_stays_down_where_the_clock_was_set_back(hub: Restarting) -> None:
    hub.report()
    hub.after(500)
    hub.stop()
    hub.clock.advance(-3600)
    hub.start()
    hub.after(1)
    assert hub.host()["status"] == "down"


def test_token_of_a_host_is_remembered(hub: Restarting) -> None:
    hub.report(token=TokenName(7, "rack 3"))
    hub.restart()
    assert hub.hub.fleet.hosts["gpu01"].token == 7


class Watched:
    """The alerts of a hub that is started again."""

    def __init__(self, hub: Restarting) -> None:
        self.hub = hub
        self.events: list[Event] = []
        self.start()

    def start(self) -> None:
        self.engine = AlertEngine(AlertSettings(group_wait=0.0), self.events.append)
        self.selector = HostSelector(self.hub.hub.fleet)

    def evaluate(self, seconds: float = 1.0) -> None:
        self.hub.after(seconds)
        now = self.hub.clock()
        self.engine.begin(FleetContext(now=now))
        for host in list(self.hub.hub.fleet.hosts.values()):
            self.engine.evaluate(self.selector.snapshot(host, now))
        self.engine.finish()

    def restart(self) -> None:
        records = self.engine.firing()
        self.hub.restart()
        self.start()
        self.engine.load(records, self.hub.clock())

    def titles(self) -> list[str]:
        return [record.title for record in self.engine.firing()]


def test_alert_of_a_host_that_was_down_goes_on_and_ends_when_it_is_removed(hub: Restarting) -> None:
    watched = Watched(hub)
    watched.evaluate()
    hub.after(1)
    hub.report()
    for _ in range(8):
        watched.evaluate(10)
    assert watched.titles() == ["gpu01 has stopped reporting"]
    fired_at = watched.engine.firing()[0].fired_at
    watched.restart()
    for _ in range(20):
        watched.evaluate(10)
    assert [(record.title, record.fired_at, record.note) for record in watched.engine.firing()] == [
        ("gpu01 has stopped reporting", fired_at, None)
    ]
    hub.hub.fleet.remove("gpu01")
    watched.engine.remove_hosts(["gpu01"], hub.clock())
    watched.evaluate()
    assert watched.titles() == []
    assert watched.events[-1].title == "Resolved: gpu01 has stopped reporting (the host was removed)"
    assert watched.engine.outgoing[-1].message.title.endswith("(the host was removed)")


def test_host_that_does_not_come_back_is_told_once_after_its_time(hub: Restarting) -> None:
    watched = Watched(hub)
    hub.report()
    reported_at = hub.clock()
    watched.evaluate()
    watched.restart()
    for _ in range(11):
        watched.evaluate(10)
    assert (watched.titles(), watched.events) == ([], [])
    for _ in range(3):
        watched.evaluate(10)
    assert watched.titles() == ["gpu01 has stopped reporting"]
    assert watched.engine.firing()[0].since == reported_at


def test_host_that_comes_back_was_not_late(hub: Restarting) -> None:
    watched = Watched(hub)
    for _ in range(8):
        hub.report()
        watched.evaluate()
        watched.restart()
        watched.evaluate()
    hub.report()
    watched.evaluate()
    seen = watched.selector.snapshot(hub.hub.fleet.hosts["gpu01"], hub.clock())
    assert (seen.late_times, watched.titles()) == (0, [])


def test_alert_is_not_resolved_by_a_host_of_which_its_row_does_not_know_that_it_is_down(hub: Restarting) -> None:
    watched = Watched(hub)
    hub.report()
    hub.do(hub.memory.flush)
    for _ in range(8):
        watched.evaluate(10)
    records = watched.engine.firing()
    hub.start()  # as after kill -9: the row says that it is up
    watched.start()
    watched.engine.load(records, hub.clock())
    for _ in range(20):
        watched.evaluate(10)
    assert (watched.titles(), [event.kind for event in watched.events]) == (
        ["gpu01 has stopped reporting"],
        ["alert_fired"],
    )


def test_gpu_that_was_lost_while_the_hub_was_away_is_missed(hub: Restarting) -> None:
    watched = Watched(hub)
    hub.report(gpus=[make_gpu(0, uuid="A"), make_gpu(1, uuid="B")])
    watched.evaluate()
    watched.restart()
    watched.evaluate()
    for _ in range(16):
        hub.report(gpus=[make_gpu(0, uuid="A")])
        watched.evaluate(5)
    assert [record.rule for record in watched.engine.firing()] == ["gpu_lost"]


@pytest.mark.parametrize(
    ("known", "kinds"),
    [({"gpu01": None}, ["host_down", "host_up"]), ({"gpu01": 1.0}, ["host_up"]), ({}, ["host_down", "host_up"])],
    ids=["was up", "was told to be down", "unknown to the events"],
)
def test_events_tell_that_a_host_did_not_come_back_and_when_it_does(
    hub: Restarting, known: dict[str, float | None], kinds: list[str]
) -> None:
    events: list[Event] = []
    hub.report(boot_id="boot", agent_version="1.2.0")
    hub.restart()
    hub.hub.fleet.observers.add(EventDetector(events.append, hub.clock(), known))
    for _ in range(14):
        hub.after(10)
    hub.report(boot_id="boot", agent_version="1.2.0")
    assert [event.kind for event in events] == kinds


def test_agent_that_watched_while_the_hub_was_away_is_believed_at_once(hub: Restarting) -> None:
    idle = make_gpu(uuid="GPU-1", processes=[make_process()], idle_seconds=3600.0)
    hub.report(gpus=[idle])
    hub.restart()
    hub.report(gpus=[idle])
    assert hub.host()["gpus"][0]["availability"] == "idle"


def test_recalled_gpus_of_one_model_have_each_their_own_state(hub: Restarting) -> None:
    for number in (1, 2, 3):
        hub.report(f"gpu0{number}", gpus=[make_gpu(0, uuid=f"GPU-{number}0"), make_gpu(1, uuid=f"GPU-{number}1")])
        hub.after(1)
    reported_at = hub.clock()
    reserved = ReservationMark(GpuReservation(7, "ada", reported_at + 3600, "training", "reservation"))
    hub.stop()
    hub.hub = Hub(hub.settings, hub.clock)
    hub.hub.fleet.mark({"GPU-10": reserved}, hub.clock())
    hub.memory = HostMemory(hub.hub, hub.database)
    hub.do(hub.memory.open)
    gpus = [gpu for number in (1, 2, 3) for gpu in hub.host(f"gpu0{number}")["gpus"]]
    assert [(gpu["uuid"], gpu["index"], gpu["since"] - reported_at) for gpu in gpus] == [
        ("GPU-10", 0, -3.0),
        ("GPU-11", 1, -3.0),
        ("GPU-20", 0, -2.0),
        ("GPU-21", 1, -2.0),
        ("GPU-30", 0, -1.0),
        ("GPU-31", 1, -1.0),
    ]
    assert [gpu["reservation"] is not None for gpu in gpus] == [True, False, False, False, False, False]
    hub.report("gpu02", gpus=[make_busy_gpu(0, uuid="GPU-20"), make_gpu(1, uuid="GPU-21")])
    states = [gpu["availability"] for number in (1, 2, 3) for gpu in hub.host(f"gpu0{number}")["gpus"]]
    assert states == ["unknown", "unknown", "busy", "free", "unknown", "unknown"]
