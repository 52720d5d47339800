"""`/?term=true`: the table, and with `detail=true` the boxes; `/gpu_table`: as vesta's terminals know them.

Borders stay aligned whatever the hosts, models and programs are called; what is unknown is a dash.
"""

from collections.abc import Sequence
from typing import Final

from gpudeck import __version__
from gpudeck.compat.readings import mebibytes
from gpudeck.compat.vesta.states import VestaHost, VestaStates
from gpudeck.compat.vesta.store import Json
from gpudeck.fleet.visibility import Visibility
from gpudeck.model.text import clean
from gpudeck.model.view import Gpu
from gpudeck.views.table import fit, width_of

_MEMORY, _VOLATILE, _TEMPERATURE = 17, 8, 7
_WIDE_MEMORY: Final = 19
_SHORTEST_NAME: Final = 8
_BORDERS: Final = 6
_TITLE: Final = f"gpudeck {__version__}"
_UNKNOWN: Final = "-"


def draw_table(hosts: Sequence[VestaHost], states: VestaStates, width: int = 80) -> str:
    """`/?term=true`: one row a GPU."""
    free = width - _BORDERS - _MEMORY - _VOLATILE - _TEMPERATURE
    host = (free * 18) // 42
    widths = (host, free - host, _MEMORY, _VOLATILE, _TEMPERATURE)
    return _draw(hosts, states, "gpu info.", (" host", " gpu", " memory usage", " volat.", " temp."), widths)


def draw_memory(hosts: Sequence[VestaHost], states: VestaStates, width: int = 80) -> str:
    """`/gpu_table`: one row a GPU, with its memory alone."""
    free = width - 4 - _WIDE_MEMORY
    host = (free * 30) // 57
    widths = (host, free - host, _WIDE_MEMORY)
    return _draw(hosts, states, "gpu table", (" host name", " gpu name", " memory usage (MiB)"), widths)


def _draw(
    hosts: Sequence[VestaHost], states: VestaStates, title: str, heads: Sequence[str], widths: Sequence[int]
) -> str:
    rule = f"+{'+'.join('-' * one for one in widths)}+"
    width = len(rule)
    lines = [f"+{'-' * (width - 2)}+", f"| {fit(_TITLE, width - 4 - len(title))}{title} |"]
    lines += [rule, _row(heads, widths), rule]
    for one in hosts:
        gpus = [] if one.state is None or one.is_down else one.state.kept_view().gpus
        for number, gpu in enumerate(gpus):
            lines.append(_row((clean(one.name) if number == 0 else "", *_cells(gpu, len(widths) == 3)), widths))
        lines += [] if gpus else _draw_without_gpus(one, states, width)
        lines.append(rule)
    return "\n".join(lines) + "\n"


def _draw_without_gpus(one: VestaHost, states: VestaStates, width: int) -> list[str]:
    """A host that is down, or has none: over all columns, with its address and when it last reported."""
    end = f" ({clean(one.address) or _UNKNOWN}) last update: {states.write_last(one):<20}"
    name = fit(clean(one.name), max(_SHORTEST_NAME, width - 5 - width_of(end)))
    return [f"|{fit(text, width - 2)}|" for text in (f" status: {_show_status(one)}", f"   {name}{end}")]


def _show_status(one: VestaHost) -> str:
    return one.status if one.is_down else "no GPU"


def _cells(gpu: Gpu, has_memory_alone: bool) -> tuple[str, ...]:
    used, total = mebibytes(gpu.memory_used_bytes), mebibytes(gpu.memory_total_bytes)
    name = f"{gpu.label:>2}:{clean(gpu.name)}"
    if has_memory_alone:
        return name, f" {_show(used):>7} / {_show(total):>7} "
    return (
        name,
        f"{_show(used):>7} /{_show(total):>7} ",
        f"{_show(gpu.utilization_percent):>6} %",
        f"{_show(gpu.temperature_celsius):>4} °C",
    )


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return f"|{'|'.join(map(fit, cells, widths))}|"


def draw_boxes(hosts: Sequence[VestaHost], states: VestaStates, visibility: Visibility, width: int = 80) -> str:
    """One box a GPU, with its processes."""
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
    gpus = [] if one.state is None or one.is_down else visibility.host(one.state.kept_view()).gpus
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
