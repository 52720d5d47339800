"""Reservation, changing and giving back, on SQLite and on PostgreSQL: what is allowed, what is refused and why."""

from collections.abc import Coroutine
from typing import Any

import pytest

from fakes.clock import FakeClock
from gpudeck.database.engine import Database
from gpudeck.model.gpu_request import GpuRequest
from gpudeck.model.reservation import Reservation
from gpudeck.reservations.calendar import ReservationCalendar
from gpudeck.reservations.conflicts import Conflict
from gpudeck.reservations.requests import (
    Change,
    ObservedGpu,
    Requester,
    ReservationDraft,
    ReservationRefused,
    ReservationRequest,
)
from gpudeck.reservations.store import ReservationQuery
from reservations.fleet import (
    ADA,
    BOB,
    DAY,
    FLEET,
    GIB,
    HOUR,
    NOW,
    ROOT,
    draft,
    make_calendar,
    make_fleet,
    make_gpu,
    run,
)


def reserve(calendar: ReservationCalendar, *uuids: str, who: Requester = ADA, **others: Any) -> Reservation:
    return run(calendar.reserve(draft(*uuids, **others), who, FLEET))


def uuids(reservation: Reservation) -> list[str]:
    return [gpu.uuid for gpu in reservation.gpus]


def refused(work: Coroutine[Any, Any, object]) -> ReservationRefused:
    with pytest.raises(ReservationRefused) as raised:
        run(work)
    return raised.value


def test_what_is_reserved_is_kept_and_counts_at_once(database: Database) -> None:
    heard: list[int] = []
    calendar = make_calendar(database, changed=lambda: heard.append(len(calendar.current())))
    made = reserve(calendar, "A0", "A1", note="a night's training")
    assert (made.user, made.start, made.end, made.version) == ("ada", NOW, NOW + 4 * HOUR, 1)
    assert heard == [2]
    assert run(calendar.search(ReservationQuery())) == [made]
    again = make_calendar(database)
    run(again.load())
    assert again.current() == {"A0": made, "A1": made}


def test_conflict_names_the_reservation_and_the_next_free_time(database: Database) -> None:
    calendar = make_calendar(database)
    first = reserve(calendar, "A0", note="until lunch")
    reserve(calendar, "A0", start=6, hours=2)
    error = refused(calendar.reserve(draft("A0", start=1, hours=3), BOB, FLEET))
    assert isinstance(error, Conflict)
    assert (error.code, error.conflicts) == ("conflict", [first])
    assert str(error).startswith("GPU 0 of gpu01 is reserved by ada (until lunch): reservation 1.")
    assert error.next_free is not None
    # Three hours do not fit between four and six.
    assert (error.next_free.start, error.next_free.end) == (NOW + 8 * HOUR, NOW + 11 * HOUR)


def test_one_may_begin_when_the_other_ends(database: Database) -> None:
    calendar = make_calendar(database)
    made = [
        reserve(calendar, "A0", start=4),
        reserve(calendar, "A0", who=BOB, hours=4),
        reserve(calendar, "A0", who=BOB, start=8),
    ]
    assert [one.start - NOW for one in made] == [4 * HOUR, 0, 8 * HOUR]
    assert refused(calendar.reserve(draft("A0", start=8 - 1 / 3600, hours=1), BOB, FLEET)).code == "conflict"


@pytest.mark.parametrize(
    ("wish", "found"),
    [
        ({"host": "gpu02"}, ["B0", "B1"]),
        ({"host": "gpu01", "labels": ("1",)}, ["A1"]),
        ({"count": 1}, ["B0"]),
        ({"count": 2, "memory_bytes": 60 * 2**30}, ["A0", "A1"]),
        ({"count": 2, "model": "a100"}, ["B0", "B1"]),
        ({"count": 1, "host": "gpu01"}, ["A0"]),
        ({"count": 3}, ["A0", "B0", "B1"]),
    ],
)
def test_gpus_are_found_by_what_is_said_of_them(database: Database, wish: dict[str, Any], found: list[str]) -> None:
    assert sorted(uuids(reserve(make_calendar(database), **wish))) == found


