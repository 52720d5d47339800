"""Which host is which, whatever way its reports come."""

from typing import Any

import pytest

from fakes.reports import make_envelope, make_gpu
from fakes.views import show
from gpudeck.fleet.identity import MAX_MACHINES_PER_NAME
from gpudeck.fleet.state import FleetState
from gpudeck.model.errors import ReportRefused
from gpudeck.model.gpu_state import FleetSettings
from gpudeck.model.target import Target
from gpudeck.wire import Envelope

NOW = 1_790_000_000.0


class Station:
    """A fleet whose clock stands until a test moves it."""

    def __init__(self) -> None:
        self.fleet = FleetState(FleetSettings())
        self.now = NOW

    def push(self, name: str, machine: str = "", only: str | None = None, **others: Any) -> bool:
        return self.fleet.apply(self.envelope(name, machine, **others), via="push", now=self.now, only=only)

    def fetch(self, name: str, via: str, machine: str = "", **others: Any) -> bool:
        envelope = self.envelope(name, machine, run_id=f"run-{via}-{name}", **others)
        return self.fleet.apply(envelope, via=via, now=self.now, target=name)

    def expect(self, *names: str, via: Any = "ssh", **others: Any) -> None:
        self.fleet.expect([Target(name=name, via=via, **others) for name in names])

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.fleet.age(self.now)

    def shown(self) -> list[tuple[str, str, str, str]]:
        return [(host.id, host.name, host.status, host.via) for host in self.fleet.ordered()]

    def problems(self, host_id: str) -> list[str]:
        found: list[str] = show(self.fleet.hosts[host_id])["problems"]
        return found

    def envelope(self, name: str, machine: str, **others: Any) -> Envelope:
        self.sequence = getattr(self, "sequence", 0) + 1
        # Each machine has GPUs of its own.
        gpus = others.pop("gpus", [make_gpu(uuid=f"GPU-of-{machine or name}")])
        return make_envelope(name, self.sequence, gpus, host_id=machine, collected_at=self.now, **others)


@pytest.fixture
def hub() -> Station:
    return Station()


def test_configured_host_that_was_never_seen_is_shown_as_such_with_every_reason(hub: Station) -> None:
    hub.expect("gpu01", labels={"rack": "b3"})
    view = show(hub.fleet.hosts["gpu01"])
    assert (view["status"], view["via"], view["labels"]) == ("never_seen", "ssh", {"rack": "b3"})
    unknown = {name for name, value in view.items() if value is None}
    assert unknown - {"maintenance", "note"} <= view["reasons"].keys()
    assert "has not reported yet" in view["reasons"]["gpus"]


def test_host_that_was_never_seen_does_not_become_late_or_forgotten(hub: Station) -> None:
    hub.expect("gpu01")
    hub.wait(90 * 86_400)
    assert hub.shown() == [("gpu01", "gpu01", "never_seen", "ssh")]


def test_first_report_of_a_configured_host_takes_its_place(hub: Station) -> None:
    hub.expect("gpu01", labels={"rack": "b3"})
    hub.fleet.take_changes()
    hub.fetch("gpu01", "ssh", "m1")
    assert hub.shown() == [("m1", "gpu01", "up", "ssh")]
    assert show(hub.fleet.hosts["m1"])["labels"] == {"rack": "b3"}
    assert hub.fleet.take_changes()[1] == ["gpu01"]


def test_host_keeps_its_identity_from_scrape_to_ssh_to_push_and_back(hub: Station) -> None:
    gpus = [make_gpu(uuid="GPU-1")]
    hub.expect("gpu01", via="scrape")
    hub.fetch("gpu01", "scrape", gpus=gpus)
    assert hub.shown() == [("gpu01", "gpu01", "up", "scrape")]
    hub.expect("gpu01", via="ssh")
    hub.fetch("gpu01", "ssh", "m1", gpus=gpus)
    assert hub.shown() == [("m1", "gpu01", "up", "ssh")]
    hub.push("gpu01", "m1", gpus=gpus)
    assert hub.shown() == [("m1", "gpu01", "up", "push")]
    hub.wait(61)
    hub.expect("gpu01", via="scrape")
    hub.fetch("gpu01", "scrape", gpus=gpus)
    assert hub.shown() == [("m1", "gpu01", "up", "scrape")]


def test_better_way_counts_while_it_is_up_and_the_other_takes_over_when_it_ends(hub: Station) -> None:
    hub.expect("gpu01")
    hub.fetch("gpu01", "ssh", "m1")
    assert hub.push("gpu01", "m1")
    assert not hub.fetch("gpu01", "ssh", "m1")
    assert hub.fleet.has_better_source("gpu01", "ssh")
    assert hub.shown() == [("m1", "gpu01", "up", "push")]
    hub.wait(31)
    assert hub.fetch("gpu01", "ssh", "m1")
    assert hub.shown() == [("m1", "gpu01", "up", "ssh")]


