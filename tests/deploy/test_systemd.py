"""The units for systemd: it understands every line of them, and none takes away what is read on a machine."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNITS = sorted((Path(__file__).parents[2] / "deploy" / "systemd").glob("*.service"))
PROGRAM = "/opt/gpudeck/bin/gpudeck"
# With any of these the GPUs, the owners of processes or the kernel's log cannot be seen; DeviceAllow= and ProtectClock=
# close every device that they do not name.
BLINDING = {
    *("PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock"),
    *("ProtectProc", "ProcSubset", "PrivateUsers", "ProtectKernelLogs", "PrivateNetwork"),
}


def lines_of(unit: Path) -> list[tuple[str, str]]:
    """Keys and values; a key may stand several times, which configparser does not take."""
    return re.findall(r"^(\w+)=(.*)$", unit.read_text(), re.MULTILINE)


def values_of(unit: Path, key: str) -> list[str]:
    return [value for name, value in lines_of(unit) if name == key]


@pytest.fixture(params=UNITS, ids=lambda unit: unit.stem)
def unit(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def test_there_is_a_unit_for_the_hub_and_one_for_the_agent() -> None:
    assert [unit.name for unit in UNITS] == ["gpudeck-agent.service", "gpudeck-hub.service"]


def test_systemd_understands_every_line(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    copy = tmp_path / unit.name
    # A program that is there: whether gpudeck is installed in /opt is another matter.
    copy.write_text(unit.read_text().replace(PROGRAM, sys.executable))
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, timeout=60, check=False
    )
    # Units of this machine may be wrong, too.
    assert unit.name not in found.stderr
    assert found.returncode == 0


def test_lines_that_a_comment_offers_are_understood_too(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    offered = re.findall(r"^#     (\w+=.+)$", unit.read_text(), re.MULTILINE)
    copy = tmp_path / unit.name
    copy.write_text("\n".join(["[Service]", f"ExecStart={sys.executable}", *offered, ""]))
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, timeout=60, check=False
    )
    assert offered
    assert unit.name not in found.stderr


def test_nothing_is_set_that_hides_gpus_or_owners(unit: Path) -> None:
    assert BLINDING.isdisjoint(name for name, _ in lines_of(unit))
    assert values_of(unit, "ProtectHome") == ["read-only"]


def test_it_is_an_ordinary_user_without_any_capability(unit: Path) -> None:
    assert values_of(unit, "User") == ["gpudeck"]
    assert values_of(unit, "CapabilityBoundingSet") == [""]
    assert values_of(unit, "AmbientCapabilities") == [""]
    assert values_of(unit, "NoNewPrivileges") == ["yes"]


def test_nothing_can_be_written_but_its_own_folder(unit: Path) -> None:
    assert values_of(unit, "ProtectSystem") == ["strict"]
    assert values_of(unit, "ReadWritePaths") == []
    folder = {"gpudeck-hub": "gpudeck", "gpudeck-agent": "gpudeck-agent"}[unit.stem]
    assert values_of(unit, "StateDirectory") == [folder]
    assert values_of(unit, "StateDirectoryMode") == ["0700"]
    assert f"GPUDECK_DATA_DIR=%S/{folder}" in values_of(unit, "Environment")


def test_the_program_is_called_as_it_can_be(unit: Path) -> None:
    (command,) = values_of(unit, "ExecStart")
    program, *words = command.split()
    assert program == PROGRAM
    assert (
        words
        == {"gpudeck-hub": ["up"], "gpudeck-agent": ["agent", "--token-file", "/etc/gpudeck/agent.token"]}[unit.stem]
    )


def test_systemd_counts_it_as_well_confined(unit: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    # Of 100. What remains is the network, and that the owners of processes can be seen.
    found = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=30", "--no-pager", unit],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.returncode == 0, found.stdout


def test_one_that_hangs_is_started_again(unit: Path) -> None:
    assert values_of(unit, "Type") == ["notify"]
    assert values_of(unit, "Restart") == ["always"]
    assert values_of(unit, "WatchdogSec") == {"gpudeck-hub": ["1min"], "gpudeck-agent": ["2min"]}[unit.stem]


def test_reload_is_a_signal_that_the_program_knows(unit: Path) -> None:
    assert values_of(unit, "ExecReload") == ["/bin/kill -HUP $MAINPID"]
