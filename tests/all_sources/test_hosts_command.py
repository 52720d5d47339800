"""`gpudeck hosts` against a running hub: what it tries, adds, lists and removes; a hub that is killed keeps it all."""

import concurrent.futures
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from all_sources.exporters import Exporter, recorded
from all_sources.hub import Hub, start_hub
from fakes.hubs import environment, gpudeck
from fakes.net import WHY_NOT, AgentOn, SshdOn, can_make_machines, machine
from fakes.nvml.driver import NO_COMPILER, FakeDriver, FakeGpu, find_compiler
from fakes.ports import free_port
from fakes.sshd import IS_HERE, Sshd
from fakes.sshd import WHY_NOT as NO_SSHD
from fakes.waiting import wait_until

pytestmark = [
    pytest.mark.skipif(not can_make_machines(), reason=WHY_NOT),
    pytest.mark.skipif(not IS_HERE, reason=NO_SSHD),
    pytest.mark.skipif(find_compiler() is None, reason=NO_COMPILER),
]

EVERY_HOST = ("pushed", "pulled", "logged-in", "scraped", "localhost")


class Site:
    """A hub, and on this machine an agent that listens, an sshd and an exporter. The hub can be started again."""

    def __init__(self, folder: Path, sshd: Sshd, exporter: Exporter, parts: contextlib.ExitStack) -> None:
        self.folder = folder
        self.sshd = sshd
        self.exporter = exporter
        self.agent_port = free_port()
        self._parts = parts
        self._settings = {
            "pull": {"token_file": str(self._start_agent())},
            "ssh": {"known_hosts": [str(sshd.known_hosts)], "key_files": [str(sshd.key)]},
            "discovery": {"hosts_files": [{"path": str(folder / "hosts.txt"), "via": "scrape"}]},
        }
        (folder / "hosts.txt").write_text(f"localhost:{exporter.port}\n")
        self._listen = f"127.0.0.1:{free_port()}"
        self.hub = self._start_hub()
        parts.callback(self._stop_hub)
        self.pushing = folder / "pushing"
        self._add_hosts()

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """`gpudeck hosts`, on the hub's machine."""
        return gpudeck(self.hub.data_dir, "hosts", *arguments, GPUDECK_HUB=self.hub.url)

    def run_all(self, *commands: tuple[str, ...]) -> "list[subprocess.CompletedProcess[str]]":
        """Several at once."""
        with concurrent.futures.ThreadPoolExecutor() as pool:
            return list(pool.map(lambda command: self.run(*command), commands))

    def kill_and_restart(self) -> None:
        self.hub.stop(signal.SIGKILL)
        self.hub = self._start_hub()

    def start_as_told(self, told: str, home: Path, uuid: str) -> None:
        """With the name and the token of the line that `gpudeck hosts add` printed. What the line installs is tested in
        tests/deploy/test_install.py."""
        home.mkdir(parents=True)
        _, token, *_ = told.split()
        (home / "agent.token").write_text(f"{token}\n")
        name = told.partition(" install ")[2].split()[0]
        options = ("--hub", self.hub.url, "--name", name, "--token-file", "agent.token", "--interval", "1s")
        driver = FakeDriver(home, [FakeGpu(uuid)])
        with (home / "log").open("w") as log:
            agent = subprocess.Popen(
                [sys.executable, "-m", "gpudeck", "agent", *options],
                env=environment(home) | driver.environment,
                cwd=home,
                stderr=log,
                start_new_session=True,
            )
        self._parts.callback(agent.wait, 20)
        self._parts.callback(os.killpg, agent.pid, signal.SIGTERM)

    def _add_hosts(self) -> None:
        here = ("--address", "127.0.0.1", "--port")
        pushed, *others = self.run_all(
            ("add", "pushed", "--label", "rack=b3"),
            ("add", "pulled", "--via", "pull", *here, str(self.agent_port)),
            ("add", "logged-in", "--via", "ssh", *here, str(self.sshd.port)),
            ("add", "scraped", "--via", "scrape", *here, str(self.exporter.port)),
        )
        assert [answer.returncode for answer in (pushed, *others)] == [0, 0, 0, 0]
        self.start_as_told(pushed.stdout, self.pushing, "GPU-b")
        self.hub.wait_for("up", *EVERY_HOST)

    def _start_hub(self) -> Hub:
        return start_hub(self.folder / "hub", self._settings, listen=self._listen)

    def _stop_hub(self) -> None:
        """The one that runs then."""
        self.hub.stop()

    def _start_agent(self) -> Path:
        token = self.folder / "pull.token"
        options = ("--listen", f"127.0.0.1:{self.agent_port}", "--token-file", str(token), "--interval", "1s")
        place = self._parts.enter_context(machine("listening", self.folder / "listening"))
        agent = AgentOn(place, *options, driver=FakeDriver(place.folder, [FakeGpu("GPU-a")]))
        self._parts.callback(agent.stop)
        agent.start()
        wait_until(lambda: "listening on" in agent.log.read_text(), "the agent's start")
        return token


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("hosts")
    with contextlib.ExitStack() as parts:
        sshd = SshdOn(parts.enter_context(machine("with-sshd", folder / "with-sshd")), card="a100-515.65.01")
        parts.callback(sshd.stop)
        sshd.start()
        exporter = Exporter(recorded("dcgm-exporter-4-h100x8"))
        parts.callback(exporter.stop)
        exporter.start()
        yield Site(folder, sshd, exporter, parts)


