"""Reservations as a table: when, for how long, and which of two hours that a clock shows alike."""

from typing import Any
from zoneinfo import ZoneInfo

from fakes.fleets import make
from gpudeck.model.reservation import ShownReservation
from gpudeck.views.lists import render_reservations

BERLIN = ZoneInfo("Europe/Berlin")
TWICE = 1_824_942_600.0
"""2027-10-31 02:30 in Berlin, for the first time."""


def reservation(**others: Any) -> ShownReservation:
    gpu = {"uuid": "GPU-a", "host": "gpu07", "label": "0", "is_there": True}
    plain = {"id": 1, "kind": "reservation", "user": "ada", "gpus": [gpu], "note": "", "state": "planned"}
    return make(ShownReservation, **(plain | {"start": TWICE, "end": TWICE + 3600} | others))


def test_hour_that_the_clock_shows_twice_says_which() -> None:
    line = render_reservations([reservation()], TWICE - 86_399, BERLIN).splitlines()[1]
    assert line.split(maxsplit=3)[3] == "2027-10-31 02:30 +0200  2027-10-31 02:30 +0100  in 1d"


def test_what_runs_says_how_much_is_left_and_which_gpu_is_gone() -> None:
    gone = [{"uuid": "GPU-a", "host": "gpu07", "label": "0", "is_there": False}]
    line = render_reservations([reservation(state="running", gpus=gone)], TWICE + 1, BERLIN).splitlines()[1]
    assert "gpu07:0 (gone)" in line
    assert line.endswith("1h left")
