"""The line that `gpudeck hosts add` prints, run on bare machines with a real systemd: see fakes/bare_machines.py."""

import contextlib
import json
import os
import shlex
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.bare_machines import NETWORK, WHY_NOT, BareMachine, BareNetwork, bare_network, can_make_bare_machines
from fakes.hubs import environment
from fakes.waiting import wait_until

HUB = f"http://{NETWORK}.1:8042"
PROGRAM = Path(__file__).parents[2] / ".venv" / "bin" / "gpudeck"
PYTHON_OF_ROOT = """own=$(mktemp -d /root/own.XXXXXX) && cp "$(readlink -f /usr/bin/python3)" "$own" && PATH=$own:$PATH
"""
"""As with pyenv or conda: the first Python in the PATH of root is one that no other user can run."""
pytestmark = pytest.mark.timeout(400)


class Site:
    """Three bare machines, and a hub that they reach."""

    def __init__(self, network: BareNetwork, folder: Path) -> None:
        self.network = network
        self.machines = network.machines
        self.folder = folder

    def gpudeck(self, *arguments: str) -> str:
        command = self.network.seat([str(PROGRAM), *arguments, "--hub", HUB])
        own = environment(self.folder) | {"GPUDECK_TOKEN": (self.folder / "admin.token").read_text().strip()}
        done = subprocess.run(
            command, cwd=self.folder, env=own, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self, host: str) -> str | None:
        hosts = json.loads(self.gpudeck("hosts", "list", "--json"))["hosts"]
        return next((one["status"] for one in hosts if one["name"] == host), None)

    def fetch(self, path: str) -> str:
        command = self.network.seat(["curl", "--silent", "--fail", f"{HUB}/{path}"])
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("install")
    if not can_make_bare_machines(folder / "tried"):
        pytest.skip(WHY_NOT)
    (folder / "gpudeck.yaml").write_text(f"listen: {NETWORK}.1:8042\nread: open\nlocal: never\ndemo: never\n")
    with bare_network(folder / "machines", ("gpu18", "gpu30", "gpu31")) as network:
        command = network.seat([str(PROGRAM), "up"])
        with subprocess.Popen(
            command, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as hub:
            try:
                assert hub.stdout is not None
                assert "Ctrl-C stops it.\n" in iter(hub.stdout.readline, "")
                yield Site(network, folder)
            finally:
                hub.terminate()


def type_there(machine: BareMachine, text: str, timeout: float = 300) -> "subprocess.CompletedProcess[str]":
    """As a person types it into a shell of root on that machine: it is in no list of processes."""
    return subprocess.run(
        machine.inside(["sh"]), input=text, capture_output=True, text=True, timeout=timeout, check=False
    )


@contextlib.contextmanager
def looking_for(secret: str) -> Iterator[list[str]]:
    """The command lines of all processes of all machines, a hundred times a second, that hold the secret."""
    seen: list[str] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(0.01):
            for process in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    line = (process / "cmdline").read_bytes().decode(errors="replace")
                    if secret in line and process.name != str(os.getpid()):
                        seen.append(line)

    watching = threading.Thread(target=look)
    watching.start()
    try:
        yield seen
    finally:
        is_over.set()
        watching.join()


def written_by_gpudeck(machine: BareMachine) -> set[str]:
    found = machine.run(
        "find", "/opt", "/etc", "/var/lib", "/usr/local", "/tmp", "/home", "/root", "-xdev", "-name", "*gpudeck*"
    )
    return set(found.split())


def test_line_installs_an_agent_that_reports_and_uninstall_leaves_nothing(site: Site) -> None:
    machine = site.machines["gpu18"]
    assert written_by_gpudeck(machine) == set()
    line = site.gpudeck("hosts", "add", "gpu18").strip()
    token = line.split()[1]
    with looking_for(token) as seen:
        done = type_there(machine, f"{PYTHON_OF_ROOT}{line}\n")
    assert done.returncode == 0, done.stderr
    assert f"gpu18 reports to {HUB}." in done.stdout
    assert seen == []
    assert machine.run("systemctl", "is-active", "gpudeck-agent").strip() == "active"
    assert machine.run("stat", "-c", "%U %a", "/etc/gpudeck/agent.token").split() == ["gpudeck", "600"]
    wait_until(lambda: site.status("gpu18") == "up", "gpu18 is up")
    # Its users have the command line, and it finds the hub.
    shown = type_there(machine, "su -s /bin/sh nobody -c 'cd / && gpudeck show gpu18'\n")
    assert (shown.returncode, "gpu18" in shown.stdout) == (0, True), shown.stderr

    wrong = type_there(machine, line.replace(token, "gd_agent_wrong"))
    assert (wrong.returncode, "the agent's token is missing, or is unknown" in wrong.stderr) == (1, True), wrong.stderr
    assert machine.run("cat", "/etc/gpudeck/agent.token").strip() == token

    upgrade = type_there(machine, f's=$(curl -fsS {HUB}/install.sh) && sh -c "$s" install gpu18 </dev/null\n')
    assert (upgrade.returncode, machine.run("systemctl", "is-active", "gpudeck-agent").strip()) == (0, "active")

    gone = type_there(machine, f's=$(curl -fsS {HUB}/install.sh) && sh -c "$s" install --uninstall\n')
    assert (gone.returncode, "gpudeck hosts remove gpu18" in gone.stdout) == (0, True), gone.stderr
    assert written_by_gpudeck(machine) == set()
    assert type_there(machine, "id gpudeck").returncode != 0
    assert type_there(machine, "systemctl cat gpudeck-agent").returncode != 0


def test_lines_of_a_range_install_over_ssh(site: Site) -> None:
    config = site.folder / "ssh_config"
    hosts = "".join(f"Host {name}\n  HostName {machine.address}\n" for name, machine in site.machines.items())
    config.write_text(
        f"{hosts}Host *\n  User root\n  IdentityFile {site.network.key}\n"
        f"  UserKnownHostsFile {site.network.known_hosts}\n"
    )
    programs = site.folder / "bin"
    programs.mkdir()
    (programs / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {shlex.quote(str(config))} "$@"\n')
    (programs / "ssh").chmod(0o755)
    lines = site.gpudeck("hosts", "add", "gpu[30-31]")
    tokens = [line.split()[1] for line in lines.splitlines()]
    with looking_for(tokens[1]) as seen:
        done = subprocess.run(
            site.network.seat(["sh"]),
            input=lines,
            env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert (len(set(tokens)), seen) == (2, [])
    for name in ("gpu30", "gpu31"):
        wait_until(lambda name=name: site.status(name) == "up", f"{name} is up")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        # One wheel is another on its way.
        (
            " nvidia_ml_py",
            "0 nvidia_ml_py",
            "does not have the SHA-256 that the hub announced. The agent was not installed.",
        ),
        ("\n3.", "\n9.", "the hub has the agent for Python 9."),
    ],
)
def test_what_does_not_fit_is_not_installed(site: Site, old: str, new: str, told: str) -> None:
    script = site.fetch("install.sh").replace(old, new)
    machine = site.machines["gpu18"]
    done = type_there(machine, f"echo token | sh -c {shlex.quote(script)} install gpu18\n")
    assert (done.returncode, told in done.stderr) == (1, True), done.stderr
    assert type_there(machine, "test -e /opt/gpudeck/venv").returncode == 1
    type_there(machine, f"sh -c {shlex.quote(script)} install --uninstall\n")


def test_changed_script_is_not_run(site: Site) -> None:
    machine = site.machines["gpu18"]
    line = site.gpudeck("hosts", "add", "gpu19")
    done = type_there(machine, line.replace("/install.sh", "/healthz"))
    assert (done.returncode, done.stderr) == (1, "gpudeck is not installed\n")
    assert written_by_gpudeck(machine) == set()
