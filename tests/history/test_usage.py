"""Usage: rows, totals, shares, coverage, prices, groups and days, from facts as a store gives them."""

import csv
import io
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC
from typing import Any

import msgspec
import pytest

from gpudeck.history.base import HistoryRefused, KnownGpu, KnownHost, UsageAmounts, UsageQuery, UseKey
from gpudeck.history.settings import UsageSettings
from gpudeck.history.usage import capacity_seconds, price_of, sum_usage, to_csv, usage
from gpudeck.model.usage import Usage, UsageRow
from gpudeck.views.usage import render_usage

HOUR = 3600
DAY = 24 * HOUR
T0 = 1_780_272_000  # 2026-06-01 00:00 UTC
GIB = 2**30
H200, L40S = "NVIDIA H200", "NVIDIA L40S"

Fact = tuple[UseKey, UsageAmounts]


def fact(
    hour: int, user: str | None, held: float = HOUR, *, model: str = H200, host: str = "id-1", **others: float
) -> Fact:
    return (T0 + hour * HOUR, host, user, model), UsageAmounts(used=held, **others)


class FakePast:
    """A past of known facts: by default two GPUs of one host, seen all the time."""

    def __init__(
        self,
        facts: Sequence[Fact],
        gpus: Sequence[KnownGpu] | None = None,
        hosts: Sequence[tuple[str, str]] = (("id-1", "gpu01"), ("id-2", "gpu02")),
        observed: dict[int, float] | None = None,
    ) -> None:
        self._facts: dict[int, list[Fact]] = defaultdict(list)
        for each in facts:
            self._facts[each[0][0]].append(each)
        self._gpus = [make_gpu(1), make_gpu(2)] if gpus is None else gpus
        self._hosts = hosts
        self._seen = observed

    def gpus(self) -> dict[int, KnownGpu]:
        return {gpu.key: gpu for gpu in self._gpus}

    def hosts(self) -> dict[int, KnownHost]:
        return {at: KnownHost(at, *host, T0, T0 + DAY) for at, host in enumerate(self._hosts)}

    def uses(self, start: int, end: int, *, by_host: bool) -> Iterator[Fact]:
        sums: dict[UseKey, UsageAmounts] = defaultdict(UsageAmounts)
        for hour in [hour for hour in self._facts if start <= hour < end]:
            for (_, host, user, model), use in self._facts[hour]:
                sums[start, host if by_host else "", user, model].add(use)
        return iter(sums.items())

    def observed(self, start: int, end: int) -> float:
        if self._seen is None:
            return 2.0 * (end - start)
        return sum(seconds for hour, seconds in self._seen.items() if start <= T0 + hour * HOUR < end)


def make_gpu(key: int, first: float = T0 - DAY, last: float = T0 + 90 * DAY) -> KnownGpu:
    return KnownGpu(key, f"GPU-{key}", 0, str(key), H200, first, last)


def ask_for(
    past: FakePast,
    by: Any = "user",
    *,
    end: float = T0 + 4 * HOUR,
    start: float = T0,
    settings: UsageSettings | None = None,
    groups: dict[str, str] | None = None,
    now: float = T0 + 90 * DAY,
    **others: Any,
) -> Usage:
    ask = UsageQuery(by=by, start=start, end=end, **others)
    found: Any = past
    return usage(found, ask, settings or UsageSettings(), (groups or {}).get, now)


def hours(answer: Usage) -> dict[str | None, float]:
    return {getattr(row, answer.by): row.gpu_hours for row in answer.rows}


def test_rows_are_sorted_by_hours_and_add_up_to_the_total() -> None:
    answer = ask_for(FakePast([fact(0, "bob"), fact(0, "alice", 1800), fact(1, "alice", 5400)]))
    assert list(hours(answer).items()) == [("alice", 2), ("bob", 1)]
    assert (answer.total.gpu_hours, answer.monitored_gpu_hours) == (3, 8)
    assert [row.share for row in answer.rows] == [0.25, 0.125]


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("user", {"alice": 3, None: 1}),
        ("host", {"gpu01": 3, "gpu02": 1}),
        ("model", {H200: 2, L40S: 2}),
        ("group", {"vision": 3, None: 1}),
    ],
)
def test_the_same_hours_by_whatever_they_are_asked(by: str, expected: dict[str | None, float]) -> None:
    facts = [
        fact(0, "alice"),
        fact(1, "alice"),
        fact(1, "alice", model=L40S),
        fact(2, None, model=L40S, host="id-2"),
    ]
    answer = ask_for(FakePast(facts), by, settings=UsageSettings(groups={"vision": ["alice"]}))
    assert hours(answer) == expected
    assert answer.total.gpu_hours == 4


