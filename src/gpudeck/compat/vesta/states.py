"""The fleet as vesta's readers know it: `{host: {"data": [{"gpu_data": …, "timestamp": …}], "ip_address", "status"}}`.

All hosts of the fleet are in it, by whatever way they report: a site whose senders become agents one by one keeps its
scripts. A host's part is encoded when it has changed; the whole is put together for each who asks.
"""

import json
import time
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, Literal

from msgspec import Struct, convert

from gpudeck.compat.vesta.ingest import MIB, Told, VestaPost
from gpudeck.compat.vesta.register import Registered, VestaRegister, make_name
from gpudeck.compat.vesta.settings import VestaSettings
from gpudeck.hub.fleet import Fleet
from gpudeck.hub.host import HostState
from gpudeck.hub.sight import EVERYTHING, Sight
from gpudeck.model.catalog import Value
from gpudeck.model.report import GpuReading, Process
from gpudeck.model.view import Gpu, Host, ShownProcess

Json = dict[str, Any]
_TEXT_FORMATS: Final = {"DMY": "%d/%m/%Y %H:%M:%S", "MDY": "%m/%d/%Y %H:%M:%S", "YMD": "%Y/%m/%d %H:%M:%S"}


class Shown(Struct, frozen=True):
    """One host as readers see it. `state` is None for one that has registered and not been heard of since the start,
    `registered` for one whose sender is none of vesta's."""

    name: str
    state: HostState | None
    registered: Registered | None
    is_down: bool

    @property
    def id(self) -> str:
        """By which the history knows it."""
        if self.state is not None:
            return self.state.id
        return self.name if self.registered is None else self.registered.host

    @property
    def is_of_vesta(self) -> bool:
        """Whether what the fleet knows of it is what its sender posts."""
        return self.registered is not None and (self.state is None or self.state.via == "vesta")

    @property
    def is_heard(self) -> bool:
        """Whether the fleet knows more of it than what was stored before the hub's start."""
        is_silent = self.is_of_vesta and self.registered is not None and self.registered.posted_at is None
        return self.state is not None and not is_silent

    @property
    def address(self) -> str:
        if self.registered is not None and self.registered.address:
            return self.registered.address
        addresses = self.state.facts.addresses if self.state is not None else []
        return addresses[0] if addresses else ""

    @property
    def last_at(self) -> float | None:
        """When it was heard of last, also before the hub's start; None where it never was."""
        reported = None if self.state is None else self.state.last_report_at
        posted = None if self.registered is None else self.registered.last_at
        return max((at for at in (reported, posted) if at), default=None)

    @property
    def status(self) -> Literal["running", "down"]:
        return "down" if self.is_down else "running"


class States:
    """One event loop owns it."""

    def __init__(self, fleet: Fleet, register: VestaRegister, settings: VestaSettings) -> None:
        self._fleet = fleet
        self._register = register
        self._settings = settings
        self._parts: dict[str, tuple[Host | None, tuple[object, ...], bytes]] = {}

    def hosts(self, now: float) -> list[Shown]:
        """All hosts, in the order that the settings say."""
        shown = {one.name: one for one in self._all(now)}
        if self._settings.sort_by == "ip":
            return sorted(shown.values(), key=lambda one: (_address_order(one.address), one.name))
        return sorted(shown.values(), key=lambda one: one.name)

    def find(self, name: str, now: float) -> Shown | None:
        """By the name that it has here, or by its own."""
        shown = self.hosts(now)
        own = (one for one in shown if one.state is not None and one.state.name == name)
        return next((one for one in shown if one.name == name), None) or next(own, None)

    def encoded(self, now: float, sight: Sight = EVERYTHING) -> bytes:
        """Everything, the newest of each host."""
        parts = b", ".join([self._part(one, sight) for one in self.hosts(now)])
        return b"{" + parts + b"}"

    def summarize(self, one: Shown, sight: Sight) -> Json:
        """A host among all others: of one that is down no GPU is told there."""
        if one.is_down or one.state is None:
            return _frame(one, [self.entry({}, one.last_at)])
        return _frame(one, [self.newest(one, sight)])

    def describe(self, one: Shown, sight: Sight, past: list[Json] | None = None) -> Json:
        """A host by itself, also with its data from before it was down. `past` is what stands before the newest."""
        is_newest_told = one.is_heard or (one.state is not None and not past)
        return _frame(one, [*(past or ()), *([self.newest(one, sight)] if is_newest_told else [])])

    def newest(self, one: Shown, sight: Sight) -> Json:
        assert one.state is not None  # noqa: S101 - whoever asks has looked
        host = sight.host(one.state.kept_view())
        return self.entry(gpu_data(host, self._told(one)), host.last_report_at)

    def entry(self, gpus: Json, at: float | None) -> Json:
        """`timestamp` is what the README of vesta promises, `timestamp_text` what its server sent there. Local time."""
        if at is None:
            return {"gpu_data": gpus, "timestamp": None, "timestamp_text": ""}
        return {"gpu_data": gpus, "timestamp": int(_format(at, "%Y%m%d%H%M%S")), "timestamp_text": self.write_time(at)}

    def write_last(self, one: Shown) -> str:
        """When it was heard of last."""
        return "no entry received." if one.last_at is None else self.write_time(one.last_at)

    def write_time(self, at: float) -> str:
        return _format(at, _TEXT_FORMATS[self._settings.timestamp_format])

    def _told(self, one: Shown) -> dict[str, Told]:
        """Of each GPU, in the sender's own words; empty for a host of whom another way tells more."""
        return one.registered.told if one.registered is not None and one.is_of_vesta else {}

    def _part(self, one: Shown, sight: Sight) -> bytes:
        """`"name": {…}`. It stays as long as the host's own view does."""
        if sight is not EVERYTHING and sight.commands != "all":
            return self._encode(one, sight)
        version = None if one.state is None else one.state.kept_view()
        rest = one.is_down, one.address, one.last_at
        kept = self._parts.get(one.name)
        if kept is not None and kept[0] is version and kept[1] == rest:
            return kept[2]
        if len(self._parts) > 2 * len(self._fleet.hosts) + 2 * len(self._register) + 100:
            self._parts.clear()
        part = self._encode(one, sight)
        self._parts[one.name] = version, rest, part
        return part

    def _encode(self, one: Shown, sight: Sight) -> bytes:
        return f"{json.dumps(one.name)}: {json.dumps(self.summarize(one, sight))}".encode()

    def _all(self, now: float) -> Iterator[Shown]:
        """Where two have one name, the one that is up is told last, and so counts."""
        named = {host.name: host for host in self._fleet.hosts.values()}
        own = [self._show_registered(one, named.get(one.host), now) for one in self._register]
        taken = {one.registered.host for one in own if one.registered is not None and one.state is not None}
        others = (self._show_other(host) for name, host in named.items() if name not in taken)
        yield from sorted((*own, *others), key=lambda one: not one.is_down)

    def _show_registered(self, one: Registered, state: HostState | None, now: float) -> Shown:
        if state is not None and state.via != "vesta":
            return Shown(one.name, state, one, state.status in {"down", "never"})
        limit = one.silence_limit(self._settings.down_after)
        is_down = one.posted_at is None or now - one.posted_at > limit
        return Shown(one.name, state, one, is_down)

    def _show_other(self, host: HostState) -> Shown:
        name = make_name(host.name, lambda _: False) or host.name
        return Shown(name, host, None, host.status in {"down", "never"})


