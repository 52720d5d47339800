"""Maps of hosts × time."""

import numpy as np
import pytest

from fakes.past import T0, FakePast, make_hour, without
from gpudeck.history.answers import answer_heat
from gpudeck.history.base import Heat, HeatQuery, HistoryRefused
from gpudeck.history.hour import FREE, IDLE

HOUR = 3600
NOW = T0 + 86_400.0


def ask(past: FakePast, metric: str = "utilization_percent", hours: int = 3, step: int = HOUR) -> Heat:
    return answer_heat(past, HeatQuery(metric, T0, T0 + hours * HOUR, step), NOW)


def cells(found: Heat) -> dict[str, list[float | None]]:
    return {row.name: row.values for row in found.rows}


def test_map_has_a_row_a_host_and_a_column_an_hour() -> None:
    past = FakePast(
        make_hour(T0, host=2, utilization_percent=20),
        make_hour(T0, host=1, gpus=2, utilization_percent=np.array([[10.0], [30.0]])),
        make_hour(T0 + 2 * HOUR, host=1, utilization_percent=90),
    )
    found = ask(past)
    assert (found.times, found.step, found.unit) == ([T0, T0 + HOUR, T0 + 2 * HOUR], HOUR, "percent")
    assert cells(found) == {"gpu01": [20.0, None, 90.0], "gpu02": [20.0, None, None]}
    assert [row.host for row in found.rows] == ["id-1", "id-2"]


@pytest.mark.parametrize(
    ("metric", "expected"),
    [("utilization_percent", 25.0), ("power_watts", 300.0), ("temperature_celsius", 70.0), ("gpus_idle", 2.0)],
)
def test_gpus_of_a_host_become_one_as_the_catalog_says(metric: str, expected: float) -> None:
    past = FakePast(
        make_hour(
            gpus=2,
            states=IDLE,
            utilization_percent=25,
            power_watts=np.array([[100.0], [200.0]]),
            temperature_celsius=np.array([[50.0], [70.0]]),
        )
    )
    assert cells(ask(past, metric, hours=1)) == {"gpu01": [expected]}


def test_columns_may_be_several_hours() -> None:
    past = FakePast(*(make_hour(T0 + HOUR * n, utilization_percent=10 * n, power_watts=100) for n in range(4)))
    assert cells(ask(past, hours=4, step=2 * HOUR)) == {"gpu01": [5.0, 25.0]}
    assert cells(ask(past, "power_watts", hours=4, step=2 * HOUR)) == {"gpu01": [100.0, 100.0]}


def test_part_of_an_hour_counts_as_what_was_seen() -> None:
    past = FakePast(without(make_hour(gpus=4, states=FREE), 100, 300))
    assert cells(ask(past, "gpus_free", hours=1)) == {"gpu01": [4.0]}


def test_metric_of_the_host_itself_can_be_shown() -> None:
    past = FakePast(make_hour(host_metrics={"cpu_percent": 40}))
    assert cells(ask(past, "cpu_percent", hours=1)) == {"gpu01": [40.0]}


def test_host_that_was_not_there_has_no_row() -> None:
    past = FakePast(make_hour(T0, host=1), make_hour(T0 + 40 * HOUR, host=2), make_hour(T0 - 40 * HOUR, host=3))
    assert list(cells(ask(past))) == ["gpu01"]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (HeatQuery("utilization", T0, T0 + HOUR), "unknown_metric"),
        (HeatQuery("gpus_used", T0, T0 + HOUR), "unknown_metric"),
        (HeatQuery("power_watts", T0, T0), "bad_range"),
        (HeatQuery("power_watts", float("nan"), T0), "bad_range"),
        (HeatQuery("power_watts", T0, T0 + HOUR, 0), "bad_step"),
        (HeatQuery("power_watts", T0, T0 + HOUR, -HOUR), "bad_step"),
        (HeatQuery("power_watts", T0, T0 + HOUR, 1800), "bad_step"),
        (HeatQuery("power_watts", T0, T0 + HOUR, 10**12), "bad_step"),
        (HeatQuery("power_watts", T0 - 8e7, T0), "too_many_points"),
        (HeatQuery("power_watts", 0, 9e8), "too_long"),
    ],
)
def test_absurd_maps_are_refused(asked: HeatQuery, code: str) -> None:
    with pytest.raises(HistoryRefused) as refused:
        answer_heat(FakePast(make_hour()), asked, NOW)
    assert refused.value.code == code
    assert refused.value.hint


def test_map_that_costs_too_much_is_refused() -> None:
    hours = [make_hour(host=host, every=900) for host in range(1, 131)]
    with pytest.raises(HistoryRefused, match="shorter range"):
        answer_heat(FakePast(*hours), HeatQuery("power_watts", T0 - 4_000 * HOUR, T0 + HOUR), NOW)
