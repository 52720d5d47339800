"""What a rule would have done, over a real history file: as often, as long and where the live rule would have fired."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudeck.alerts.backtest import HostPast, choose_rule, try_on_host
from gpudeck.alerts.engine import AlertEngine
from gpudeck.alerts.settings import AlertSettings, Override, RuleChange
from gpudeck.history.base import HistoryRefused
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES, STATE_NUMBERS, GpuSample, HostSample
from gpudeck.history.settings import HistorySettings
from gpudeck.model.errors import UsageError

START = 1_790_000_000.0 // 3600 * 3600
HOUR = 3600.0
GIB = 2.0**30
RULES = {
    "idle_memory": RuleChange(expr="utilization_percent < 5 and memory_used_bytes > 10GiB for 1h", clear_after=60.0),
    "off": RuleChange(expr="power_watts > 1", enabled=False),
}


def sample_at(at: float, *gpus: tuple[str, str, dict[str, float]], cpu: float | None = 10.0) -> HostSample:
    """`gpus` are their UUIDs, states and metrics."""
    own = tuple(cpu if name == "cpu_percent" else None for name in HOST_NAMES)
    made = tuple(
        GpuSample(uuid, uuid[-1], "NVIDIA H100", STATE_NUMBERS[state], tuple(map(known.get, GPU_NAMES)), ())  # type: ignore[arg-type]
        for uuid, state, known in gpus
    )
    return HostSample("id-gpu01", "gpu01", at, 30.0, own, made)


def usual(at: float) -> dict[str, float]:
    """GPU-0: idle with memory from hour 2 to 5 and from 6 to 6:30, not observed from hour 9 to 10; again from 8 on."""
    hours = (at - START) / HOUR
    is_idle = 2 <= hours < 5 or 6 <= hours < 6.5 or hours >= 8
    return {"utilization_percent": 1.0 if is_idle else 80.0, "memory_used_bytes": 31 * GIB}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    path: Path = tmp_path_factory.mktemp("past") / "history.db"
    opened = EmbeddedStore(path, HistorySettings(min_free=0), lambda: START + 12 * HOUR)
    for number in range(int(12 * HOUR / 30)):
        at = START + 30 * number
        if not 9 <= (at - START) / HOUR < 10:
            busy = {"utilization_percent": 90.0, "memory_used_bytes": 60 * GIB}
            is_hot = 3 <= (at - START) / HOUR < 4
            second = "GPU-1", "idle" if is_hot else "busy", busy
            opened.take([sample_at(at, ("GPU-0", "busy", usual(at)), second, cpu=99.0 if is_hot else 10.0)])
    assert opened.flush()
    yield opened
    opened.close()


def engine(settings: AlertSettings | None = None) -> AlertEngine:
    return AlertEngine(settings or AlertSettings(rules=RULES), lambda _: None)


def trying(store: EmbeddedStore, rule: str | None = None, expr: str | None = None) -> HostPast:
    chosen = choose_rule(engine(), rule, expr)
    span = START, START + 12 * HOUR
    return try_on_host(store, ("id-gpu01", "gpu01"), chosen, chosen.limits_of("gpu01", {}), span)


def hours(past: HostPast) -> list[tuple[str | None, float, float, float | None]]:
    """In hours after the start, to a few minutes: a sample stands for the time around it."""
    return [
        (
            one.gpu,
            *(round((at - START) / HOUR, 1) for at in (one.since, one.fired_at)),
            None if one.resolved_at is None else round((one.resolved_at - START) / HOUR, 1),
        )
        for one in past.firings
    ]


def test_a_rule_fires_when_it_has_held_for_long_enough(store: EmbeddedStore) -> None:
    """Not for half an hour, and not across a time that nobody observed: that one is still so, and began after it."""
    past = trying(store, "idle_memory")
    assert hours(past) == [("GPU-0", 2.0, 3.0, 5.0), ("GPU-0", 8.0, 9.0, None)]
    assert past.firings[0].title == "GPU 0 of gpu01: utilization 1 %, memory used 31 GiB"
    assert past.step == 10
    assert past.known / past.total == pytest.approx(11 / 12, abs=0.01)


def test_time_that_was_not_observed_begins_nothing(store: EmbeddedStore) -> None:
    past = trying(store, expr="utilization_percent < 5 for 2h")
    assert hours(past) == [("GPU-0", 2.0, 4.0, 5.0), ("GPU-0", 10.0, 12.0, None)]


def test_states_models_and_values_of_the_host(store: EmbeddedStore) -> None:
    assert hours(trying(store, expr="availability == idle and model like '*h100*'")) == [("GPU-1", 3.0, 3.0, 4.0)]
    past = trying(store, expr="availability == idle and host.cpu_percent > 95")
    assert [one.title for one in past.firings] == ["GPU 1 of gpu01: availability idle, CPU 99 %"]
    assert hours(trying(store, expr="host.cpu_percent > 95 and utilization_percent > 80")) == [("GPU-1", 3.0, 3.0, 4.0)]
    (one,) = trying(store, expr="host.cpu_percent > 95 for 30m").firings
    assert (one.gpu, one.label, one.title) == (None, None, "gpu01: CPU 99 %")
    assert trying(store, expr="temperature_celsius > 80").known == 0.0


def test_limits_are_those_of_the_host(store: EmbeddedStore) -> None:
    overrides = [Override(labels={"rack": "r1"}, rules={"idle_memory": RuleChange(wait=1800.0)})]
    chosen = choose_rule(engine(AlertSettings(rules=RULES, overrides=overrides)), "idle_memory", None)
    limits = chosen.limits_of("gpu01", {"rack": "r1"})
    past = try_on_host(store, ("id-gpu01", "gpu01"), chosen, limits, (START, START + 12 * HOUR))
    assert [fired for _, _, fired, _ in hours(past)] == [2.5, 6.5, 8.5]
    assert not choose_rule(engine(), "off", None).limits_of("gpu01", {}).is_on


@pytest.mark.parametrize(
    ("rule", "expr", "said"),
    [
        (None, None, "give a rule or an expression"),
        ("gpu_hot", None, "gpu_hot is a rule of the hub"),
        ("idle", None, "there is no rule idle of your own"),
        (None, "power_wats > 5", "there is no column power_wats"),
        (None, "health == ok and power_watts > 5", "the history does not keep health"),
    ],
)
def test_what_cannot_be_tested_is_refused(rule: str | None, expr: str | None, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        choose_rule(engine(), rule, expr)


def test_a_host_without_history_is_named(store: EmbeddedStore) -> None:
    chosen = choose_rule(engine(), "idle_memory", None)
    with pytest.raises(HistoryRefused, match="knows no host"):
        try_on_host(store, ("id-gpu09", "gpu09"), chosen, chosen.limits_of("gpu09", {}), (START, START + HOUR))