def test_those_whom_nobody_could_name_are_not_those_without_a_group() -> None:
    past = FakePast([fact(0, "alice"), fact(0, None, 1800)])
    rows = ask_for(past, "group").rows
    assert [(row.group, row.unknown, row.gpu_hours) for row in rows] == [(None, False, 1), (None, True, 0.5)]


def test_settings_say_the_group_before_unix_does_and_the_first_counts() -> None:
    settings = UsageSettings(groups={"vision": ["alice"], "speech": ["alice", "bob"]})
    past = FakePast([fact(0, name) for name in ("alice", "bob", "carol", "dave")])
    unix = {"alice": "staff", "bob": "staff", "carol": "staff"}
    answer = ask_for(past, "group", settings=settings, groups=unix)
    assert hours(answer) == {"vision": 1, "speech": 1, "staff": 1, None: 1}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"user": "alice"}, {"alice": 2}),
        ({"host": "gpu02"}, {"bob": 1}),
        ({"host": "id-2"}, {"bob": 1}),
        ({"model": "l40"}, {"alice": 1}),
        ({"group": "vision"}, {"bob": 1}),
    ],
)
def test_only_what_is_asked_for_is_counted(asked: dict[str, str], expected: dict[str, float]) -> None:
    facts = [fact(0, "alice"), fact(0, "alice", model=L40S), fact(0, "bob", host="id-2"), fact(0, None, model="other")]
    settings = UsageSettings(groups={"vision": ["bob"]})
    assert hours(ask_for(FakePast(facts), settings=settings, **asked)) == expected


def test_a_host_that_was_installed_anew_stays_one_row() -> None:
    past = FakePast([fact(0, "alice"), fact(0, "alice", host="id-2")], hosts=[("id-1", "gpu01"), ("id-2", "gpu01")])
    assert hours(ask_for(past, "host")) == {"gpu01": 2}
    assert hours(ask_for(past, "host", host="id-2")) == {"gpu01": 1}


def test_hours_at_the_ends_count_by_the_part_that_lies_inside() -> None:
    facts = [fact(at, "alice", 3600, idle=1800, joules=3.6e6, metered=3600, peak=GIB) for at in range(4)]
    answer = ask_for(FakePast(facts), start=T0 + 1800, end=T0 + 2 * HOUR + 900)
    row = answer.rows[0]
    assert (row.gpu_hours, row.idle_hours, row.energy_kwh) == (1.75, 0.875, 1.75)
    assert (row.peak_memory_bytes, answer.monitored_gpu_hours, answer.coverage) == (GIB, 3.5, 1)


def test_of_the_hour_in_which_recording_began_the_recorded_part_counts() -> None:
    first = T0 + 40 * 60
    past = FakePast([fact(0, "alice", 840.0)], [make_gpu(1, first=first)], observed={0: 840.0})
    answer = ask_for(past, start=T0 + 24 * 60, end=first + 840, now=first + 840)
    assert (answer.coverage, hours(answer)) == (1.0, {"alice": pytest.approx(840 / HOUR)})
    # Half of it.
    answer = ask_for(past, start=first + 420, end=first + 840, now=first + 840)
    assert (answer.coverage, hours(answer)) == (1.0, {"alice": pytest.approx(420 / HOUR)})


def test_the_hour_that_is_running_counts_whole() -> None:
    now = T0 + 600
    past = FakePast([fact(0, "alice", 600)], observed={0: 1200})
    answer = ask_for(past, start=now - DAY, end=now, now=now)
    assert (answer.rows[0].gpu_hours, answer.monitored_gpu_hours) == (600 / HOUR, 1200 / HOUR)


def test_unknown_is_never_zero() -> None:
    row = ask_for(FakePast([fact(0, "alice")])).rows[0]
    assert (row.active_hours, row.energy_kwh, row.peak_memory_bytes, row.cost) == (None, None, None, None)


def test_what_is_known_is_told() -> None:
    use = {"active": 1800, "measured": 3600, "metered": 3600, "joules": 1.8e6, "peak": GIB, "idle": 360}
    row = ask_for(FakePast([fact(0, "alice", **use)])).rows[0]
    assert (row.active_hours, row.energy_kwh, row.peak_memory_bytes, row.idle_hours) == (0.5, 0.5, GIB, 0.1)


