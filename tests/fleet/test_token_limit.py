"""One agent token fills the fleet with no more than so many hosts, and those that are there go on."""

from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.reports import make_envelope, make_gpu
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.identity import TokenName
from gpudeck.model.errors import ReportRefused
from gpudeck.model.gpu_state import FleetSettings
from gpudeck.wire import encode

STOLEN, OTHER = TokenName(1, "rack 3"), TokenName(2, "rack 4")


class Flooded:
    def __init__(self, most: int = 3) -> None:
        self.clock = FakeClock()
        self.hub = Hub(FleetSettings(max_hosts_per_token=most), self.clock)
        self.sequence = 0

    def report(self, *hosts: str, token: TokenName = STOLEN, **others: Any) -> None:
        for host in hosts:
            self.sequence += 1
            envelope = make_envelope(host, self.sequence, gpus=[make_gpu(uuid=host)], **others)
            self.hub.ingest.take(encode(envelope), "application/msgpack", "zstd", token=token)

    def tick(self, seconds: float = 1.0) -> list[str]:
        self.clock.advance(seconds)
        self.hub.stream.tick()
        return self.hub.fleet.problems


def test_token_at_its_limit_brings_no_further_host_and_its_hosts_go_on() -> None:
    flooded = Flooded()
    flooded.report("a", "b", "c")
    with pytest.raises(ReportRefused, match="the token 'rack 3' has brought 3 hosts") as refused:
        flooded.report("d")
    # An agent tries again after 429, so that its host appears when the limit is raised.
    assert (refused.value.status, refused.value.code) == (429, "too_many_hosts")
    assert "fleet.max_hosts_per_token" in refused.value.hint
    flooded.report("a", "b", "c")
    flooded.report("d", token=OTHER)
    assert sorted(flooded.hub.fleet.hosts) == ["a", "b", "c", "d"]


def test_removed_hosts_leave_room_and_one_that_changes_its_token_counts_for_the_new_one() -> None:
    flooded = Flooded()
    flooded.report("a", "b", "c")
    flooded.hub.fleet.remove("a")
    flooded.report("d")
    flooded.report("b", token=OTHER)
    flooded.report("e")
    with pytest.raises(ReportRefused):
        flooded.report("f")


def test_admin_is_told_for_an_hour_with_the_name_of_the_token() -> None:
    flooded = Flooded(most=1)
    flooded.report("a")
    assert flooded.tick() == []
    with pytest.raises(ReportRefused):
        flooded.report("b")
    (problem,) = flooded.tick()
    assert "the agent token 'rack 3' is at its limit of 1 host:" in problem
    # Without --down it would remove the hosts that are real too.
    assert problem.endswith("gpudeck hosts remove --token 'rack 3' --down")
    assert flooded.tick(3000) == [problem]
    assert flooded.tick(3600) == []


def test_demo_is_not_limited() -> None:
    flooded = Flooded(most=1)
    flooded.hub.fleet.is_simulated = True
    flooded.report("a", "b", simulated=True)
    assert len(flooded.hub.fleet.hosts) == 2


def test_thousand_hosts_are_enrolled_with_one_token_and_twenty_thousand_invented_ones_are_not() -> None:
    flooded = Flooded(most=FleetSettings().max_hosts_per_token)
    for number in range(1000):
        flooded.report(f"gpu{number}")
    refused = 0
    for number in range(20_000):
        try:
            flooded.hub.fleet.apply(
                make_envelope(f"invented{number}", gpus=[]), via="push", now=flooded.clock(), token=STOLEN
            )
        except ReportRefused:
            refused += 1
    assert (len(flooded.hub.fleet.hosts), refused) == (2000, 19_000)
