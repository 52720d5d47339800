"""Six hosts behind links of their own: slow and lossy, cut, and mute. A bad link is one host's matter alone."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from all_sources.hub import RETURN_SECONDS, Hub, hub_with, watched
from fakes.net import WHY_NOT, AgentOn, Network, SshdOn, can_make_machines, network
from fakes.sshd import IS_HERE
from fakes.sshd import WHY_NOT as NO_SSHD
from fakes.waiting import wait_until

pytestmark = [
    pytest.mark.skipif(not can_make_machines(), reason=WHY_NOT),
    pytest.mark.skipif(not IS_HERE, reason=NO_SSHD),
]

NEAR = ("agent-near", "sshd-near")
SLOW = ("agent-slow", "sshd-slow")
LOST = ("agent-cut", "sshd-mute")
MIN_DEADLINE = 5.0
"""Seconds: that of `pull` here."""


class Site:
    """A hub and six hosts, each behind a link of its own. Those in `SLOW` lie 100 ms away, and each way every twentieth
    packet is lost."""

    def __init__(self, folder: Path, wired: Network, parts: contextlib.ExitStack) -> None:
        self.wired = wired
        self._parts = parts
        self._token = folder / "token"
        self._token.write_text("of-all-agents\n")
        hosts = [
            *map(self._add_agent, ("agent-near", "agent-slow", "agent-cut")),
            *map(self._add_sshd, ("sshd-near", "sshd-slow", "sshd-mute")),
        ]
        for name in SLOW:
            wired.wires[name].delay, wired.wires[name].loss = 0.1, 0.05
        known_hosts = [str(file) for file in folder.glob("*/sshd/known_hosts")]
        settings = {
            "hosts": hosts,
            # A host is late after three intervals: longer than one reading may take on a busy machine.
            "pull": {"token_file": str(self._token), "interval": "3s", "deadline": "5s"},
            # A login takes ten round trips.
            "ssh": {"known_hosts": known_hosts, "interval": "3s", "deadline": "6s"},
        }
        self.hub: Hub = parts.enter_context(hub_with(folder / "hub", settings, place=wired.hub))

    def _add_agent(self, name: str) -> dict[str, Any]:
        place, address = self.wired.add(name, with_wire=name in SLOW)
        listen = ("--listen", f"{address}:7080", "--token-file", str(self._token), "--interval", "1s")
        self._start(AgentOn(place, *listen))
        return {"name": name, "via": "pull", "address": address}

    def _add_sshd(self, name: str) -> dict[str, Any]:
        place, address = self.wired.add(name, with_wire=name != "sshd-near")
        sshd = SshdOn(place, address)
        self._start(sshd)
        return {"name": name, "address": address, "port": sshd.port, "key_file": str(sshd.key)}

    def _start(self, part: AgentOn | SshdOn) -> None:
        self._parts.callback(part.stop)
        part.start()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with network(tmp_path) as wired, contextlib.ExitStack() as parts:
        yield Site(tmp_path, wired, parts)


def test_link_that_is_cut_and_one_that_is_mute_cost_their_own_hosts_alone(site: Site) -> None:
    hub, wired = site.hub, site.wired
    hub.wait_for("up", *NEAR, *SLOW, *LOST, seconds=60)
    with watched(hub) as seen:
        wait_until(lambda: len(seen.statuses) == 6, "the first look")
        wired.cut("agent-cut")
        wired.wires["sshd-mute"].loss = 1.0
        hub.wait_for("down", *LOST)
        wait_until(lambda: all("answer" in hub.problems_of(name) for name in LOST), "the reasons")
        wired.mend("agent-cut")
        wired.wires["sshd-mute"].loss = 0.0
        hub.wait_for("up", *LOST, seconds=RETURN_SECONDS)
    assert {name: seen.statuses[name] for name in NEAR} == {name: ["up"] for name in NEAR}
    assert {name: seen.statuses[name] for name in LOST} == {name: ["up", "late", "down", "up"] for name in LOST}
    assert [name for name in SLOW if "down" in seen.statuses[name]] == []
    # A dead host is waited for until its deadline, by nobody but itself.
    assert {name: median(seen.gaps(name)) < MIN_DEADLINE for name in NEAR} == dict.fromkeys(NEAR, True)
    # The end of a command whose answer the mute link cut off is known one reading later.
    wait_until(lambda: [hub.problems_of(name) for name in LOST] == ["", ""], "the problems to end")
