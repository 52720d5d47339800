"""A host whose way in is changed while the hub runs: it stays one host, and its GPUs stay as long in their state."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from all_sources.exporters import Exporter, dcgm
from all_sources.hub import Hub, hub_with, watched
from fakes.hubs import environment
from fakes.nvml.driver import NO_COMPILER, FakeDriver, FakeGpu, find_compiler
from fakes.sshd import IS_HERE, WHY_NOT, Sshd, running_sshd
from fakes.waiting import wait_until

pytestmark = [
    pytest.mark.skipif(not IS_HERE, reason=WHY_NOT),
    pytest.mark.skipif(find_compiler() is None, reason=NO_COMPILER),
]

UUID = "GPU-5f1e8a30-0c5d-4b7e-9a61-2d3c4b5a6978"
"""That of the H200 whose nvidia-smi was recorded."""


class Site:
    """One machine, `localhost`, on which an exporter, an sshd and at last an agent tell of the same busy GPU.

    Two files name it, `exporters` and `over-ssh`: `name` and `leave_out` change them while the hub runs. Another host
    stays in both, since a list that has become empty is believed only after a while.
    """

    def __init__(self, folder: Path, sshd: Sshd, exporter: Exporter, parts: contextlib.ExitStack) -> None:
        self.sshd = sshd
        self._folder = folder
        self._parts = parts
        self.name("exporters", exporter.port)
        self.leave_out("over-ssh")
        (folder / "known_hosts").write_text(sshd.known_hosts.read_text().replace("127.0.0.1", "localhost"))
        files = [{"path": str(folder / "exporters"), "via": "scrape"}, {"path": str(folder / "over-ssh"), "via": "ssh"}]
        settings = {
            "discovery": {"hosts_files": files},
            "ssh": {"known_hosts": [str(folder / "known_hosts")], "key_files": [str(sshd.key)]},
        }
        self.hub: Hub = parts.enter_context(hub_with(folder / "hub", settings))

    def name(self, file: str, port: int) -> None:
        (self._folder / file).write_text(f"other-{file}\nlocalhost:{port} list={file}\n")

    def leave_out(self, file: str) -> None:
        (self._folder / file).write_text(f"other-{file}\n")

    def start_agent(self) -> None:
        """It pushes, from the very machine that the sshd is on."""
        driver = FakeDriver(self._folder, [FakeGpu(UUID)])
        options = ("--hub", self.hub.url, "--token-file", str(self.hub.token_file), "--name", "localhost")
        command = [sys.executable, "-m", "gpudeck", "agent", *options, "--interval", "1s"]
        agent = subprocess.Popen(command, env=environment(self._folder) | driver.environment, start_new_session=True)
        self._parts.callback(agent.wait, 20)
        self._parts.callback(agent.terminate)

    @property
    def host(self) -> dict[str, Any]:
        return self.hub.hosts()["localhost"]

    @property
    def gpu(self) -> dict[str, Any]:
        (gpu,) = self.host["gpus"]
        found: dict[str, Any] = gpu
        return found

    def wait_for_problem(self, sentence: str) -> None:
        wait_until(lambda: sentence in self.hub.get("/api/v1/fleet").decode(), sentence)

    def wait_for_way(self, via: str) -> None:
        wait_until(lambda: self.host["via"] == via, f"the way {via}")

    def wait_until_not_configured(self) -> None:
        """Then the label that its file gave it is gone with its next report."""
        wait_until(lambda: "list" not in self.host["labels"], "the end of its label")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with contextlib.ExitStack() as parts:
        sshd = parts.enter_context(running_sshd(tmp_path / "sshd"))
        exporter = Exporter(dcgm(UUID, GPU_UTIL=97, FB_USED=21_000, FB_FREE=122_000, GPU_TEMP=53))
        parts.callback(exporter.stop)
        exporter.start()
        yield Site(tmp_path, sshd, exporter, parts)


def test_host_that_is_scraped_then_read_over_ssh_then_reports_stays_one_host(site: Site) -> None:
    site.hub.wait_for("up", "localhost")
    first = site.gpu
    with watched(site.hub) as seen:
        site.name("over-ssh", site.sshd.port)
        site.wait_for_problem("localhost is named by")
        site.leave_out("exporters")
        site.wait_for_way("ssh")
        over_ssh = site.gpu
        site.start_agent()
        site.wait_for_way("push")
        site.leave_out("over-ssh")
        site.wait_until_not_configured()
        pushed = site.gpu
    assert seen.statuses["localhost"] == ["up"]
    assert [gpu["uuid"] for gpu in (first, over_ssh, pushed)] == [UUID] * 3
    assert [gpu["availability"] for gpu in (first, over_ssh, pushed)] == ["busy"] * 3
    assert over_ssh["since"] == pushed["since"] == first["since"]
    assert (first["processes"], pushed["processes"]) == (None, [])
