"""Figures made from two readings."""

import pytest

from gpudeck.collectors.drm_clients import DrmClient, EnergyWatch, EngineTime, EngineWatch

CARD = "0000:03:00.0"


def clients(**engines: EngineTime) -> dict[str, DrmClient]:
    return {"a": DrmClient("a", 1, CARD, 0, engines)}


def test_first_reading_tells_nothing() -> None:
    shares = EngineWatch().compare(clients(gfx=EngineTime(10**9)), [CARD], 100.0)
    assert (shares.clients, shares.cards) == ({}, {})


def test_share_is_that_of_the_busiest_engine() -> None:
    watch = EngineWatch()
    watch.compare(clients(gfx=EngineTime(0), dma=EngineTime(0)), [CARD], 100.0)
    shares = watch.compare(clients(gfx=EngineTime(500_000_000), dma=EngineTime(200_000_000)), [CARD], 102.0)
    assert (shares.clients, shares.cards) == ({"a": 25.0}, {CARD: 25.0})


def test_engines_of_one_kind_share_the_time() -> None:
    watch = EngineWatch()
    watch.compare(clients(video=EngineTime(0, None, 2)), [CARD], 100.0)
    assert watch.compare(clients(video=EngineTime(10**9, None, 2)), [CARD], 101.0).clients == {"a": 50.0}


def test_clients_of_a_card_add_up_to_at_most_all_of_it() -> None:
    watch = EngineWatch()
    before = {key: DrmClient(key, 1, CARD, 0, {"gfx": EngineTime(0)}) for key in "ab"}
    watch.compare(before, [CARD], 100.0)
    after = {key: DrmClient(key, 1, CARD, 0, {"gfx": EngineTime(700_000_000)}) for key in "ab"}
    shares = watch.compare(after, [CARD], 101.0)
    assert shares.clients == pytest.approx({"a": 70.0, "b": 70.0})
    assert shares.cards == {CARD: 100.0}


def test_client_that_just_came_is_unknown_and_not_idle() -> None:
    watch = EngineWatch()
    watch.compare({}, [CARD], 100.0)
    shares = watch.compare(clients(gfx=EngineTime(10**12)), [CARD], 101.0)
    assert (shares.clients, shares.cards) == ({}, {CARD: 0.0})


def test_engine_that_was_not_used_before_began_at_zero() -> None:
    watch = EngineWatch()
    watch.compare(clients(), [CARD], 100.0)
    assert watch.compare(clients(gfx=EngineTime(500_000_000)), [CARD], 101.0).clients == {"a": 50.0}


def test_time_that_steps_back_is_not_counted_twice() -> None:
    watch = EngineWatch()
    watch.compare(clients(gfx=EngineTime(10**9)), [CARD], 100.0)
    assert watch.compare(clients(gfx=EngineTime(0)), [CARD], 101.0).clients == {"a": 0.0}
    assert watch.compare(clients(gfx=EngineTime(10**9)), [CARD], 102.0).clients == {"a": 0.0}
    assert watch.compare(clients(gfx=EngineTime(2 * 10**9)), [CARD], 103.0).clients == {"a": 100.0}


@pytest.mark.parametrize("total", [50, 100])
def test_engine_clock_that_stands_or_restarts_gives_no_share(total: int) -> None:
    watch = EngineWatch()
    watch.compare(clients(ccs=EngineTime(10, 100)), [CARD], 100.0)
    assert watch.compare(clients(ccs=EngineTime(40, total)), [CARD], 101.0).clients == {"a": 0.0}


def test_clock_that_steps_back_gives_no_share() -> None:
    watch = EngineWatch()
    watch.compare(clients(gfx=EngineTime(0)), [CARD], 100.0)
    assert watch.compare(clients(gfx=EngineTime(10**9)), [CARD], 90.0).cards == {}


def test_power_is_the_energy_between_two_readings() -> None:
    watch = EnergyWatch()
    assert watch.compare("gpu", 1000.0, 100.0) is None
    assert watch.compare("gpu", 1300.0, 102.0) == 150.0


@pytest.mark.parametrize(("joules", "now"), [(900.0, 101.0), (1100.0, 100.0), (1100.0, 50.0)])
def test_power_is_unknown_when_counter_or_clock_steps_back(joules: float, now: float) -> None:
    watch = EnergyWatch()
    watch.compare("gpu", 1000.0, 100.0)
    assert watch.compare("gpu", joules, now) is None
