"""gpumonitor: the hub asks its nodes over XML-RPC as its page did, and serves a self-contained page at `/gpus` and
`/index`. A node reports neither UUIDs nor its clock. The hosts of its config.yml can be imported."""

import logging
import re
import xmlrpc.client
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec
import yaml
from msgspec import Struct, field

from gpudeck.collectors.base import ProcessStarts
from gpudeck.collectors.smi_command import quote
from gpudeck.compat import readings
from gpudeck.compat.importing import ImportContext, ImportPlan, add_hosts, read_yaml_mapping, write_yaml
from gpudeck.compat.node_source import NodeSource
from gpudeck.compat.service import Headers, ReadOnlyRoute
from gpudeck.compat.settings import GpumonitorSettings
from gpudeck.fleet.visibility import Visibility
from gpudeck.model.errors import Temporary, UsageError
from gpudeck.model.report import GpuReading, Report
from gpudeck.model.target import Target
from gpudeck.model.text import show_gib, show_span
from gpudeck.model.view import Fleet, Gpu, Host, ShownProcess
from gpudeck.views.static_page import POLICY, render_page
from gpudeck.views.text import join_places

log = logging.getLogger(__name__)

CALL = b"<?xml version='1.0'?>\n<methodCall><methodName>gpu_stats</methodName><params></params></methodCall>\n"
WHO = "gpumonitor"
_PROCESS_KEYS = readings.ProcessKeys("pid", "userid", "process_name", "used_memory")
_FIELDS = {
    "memory_used": ("memory_used_bytes", float(readings.MIB)),
    "memory_total": ("memory_total_bytes", float(readings.MIB)),
    "utilization": ("utilization_percent", 1.0),
    "temperature": ("temperature_celsius", 1.0),
}
# How Python writes a timedelta: 0:16:00, 1 day, 2:03:04, 12 days, 0:00:00.500000.
_TIME = re.compile(r"(?:([0-9]{1,6}) days?, )?([0-9]{1,2}):([0-9]{2}):([0-9]{2})(?:\.[0-9]{1,6})?")
_MAX_PAUSE: Final = 86_400
_MAX_ROWS: Final = 2000
_USERS: Final = ("User", "Memory", "Processes", "GPUs")
_PROCESSES: Final = ("Host", "GPU", "User", "Memory", "Time", "PID")


class NodeStats(Struct, frozen=True):
    """`gpus` and `procs` as the node sent them: fields may contain NVML errors."""

    gpus: list[Any]
    procs: list[Any] = field(default_factory=list)


def read_answer(body: bytes) -> NodeStats:
    """Raises Temporary; its message follows the node's address."""
    try:
        return msgspec.json.decode(_read_string(body), type=NodeStats)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Temporary(f"answers no gpu_stats() in JSON: {quote(str(error))}.", "Is that a node of it?") from error


def _read_string(body: bytes) -> str:
    if b"<!DOCTYPE" in body:
        raise Temporary("answers XML with a document type, which no node does: it is not read.")
    try:
        (value,), _ = xmlrpc.client.loads(body.decode())
    except xmlrpc.client.Fault as fault:
        log.debug("a node of gpumonitor answers with a fault: %s", quote(str(fault.faultString)))
        raise Temporary("answers with a fault of XML-RPC.", "See its log on that host.") from fault
    except Exception as error:
        # An answer can be wrong in as many ways as there are errors.
        raise Temporary(f"answers no XML-RPC: {quote(str(error))}.", "Is that a node of it?") from error
    if not isinstance(value, str):
        raise Temporary("answers XML-RPC, but no string of gpu_stats().", "Is that a node of it?")
    return value


class GpumonitorSource(NodeSource):
    """Asks one node. See `Source` for what it raises and when it may be called."""

    def __init__(self, target: Target, settings: GpumonitorSettings) -> None:
        url = target.url(settings.port, "/")
        super().__init__(target, url, CALL, "text/xml", interval=settings.interval, deadline=settings.deadline, who=WHO)
        self._gpus = readings.GpuReader(WHO, _FIELDS)
        self._starts = ProcessStarts(jitter_seconds=5.0)

    def _parse(self, body: bytes, now: float) -> tuple[Report, float, str | None]:
        try:
            stats = read_answer(body)
        except Temporary as error:
            raise Temporary(f"{self._url} {error.message}", error.hint) from error
        if not stats.gpus:
            raise Temporary(f"{self._url} lists no GPU.", "See its log on that host.")
        gpus = [self._read_gpu(index, stats, now) for index in range(min(len(stats.gpus), readings.MAX_GPUS))]
        self._starts.end_reading()
        return readings.describe_host(gpus, WHO, self._target), now, None

    def _read_gpu(self, index: int, stats: NodeStats, now: float) -> GpuReading:
        raw, uuid = stats.gpus[index], f"{WHO}/{self._target.name}/{index}"
        if not isinstance(raw, dict):
            # Nodes send NVML errors in place of a GPU.
            reason = f"{WHO} reports no fields of it{f': {quote(raw)}' if isinstance(raw, str) else ''}"
            return readings.describe_missing_gpu(uuid, index, reason)
        listed = stats.procs[index] if index < len(stats.procs) else None
        processes = readings.read_processes(
            listed, WHO, _PROCESS_KEYS, len(stats.gpus), lambda entry: self._find_start(entry, now)
        )
        return self._gpus.read(uuid, index, raw.get("model"), raw, processes, now)

    def _find_start(self, entry: Mapping[str, object], now: float) -> float | None:
        running = _parse_time(entry.get("time"))
        if running is None:
            return None
        pid, user = readings.read_pid(entry.get("pid")) or 0, readings.read_word(entry.get("userid"))
        return round(self._starts.settle(pid, user, now - running))


