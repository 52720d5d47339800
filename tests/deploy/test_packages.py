"""The packages of `make deb`, on fresh Debian and Ubuntu machines with a real systemd: see fakes/bare_machines.py."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.bare_machines import NETWORK, WHY_NOT, BareMachine, bare_network, can_make_bare_machines
from fakes.debian import debian_root
from fakes.distribution import ROOT, build
from fakes.waiting import wait_until

HUB = f"http://{NETWORK}.10:8042"
APT = "DEBIAN_FRONTEND=noninteractive apt-get -qq -y"
AGENT_SETTINGS = f"agent: {{hub: '{HUB}'}}\n"
HUB_SETTINGS = """\
data_dir: /var/lib/gpudeck
listen: 0.0.0.0:8042
read: open
local: never
demo: never
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


class Site:
    """A machine for the hub, two for agents, and the packages in /root of each of them."""

    def __init__(self, machines: dict[str, BareMachine]) -> None:
        self.machines = machines

    def type(self, name: str, text: str) -> str:
        """As root types it into a shell there; what it prints."""
        done = self.attempt(name, text)
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout.strip()

    def attempt(self, name: str, text: str) -> "subprocess.CompletedProcess[str]":
        command = self.machines[name].inside(["sh", "-e"])
        return subprocess.run(
            command, input=f"cd /root\n{text}\n", capture_output=True, text=True, timeout=600, check=False
        )

    def status(self, host: str) -> str | None:
        hosts = json.loads(self.type("hub", "gpudeck hosts list --json"))["hosts"]
        return next((one["status"] for one in hosts if one["name"] == host), None)

    def unit(self, name: str, unit: str) -> str:
        return self.attempt(name, f"systemctl is-active {unit}").stdout.strip()

    def found(self, name: str) -> list[str]:
        """All that has gpudeck in its name, apart from the packages themselves."""
        text = self.type(name, "find / -xdev -name '*gpudeck*' -not -path '/root/*' -not -path '/var/log/*'")
        return sorted(text.split() + self.type(name, "getent passwd gpudeck || true").split())


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages, and in `newer` the same ones with a higher version."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("needs dpkg-deb")
    folder = tmp_path_factory.mktemp("packages")
    build(folder)
    uv = Path(sys.executable).parent / "uv"
    settings = {"UV": str(uv), "DIST": str(folder), "DEB_PYTHONS": "3.10 3.11 3.13", "DEB_HUB_PYTHONS": "3.11"}
    subprocess.run([ROOT / "deploy/debian/build.sh"], env=os.environ | settings, check=True, timeout=900)
    (folder / "newer").mkdir()
    for package in folder.glob("*.deb"):
        unpacked = folder / "newer" / package.stem
        subprocess.run(["dpkg-deb", "--raw-extract", package, unpacked], check=True, timeout=300)
        control = unpacked / "DEBIAN" / "control"
        control.write_text(control.read_text().replace("0.1.0", "0.2.0"))
        subprocess.run(["dpkg-deb", "-Znone", "--build", unpacked, folder / "newer"], check=True, timeout=300)
        shutil.rmtree(unpacked)
    return folder


