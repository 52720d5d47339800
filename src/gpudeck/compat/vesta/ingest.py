"""What a vesta sender posts becomes a report. Every value is looked at by itself: one that makes no sense is unknown,
with its reason, and hides no other.

{"gpu:0": {"device_num": 0, "uuid": …, "gpu_name": …, "temperature": 80, "total_memory": 11169, "used_memory": 8018,
           "available_memory": 3151, "timestamp": …, "gpu_volatile": 92, "processes": [{"pid": "17862", …}]}, …}

Sizes are in MiB. Version 1.0.0 writes some of its numbers as text.
"""

import json
import re
from typing import Any, Final

import msgspec
from msgspec import Struct

from gpudeck.compat import readings
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.errors import ReportRefused
from gpudeck.model.report import GpuReading, Process, Report
from gpudeck.model.text import clean
from gpudeck.wire import MAX_PROCESSES

MOST_GPUS: Final = 64
MOST_PROCESSES: Final = 1024
_KEY: Final = re.compile(r"gpu:([0-9]{1,4})")
_NUMBER: Final = re.compile(r"\s*(-?[0-9]{1,15})(?:\.[0-9]{1,15})?\s*(?:%|C|MiB)?\s*")
WHO: Final = "vesta"
_METRICS: Final = (
    ("utilization_percent", "gpu_volatile", 1.0),
    ("memory_used_bytes", "used_memory", float(readings.MIB)),
    ("memory_total_bytes", "total_memory", float(readings.MIB)),
    ("temperature_celsius", "temperature", 1.0),
)
_decode = msgspec.json.Decoder().decode


class PostedFields(Struct, frozen=True):
    """What readers of vesta get as the sender posted it: when a GPU was read, and its free memory in MiB, which is less
    than the rest by what the driver reserves. None where it was not posted."""

    timestamp: str = ""
    available_memory: int | None = None


class VestaPost(Struct, frozen=True):
    """`posted` is by the GPU's uuid."""

    report: Report
    posted: dict[str, PostedFields]


def read_post(body: bytes, host: str) -> VestaPost:
    """Raises ReportRefused for what is no post at all: no JSON, or something else than an object of GPUs."""
    try:
        return read_gpus(_decode(body), host)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return read_gpus(_decode_as_python(body), host)


def _decode_as_python(body: bytes) -> object:
    """Senders write what Python calls JSON: NaN too, and the halves of characters that a program's name may hold."""
    try:
        return json.loads(body.decode())
    except (RecursionError, ValueError) as error:
        raise ReportRefused(400, "malformed", "the body is no JSON") from error


def read_gpus(posted: object, host: str) -> VestaPost:
    """The same for what is unpacked already. `host` is for GPUs without a uuid."""
    if not isinstance(posted, dict) or len(posted) > MOST_GPUS:
        raise ReportRefused(422, "invalid_report", f"a post is an object of at most {MOST_GPUS} GPUs")
    listed = sum(
        len(gpu["processes"])
        for gpu in posted.values()
        if isinstance(gpu, dict) and isinstance(gpu.get("processes"), list)
    )
    if listed > MAX_PROCESSES:
        raise ReportRefused(422, "too_many_processes", f"the post lists more than {MAX_PROCESSES} processes")
    gpus: dict[str, GpuReading] = {}
    words: dict[str, PostedFields] = {}
    problems: list[str] = []
    for key, raw in posted.items():
        number = _KEY.fullmatch(key) if isinstance(key, str) else None
        if number is None or not isinstance(raw, dict):
            problems.append(f"the sender reports {str(key)[:40]!r}, which is no GPU")
            continue
        gpu = _read_gpu(raw, int(number[1]), host)
        if gpu.uuid in gpus:
            problems.append(f"the sender reports {gpu.uuid} twice")
            continue
        gpus[gpu.uuid] = gpu
        words[gpu.uuid] = PostedFields(_text(raw.get("timestamp"), 64) or "", _number(raw.get("available_memory")))
    if posted and not gpus:
        raise ReportRefused(422, "invalid_report", "the post has no GPU")
    return VestaPost(Report(gpus=list(gpus.values()), problems=problems[:8]), words)


def _read_gpu(raw: dict[str, Any], number: int, host: str) -> GpuReading:
    figures = readings.Figures(GPU_METRICS, WHO)
    for name, key, unit in _METRICS:
        if raw.get(key) is not None:
            value = _number(raw[key])
            figures.take(name, raw[key] if value is None else value, unit)
    processes = raw.get("processes")
    return readings.describe_gpu_reading(
        _text(raw.get("uuid"), 128) or f"{host}/gpu{number}",
        number,
        _text(raw.get("gpu_name"), 128),
        figures,
        read_processes(processes) if isinstance(processes, list) else f"{WHO} does not list this GPU's processes",
        idle_seconds=None,
    )


def read_processes(raw: list[object]) -> list[Process]:
    """An entry that makes no sense is a process of which nothing is known: its GPU is not free."""
    entries = (one if isinstance(one, dict) else {} for one in raw[:MOST_PROCESSES])
    return [
        readings.describe_process(
            pid=_number(entry.get("pid")),
            user=_text(entry.get("user"), 256),
            name=_text(entry.get("name"), 1024) or "",
            memory=_number(entry.get("used_memory")),
            started_at=None,
            who=WHO,
            commands="redacted",
        )
        for entry in entries
    ]


def _number(raw: object) -> int | None:
    """A whole number, also where it stands in a text, as version 1.0.0 writes some."""
    if type(raw) is int and -(10**15) < raw < 10**15:
        return raw
    if isinstance(raw, str):
        found = _NUMBER.fullmatch(raw)
        return int(found[1]) if found else None
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        return None
    return int(raw) if -1e15 < raw < 1e15 else None


def _text(raw: object, longest: int) -> str | None:
    if not isinstance(raw, str):
        return None
    return clean(raw.strip()[:longest]) or None
