"""nvidia-smi stands in for NVML, and only where that helps."""

from pathlib import Path

import pytest

from fakes.reports import HOST, make_gpu
from gpudeck.collectors.machine import MachineCollector, NvidiaFallback
from gpudeck.collectors.nvidia_smi import NvidiaSmiCollector
from gpudeck.model.errors import Absent, PluginError, Refused, Temporary, Wrong
from gpudeck.model.report import Report

ANSWER = Path(__file__).parents[1] / "captures/nvidia-smi/answers/h200-580.159.04-first.txt"


class Scripted:
    """A collector that gives or raises what it is told."""

    def __init__(self, name: str, outcome: Report | PluginError) -> None:
        self.name = name
        self.outcome = outcome
        self.asked = 0
        self.is_closed = False

    def collect(self, now: float) -> Report:
        self.asked += 1
        if isinstance(self.outcome, PluginError):
            raise self.outcome
        return self.outcome

    def close(self) -> None:
        self.is_closed = True


def make_pair(first: Report | PluginError, second: Report | PluginError) -> tuple[Scripted, Scripted, NvidiaFallback]:
    nvml, smi = Scripted("nvml", first), Scripted("nvidia_smi", second)
    return nvml, smi, NvidiaFallback(nvml, smi)


def test_nvidia_smi_is_not_asked_while_nvml_answers() -> None:
    report = Report(gpus=[make_gpu()])
    _, smi, fallback = make_pair(report, Wrong("never asked"))
    assert fallback.collect(0.0) == report
    assert smi.asked == 0


@pytest.mark.parametrize("failure", [Absent("No package."), Wrong("Broken struct.")])
def test_nvidia_smi_stands_in_for_an_nvml_that_cannot_be_used(failure: PluginError) -> None:
    _, _, fallback = make_pair(failure, Report(gpus=[make_gpu()], driver_version="580", metrics=dict(HOST)))
    report = fallback.collect(0.0)
    assert [gpu.uuid for gpu in report.gpus or []] == ["GPU-0"]
    assert report.driver_version == "580"
    assert report.metrics == {}
    assert report.problems == [f"NVIDIA GPUs are read through nvidia-smi, because NVML cannot be used: {failure}"]


@pytest.mark.parametrize("failure", [Temporary("The driver hangs."), Refused("Not permitted.")])
def test_driver_that_does_not_answer_is_not_asked_a_second_time(failure: PluginError) -> None:
    _, smi, fallback = make_pair(failure, Report())
    with pytest.raises(type(failure), match=str(failure)):
        fallback.collect(0.0)
    assert smi.asked == 0


def test_what_nvml_said_counts_where_nvidia_smi_fails_too() -> None:
    _, _, fallback = make_pair(Absent("No driver library."), Temporary("No answer."))
    with pytest.raises(Absent, match=r"No driver library\."):
        fallback.collect(0.0)


def test_nvml_is_tried_again_now_and_then_and_takes_over() -> None:
    nvml, smi, fallback = make_pair(Absent("No package."), Report(gpus=[make_gpu()]))
    for now in (0.0, 1.0, 2.0):
        fallback.collect(now)
    assert (nvml.asked, smi.asked) == (1, 3)
    nvml.outcome = Report(gpus=[make_gpu(1)])
    assert fallback.collect(61.0) == nvml.outcome
    assert fallback.collect(62.0) == nvml.outcome
    assert smi.asked == 3


def test_both_are_closed() -> None:
    nvml, smi, fallback = make_pair(Report(), Report())
    fallback.close()
    assert nvml.is_closed
    assert smi.is_closed


def test_machine_without_nvml_shows_its_gpus_through_nvidia_smi() -> None:
    smi = NvidiaSmiCollector(lambda _: ANSWER.read_text())
    machine = MachineCollector([NvidiaFallback(Scripted("nvml", Absent("No package.")), smi)])
    report = machine.collect(0.0)
    assert [gpu.name for gpu in report.gpus or []] == ["NVIDIA H200"]
    assert "through nvidia-smi" in report.problems[0]
