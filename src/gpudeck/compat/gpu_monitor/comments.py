"""gpu-monitor's bookings: data/comments.json, read and written.

A host's GPUs stand in a list, or in an object by their numbers; each has the name of who has it, the date until which,
and a comment. Dates are in UTC: its page sets that zone, wherever its server stands. The file may hold comments of its
own (`// …`), as its README writes it. The page puts its texts into HTML as they are: they are read as a browser showed
them, and written so that nothing in them is run there.
"""

import html
import json
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from gpudeck.collectors.redaction import clean
from gpudeck.compat.importing import BookingStep, Here, ImportPlan, Left
from gpudeck.discovery.host_names import is_host_name, quote
from gpudeck.model.errors import UsageError
from gpudeck.model.reservation import Reservation
from gpudeck.model.times import parse_span, parse_time
from gpudeck.reservations.rules import ReservationRefused, ReservationSpan, check_span

_UNUSED = "A booking that nobody uses is given back after reservations.no_show (1h unless set): gpu-monitor kept it."
_LOOK = 'It looks like {"gpu01": [{"name": "ada", "date": "2026-12-01 18:00", "comment": "paper"}]}.'
_MOST = 100_000
_INDEX = re.compile(r"[0-9]{1,4}")
# A string, or a comment: a `//` within a string is none. A string that does not end is taken too, or each quote in it
# would be tried as a beginning.
_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*+"?|//[^\n]*')
_TIME_FORM = "%Y-%m-%d %H:%M"


class Comment(Struct, frozen=True):
    """One GPU's entry. `place` is where it stands."""

    place: str
    host: str
    index: str
    told: Any


def plan_bookings(content: bytes, file: str, here: Here, plan: ImportPlan) -> None:
    """Add a step for each booking that has not ended. Raises UsageError for what is no comments.json."""
    for entry in _read_entries(content, file):
        if not is_host_name(entry.host):
            plan.left.append(Left(entry.place, f"{quote(entry.host)} is no name of a host"))
        elif not _INDEX.fullmatch(entry.index):
            plan.left.append(Left(entry.place, f"{quote(entry.index)} is no number of a GPU"))
        elif not isinstance(entry.told, dict):
            plan.left.append(Left(entry.place, f"{quote(str(entry.told))} is no booking"))
        else:
            _plan_entry(entry, here, plan)
    plan.notes += [_UNUSED] if plan.steps else []


def _plan_entry(entry: Comment, here: Here, plan: ImportPlan) -> None:
    name, date, comment = (_text(entry.told.get(field)) for field in ("name", "date", "comment"))
    if not date:
        if name or comment:
            plan.over.append(Left(entry.place, "has no date, so it is not booked"))
        return
    try:
        end = parse_end(date)
    except ValueError as error:
        plan.left.append(Left(entry.place, str(error)))
        return
    until = f"{datetime.fromtimestamp(end, UTC).strftime(_TIME_FORM)} UTC"
    if end <= here.now:
        plan.over.append(Left(entry.place, f"ended {until}"))
    elif not name:
        plan.left.append(Left(entry.place, f"is booked until {until}, and nobody is named"))
    elif why := _find_refusal(end, here.now):
        plan.left.append(Left(entry.place, f"is booked until {until}, and that is refused: {why}"))
    else:
        plan.steps.append(BookingStep(entry.host, str(int(entry.index)), name[:160], end, comment[:1000], until))


def _find_refusal(end: float, now: float) -> str:
    """Why no hub would make a reservation from now until `end`; empty where one may. A dry run asks no hub to try."""
    try:
        check_span(ReservationSpan(now, end), now)
    except ReservationRefused as error:
        return error.message.rstrip(".")
    return ""


def parse_end(text: str) -> float:
    """The moment of a date and time as the page wrote it, in UTC. Raises ValueError."""
    if re.fullmatch(r"[0-9 dhms]+", text) and re.search(r"[dhms]", text):
        parse_span("".join(text.split()))
        raise ValueError(f"{quote(text)} is a length, and the file does not say since when")
    try:
        return parse_time(text.replace("/", "-"), 0.0)
    except ValueError:
        raise ValueError(f"{quote(text)} is no date and time such as 2026-12-01 18:00") from None


def write_comments(reservations: Sequence[Reservation]) -> str:
    """The bookings that run, as such a file. It knows no beginning, so what is planned for later is not in it."""
    hosts: dict[str, dict[str, dict[str, str]]] = {}
    for one in sorted(reservations, key=lambda one: one.end):
        until = datetime.fromtimestamp(one.end, UTC).strftime(_TIME_FORM)
        for gpu in one.gpus:
            entry = {"name": html.escape(one.user), "date": until, "comment": html.escape(one.note)}
            hosts.setdefault(gpu.host, {})[gpu.label] = entry
    told = {host: dict(sorted(gpus.items())) for host, gpus in sorted(hosts.items())}
    return json.dumps(told, indent=2, ensure_ascii=False) + "\n"


def _read_entries(content: bytes, file: str) -> Iterator[Comment]:
    text = _decode(content)
    plain = _TOKEN.sub(lambda token: token[0] if token[0].startswith('"') else "", text)
    try:
        told = json.loads(plain)
    except (ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise UsageError(f"{file}{line}: this is no comments.json.", _LOOK) from error
    if isinstance(told, list) and not told:
        return  # PHP writes an empty object so.
    if not isinstance(told, dict):
        raise UsageError(f"{file} is no comments.json: it has no hosts.", _LOOK)
    lines = _find_lines(plain)
    count = 0
    for host, gpus in told.items():
        place = f"line {lines.get(host, 1)}, {clean(host)[:80]}"
        if not isinstance(gpus, list | dict):
            yield Comment(place, host, "0", gpus)
            continue
        for index, entry in gpus.items() if isinstance(gpus, dict) else enumerate(gpus):
            count += 1
            if count > _MOST:
                raise UsageError(f"{file} has more than {_MOST} entries: it is something else.", _LOOK)
            if entry is not None:
                yield Comment(f"{place}, GPU {clean(str(index))[:20]}", host, str(index), entry)


def _decode(content: bytes) -> str:
    """UTF-8 as PHP writes it, or what editors of that time made of names such as Noël."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace")


def _find_lines(text: str) -> dict[str, int]:
    """Where each key stands first: a parser of JSON does not tell."""
    lines: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        for key in re.findall(r'("(?:[^"\\]|\\.)*+")\s*:', line):
            try:
                lines.setdefault(json.loads(key), number)
            except ValueError:
                continue
    return lines


def _text(value: object) -> str:
    """One line without anything that a terminal obeys. Markup stays what it was typed as: a text."""
    return " ".join(clean(html.unescape(value)).split()) if isinstance(value, str) else ""
