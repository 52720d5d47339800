"""The fleet as vesta's readers know it: `{host: {"data": [{"gpu_data": …, "timestamp": …}], "ip_address", "status"}}`;
and as its terminals know it. All hosts of the fleet are in it. A host's part is encoded when it has changed."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Final, Literal

from msgspec import Struct

from gpudeck import __version__
from gpudeck.compat.readings import mebibytes, round_known
from gpudeck.compat.settings import VestaSettings
from gpudeck.compat.vesta.store import (
    Json,
    Moment,
    PostedFields,
    Registered,
    VestaPost,
    VestaRegister,
    make_name,
    read_gpus,
)
from gpudeck.fleet.host import HostState
from gpudeck.fleet.state import FleetState
from gpudeck.fleet.visibility import EVERYTHING, Visibility
from gpudeck.model.catalog import Value
from gpudeck.model.report import GpuReading, Process
from gpudeck.model.text import clean
from gpudeck.model.view import Gpu, Host, ShownProcess
from gpudeck.views.table import fit, width_of

_TEXT_FORMATS: Final = {"DMY": "%d/%m/%Y %H:%M:%S", "MDY": "%m/%d/%Y %H:%M:%S", "YMD": "%Y/%m/%d %H:%M:%S"}


class VestaHost(Struct, frozen=True):
    """One host as readers see it. `state` is None for one that has registered and not reported since the start,
    `registered` for one whose sender is none of vesta's."""

    name: str
    state: HostState | None
    registered: Registered | None
    is_down: bool

    @property
    def is_of_vesta(self) -> bool:
        return self.registered is not None and (self.state is None or self.state.via == "vesta")

    @property
    def has_reported(self) -> bool:
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
        """When it last reported, also before the hub's start; None where it never did."""
        reported = None if self.state is None else self.state.last_report_at
        posted = None if self.registered is None else self.registered.last_at
        return max((at for at in (reported, posted) if at), default=None)

    @property
    def status(self) -> Literal["running", "down"]:
        return "down" if self.is_down else "running"


class VestaStates:
    """One event loop owns it."""

    def __init__(self, fleet: FleetState, register: VestaRegister, settings: VestaSettings) -> None:
        self._fleet = fleet
        self._register = register
        self._settings = settings

    def hosts(self, now: float) -> list[VestaHost]:
        """All hosts, in the order that the settings say."""
        shown = {one.name: one for one in self._all(now)}
        if self._settings.sort_by == "ip":
            return sorted(shown.values(), key=lambda one: (_address_order(one.address), one.name))
        return sorted(shown.values(), key=lambda one: one.name)

    def find(self, name: str, now: float) -> VestaHost | None:
        """By the name that it has here, or by its own."""
        shown = self.hosts(now)
        own = (one for one in shown if one.state is not None and one.state.name == name)
        return next((one for one in shown if one.name == name), None) or next(own, None)

    def encoded(self, now: float, visibility: Visibility = EVERYTHING) -> bytes:
        return json.dumps({one.name: self.summarize(one, visibility) for one in self.hosts(now)}).encode()

    def summarize(self, one: VestaHost, visibility: Visibility) -> Json:
        """A host among all others: one that is down lists no GPUs there."""
        if one.is_down or one.state is None:
            return _frame(one, [self.entry({}, one.last_at)])
        return _frame(one, [self.newest(one, visibility)])

    def describe(self, one: VestaHost, visibility: Visibility, past: list[Json] | None = None) -> Json:
        """A host by itself, also with its data from before it was down. `past` is what stands before the newest."""
        has_newest = one.has_reported or (one.state is not None and not past)
        return _frame(one, [*(past or ()), *([self.newest(one, visibility)] if has_newest else [])])

    def newest(self, one: VestaHost, visibility: Visibility) -> Json:
        assert one.state is not None  # noqa: S101 - callers have looked
        host = visibility.host(one.state.cached_view())
        # In the sender's own words; not of a host that another source reports.
        posted = one.registered.posted if one.registered is not None and one.is_of_vesta else {}
        return self.entry(gpu_data(host, posted), host.last_report_at)

    def entry(self, gpus: Json, at: float | None) -> Json:
        """`timestamp` is what the README of vesta promises, `timestamp_text` what its server sent there. Local time."""
        if at is None:
            return {"gpu_data": gpus, "timestamp": None, "timestamp_text": ""}
        return {"gpu_data": gpus, "timestamp": int(_format(at, "%Y%m%d%H%M%S")), "timestamp_text": self.write_time(at)}

    def write_last(self, one: VestaHost) -> str:
        return "no entry received." if one.last_at is None else self.write_time(one.last_at)

    def write_time(self, at: float) -> str:
        return _format(at, _TEXT_FORMATS[self._settings.timestamp_format])

    def _all(self, now: float) -> Iterator[VestaHost]:
        """Of two with one name, the one that is up comes last, and so counts."""
        named = {host.name: host for host in self._fleet.hosts.values()}
        own = [self._show_registered(one, named.get(one.host), now) for one in self._register]
        taken = {one.registered.host for one in own if one.registered is not None and one.state is not None}
        others = (self._show_other(host) for name, host in named.items() if name not in taken)
        yield from sorted((*own, *others), key=lambda one: not one.is_down)

    def _show_registered(self, one: Registered, state: HostState | None, now: float) -> VestaHost:
        if state is not None and state.via != "vesta":
            return VestaHost(one.name, state, one, state.status in {"down", "never_seen"})
        limit = one.silence_limit(self._settings.down_after)
        is_down = one.posted_at is None or now - one.posted_at > limit
        return VestaHost(one.name, state, one, is_down)

    def _show_other(self, host: HostState) -> VestaHost:
        name = make_name(host.name, lambda _: False) or host.name
        return VestaHost(name, host, None, host.status in {"down", "never_seen"})


