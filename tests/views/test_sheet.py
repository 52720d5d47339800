"""The fleet as CSV: a line a GPU, unknown beside its reason, and nothing that a spreadsheet would run."""

import csv
import io

from hypothesis import given
from hypothesis import strategies as st

from fakes.fleets import fleet_of
from fakes.reports import make_busy_gpu, make_gpu
from gpudeck.model.view import Fleet
from gpudeck.views.csv import render_sheet


def rows_of(fleet: Fleet) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(render_sheet(fleet), newline=""), strict=True))


def test_line_a_gpu_with_units_in_the_titles() -> None:
    free, busy = rows_of(fleet_of(("gpu01", [make_gpu(0), make_busy_gpu(1)])))
    assert (free["host"], free["gpu"], free["availability"], free["users"]) == ("gpu01", "0", "free", "")
    assert (busy["utilization_percent"], busy["memory_used_bytes"], busy["users"]) == ("97", str(20 * 2**30), "alice")
    assert (free["unknown"], busy["unknown"]) == ("", "")


def test_unknown_is_empty_beside_its_reason_and_never_zero() -> None:
    gpu = make_gpu(metrics={"utilization_percent": None}, processes=None, processes_reason="no permission")
    (row,) = rows_of(fleet_of(("gpu01", [gpu])))
    assert (row["utilization_percent"], row["users"]) == ("", "")
    assert row["unknown"].startswith("processes: no permission; utilization_percent: ")


def test_host_without_gpus_has_a_line_that_says_why() -> None:
    (row,) = rows_of(fleet_of(("gpu01", [])))
    assert (row["host"], row["gpu"], row["unknown"][:5]) == ("gpu01", "", "gpu: ")


@given(st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=3))
def test_any_name_stays_in_its_field_and_is_no_formula(users: list[str]) -> None:
    gpus = [make_busy_gpu(n, user=user, name=user) for n, user in enumerate(users)]
    rows = rows_of(fleet_of(("gpu01", gpus)))
    assert [row["gpu"] for row in rows] == [str(n) for n in range(len(users))]
    assert not any(row[title].lstrip().startswith(tuple("=+-@")) for row in rows for title in ("users", "model"))
