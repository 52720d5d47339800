"""`POST /get-status` of an agent that listens: what a node of GPU Cluster Status Monitor answers its main.

A request without the password is answered with 404, as the original does.
"""

import hashlib
import hmac
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import msgspec

from gpudeck.agent.listen import HttpAnswer, answer_error
from gpudeck.compat.readings import mebibytes, round_known
from gpudeck.model.report import GpuReading
from gpudeck.model.view import Gpu
from gpudeck.wire import Envelope

PATH: Final = "/get-status"
_MAX_COMMAND_LENGTH: Final = 500
_JSON: Final = {"Content-Type": "application/json"}
_NOT_FOUND: Final = answer_error(404, "not_found", "there is nothing here")
_NOT_READ_YET: Final = answer_error(503, "unavailable", "this host has not been read yet", Retry_After="1")


class NodeResponder:
    """Answers requests with the newest report, as `newest` returns it; None before there is one."""

    def __init__(self, password: str, newest: Callable[[], Envelope | None]) -> None:
        self._digest = _digest(password)
        self._newest = newest

    def answer(self, body: bytes) -> HttpAnswer:
        if not self._is_right(body):
            return _NOT_FOUND
        envelope = self._newest()
        if envelope is None:
            return _NOT_READ_YET
        status = {
            "hostname": envelope.host,
            "last_update": write_time(envelope.collected_at),
            "ips": describe_ips(envelope.report.addresses, envelope.report.interfaces),
            "gpus": [describe_gpu(gpu, gpu.metrics.get) for gpu in envelope.report.gpus or ()],
        }
        return HttpAnswer(200, encode(status), _JSON)

    def _is_right(self, body: bytes) -> bool:
        """Takes the same time for every wrong one."""
        try:
            request = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return False
        candidate = request.get("passwd") if isinstance(request, dict) else None
        return isinstance(candidate, str) and hmac.compare_digest(_digest(candidate), self._digest)


def write_time(at: float) -> str:
    """Local time without a zone, as a node writes it."""
    return datetime.fromtimestamp(at).isoformat(timespec="microseconds")  # noqa: DTZ006 - see above


def encode(status: dict[str, Any]) -> bytes:
    """As the original's server writes it: names in order, no blanks, a line break at the end."""
    return json.dumps(status, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def describe_gpu(gpu: GpuReading | Gpu, read: Callable[[str], float | None]) -> dict[str, Any]:
    """`read` gives a metric by its name. Unknown values are null."""
    return {
        "index": gpu.index,
        "name": gpu.name,
        "use_mem": mebibytes(read("memory_used_bytes")),
        "tot_mem": mebibytes(read("memory_total_bytes")),
        "utilize": round_known(read("utilization_percent")),
        "temp": round_known(read("temperature_celsius")),
        "users": [
            {
                "pid": process.pid,
                "username": process.user,
                "mem(MiB)": mebibytes(process.memory_used_bytes),
                "command": None if process.command is None else process.command[:_MAX_COMMAND_LENGTH],
            }
            for process in gpu.processes or ()
        ],
    }


def describe_ips(addresses: list[str], interfaces: dict[str, str]) -> list[list[str]]:
    """Pairs of interface and address as a node lists them: IPv4, the first address of each interface, by address."""
    pairs: dict[str, str] = {}
    for address in addresses:
        if ":" not in address:
            pairs.setdefault(interfaces.get(address) or address, address)
    return [[interfaces.get(address, ""), address] for address in sorted(pairs.values())]


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode("utf-8", "surrogatepass")).digest()
