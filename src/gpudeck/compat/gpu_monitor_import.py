"""gpu-monitor's reservations: data/comments.json, read and written. Each GPU has the name of who has it, the date until
which, and a comment.

Dates are in UTC: its page sets that zone. The file may hold comments of its own (`// …`). The page puts its texts into
HTML as they are: they are read as a browser showed them, and written so that nothing in them is run there.
"""

import html
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from gpudeck.collectors.redaction import clean
from gpudeck.compat.importing import ImportContext, ImportPlan, ReservationStep, read_small_file, write_yaml
from gpudeck.discovery.host_names import is_host_name, quote
from gpudeck.model.errors import UsageError
from gpudeck.model.reservation import Reservation
from gpudeck.model.times import parse_time
from gpudeck.reservations.requests import ReservationRefused, ReservationSpan, check_span

_UNUSED = "An unused reservation is released after reservations.no_show (1h by default); gpu-monitor kept it."
_LOOK = 'It looks like {"gpu01": [{"name": "ada", "date": "2026-12-01 18:00", "comment": "paper"}]}.'
_MOST = 100_000
_INDEX = re.compile(r"[0-9]{1,4}")
# A string, or a comment; `//` in a string is no comment. An unfinished string matches too, or each quote in it
# would be tried as a beginning.
_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*+"?|//[^\n]*')
_TIME_FORM = "%Y-%m-%d %H:%M"
_HOSTS = "hosts.json"
_LONGEST = 64


def plan_reservations(content: bytes, file: str, here: ImportContext, plan: ImportPlan) -> None:
    """Add a step for each reservation that has not ended. Raises UsageError for a file that is no comments.json."""
    try:
        text = content.decode("utf-8-sig")
        root = json.loads(_TOKEN.sub(lambda token: token[0] if token[0].startswith('"') else "", text))
    except (ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise UsageError(f"{file}{line}: this is no comments.json.", _LOOK) from error
    if root == []:
        return  # PHP writes an empty object so.
    if not isinstance(root, dict):
        raise UsageError(f"{file} is no comments.json: it has no hosts.", _LOOK)
    if sum(len(gpus) for gpus in root.values() if isinstance(gpus, list | dict)) > _MOST:
        raise UsageError(f"{file} has more than {_MOST} entries: it is something else.", _LOOK)
    for host, gpus in root.items():
        place = clean(host)[:80]
        if not is_host_name(host):
            plan.leave(place, f"{quote(host)} is no name of a host")
        elif not isinstance(gpus, list | dict):
            plan.leave(place, f"{quote(str(gpus))} is no list of reservations")
        else:
            for index, entry in gpus.items() if isinstance(gpus, dict) else enumerate(gpus):
                if entry is not None:
                    _plan_entry(f"{place}, GPU {clean(str(index))[:20]}", host, str(index), entry, here, plan)
    plan.notes += [_UNUSED] if plan.steps else []


def _plan_entry(place: str, host: str, index: str, entry: Any, here: ImportContext, plan: ImportPlan) -> None:  # noqa: PLR0917 - an entry and where it goes
    if not _INDEX.fullmatch(index):
        plan.leave(place, f"{quote(index)} is no number of a GPU")
        return
    if not isinstance(entry, dict):
        plan.leave(place, f"{quote(str(entry))} is no reservation")
        return
    name, date, comment = (_text(entry.get(field)) for field in ("name", "date", "comment"))
    if not date:
        if name or comment:
            plan.skip(place, "has no date, so it is not reserved")
        return
    try:
        end = parse_time(date.replace("/", "-"), 0.0)
    except ValueError:
        plan.leave(place, f"{quote(date)} is no date and time such as 2026-12-01 18:00")
        return
    until = f"{datetime.fromtimestamp(end, UTC).strftime(_TIME_FORM)} UTC"
    if end <= here.now:
        plan.skip(place, f"ended {until}")
    elif not name:
        plan.leave(place, f"is reserved until {until}, but no user is named")
    elif why := _find_refusal(end, here.now):
        plan.leave(place, f"is reserved until {until}, and that is refused: {why}")
    else:
        plan.steps.append(ReservationStep(host, str(int(index)), name[:160], end, comment[:1000], until))


def _find_refusal(end: float, now: float) -> str:
    """Why no hub would make a reservation from now until `end`; empty where one may. A dry run asks no hub to try."""
    try:
        check_span(ReservationSpan(now, end), now)
    except ReservationRefused as error:
        return error.message.rstrip(".")
    return ""


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
        plan.settings = write_yaml(_name_hosts(names, plan))
    else:
        plan_reservations(content, str(file), here, plan)
    return plan


def _read_folder(folder: Path, here: ImportContext, plan: ImportPlan) -> None:
    names = sorted(path.name.removesuffix("_gpus.csv") for path in folder.glob("*_gpus.csv"))
    comments, hosts = folder / "comments.json", folder / _HOSTS
    if not names and not comments.exists():
        raise UsageError(
            f"{folder} has no file *_gpus.csv and no comments.json.", "Give the `data` folder of its page."
        )
    for name in names:
        if not is_host_name(name):
            plan.leave(quote(name), "is no name of a host")
    shown = _name_hosts(_read_hosts(read_small_file(hosts)) or {}, plan) if hosts.exists() else {}
    if names:
        plan.settings = write_yaml({"compat": {"gpu_monitor": {"folder": str(folder.resolve())}}} | shown)
        plan.notes.append(f"With these lines and a restart {len(names)} host(s) are read out of that folder.")
    if comments.exists():
        plan_reservations(read_small_file(comments), str(comments), here, plan)


def _read_hosts(content: bytes) -> dict[str, str] | None:
    """The display names of hosts, as fetch_stats.py writes them into hosts.json; None for another file."""
    try:
        return msgspec.json.decode(content, type=dict[str, str])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def _name_hosts(names: dict[str, str], plan: ImportPlan) -> dict[str, Any]:
    """The settings for valid display names that differ from the host's own."""
    chosen = {}
    for key, shown in names.items():
        if not shown or len(shown) > _LONGEST or not shown.isprintable():
            plan.leave(f"{_HOSTS}, {quote(key)}", f"{quote(shown)} cannot be shown: that is 1 to {_LONGEST} characters")
        elif key != shown:
            chosen[key] = shown
    return {"names": {"hosts": chosen}} if chosen else {}
