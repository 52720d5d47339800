"""What a vesta sender posts becomes a report. Every value is looked at by itself: one that makes no sense is unknown,
with its reason, and hides no other.

{"gpu:0": {"device_num": 0, "uuid": …, "gpu_name": …, "temperature": 80, "total_memory": 11169, "used_memory": 8018,
           "available_memory": 3151, "timestamp": …, "gpu_volatile": 92, "processes": [{"pid": "17862", …}]}, …}

Sizes are in MiB. Version 1.0.0 writes some of its numbers as text.
"""

import json
import re
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Struct

from gpudeck.collectors.redaction import show
from gpudeck.compat.readings import MIB, is_display_server
from gpudeck.model.errors import ReportRefused
from gpudeck.model.report import GpuReading, Process, Report
from gpudeck.model.text import clean
from gpudeck.wire import MAX_PROCESSES

MOST_GPUS: Final = 64
MOST_PROCESSES: Final = 1024
_KEY: Final = re.compile(r"gpu:([0-9]{1,4})")
_NUMBER: Final = re.compile(r"\s*(-?[0-9]{1,15})(?:\.[0-9]{1,15})?\s*(?:%|C|MiB)?\s*")
_ABSENT: Final = "the sender does not tell it"
_METRICS: Final = (
    ("utilization_percent", "gpu_volatile", 1),
    ("memory_used_bytes", "used_memory", MIB),
    ("memory_total_bytes", "total_memory", MIB),
    ("temperature_celsius", "temperature", 1),
)
_decode = msgspec.json.Decoder().decode


class PostedFields(Struct, frozen=True):
    """What readers of vesta get as the sender posted it: when a GPU was read, and its free memory in MiB, which is less
    than the rest by what the driver reserves. None where it was not posted."""

    timestamp: str = ""
    available_memory: int | None = None


class VestaPost(Struct, frozen=True):
    """`told` is by the GPU's uuid."""

    report: Report
    told: dict[str, PostedFields]


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
    """The same for what is unpacked already. `host` is for GPUs that tell no uuid."""
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
    for key, told in posted.items():
        number = _KEY.fullmatch(key) if isinstance(key, str) else None
        if number is None or not isinstance(told, dict):
            problems.append(f"the sender tells of {str(key)[:40]!r}, which is no GPU")
            continue
        gpu = _read_gpu(told, int(number[1]), host)
        if gpu.uuid in gpus:
            problems.append(f"the sender tells of {gpu.uuid} twice")
            continue
        gpus[gpu.uuid] = gpu
        words[gpu.uuid] = PostedFields(_text(told.get("timestamp"), 64) or "", _number(told.get("available_memory")))
    if posted and not gpus:
        raise ReportRefused(422, "invalid_report", "the post tells of no GPU")
    return VestaPost(Report(gpus=list(gpus.values()), problems=problems[:8]), words)


def _read_gpu(told: dict[str, Any], number: int, host: str) -> GpuReading:
    metrics: dict[str, int | float] = {}
    unknown: dict[str, str] = {}
    for name, key, unit in _METRICS:
        value = _number(told.get(key))
        if value is None:
            unknown[name] = _why(told.get(key))
        else:
            metrics[name] = value * unit
    processes = read_processes(told.get("processes"))
    uuid = _text(told.get("uuid"), 128)
    return GpuReading(
        uuid=uuid or f"{host}/gpu{number}",
        index=number,
        name=_text(told.get("gpu_name"), 128) or "unknown",
        vendor="nvidia",
        metrics=metrics,
        unknown=unknown,
        processes=processes,
        processes_reason=None if processes is not None else _why(told.get("processes")),
    )


def read_processes(told: object) -> list[Process] | None:
    """None if it is no list. An entry that makes no sense is a process of which nothing is known: its GPU is not
    free."""
    if not isinstance(told, list):
        return None
    return [_read_process(one if isinstance(one, dict) else {}) for one in told[:MOST_PROCESSES]]


def _read_process(told: dict[str, Any]) -> Process:
    pid = _number(told.get("pid"))
    pid = None if pid is None or not 0 <= pid < 2**32 else pid
    user, command = _text(told.get("user"), 256), _redact(_text(told.get("name"), 1024))
    memory = _number(told.get("used_memory"))
    memory = None if memory is None or not 0 <= memory < 2**32 else memory
    known = {"pid": pid, "user": user, "command": command, "memory_used_bytes": memory}
    return Process(
        pid=pid or 0,
        user=user,
        command=command,
        memory_used_bytes=None if memory is None else memory * MIB,
        evidence="vesta",
        display=is_display_server(command or ""),
        reasons={name: _ABSENT for name, value in known.items() if value is None},
    )


@lru_cache(4096)
def _redact(name: str | None) -> str | None:
    """Senders tell programs as they find them, with whatever stands on their command lines."""
    return None if name is None else show([name], name, "redacted")


def _number(told: object) -> int | None:
    """A whole number, also where it stands in a text, as version 1.0.0 writes some."""
    if type(told) is int and -(10**15) < told < 10**15:
        return told
    if isinstance(told, str):
        found = _NUMBER.fullmatch(told)
        return int(found[1]) if found else None
    if isinstance(told, bool) or not isinstance(told, int | float):
        return None
    return int(told) if -1e15 < told < 1e15 else None


def _text(told: object, longest: int) -> str | None:
    if not isinstance(told, str):
        return None
    return clean(told.strip()[:longest]) or None


def _why(told: object) -> str:
    if told is None:
        return _ABSENT
    return f"the sender tells {told!r:.40}" if isinstance(told, str) else "the sender tells something else"