def test_work_is_told_beside_the_hours_in_which_it_was_known() -> None:
    facts = [fact(0, "alice", active=1800, measured=3600), fact(1, "alice"), fact(2, "alice")]
    total = ask_for(FakePast(facts)).total
    assert (total.gpu_hours, total.measured_hours, total.active_hours) == (3, 1, 0.5)


def test_a_period_without_any_use_has_no_rows_and_a_total_of_zero() -> None:
    answer = ask_for(FakePast([]))
    assert (answer.rows, answer.total.gpu_hours, answer.total.active_hours) == ([], 0, None)
    assert answer.coverage == 1


def test_costs_are_of_what_has_a_price() -> None:
    facts = [fact(0, "alice"), fact(0, "alice", model=L40S), fact(0, "bob", model=L40S)]
    settings = UsageSettings(currency="EUR", prices={"h200": 3.2})
    answer = ask_for(FakePast(facts), settings=settings)
    assert {row.user: row.cost for row in answer.rows} == {"alice": 3.2, "bob": None}
    assert (answer.total.cost, answer.currency) == (3.2, "EUR")


def test_models_without_a_price_are_named_where_costs_are_shown() -> None:
    past = FakePast([fact(0, "alice"), fact(0, "bob", model=L40S)])
    answer = ask_for(past, settings=UsageSettings(prices={"H200": 3.0}))
    assert answer.unpriced_models == [L40S]
    assert "Costs do not include models without a price in usage.prices: L40S." in render_usage(answer, UTC)
    assert ask_for(past, settings=UsageSettings(prices={"H200": 3.0, "L40S": 0.0})).unpriced_models == []


@pytest.mark.parametrize(
    ("model", "price"),
    [("NVIDIA H200", 3.2), ("NVIDIA H200 MIG 1g.18gb", 0.5), ("NVIDIA H100", None), ("nvidia h200 NVL", 3.2)],
)
def test_the_longest_part_of_the_name_sets_the_price(model: str, price: float | None) -> None:
    assert price_of(model, {"H200": 3.2, "h200 mig 1g": 0.5}) == price


def test_a_price_of_zero_is_a_price() -> None:
    settings = UsageSettings(prices={"H200": 0.0})
    assert ask_for(FakePast([fact(0, "alice")]), settings=settings).total.cost == 0


def test_coverage_is_what_was_observed_of_what_the_gpus_had() -> None:
    past = FakePast([fact(0, "alice")], observed={0: 7200, 1: 3600, 3: 3600})
    assert ask_for(past).coverage == 0.5


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (T0 - DAY, T0 + 30 * DAY, 10 * DAY),
        (T0 + 4 * DAY, T0 + 30 * DAY, 6 * DAY),
        (T0 - DAY, T0 + 2 * DAY, 2 * DAY),
        (T0 - DAY, T0 + 4 * DAY, 10 * DAY),  # not yet taken for removed
        (T0 - 9 * DAY, T0 - DAY, 0),
        (T0 + 11 * DAY, T0 + 12 * DAY, 0),
    ],
)
def test_a_gpu_has_time_from_its_first_sample_until_it_is_gone(first: float, last: float, expected: float) -> None:
    assert capacity_seconds([make_gpu(1, first, last)], T0, T0 + 10 * DAY) == expected


def test_time_that_is_still_to_come_is_not_missing() -> None:
    past = FakePast([], observed={0: 7200})
    assert ask_for(past, end=T0 + 30 * DAY, now=T0 + HOUR).coverage == 1


def test_a_fleet_without_gpus_has_no_coverage() -> None:
    assert ask_for(FakePast([], gpus=[])).coverage is None


def test_a_period_that_nobody_observed_has_no_shares() -> None:
    answer = ask_for(FakePast([], observed={}))
    assert (answer.coverage, answer.total.share) == (0, None)


def test_days_are_those_of_the_zone() -> None:
    facts = [fact(at, "alice", measured=3600, active=1800) for at in range(48)]
    answer = ask_for(FakePast(facts), start=T0, end=T0 + 2 * DAY, daily=True, zone="Asia/Kolkata")
    days = answer.rows[0].days
    assert [(day.day, day.gpu_hours, day.active_hours) for day in days] == [
        ("2026-06-01", 18.5, 9.25),
        ("2026-06-02", 24, 12),
        ("2026-06-03", 5.5, 2.75),
    ]
    assert [day.time for day in days] == [T0 - 19_800 + at * DAY for at in range(3)]
    assert answer.total.days == days


