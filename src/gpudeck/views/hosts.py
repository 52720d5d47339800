"""The hosts of a fleet as a table: how each is read, whether it answers, and below it what is wrong."""

from collections import Counter
from collections.abc import Sequence

from gpudeck.model.view import Host
from gpudeck.views.safe import clean
from gpudeck.views.table import Cell, Column, render
from gpudeck.views.text import name_problem

_COLUMNS = (
    Column("HOST", keep=100, widest=40),
    Column("VIA", keep=90, widest=18),
    Column("STATUS", keep=99, widest=8),
    Column("GPUS", keep=80, align="right", widest=6),
    Column("FREE", keep=70, align="right", widest=6),
    Column("LABELS", keep=40, widest=40),
)
_COLOURS = {"up": "green", "late": "yellow", "down": "red", "never": "grey"}
_NONE = "No host yet. `gpudeck hosts add NAME` adds one.\n"


def render_hosts(hosts: Sequence[Host], width: int | None = None, colour: bool = False) -> str:
    """One line a host, and below them what is wrong, ending in a newline. Problems are never
    cut: many end in a command, which is to be copied."""
    if not hosts:
        return _NONE
    lines = render(_COLUMNS, [_row(host) for host in hosts], width, colour)
    problems = [name_problem(host.name, problem) for host in hosts for problem in host.problems]
    if problems:
        lines += ["", *(f"! {clean(problem)}" for problem in problems)]
    return "\n".join(lines) + "\n"


def _row(host: Host) -> list[Cell]:
    states = Counter(gpu.availability for gpu in host.gpus)
    is_known = host.status != "never"
    labels = " ".join(f"{key}={value}" for key, value in sorted(host.labels.items()))
    return [
        (clean(host.name), ""),
        (clean(host.via), ""),
        (host.status, _COLOURS[host.status]),
        (str(len(host.gpus)) if is_known else "-", ""),
        (str(states["free"]) if is_known else "-", ""),
        (clean(labels), "grey"),
    ]
