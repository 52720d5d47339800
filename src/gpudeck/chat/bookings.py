"""What the bot says about bookings, and the buttons below it. Pure."""

from collections.abc import Sequence
from datetime import UTC
from typing import TypeVar

import msgspec
from msgspec import Struct

from gpudeck.chat.answers import count
from gpudeck.chat.blocks import Block, ChatAnswer, button, escape, say, show_time, tell
from gpudeck.model.errors import GpudeckError
from gpudeck.model.quantity import show_length
from gpudeck.model.reservation import BookedGpu, Reservation, ShownReservation
from gpudeck.reservations.requests import ReservationDraft, ReservationRequest
from gpudeck.reservations.rules import Conflict
from gpudeck.reservations.slots import FreeSlot
from gpudeck.views.lists import render_reservations

BOOK = "gpudeck_book"
RELEASE = "gpudeck_release"
"""The names by which Slack tells which button was pressed."""
_NOTE = 200

Button = TypeVar("Button", "BookingOffer", "Return")


class BookingOffer(Struct, frozen=True, forbid_unknown_fields=True):
    """What a button books: these GPUs at that time, for whoever asked and nobody else."""

    asker: str
    gpus: list[str]
    start: float
    length: float
    note: str = ""

    @property
    def draft(self) -> ReservationDraft:
        return ReservationDraft(
            wish=ReservationRequest(gpus=tuple(self.gpus)), start=self.start, length=self.length, note=self.note
        )


class Return(Struct, frozen=True, forbid_unknown_fields=True):
    """What a button gives back."""

    asker: str
    number: int


def answer_booked(made: Reservation, asker: str) -> ChatAnswer:
    text = (
        f"Booked: *{_gpus(made.gpus)}* for {escape(made.user)}, {show_time(made.start)} until {show_time(made.end)} "
        f"({show_length(made.end - made.start)}). It is booking {made.id}."
    )
    value = msgspec.json.encode(Return(asker, made.id)).decode()
    sure = "Others can have these GPUs then. No process is ended."
    return say(text, buttons=_those(button("Give it back", RELEASE, value, sure=sure)))


def answer_conflict(refusal: Conflict, asker: str, note: str) -> ChatAnswer:
    """With the next time at which it would be possible, as a button where one can carry it."""
    lines = [f"*Not booked:* {explain(refusal)}"]
    lines += [f"That one ends {show_time(one.end)}." for one in refusal.conflicts[:1]]
    slot = refusal.next_free
    if slot is None:
        return say(*lines)
    lines.append(f"Next free: *{_gpus(slot.gpus)}*, {show_time(slot.start)} until {show_time(slot.end)}.")
    return say(*lines, buttons=_those(_offer(slot, asker, note)))


def answer_released(after: Reservation, state: str) -> ChatAnswer:
    word = "taken back" if state == "cancelled" else "over"
    return say(f"Booking {after.id} of *{_gpus(after.gpus)}* is {word}.")


def answer_bookings(found: Sequence[ShownReservation], now: float) -> ChatAnswer:
    if not found:
        return say("Nothing is booked.", "`book gpu07:0 for 4h` books.")
    title = count(len(found), "booking")
    return tell(
        title,
        [_line(one) for one in found],
        lambda: render_reservations(found, now, UTC, 160, colour=False) + "\nTimes are UTC.\n",
        "bookings",
    )


def explain(error: GpudeckError) -> str:
    """An error in Slack's markup. Commands stand in quotes there: a backtick of a name must not begin code."""
    return escape(str(error).replace("`", "'"), 500)


def read_button(value: str, kind: type[Button]) -> Button | None:
    """What a button carries; None where that is not ours, or of another version."""
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError:
        return None


def _line(one: Reservation) -> str:
    note = f"  _{escape(one.note)}_" if one.note else ""
    what = "hold" if one.kind == "hold" else "booking"
    times = f"{show_time(one.start)} until {show_time(one.end)}"
    return f"{what} {one.id}: *{escape(one.user)}*  {_gpus(one.gpus)}  {times}{note}"


def _offer(slot: FreeSlot, asker: str, note: str) -> Block | None:
    offer = BookingOffer(asker, [gpu.uuid for gpu in slot.gpus], slot.start, slot.end - slot.start, note[:_NOTE])
    return button("Book that", BOOK, msgspec.json.encode(offer).decode(), primary=True)


def _those(*buttons: Block | None) -> list[Block]:
    return [one for one in buttons if one is not None]


def _gpus(gpus: Sequence[BookedGpu]) -> str:
    """gpu07:0,1 gpu08:3, as it is typed."""
    hosts: dict[str, list[str]] = {}
    for gpu in gpus:
        hosts.setdefault(gpu.host, []).append(gpu.label)
    return escape(" ".join(f"{host}:{','.join(labels)}" for host, labels in hosts.items()), 300)