@pytest.fixture(scope="module")
def site(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("machines")
    if not can_make_bare_machines(folder / "tried"):
        pytest.skip(WHY_NOT)
    roots = {"hub": debian_root("bookworm"), "gpu01": debian_root("jammy"), "gpu02": debian_root("trixie")}
    with bare_network(folder, tuple(roots), roots) as network:
        made = Site(network.machines)
        for package in [*packages.glob("*.deb"), *packages.glob("newer/*.deb")]:
            place = package.relative_to(packages)
            for name in roots if "agent" in package.name or place == Path(package.name) else ("hub",):
                keep = f"mkdir -p /root/{place.parent} && cat > /root/{place}"
                subprocess.run(
                    network.machines[name].inside(["sh", "-c", keep]),
                    input=package.read_bytes(),
                    check=True,
                    timeout=60,
                )
        yield made


def install_hub_and_agent_on_one_machine(site: Site) -> None:
    site.type("hub", f"{APT} install ./gpudeck-*.deb")
    assert (site.unit("hub", "gpudeck-hub"), site.unit("hub", "gpudeck-agent")) == ("active", "inactive")
    site.type("hub", f"cat > /etc/gpudeck/gpudeck.yaml <<'EOF'\n{HUB_SETTINGS}EOF\nsystemctl restart gpudeck-hub")
    assert "<title>" in site.type("hub", f"curl -fsS -A Mozilla/5.0 {HUB}/")
    site.type(
        "hub",
        "install -m 600 -o gpudeck /var/lib/gpudeck/agent.token /etc/gpudeck/agent.token\n"
        "systemctl restart gpudeck-agent",
    )
    wait_until(lambda: site.status("hub") == "up", "the hub's machine reports", 60)
    assert (site.unit("hub", "gpudeck-hub"), site.unit("hub", "gpudeck-agent")) == ("active", "active")


def install_agent_of_another_release(site: Site, name: str) -> None:
    site.type(name, f"{APT} install ./gpudeck-agent*.deb")
    assert site.unit(name, "gpudeck-agent") == "inactive"
    token = site.type("hub", f"runuser -u gpudeck -- gpudeck token create {name} --role agent --host {name}")
    site.type(
        name,
        f"echo {token} > agent.token\ninstall -m 600 -o gpudeck agent.token /etc/gpudeck/agent.token\n"
        f"cat > /etc/gpudeck/gpudeck.yaml <<'EOF'\n{AGENT_SETTINGS}EOF\n"
        "systemctl restart gpudeck-agent",
    )
    wait_until(lambda: site.status(name) == "up", f"{name} reports", 60)


def refuse_a_hub_whose_python_is_missing(site: Site) -> None:
    done = site.attempt("gpu01", "apt-get -y install ./gpudeck-hub*.deb")
    assert (done.returncode, "Depends: python3 (>= 3.11~) but 3.10" in done.stdout) == (100, True), done


def refuse_the_install_script_of_the_hub(site: Site) -> None:
    done = site.attempt("gpu01", f"curl -fsS {HUB}/install.sh > install.sh && echo token | sh install.sh gpu01")
    assert (done.returncode, "the package gpudeck-agent is installed" in done.stderr) == (1, True), done


def upgrade_the_hub(site: Site) -> None:
    before = site.type("hub", "systemctl show -P MainPID gpudeck-hub gpudeck-agent").split()
    site.type("hub", f"{APT} -o Dpkg::Options::=--force-confdef install ./newer/*.deb")
    after = site.type("hub", "systemctl show -P MainPID gpudeck-hub gpudeck-agent").split()
    assert set(before).isdisjoint(after)
    assert "0.2.0" in site.type("hub", "dpkg-query -W -f '${Version}' gpudeck-agent")
    assert site.type("hub", "cat /etc/gpudeck/gpudeck.yaml") == HUB_SETTINGS.strip()
    for name in ("hub", "gpu01", "gpu02"):
        wait_until(lambda name=name: site.status(name) == "up", f"{name} reports to the new hub", 60)


def upgrade_a_disabled_agent(site: Site) -> None:
    site.type("gpu02", "systemctl disable --now gpudeck-agent")
    site.type("gpu02", f"{APT} install ./newer/gpudeck-agent*.deb")
    assert site.attempt("gpu02", "systemctl is-enabled gpudeck-agent").stdout.strip() == "disabled"


def remove_and_purge(site: Site) -> None:
    site.type("hub", f"{APT} remove gpudeck-hub gpudeck-agent")
    assert site.unit("hub", "gpudeck-hub") != "active"
    site.type("hub", "test -s /var/lib/gpudeck/gpudeck.db -a -s /etc/gpudeck/agent.token -a ! -e /opt/gpudeck")
    assert site.type("hub", "cat /etc/gpudeck/gpudeck.yaml") == HUB_SETTINGS.strip()
    site.type("hub", f"{APT} install ./newer/*.deb")
    wait_until(lambda: site.status("gpu01") == "up", "gpu01 is known again", 60)
    site.type("hub", f"{APT} purge gpudeck-hub gpudeck-agent")
    site.type("gpu01", f"{APT} purge gpudeck-agent")
    assert (site.found("hub"), site.found("gpu01")) == ([], [])


def refuse_to_overwrite_another_installation(site: Site) -> None:
    site.type("gpu01", "mkdir -p /opt/gpudeck/bin && echo mine > /opt/gpudeck/bin/gpudeck")
    done = site.attempt("gpu01", f"{APT} install ./gpudeck-agent*.deb")
    assert (done.returncode, "already installed in /opt/gpudeck" in done.stdout + done.stderr) == (100, True), done
    assert site.type("gpu01", "cat /opt/gpudeck/bin/gpudeck") == "mine"


def test_from_install_to_purge(site: Site) -> None:
    """One test, as each step needs the machines as the one before it left them."""
    install_hub_and_agent_on_one_machine(site)
    install_agent_of_another_release(site, "gpu01")
    install_agent_of_another_release(site, "gpu02")
    refuse_a_hub_whose_python_is_missing(site)
    refuse_the_install_script_of_the_hub(site)
    upgrade_the_hub(site)
    upgrade_a_disabled_agent(site)
    remove_and_purge(site)
    refuse_to_overwrite_another_installation(site)
