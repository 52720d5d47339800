"""The fleet as vesta's readers know it: `{host: {"data": [{"gpu_data": …, "timestamp": …}], "ip_address", "status"}}`,
and drawn for terminals."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, Final

from msgspec import Struct

from gpudeck import __version__
from gpudeck.compat.readings import mebibytes, round_known
from gpudeck.compat.settings import VestaSettings
from gpudeck.compat.vesta.store import Json, Moment, PostedFields, RegisteredSender, VestaPost, VestaRegister, make_name
from gpudeck.fleet.host import HostState
from gpudeck.fleet.state import FleetState
from gpudeck.fleet.visibility import EVERYTHING, Visibility
from gpudeck.model.catalog import Value
from gpudeck.model.report import GpuReading
from gpudeck.model.text import clean
from gpudeck.model.view import Gpu
from gpudeck.views.table import fit, width_of

_TEXT_FORMATS: Final = {"DMY": "%d/%m/%Y %H:%M:%S", "MDY": "%m/%d/%Y %H:%M:%S", "YMD": "%Y/%m/%d %H:%M:%S"}


class VestaHost(Struct, frozen=True):
    """One host as readers see it. `state` is None if it has registered, but not reported since the start,
    `registered` for one without a sender of vesta. `last_at` is when it last reported, also before the hub's
    start. `has_reported`: the fleet has a report of it since the start."""

    name: str
    state: HostState | None
    registered: RegisteredSender | None
    is_of_vesta: bool
    is_down: bool
    has_reported: bool
    last_at: float | None
    address: str


class VestaStates:
    """The hosts of the fleet and of the register, in vesta's form. One event loop owns it."""

    def __init__(self, fleet: FleetState, register: VestaRegister, settings: VestaSettings) -> None:
        self._fleet = fleet
        self._register = register
        self._settings = settings

    def hosts(self, now: float) -> list[VestaHost]:
        """All hosts, in the order that the settings say."""
        by_name = {host.name: host for host in self._all(now)}
        is_by_address = self._settings.sort_by == "ip"
        return sorted(
            by_name.values(), key=lambda host: (_address_order(host.address) if is_by_address else (), host.name)
        )

    def find(self, name: str, now: float) -> VestaHost | None:
        """By the name that it has here, or by its own."""
        hosts = self.hosts(now)
        named = [host for host in hosts if host.name == name]
        return next(iter(named or (host for host in hosts if host.state is not None and host.state.name == name)), None)

    def _all(self, now: float) -> Iterator[VestaHost]:
        """Of two hosts with one name the one that is up comes last, and is used."""
        states = {host.name: host for host in self._fleet.hosts.values()}
        hosts = [self._make(each.name, states.get(each.host), each, now) for each in self._register]
        taken = {host.state.name for host in hosts if host.state is not None}
        for name, state in states.items():
            if name not in taken:
                hosts.append(self._make(make_name(name, lambda _: False) or name, state, None, now))
        yield from sorted(hosts, key=lambda host: not host.is_down)

    def _make(self, name: str, state: HostState | None, registered: RegisteredSender | None, now: float) -> VestaHost:
        is_of_vesta = registered is not None and (state is None or state.via == "vesta")
        is_down = state is None or state.status in {"down", "never_seen"}
        posted_at = None if registered is None else registered.posted_at
        if registered is not None and is_of_vesta:
            limit = registered.silence_limit(self._settings.down_after)
            is_down = posted_at is None or now - posted_at > limit
        times = (state and state.last_report_at, registered and registered.last_at)
        addresses = [registered.address if registered else "", *(state.facts.addresses if state else ())]
        return VestaHost(
            name=name,
            state=state,
            registered=registered,
            is_of_vesta=is_of_vesta,
            is_down=is_down,
            has_reported=state is not None and not (is_of_vesta and posted_at is None),
            last_at=max((at for at in times if at), default=None),
            address=next(filter(None, addresses), ""),
        )

    def summarize(self, host: VestaHost, visibility: Visibility) -> Json:
        """A host among all others: one that is down lists no GPUs there."""
        if host.is_down or host.state is None:
            return self._frame(host, [(host.last_at, {})])
        return self.describe(host, visibility)

    def describe(self, host: VestaHost, visibility: Visibility, past: Sequence[Moment] = ()) -> Json:
        """A host by itself, also with its data from before it was down; `past` goes before the newest."""
        moments: list[tuple[float | None, Json]] = [*past]
        if host.state is not None and (host.has_reported or not past):
            moments.append((host.state.last_report_at, self.newest(host, visibility)))
        return self._frame(host, moments)

    def newest(self, host: VestaHost, visibility: Visibility) -> Json:
        """Its GPUs as last reported; none without a report."""
        if host.state is None:
            return {}
        view = visibility.host(host.state.cached_view())
        # As the sender wrote it, unless another source reports the host.
        posted = host.registered.posted if host.registered is not None and host.is_of_vesta else {}
        read_at = _format(view.last_report_at or 0.0, "%Y/%m/%d %H:%M:%S", milliseconds=True)
        return {
            f"gpu:{gpu.label}": _describe_gpu(gpu, partial(getattr, gpu), posted.get(gpu.uuid), read_at)
            for gpu in view.gpus
        }

    def _frame(self, host: VestaHost, moments: Sequence[tuple[float | None, Json]]) -> Json:
        """`timestamp` is what the README of vesta promises, `timestamp_text` what its server sent there. Local time."""
        data = [
            {
                "gpu_data": gpus,
                "timestamp": None if at is None else int(_format(at, "%Y%m%d%H%M%S")),
                "timestamp_text": "" if at is None else self._write_time(at),
            }
            for at, gpus in moments
        ]
        return {"data": data, "ip_address": host.address, "status": "down" if host.is_down else "running"}

    def write_last(self, host: VestaHost) -> str:
        return "no entry received." if host.last_at is None else self._write_time(host.last_at)

    def _write_time(self, at: float) -> str:
        return _format(at, _TEXT_FORMATS[self._settings.timestamp_format])