def _parse_time(text: object) -> float | None:
    """Seconds of a timedelta as Python writes it; None for anything else."""
    found = _TIME.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return days * 86_400.0 + hours * 3600 + minutes * 60 + seconds


class GpusPageRoute(ReadOnlyRoute):
    """The hosts, and below them gpumonitor's totals by user and its processes."""

    paths = ("/gpus", "/index")
    refusal = (
        *(401, "unauthorized", "this hub requires a login"),
        "Log in on the hub's own page, or set `read: open`.",
    )

    async def answer(self, query: bytes, visibility: Visibility) -> tuple[bytes, Headers]:
        body = await self._hub.stream.answer(visibility, _render, _read_refresh(query))
        return body, [(b"content-type", b"text/html; charset=utf-8"), (b"content-security-policy", POLICY.encode())]


def sum_by_user(fleet: Fleet) -> list[tuple[str, str, str, str]]:
    """User, memory, processes and GPUs, the most memory first, then the most processes. A process counts on each of its
    GPUs. A partly unknown sum of memory is marked with ≥."""
    uses = defaultdict[str, list[tuple[Host, Gpu, int | None]]](list)
    for host, gpu, process in _on_gpus(fleet):
        if process.user is not None:
            uses[process.user].append((host, gpu, process.memory_used_bytes))
    rows = list[tuple[int, int, str, str, str]]()
    for user, own in uses.items():
        sizes = [size for _, _, size in own]
        memory, least = sum(filter(None, sizes)), "≥ " if None in sizes else ""
        places = "  ".join(join_places(dict.fromkeys((host.name, gpu.label) for host, gpu, _ in own), "-"))
        rows.append((-memory, -len(own), user, f"{least}{show_gib(memory, 2)} GiB", places))
    return [(user, memory, str(-count), places) for _, count, user, memory, places in sorted(rows)]


def list_processes(fleet: Fleet) -> list[tuple[str, ...]]:
    """Host, GPU, user, memory, how long it runs, and pid, on each of its GPUs; at most `_MAX_ROWS`."""
    return [
        (
            host.name,
            gpu.label,
            process.user or "–",
            f"{show_gib(process.memory_used_bytes, 2)} GiB",
            "–" if process.started_at is None else show_span(fleet.time - process.started_at),
            str(process.pid or "–"),
        )
        for host, gpu, process in islice(_on_gpus(fleet), _MAX_ROWS)
    ]


def _on_gpus(fleet: Fleet) -> Iterator[tuple[Host, Gpu, ShownProcess]]:
    for host in fleet.hosts:
        for gpu in host.gpus if host.status == "up" else ():
            yield from ((host, gpu, process) for process in gpu.processes or ())


def _render(fleet: Fleet, refresh: int) -> bytes:
    tables = ([_USERS, *sum_by_user(fleet)], [_PROCESSES, *list_processes(fleet)])
    return render_page(fleet, refresh, tables).encode()


def _read_refresh(query: bytes) -> int:
    """Seconds, as in `?refresh=5`; 60 without a valid number."""
    text = parse_qs(query.decode("latin-1")[:1000]).get("refresh", [""])[0]
    return int(text) if text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= _MAX_PAUSE else 60


_NUMBERS = {"web_port": (1, 65535), "rpc_port": (1, 65535), "rpc_timeout": (0.1, 60)}
_LOOK = "It is a YAML file with `hosts`, `rpc_port`, `rpc_timeout` and `web_port`."
# 615 MiB on an empty H200 with driver 580: NVML's first memory call, which the nodes use, counts it as used.
_EMPTY = "The nodes count memory that the driver reserves as used: hence fleet.availability.empty_bytes."
_READ = "With `read: open` everyone who can reach the hub can read; with `login` only users with an account."


def read(file: Path, _: ImportContext) -> ImportPlan:
    """Raises UsageError for a file that is not a config.yml."""
    plan, numbers, hosts = ImportPlan(notes=[_EMPTY]), dict[str, float](), None
    for key, node in read_yaml_mapping(file, "gpumonitor", _LOOK).value:
        name, place = str(key.value), f"line {key.start_mark.line + 1}"
        if name == "hosts" and isinstance(node, yaml.SequenceNode):
            hosts = node
        elif name not in _NUMBERS:
            plan.leave(place, f"{name[:60]!r} is no setting of gpumonitor")
        else:
            low, high = _NUMBERS[name]
            value = readings.read_number(node.value)
            if value is not None and low <= value <= high:
                numbers[name] = value
            else:
                plan.leave(place, f"{name} has to be a number from {low:g} to {high:g}")
    if hosts is None:
        raise UsageError(f"{file} has no list `hosts`: it is no config.yml of gpumonitor.", _LOOK)
    reach = {"port": int(numbers["rpc_port"])} if "rpc_port" in numbers else {}
    add_hosts(plan, _words(hosts), "gpumonitor", **reach)
    node_settings = reach | ({"deadline": f"{numbers['rpc_timeout']:g}s"} if "rpc_timeout" in numbers else {})
    settings: dict[str, Any] = {"compat": {"gpumonitor": node_settings}}
    if "web_port" in numbers:
        settings |= {"listen": f":{numbers['web_port']:g}", "read": "open"}
        plan.notes.append(_READ)
    plan.settings = write_yaml(settings | {"fleet": {"availability": {"empty_bytes": "1GiB"}}})
    return plan


def _words(hosts: yaml.SequenceNode) -> Iterator[tuple[str, str]]:
    """The hosts with their places. A word that YAML reads as null, true or false is no name."""
    for entry in hosts.value:
        is_word = isinstance(entry, yaml.ScalarNode) and not entry.tag.endswith((":null", ":bool"))
        yield f"line {entry.start_mark.line + 1}", entry.value if is_word else "[…]"
