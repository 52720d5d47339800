"""/api/v1/alerts (GET), /api/v1/alerts/{id}/acknowledge (POST), /api/v1/silences (GET, POST), /api/v1/silences/{id}
(DELETE): what is wrong, who looks after it, and of what nobody is told.

Whoever may look sees all of it. Users acknowledge, admins silence.
"""

import fnmatch
import re
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.di import NamedDependency
from litestar.exceptions import ValidationException
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta, Struct, field

from gpudeck.alerts.keeper import MOST_SILENCES, Alerts
from gpudeck.alerts.rules.registry import RULES_BY_NAME
from gpudeck.alerts.silences import describe
from gpudeck.alerts.store import MOST_LISTED, AlertAsk
from gpudeck.api.access import access, caller_of
from gpudeck.api.answers import HubRequest, allow, answer_json, documented
from gpudeck.api.errors import respond
from gpudeck.api.login import AuthRequest, TheAuth
from gpudeck.api.moments import Length, Moment, read_length, read_moment
from gpudeck.api.questions import check_names
from gpudeck.model import clock
from gpudeck.model.alert import ALERT_STATES, Alert, AlertList, AlertState, Silence, SilenceList
from gpudeck.model.errors import GpudeckError, Temporary
from gpudeck.model.event import SEVERITIES
from gpudeck.model.printable import clean
from gpudeck.server.asgi import ErrorBody

_ASK = ("state", "severity", "host", "rule", "limit")
_STATES = "|".join(ALERT_STATES)
_STATE_LIST = f"^({_STATES})(,({_STATES}))*$"
_SEVERITY = "|".join(SEVERITIES)
_SEVERITY_LIST = f"^({_SEVERITY})(,({_SEVERITY}))*$"
_LONGEST = 366 * 86_400.0
_SPAN = 'such as 2h, or "end" with a time'

_Words = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"\S")]
_Id = Annotated[str, PathParameter(max_length=16, description="Its id", schema_extra={"pattern": "^[0-9a-f]{1,16}$"})]


class NewSilence(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """At least one of `host`, `rule` (both may have * in them) and `labels`; all that is given has to fit. From
    `start`, or now, until `end` or for a length."""

    reason: Annotated[str, Meta(min_length=1, max_length=500, pattern=r"\S")]
    host: _Words | None = None
    rule: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"\S")] | None = None
    labels: Annotated[
        dict[
            Annotated[str, Meta(min_length=1, max_length=256)],
            Annotated[str, Meta(max_length=256)],
        ],
        Meta(max_length=16),
    ] = field(default_factory=dict)
    start: Moment | None = None
    end: Moment | None = None
    length: Length | None = field(default=None, name="for")


class AlertRefused(GpudeckError):
    """With the HTTP answer it deserves, and a word for programs."""

    def __init__(self, status: int, code: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.status = status
        self.code = code


class AlertDesk:
    """The way to the alerts; `alerts` is None where a hub keeps none yet: then all of it raises Temporary."""

    def __init__(self, alerts: Alerts | None) -> None:
        self._alerts = alerts

    @property
    def alerts(self) -> Alerts:
        if self._alerts is None:
            raise Temporary("alerts are not kept yet.", "Ask again in a moment.")
        return self._alerts


TheAlerts = NamedDependency[AlertDesk]
"""As a route's parameter `alarm`."""


@get(
    "/api/v1/alerts",
    opt=access("read"),
    responses={
        200: documented(AlertList, "The worst first"),
        400: documented(ErrorBody, "A question that makes no sense"),
    },
)
async def list_alerts(
    *,
    request: HubRequest,
    alarm: TheAlerts,
    wanted: Annotated[
        str,
        QueryParameter(
            name="state",
            max_length=64,
            description="One word, or several with commas: any of them fits",
            schema_extra={"pattern": _STATE_LIST},
        ),
    ] = "firing,acknowledged",
    severity: Annotated[
        str | None,
        QueryParameter(
            max_length=64,
            description="One word, or several with commas: any of them fits",
            schema_extra={"pattern": _SEVERITY_LIST},
        ),
    ] = None,
    host: Annotated[str | None, QueryParameter(max_length=384, description="A host's name or id")] = None,
    rule: Annotated[str | None, QueryParameter(max_length=64, description="The name of a rule")] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=MOST_LISTED, description="At most so many")] = MOST_LISTED,
) -> Response[bytes]:
    """What is wrong now. With `state=resolved`, what was."""
    check_names(request, _ASK)
    states: list[AlertState] = _split("state", wanted, _STATE_LIST, ALERT_STATES)
    severities = [] if severity is None else _split("severity", severity, _SEVERITY_LIST, SEVERITIES)
    found = [
        alert
        for alert in alarm.alerts.active(states)
        if (not severities or alert.severity in severities)
        and (host is None or host in {alert.host, alert.host_id})
        and (rule is None or alert.rule == rule)
    ][:limit]
    if "resolved" in states and len(found) < limit:
        ask = AlertAsk(severities=tuple(severities), host=host, rule=rule, limit=limit - len(found))
        found += await alarm.alerts.find_resolved(ask)
    return await answer_json(request, msgspec.json.encode(AlertList(found, clock.wall())))


