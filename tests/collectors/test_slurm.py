"""Slurm's indexes and the PCI addresses behind them."""

from pathlib import Path

import pytest

from gpudeck.collectors.containers import SlurmCollector, find_addresses, parse_devices

PRINTED = """\
slurmd: Gres Name=gpu Type=h100 Count=2 Index=0 ID=7696487 File=/dev/nvidia[1-2] (null)
slurmd: Gres Name=gpu Type=a100 Count=1 Index=2 ID=7696487 File=/dev/nvidia0 Cores=0-3 Links=(null) Flags=HAS_FILE
slurmd: Gres Name=shard Type=h100 Count=8 Index=0 ID=2 File=/dev/nvidia1
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Minor numbers that are not in the order of the PCI addresses, as on some boards."""
    for address, minor in {"0000:1B:00.0": 2, "0000:43:00.0": 0, "0000:52:00.0": 1}.items():
        folder = tmp_path / "proc/driver/nvidia/gpus" / address
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA H100\nDevice Minor: \t {minor}\n")
    return tmp_path


def write_slurmd(folder: Path, program: str) -> list[str]:
    file = folder / "slurmd"
    file.write_text(f"#!/bin/sh\n{program}\n")
    file.chmod(0o755)
    return [str(file), "-G"]


def test_files_in_the_order_of_slurms_indexes() -> None:
    assert parse_devices(PRINTED) == ["/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia0"]
    assert parse_devices("slurmd: error: no gres.conf\n") == []


def test_each_index_has_the_pci_address_of_its_file(root: Path) -> None:
    assert find_addresses(parse_devices(PRINTED), root) == ["0000:52:00.0", "0000:1b:00.0", "0000:43:00.0"]


def test_a_file_that_is_not_known_makes_the_order_unknown(root: Path) -> None:
    assert find_addresses(["/dev/nvidia0", "/dev/nvidia9"], root) == []


def test_render_nodes_of_amd(tmp_path: Path) -> None:
    device = tmp_path / "sys/devices/pci0000:00/0000:c1:00.0"
    device.mkdir(parents=True)
    (tmp_path / "sys/class/drm/renderD128").mkdir(parents=True)
    (tmp_path / "sys/class/drm/renderD128/device").symlink_to(device)
    assert find_addresses(["/dev/dri/renderD128"], tmp_path) == ["0000:c1:00.0"]


def test_what_slurmd_said_counts_until_it_is_asked_again(root: Path) -> None:
    collector = SlurmCollector(root, write_slurmd(root, f"cat >&2 <<E\n{PRINTED}E"))
    expected = ["0000:52:00.0", "0000:1b:00.0", "0000:43:00.0"]
    assert collector.collect(1000.0).slurm_gpus == expected
    write_slurmd(root, "echo nothing")
    assert collector.collect(1500.0).slurm_gpus == expected
    assert collector.collect(1601.0).slurm_gpus == []


def test_without_a_slurmd_nothing_is_said(tmp_path: Path) -> None:
    report = SlurmCollector(tmp_path, [str(tmp_path / "none")]).collect(1000.0)
    assert report.slurm_gpus == []
    assert report.gpus_reason is None


def test_mig_instances_are_known_by_their_uuids(root: Path) -> None:
    printed = """\
slurmd: Gres Name=gpu Type=h100 Count=1 Index=0 ID=7696487 File=/dev/nvidia1 (null)
slurmd: Gres Name=gpu Type=1g.10gb Count=1 Index=1 ID=7696487 File=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap66 \
UniqueId=MIG-5b1a6f8c-33f0-5d4e-8f3e-4a1f0d9f6f10 Flags=HAS_FILE,HAS_TYPE,ENV_NVML,MIG
"""
    instance = "MIG-5b1a6f8c-33f0-5d4e-8f3e-4a1f0d9f6f10"
    assert find_addresses(parse_devices(printed), root) == ["0000:52:00.0", instance]
    without = printed.replace("UniqueId", "Other")
    assert find_addresses(parse_devices(without), root) == []