def gpu_data(host: Host, posted: dict[str, PostedFields]) -> Json:
    read_at = _format(host.last_report_at or 0.0, "%Y/%m/%d %H:%M:%S", milliseconds=True)
    return {
        f"gpu:{gpu.label}": _describe_gpu(gpu, partial(getattr, gpu), posted.get(gpu.uuid), EVERYTHING, read_at)
        for gpu in host.gpus
    }


def describe_post(post: VestaPost, visibility: Visibility) -> Json:
    return {
        f"gpu:{gpu.index}": _describe_gpu(gpu, gpu.metrics.get, post.posted[gpu.uuid], visibility)
        for gpu in post.report.gpus or ()
    }


def describe_posts(past: list[Moment], host: str, visibility: Visibility) -> list[Moment]:
    return [(at, describe_post(read_gpus(gpus, host), visibility)) for at, gpus in past]


def _describe_gpu(
    gpu: Gpu | GpuReading,
    read: Callable[[str], Value],
    posted: PostedFields | None,
    visibility: Visibility,
    read_at: str = "",
) -> Json:
    used, total = mebibytes(read("memory_used_bytes")), mebibytes(read("memory_total_bytes"))
    available = None if posted is None else posted.available_memory
    if available is None and used is not None and total is not None:
        available = total - used
    return {
        "device_num": gpu.index,
        "uuid": gpu.uuid,
        "gpu_name": gpu.name,
        "temperature": round_known(read("temperature_celsius")),
        "total_memory": total,
        "available_memory": available,
        "used_memory": used,
        "timestamp": (posted.timestamp if posted is not None else "") or read_at,
        "gpu_volatile": round_known(read("utilization_percent")),
        "processes": None
        if gpu.processes is None
        else [_describe_process(one, posted, visibility) for one in gpu.processes],
    }


def _describe_process(process: Process | ShownProcess, posted: PostedFields | None, visibility: Visibility) -> Json:
    name = process.command if posted is not None else name_program(process.command)
    return {
        "pid": str(process.pid),
        "name": name if visibility.shows_commands_of(process.user) else None,
        "user": process.user,
        "used_memory": mebibytes(process.memory_used_bytes),
    }


def name_program(command: str | None) -> str | None:
    """What nvidia-smi calls a process: the program without its arguments."""
    return None if command is None else command.partition(" ")[0]


def _frame(one: VestaHost, data: list[Json]) -> Json:
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


_MEMORY, _VOLATILE, _TEMPERATURE = 17, 8, 7
_MIN_NAME_LENGTH: Final = 8
_BORDERS: Final = 6
_TITLE: Final = f"gpudeck {__version__}"
_UNKNOWN: Final = "-"


def draw_table(hosts: Sequence[VestaHost], states: VestaStates, width: int = 80) -> str:
    free = width - _BORDERS - _MEMORY - _VOLATILE - _TEMPERATURE
    host = (free * 18) // 42
    widths = (host, free - host, _MEMORY, _VOLATILE, _TEMPERATURE)
    rule = f"+{'+'.join('-' * one for one in widths)}+"
    lines = [f"+{'-' * (width - 2)}+", f"| {fit(_TITLE, width - 13)}gpu info. |"]
    lines += [rule, _row((" host", " gpu", " memory usage", " volat.", " temp."), widths), rule]
    for one in hosts:
        gpus = [] if one.state is None or one.is_down else one.state.cached_view().gpus
        for number, gpu in enumerate(gpus):
            lines.append(_row((clean(one.name) if number == 0 else "", *_cells(gpu)), widths))
        lines += [] if gpus else _draw_without_gpus(one, states, width)
        lines.append(rule)
    return "\n".join(lines) + "\n"


