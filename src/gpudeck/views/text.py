"""The fleet as a table for people with a terminal. What is unknown is a dash, never a zero.

Takes the fleet as the API's JSON has it (see model.view.Fleet), whether it comes from the hub's memory or over HTTP.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from gpudeck.model.quantity import show_gib, show_span
from gpudeck.views.safe import clean
from gpudeck.views.table import Cell, Column, paint, render, shorten, width_of

Json = Mapping[str, Any]

SYMBOLS = {"free": "●", "busy": "■", "held": "◐", "booked": "◆", "unknown": "?"}
COLOURS = {"free": "green", "busy": "red", "held": "yellow", "booked": "blue", "unknown": "grey"}

_COLUMNS = (
    Column("HOST", keep=100, widest=32),
    Column("GPU", keep=98, align="right", widest=8),
    Column("MODEL", keep=60, widest=24),
    Column("STATE", keep=99, widest=9),
    Column("UTIL", keep=90, align="right", widest=6),
    Column("MEMORY GiB", keep=80, align="right", widest=15),
    Column("TEMP", keep=40, align="right", widest=6),
    Column("POWER", keep=30, align="right", widest=7),
    Column("USERS", keep=95, widest=32),
    Column("SINCE", keep=50, align="right", widest=8),
    Column("NOTE", keep=20, widest=60, least=12),
)
_PROBLEMS_AT_MOST = 20
"""Of hosts, below the table. A site whose switch fails has hundreds of them, and one reason."""
_EMPTY = "No host has reported yet. On a GPU server: gpudeck agent --hub URL --token-file FILE"


def render_fleet(
    fleet: Json, *, hosts: Sequence[str] = (), detail: bool = False, width: int | None = None, colour: bool = False
) -> str:
    """The fleet as text, ending in a newline.

    `hosts` limits it to hosts of these names; `detail` adds processes and the faults of the last day. Problems are not
    cut to the width: many end in a command, which is to be copied.
    """
    fleet = choose_hosts(fleet, hosts)
    wanted = fleet["hosts"]
    lines = [_headline(fleet, width, colour)]
    rows = [row for host in wanted for row in _rows(host, fleet["time"])]
    if rows:
        lines += ["", *render(_COLUMNS, rows, width, colour)]
    else:
        lines += ["", *textwrap.wrap(_EMPTY, width or len(_EMPTY))]
    problems = [*fleet["problems"], *([] if detail else _host_problems(wanted))]
    if problems:
        lines += ["", *(paint(f"! {clean(problem)}", "yellow", colour) for problem in problems)]
    if detail:
        lines += [line for host in wanted for line in _detail(host, fleet["time"], width, colour)]
    return "\n".join(lines) + "\n"


def _host_problems(hosts: Sequence[Json]) -> list[str]:
    told = [name_problem(host["display_name"], problem) for host in hosts for problem in host["problems"]]
    if len(told) <= _PROBLEMS_AT_MOST:
        return told
    kept = told[: _PROBLEMS_AT_MOST - 1]
    return [*kept, f"{len(told) - len(kept)} more problems of hosts: gpudeck hosts list"]


def name_problem(name: str, problem: str) -> str:
    """The problem with the host that has it; many begin with its name by themselves."""
    return problem if problem.startswith(name) else f"{name}: {problem}"


def choose_hosts(fleet: Json, names: Sequence[str]) -> Json:
    """The fleet with the hosts of these names or ids alone, and their totals; all of it when none is named."""
    if not names:
        return fleet
    hosts = [host for host in fleet["hosts"] if host["name"] in names or host["id"] in names]
    return {**fleet, "hosts": hosts, "totals": _totals_of(hosts)}


def _totals_of(hosts: Sequence[Json]) -> Json:
    """As the hub counts (see model.view.Totals): a GPU in an unknown state adds no power and no user."""
    gpus = [gpu for host in hosts for gpu in host["gpus"]]
    known = [gpu for gpu in gpus if gpu["availability"] != "unknown"]
    power = [gpu["power_watts"] for gpu in known if gpu["power_watts"] is not None]
    return {
        "gpus": len(gpus),
        **{word: sum(gpu["availability"] == word for gpu in gpus) for word in SYMBOLS},
        "hosts": len(hosts),
        "hosts_up": sum(host["status"] == "up" for host in hosts),
        "users": len({user for gpu in known for user in gpu["users"]}),
        "power_watts": round(sum(power), 1) if power else None,
    }


def _headline(fleet: Json, width: int | None, colour: bool) -> str:
    """Hosts and states in one line. Where that is too wide it says less: first about hosts, then about empty states."""
    totals = fleet["totals"]
    hosts: Cell = (f"{totals['hosts_up']} of {totals['hosts']} hosts up, {totals['gpus']} GPUs:", "")
    states: list[Cell] = [(f"{symbol} {totals[word]} {word}", COLOURS[word]) for word, symbol in SYMBOLS.items()]
    told = [cell for cell, word in zip(states, SYMBOLS, strict=True) if totals[word] or word == "free"]
    demo: list[Cell] = [("DEMO DATA, simulated", "reverse")] if fleet["demo"] else []
    short_demo: list[Cell] = [("DEMO", "reverse")] if fleet["demo"] else []
    for cells in ([*demo, hosts, *states], [*short_demo, *states], [*short_demo, *told]):
        plain = "  ".join(text for text, _ in cells)
        if width is None or width_of(plain) <= width:
            return "  ".join(paint(text, name, colour) for text, name in cells)
    return shorten(plain, width)


def _rows(host: Json, now: float) -> list[list[Cell]]:
    name: Cell = (clean(host["display_name"]), "grey" if host["status"] != "up" else "")
    note = _host_note(host, now)
    if not host["gpus"]:
        # What keeps a host from reporting says more than that it has not.
        is_awaited = host["status"] == "never" and host["problems"]
        reason = host["problems"][0] if is_awaited else host["reasons"].get("gpus", "no GPUs")
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
        (clean(gpu["display_name"]), dim),
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
    Column("COMMAND", keep=96, widest=160, least=20),
)
_EVENT_COLUMNS = (
    Column("  GPU", keep=99, align="right", widest=8),
    Column("AGO", keep=97, align="right", widest=8),
    Column("XID", keep=98, align="right", widest=10),
    Column("PID", keep=60, align="right", widest=10),
    Column("USER", keep=70, widest=24),
    Column("FAULT", keep=96, widest=160, least=20),
)
_KIND_COLOURS = {"critical": "red", "warning": "yellow"}


def _detail(host: Json, now: float, width: int | None, colour: bool) -> list[str]:
    processes = [_process_cells(gpu, process, now) for gpu in host["gpus"] for process in gpu["processes"] or ()]
    # A hub from before there were events tells none.
    events = [_event_cells(gpu, event, now) for gpu in host["gpus"] for event in reversed(gpu.get("events", ()))]
    tables = [(_PROCESS_COLUMNS, processes), (_EVENT_COLUMNS, events)]
    lines = [line for columns, rows in tables if rows for line in render(columns, rows, width, colour)]
    lines += [paint(f"  ! {clean(problem)}", "yellow", colour) for problem in host["problems"]]
    title = paint(shorten(clean(host["display_name"]), width), "bold", colour)
    return ["", title, *lines] if lines else []


def _event_cells(gpu: Json, event: Json, now: float) -> list[Cell]:
    process = event["process"]
    return [
        (f"  {gpu['label']}", ""),
        (show_span(now - event["at"]), ""),
        (str(event["code"]), _KIND_COLOURS.get(event["kind"], "")),
        ("–" if process is None else str(process), ""),
        (clean(event["user"] or "–"), ""),
        (clean(": ".join(filter(None, [event["text"], event["message"]]))), "grey"),
    ]


def _process_cells(gpu: Json, process: Json, now: float) -> list[Cell]:
    started = process.get("started_at")
    where = [part for part in (process.get("container"), process.get("job")) if part]
    return [
        (f"  {gpu['label']}", ""),
        (str(process["pid"]), ""),
        (clean(process.get("user") or "–"), ""),
        (show_gib(process.get("memory_used_bytes")), ""),
        (_number(process.get("utilization_percent"), "%"), ""),
        (show_span(None if started is None else now - started), ""),
        (clean(", ".join(where)) or "–", ""),
        (clean(process.get("command") or "–"), "grey"),
    ]
