"""This machine without a hub: what is shown of it is what a hub would show of its reports."""

import random
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from fakes.random_machine import Machine
from gpudeck.collectors.host import host_name, machine_id
from gpudeck.fleet.state import FleetState
from gpudeck.model.gpu_state import FleetSettings
from gpudeck.model.report import Report
from gpudeck.model.view import Fleet
from gpudeck.views.this_machine import LocalWatch

START = 1_700_000_000.0
WITHOUT_HUB = "import sys; sys.modules['numpy'] = None; from gpudeck.cli import main; main()"


class Recorded:
    """Gives reports one after the other, as the collectors of a machine do."""

    name = "recorded"

    def __init__(self, reports: list[Report]) -> None:
        self._reports = iter(reports)

    def collect(self, now: float) -> Report:
        return next(self._reports)

    def close(self) -> None:
        pass


def plain(fleet: Fleet) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(fleet))
    return decoded


@pytest.mark.parametrize("seed", range(6))
def test_a_hub_would_show_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    machine, hub, now = Machine(host_name(), chance), FleetState(FleetSettings()), START
    machine.skew = 0.0
    steps = [chance.choice((1.0, 5.0, 30.0, 700.0)) for _ in range(120)]
    times = [START + sum(steps[:at]) for at in range(len(steps))]
    # A machine that has GPUs says of each of them that it cannot be read.
    sent = [one for at in times if (one := machine.report(at)).report.gpus is not None]
    watch = LocalWatch(Recorded([one.report for one in sent]), 5.0)
    for number, one in enumerate(sent):
        now = one.collected_at
        same = msgspec.structs.replace(
            one, host_id=machine_id(), run_id="run", sequence=number, interval_seconds=5.0, agent_version="0.1.0"
        )
        hub.apply(same, via="local", now=now, sent_at=now)
        monkeypatch.setattr("gpudeck.views.this_machine.time.time", lambda now=now: now)
        assert plain(watch.read()) == plain(hub.view(now))


@pytest.mark.parametrize("command", [["show", "--local", "--json"], ["free", "--local", "--json"]])
def test_a_base_install_reads_its_own_machine(command: list[str]) -> None:
    """It has no numpy: only a hub needs that."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_HUB, *command], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""
    assert msgspec.json.decode(done.stdout.encode()) is not None
