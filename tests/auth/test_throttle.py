"""Who has to wait before they log in: guessing is slow, and owners are not kept out."""

import itertools

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fakes.clock import FakeClock
from gpudeck.auth import login as module
from gpudeck.auth.login import FORGET_AFTER, FREE_TRIES, MAX_WAIT, NAME_BURST, NAME_WAIT, LoginThrottle

HOME, OFFICE = "198.51.100.7", "203.0.113.9"
HOUR = 3600.0
FEW_SECONDS = 5.0
TRIES_AN_HOUR = 60


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def throttle(clock: FakeClock) -> LoginThrottle:
    return LoginThrottle(clock)


def fail(throttle: LoginThrottle, name: str, address: str, times: int = 1) -> None:
    for _ in range(times):
        throttle.note_failure(name, address)


def flood(throttle: LoginThrottle, name: str, addresses: int) -> None:
    """One failure from each of many addresses."""
    for number in range(addresses):
        throttle.note_failure(name, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")


def test_the_first_tries_are_free(throttle: LoginThrottle) -> None:
    fail(throttle, "ada", HOME, FREE_TRIES - 1)
    assert throttle.wait_before("ada", HOME) == 0


def test_each_further_failure_doubles_the_wait_up_to_five_minutes(throttle: LoginThrottle, clock: FakeClock) -> None:
    fail(throttle, "ada", HOME, FREE_TRIES - 1)
    waits = []
    for _ in range(11):
        fail(throttle, "ada", HOME)
        waits.append(throttle.wait_before("ada", HOME))
        clock.advance(waits[-1])
        assert throttle.wait_before("ada", HOME) == 0
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, MAX_WAIT, MAX_WAIT]


def test_a_wait_is_the_same_for_every_way_to_write_the_name(throttle: LoginThrottle) -> None:
    fail(throttle, "ada", HOME, FREE_TRIES)
    assert throttle.wait_before("ADA", HOME) > 0


def test_failures_are_forgotten_after_a_while(throttle: LoginThrottle, clock: FakeClock) -> None:
    fail(throttle, "ada", HOME, FREE_TRIES + 3)
    clock.advance(FORGET_AFTER)
    fail(throttle, "ada", HOME, FREE_TRIES - 1)
    assert throttle.wait_before("ada", HOME) == 0


def test_success_wipes_out_the_failures_of_that_name_here(throttle: LoginThrottle) -> None:
    fail(throttle, "ada", HOME, FREE_TRIES)
    throttle.note_success("ada", HOME)
    assert throttle.wait_before("ada", HOME) == 0


def test_guessing_elsewhere_does_not_make_the_owner_wait(throttle: LoginThrottle) -> None:
    fail(throttle, "ada", OFFICE, 50)
    assert throttle.wait_before("ada", OFFICE) > 0
    assert throttle.wait_before("ada", HOME) == 0


def test_an_address_that_tries_many_names_waits_for_all_of_them(throttle: LoginThrottle, clock: FakeClock) -> None:
    for number in range(20):
        fail(throttle, f"name{number}", OFFICE)
    wait = throttle.wait_before("ada", OFFICE)
    clock.advance(wait)
    assert 0 < wait <= 90
    assert throttle.wait_before("ada", OFFICE) == 0


def test_success_with_an_own_account_does_not_wipe_out_guesses_at_others(throttle: LoginThrottle) -> None:
    for number in range(20):
        fail(throttle, f"name{number}", OFFICE)
        fail(throttle, "mallory", OFFICE)
        throttle.note_success("mallory", OFFICE)
    assert throttle.wait_before("ada", OFFICE) > 0


def test_whoever_logged_in_from_an_address_before_does_not_wait_for_others_there(throttle: LoginThrottle) -> None:
    fail(throttle, "ada", OFFICE)
    throttle.note_success("ada", OFFICE)
    for number in range(40):
        fail(throttle, f"name{number}", OFFICE)
    assert throttle.wait_before("ada", OFFICE) == 0
    assert throttle.wait_before("grace", OFFICE) > 0


def test_guesses_at_a_name_that_logged_in_there_before_wait_all_the_same(throttle: LoginThrottle) -> None:
    throttle.note_success("ada", OFFICE)
    fail(throttle, "ada", OFFICE, FREE_TRIES + 5)
    assert throttle.wait_before("ada", OFFICE) == 32


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:198.51.100.7", "198.51.100.7", True),
        ("198.51.100.7", "198.51.100.8", False),
        ("", "", True),
    ],
)
def test_one_attacker_has_a_whole_network_of_ipv6(throttle: LoginThrottle, one: str, other: str, is_same: bool) -> None:
    fail(throttle, "ada", one, 20)
    assert (throttle.wait_before("ada", other) > 0) is is_same


