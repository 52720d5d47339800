"""gpu-monitor's reservations: data/comments.json, read and written. Each GPU has the name of who has it, the date until
which, and a comment.

Dates are in UTC: its page sets that zone. The file may hold comments of its own (`// …`). The page puts its texts into
HTML as they are: they are read as a browser showed them, and written so that nothing in them is run there.
"""

import html
import json
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec import Struct

from gpudeck.collectors.redaction import clean
from gpudeck.compat.importing import ImportContext, ImportPlan, ReservationStep, SkippedEntry, read_small_file
from gpudeck.discovery.host_names import is_host_name, quote
from gpudeck.model.errors import UsageError
from gpudeck.model.reservation import Reservation
from gpudeck.model.times import parse_duration, parse_time
from gpudeck.reservations.requests import ReservationRefused, ReservationSpan, check_span

_UNUSED = "An unused reservation is released after reservations.no_show (1h by default); gpu-monitor kept it."
_LOOK = 'It looks like {"gpu01": [{"name": "ada", "date": "2026-12-01 18:00", "comment": "paper"}]}.'
_MOST = 100_000
_INDEX = re.compile(r"[0-9]{1,4}")
# A string, or a comment: a `//` within a string is none. A string that does not end is taken too, or each quote in it
# would be tried as a beginning.
_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*+"?|//[^\n]*')
_TIME_FORM = "%Y-%m-%d %H:%M"
_COMMENTS = "comments.json"
_HOSTS = "hosts.json"
_LONGEST = 64


class Comment(Struct, frozen=True):
    place: str
    host: str
    index: str
    fields: Any


def plan_reservations(content: bytes, file: str, here: ImportContext, plan: ImportPlan) -> None:
    """Add a step for each reservation that has not ended. Raises UsageError for what is no comments.json."""
    for entry in _read_entries(content, file):
        if not is_host_name(entry.host):
            plan.leave(entry.place, f"{quote(entry.host)} is no name of a host")
        elif not _INDEX.fullmatch(entry.index):
            plan.leave(entry.place, f"{quote(entry.index)} is no number of a GPU")
        elif not isinstance(entry.fields, dict):
            plan.leave(entry.place, f"{quote(str(entry.fields))} is no reservation")
        else:
            _plan_entry(entry, here, plan)
    plan.notes += [_UNUSED] if plan.steps else []


def _plan_entry(entry: Comment, here: ImportContext, plan: ImportPlan) -> None:
    name, date, comment = (_text(entry.fields.get(field)) for field in ("name", "date", "comment"))
    if not date:
        if name or comment:
            plan.over.append(SkippedEntry(entry.place, "has no date, so it is not reserved"))
        return
    try:
        end = parse_end(date)
    except ValueError as error:
        plan.leave(entry.place, str(error))
        return
    until = f"{datetime.fromtimestamp(end, UTC).strftime(_TIME_FORM)} UTC"
    if end <= here.now:
        plan.over.append(SkippedEntry(entry.place, f"ended {until}"))
    elif not name:
        plan.leave(entry.place, f"is reserved until {until}, but no user is named")
    elif why := _find_refusal(end, here.now):
        plan.leave(entry.place, f"is reserved until {until}, and that is refused: {why}")
    else:
        plan.steps.append(ReservationStep(entry.host, str(int(entry.index)), name[:160], end, comment[:1000], until))


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
        parse_duration(text)
        raise ValueError(f"{quote(text)} is a length, and the file does not say since when")
    try:
        return parse_time(text.replace("/", "-"), 0.0)
    except ValueError:
        raise ValueError(f"{quote(text)} is no date and time such as 2026-12-01 18:00") from None


def write_comments(reservations: Sequence[Reservation]) -> str:
    """The reservations that run, as such a file. It knows no beginning, so what is planned for later is not in it."""
    hosts: dict[str, dict[str, dict[str, str]]] = {}
    for one in sorted(reservations, key=lambda one: one.end):
        until = datetime.fromtimestamp(one.end, UTC).strftime(_TIME_FORM)
        for gpu in one.gpus:
            entry = {"name": html.escape(one.user), "date": until, "comment": html.escape(one.note)}
            hosts.setdefault(gpu.host, {})[gpu.label] = entry
    ordered = {host: dict(sorted(gpus.items())) for host, gpus in sorted(hosts.items())}
    return json.dumps(ordered, indent=2, ensure_ascii=False) + "\n"


def _read_entries(content: bytes, file: str) -> Iterator[Comment]:
    text = _decode(content)
    plain = _TOKEN.sub(lambda token: token[0] if token[0].startswith('"') else "", text)
    try:
        root = json.loads(plain)
    except (ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise UsageError(f"{file}{line}: this is no comments.json.", _LOOK) from error
    if isinstance(root, list) and not root:
        return  # PHP writes an empty object so.
    if not isinstance(root, dict):
        raise UsageError(f"{file} is no comments.json: it has no hosts.", _LOOK)
    lines = _find_lines(plain)
    count = 0
    for host, gpus in root.items():
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
    """Where each key stands first: a parser of JSON does not report it."""
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


def read(file: Path, here: ImportContext) -> ImportPlan:
    """The plan of a comments.json, a hosts.json, or the folder of data files. Raises UsageError for anything else."""
    plan = ImportPlan()
    if file.is_dir():
        _read_folder(file, here, plan)
        return plan
    content = read_small_file(file)
    if (names := _read_hosts(content)) is not None:
        plan.settings = _write(_name_hosts(names, plan))
    else:
        plan_reservations(content, str(file), here, plan)
    return plan


def _read_folder(folder: Path, here: ImportContext, plan: ImportPlan) -> None:
    names = sorted(path.name.removesuffix("_gpus.csv") for path in folder.glob("*_gpus.csv"))
    comments = folder / _COMMENTS
    if not names and not comments.exists():
        raise UsageError(f"{folder} has no file *_gpus.csv and no {_COMMENTS}.", "Give the `data` folder of its page.")
    plan.left += [SkippedEntry(quote(name), "is no name of a host") for name in names if not is_host_name(name)]
    hosts = folder / _HOSTS
    shown = _name_hosts(_read_hosts(read_small_file(hosts)) or {}, plan) if hosts.exists() else {}
    if names:
        plan.settings = _write({"compat": {"gpu_monitor": {"folder": str(folder.resolve())}}} | shown)
        plan.notes.append(f"With these lines and a restart {len(names)} host(s) are read out of that folder.")
    if comments.exists():
        plan_reservations(read_small_file(comments), str(comments), here, plan)


def _read_hosts(content: bytes) -> dict[str, str] | None:
    """What its page shows for each host, as fetch_stats.py writes it into hosts.json; None for another file."""
    try:
        return msgspec.json.decode(content, type=dict[str, str])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def _name_hosts(names: dict[str, str], plan: ImportPlan) -> dict[str, Any]:
    """Those that a name can be. One that is the same as before says nothing."""
    chosen = {}
    for key, shown in names.items():
        if not shown or len(shown) > _LONGEST or not shown.isprintable():
            reason = f"{quote(shown)} cannot be shown: that is 1 to {_LONGEST} characters"
            plan.leave(f"{_HOSTS}, {quote(key)}", reason)
        elif key != shown:
            chosen[key] = shown
    return {"names": {"hosts": chosen}} if chosen else {}


def _write(settings: dict[str, Any]) -> str:
    return "" if not settings else yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