def test_any_gpus_are_never_some_that_others_use_or_nobody_can_read(database: Database) -> None:
    fleet = make_fleet(
        make_gpu("X", "gpu03", 0, "bob"), make_gpu("Y", "gpu03", 1, availability="unknown"), make_gpu("Z", "gpu03", 2)
    )
    calendar = make_calendar(database)
    assert uuids(run(calendar.reserve(draft(count=1), ADA, fleet))) == ["Z"]
    assert refused(calendar.reserve(draft(count=1), BOB, fleet)).code == "conflict"
    # Tomorrow bob may be gone.
    assert sorted(uuids(run(calendar.reserve(draft(count=2, start=24), BOB, fleet)))) == ["X", "Z"]


def test_two_on_one_host_wait_until_one_host_has_two(database: Database) -> None:
    calendar = make_calendar(database)
    reserve(calendar, "A0", hours=2)
    reserve(calendar, "B0", hours=5)
    error = refused(calendar.reserve(draft(count=2, same_host=True, hours=1), BOB, FLEET))
    assert isinstance(error, Conflict)
    assert error.next_free is not None
    assert (error.next_free.start, [gpu.uuid for gpu in error.next_free.gpus]) == (NOW + 2 * HOUR, ["A0", "A1"])
    assert sorted(uuids(reserve(calendar, who=BOB, count=2, hours=1))) == ["A1", "B1"]


def test_of_equal_gpus_one_that_nobody_is_on_now_is_reserved_for_later(database: Database) -> None:
    fleet = make_fleet(make_gpu("X0", "gpu03", 0, "eve"), make_gpu("X1", "gpu03", 1))
    calendar = make_calendar(database)
    assert uuids(run(calendar.reserve(draft(count=1, start=24), BOB, fleet))) == ["X1"]


def test_free_gpus_with_slightly_more_memory_come_before_those_in_use(database: Database) -> None:
    calendar = make_calendar(database)
    used = [make_gpu(f"A{at}", "gpu01", at, "eve", memory_total_bytes=79 * GIB) for at in range(4)]
    free = [make_gpu(f"B{at}", "gpu02", at) for at in range(4)]
    plan = run(calendar.preview(draft(count=4, start=24, same_host=True), BOB, make_fleet(*used, *free)))
    assert {gpu.host for gpu in plan.gpus} == {"gpu02"}


@pytest.mark.parametrize("same_host", [True, False])
def test_of_equal_hosts_one_with_gpus_that_nobody_is_on_is_reserved_for_later(
    database: Database, same_host: bool
) -> None:
    used = [make_gpu(f"U{index}", "gpu01", index, "eve") for index in range(2)]
    half = [make_gpu("H0", "gpu02", 0, "eve"), make_gpu("H1", "gpu02", 1), make_gpu("H2", "gpu02", 2, "eve")]
    unused = [make_gpu(f"F{index}", "gpu03", index) for index in range(4)]
    calendar = make_calendar(database)

    def ask(*gpus: ObservedGpu, count: int = 2) -> list[str]:
        plan = run(calendar.preview(draft(count=count, start=24, same_host=same_host), BOB, make_fleet(*gpus)))
        return [gpu.uuid for gpu in plan.gpus]

    assert ask(*used, *half, *unused) == ["F0", "F1"]
    # Half of what is needed is better than nothing; one host is better than two.
    assert ask(*used, *half) == ["H1", "H0"]
    # As many are unused on both: the smaller host, so that the larger stays whole.
    assert ask(*used, *half, *unused, count=1) == ["H1"]


def test_next_free_is_now_where_nothing_is_reserved(database: Database) -> None:
    calendar = make_calendar(database)
    slot = run(calendar.next_free(ReservationRequest(any=GpuRequest(gpus=2, memory_bytes=60 * 2**30)), 4 * HOUR, FLEET))
    assert slot is not None
    assert (slot.start, [gpu.uuid for gpu in slot.gpus]) == (NOW, ["A0", "A1"])


def test_next_free_is_not_known_where_all_are_in_use_without_an_end(database: Database) -> None:
    fleet = make_fleet(make_gpu("X", "gpu03", 0, "bob"))
    assert run(make_calendar(database).next_free(ReservationRequest(any=GpuRequest(gpus=1)), HOUR, fleet)) is None


def test_used_gpu_is_claimed_by_its_user_alone(database: Database) -> None:
    fleet = make_fleet(make_gpu("X", "gpu03", 0, "lovelace"))
    calendar = make_calendar(database)
    error = refused(calendar.reserve(draft("X"), BOB, fleet))
    assert (error.code, error.message) == ("in_use", "GPU 0 of gpu03 is in use by lovelace now.")
    assert run(calendar.reserve(draft("X"), ADA, fleet)).user == "ada"


