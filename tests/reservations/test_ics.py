"""The calendar as other programs read it: validated with the icalendar package, which keeps to RFC 5545."""

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from icalendar import Calendar

from gpudeck.reservations.ics import escape, fold, write_calendar
from reservations.fleet import HOUR, NOW
from reservations.test_reconcile import make_reservation

KEPT = st.characters(exclude_categories=["Cc", "Cs"]) | st.just("\n")


def read(*reservations: Any, name: str = "GPUs") -> Calendar:
    calendar = Calendar.from_ical(write_calendar(reservations, name))
    assert isinstance(calendar, Calendar)
    return calendar


def test_reservation_becomes_an_event_of_its_time() -> None:
    one = make_reservation("A0", "A1", note="training; the big one, again", version=3, changed_at=NOW + 60)
    calendar = read(one, name="GPUs ada")
    (event,) = calendar.walk("VEVENT")
    assert (str(calendar["version"]), str(calendar["x-wr-calname"])) == ("2.0", "GPUs ada")
    assert str(calendar["prodid"]).startswith("-//gpudeck//")
    assert event["dtstart"].dt == datetime.fromtimestamp(NOW, UTC)
    assert event["dtend"].dt == datetime.fromtimestamp(NOW + 8 * HOUR, UTC)
    assert event["dtstamp"].dt == datetime.fromtimestamp(NOW + 60, UTC)
    assert (event["sequence"], str(event["summary"])) == (2, "ada: GPUs 0, 1 of gpu01")
    assert str(event["description"]) == "training; the big one, again\nGPUs 0, 1 of gpu01\nReservation 7"
    assert not calendar.errors
    assert not event.errors


def test_uid_stays_when_a_reservation_changes() -> None:
    before, after = make_reservation(), make_reservation(version=2, start=NOW + HOUR, note="moved")
    uids = {str(event["uid"]) for one in (before, after) for event in read(one).walk("VEVENT")}
    assert uids == {f"reservation-7-{NOW:.0f}@gpudeck"}


def test_claims_and_what_has_no_length_are_left_out() -> None:
    assert read(make_reservation(kind="claim"), make_reservation(end=NOW)).walk("VEVENT") == []


@given(user=st.text(max_size=160), note=st.text(KEPT, max_size=1000))
def test_any_text_comes_out_as_it_went_in(user: str, note: str) -> None:
    body = write_calendar([make_reservation(user=user, note=note)], "x")
    assert all(len(line) <= 75 for line in body.split(b"\r\n"))
    calendar = Calendar.from_ical(body)
    (event,) = calendar.walk("VEVENT")
    assert str(event["description"]) == "\n".join(filter(None, [note, "GPU 0 of gpu01", "Reservation 7"]))


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=400))
def test_folded_lines_are_the_line(text: str) -> None:
    parts = list(fold(text))
    assert "".join([parts[0], *(part[1:] for part in parts[1:])]) == text
    assert all(len(part.encode()) <= 75 for part in parts)


def test_what_means_something_is_escaped() -> None:
    assert escape("a;b,c\\d\ne\x00\r") == "a\\;b\\,c\\\\d\\ne"
