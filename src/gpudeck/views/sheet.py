"""The fleet as a sheet: a line a GPU, for spreadsheets and scripts that know no JSON."""

from gpudeck.model.view import Fleet, Gpu, Host
from gpudeck.views.csv import Value, write_csv

_TITLES = (
    *("host", "host_status", "via", "last_report_at", "labels"),
    *("gpu", "uuid", "model", "vendor", "availability", "availability_reason", "health", "health_reason"),
    *("utilization_percent", "memory_used_bytes", "memory_total_bytes", "temperature_celsius", "power_watts", "since"),
    *("users", "unknown"),
)


def render_sheet(fleet: Fleet) -> str:
    """CSV with a header. Units stand in the titles, times are Unix seconds. What is unknown is empty, and stands with
    its reason in the last field; so does why a host has no GPU."""
    return write_csv([_TITLES, *(row for host in fleet.hosts for row in _rows(host))])


def _rows(host: Host) -> list[list[Value]]:
    labels = " ".join(f"{key}={value}" for key, value in sorted(host.labels.items()))
    start: list[Value] = [host.name, host.status, host.via, host.last_report_at, labels]
    if not host.gpus:
        reason = host.reasons.get("gpus") or next(iter(host.problems), "no GPUs")
        return [[*start, *[None] * (len(_TITLES) - len(start) - 1), f"gpu: {reason}"]]
    return [[*start, *_gpu_fields(gpu)] for gpu in host.gpus]


def _gpu_fields(gpu: Gpu) -> list[Value]:
    numbers = {
        "utilization_percent": _whole(gpu.utilization_percent),
        "memory_used_bytes": _whole(gpu.memory_used_bytes),
        "memory_total_bytes": _whole(gpu.memory_total_bytes),
        "temperature_celsius": _whole(gpu.temperature_celsius),
        "power_watts": gpu.power_watts,
    }
    unknown = [*(["processes"] if gpu.processes is None else []), *(name for name in numbers if numbers[name] is None)]
    texts = (gpu.label, gpu.uuid, gpu.name, gpu.vendor, gpu.availability, gpu.availability_reason)
    reasons = "; ".join(f"{name}: {gpu.reasons.get(name, 'unknown')}" for name in unknown)
    users = None if gpu.processes is None else ", ".join(gpu.users)
    return [*texts, gpu.health, gpu.health_reason, *numbers.values(), gpu.since, users, reasons]


def _whole(value: float | None) -> float | None:
    """Without a decimal point where there is nothing behind it: 80, not 80.0."""
    return value if value is None or value % 1 else int(value)
