"""The roles, run by a real ansible-playbook over real sshds into bare machines: see fakes/bare_machines.py.

A real systemd runs there, so the units are tried as well: what they forbid, and that whatever dies or hangs comes back.
"""

import json
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.bare_machines import WHY_NOT, BareNetwork, bare_network, can_make_bare_machines
from fakes.distribution import ROOT, build, fill_wheelhouse
from fakes.waiting import wait_until
from gpudeck import __version__

FOLDER = ROOT / "deploy" / "ansible"
AGENTS = ("gpu01", "gpu02", "gpu03")
NEXT = f"{__version__}.post1"
SERVICES = [("gpuhub", "gpudeck-hub"), ("gpu01", "gpudeck-agent")]
needs_ansible = pytest.mark.skipif(
    shutil.which("ansible-playbook") is None, reason="no ansible here (Debian, Ubuntu: apt install ansible-core)"
)


@needs_ansible
def test_ansible_understands_every_line() -> None:
    command = ["ansible-playbook", "-i", "inventory.example.ini", "site.yml", "--syntax-check"]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("ansible-lint") is None, reason="no ansible-lint here (apt install ansible-lint)")
@pytest.mark.slow
def test_nothing_is_written_as_it_should_not_be() -> None:
    command = ["ansible-lint", "--offline", "--nocolor", "-q", "site.yml", "roles"]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout


class Recap:
    """What a run of ansible-playbook came to, host by host."""

    def __init__(self, done: "subprocess.CompletedProcess[str]") -> None:
        self.code = done.returncode
        self.text = f"{done.stdout}\n{done.stderr}"
        found = re.findall(
            r"^(\w+) +: ok=(\d+) +changed=(\d+) +unreachable=(\d+) +failed=(\d+)", self.text, re.MULTILINE
        )
        self.ok = {name: int(ok) for name, ok, *_ in found}
        self.changed = {name: int(changed) for name, _, changed, *_ in found}
        self.failed = {name: int(failed) + int(unreachable) for name, _, _, unreachable, failed in found}

    def is_quiet(self) -> bool:
        """It went well on all four, did look, and changed nothing."""
        assert self.code == 0, self.text
        return set(self.changed.values()) == {0} and len(self.ok) == 4 and min(self.ok.values()) > 10


class Site:
    """Four bare machines, and somebody with an inventory of them."""

    def __init__(self, network: BareNetwork, folder: Path, wheelhouse: Path) -> None:
        self.network = network
        self.machines = network.machines
        self._folder = folder
        self._wheelhouse = wheelhouse

    def play(self, *options: str, groups: tuple[str, str] = ("hub", "agents"), **variables: object) -> Recap:
        inventory = self._folder / f"{groups[0]}.ini"
        lines = {name: f"{name} ansible_host={machine.address}" for name, machine in self.machines.items()}
        inventory.write_text(
            "\n".join([f"[{groups[0]}]", lines["gpuhub"], f"[{groups[1]}]", *(lines[name] for name in AGENTS), ""])
        )
        settings = {
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(self.network.key),
            "ansible_ssh_common_args": f"-o UserKnownHostsFile={self.network.known_hosts}",
            "gpudeck_read": "open",
            "gpudeck_wheelhouse": str(self._wheelhouse),
            "gpudeck_proxy": "nginx",
            **variables,
        }
        command = ["ansible-playbook", "-i", str(inventory), "-e", json.dumps(settings), "site.yml", *options]
        own = {"ANSIBLE_NOCOLOR": "1", "HOME": str(self._folder), "TMPDIR": str(self._folder)}
        return Recap(
            subprocess.run(
                self.network.seat(command),
                cwd=FOLDER,
                env=os.environ | own,
                capture_output=True,
                text=True,
                timeout=1200,
                check=False,
            )
        )

    def fleet(self) -> dict[str, Any]:
        """As somebody sees it who asks the proxy; empty while it does not answer."""
        url = f"http://{self.machines['gpuhub'].address}/gpus/api/v1/fleet"
        command = self.network.seat(["curl", "--silent", "--fail", "--max-time", "10", url])
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        found: dict[str, Any] = json.loads(answer.stdout or "{}")
        return found

    def hosts(self, field: str = "status") -> dict[str, Any]:
        return {host["name"]: host[field] for host in self.fleet().get("hosts", ())}

    def wait_for_agents(self) -> None:
        wait_until(lambda: self.hosts() == dict.fromkeys(AGENTS, "up"), "three hosts that are up", 120)


