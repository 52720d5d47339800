"""The last minutes as a line: what is not known is a gap, never a zero."""

from fakes.fleets import fleet_of
from fakes.reports import make_gpu
from gpudeck.tui.details import EVERY, SPAN, Sparklines, draw_sparkline


def test_line_ends_now_and_reaches_as_high_as_told() -> None:
    points = [(1000 - SPAN + 1, 0.0), (500.0, 50.0), (999.0, 100.0)]
    drawn = draw_sparkline(points, 1000.0, 9, 100.0)
    assert (drawn[0], drawn[4], drawn[-1], len(drawn)) == ("▁", "▅", "█", 9)


def test_what_nobody_saw_is_a_gap() -> None:
    assert draw_sparkline([(990.0, 100.0)], 1000.0, 10, 100.0) == " " * 9 + "█"
    assert draw_sparkline([], 1000.0, 5) == " " * 5


def test_wide_line_has_no_holes_between_samples_that_follow_each_other() -> None:
    points = [(1000.0 - at * EVERY, 50.0) for at in range(int(SPAN / EVERY))]
    assert " " not in draw_sparkline(points, 1000.0, 150, 100.0).lstrip()


def test_unknown_values_and_silent_gpus_leave_no_sample() -> None:
    lost = make_gpu(1, uuid="GPU-lost", missing="fell off the bus")
    blind = make_gpu(2, uuid="GPU-blind", metrics={"utilization_percent": None})
    fleet = fleet_of(("gpu01", [make_gpu(0, uuid="GPU-idle"), lost, blind]))
    trails = Sparklines()
    trails.note(100.0, fleet.hosts)
    assert trails.points("GPU-idle", "utilization_percent") == [(100.0, 0.0)]
    assert trails.points("GPU-lost", "utilization_percent") == []
    assert trails.points("GPU-blind", "utilization_percent") == []
    assert trails.points("GPU-blind", "temperature_celsius") == [(100.0, 31.0)]


def test_only_the_last_minutes_are_kept() -> None:
    hosts = fleet_of(("gpu01", [make_gpu(0, uuid="GPU-0")])).hosts
    trails = Sparklines()
    for at in range(1000):
        trails.note(at * EVERY, hosts)
    points = trails.points("GPU-0", "utilization_percent")
    assert points[-1][0] == 999 * EVERY
    assert SPAN / EVERY <= len(points) <= SPAN / EVERY * 4 / 3


def test_gpu_that_left_is_forgotten() -> None:
    trails = Sparklines()
    trails.note(0.0, fleet_of(("gpu01", [make_gpu(0, uuid="GPU-0")])).hosts)
    trails.note(EVERY, [])
    assert trails.points("GPU-0", "utilization_percent") == []
