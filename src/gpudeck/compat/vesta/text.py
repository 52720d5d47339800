"""`/?term=true`: the table, and with `detail=true` the boxes, as vesta's terminals know them.

Borders stay aligned whatever the hosts, models and programs are called; what is unknown is a dash.
"""

from collections.abc import Sequence
from typing import Final

from gpudeck import __version__
from gpudeck.compat.vesta.states import Shown, States, mebibytes
from gpudeck.hub.metrics import View
from gpudeck.hub.sight import Sight
from gpudeck.views.safe import clean
from gpudeck.views.table import fit, width_of

_MEMORY, _VOLATILE, _TEMPERATURE = 17, 8, 7
_BORDERS: Final = 6
_TITLE: Final = f"gpudeck {__version__}"
_UNKNOWN: Final = "-"


def draw_table(states: Sequence[Shown], width: int = 80) -> str:
    """One row a GPU."""
    free = width - _BORDERS - _MEMORY - _VOLATILE - _TEMPERATURE
    host = (free * 18) // 42
    widths = (host, free - host, _MEMORY, _VOLATILE, _TEMPERATURE)
    rule = f"+{'+'.join('-' * one for one in widths)}+"
    lines = [
        f"+{'-' * (width - 2)}+",
        f"| {fit(_TITLE, width - 13)}gpu info. |",
        rule,
        _row((" host", " gpu", " memory usage", " volat.", " temp."), widths),
        rule,
    ]
    for one in states:
        lines += [_row(cells, widths) for cells in _rows_of(one)]
        lines.append(rule)
    return "\n".join(lines) + "\n"


def _rows_of(one: Shown) -> list[tuple[str, str, str, str, str]]:
    gpus = [] if one.state is None or one.is_down else one.state.view["gpus"]
    if not gpus:
        return [(clean(one.name), f" {'down' if one.is_down else 'no GPU'}", "", "", "")]
    return [(clean(one.name) if number == 0 else "", *_cells(gpu)) for number, gpu in enumerate(gpus)]


def _cells(gpu: View) -> tuple[str, str, str, str]:
    used, total = (mebibytes(gpu[name]) for name in ("memory_used_bytes", "memory_total_bytes"))
    return (
        f" {gpu['label']}:{clean(gpu['name'])}",
        f"{_show(used):>7} /{_show(total):>7} ",
        f"{_show(gpu['utilization_percent']):>6} %",
        f"{_show(gpu['temperature_celsius']):>4} °C",
    )


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return f"|{'|'.join(map(fit, cells, widths))}|"


def draw_boxes(hosts: Sequence[Shown], states: States, sight: Sight, width: int = 80) -> str:
    """One box a GPU, with who is on it."""
    lines = [_TITLE, ""]
    for one in hosts:
        lines += _draw_host(one, states, sight, width)
    return "\n".join(lines) + "\n"


def _draw_host(one: Shown, states: States, sight: Sight, width: int) -> list[str]:
    head = f"#### {clean(one.name)} :: {one.address or _UNKNOWN} "
    at = None if one.state is None else one.state.view["last_report_at"]
    told = "never" if at is None else states.write_time(at)
    lines = [
        fit(head, width - 1) + "#" if width_of(head) >= width else head + "#" * (width - width_of(head)),
        fit(f"  last update: {told}{' (down)' if one.is_down else ''}", width),
        "-" * width,
    ]
    if one.state is not None and not one.is_down:
        view = sight.host(one.state.view)
        data = states.newest(one, sight)["gpu_data"]
        for gpu in view["gpus"]:
            lines += [*_draw_box(gpu, data[f"gpu:{gpu['label']}"]["timestamp"], width), ""]
    return [*lines, "_" * width]


def _draw_box(gpu: View, stamp: str, width: int) -> list[str]:
    inner = width - 6
    used, total = (mebibytes(gpu[name]) for name in ("memory_used_bytes", "memory_total_bytes"))
    free = None if used is None or total is None else total - used
    numbers = (
        f"{_show(used)} / {_show(total)}MiB".rjust(17)
        + f"{_show(free)}MiB".rjust(18)
        + f"{_show(gpu['utilization_percent'])}%".rjust(14)
        + f"{_show(gpu['temperature_celsius'])}°C".rjust(13)
    )
    texts = [
        "      memory used  memory available  gpu volatile  temperature",
        numbers,
        "",
        _draw_bar(used, total, inner),
    ]
    title = fit_within(f"[ gpu:{gpu['label']} {clean(gpu['name'])} {clean(stamp)} ]", inner)
    return [
        f"  ┌{title}{'─' * (inner - width_of(title))}┐",
        *(f"  │{fit(text, inner)}│" for text in (*texts, *_draw_processes(gpu, inner))),
        f"  └{'─' * inner}┘",
    ]


def _draw_bar(used: int | None, total: int | None, inner: int) -> str:
    room = inner - 13
    if used is None or not total:
        return f" mem [{_UNKNOWN.ljust(room)}]{_UNKNOWN:>4}% "
    share = min(1.0, max(0.0, used / total))
    return f" mem [{('/' * int(share * room)).ljust(room)}]{int(share * 100):>4}% "


def _draw_processes(gpu: View, inner: int) -> list[str]:
    processes = gpu["processes"]
    if processes is None:
        return [f"  {clean(gpu['reasons'].get('processes', 'who is on it is not known'))}"]
    room = inner - 50
    lines = []
    for number, process in enumerate(processes, 1):
        branch = "└" if number == len(processes) else "├"
        name = fit_within(clean(process["command"] or _UNKNOWN), room - 1)
        memory = f"{_show(mebibytes(process['memory_used_bytes']))}MiB"
        user = clean(process["user"] or _UNKNOWN)
        lines.append(f"  {branch}── {fit(name, room)}{memory:>10} {user}")
    return lines


def fit_within(text: str, width: int) -> str:
    """The text, cut to at most so many columns."""
    return text if width_of(text) <= width else fit(text, width).rstrip()


def _show(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.0f}"
