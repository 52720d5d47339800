"""Somebody is on a GPU that another has reserved: who is told of it, and how soon."""

from alerts.watched import NOW, Watched
from fakes.reports import make_busy_gpu
from gpudeck.model.reservation import GpuReservation, ReservationMark


def occupy(watched: Watched, user: str, owner: str = "ada") -> None:
    """The user is on the GPU that the owner has reserved."""
    watched.report("gpu01", make_busy_gpu(user=user))
    watched.step()
    reservation = GpuReservation(1, owner, NOW + 3600, "", "reservation")
    watched.hub.fleet.mark(
        {"GPU-0": ReservationMark(reservation, f"{user} is on it, though it is reserved by {owner}")}, NOW
    )


def told(watched: Watched) -> list[tuple[str, ...]]:
    return [message.accounts for message in watched.sent]


def test_both_are_told_within_half_a_minute() -> None:
    watched = Watched()
    occupy(watched, "bob")
    watched.run(25, step=1)
    assert told(watched) == [("ada", "bob")]


def test_whoever_comes_to_it_later_is_told_too_and_once() -> None:
    watched = Watched()
    occupy(watched, "bob")
    watched.run(60)
    occupy(watched, "carol")
    watched.run(600)
    assert told(watched) == [("ada", "bob"), ("ada", "carol")]
    assert watched.titles()[1] == "GPU 0 of gpu01: carol is on it, though it is reserved by ada"
    assert len({message.key for message in watched.sent}) == 2


def test_who_books_it_next_is_told_of_who_stayed() -> None:
    watched = Watched()
    occupy(watched, "bob")
    watched.run(60)
    occupy(watched, "bob", owner="eve")
    watched.run(60)
    assert told(watched) == [("ada", "bob"), ("eve", "bob")]