def _draw_without_gpus(one: VestaHost, states: VestaStates, width: int) -> list[str]:
    """A host that is down, or has none: over all columns, with its address and when it last reported."""
    end = f" ({clean(one.address) or _UNKNOWN}) last update: {states.write_last(one):<20}"
    name = fit(clean(one.name), max(_MIN_NAME_LENGTH, width - 5 - width_of(end)))
    return [f"|{fit(text, width - 2)}|" for text in (f" status: {_show_status(one)}", f"   {name}{end}")]


def _show_status(one: VestaHost) -> str:
    return one.status if one.is_down else "no GPU"


def _cells(gpu: Gpu) -> tuple[str, ...]:
    used, total = mebibytes(gpu.memory_used_bytes), mebibytes(gpu.memory_total_bytes)
    return (
        f"{gpu.label:>2}:{clean(gpu.name)}",
        f"{_show(used):>7} /{_show(total):>7} ",
        f"{_show(gpu.utilization_percent):>6} %",
        f"{_show(gpu.temperature_celsius):>4} °C",
    )


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return f"|{'|'.join(map(fit, cells, widths))}|"


def draw_boxes(hosts: Sequence[VestaHost], states: VestaStates, visibility: Visibility, width: int = 80) -> str:
    lines = [_TITLE]
    for one in hosts:
        lines += ["", *_draw_host(one, states, visibility, width)]
    return "\n".join(lines) + "\n"


def _draw_host(one: VestaHost, states: VestaStates, visibility: Visibility, width: int) -> list[str]:
    head = f"#### {clean(one.name)} :: {one.address or _UNKNOWN} "
    lines = [
        fit(head, width - 1) + "#" if width_of(head) >= width else head + "#" * (width - width_of(head)),
        fit(f"  last update: {states.write_last(one)}", width),
        "-" * width,
    ]
    gpus = [] if one.state is None or one.is_down else visibility.host(one.state.cached_view()).gpus
    if not gpus:
        texts = ("", f"  status: {_show_status(one)}", "")
        boxed = (f"  │{fit(text, width - 6)}│" for text in texts)
        return [*lines, f"  ┌{'─' * (width - 6)}┐", *boxed, f"  └{'─' * (width - 6)}┘", "_" * width]
    data = states.newest(one, visibility)["gpu_data"]
    for gpu in gpus:
        lines += [*_draw_box(gpu, data[f"gpu:{gpu.label}"], width), ""]
    return [*lines, "_" * width]


def _draw_box(gpu: Gpu, shown: Json, width: int) -> list[str]:
    inner = width - 6
    used, total = mebibytes(gpu.memory_used_bytes), mebibytes(gpu.memory_total_bytes)
    numbers = (
        f" {_show(used):>5} / {_show(total):>5}MiB          {_show(shown['available_memory']):>5}MiB"
        f"          {_show(gpu.utilization_percent):>3}%        {_show(gpu.temperature_celsius):>3}°C"
    )
    texts = [
        "      memory used  memory available  gpu volatile  temperature",
        numbers,
        "",
        _draw_bar(used, total, inner),
    ]
    title = f"[ gpu:{gpu.label} {clean(gpu.name)} {clean(shown['timestamp'])} ]"
    title = title if width_of(title) <= inner else fit(title, inner).rstrip()
    return [
        f"  ┌{title}{'─' * (inner - width_of(title))}┐",
        *(f"  │{fit(text, inner)}│" for text in (*texts, *_draw_processes(gpu, shown, inner))),
        f"  └{'─' * inner}┘",
    ]


def _draw_bar(used: int | None, total: int | None, inner: int) -> str:
    room = inner - 13
    if used is None or not total:
        return f" mem [{_UNKNOWN.ljust(room)}]{_UNKNOWN:>4}% "
    share = min(1.0, max(0.0, used / total))
    return f" mem [{('/' * int(share * room)).ljust(room)}]{int(share * 100):>4}% "


def _draw_processes(gpu: Gpu, shown: Json, inner: int) -> list[str]:
    processes = shown["processes"]
    if processes is None:
        return [f"  {clean(gpu.reasons.get('processes', 'who is on it is not known'))}"]
    room = inner - 49
    lines = []
    for number, process in enumerate(processes, 1):
        branch = "└" if number == len(processes) else "├"
        name = fit(_keep_end(clean(process["name"] or _UNKNOWN), room), room)
        memory = f"{_show(process['used_memory'])}MiB"
        user = clean(process["user"] or _UNKNOWN)
        lines.append(f"  {branch}── {name} {memory:>8} {user}")
    return lines


def _keep_end(text: str, width: int) -> str:
    """The text, cut at its front to at most so many columns: paths of programs differ at their ends."""
    if width_of(text) <= width:
        return text
    text = text[-width:]
    while width_of(text) >= width:
        text = text[1:]
    return f"…{text}"


def _show(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.0f}"
