"""Totals of many steps at once are the same as each of them alone."""

import numpy as np
import pytest

from gpudeck.history.codec import Damaged
from gpudeck.history.rollup import hour_totals, roll_up
from gpudeck.history.totals import (
    UNKNOWN,
    StepTotals,
    TotalsRow,
    decode_stack,
    decode_totals,
    encode_totals,
    join_stacks,
    spread,
    stack_totals,
)
from history.hours import START, make_hour

NAMES = ("power_watts", "fan_percent", "host_cpu_percent", "colour")


def make_totals(seed: int, gpus: int = 2, unknown: str = "fan_percent") -> StepTotals:
    hour = make_hour(gpus, 60, seed, START + 3600 * seed)
    hour.metrics[unknown][:] = np.nan
    hour.metrics["temperature_celsius"][0, :seed] = np.nan
    return hour_totals(roll_up(hour))


def encode(given: list[StepTotals], layouts: dict[int, tuple[str, ...]], of: list[int]) -> list[TotalsRow]:
    return [
        (place + 1, one.start, number, encode_totals(arranged(one, layouts[number])))
        for place, (one, number) in enumerate(zip(given, of, strict=True))
    ]


def arranged(one: StepTotals, names: tuple[str, ...]) -> StepTotals:
    return StepTotals(one.start, one.seconds_per_step, names, spread(one, names), one.states)


def test_every_step_has_the_lines_that_it_has_alone_whatever_its_layout() -> None:
    given = [make_totals(1), make_totals(2, 8), make_totals(3, unknown="power_watts"), make_totals(4)]
    layouts = {7: given[0].names, 9: (*reversed(given[0].names), "colour")}
    rows = encode(given, layouts, [7, 9, 7, 9])
    found = decode_stack(rows, layouts, NAMES, 3600)
    assert found.hosts.tolist() == [1, 2, 3, 4]
    assert found.starts.tolist() == [one.start for one in given]
    for place, row in enumerate(rows):
        alone = decode_totals(row, layouts[row[2]], 3600)
        assert np.array_equal(found.states[place], alone.states)
        wanted = [pair for pair in zip(alone.names, alone.table, strict=True) if pair[0] in NAMES]
        for name, line in wanted:
            assert np.array_equal(found.lines(name)[place], line, equal_nan=True)
    assert np.isnan(found.lines("power_watts")[2, 2:]).all()
    assert not np.isnan(found.lines("power_watts")[[0, 1, 3]]).any()


def test_what_no_layout_has_and_what_was_not_asked_for_is_unknown() -> None:
    one = make_totals(1)
    found = decode_stack(encode([one], {1: one.names}, [1]), {1: one.names}, ("weight",), 3600)
    for name in ("weight", "power_watts"):
        assert np.array_equal(found.lines(name), [UNKNOWN], equal_nan=True)


def test_stacks_are_joined_step_after_step() -> None:
    one, other = make_totals(1), make_totals(2)
    first, second = (
        stack_totals({(5, one.start): one}, one.names, 3600),
        stack_totals({(6, other.start): other}, one.names, 3600),
    )
    both = join_stacks([first, stack_totals({}, one.names, 3600), second])
    assert both.hosts.tolist() == [5, 6]
    assert np.array_equal(both.lines("power_watts"), [one.table[1], other.table[1]])
    assert np.array_equal(both.only(both.hosts == 6).states, [other.states])


@pytest.mark.parametrize("cut", [1, 8, 40, 200, 10_000])
def test_one_step_that_ends_early_is_damage(cut: int) -> None:
    given = [make_totals(1), make_totals(2), make_totals(3)]
    layouts = {1: given[0].names}
    rows = encode(given, layouts, [1, 1, 1])
    rows[1] = (*rows[1][:3], rows[1][3][:-cut])
    with pytest.raises(Damaged):
        decode_stack(rows, layouts, NAMES, 3600)