def gpu_data(host: Host, told: dict[str, Told]) -> Json:
    """The GPUs of a host, in vesta's words. What is unknown is null."""
    read_at = _format(host.last_report_at or 0.0, "%Y/%m/%d %H:%M:%S", milliseconds=True)
    return {f"gpu:{gpu.label}": _describe_gpu(gpu, gpu, told.get(gpu.uuid), EVERYTHING, read_at) for gpu in host.gpus}


def describe_post(post: VestaPost, sight: Sight) -> Json:
    """The same for a post from before."""
    return {
        f"gpu:{gpu.index}": _describe_gpu(gpu, convert(gpu.metrics, _Metrics), post.told[gpu.uuid], sight)
        for gpu in post.report.gpus or ()
    }


class _Metrics(Struct, frozen=True):
    """What vesta tells of a GPU in numbers."""

    utilization_percent: Value = None
    memory_used_bytes: Value = None
    memory_total_bytes: Value = None
    temperature_celsius: Value = None


def _describe_gpu(
    gpu: Gpu | GpuReading, metrics: Gpu | _Metrics, told: Told | None, sight: Sight, read_at: str = ""
) -> Json:
    used, total = mebibytes(metrics.memory_used_bytes), mebibytes(metrics.memory_total_bytes)
    available = None if told is None else told.available_memory
    if available is None and used is not None and total is not None:
        available = total - used
    return {
        "device_num": gpu.index,
        "uuid": gpu.uuid,
        "gpu_name": gpu.name,
        "temperature": _whole(metrics.temperature_celsius),
        "total_memory": total,
        "available_memory": available,
        "used_memory": used,
        "timestamp": (told.timestamp if told is not None else "") or read_at,
        "gpu_volatile": _whole(metrics.utilization_percent),
        "processes": None if gpu.processes is None else [_describe_process(one, told, sight) for one in gpu.processes],
    }


def _describe_process(process: Process | ShownProcess, told: Told | None, sight: Sight) -> Json:
    name = process.command if told is not None else name_program(process.command)
    return {
        "pid": str(process.pid),
        "name": name if sight.shows_commands_of(process.user) else None,
        "user": process.user,
        "used_memory": mebibytes(process.memory_used_bytes),
    }


def name_program(command: str | None) -> str | None:
    """What nvidia-smi calls a process: the program without its arguments."""
    return None if command is None else command.partition(" ")[0]


def mebibytes(size: float | None) -> int | None:
    return None if size is None else int(size // MIB)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _frame(one: Shown, data: list[Json]) -> Json:
    return {"data": data, "ip_address": one.address, "status": one.status}


def _format(at: float, pattern: str, *, milliseconds: bool = False) -> str:
    text = time.strftime(pattern, time.localtime(at))
    return f"{text}.{int(at * 1000) % 1000:03d}" if milliseconds else text


@lru_cache(4096)
def _address_order(address: str) -> tuple[bool, tuple[int, ...], str]:
    """10.0.0.9 before 10.0.0.10; who has none comes last."""
    parts = address.split(".")
    numbers = tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()
    return not address, numbers, address
