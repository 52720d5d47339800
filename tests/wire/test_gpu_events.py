"""Faults on the wire: version 1 grew by a field that may be left out."""

import msgspec
import pytest

from fakes.reports import make_gpu
from gpudeck.model.report import GpuEvent, GpuReading

EVENT = GpuEvent(at=1_790_000_000.0, code=79)


def test_gpu_without_faults_is_written_as_before() -> None:
    assert "events" not in msgspec.to_builtins(make_gpu())


def test_faults_come_out_as_they_went_in() -> None:
    gpu = make_gpu(events=[EVENT, GpuEvent(at=1_790_000_001.5, code=31, process=4711, text="MMU Fault")])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(gpu), type=GpuReading) == gpu


@pytest.mark.parametrize(
    "gpu",
    [
        make_gpu(events=[EVENT] * 33),
        make_gpu(events=[GpuEvent(at=float("nan"), code=79)]),
        make_gpu(events=[GpuEvent(at=0.0, code=-1)]),
        make_gpu(events=[GpuEvent(at=0.0, code=79, process=2**32)]),
        make_gpu(events=[GpuEvent(at=0.0, code=79, text="x" * 1025)]),
    ],
    ids=["too many", "no moment", "no code", "no pid", "too long"],
)
def test_what_cannot_be_a_fault_is_refused(gpu: GpuReading) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(gpu), type=GpuReading)