def test_a_name_tried_from_everywhere_makes_strangers_wait_a_little_and_then_go(
    throttle: LoginThrottle, clock: FakeClock
) -> None:
    flood(throttle, "ada", int(NAME_BURST))
    assert throttle.wait_before("ada", HOME) == NAME_WAIT
    assert throttle.wait_before("grace", HOME) == 0
    clock.advance(NAME_WAIT)
    flood(throttle, "ada", 500)
    assert throttle.wait_before("ada", HOME) == 0
    fail(throttle, "ada", HOME)
    assert throttle.wait_before("ada", HOME) == NAME_WAIT


def test_when_too_many_wait_for_one_name_nobody_does(throttle: LoginThrottle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 50)
    flood(throttle, "ada", 200)
    waits = [throttle.wait_before("ada", f"192.0.2.{number}") for number in range(60)]
    assert waits == [NAME_WAIT] * 50 + [0.0] * 10
    assert throttle.wait_before("ada", "192.0.2.3") == NAME_WAIT


NAMES = st.sampled_from(["ada", "grace", "mallory", "x" * 5000, ""])
ADDRESSES = st.integers(0, 2**32 - 1).map(lambda number: f"{number >> 24}.{number >> 16 & 255}.{number >> 8 & 255}.7")
PAUSES = st.floats(0, 4000)


@hypothesis_settings(max_examples=60)
@given(
    st.lists(st.tuples(st.text(max_size=100), ADDRESSES | st.text(max_size=100), PAUSES, st.booleans()), max_size=200)
)
def test_any_input_is_counted_in_bounded_memory(tries: list[tuple[str, str, float, bool]]) -> None:
    clock = FakeClock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_KEPT", 3)
        patch.setattr(module, "NAME_BURST", 1)
        throttle = LoginThrottle(clock)
        for name, address, pause, is_right in tries:
            clock.advance(pause)
            assert 0 <= throttle.wait_before(name, address) <= 90 * len(tries) + MAX_WAIT
            throttle.note_failure(name, address)
            [lambda *_: None, throttle.note_success][is_right](name, address)
    assert len(throttle) <= 3


@hypothesis_settings(max_examples=60)
@given(st.lists(st.tuples(ADDRESSES, st.integers(1, 40), st.floats(0, 120)), max_size=60), st.floats(0, 10))
def test_no_attacker_elsewhere_makes_the_owner_at_a_new_address_wait_more_than_seconds(
    attacks: list[tuple[str, int, float]], patience: float
) -> None:
    clock = FakeClock()
    throttle = LoginThrottle(clock)
    for address, times, pause in attacks:
        fail(throttle, "ada", address, times)
        clock.advance(pause)
    told = throttle.wait_before("ada", HOME)
    # The attack goes on while the owner waits, and a little longer.
    for address, times, _ in attacks:
        fail(throttle, "ada", address, times)
    clock.advance(told + patience)
    for address, times, _ in attacks:
        fail(throttle, "ada", address, times)
    assert told <= FEW_SECONDS
    assert told == 0 or throttle.wait_before("ada", HOME) == 0


@hypothesis_settings(max_examples=60)
@given(st.lists(NAMES, min_size=1, max_size=20), st.lists(st.floats(0, 30), min_size=1, max_size=20))
def test_an_attacker_gets_a_bounded_number_of_tries_an_hour_from_one_address(
    names: list[str], delays: list[float]
) -> None:
    clock = FakeClock()
    throttle = LoginThrottle(clock)
    turns = zip(itertools.cycle(names), itertools.cycle(delays), strict=False)
    end, tries = clock() + HOUR, 0
    while clock() < end:
        name, delay = next(turns)
        clock.advance(throttle.wait_before(name, OFFICE))
        assert throttle.wait_before(name, OFFICE) == 0
        clock.advance(delay)
        tries += clock() < end
        fail(throttle, name, OFFICE)
    assert tries <= TRIES_AN_HOUR


def test_tries_all_at_once_are_bounded_too(throttle: LoginThrottle) -> None:
    let_through = 0
    for number in range(1000):
        is_let_through = throttle.wait_before(f"name{number}", OFFICE) == 0
        fail(throttle, f"name{number}", OFFICE, times=int(is_let_through))
        let_through += is_let_through
    assert let_through == 20