class Service:
    """One of the units, as systemd on its machine has it."""

    def __init__(self, site: Site, machine: str, unit: str) -> None:
        self._run = site.machines[machine].run
        self._unit = unit

    @property
    def main_pid(self) -> int:
        return int(self._run("systemctl", "show", "--property=MainPID", "--value", self._unit))

    def is_another(self, before: int) -> bool:
        """It has started, and was started since: while none runs the number is 0."""
        state = self._run("systemctl", "show", "--property=SubState", "--value", self._unit)
        return self.main_pid not in {0, before} and state == "running\n"

    def look(self, file: str) -> str:
        """One of the main process's files below /proc."""
        return self._run("cat", f"/proc/{self.main_pid}/{file}")

    def signal(self, name: str) -> None:
        self._run("systemctl", "kill", "--kill-who=main", f"--signal={name}", self._unit)

    def journal(self) -> str:
        return self._run("journalctl", "--boot", "--no-pager", f"--unit={self._unit}")


def raise_version(wheel: Path, folder: Path) -> None:
    """The same program under a higher number, as the next release would be."""
    name = wheel.name.replace(__version__, NEXT)
    with zipfile.ZipFile(wheel) as before, zipfile.ZipFile(folder / name, "w") as after:
        for entry in before.namelist():
            content = before.read(entry)
            if entry.endswith(("/METADATA", "/RECORD", "gpudeck/__init__.py")):
                content = content.replace(__version__.encode(), NEXT.encode())
            after.writestr(entry.replace(f"gpudeck-{__version__}", f"gpudeck-{NEXT}"), content)


