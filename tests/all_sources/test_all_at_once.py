"""One hub, every way in at once: each host is lost and comes back while all others stay."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from all_sources.exporters import Exporter, recorded
from all_sources.hub import RETURN_SECONDS, Hub, start_hub, watched
from fakes.consul import ConsulProcess, running_consul
from fakes.net import WHY_NOT, AgentOn, SshdOn, can_make_machines, machine
from fakes.nvml.driver import NO_COMPILER, FakeDriver, FakeGpu, find_compiler
from fakes.ports import free_port
from fakes.sshd import IS_HERE
from fakes.sshd import WHY_NOT as NO_SSHD
from fakes.waiting import wait_until

pytestmark = [
    pytest.mark.skipif(not can_make_machines(), reason=WHY_NOT),
    pytest.mark.skipif(not IS_HERE, reason=NO_SSHD),
    pytest.mark.skipif(find_compiler() is None, reason=NO_COMPILER),
]


class Part(Protocol):
    """What makes a host readable: an agent, an sshd, an exporter."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


class Site:
    """A hub and five hosts, one a way: `parts` by the host's name."""

    def __init__(self, folder: Path, consul: ConsulProcess, open_parts: contextlib.ExitStack) -> None:
        self.consul = consul
        self._folder = folder
        self._open = open_parts
        ports = {"pulled": free_port(), "found": free_port()}
        sshd = SshdOn(self._machine("logged-in"))
        exporter = Exporter(recorded("dcgm-exporter-4-h100x8"))
        token = folder / "pull.token"
        token.write_text("of-all-agents-that-listen\n")
        settings = {
            "pull": {"token_file": str(token)},
            "ssh": {"known_hosts": [str(sshd.known_hosts)], "key_files": [str(sshd.key)]},
            "hosts": [
                {"name": "pushed", "via": "push"},
                {"name": "pulled", "via": "pull", "address": "127.0.0.1", "port": ports["pulled"]},
                {"name": "logged-in", "via": "ssh", "address": "127.0.0.1", "port": sshd.port},
                {"name": "scraped", "via": "scrape", "address": "127.0.0.1", "port": exporter.port},
            ],
            "discovery": {"consul": [{"service": "gpudeck-agent", "url": consul.url}]},
        }
        consul.register("found", ports["found"], address="127.0.0.1")
        self.hub: Hub = start_hub(folder / "hub", settings)
        open_parts.callback(self.hub.stop)
        push = ("--hub", self.hub.url, "--token-file", str(self.hub.token_file), "--name", "pushed")
        self.parts: dict[str, Part] = {
            "pushed": self._agent("pushed", *push),
            "pulled": self._agent("pulled", *self._listen(ports["pulled"], token)),
            "found": self._agent("found", *self._listen(ports["found"], token)),
            "logged-in": sshd,
            "scraped": exporter,
        }
        for part in self.parts.values():
            open_parts.callback(part.stop)
            part.start()

    def _machine(self, name: str) -> Any:
        return self._open.enter_context(machine(name, self._folder / name))

    def _agent(self, name: str, *arguments: str) -> AgentOn:
        place = self._machine(name)
        driver = FakeDriver(place.folder, [FakeGpu(f"GPU-of-{name}")])
        return AgentOn(place, *arguments, "--interval", "1s", driver=driver)

    @staticmethod
    def _listen(port: int, token: Path) -> tuple[str, ...]:
        return ("--listen", f"127.0.0.1:{port}", "--token-file", str(token))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with running_consul(folder) as consul, contextlib.ExitStack() as parts:
        site = Site(folder, consul, parts)
        site.hub.wait_for("up", *site.parts)
        yield site


def test_every_way_is_shown_at_once_with_its_gpus(site: Site) -> None:
    shown = {
        name: (host["via"], host["status"], [gpu["name"] for gpu in host["gpus"]], host["problems"])
        for name, host in site.hub.hosts().items()
    }
    assert shown == {
        "pushed": ("push", "up", ["NVIDIA H200"], []),
        "pulled": ("pull", "up", ["NVIDIA H200"], []),
        "found": ("pull", "up", ["NVIDIA H200"], []),
        "logged-in": ("ssh", "up", ["NVIDIA H200"], []),
        "scraped": ("scrape", "up", ["NVIDIA H100 80GB HBM3"] * 8, []),
    }


def test_each_host_is_lost_and_comes_back_while_the_others_stay(site: Site) -> None:
    reasons = {}
    with watched(site.hub) as seen:
        wait_until(lambda: len(seen.statuses) == len(site.parts), "the first look")
        for names in (("pushed", "scraped"), ("pulled", "logged-in"), ("found",)):
            for name in names:
                site.parts[name].stop()
            site.hub.wait_for("down", *names)
            for name in names:
                assert {gpu["availability"] for gpu in site.hub.hosts()[name]["gpus"]} == {"unknown"}
                reasons[name] = site.hub.problems_of(name)
                site.parts[name].start()  # it comes back while the next ones go
        site.hub.wait_for("up", *site.parts, seconds=RETURN_SECONDS)
    assert seen.statuses == {name: ["up", "late", "down", "up"] for name in site.parts}
    assert {name for name, reason in reasons.items() if "refuse" in reason} == site.parts.keys() - {"pushed"}
    assert {name: site.hub.problems_of(name) for name in site.parts} == dict.fromkeys(site.parts, "")


def test_hosts_stay_when_the_list_that_named_them_is_lost(site: Site) -> None:
    site.consul.kill()
    wait_until(lambda: b"Its last list of 1 host counts" in site.hub.get("/api/v1/fleet"), "the hub's notice")
    lost_at = time.time()
    wait_until(lambda: site.hub.hosts()["found"]["last_report_at"] > lost_at, "a report after that")
    assert site.hub.statuses()["found"] == "up"
