"""Watches as a table for people with a terminal."""

from collections.abc import Sequence

from gpudeck.model.quantity import show_length, show_span
from gpudeck.model.watch import WatchView
from gpudeck.views.safe import clean
from gpudeck.views.table import Cell, Column, render

_COLUMNS = (
    Column("ID", keep=100, align="right", widest=20),
    Column("USER", keep=60, widest=24),
    Column("WANTED", keep=95, widest=60),
    Column("STATE", keep=90, widest=24),
    Column("FOUND", keep=50, widest=48),
)


def render_watches(watches: Sequence[WatchView], now: float, width: int | None, *, colour: bool) -> str:
    rows = [
        (
            (str(one.id), ""),
            (clean(one.user), ""),
            (clean(one.description), ""),
            _state(one, now),
            (clean(", ".join(f"{gpu.host}:{gpu.label}" for gpu in one.found)), ""),
        )
        for one in watches
    ]
    return "".join(f"{line}\n" for line in render(_COLUMNS, rows, width, colour))


def _state(one: WatchView, now: float) -> Cell:
    if one.fired_at is not None:
        return f"told {show_span(now - one.fired_at)} ago", "green"
    return f"for {show_length(one.expires_at - now)}", ""