def test_hosts_added_live_are_watched_and_survive_a_killed_hub(site: Site) -> None:
    site.kill_and_restart()
    site.hub.wait_for("up", *EVERY_HOST)
    token = site.pushing / "agent.token"
    kept = b"".join(file.read_bytes() for file in site.hub.data_dir.glob("*") if file.is_file() and file.name != "log")
    assert token.read_bytes().strip() not in kept
    assert site.hub.hosts()["pushed"]["labels"] == {"rack": "b3"}


def test_every_host_that_works_is_said_to_work_step_by_step(site: Site) -> None:
    steps = {
        "pushed": ["✓ hub", "✓ report", "✓ driver"],
        "pulled": ["✓ name", "✓ port", "✓ agent", "✓ driver", "✓ processes"],
        "logged-in": ["✓ name", "✓ port", "✓ login", "✓ driver", "✓ processes"],
        "scraped": ["✓ name", "✓ port", "✓ exporter", "✓ driver", "✓ processes"],
        "localhost": ["✓ name", "✓ port", "✓ exporter", "✓ driver", "✓ processes"],
    }
    answers = dict(zip(steps, site.run_all(*(("test", name) for name in steps)), strict=True))
    shown = {name: [" ".join(line.split()[:2]) for line in one.stdout.splitlines()] for name, one in answers.items()}
    assert shown == steps
    assert {(one.returncode, one.stderr) for one in answers.values()} == {(0, "")}
    assert "1 GPU (NVIDIA H200)" in answers["pulled"].stdout
    assert "dcgm-exporter lists no processes" in answers["localhost"].stdout


def test_what_does_not_work_is_said_with_the_step_at_which_it_fails(site: Site) -> None:
    site.run("add", "silent")
    agent, sshd, exporter = (str(port) for port in (site.agent_port, site.sshd.port, site.exporter.port))
    wrong = {
        ("silent",): "✗ report no report yet",
        ("nowhere.invalid", "--via", "pull"): "✗ name the name nowhere.invalid does not resolve",
        ("nowhere.invalid",): "✗ login The name nowhere.invalid is not known",
        ("127.0.0.1", "--via", "pull", "--port", "1"): "✗ port port 1 of 127.0.0.1: connection refused",
        ("127.0.0.1", "--via", "pull", "--port", exporter): "✗ agent http://127.0.0.1:",
        ("127.0.0.1", "--via", "scrape", "--port", agent): "✗ exporter http://127.0.0.1:",
        ("127.0.0.1", "--via", "ssh", "--port", exporter): "does not greet as an sshd does",
        ("127.0.0.1", "--via", "ssh", "--port", sshd, "--user", "nobody"): "does not let nobody in",
    }
    answers = site.run_all(*(("test", *arguments) for arguments in wrong))
    last = [" ".join(answer.stdout.splitlines()[-1].split()) for answer in answers]
    assert [line for line, sentence in zip(last, wrong.values(), strict=True) if sentence not in line] == []
    assert {(answer.returncode, answer.stderr.count("cannot be read yet")) for answer in answers} == {(1, 1)}


def test_hosts_file_that_is_edited_counts_while_the_hub_runs(site: Site) -> None:
    place = f"127.0.0.1:{site.exporter.port}"
    (site.folder / "hosts.txt").write_text(f"localhost:{site.exporter.port}\n{place} rack=b4\nno host at all!\n")
    site.hub.wait_for("up", "127.0.0.1", "localhost")
    assert site.hub.hosts()["127.0.0.1"]["labels"]["rack"] == "b4"
    assert "hosts.txt, line 3" in site.hub.get("/api/v1/fleet").decode()
    (site.folder / "hosts.txt").write_text(f"localhost:{site.exporter.port}\n")
    wait_until(lambda: "127.0.0.1" not in site.hub.hosts(), "the end of the line's host")
    answer = site.run("remove", "localhost")
    assert (answer.returncode, "hosts.txt: take it out there" in answer.stderr) == (2, True)


def test_removed_hosts_stay_away_and_their_tokens_are_refused(site: Site) -> None:
    port = str(site.exporter.port)
    pushed, _ = site.run_all(
        ("add", "leaving"), ("add", "left", "--via", "scrape", "--address", "127.0.0.1", "--port", port)
    )
    home = site.folder / "leaving"
    site.start_as_told(pushed.stdout, home, "GPU-c")
    site.hub.wait_for("up", "leaving", "left")
    answers = site.run_all(("remove", "leaving"), ("remove", "left"), ("remove", "nobody"))
    assert [answer.returncode for answer in answers] == [0, 0, 1]
    wait_until(lambda: "401" in (home / "log").read_text(), "the agent's notice")
    site.kill_and_restart()
    site.hub.wait_for("up", *EVERY_HOST)
    assert {"leaving", "left"} & site.hub.hosts().keys() == set()
