"""What the operator is told to install must leave the GPUs and the owners of their processes visible."""

import re
from pathlib import Path

import pytest

INSTALL = Path(__file__).parent.parent.parent / "docs" / "install.md"
UNITS = [block for block in re.findall(r"```ini\n(.*?)```", INSTALL.read_text(), re.DOTALL) if "ExecStart=" in block]


def test_the_units_are_found() -> None:
    assert UNITS


@pytest.mark.parametrize("setting", ["PrivateDevices", "ProtectProc", "PrivatePIDs", "ProcSubset"])
def test_no_unit_hides_devices_or_processes(setting: str) -> None:
    assert [unit for unit in UNITS if re.search(rf"^{setting}=", unit, re.MULTILINE)] == []