def test_failure_is_shown_beside_the_host_until_it_is_over(hub: Station) -> None:
    hub.expect("gpu01")
    hub.fleet.note_failure("gpu01", "connection refused")
    assert hub.problems("gpu01") == ["connection refused"]
    hub.fetch("gpu01", "ssh", "m1")
    assert hub.problems("m1") == []
    hub.fleet.note_failure("gpu01", "no route to host")
    assert hub.problems("m1") == ["no route to host"]
    hub.fleet.note_failure("gpu01", None)
    assert hub.problems("m1") == []


def test_host_keeps_the_name_it_is_read_under_when_its_agent_reports_under_another(hub: Station) -> None:
    hub.expect("trainer", via="pull", labels={"rack": "b3"})
    hub.fetch("trainer", "pull", "m1")
    hub.push("srv-a17", "m1")
    assert hub.shown() == [("m1", "trainer", "up", "push")]
    assert show(hub.fleet.hosts["m1"])["labels"] == {"rack": "b3"}
    hub.expect()
    hub.push("srv-a17", "m1")
    assert hub.shown() == [("m1", "srv-a17", "up", "push")]


def test_machine_with_two_configured_names_is_shown_under_one_and_the_other_says_so(hub: Station) -> None:
    hub.fleet.expect([Target(name="pulled", via="pull"), Target(name="pushed", via="push")])
    hub.fetch("pulled", "pull", "m1")
    hub.push("pushed", "m1")
    assert hub.shown() == [("m1", "pulled", "up", "push"), ("pushed", "pushed", "never_seen", "push")]
    told = "its agent runs on the machine that is shown as pulled: take one of the two names out"
    assert (hub.problems("m1"), hub.problems("pushed")) == ([], [told])
    hub.expect("pushed", via="push")
    hub.push("pushed", "m1")
    assert hub.shown() == [("m1", "pushed", "up", "push")]
    assert hub.problems("m1") == []


def test_machine_that_is_read_under_two_names_keeps_the_reason_of_the_second(hub: Station) -> None:
    hub.expect("first", "second", via="pull")
    hub.fetch("first", "pull", "m1")
    hub.fleet.note_failure("second", "it answers as first")
    hub.push("second", "m1")
    assert hub.shown() == [("m1", "first", "up", "push"), ("second", "second", "never_seen", "pull")]
    assert hub.problems("second") == ["it answers as first"]


def test_machine_renamed_from_one_configured_name_to_another_leaves_the_first_missing(hub: Station) -> None:
    hub.expect("old", "new", via="push")
    hub.push("old", "m1")
    hub.push("new", "m1")
    assert hub.shown() == [("m1", "new", "up", "push"), ("old", "old", "never_seen", "push")]
    assert hub.problems("m1") == hub.problems("old") == []


def test_renamed_machine_that_is_only_expected_shows_its_new_name(hub: Station) -> None:
    hub.expect("old", via="push")
    hub.push("old", "m1")
    hub.push("new", "m1")
    assert hub.shown() == [("m1", "new", "up", "push")]


def test_two_hosts_with_one_name_are_both_shown_and_flagged_until_one_goes(hub: Station) -> None:
    hub.push("gpu01", "m1")
    hub.push("gpu01", "m2", boot_id="boot-2", run_id="run-2")
    assert [host[:3] for host in hub.shown()] == [("m1", "gpu01", "up"), ("m2", "gpu01", "up")]
    assert hub.problems("m1") == hub.problems("m2") == ["another host has the name gpu01 too"]
    hub.push("gpu02", "m2", boot_id="boot-2", run_id="run-2")
    assert hub.problems("m1") == hub.problems("m2") == []


def test_machines_cloned_with_their_id_are_both_shown_and_told(hub: Station) -> None:
    hub.push("gpu01", "m1")
    hub.push("gpu02", "m1", boot_id="boot-2", run_id="run-2")
    assert [host[1] for host in hub.shown()] == ["gpu01", "gpu02"]
    assert "same machine id as gpu02" in hub.problems("m1")[0]
    assert "same machine id as gpu01" in hub.problems("m1:gpu02")[0]


def test_host_that_answers_as_another_is_refused_and_harms_nobody(hub: Station) -> None:
    hub.expect("gpu01", "liar")
    hub.fetch("gpu01", "pull", "m1")
    with pytest.raises(ReportRefused, match="liar answers as the machine that is shown as gpu01 already"):
        hub.fetch("liar", "pull", "m1")
    assert hub.shown() == [("m1", "gpu01", "up", "pull"), ("liar", "liar", "never_seen", "ssh")]


