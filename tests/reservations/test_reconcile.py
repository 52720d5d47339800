"""What follows from who is seen on reserved GPUs: conflicts, overruns, no-shows."""

from collections.abc import Sequence
from typing import Any

import pytest

from gpudeck.model.reservation import Reservation
from gpudeck.reservations.requests import ObservedGpu, Occupant
from gpudeck.reservations.service import Reconciler, ReconcileResult
from gpudeck.reservations.settings import ReservationSettings
from reservations.fleet import HOUR, NOW, make_fleet, make_gpu, make_reservation

LOGINS: dict[str, frozenset[str] | None] = {"ada": frozenset({"ada", "lovelace"}), "local admin": None}


class Watch:
    """A reconciler that looks once a minute."""

    def __init__(self, *reservations: Reservation, **settings: Any) -> None:
        self.rules = Reconciler(ReservationSettings(**settings), LOGINS.__getitem__)
        self.reservations = reservations
        self.now = NOW

    def reconcile(self, *gpus: ObservedGpu) -> ReconcileResult:
        return self.rules.reconcile(self.reservations, make_fleet(*gpus), self.now)

    def watch(self, minutes: int, *gpus: ObservedGpu) -> list[ReconcileResult]:
        found = []
        for _ in range(minutes):
            self.now += 60
            found.append(self.reconcile(*gpus))
        return found


def kinds(findings: Sequence[ReconcileResult]) -> list[str]:
    return [event.kind for one in findings for event in one.events]


EMPTY = make_gpu("A0")
UNREADABLE = make_gpu("A0", availability="unknown", occupants=None)


def test_stranger_on_a_reserved_gpu_is_shown_and_told_once() -> None:
    watch = Watch(make_reservation())
    found = [watch.reconcile(make_gpu("A0", "gpu01", 0, "bob")), *watch.watch(5, make_gpu("A0", "gpu01", 0, "bob"))]
    assert {one.marks["A0"].conflict for one in found} == {"bob is on it, though it is reserved by ada"}
    assert kinds(found) == ["reservation_conflict"]
    (event,) = found[0].events
    assert event.title == "bob is on GPU 0 of gpu01, which is reserved by ada"
    assert (event.user, event.gpu, event.severity, event.at) == ("bob", "A0", "warning", NOW)


def test_owner_under_any_of_their_logins_is_no_stranger() -> None:
    (found,) = Watch(make_reservation()).watch(1, make_gpu("A0", "gpu01", 0, "lovelace"))
    assert (found.marks["A0"].conflict, found.events) == (None, [])
    assert [one.id for one in found.used] == [7]


def test_process_of_nobody_known_is_no_conflict_and_no_absence() -> None:
    seen = make_gpu("A0", availability="busy", occupants=(Occupant(None),))
    found = Watch(make_reservation()).watch(90, seen)
    assert kinds(found) == []
    assert not any(one.unused or one.used for one in found)


def test_owner_without_a_login_is_taken_for_whoever_is_there() -> None:
    (found,) = Watch(make_reservation(user="local admin")).watch(1, make_gpu("A0", "gpu01", 0, "bob"))
    assert (found.marks["A0"].conflict, len(found.used)) == (None, 1)


def test_claim_is_shown_as_such() -> None:
    claim = make_reservation(kind="claim", end=NOW + 120)
    found = Watch(claim).reconcile(make_gpu("A0", "gpu01", 0, "bob"))
    assert found.marks["A0"].conflict == "bob is on it, though it is claimed for ada"
    assert found.marks["A0"].reservation is not None
    assert found.marks["A0"].reservation.kind == "claim"


def test_nobody_came_first_a_warning_then_the_release() -> None:
    watch = Watch(make_reservation())
    before = watch.watch(46, EMPTY)
    assert kinds(before) == ["reservation_unused"]
    assert before[-1].events[0].title == "ada's reservation of GPU 0 of gpu01 is released in 15m if nobody uses it"
    after = watch.watch(15, EMPTY)
    assert [bool(one.unused) for one in after] == [False] * 14 + [True]


def test_who_came_once_may_leave_again() -> None:
    watch = Watch(make_reservation(used_at=NOW + 60))
    assert not any(one.unused or one.events for one in watch.watch(300, EMPTY))


def test_one_used_gpu_keeps_the_whole_group() -> None:
    watch = Watch(make_reservation("A0", "A1"))
    found = watch.watch(90, EMPTY, make_gpu("A1", "gpu01", 1, "ada"))
    assert not any(one.unused for one in found)
    assert found[0].used


@pytest.mark.parametrize("instead", [UNREADABLE, make_gpu("A0", "gpu01", 0, "bob"), make_gpu("else")])
def test_time_in_which_it_could_not_be_had_or_seen_does_not_count(instead: ObservedGpu) -> None:
    watch = Watch(make_reservation())
    found = [*watch.watch(50, EMPTY), *watch.watch(1, instead), *watch.watch(50, EMPTY)]
    assert not any(one.unused for one in found)
    assert any(one.unused for one in watch.watch(11, EMPTY))


def test_no_show_can_be_off() -> None:
    assert not any(one.unused or one.events for one in Watch(make_reservation(), no_show="off").watch(300, EMPTY))


def test_who_stays_after_the_end_is_told_once() -> None:
    watch = Watch(make_reservation(end=NOW + HOUR))
    watch.now = NOW + HOUR
    found = watch.watch(3, make_gpu("A0", "gpu01", 0, "ada"))
    assert found[0].marks["A0"].conflict == "ada is still on it: ada's reservation has ended"
    assert found[0].marks["A0"].reservation is None
    assert kinds(found) == ["reservation_overrun"]


def test_who_came_after_the_end_uses_a_free_gpu() -> None:
    watch = Watch(make_reservation(end=NOW + HOUR))
    watch.now = NOW + 2 * HOUR
    late = make_gpu("A0", availability="busy", occupants=(Occupant("ada", NOW + 1.5 * HOUR),))
    (found,) = watch.watch(1, late)
    assert found == ReconcileResult()


def test_who_stays_into_the_reservation_of_another_is_in_conflict() -> None:
    ended = make_reservation(id=6, end=NOW + HOUR)
    mine = make_reservation(id=7, user="bob", start=NOW + HOUR, end=NOW + 2 * HOUR)
    rules = Reconciler(ReservationSettings(), lambda user: frozenset({user}))
    found = rules.reconcile([ended, mine], make_fleet(make_gpu("A0", "gpu01", 0, "ada")), NOW + HOUR)
    assert found.marks["A0"].conflict == "ada is on it, though it is reserved by bob"
    assert [event.kind for event in found.events] == ["reservation_conflict"]


def test_gpu_that_has_vanished_keeps_its_reservation() -> None:
    (found,) = Watch(make_reservation()).watch(1)
    assert found.marks["A0"].reservation is not None
    assert (found.marks["A0"].conflict, found.unused) == (None, [])


def test_planned_and_cancelled_ones_show_nothing() -> None:
    planned = make_reservation(id=1, start=NOW + HOUR)
    cancelled = make_reservation(id=2, released_at=NOW - 60)
    assert Watch(planned, cancelled).reconcile(EMPTY) == ReconcileResult()
