"""The fleet as text for people with a terminal: the same for curl and for `gpudeck show`."""

import textwrap
from collections.abc import Sequence

from gpudeck.model.quantity import show_count
from gpudeck.model.view import Fleet, Host, Totals
from gpudeck.views.cells import COLOURS, GPU_COLUMNS, HOST_COLUMN, SYMBOLS, gpu_rows
from gpudeck.views.safe import clean
from gpudeck.views.table import Cell, paint, render, shorten, width_of

_PROBLEMS_AT_MOST = 20
"""Of hosts, below the table. A site whose switch fails has hundreds of them, and one reason."""
NO_HOST = "No host has reported yet. On a GPU server: gpudeck agent --hub URL --token-file FILE"


def render_fleet(
    fleet: Fleet, *, detail: bool = False, width: int | None = None, colour: bool = False, empty: str = NO_HOST
) -> str:
    """The fleet as text, ending in a newline.

    `detail` draws a box a host, with processes and the faults of the last day. `empty` is said where there is no host.
    No line is wider than `width`, from LEAST columns on, but those of problems: many end in a command, which is to be
    copied.
    """
    hosts, now = fleet.hosts, fleet.time
    lines = [_headline(fleet, width, colour)]
    if not hosts:
        lines += ["", *textwrap.wrap(clean(empty), width or len(empty))]
    elif detail:
        from gpudeck.views.boxes import draw_boxes  # noqa: PLC0415 - most look at the table

        lines += draw_boxes(hosts, now, width, colour)
    else:
        rows = [row for host in hosts for row in gpu_rows(host, now)]
        lines += ["", *render((HOST_COLUMN, *GPU_COLUMNS), rows, width, colour)]
    problems = [*fleet.problems, *([] if detail else _host_problems(hosts))]
    if problems:
        lines += ["", *(paint(f"! {clean(problem)}", "yellow", colour) for problem in problems)]
    if fleet.alerts:
        from gpudeck.views.alerts import below_table  # noqa: PLC0415 - a fleet without alerts needs none

        lines += ["", *told] if (told := below_table(fleet, colour)) else []
    return "\n".join(lines) + "\n"


def _host_problems(hosts: Sequence[Host]) -> list[str]:
    told = [name_problem(host.display_name, problem) for host in hosts for problem in host.problems]
    if len(told) <= _PROBLEMS_AT_MOST:
        return told
    kept = told[: _PROBLEMS_AT_MOST - 1]
    return [*kept, f"{len(told) - len(kept)} more problems of hosts: gpudeck hosts list"]


def name_problem(name: str, problem: str) -> str:
    """The problem with the host that has it; many begin with its name by themselves."""
    return problem if problem.startswith(name) else f"{name}: {problem}"


def count_hosts_and_gpus(totals: Totals) -> str:
    """2 of 3 hosts up, 16 GPUs."""
    return f"{totals.hosts_up} of {show_count(totals.hosts, 'host')} up, {show_count(totals.gpus, 'GPU')}"


def _headline(fleet: Fleet, width: int | None, colour: bool) -> str:
    """Hosts and states in one line. Where that is too wide it says less: first about hosts, then about empty states."""
    totals, counts = fleet.totals, fleet.totals.by_availability
    hosts: Cell = (f"{count_hosts_and_gpus(totals)}:", "")
    states: list[Cell] = [(f"{symbol} {counts[word]} {word}", COLOURS[word]) for word, symbol in SYMBOLS.items()]
    told = [cell for cell, word in zip(states, SYMBOLS, strict=True) if counts[word] or word == "free"]
    demo: list[Cell] = [("DEMO DATA, simulated", "reverse")] if fleet.demo else []
    short_demo: list[Cell] = [("DEMO", "reverse")] if fleet.demo else []
    for cells in ([*demo, hosts, *states], [*short_demo, *states], [*short_demo, *told]):
        plain = "  ".join(text for text, _ in cells)
        if width is None or width_of(plain) <= width:
            return "  ".join(paint(text, name, colour) for text, name in cells)
    return shorten(plain, width)
