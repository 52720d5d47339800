"""Reports as an agent would send them, with everything a test does not care about filled in."""

from typing import Any

from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, MIB
from gpudeck.model.report import GpuReading, Process, Report
from gpudeck.wire import Envelope

GIB = 1024 * int(MIB)

IDLE: dict[str, int | float] = {
    "utilization_percent": 0,
    "memory_utilization_percent": 0,
    "memory_used_bytes": 0,
    "memory_total_bytes": 80 * GIB,
    "temperature_celsius": 31,
    "power_watts": 60.5,
    "power_limit_watts": 400,
    "fan_percent": 20,
    "clock_sm_mhz": 345,
    "clock_memory_mhz": 1593,
    "encoder_percent": 0,
    "decoder_percent": 0,
    "memory_temperature_celsius": 40,
    "performance_state": 0,
    "throttled_power": 0,
    "throttled_thermal": 0,
    "throttled_hardware": 0,
    "ecc_corrected_count": 0,
    "ecc_uncorrected_count": 0,
    "remapped_rows_count": 0,
    "remapped_rows_pending": 0,
    "nvlink_active_count": 12,
    "nvlink_inactive_count": 0,
    "nvlink_error_count": 0,
    "nvlink_error_link": 0,
    "pcie_generation": 4,
    "pcie_generation_max": 4,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "temperature_margin_celsius": 50,
    "energy_joules": 1_000_000,
    "pcie_receive_bytes_per_second": 0,
    "pcie_transmit_bytes_per_second": 0,
    "sm_activity_percent": 0,
    "sm_occupancy_percent": 0,
    "tensor_activity_percent": 0,
    "dram_activity_percent": 0,
    "fp64_activity_percent": 0,
    "fp32_activity_percent": 0,
    "fp16_activity_percent": 0,
    "nvlink_receive_bytes_per_second": 0,
    "nvlink_transmit_bytes_per_second": 0,
}
HOST: dict[str, int | float] = {
    "cpu_percent": 12.5,
    "cpu_count": 64,
    "load_1m": 3.2,
    "memory_used_bytes": 100 * GIB,
    "memory_total_bytes": 512 * GIB,
    "disk_used_bytes": 900 * GIB,
    "disk_total_bytes": 2000 * GIB,
    "swap_used_bytes": 0,
    "swap_total_bytes": 8 * GIB,
    "network_receive_bytes_per_second": 12_000,
    "network_transmit_bytes_per_second": 34_000,
    "uptime_seconds": 86_400,
}
assert IDLE.keys() == GPU_METRICS.keys()
assert HOST.keys() == HOST_METRICS.keys()


def make_process(pid: int = 4711, user: str | None = "alice", gib: float = 20, **others: Any) -> Process:
    return Process(pid=pid, user=user, memory_used_bytes=int(gib * GIB), command="python train.py", **others)


def make_gpu(
    index: int = 0, *, uuid: str | None = None, metrics: dict[str, Any] | None = None, **others: Any
) -> GpuReading:
    """An idle, empty A100; `metrics` overrides single values, None takes one out."""
    merged = {name: value for name, value in (IDLE | (metrics or {})).items() if value is not None}
    settings = {"processes": [], "idle_seconds": 0.0, "name": "NVIDIA A100-SXM4-80GB", "vendor": "nvidia"} | others
    return GpuReading(uuid=uuid or f"GPU-{index}", index=index, metrics=merged, **settings)


def make_busy_gpu(index: int = 0, user: str = "alice", **others: Any) -> GpuReading:
    metrics = {"utilization_percent": 97, "memory_used_bytes": 20 * GIB, "power_watts": 300.0}
    return make_gpu(index, metrics=metrics | others.pop("metrics", {}), processes=[make_process(user=user)], **others)


def make_envelope(
    host: str = "gpu01", sequence: int = 1, gpus: list[GpuReading] | None = None, **others: Any
) -> Envelope:
    """A report of `host` with one idle GPU, unless told otherwise."""
    report = others.pop("report", None) or Report(gpus=[make_gpu()] if gpus is None else gpus, metrics=dict(HOST))
    defaults = {"version": 1, "boot_id": "boot-1", "run_id": "run-1", "collected_at": 1_790_000_000.0}
    return Envelope(host=host, sequence=sequence, report=report, **({"interval_seconds": 2.0} | defaults | others))