def describe_post(post: VestaPost) -> Json:
    return {
        f"gpu:{gpu.index}": _describe_gpu(gpu, gpu.metrics.get, post.posted[gpu.uuid]) for gpu in post.report.gpus or ()
    }


def hide_commands(gpus: Json, visibility: Visibility) -> Json:
    """The GPUs of a stored sample, without commands that must be hidden."""
    for gpu in gpus.values():
        for process in gpu["processes"] or ():
            process["name"] = process["name"] if visibility.shows_commands_of(process["user"]) else None
    return gpus


def _describe_gpu(
    gpu: Gpu | GpuReading, read: Callable[[str], Value], posted: PostedFields | None, read_at: str = ""
) -> Json:
    used, total = mebibytes(read("memory_used_bytes")), mebibytes(read("memory_total_bytes"))
    available = None if posted is None else posted.available_memory
    if available is None and used is not None and total is not None:
        available = total - used
    processes: list[Json] | None = None
    if gpu.processes is not None:
        processes = [
            {
                "pid": str(process.pid),
                "name": process.command if posted is not None else _name_program(process.command),
                "user": process.user,
                "used_memory": mebibytes(process.memory_used_bytes),
            }
            for process in gpu.processes
        ]
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
        "processes": processes,
    }


def _name_program(command: str | None) -> str | None:
    """The program without its arguments, as nvidia-smi names a process."""
    return None if command is None else command.partition(" ")[0]


def _format(at: float, pattern: str, *, milliseconds: bool = False) -> str:
    text = time.strftime(pattern, time.localtime(at))
    return f"{text}.{int(at * 1000) % 1000:03d}" if milliseconds else text