def test_host_that_is_no_longer_configured_goes_unless_it_reports_by_itself(hub: Station) -> None:
    hub.expect("gpu01", "gpu02", "gpu03")
    hub.fetch("gpu01", "ssh", "m1")
    hub.push("gpu02", "m2")
    hub.expect()
    assert hub.shown() == [("m2", "gpu02", "up", "push")]


def test_machine_that_was_installed_anew_takes_the_place_of_the_old_one(hub: Station) -> None:
    hub.expect("gpu01")
    hub.fetch("gpu01", "ssh", "m1")
    hub.wait(120)
    hub.fetch("gpu01", "ssh", "m2", boot_id="boot-2")
    assert hub.shown() == [("m2", "gpu01", "up", "ssh")]


def test_clock_that_is_off_by_more_than_five_seconds_is_shown(hub: Station) -> None:
    envelope = make_envelope("gpu01", 1, host_id="m1", collected_at=NOW + 12.4)
    hub.fleet.apply(envelope, via="push", now=NOW, sent_at=NOW + 12.4)
    assert hub.problems("m1") == ["its clock is 12 s ahead of the hub's: check its time service"]
    hub.fleet.apply(make_envelope("gpu01", 2, host_id="m1", collected_at=NOW), via="push", now=NOW, sent_at=NOW + 4)
    assert hub.problems("m1") == []


def test_stand_in_and_its_flags_survive_when_the_list_is_told_again(hub: Station) -> None:
    hub.expect("gpu01")
    hub.fleet.note_failure("gpu01", "connection refused")
    hub.expect("gpu01", "gpu02")
    assert hub.problems("gpu01") == ["connection refused"]
    assert [host[1] for host in hub.shown()] == ["gpu01", "gpu02"]


@pytest.mark.parametrize("only", ["gpu31", "gpu3*"])
def test_token_for_one_host_takes_no_other_over_by_its_machine_id(hub: Station, only: str) -> None:
    hub.push("gpu07", "m7", only="gpu07")
    hub.wait(3600)
    assert hub.shown() == [("m7", "gpu07", "down", "push")]
    hub.push("gpu31", "m7", only=only)
    hub.push("gpu31", "m7", only=only)
    assert hub.shown() == [("m7", "gpu07", "down", "push"), ("m7:gpu31", "gpu31", "up", "push")]
    assert "same machine id as gpu07" in hub.problems("m7:gpu31")[0]


def test_token_for_one_host_takes_the_place_of_no_other_that_was_never_seen(hub: Station) -> None:
    hub.expect("gpu40")
    hub.push("gpu31", "gpu40", only="gpu31")
    assert ("gpu40", "gpu40", "never_seen", "ssh") in hub.shown()


def test_machine_that_was_renamed_is_the_same_to_a_token_for_both_names(hub: Station) -> None:
    hub.push("gpu07", "m7", only="gpu*")
    hub.wait(3600)
    hub.push("gpu08", "m7", only="gpu*")
    assert hub.shown() == [("m7", "gpu08", "up", "push")]


def test_token_for_one_host_does_not_fill_the_fleet_with_machines(hub: Station) -> None:
    for number in range(MAX_MACHINES_PER_NAME):
        hub.push("gpu07", f"m{number}", only="gpu07")
    with pytest.raises(ReportRefused, match="8 machines with the name gpu07"):
        hub.push("gpu07", "another", only="gpu07")
    assert hub.push("gpu07", "m0", only="gpu07")
    assert hub.push("gpu08", "another", only="gpu*")


@pytest.mark.parametrize("machines", [("m1", "m2"), ("", "")])
def test_second_host_of_a_name_that_is_read_by_its_address_keeps_the_address(
    hub: Station, machines: tuple[str, str]
) -> None:
    addresses = ("192.0.2.7", "192.0.2.8")
    hub.expect(*addresses, via="pull")
    for _ in range(2):
        hub.wait(2)
        for address, machine in zip(addresses, machines, strict=True):
            gpus = [make_gpu(uuid=f"GPU-{address}")]
            envelope = hub.envelope("localhost", machine, run_id=address, gpus=gpus)
            assert hub.fleet.apply(envelope, via="pull", now=hub.now, target=address)
    shown = [(host.name, host.target, host.status) for host in hub.fleet.ordered()]
    assert shown == [("192.0.2.8", "192.0.2.8", "up"), ("localhost", "192.0.2.7", "up")]
