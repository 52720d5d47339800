"""Usage as text: aligned, within the width, honest about what is unknown and what was not observed."""

from datetime import UTC
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from wcwidth import wcswidth

from fakes.fleets import make
from gpudeck.model.usage import By, Usage, UsageRow
from gpudeck.views.usage import render_usage

T0 = 1_780_272_000.0  # 2026-06-01 00:00 UTC


def make_row(hours: float, **others: Any) -> UsageRow:
    return make(UsageRow, gpu_hours=hours, **others)


def make_usage(*rows: UsageRow, by: By = "user", **others: Any) -> Usage:
    known = {"start": T0, "end": T0 + 30 * 86_400, "coverage": 0.9876, "monitored_gpu_hours": 700.0, "currency": "EUR"}
    total = make_row(sum(row.gpu_hours for row in rows))
    return make(Usage, **({"by": by, "rows": rows, "total": total} | known | others))


ALICE = make_row(
    1234.56,
    user="alice",
    active_hours=800.04,
    idle_hours=12.0,
    share=0.4321,
    peak_memory_bytes=40 * 2**30,
    energy_kwh=321.0,
)


def test_a_line_a_row_with_hours_to_one_decimal_and_a_total() -> None:
    lines = render_usage(make_usage(ALICE, make_row(1, user="bob")), UTC).splitlines()
    assert lines[0] == "Usage by user, 2026-06-01 00:00 to 2026-07-01 00:00 (UTC)"
    assert lines[2].split() == ["USER", "GPU-HOURS", "ACTIVE", "IDLE", "SHARE", "PEAK", "GiB", "kWh"]
    assert lines[3].split() == ["alice", "1,234.6", "800.0", "12.0", "43.2", "%", "40.0", "321.0"]
    assert lines[5].split()[:2] == ["total", "1,235.6"]
    assert lines[-1] == "Coverage 98.7 %."


def test_unknown_is_a_dash_and_never_a_zero() -> None:
    line = render_usage(make_usage(make_row(1, user="bob")), UTC).splitlines()[3]
    assert line.split() == ["bob", "1.0", "–", "–", "–", "–", "–"]


def test_those_without_a_name_are_not_those_without_a_group() -> None:
    lines = render_usage(make_usage(make_row(2), make_row(1, unknown=True), by="group"), UTC).splitlines()
    assert [line[:9] for line in lines[3:5]] == ["no group ", "(unknown)"]


def test_costs_have_a_column_where_there_are_any() -> None:
    priced = make_usage(make_row(1, user="a", cost=3.2), make_row(1, user="b"), total=make_row(2, cost=3.2))
    lines = render_usage(priced, UTC).splitlines()
    assert lines[2].endswith("COST EUR")
    assert [line.split()[-1] for line in lines[3:6]] == ["3.20", "–", "3.20"]
    assert "COST" not in render_usage(make_usage(ALICE), UTC)


@pytest.mark.parametrize(
    ("coverage", "told"),
    [
        (1.0, "Coverage 100.0 %."),
        (0.99999, "Coverage 99.9 %."),
        (0.0, "Coverage 0.0 %."),
        (None, "No GPU was monitored in this period."),
    ],
)
def test_what_was_observed_is_said_and_never_rounded_up(coverage: float | None, told: str) -> None:
    assert render_usage(make_usage(ALICE, coverage=coverage), UTC).splitlines()[-1] == told


def test_a_period_before_all_records_says_when_they_begin() -> None:
    lines = render_usage(make_usage(coverage=None, known_since=T0), UTC).splitlines()
    assert lines[1:] == ["", "No GPU was monitored in this period: the records begin 2026-06-01 00:00."]


def test_a_period_without_use_says_so_and_what_was_observed() -> None:
    lines = render_usage(make_usage(), UTC).splitlines()
    assert lines[2:] == ["Nobody used a GPU.", "", "Coverage 98.7 %."]


def test_days_stand_below_in_their_order() -> None:
    def day(number: int, hours: float) -> dict[str, Any]:
        return {"day": f"2026-06-0{number}", "time": T0 + number, "gpu_hours": hours, "active_hours": None}

    rows = [make_row(5, user="alice", days=[day(1, 2), day(2, 3)]), make_row(4, user="bob", days=[day(1, 4)])]
    lines = render_usage(make_usage(*rows), UTC).splitlines()
    assert [line.split() for line in lines[8:11]] == [
        ["2026-06-01", "bob", "4.0", "–"],
        ["2026-06-01", "alice", "2.0", "–"],
        ["2026-06-02", "alice", "3.0", "–"],
    ]


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    rows = [ALICE, make_row(1, user="名前" * 30), make_row(1, user="x" * 200)]
    text = render_usage(make_usage(*rows), ZoneInfo("Europe/Berlin"), width=width)
    assert max(wcswidth(line) for line in text.splitlines()) <= width


def test_names_do_nothing_to_a_terminal() -> None:
    hostile = make_usage(make_row(1, user="\x1b[2Jevil"), currency="\x1b[0m", total=make_row(1, cost=1.0))
    assert "\x1b" not in render_usage(hostile, UTC)


def test_times_are_those_of_the_zone() -> None:
    first = render_usage(make_usage(ALICE), ZoneInfo("Asia/Kolkata")).splitlines()[0]
    assert first == "Usage by user, 2026-06-01 05:30 to 2026-07-01 05:30 (Asia/Kolkata)"


def test_models_are_shown_without_their_maker_and_whole_as_long_as_another_column_can_go() -> None:
    names = ["NVIDIA A100-SXM4-80GB MIG 1g.10gb", "NVIDIA A100-SXM4-80GB MIG 2g.20gb"]
    lines = render_usage(
        make_usage(*(make_row(1, model=name) for name in names), by="model"), UTC, width=60
    ).splitlines()
    assert [line.split("  ")[0] for line in lines[3:5]] == ["A100-SXM4-80GB MIG 1g.10gb", "A100-SXM4-80GB MIG 2g.20gb"]
