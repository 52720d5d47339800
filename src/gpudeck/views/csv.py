"""Tables as CSV (RFC 4180) for spreadsheets and scripts. No text in it is a formula, or contains control characters."""

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from gpudeck.model.event import Event
from gpudeck.model.text import clean
from gpudeck.model.view import Fleet, Gpu, Host

Value = str | float | None
_FORMULAS = tuple("=+-@")
_NUMBERS = ("utilization_percent", "memory_used_bytes", "memory_total_bytes", "temperature_celsius", "power_watts")
_GPU_TITLES = (
    *("host", "host_status", "via", "last_report_at", "labels"),
    *("gpu", "uuid", "model", "vendor", "availability", "availability_reason", "health", "health_reason"),
    *_NUMBERS,
    *("since", "users", "unknown"),
)
_EVENT_FIELDS = ("at", "severity", "kind", "host", "gpu", "label", "user", "title", "detail", "id")


def write_csv(rows: Iterable[Sequence[Value]], line_end: str = "\r\n") -> str:
    """One line per row, each ending in CR and LF by default. None is an empty field; numbers stay numbers. A text that
    a spreadsheet would take for a formula, such as one that begins with `=`, gets a leading apostrophe."""
    written = io.StringIO(newline="")
    csv.writer(written, lineterminator=line_end).writerows([_field(value) for value in row] for row in rows)
    return written.getvalue()


def _field(value: Value) -> str | float:
    if value is None:
        return ""
    if not isinstance(value, str):
        return value
    # Spreadsheets skip leading spaces of any kind.
    text = clean(value)
    return f"'{text}" if text.lstrip().startswith(_FORMULAS) else text


def render_sheet(fleet: Fleet) -> str:
    """CSV with a header. Units are in the titles, times are Unix seconds. Unknown values are empty, with the reasons in
    the last field; so is the reason why a host has no GPU."""
    return write_csv([_GPU_TITLES, *(row for host in fleet.hosts for row in _gpu_rows(host))])


def _gpu_rows(host: Host) -> list[list[Value]]:
    labels = " ".join(f"{key}={value}" for key, value in sorted(host.labels.items()))
    start: list[Value] = [host.name, host.status, host.via, host.last_report_at, labels]
    if not host.gpus:
        reason = host.reasons.get("gpus") or next(iter(host.problems), "no GPUs")
        return [[*start, *[None] * (len(_GPU_TITLES) - len(start) - 1), f"gpu: {reason}"]]
    return [[*start, *_gpu_fields(gpu)] for gpu in host.gpus]


def _gpu_fields(gpu: Gpu) -> list[Value]:
    numbers = {name: _whole(getattr(gpu, name)) for name in _NUMBERS}
    unknown = [*(["processes"] if gpu.processes is None else []), *(name for name in numbers if numbers[name] is None)]
    texts = (gpu.label, gpu.uuid, gpu.name, gpu.vendor, gpu.availability, gpu.availability_reason)
    reasons = "; ".join(f"{name}: {gpu.reasons.get(name, 'unknown')}" for name in unknown)
    users = None if gpu.processes is None else ", ".join(gpu.users)
    return [*texts, gpu.health, gpu.health_reason, *numbers.values(), gpu.since, users, reasons]


def _whole(value: float | None) -> float | None:
    """Without a decimal point for whole numbers: 80, not 80.0."""
    return value if value is None or value % 1 else int(value)


def write_events(events: Sequence[Event]) -> str:
    """One line per event, with a header; `at` is in Unix seconds."""
    rows: list[Sequence[Value]] = [("time_utc", *_EVENT_FIELDS)]
    for event in events:
        moment = f"{datetime.fromtimestamp(event.at, timezone.utc):%Y-%m-%d %H:%M:%S}"
        rows.append([moment, *(getattr(event, name) for name in _EVENT_FIELDS)])
    return write_csv(rows)
