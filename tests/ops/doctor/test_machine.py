"""A machine as the doctor sees it: its files are a test's own, NVML's answer is the fake driver's."""

import os
import sys
from pathlib import Path

import pytest

from fakes.nvml.driver import NO_COMPILER, FakeDriver, FakeGpu, find_compiler
from gpudeck.model.errors import UsageError
from gpudeck.ops.doctor import Finding, guarded
from gpudeck.ops.doctor.machine import (
    Probed,
    ProbedGpu,
    check_devices,
    check_driver,
    check_library,
    check_machine,
    check_processes,
    probe_nvml,
)

GPU = Probed(library="13.580", gpus=[ProbedGpu(0, is_persistent=True)])


def put(root: Path, name: str, text: str = "") -> Path:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def plug_in(root: Path, slot: str = "0000:18:00.0", vendor: str = "0x10de") -> None:
    put(root, f"sys/bus/pci/devices/{slot}/vendor", f"{vendor}\n")
    put(root, f"sys/bus/pci/devices/{slot}/class", "0x030200\n")


def verdicts(findings: object) -> dict[str, str]:
    return {finding.name: finding.verdict for finding in findings}  # type: ignore[attr-defined]


def test_a_machine_without_gpus_is_not_sick(tmp_path: Path) -> None:
    put(tmp_path, "proc/mounts", "proc /proc proc rw 0 0\n")
    assert verdicts(check_machine(lambda: pytest.fail("NVML is not asked"), tmp_path)) == {
        "gpus": "skip",
        "processes": "ok",
    }


def test_gpus_of_another_maker_are_told(tmp_path: Path) -> None:
    plug_in(tmp_path, vendor="0x1002")
    (gpus, *_) = check_machine(lambda: pytest.fail("NVML is not asked"), tmp_path)
    assert "AMD" in gpus.told


def test_a_healthy_machine_is_healthy(tmp_path: Path) -> None:
    plug_in(tmp_path)
    put(
        tmp_path,
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Rel\n",
    )
    put(tmp_path, "dev/nvidiactl")
    put(tmp_path, "dev/nvidia0")
    findings = list(check_machine(lambda: GPU, tmp_path))
    assert {finding.verdict for finding in findings} == {"ok"}
    assert "580.159.04" in findings[1].told


def test_gpus_without_a_driver_fail(tmp_path: Path) -> None:
    plug_in(tmp_path)
    found = verdicts(check_machine(lambda: Probed(trouble="Driver Not Loaded", code=9), tmp_path))
    assert found == {"gpus": "ok", "driver": "fail", "devices": "fail", "library": "fail", "processes": "ok"}
    assert "modprobe" in check_driver(tmp_path).next_step


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open everything")
def test_devices_that_may_not_be_opened_are_named(tmp_path: Path) -> None:
    put(tmp_path, "dev/nvidiactl")
    put(tmp_path, "dev/nvidia0").chmod(0)
    (finding,) = check_devices(tmp_path)
    assert finding.verdict == "fail"
    assert "/dev/nvidia0" in finding.told


def test_devices_that_are_no_gpus_do_not_count(tmp_path: Path) -> None:
    put(tmp_path, "dev/nvidia-uvm")
    assert [finding.verdict for finding in check_devices(tmp_path)] == ["fail"]


@pytest.mark.parametrize(
    ("code", "word"),
    [(12, "Install"), (9, "modprobe"), (18, "restart"), (4, "devices"), (999, "dmesg"), (None, "dmesg")],
)
def test_each_trouble_of_nvml_has_its_next_step(code: int | None, word: str) -> None:
    (finding,) = check_library(Probed(trouble="no", code=code), 1)
    assert (finding.verdict, word in finding.next_step) == ("fail", True)


def test_one_lost_gpu_does_not_hide_others() -> None:
    gpus = [ProbedGpu(0, problem="GPU is lost"), ProbedGpu(1, is_persistent=False)]
    findings = list(check_library(Probed(gpus=gpus), 3))
    assert [(finding.name, finding.verdict) for finding in findings] == [
        ("library", "ok"),
        ("gpu", "fail"),
        ("gpu", "warn"),
        ("persistence", "warn"),
    ]
    assert "GPU 1" in findings[-1].told


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        ("rw", "ok"),
        ("rw,hidepid=0", "ok"),
        ("rw,hidepid=off", "ok"),
        ("rw,hidepid=2", "warn"),
        ("rw,hidepid=invisible", "warn"),
    ],
)
def test_hidden_processes_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, verdict: str) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    put(tmp_path, "proc/mounts", f"sysfs /sys sysfs rw 0 0\nproc /proc proc {options} 0 0\n")
    assert check_processes(tmp_path).verdict == verdict


def test_who_is_in_the_group_sees_hidden_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getgroups", lambda: [4242])
    put(tmp_path, "proc/mounts", "proc /proc proc rw,hidepid=2,gid=4242 0 0\n")
    assert check_processes(tmp_path).verdict == "ok"


@pytest.mark.skipif(find_compiler() is None, reason=NO_COMPILER)
def test_nvml_is_asked_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver(tmp_path, [FakeGpu("GPU-a"), FakeGpu("GPU-b", failures={"*": "lost"})])
    for name, value in driver.environment.items():
        monkeypatch.setenv(name, value)
    found = probe_nvml()
    assert found.trouble is None
    assert [gpu.problem is None for gpu in found.gpus] == [True, False]


def test_a_driver_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sleeper = tmp_path / "python"
    sleeper.write_text("#!/bin/sh\nexec sleep 60\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(sleeper))
    assert "within 0.2 s" in str(probe_nvml(0.2).trouble)


def test_a_child_that_dies_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert probe_nvml().trouble is not None
    assert sys.executable == "/bin/false"


def test_a_check_that_breaks_costs_itself_only() -> None:
    def check() -> list[Finding]:
        raise ZeroDivisionError("oh")

    def refuse() -> list[Finding]:
        raise UsageError("no.", "Do this.")

    assert [finding.verdict for finding in guarded("hub", "x", check)] == ["fail"]
    assert [finding.next_step for finding in guarded("hub", "x", refuse)] == ["Do this."]
