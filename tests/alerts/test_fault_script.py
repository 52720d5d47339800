"""The simulated lab, whose faults are known beforehand: exactly the alerts that they deserve, no more and no fewer."""

import pytest

from alerts.watched import NOW, Watched
from fakes.views import show
from gpudeck.alerts.notifiers.rendering import Message
from gpudeck.collectors.simulated.fleet import SimulatedFleet

DESERVED = {
    "hot": {"gpu_hot", "gpu_throttled"},
    "missing": {"gpu_lost"},
    "orphaned": {"orphaned_memory"},
    "flaky": {"host_down"},
    "worn": {"ecc"},
    "full": {"disk_full"},
    "cut": set(),
    "unlinked": set(),
}


class Lab:
    """Eight hosts, one with each defect, watched for so long."""

    def __init__(self, minutes: int) -> None:
        self.fleet = SimulatedFleet(8)
        self.watched = Watched()
        self.seen: set[tuple[str, str | None]] = set()
        self.owners: set[tuple[str, str]] = set()
        for _ in range(6 * minutes):
            self.watched.clock.advance(10)
            self._report()
            self.watched.step()
            self.seen |= {
                (record.rule, record.host) for record in self.watched.engine.firing() if not record.is_personal
            }
            self._note_owners()

    def _report(self) -> None:
        self.watched.reports = {}
        for number, name in enumerate(self.fleet.names):
            report = self.fleet.report(number, self.watched.clock.now)
            if report is not None:
                self.watched.report(name, report=report)

    def _note_owners(self) -> None:
        """By the fleet itself: whose GPU has been idle for two hours."""
        now = self.watched.clock.now
        gpus = [gpu for host in self.watched.hub.fleet.hosts.values() for gpu in show(host)["gpus"]]
        held = [gpu for gpu in gpus if gpu["availability"] == "idle" and now - gpu["since"] >= 7200]
        self.owners |= {(user, gpu["uuid"]) for gpu in held for user in gpu["users"]}

    def defects(self) -> dict[str, str]:
        return {name: self.fleet.simulator(number).host.defect for number, name in enumerate(self.fleet.names)}

    def faults(self) -> set[tuple[str, str]]:
        """Hosts whose drivers told of something that is nobody's program's fault."""
        found = set()
        for host in self.watched.hub.fleet.hosts.values():
            kinds = {event["kind"] for gpu in show(host)["gpus"] for event in gpu["events"]}
            found |= {("xid", host.name) for _ in kinds - {"application"}}
        return found

    def personal(self) -> list[Message]:
        return [message for message in self.watched.sent if message.is_personal and message.rule == "gpu_idle"]


@pytest.fixture(scope="module")
def lab() -> Lab:
    return Lab(minutes=60)


def test_every_mishap_gives_the_alerts_it_deserves_and_nothing_else_does(lab: Lab) -> None:
    expected = {(rule, host) for host, defect in lab.defects().items() for rule in DESERVED[defect]}
    assert lab.seen - lab.faults() == expected


def test_everything_is_told_once_but_for_the_host_that_comes_and_goes(lab: Lab) -> None:
    flaky = next(host for host, defect in lab.defects().items() if defect == "flaky")
    public = [message for message in lab.watched.sent if not message.is_personal and message.kind == "alert"]
    begun = [message.rule for message in public if message.rule != "host_down"]
    assert sorted(set(begun)) == sorted(begun)
    falls = [message for message in public if message.rule == "host_down"]
    assert {message.title for message in falls} == {f"{flaky} has stopped reporting"}
    assert len(falls) == 3


def test_whoever_holds_a_gpu_idle_is_told_and_nobody_else(lab: Lab) -> None:
    told = {person for message in lab.personal() for person in message.accounts}
    assert told == {user for user, _ in lab.owners}
    assert lab.owners


def test_every_message_has_a_key_and_a_next_step(lab: Lab) -> None:
    keys = [message.key for message in lab.watched.sent]
    assert len(keys) == len(set(keys))
    assert all(message.action for message in lab.watched.sent if message.kind == "alert")
    assert all(message.at > NOW for message in lab.watched.sent)
