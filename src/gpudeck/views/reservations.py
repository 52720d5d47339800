"""Reservations as a table for terminals."""

from collections.abc import Sequence
from datetime import tzinfo
from typing import Final

from gpudeck.model.moments import show_moment
from gpudeck.model.quantity import show_length
from gpudeck.model.reservation import BookedGpu, ShownReservation
from gpudeck.views.safe import clean
from gpudeck.views.table import Cell, Column, render

_COLUMNS: Final = (
    Column("ID", keep=100, align="right", widest=20),
    Column("WHO", keep=99, widest=32),
    Column("GPUS", keep=95, widest=60, least=12),
    Column("FROM", keep=80, widest=22),
    Column("UNTIL", keep=90, widest=22),
    Column("STATE", keep=70, widest=24),
    Column("NOTE", keep=60, widest=60, least=8),
)


def render_reservations(
    found: Sequence[ShownReservation], now: float, zone: tzinfo, width: int | None, colour: bool
) -> str:
    """By their start, in the time of `zone`. A GPU that the fleet no longer has is marked."""
    rows = [_row(one, now, zone) for one in found]
    return "".join(f"{line.rstrip()}\n" for line in render(_COLUMNS, rows, width, colour))


def _row(one: ShownReservation, now: float, zone: tzinfo) -> list[Cell]:
    return [
        (str(one.id), ""),
        (clean(one.user), "bold"),
        (_show_gpus(one.gpus), ""),
        (show_moment(one.start, zone), "grey"),
        (show_moment(one.end, zone), ""),
        _state(one, now),
        (clean(one.note), "grey"),
    ]


def _show_gpus(gpus: Sequence[BookedGpu]) -> str:
    hosts: dict[str, list[str]] = {}
    for gpu in gpus:
        label = f"{gpu.label}{'' if gpu.is_there is not False else ' (gone)'}"
        hosts.setdefault(gpu.host, []).append(label)
    return clean(" ".join(f"{host}:{','.join(labels)}" for host, labels in hosts.items()))


def _state(one: ShownReservation, now: float) -> Cell:
    if one.kind == "hold":
        return f"held, {show_length(one.end - now)} left", "yellow"
    if one.state == "running":
        return f"{show_length(one.end - now)} left", "blue"
    return (f"in {show_length(one.start - now)}", "grey") if one.state == "planned" else (one.state, "grey")
