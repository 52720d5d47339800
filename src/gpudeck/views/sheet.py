"""The fleet as a sheet: a line a GPU, for spreadsheets and scripts that know no JSON."""

from gpudeck.views.csv import Value, write_csv
from gpudeck.views.filter import Json

_HOST_FIELDS = ("name", "status", "via", "last_report_at")
_GPU_TEXTS = ("label", "uuid", "name", "vendor", "availability", "availability_reason", "health", "health_reason")
_GPU_NUMBERS = (
    "utilization_percent",
    "memory_used_bytes",
    "memory_total_bytes",
    "temperature_celsius",
    "power_watts",
    "since",
)
_TITLES = (
    *("host", "host_status", "via", "last_report_at", "labels"),
    *("gpu", "uuid", "model", "vendor", "availability", "availability_reason", "health", "health_reason"),
    *_GPU_NUMBERS,
    *("users", "unknown"),
)


def render_sheet(fleet: Json) -> str:
    """CSV with a header. Units stand in the titles, times are Unix seconds. What is unknown is empty, and stands with
    its reason in the last field; so does why a host has no GPU."""
    return write_csv([_TITLES, *(row for host in fleet["hosts"] for row in _rows(host))])


def _rows(host: Json) -> list[list[Value]]:
    labels = " ".join(f"{key}={value}" for key, value in sorted(host["labels"].items()))
    start: list[Value] = [*(host[field] for field in _HOST_FIELDS), labels]
    if not host["gpus"]:
        reason = host["reasons"].get("gpus") or next(iter(host["problems"]), "no GPUs")
        return [[*start, *[None] * (len(_TITLES) - len(start) - 1), f"gpu: {reason}"]]
    return [[*start, *_gpu_fields(gpu)] for gpu in host["gpus"]]


def _gpu_fields(gpu: Json) -> list[Value]:
    unknown = [name for name in ("processes", *_GPU_NUMBERS) if gpu[name] is None]
    reasons = "; ".join(f"{name}: {gpu['reasons'].get(name, 'unknown')}" for name in unknown)
    users = None if gpu["processes"] is None else ", ".join(gpu["users"])
    return [*(gpu[field] for field in (*_GPU_TEXTS, *_GPU_NUMBERS)), users, reasons]
