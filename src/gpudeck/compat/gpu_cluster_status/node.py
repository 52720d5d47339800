"""`POST /get-status` of an agent that listens: what a node of GPU Cluster Status Monitor answers its main.

Who does not bring the password is told that there is nothing, as there: 404.
"""

import contextlib
import fcntl
import hashlib
import hmac
import json
import socket
import struct
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import msgspec

from gpudeck.agent.desk import DeskAnswer, answer_error
from gpudeck.model.report import GpuReading, Process
from gpudeck.wire import Envelope

PATH: Final = "/get-status"
LONGEST_COMMAND: Final = 500
_MIB: Final = 1024 * 1024
_GET_ADDRESS: Final = 0x8915  # SIOCGIFADDR
_GET_FLAGS: Final = 0x8913  # SIOCGIFFLAGS
_RUNNING: Final = 0x40  # IFF_RUNNING
_JSON: Final = {"Content-Type": "application/json"}
_NOT_FOUND: Final = answer_error(404, "not_found", "there is nothing here")
_NOT_READ_YET: Final = answer_error(503, "unavailable", "this host has not been read yet", Retry_After="1")

Interfaces = list[list[str]]
"""Pairs of the name of an interface and its IPv4 address."""


def find_interfaces() -> Interfaces:
    """Of this machine by address, as a node lists them: without the loopback, Docker's and those that are down. Empty
    where none is told."""
    found = []
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                flags = struct.unpack_from("H", fcntl.ioctl(asked, _GET_FLAGS, request), 16)[0]
                told = fcntl.ioctl(asked, _GET_ADDRESS, request)
                if flags & _RUNNING:
                    found.append([name, socket.inet_ntoa(told[20:24])])
    kept = [pair for pair in found if not pair[1].startswith("127.") and "docker" not in pair[0]]
    return sorted(kept, key=lambda pair: pair[1])


class NodeDesk:
    """Answers questions for the newest report, of which `newest` is asked each time; None before there is one."""

    def __init__(
        self,
        password: str,
        newest: Callable[[], Envelope | None],
        interfaces: Callable[[], Interfaces] = find_interfaces,
    ) -> None:
        self._digest = _digest(password)
        self._newest = newest
        self._interfaces = interfaces

    def answer(self, body: bytes) -> DeskAnswer:
        if not self._is_right(body):
            return _NOT_FOUND
        envelope = self._newest()
        if envelope is None:
            return _NOT_READ_YET
        told = describe_node(envelope, self._interfaces())
        return DeskAnswer(200, encode(told), _JSON)

    def _is_right(self, body: bytes) -> bool:
        """Takes the same time for every wrong one."""
        try:
            told = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return False
        candidate = told.get("passwd") if isinstance(told, dict) else None
        return isinstance(candidate, str) and hmac.compare_digest(_digest(candidate), self._digest)


def describe_node(envelope: Envelope, interfaces: Interfaces) -> dict[str, Any]:
    """A report in the words of a node. What is unknown is null."""
    return {
        "hostname": envelope.host,
        "last_update": write_time(envelope.collected_at),
        "ips": interfaces,
        "gpus": [_describe_gpu(gpu) for gpu in envelope.report.gpus or ()],
    }


def write_time(at: float) -> str:
    """Local time without a zone, as a node writes it."""
    return datetime.fromtimestamp(at).isoformat(timespec="microseconds")  # noqa: DTZ006 - see above


def encode(told: dict[str, Any]) -> bytes:
    """As the original's server writes it: names in order, no blanks, a line break at the end."""
    return json.dumps(told, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _describe_gpu(gpu: GpuReading) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "name": gpu.name,
        "use_mem": _mebibytes(gpu.metrics.get("memory_used_bytes")),
        "tot_mem": _mebibytes(gpu.metrics.get("memory_total_bytes")),
        "utilize": _whole(gpu.metrics.get("utilization_percent")),
        "temp": _whole(gpu.metrics.get("temperature_celsius")),
        "users": [_describe_user(process) for process in gpu.processes or ()],
    }


def _describe_user(process: Process) -> dict[str, Any]:
    return {
        "pid": process.pid,
        "username": process.user,
        "mem(MiB)": _mebibytes(process.memory_used_bytes),
        "command": None if process.command is None else process.command[:LONGEST_COMMAND],
    }


def _mebibytes(size: float | None) -> int | None:
    return None if size is None else int(size // _MIB)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode("utf-8", "surrogatepass")).digest()