@lru_cache(4096)
def _address_order(address: str) -> tuple[bool, tuple[int, ...], str]:
    """10.0.0.9 before 10.0.0.10; a host without an address comes last."""
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
    host_width = (free * 18) // 42
    widths = (host_width, free - host_width, _MEMORY, _VOLATILE, _TEMPERATURE)
    rule = f"+{'+'.join('-' * column for column in widths)}+"
    lines = [f"+{'-' * (width - 2)}+", f"| {fit(_TITLE, width - 13)}gpu info. |"]
    lines += [rule, _row((" host", " gpu", " memory usage", " volat.", " temp."), widths), rule]
    for host in hosts:
        gpus = {} if host.is_down else states.newest(host, EVERYTHING)
        name = clean(host.name)
        for label, gpu in gpus.items():
            cells = (
                name,
                f"{label.removeprefix('gpu:'):>2}:{clean(gpu['gpu_name'])}",
                f"{_show(gpu['used_memory']):>7} /{_show(gpu['total_memory']):>7} ",
                f"{_show(gpu['gpu_volatile']):>6} %",
                f"{_show(gpu['temperature']):>4} °C",
            )
            lines.append(_row(cells, widths))
            name = ""
        if not gpus:
            # Over all columns, with its address and its last report.
            end = f" ({clean(host.address) or _UNKNOWN}) last update: {states.write_last(host):<20}"
            name = fit(name, max(_MIN_NAME_LENGTH, width - 5 - width_of(end)))
            texts = (f" status: {_show_status(host)}", f"   {name}{end}")
            lines += [f"|{fit(text, width - 2)}|" for text in texts]
        lines.append(rule)
    return "\n".join(lines) + "\n"


def _show_status(host: VestaHost) -> str:
    return "down" if host.is_down else "no GPU"


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return f"|{'|'.join(map(fit, cells, widths))}|"


def draw_boxes(hosts: Sequence[VestaHost], states: VestaStates, visibility: Visibility, width: int = 80) -> str:
    lines = [_TITLE]
    for host in hosts:
        head = f"#### {clean(host.name)} :: {host.address or _UNKNOWN} "
        head = fit(head, width - 1) + "#" if width_of(head) >= width else head + "#" * (width - width_of(head))
        lines += ["", head, fit(f"  last update: {states.write_last(host)}", width), "-" * width]
        gpus = {} if host.is_down else states.newest(host, visibility)
        for label, gpu in gpus.items():
            title = f"[ {label} {clean(gpu['gpu_name'])} {clean(gpu['timestamp'])} ]"
            lines += [*_draw_box(title, _describe_box(gpu, width - 6), width - 6), ""]
        lines += [] if gpus else _draw_box("", ["", f"  status: {_show_status(host)}", ""], width - 6)
        lines.append("_" * width)
    return "\n".join(lines) + "\n"


def _draw_box(title: str, texts: Sequence[str], inner: int) -> list[str]:
    title = title if width_of(title) <= inner else fit(title, inner).rstrip()
    boxed = (f"  │{fit(text, inner)}│" for text in texts)
    return [f"  ┌{title}{'─' * (inner - width_of(title))}┐", *boxed, f"  └{'─' * inner}┘"]


def _describe_box(gpu: dict[str, Any], inner: int) -> list[str]:
    used, total, processes = gpu["used_memory"], gpu["total_memory"], gpu["processes"]
    numbers = (
        f" {_show(used):>5} / {_show(total):>5}MiB          {_show(gpu['available_memory']):>5}MiB"
        f"          {_show(gpu['gpu_volatile']):>3}%        {_show(gpu['temperature']):>3}°C"
    )
    lines = ["      memory used  memory available  gpu volatile  temperature", numbers, ""]
    room = inner - 13
    if used is None or not total:
        lines.append(f" mem [{_UNKNOWN.ljust(room)}]{_UNKNOWN:>4}% ")
    else:
        share = min(1.0, max(0.0, used / total))
        lines.append(f" mem [{('/' * int(share * room)).ljust(room)}]{int(share * 100):>4}% ")
    if processes is None:
        return [*lines, "  the processes are unknown"]
    room = inner - 49
    for number, process in enumerate(processes, 1):
        branch = "└" if number == len(processes) else "├"
        name = fit(_keep_end(clean(process["name"] or _UNKNOWN), room), room)
        memory = f"{_show(process['used_memory'])}MiB"
        lines.append(f"  {branch}── {name} {memory:>8} {clean(process['user'] or _UNKNOWN)}")
    return lines


def _keep_end(text: str, width: int) -> str:
    """The text, cut at its front to that width: paths of programs differ at their ends."""
    if width_of(text) <= width:
        return text
    text = text[-width:]
    while width_of(text) >= width:
        text = text[1:]
    return f"…{text}"


def _show(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.0f}"