def test_a_day_with_25_hours_has_25_hours() -> None:
    autumn = 1_792_879_200  # 2026-10-25 00:00 in Berlin
    facts = [((autumn + at * HOUR, "", "alice", H200), UsageAmounts(used=3600)) for at in range(30)]
    past = FakePast(facts)
    answer = ask_for(past, start=autumn, end=autumn + 30 * HOUR, daily=True, zone="Europe/Berlin", now=autumn + DAY * 9)
    assert [(day.day, day.gpu_hours) for day in answer.rows[0].days] == [("2026-10-25", 25), ("2026-10-26", 5)]


def test_a_day_without_use_has_no_entry() -> None:
    facts = [fact(0, "alice"), fact(50, "alice"), fact(30, "bob")]
    answer = ask_for(FakePast(facts), end=T0 + 3 * DAY, daily=True)
    assert [[day.day for day in row.days] for row in answer.rows] == [["2026-06-01", "2026-06-03"], ["2026-06-02"]]
    assert [day.day for day in answer.total.days] == ["2026-06-01", "2026-06-02", "2026-06-03"]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"end": T0}, "bad_range"),
        ({"daily": True, "zone": "Mars/Base"}, "unknown_zone"),
        ({"start": 0}, "too_long"),
        ({"host": "gpu03"}, "unknown_host"),
        ({"end": T0 + 500 * DAY, "daily": True}, "too_long"),
    ],
)
def test_what_has_no_answer_is_refused(asked: dict[str, Any], code: str) -> None:
    with pytest.raises(HistoryRefused) as refused:
        ask_for(FakePast([]), **asked)
    assert refused.value.code == code


def test_too_many_days_in_too_many_rows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudeck.history.usage.MAX_DAYS_IN_ROWS", 200)
    facts = [fact(24 * day, f"user{at}") for at in range(10) for day in range(21)]
    with pytest.raises(HistoryRefused, match="21 days of 10 rows"):
        ask_for(FakePast(facts), end=T0 + 21 * DAY, daily=True, now=T0 + 300 * DAY)


def test_facts_of_any_store_are_folded_and_those_of_other_times_left_out() -> None:
    facts = [fact(-1, "alice"), fact(0, "alice"), fact(0, "alice"), fact(9, "alice")]
    ask = UsageQuery(by="user", start=T0, end=T0 + HOUR)
    answer = sum_usage(
        facts, ask, UsageSettings(), lambda _: None, T0 + DAY, hosts={}, observed=4 * HOUR, capacity=8 * HOUR
    )
    assert (hours(answer), answer.coverage, answer.rows[0].share) == ({"alice": 2}, 0.5, 0.5)


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_csv_has_a_line_a_row_and_leaves_the_unknown_empty() -> None:
    answer = ask_for(FakePast([fact(0, "=cmd()", peak=float(GIB)), fact(0, None, 1800)]))
    rows = read_csv(to_csv(answer))
    assert [(row["user"], row["unknown"], row["gpu_hours"]) for row in rows] == [
        ("'=cmd()", "no", "1.0"),
        ("", "yes", "0.5"),
    ]
    assert (rows[0]["peak_memory_bytes"], rows[0]["energy_kwh"], rows[0]["cost"]) == (str(GIB), "", "")


def test_csv_by_day_has_a_line_a_row_and_day() -> None:
    answer = ask_for(FakePast([fact(0, "alice"), fact(30, "alice")]), end=T0 + 2 * DAY, daily=True)
    assert to_csv(answer, daily=True).splitlines() == [
        "day,user,unknown,gpu_hours,active_hours",
        "2026-06-01,alice,no,1.0,",
        "2026-06-02,alice,no,1.0,",
    ]


def test_an_answer_survives_json() -> None:
    answer = ask_for(FakePast([fact(0, "alice"), fact(0, None)]), daily=True)
    assert msgspec.json.decode(msgspec.json.encode(answer), type=Usage) == answer
    assert isinstance(answer.total, UsageRow)


def test_a_period_that_begins_before_anything_was_known_says_since_when_it_is() -> None:
    gpu = KnownGpu(1, "GPU-1", 1, "0", "H200", T0 + HOUR, T0 + 2 * HOUR)
    assert ask_for(FakePast([], gpus=[gpu])).known_since == T0 + HOUR
    assert ask_for(FakePast([], gpus=[gpu]), start=T0 + HOUR).known_since is None
    before = ask_for(FakePast([], gpus=[gpu]), start=T0 - 2 * HOUR, end=T0 - HOUR)
    assert (before.coverage, before.known_since) == (None, T0 + HOUR)
