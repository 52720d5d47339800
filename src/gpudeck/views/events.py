"""What happened, as lines for a terminal and as CSV."""

from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo

from gpudeck.model.event import Event, Severity
from gpudeck.views.csv import Value, write_csv
from gpudeck.views.safe import clean

_TITLES = ("time_utc", "at", "severity", "kind", "host", "gpu", "label", "user", "title", "detail", "id")
_SIGNS: dict[Severity, str] = {"info": "·", "warning": "▲", "critical": "■"}
_COLOURS: dict[Severity, str] = {"info": "", "warning": "\x1b[33m", "critical": "\x1b[31m"}
_DIM, _BOLD, _PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"


def to_csv(events: Sequence[Event]) -> str:
    """A line an event, with a header; `at` is in Unix seconds."""
    return write_csv([_TITLES, *(_row(event) for event in events)])


def render_day(at: float, zone: tzinfo, *, colour: bool) -> str:
    """What stands above the events of a day."""
    day = f"{datetime.fromtimestamp(at, zone):%A %Y-%m-%d}"
    return f"{_BOLD}{day}{_PLAIN}" if colour else day


def render_event(event: Event, zone: tzinfo, *, colour: bool, detail: bool = True) -> str:
    """One line: when, how bad, what; and a second one with what else is known."""
    moment = f"{datetime.fromtimestamp(event.at, zone):%H:%M:%S}"
    owner = f" ({event.user})" if event.user else ""
    title = clean(f"{event.title}{owner}")
    sign = _SIGNS.get(event.severity, "·")
    if colour and _COLOURS.get(event.severity):
        sign, title = (f"{_COLOURS[event.severity]}{text}{_PLAIN}" for text in (sign, title))
    lines = [f"{moment}  {sign} {title}"]
    if detail and event.detail:
        more = f"{' ' * 12}{clean(event.detail)}"
        lines.append(f"{_DIM}{more}{_PLAIN}" if colour else more)
    return "\n".join(lines)


def _row(event: Event) -> list[Value]:
    moment = f"{datetime.fromtimestamp(event.at, UTC):%Y-%m-%d %H:%M:%S}"
    where = (event.host, event.gpu, event.label, event.user)
    return [moment, event.at, event.severity, event.kind, *where, event.title, event.detail, event.id]
