"""What a booking, a change and a giving back write, within a transaction that others opened."""

import math
import unicodedata
from collections.abc import Sequence
from typing import Any

from gpudeck.model.reservation import BookedGpu, Reservation
from gpudeck.reservations.rules import Span
from gpudeck.reservations.store import Writing

NOTE_LENGTH = 1000
USER_LENGTH = 160


def tidy(text: str, most: int) -> str:
    """One line of text in any script: without control characters and halves of characters, which no database takes.

    Marks that join letters stay: whole scripts need them. Whoever shows it on a terminal takes out what that acts on.
    """
    kept = "".join(char for char in " ".join(text.split()) if unicodedata.category(char) not in {"Cc", "Cs"})
    return kept[:most]


def new_row(user: str, by: str, span: Span, note: str, now: float) -> dict[str, Any]:
    return {
        "kind": "booking",
        "user": tidy(user, USER_LENGTH),
        "start": span.start,
        "end": span.end,
        "note": tidy(note, NOTE_LENGTH),
        "created_at": now,
        "created_by": tidy(by, USER_LENGTH),
        "changed_at": now,
    }


def is_as_before(before: Reservation, values: dict[str, Any], gpus: Sequence[BookedGpu]) -> bool:
    """Whether these values and GPUs would change nothing of it."""
    return not _is_moved(before, gpus) and all(getattr(before, name) == value for name, value in values.items())


def _is_moved(before: Reservation, gpus: Sequence[BookedGpu]) -> bool:
    return {gpu.uuid for gpu in gpus} != {gpu.uuid for gpu in before.gpus}


async def write_change(
    writing: Writing, before: Reservation, values: dict[str, Any], gpus: Sequence[BookedGpu], now: float
) -> Reservation:
    """Of one that runs and moves to other GPUs the past part stays behind as a reservation of its own."""
    is_moved = _is_moved(before, gpus)
    if is_moved and before.start < now:
        moment = float(math.floor(now))
        past = new_row(before.user, before.created_by, Span(before.start, moment), before.note, before.created_at)
        past |= {"kind": before.kind, "used_at": before.used_at, "changed_at": now, "released_at": now}
        await writing.add(past | {"release_reason": f"moved: see {before.id}"}, before.gpus)
        values = values | {"start": moment, "used_at": None}
    return await writing.change(before, values | {"changed_at": now}, gpus if is_moved else None)


async def write_release(writing: Writing, before: Reservation, reason: str, now: float) -> Reservation:
    """What has begun ends now; what has not is as if it had never been."""
    values: dict[str, Any] = {"released_at": now, "release_reason": tidy(reason, 256), "changed_at": now}
    if now > before.start:
        values["end"] = min(before.end, max(before.start, float(math.floor(now))))
    return await writing.change(before, values)


async def end_holds(
    writing: Writing, gpus: Sequence[BookedGpu], span: Span, user: str, now: float
) -> list[Reservation]:
    """Whoever books what is held for them needs the hold no more."""
    found = await writing.overlapping([gpu.uuid for gpu in gpus], span.start, span.end)
    return [
        await write_release(writing, one, f"booked by {user}", now)
        for one in found
        if one.kind == "hold" and one.user == user
    ]