def test_admin_books_for_another_and_what_is_in_use(database: Database) -> None:
    fleet = make_fleet(make_gpu("X", "gpu03", 0, "lovelace"))
    made = run(make_calendar(database).reserve(draft("X", hours=24 * 60), BOB, fleet, by=ROOT))
    assert (made.user, made.created_by) == ("bob", "root")


@pytest.mark.parametrize(
    ("wanted", "code", "words"),
    [
        (draft("A0", start=-1), "past", "the start is 1h ago."),
        (
            ReservationDraft(wanted=ReservationRequest(gpus=("A0",)), start=NOW + 2 * HOUR, end=NOW + HOUR),
            "bad_request",
            "before it begins",
        ),
        (ReservationDraft(wanted=ReservationRequest(gpus=("A0",)), end=NOW - 1), "past", "the end is in the past"),
        (
            ReservationDraft(wanted=ReservationRequest(gpus=("A0",)), end=NOW, start=NOW),
            "past",
            "the end is in the past",
        ),
        (draft("A0", hours=0), "past", "the end is in the past"),
        (draft("A0", hours=0, start=1), "bad_request", "before it begins"),
        (draft("A0", hours=float("inf")), "bad_request", "a time has to be a number"),
        (draft("A0", hours=1e9), "bad_request", "more than ten years away"),
        (draft("A0", hours=0.01), "bad_request", "The shortest is a minute"),
        (ReservationDraft(wanted=ReservationRequest(gpus=("A0",))), "bad_request", "either an end or a length"),
        (draft("A9"), "unknown_gpu", "there is no GPU 'A9'"),
        (draft(host="gpu09"), "unknown_gpu", "there is no host 'gpu09' with GPUs"),
        (draft(host="gpu01", labels=("7",)), "unknown_gpu", "gpu01 has no GPU '7'. It has 0, 1."),
        (draft(), "bad_request", "no GPU is named"),
        (draft(count=0), "bad_request", "from 1 to 1024"),
        (draft(count=3, model="H100"), "unknown_gpu", "has only 2 such GPUs"),
        (draft("A0", hours=24 * 8), "limit", "8d is too long: the longest is 7d. The limit is reservations.longest"),
        (draft("A0", hours=24 * 7 + 0.5), "limit", "7d 30m is too long: the longest is 7d."),
        (draft("A0", start=24 * 31), "limit", "reservations.ahead"),
        (draft("A0", "A1", "B0"), "limit", "3 GPUs are too many: the most is 2. The limit is reservations.most_gpus"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    database: Database, wanted: ReservationDraft, code: str, words: str
) -> None:
    calendar = make_calendar(database, most_gpus=2)
    error = refused(calendar.reserve(wanted, ADA, FLEET))
    assert error.code == code
    assert words in str(error)
    assert run(calendar.search(ReservationQuery())) == []


def test_limit_of_gpus_is_about_one_time(database: Database) -> None:
    calendar = make_calendar(database, most_gpus=2)
    reserve(calendar, "A0", "A1")
    reserve(calendar, "B0", "B1", start=4)
    error = refused(calendar.reserve(draft("B0", hours=1), ADA, FLEET))
    assert "1 GPU is too many, and 2 are reserved then already" in error.message


def test_start_a_moment_ago_means_now(database: Database) -> None:
    calendar = make_calendar(database)
    made = run(
        calendar.reserve(
            ReservationDraft(wanted=ReservationRequest(gpus=("A0",)), start=NOW - 60, length=HOUR), ADA, FLEET
        )
    )
    assert (made.start, made.end) == (NOW, NOW + HOUR)


def test_reservation_is_extended_shortened_and_noted(database: Database) -> None:
    clock = FakeClock(NOW)
    calendar = make_calendar(database, clock)
    made = reserve(calendar, "A0")
    clock.advance(HOUR)
    edit = run(calendar.change(made.id, Change(version=1, end=NOW + 6 * HOUR, note="longer"), ADA, FLEET))
    assert (edit.before, edit.after.end, edit.after.note, edit.after.version) == (made, NOW + 6 * HOUR, "longer", 2)
    shorter = run(calendar.change(made.id, Change(length=2 * HOUR), ADA, FLEET)).after
    assert (shorter.start, shorter.end, shorter.version) == (NOW, NOW + 2 * HOUR, 3)


def test_group_moves_as_one(database: Database) -> None:
    calendar = make_calendar(database)
    made = reserve(calendar, "A0", "A1", start=1)
    moved = run(calendar.change(made.id, Change(start=NOW + 5 * HOUR), ADA, FLEET)).after
    assert (moved.start, moved.end, uuids(moved)) == (NOW + 5 * HOUR, NOW + 9 * HOUR, ["A0", "A1"])
    moved = run(calendar.change(made.id, Change(wanted=ReservationRequest(host="gpu02")), ADA, FLEET)).after
    assert (moved.id, uuids(moved)) == (made.id, ["B0", "B1"])
    assert run(calendar.search(ReservationQuery())) == [moved]


def test_one_that_runs_leaves_its_past_where_it_was(database: Database) -> None:
    clock = FakeClock(NOW)
    calendar = make_calendar(database, clock)
    made = reserve(calendar, "A0")
    clock.advance(HOUR)
    moved = run(calendar.change(made.id, Change(wanted=ReservationRequest(gpus=("B0",))), ADA, FLEET)).after
    past, rest = run(calendar.search(ReservationQuery()))
    assert (uuids(past), past.start, past.end) == (["A0"], NOW, NOW + HOUR)
    assert (rest, uuids(rest), rest.start, rest.end) == (moved, ["B0"], NOW + HOUR, NOW + 4 * HOUR)
    reserve(calendar, "A0", who=BOB, start=1)


def test_change_into_the_time_of_another_is_a_conflict(database: Database) -> None:
    calendar = make_calendar(database)
    mine = reserve(calendar, "A0", hours=2)
    theirs = reserve(calendar, "A0", who=BOB, start=2)
    error = refused(calendar.change(mine.id, Change(end=NOW + 3 * HOUR), ADA, FLEET))
    assert isinstance(error, Conflict)
    assert error.conflicts == [theirs]
    assert run(calendar.find(mine.id)) == mine


@pytest.mark.parametrize(
    ("change", "by", "code"),
    [
        (Change(note="mine"), BOB, "forbidden"),
        (Change(start=NOW + HOUR), ADA, "past"),
        (Change(end=NOW - HOUR), ADA, "past"),
        (Change(version=7, note="x"), ADA, "changed"),
        (Change(length=8 * DAY), ADA, "limit"),
    ],
)
def test_change_that_cannot_be_is_refused(database: Database, change: Change, by: Requester, code: str) -> None:
    calendar = make_calendar(database)
    made = reserve(calendar, "A0")
    assert refused(calendar.change(made.id, change, by, FLEET)).code == code
    assert run(calendar.find(made.id)) == made


def test_what_an_admin_made_longer_can_be_shortened_by_its_owner(database: Database) -> None:
    calendar = make_calendar(database)
    made = run(calendar.reserve(draft("A0", hours=24 * 20), ADA, FLEET, by=ROOT))
    assert run(calendar.change(made.id, Change(length=15 * DAY), ADA, FLEET)).after.end == NOW + 15 * DAY


def test_release_of_one_that_runs_keeps_its_past(database: Database) -> None:
    clock = FakeClock(NOW)
    calendar = make_calendar(database, clock)
    made = reserve(calendar, "A0")
    clock.advance(HOUR + 0.7)
    after = run(calendar.release(made.id, ADA)).after
    assert (after.state_at(clock.now), after.end, after.release_reason) == (
        "released",
        NOW + HOUR,
        "given back by ada",
    )
    assert calendar.current() == {}
    assert run(calendar.search(ReservationQuery())) == [after]
    # Free for others in the same second.
    reserve(calendar, "A0", who=BOB, start=None)


def test_release_before_the_beginning_leaves_nothing_in_the_calendar(database: Database) -> None:
    calendar = make_calendar(database)
    made = reserve(calendar, "A0", start=2)
    assert run(calendar.release(made.id, ROOT)).after.state_at(NOW) == "cancelled"
    assert run(calendar.search(ReservationQuery())) == []
    assert run(calendar.find(made.id)).is_cancelled
    assert refused(calendar.release(made.id, ADA)).code == "over"
    assert refused(calendar.release(99, ADA)).code == "not_found"
    assert refused(calendar.change(made.id, Change(note="x"), ADA, FLEET)).code == "over"


def test_release_is_for_the_owner_and_admins(database: Database) -> None:
    calendar = make_calendar(database)
    made = reserve(calendar, "A0")
    assert refused(calendar.release(made.id, BOB)).code == "forbidden"
    assert run(calendar.release(made.id, ROOT)).after.released_at == NOW


def test_what_nobody_used_is_released_unless_somebody_came_meanwhile(database: Database) -> None:
    clock = FakeClock(NOW)
    calendar = make_calendar(database, clock)
    unused, used = reserve(calendar, "A0"), reserve(calendar, "A1")
    clock.advance(HOUR)
    run(calendar.note_use(used))
    edit = run(calendar.release_unused(unused.id))
    assert edit is not None
    assert edit.after.release_reason == "nobody used it"
    assert run(calendar.release_unused(used.id)) is None
    assert run(calendar.find(used.id)).used_at == NOW + HOUR
    assert [one.id for one in calendar.current().values()] == [used.id]


def test_claim_keeps_others_away_until_it_ends(database: Database) -> None:
    clock = FakeClock(NOW + 0.5)
    calendar = make_calendar(database, clock)
    gpu = FLEET["A0"].reserved
    number = run(calendar.claim([gpu], "ada", 120))
    claim = run(calendar.find(number))
    assert (claim.kind, claim.end) == ("claim", NOW + 121)
    assert refused(calendar.claim([gpu], "bob", 120)).code == "conflict"
    assert refused(calendar.claim([gpu], "ada", 120)).code == "conflict"
    assert "is claimed by ada" in str(refused(calendar.reserve(draft("A0"), BOB, FLEET)))
    for _ in range(2):
        run(calendar.end_claim(number))
    run(calendar.claim([gpu], "bob", 120))
    clock.advance(121)
    run(calendar.claim([gpu], "ada", 120))


def test_claim_is_extended_until_others_have_the_gpu(database: Database) -> None:
    clock = FakeClock(NOW)
    calendar = make_calendar(database, clock)
    number = run(calendar.claim([FLEET["A0"].reserved], "ada", 120))
    reserve(calendar, "A0", who=BOB, start=1)
    clock.now += 100
    assert run(calendar.extend_claim(number, clock.now + 120))
    assert (run(calendar.find(number)).end, calendar.current()["A0"].id) == (NOW + 220, number)
    assert refused(calendar.extend_claim(number, NOW + HOUR + 1)).code == "conflict"
    run(calendar.end_claim(number))
    assert not run(calendar.extend_claim(number, NOW + 300))


def test_who_has_claimed_a_gpu_can_reserve_it_and_who_reserved_it_can_claim_it(database: Database) -> None:
    calendar = make_calendar(database)
    run(calendar.claim([FLEET["A0"].reserved], "ada", 120))
    made = reserve(calendar, "A0")
    assert calendar.current() == {"A0": made}
    run(calendar.claim([FLEET["A0"].reserved], "ada", 120))


def test_names_and_notes_of_any_script_are_kept(database: Database) -> None:
    note = "обучение  訓練\n🤹🏽‍♀️ می‌خواهم\0"
    made = run(make_calendar(database).reserve(draft("A0", note=note), Requester("Zoë"), FLEET, by=ROOT))
    assert (made.user, made.note) == ("Zoë", "обучение 訓練 🤹🏽‍♀️ می‌خواهم")


def test_only_what_is_asked_for_is_found(database: Database) -> None:
    calendar = make_calendar(database)
    first, second = reserve(calendar, "A0", hours=1), reserve(calendar, "B0", who=BOB, start=2, hours=1)

    def find(**ask: Any) -> list[Reservation]:
        return run(calendar.search(ReservationQuery(**ask)))

    assert find(start=NOW + HOUR) == [second]
    assert find(end=NOW + 2 * HOUR) == [first]
    assert find(host="gpu02") == [second]
    assert find(gpu="A0") == [first]
    assert find(user="bob") == [second]
    assert find(limit=1) == [first]
    assert find(user="b\0b") == find(host="\ud800") == []


def test_what_another_hub_wrote_is_seen_after_a_second(database_address: str | None, database: Database) -> None:
    clock = FakeClock(NOW)
    here, there = make_calendar(database, clock), make_calendar(database, clock)
    run(here.load())
    made = reserve(there, "A0")
    assert here.current() == {}
    # On SQLite there is one hub alone, which looks when more may have come near.
    clock.advance(600 if database_address is None else 1)
    run(here.refresh())
    assert here.current() == {"A0": made}
