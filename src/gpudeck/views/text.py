"""The fleet as a table for people with a terminal. What is unknown is a dash, never a zero.

Takes the fleet as the API's JSON has it (see model.view.Fleet), whether it comes from the hub's memory or over HTTP.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gpudeck.model.quantity import show_gib, show_span
from gpudeck.views.table import Cell, Column, clean, paint, render

Json = Mapping[str, Any]

SYMBOLS = {"free": "●", "busy": "■", "held": "◐", "booked": "◆", "unknown": "?"}
COLOURS = {"free": "green", "busy": "red", "held": "yellow", "booked": "blue", "unknown": "grey"}

_COLUMNS = (
    Column("HOST", keep=100, widest=32),
    Column("GPU", keep=99, align="right", widest=8),
    Column("MODEL", keep=60, widest=24),
    Column("STATE", keep=98, widest=9),
    Column("UTIL", keep=90, align="right", widest=6),
    Column("MEMORY GiB", keep=80, align="right", widest=15),
    Column("TEMP", keep=40, align="right", widest=6),
    Column("POWER", keep=30, align="right", widest=7),
    Column("USERS", keep=95, widest=32),
    Column("SINCE", keep=50, align="right", widest=8),
    Column("NOTE", keep=20, widest=60),
)
_PREFIXES = ("NVIDIA GeForce ", "NVIDIA ", "AMD Instinct ", "AMD Radeon ", "AMD ", "Intel(R) ", "Intel ", "Tesla ")


def render_fleet(
    fleet: Json, *, hosts: Sequence[str] = (), detail: bool = False, width: int | None = None, colour: bool = False
) -> str:
    """The fleet as text, ending in a newline. `hosts` limits it to hosts of these names; `detail` adds processes."""
    wanted = [host for host in fleet["hosts"] if not hosts or host["name"] in hosts or host["id"] in hosts]
    lines = [_headline(fleet, colour)]
    rows = [row for host in wanted for row in _rows(host, fleet["time"])]
    if rows:
        lines += ["", *render(_COLUMNS, rows, width, colour)]
    else:
        lines += ["", "No host has reported yet. On a GPU server: gpudeck agent --hub URL --token-file FILE"]
    if detail:
        lines += [line for host in wanted for line in _detail(host, fleet["time"], width, colour)]
    return "\n".join(lines) + "\n"


def short_model(name: str) -> str:
    """A model's name without its maker: people know an H200 when they see one."""
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def _headline(fleet: Json, colour: bool) -> str:
    totals = fleet["totals"]
    states = "  ".join(
        paint(f"{symbol} {totals[word]} {word}", COLOURS[word], colour) for word, symbol in SYMBOLS.items()
    )
    demo = paint("DEMO DATA, simulated  ", "reverse", colour) if fleet["demo"] else ""
    return f"{demo}{totals['hosts_up']} of {totals['hosts']} hosts up, {totals['gpus']} GPUs:  {states}"


def _rows(host: Json, now: float) -> list[list[Cell]]:
    name: Cell = (clean(host["display_name"]), "grey" if host["status"] != "up" else "")
    note = _host_note(host, now)
    if not host["gpus"]:
        reason = host["reasons"].get("gpus", "no GPUs")
        return [[name, *([("–", "grey")] * 9), (clean(note or reason), "grey")]]
    return [[name, *_cells(gpu, note, now)] for gpu in host["gpus"]]


def _cells(gpu: Json, note: str, now: float) -> list[Cell]:
    state = gpu["availability"]
    dim = "grey" if state == "unknown" else ""
    reason = gpu["availability_reason"] if state in {"held", "unknown"} else None
    note = note or gpu["health_reason"] or reason or ""
    used, total = gpu["memory_used_bytes"], gpu["memory_total_bytes"]
    return [
        (gpu["label"], dim),
        (clean(short_model(gpu["name"])), dim),
        (f"{SYMBOLS[state]} {state}", COLOURS[state]),
        (_number(gpu["utilization_percent"], "%"), dim),
        (f"{show_gib(used)}/{show_gib(total, 0)}", dim),
        (_number(gpu["temperature_celsius"], "°C"), dim),
        (_number(gpu["power_watts"], " W"), dim),
        (clean(", ".join(gpu["users"])) or "–", dim),
        (show_span(now - gpu["since"]), dim),
        (clean(note), dim or "yellow"),
    ]


def _number(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{value:.0f}{unit}"


def _host_note(host: Json, now: float) -> str:
    if host["status"] in {"up", "never"}:
        return ""
    return f"{host['status']}: last report {show_span(now - host['last_report_at'])} ago, values are from then"


_PROCESS_COLUMNS = (
    Column("  GPU", keep=99, align="right", widest=8),
    Column("PID", keep=98, align="right", widest=10),
    Column("USER", keep=97, widest=24),
    Column("MEMORY GiB", keep=90, align="right", widest=10),
    Column("UTIL", keep=80, align="right", widest=6),
    Column("FOR", keep=70, align="right", widest=8),
    Column("WHERE", keep=50, widest=28),
    Column("COMMAND", keep=60, widest=160),
)


def _detail(host: Json, now: float, width: int | None, colour: bool) -> list[str]:
    rows = [
        [(f"  {gpu['label']}", ""), *_process_cells(process, now)]
        for gpu in host["gpus"]
        for process in gpu["processes"] or ()
    ]
    if not rows:
        return []
    return ["", paint(clean(host["display_name"]), "bold", colour), *render(_PROCESS_COLUMNS, rows, width, colour)]


def _process_cells(process: Json, now: float) -> list[Cell]:
    started = process.get("started_at")
    where = [part for part in (process.get("container"), process.get("job")) if part]
    return [
        (str(process["pid"]), ""),
        (clean(process.get("user") or "–"), ""),
        (show_gib(process.get("memory_used_bytes")), ""),
        (_number(process.get("utilization_percent"), "%"), ""),
        (show_span(None if started is None else now - started), ""),
        (clean(", ".join(where)) or "–", ""),
        (clean(process.get("command") or "–"), "grey"),
    ]
