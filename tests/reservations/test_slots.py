"""When so many GPUs are free for so long, against a search that tries every second."""

from hypothesis import given
from hypothesis import strategies as st

from gpudeck.model.reservation import ReservedGpu
from gpudeck.reservations.conflicts import choose, find_slot, is_free
from gpudeck.reservations.requests import peak
from reservations.fleet import make_reservation

GPUS = [ReservedGpu(f"{host}{index}", host, str(index)) for host in "ab" for index in range(2)]


@st.composite
def spans(draw: st.DrawFn) -> list[tuple[float, float]]:
    """Some that do not touch each other's time."""
    edges = sorted(draw(st.sets(st.integers(0, 30), max_size=6)))
    return [(float(start), float(end)) for start, end in zip(edges[::2], edges[1::2], strict=False)]


@given(st.lists(spans(), min_size=4, max_size=4), st.integers(1, 4), st.integers(1, 8), st.booleans())
def test_slot_is_the_first_that_there_is(
    taken: list[list[tuple[float, float]]], count: int, length: int, same_host: bool
) -> None:
    by_uuid = {gpu.uuid: found for gpu, found in zip(GPUS, taken, strict=True)}

    def is_possible(start: int) -> bool:
        free = [gpu for gpu in GPUS if all(e <= start or s >= start + length for s, e in by_uuid[gpu.uuid])]
        largest = max(sum(gpu.host == host for gpu in free) for host in "ab")
        return (largest if same_host else len(free)) >= count

    wanted = next((start for start in range(40) if is_possible(start)), None)
    slot = find_slot(GPUS, by_uuid, count=count, length=length, earliest=0, same_host=same_host)
    assert (slot and slot.start) == wanted
    chosen = slot.gpus if slot else []
    assert all(is_free(by_uuid[gpu.uuid], slot.start, slot.end) for gpu in chosen if slot)
    assert len({gpu.uuid for gpu in chosen}) == len(chosen) == (count if slot else 0)
    assert len({gpu.host for gpu in chosen}) <= (1 if same_host else 2)


def test_smallest_host_that_has_enough_is_taken() -> None:
    assert choose([*GPUS[:2], GPUS[2]], 1, same_host=False) == [GPUS[2]]
    assert choose([*GPUS[:2], GPUS[2]], 2, same_host=True) == GPUS[:2]
    assert choose(GPUS[1:3], 2, same_host=True) is None
    assert choose(GPUS, 5, same_host=False) is None


def test_peak_counts_what_is_at_the_same_time() -> None:
    first = make_reservation("A0", "A1", start=0.0, end=10.0)
    second = make_reservation("A2", start=10.0, end=20.0)
    third = make_reservation("A3", start=9.0, end=12.0)
    assert [peak([]), peak([first, second]), peak([first, second, third])] == [0, 2, 3]
