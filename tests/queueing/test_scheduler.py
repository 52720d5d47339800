"""Who gets which GPUs: in order, each GPU once, and nobody is overtaken for ever."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fakes.offers import GIB, granted, make_offer, make_request
from gpudeck.model.gpu_request import CandidateGpu, choose, is_usable, matches
from gpudeck.queueing.scheduler import Request, Schedule, schedule

PATIENCE = 600.0


def given_to(found: Schedule) -> dict[int, list[str]]:
    return {grant.request: [gpu.uuid for gpu in grant.gpus] for grant in found.grants}


def hosts(taken: int = 0, **sizes: int) -> list[CandidateGpu]:
    """The first `taken` GPUs of each host have somebody on them."""
    return [
        make_offer(host, index, state="taken" if index < taken else "usable")
        for host, size in sizes.items()
        for index in range(size)
    ]


def test_who_came_first_is_served_first() -> None:
    requests = [make_request(3, at=3), make_request(1, at=1), make_request(2, at=2)]
    assert given_to(schedule(requests, hosts(a=2), 10)) == {1: ["GPU-a-0"], 2: ["GPU-a-1"]}


def test_small_request_passes_a_large_one_that_cannot_be_served_yet() -> None:
    requests = [make_request(1, at=0, gpus=4), make_request(2, at=1)]
    found = schedule(requests, hosts(2, a=4), 10, patience=PATIENCE)
    assert (given_to(found), found.claimed) == ({2: ["GPU-a-2"]}, {})


def test_what_becomes_free_is_kept_for_the_first_once_its_patience_is_over() -> None:
    requests = [make_request(1, at=0, gpus=4), make_request(2, at=1)]
    found = schedule(requests, hosts(2, a=4), PATIENCE, patience=PATIENCE)
    assert (given_to(found), found.claimed) == ({}, {"GPU-a-2": 1, "GPU-a-3": 1})
    assert given_to(schedule(requests, hosts(a=4), PATIENCE, patience=PATIENCE)) == {
        1: [f"GPU-a-{at}" for at in range(4)]
    }


def test_second_large_request_keeps_nothing_of_what_the_first_one_wants() -> None:
    requests = [make_request(1, at=0, gpus=8), make_request(2, at=1, gpus=4), make_request(3, at=2)]
    found = schedule(requests, hosts(5, a=8), 5000, patience=PATIENCE)
    assert (given_to(found), set(found.claimed.values())) == ({}, {1})


def test_only_one_of_those_who_want_the_same_has_gpus_kept() -> None:
    requests = [
        make_request(1, at=0, gpus=4, same_host=True),
        make_request(2, at=1, gpus=6),
        make_request(3, at=2),
    ]
    found = schedule(requests, [*hosts(3, a=4), *hosts(2, b=4)], 5000, patience=PATIENCE)
    assert (given_to(found), found.claimed) == ({3: ["GPU-a-3"]}, {"GPU-b-2": 1, "GPU-b-3": 1})


def test_whoever_wants_other_gpus_is_the_first_of_those() -> None:
    requests = [make_request(1, at=0, gpus=2, host="a"), make_request(2, at=1, gpus=2, host="b")]
    found = schedule(requests, hosts(1, a=2, b=2), 5000, patience=PATIENCE)
    assert found.claimed == {"GPU-a-1": 1, "GPU-b-1": 2}


def test_what_the_fleet_does_not_have_holds_nobody_up() -> None:
    requests = [
        make_request(1, at=0, gpus=9, same_host=True),
        make_request(2, at=1, model="H900"),
        make_request(3, at=2),
    ]
    found = schedule(requests, hosts(7, a=8, b=8), 5000, patience=PATIENCE)
    assert (given_to(found), set(found.impossible), found.claimed) == ({3: ["GPU-a-7"]}, {1, 2}, {})


def test_gpus_of_a_silent_host_are_not_waited_for_at_the_expense_of_others() -> None:
    lost = [make_offer("b", index, state="unusable") for index in range(4)]
    requests = [make_request(1, at=0, gpus=4), make_request(2, at=1)]
    found = schedule(requests, [*hosts(a=1), *lost], 5000, patience=PATIENCE)
    assert (given_to(found), set(found.impossible)) == ({2: ["GPU-a-0"]}, {1})


def test_one_host_is_kept_that_can_ever_have_enough_and_lacks_the_fewest() -> None:
    gpus = [*hosts(1, small=3), *hosts(3, a=4), *hosts(2, b=4)]
    found = schedule([make_request(1, gpus=4, same_host=True)], gpus, 5000, patience=PATIENCE)
    assert found.claimed == {"GPU-b-2": 1, "GPU-b-3": 1}


def test_what_is_granted_is_nobody_elses_though_the_fleet_calls_it_free() -> None:
    gpus = hosts(a=2)
    requests = [make_request(1, at=0, granted=granted(gpus[0])), make_request(2, at=1, gpus=2), make_request(3, at=2)]
    assert given_to(schedule(requests, gpus, 10)) == {3: ["GPU-a-1"]}


def test_own_reservation_is_granted_to_its_owner_alone() -> None:
    gpus = [make_offer("a", 0, reserved_by="bob")]
    requests = [make_request(1, at=0, user="ada"), make_request(2, at=1, user="bob")]
    assert given_to(schedule(requests, gpus, 10)) == {2: ["GPU-a-0"]}


wishes = st.fixed_dictionaries(
    {"gpus": st.integers(1, 5), "same_host": st.booleans()},
    optional={
        "memory_bytes": st.sampled_from([40 * GIB, 100 * GIB]),
        "host": st.sampled_from(["a", "b"]),
        "near": st.sampled_from(["a", "b"]),
    },
)
fleets = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from(["usable", "taken", "unusable"]),
        st.sampled_from([24, 80, 140]),
        st.sampled_from([None, None, None, "ada", "bob"]),
    ),
    max_size=16,
)
lines = st.lists(st.tuples(st.integers(0, 50), st.sampled_from(["ada", "bob"]), wishes), max_size=12)


def make_fleet(rows: list[tuple[str, Any, int, str | None]]) -> list[CandidateGpu]:
    return [
        make_offer(host, at, state=state, memory_total_bytes=float(gib * GIB), reserved_by=reserved)
        for at, (host, state, gib, reserved) in enumerate(rows)
    ]


def make_line(rows: list[tuple[int, str, dict[str, Any]]]) -> list[Request]:
    return [make_request(at, at=float(when), user=user, **wish) for at, (when, user, wish) in enumerate(rows)]


@given(fleets, lines, st.sampled_from([10.0, 1000.0]))
def test_every_grant_is_exclusive_complete_and_of_what_is_usable(rows: Any, waiting: Any, now: float) -> None:
    gpus, requests = make_fleet(rows), make_line(waiting)
    found = schedule(requests, gpus, now, patience=PATIENCE)
    uuids = [gpu.uuid for grant in found.grants for gpu in grant.gpus]
    assert len(uuids) == len(set(uuids))
    assert not set(uuids) & found.claimed.keys()
    by_id = {one.id: one for one in requests}
    for grant in found.grants:
        wanted = by_id[grant.request].wanted
        assert len(grant.gpus) == wanted.gpus
        assert all(matches(gpu, wanted) and is_usable(gpu, (by_id[grant.request].user,)) for gpu in grant.gpus)
        assert len({gpu.host for gpu in grant.gpus}) <= (1 if wanted.same_host else wanted.gpus)


@given(fleets, lines, st.sampled_from([10.0, 1000.0]))
def test_first_in_line_is_served_whenever_it_can_be(rows: Any, waiting: Any, now: float) -> None:
    gpus, requests = make_fleet(rows), make_line([(0, "ada", {"gpus": 2}), *waiting])
    first = min(requests, key=lambda one: one.order)
    can_be = choose(first.wanted, [gpu for gpu in gpus if is_usable(gpu, (first.user,))]) is not None
    assert (first.id in given_to(schedule(requests, gpus, now, patience=PATIENCE))) == can_be


@given(fleets, lines)
def test_nobody_passes_an_equal_that_came_before(rows: Any, waiting: Any) -> None:
    requests = sorted(make_line(waiting), key=lambda one: one.order)
    served = given_to(schedule(requests, make_fleet(rows), 10, patience=PATIENCE))
    passed = [
        (before.id, after.id)
        for at, after in enumerate(requests)
        for before in requests[:at]
        if after.id in served and before.id not in served and (before.wanted, before.user) == (after.wanted, after.user)
    ]
    assert passed == []


@given(fleets, lines)
def test_everybody_is_served_in_the_end_by_what_the_fleet_has(rows: Any, waiting: Any) -> None:
    """Jobs end one by one, and each is followed by a newcomer who wants one GPU: the large ones come through."""
    gpus = [
        make_offer(gpu.host, gpu.index, state="taken", memory_total_bytes=gpu.memory_total_bytes)
        for gpu in make_fleet(rows)
    ]
    requests = make_line(waiting)
    hopeless = schedule(requests, gpus, 1000, patience=PATIENCE).impossible
    wanted = {one.id for one in requests} - hopeless
    states = {gpu.uuid: "taken" for gpu in gpus}
    line = [one for one in requests if one.id in wanted]
    for turn in range(60 * (len(line) + 1) if gpus else 0):
        states[gpus[turn % len(gpus)].uuid] = "usable"
        newcomer = make_request(1000 + turn, at=1000.0 + turn)
        now = [
            make_offer(gpu.host, gpu.index, state=states[gpu.uuid], memory_total_bytes=gpu.memory_total_bytes)
            for gpu in gpus
        ]
        found = given_to(schedule([*line, newcomer], now, 5000.0 + turn, patience=PATIENCE))
        states |= {uuid: "taken" for uuids in found.values() for uuid in uuids}
        line = [one for one in line if one.id not in found]
    assert line == []