@post(
    "/api/v1/alerts/{key:str}/acknowledge",
    status_code=200,
    opt=access("user"),
    responses={
        200: documented(Alert, "The alert as it is now; one that somebody else looks after stays theirs"),
        404: documented(ErrorBody, "No such alert fires"),
    },
)
async def acknowledge(request: AuthRequest, key: _Id, auth: TheAuth, alarm: TheAlerts) -> Alert:
    """Say that you look after it: it is not told again. It ends when what is wrong does."""
    caller = caller_of(request)
    found = await alarm.alerts.acknowledge(key, caller.name)
    if found is None:
        raise AlertRefused(
            404, "unknown_alert", f"no alert with the id {clean(key)} fires.", "GET /api/v1/alerts lists them."
        )
    await auth.audit.record(caller, "acknowledge alert", f"alert {found.id}", details=found.title)
    return found


@get("/api/v1/silences", opt=access("read"))
async def list_silences(alarm: TheAlerts) -> SilenceList:
    """Of what nobody is told, until when, and who wanted that."""
    return SilenceList(alarm.alerts.silences(), clock.wall())


@post(
    "/api/v1/silences",
    opt=access("admin"),
    responses={
        201: documented(Silence, "The new silence"),
        400: documented(ErrorBody, "What makes no sense"),
        409: documented(ErrorBody, "There are too many already"),
    },
)
async def add_silence(request: AuthRequest, data: JSONBody[NewSilence], auth: TheAuth, alarm: TheAlerts) -> Silence:
    """Have nobody told for a while. Alerts fire all the same, and are shown."""
    caller, now = caller_of(request), clock.wall()
    wanted = _read_silence(data, caller.name, now)
    if len(alarm.alerts.silences()) >= MOST_SILENCES:
        raise AlertRefused(409, "full", f"there are {MOST_SILENCES} silences already.", "End some of them.")
    made = await alarm.alerts.silence(wanted)
    details = f"{describe(made)}, for {made.end - made.start:.0f} s: {made.reason}"
    await auth.audit.record(caller, "add silence", f"silence {made.id}", details=details)
    return made


@delete(
    "/api/v1/silences/{key:str}",
    status_code=200,
    opt=access("admin"),
    responses={200: documented(Silence, "The silence that was ended"), 404: documented(ErrorBody, "No such silence")},
)
async def end_silence(request: AuthRequest, key: _Id, auth: TheAuth, alarm: TheAlerts) -> Silence:
    """End a silence now. What still fires is told then."""
    caller = caller_of(request)
    ended = await alarm.alerts.end_silence(key, caller.name)
    if ended is None:
        raise AlertRefused(404, "unknown_silence", f"there is no silence with the id {clean(key)}.")
    await auth.audit.record(caller, "end silence", f"silence {ended.id}", details=describe(ended))
    return ended


allow_silences = allow("/api/v1/silences", "GET", "POST")


def on_alert_refused(_: Request[Any, Any, Any], error: AlertRefused) -> Response[bytes]:
    return respond(error.status, error.code, error.message, error.hint)


def _read_silence(data: NewSilence, by: str, now: float) -> Silence:
    if data.host is None and data.rule is None and not data.labels:
        raise ValidationException("give host, rule or labels: a silence of everything hides everything")
    if data.rule is not None and not fnmatch.filter(RULES_BY_NAME, data.rule.strip()):
        raise ValidationException(f"rule: there is none that {clean(data.rule.strip())} fits")
    if (data.end is None) == (data.length is None):
        raise ValidationException(f'give "for" with a length {_SPAN}')
    start = read_moment("start", data.start, now)
    begin = now if start is None else max(now, start)
    length = read_length(data.length)
    end = read_moment("end", data.end, now) if length is None else begin + length
    if end is None or end <= begin:
        raise ValidationException("end: a silence has to end after it begins, and after now")
    if end - now > _LONGEST:
        raise ValidationException("end: a silence ends within a year; turn the rule off in gpudeck.yaml instead")
    return Silence(
        id="",
        start=begin,
        end=end,
        created_at=now,
        created_by=by,
        reason=clean(data.reason.strip()),
        host=None if data.host is None else clean(data.host.strip()),
        rule=None if data.rule is None else clean(data.rule.strip()),
        labels={clean(name): clean(value) for name, value in data.labels.items()},
    )


def _split(name: str, text: str, pattern: str, words: tuple[Any, ...]) -> list[Any]:
    if not re.fullmatch(pattern, text):
        raise ValidationException(f"{name}: give {', '.join(words)}, or several of them with commas")
    return text.split(",")


ROUTES = [allow_silences, list_alerts, acknowledge, list_silences, add_silence, end_silence]
