"""What waits for the hub: bounded, in order, the oldest gone first."""

from gpudeck.agent.outbox import Outbox, Parcel


def parcels(count: int, size: int = 10) -> list[Parcel]:
    return [Parcel("gpu01", bytes([n]) * size) for n in range(count)]


def take_all(outbox: Outbox) -> list[int]:
    taken = []
    while (parcel := outbox.wait(timeout=0)) is not None:
        taken.append(parcel.body[0])
        outbox.done(parcel)
    return taken


def fill(outbox: Outbox, count: int) -> None:
    for parcel in parcels(count):
        outbox.put(parcel)


def test_reports_leave_in_the_order_they_came() -> None:
    outbox = Outbox(most_reports=100, most_bytes=10_000)
    fill(outbox, 5)
    assert take_all(outbox) == [0, 1, 2, 3, 4]


def test_a_full_outbox_drops_the_oldest_and_counts_it() -> None:
    outbox = Outbox(most_reports=3, most_bytes=10_000)
    fill(outbox, 5)
    assert (take_all(outbox), outbox.dropped) == ([2, 3, 4], 2)


def test_bytes_are_bounded_too() -> None:
    outbox = Outbox(most_reports=100, most_bytes=35)
    fill(outbox, 5)
    assert take_all(outbox) == [2, 3, 4]


def test_one_report_is_kept_however_large() -> None:
    outbox = Outbox(most_reports=100, most_bytes=5)
    fill(outbox, 2)
    assert take_all(outbox) == [1]


def test_a_report_dropped_while_it_was_sent_takes_no_other_with_it() -> None:
    outbox = Outbox(most_reports=2, most_bytes=10_000)
    first, second, third = parcels(3)
    outbox.put(first)
    sending = outbox.wait(timeout=0)
    outbox.put(second)
    outbox.put(third)
    assert sending is first
    outbox.done(first)
    assert take_all(outbox) == [1, 2]


def test_what_waits_in_another_is_taken_over_in_order_and_within_the_limits() -> None:
    before, after = Outbox(10, 1000), Outbox(2, 1000)
    for number in range(3):
        before.put(Parcel("gpu01", bytes([number])))
    after.take_over(before)
    first = after.wait(0)
    assert first is not None
    assert (first.body, len(after), after.dropped) == (b"\x01", 2, 1)
