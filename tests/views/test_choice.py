"""Part of a fleet: whole names of hosts, words, users; and totals that fit."""

import pytest

from fakes.fleets import fleet_of
from fakes.reports import make_busy_gpu, make_gpu
from gpudeck.views.filter import choose_hosts, choose_user, choose_words, forget_states, near_hosts

FLEET = fleet_of(
    ("gpu1", [make_gpu(0), make_busy_gpu(1)]),
    ("gpu10", [make_gpu(0), make_busy_gpu(1, user="alice2")]),
    ("gpu11", [make_busy_gpu(0, user="bob")]),
    ("bare", []),
)


def names_of(text: str) -> list[str]:
    part, _ = choose_words(FLEET, text)
    return [f"{host.name}:{','.join(gpu.label for gpu in host.gpus)}" for host in part.hosts]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ["bare:", "gpu1:0,1", "gpu10:0,1", "gpu11:0"]),
        ("gpu1", ["gpu1:0,1"]),
        ("GPU1", ["gpu1:0,1"]),
        ("gpu1 gpu11", ["gpu1:0,1", "gpu11:0"]),
        ("gpu", ["gpu1:0,1", "gpu10:0,1", "gpu11:0"]),
        ("gpu1 gpu11 busy", ["gpu1:1", "gpu11:0"]),
        ("bare", ["bare:"]),
        ("bare free", []),
        ("free", ["gpu1:0", "gpu10:0"]),
        ("user:alice", ["gpu1:1", "gpu10:1"]),
        ("-gpu1", ["bare:"]),
        ("nothing-like-it", []),
    ],
)
def test_whole_names_mean_these_hosts_and_other_words_what_they_mean_on_the_page(text: str, found: list[str]) -> None:
    assert names_of(text) == found


def test_totals_are_those_of_what_was_chosen() -> None:
    everybody = [host.name for host in FLEET.hosts]
    assert choose_hosts(FLEET, everybody).totals == FLEET.totals
    part, _ = choose_words(FLEET, "free")
    counted = part.totals
    assert (counted.gpus, counted.free, counted.busy, counted.hosts, counted.hosts_up) == (2, 2, 0, 2, 2)


def test_user_is_a_whole_name() -> None:
    assert [host.name for host in choose_user(FLEET, "alice").hosts] == ["gpu1"]


def test_names_that_are_near() -> None:
    assert near_hosts(FLEET, "GPU12") == ["gpu1", "gpu11", "gpu10"]
    assert near_hosts(FLEET, "zzz") == []


def test_states_of_a_lost_hub_are_unknown_and_never_free() -> None:
    lost = forget_states(FLEET, "the hub is out of reach")
    gpus = [gpu for host in lost.hosts for gpu in host.gpus]
    assert {gpu.availability for gpu in gpus} == {"unknown"}
    assert {gpu.availability_reason for gpu in gpus} == {"the hub is out of reach"}
    assert (lost.totals.free, lost.totals.unknown, lost.totals.hosts_up) == (0, 5, 0)
    assert [gpu.last_seen for gpu in lost.hosts[1].gpus] == ["free", "busy"]