@pytest.fixture(scope="module")
def wheelhouses(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The program and all that it needs, and the same with the next release."""
    now, following = tmp_path_factory.mktemp("wheelhouse"), tmp_path_factory.mktemp("next") / "wheelhouse"
    _, wheel = build(tmp_path_factory.mktemp("dist"))
    fill_wheelhouse(now, wheel)
    shutil.copytree(now, following)
    (following / wheel.name).unlink()
    raise_version(wheel, following)
    return now, following


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, wheelhouses: tuple[Path, Path]) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    if not can_make_bare_machines(folder / "tried"):
        pytest.skip(WHY_NOT)
    with bare_network(folder / "machines", ["gpuhub", *AGENTS]) as network:
        yield Site(network, folder, wheelhouses[0])


@pytest.fixture(scope="module")
def check_of_bare_machines(bare: Site) -> Recap:
    return bare.play("--check", "--diff")


@pytest.fixture(scope="module")
def site(bare: Site, check_of_bare_machines: Recap) -> Site:
    """Set up by one run. The tests from here on stand in the order in which somebody would do it."""
    assert check_of_bare_machines.code == 0
    first = bare.play()
    assert first.code == 0, first.text
    return bare


@pytest.mark.slow
@pytest.mark.timeout(2400)
@needs_ansible
class TestSite:
    def test_check_says_what_it_would_do_on_bare_machines_and_does_nothing(
        self, bare: Site, check_of_bare_machines: Recap
    ) -> None:
        assert check_of_bare_machines.code == 0, check_of_bare_machines.text
        assert min(check_of_bare_machines.changed.values()) > 3
        assert "gpudeck[hub] " in check_of_bare_machines.text
        assert bare.machines["gpu01"].run("sh", "-c", "ls /opt; ls /etc | grep gpudeck || true") == ""

    def test_one_run_makes_a_hub_behind_nginx_with_three_agents(self, site: Site) -> None:
        site.wait_for_agents()
        assert set(site.hosts("via").values()) == {"push"}

    def test_second_run_changes_nothing(self, site: Site) -> None:
        assert site.play().is_quiet()

    def test_check_of_what_is_installed_finds_nothing_to_do(self, site: Site) -> None:
        assert site.play("--check").is_quiet()

    def test_group_names_of_older_installs_are_taken(self, site: Site) -> None:
        assert site.play(groups=("webserver", "rpcservers")).is_quiet()

    def test_each_agent_has_a_token_of_its_own_that_nobody_else_can_read(self, site: Site) -> None:
        files = {name: site.machines[name].run("cat", "/etc/gpudeck/agent.token") for name in AGENTS}
        assert len(set(files.values())) == 3
        assert site.machines["gpu01"].run("stat", "-c", "%a %U", "/etc/gpudeck/agent.token") == "600 gpudeck\n"
        known = site.machines["gpuhub"].run(
            *("runuser", "-u", "gpudeck", "--", "/opt/gpudeck/bin/gpudeck", "token", "list", "--json"),
            *("--config", "/etc/gpudeck/gpudeck.yaml"),
        )
        assert {token["hosts"] for token in json.loads(known)["tokens"] if token["hosts"]} == set(AGENTS)

    def test_nobody_runs_as_root(self, site: Site) -> None:
        users = site.machines["gpu01"].run("sh", "-c", "ps -eo user,args | grep '[m] gpudeck.* agent' | cut -d' ' -f1")
        assert set(users.split()) == {"gpudeck"}

    def test_all_of_it_is_back_after_the_machines_were_started_again(self, site: Site) -> None:
        site.network.shut_down()
        site.network.boot()
        site.wait_for_agents()

    def test_all_of_it_is_back_after_the_power_was_cut(self, site: Site) -> None:
        site.network.power_off()
        site.network.boot()
        site.wait_for_agents()

    @pytest.mark.parametrize("machine", ["gpuhub", "gpu01"])
    def test_the_doctor_finds_nothing_wrong(self, site: Site, machine: str) -> None:
        site.wait_for_agents()
        told = site.machines[machine].run("runuser", "-u", "gpudeck", "--", "/opt/gpudeck/bin/gpudeck", "doctor")
        assert "0 failed, 0 warnings" in told

    @pytest.mark.parametrize(("machine", "unit"), SERVICES)
    def test_systemd_confines_it(self, site: Site, machine: str, unit: str) -> None:
        service = Service(site, machine, unit)
        status = service.look("status")
        assert re.findall(r"^Cap\w+:\t(\w+)$", status, re.MULTILINE) == ["0" * 16] * 5
        assert re.findall(r"^(?:NoNewPrivs|Seccomp):\t(\d)$", status, re.MULTILINE) == ["1", "2"]
        assert re.search(r" / / ro,", service.look("mountinfo"))

    @pytest.mark.parametrize(("machine", "unit"), SERVICES)
    def test_one_that_is_killed_is_started_again(self, site: Site, machine: str, unit: str) -> None:
        service = Service(site, machine, unit)
        before = service.main_pid
        service.signal("KILL")
        wait_until(lambda: service.is_another(before), f"another {unit}", 60)
        site.wait_for_agents()

    def test_a_hub_that_hangs_is_ended_and_started_again(self, site: Site) -> None:
        service = Service(site, "gpuhub", "gpudeck-hub")
        before = service.main_pid
        service.signal("STOP")
        wait_until(lambda: service.is_another(before), "another hub", 180)
        wait_until(lambda: "Failed with result 'watchdog'" in service.journal(), "the watchdog in the journal")
        wait_until(lambda: "Current thread 0x" in service.journal(), "where the hub hung")
        site.wait_for_agents()

    @pytest.mark.parametrize(("machine", "unit"), SERVICES)
    def test_reload_starts_nothing_anew(self, site: Site, machine: str, unit: str) -> None:
        service = Service(site, machine, unit)
        before = service.main_pid
        site.machines[machine].run("systemctl", "reload", unit)
        told = re.compile("read the settings again|the settings have not changed")
        wait_until(lambda: told.search(service.journal()), "the word in the journal", 30)
        assert service.main_pid == before

    def test_changed_settings_reach_an_agent_without_a_restart(self, site: Site) -> None:
        recap = site.play("--limit", "gpu02", gpudeck_agent_settings={"interval": "4s"})
        assert (recap.code, recap.changed["gpu02"]) == (0, 2), recap.text
        wait_until(lambda: site.hosts("interval_seconds").get("gpu02") == 4.0, "the new interval", 60)

    def test_settings_with_a_mistake_are_not_put_in_place(self, site: Site) -> None:
        recap = site.play("--limit", "gpu03", gpudeck_agent_settings={"intervall": "4s"})
        assert recap.failed["gpu03"] == 1
        assert "did you mean interval" in recap.text
        assert "intervall" not in site.machines["gpu03"].run("cat", "/etc/gpudeck/gpudeck.yaml")

    def test_new_token_replaces_the_old_one(self, site: Site) -> None:
        before = site.machines["gpu01"].run("cat", "/etc/gpudeck/agent.token")
        recap = site.play("--limit", "gpu01", gpudeck_agent_renew_token=True)
        assert recap.code == 0, recap.text
        after = site.machines["gpu01"].run("cat", "/etc/gpudeck/agent.token")
        assert after != before
        assert before.strip() not in recap.text
        assert after.strip() not in recap.text
        site.wait_for_agents()

    def test_upgrade_replaces_the_program_and_nothing_else(self, site: Site, wheelhouses: tuple[Path, Path]) -> None:
        recap = site.play("--tags", "upgrade", gpudeck_wheelhouse=str(wheelhouses[1]))
        assert recap.code == 0, recap.text
        wait_until(lambda: site.hosts("agent_version") == dict.fromkeys(AGENTS, NEXT), "the next release", 120)
        site.wait_for_agents()

    def test_uninstalling_leaves_data_and_settings_until_it_is_told_to_purge(self, site: Site) -> None:
        recap = site.play("--tags", "uninstall")
        assert recap.code == 0, recap.text
        hub = site.machines["gpuhub"]
        assert hub.run("sh", "-c", "ls /opt; ls /etc/systemd/system | grep gpudeck || true") == ""
        assert "gpudeck.db" in hub.run("ls", "/var/lib/gpudeck")
        assert hub.run("sh", "-c", "ps -eo args | grep '[m] gpudeck' || true") == ""
        purge = site.play("--tags", "uninstall", gpudeck_purge=True)
        assert purge.code == 0, purge.text
        left = (
            "ls -d /var/lib/gpudeck/* /var/lib/gpudeck-agent /etc/gpudeck 2>/dev/null; id gpudeck 2>/dev/null || true"
        )
        assert hub.run("sh", "-c", left) == ""
