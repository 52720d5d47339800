"""/api/v1/alerts, /alerts/{id}/acknowledge, /alerts/acknowledge, /alerts/unacknowledge, /alerts/test,
/mutes, /mutes/{id} and /me/mutes.

Everyone who may read sees all of it. Users acknowledge and choose their own mutes, admins add mutes.
"""

import fnmatch
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Annotated, Final

from litestar import Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.exceptions import ValidationException
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta, Struct, field

from gpudeck.alerts.backtest import HostPast, choose_rule, try_on_host
from gpudeck.alerts.notifiers.settings import TOPICS
from gpudeck.alerts.notifiers.store import MAX_PERSONAL_MUTES, PersonalMuteStore
from gpudeck.alerts.record import describe
from gpudeck.alerts.service import MAX_MUTES, AlertManager
from gpudeck.alerts.store import MAX_LISTED, AlertQuery
from gpudeck.api.access import TheCaller, access
from gpudeck.api.answers import HubRequest, RequestRefused, TheHub, answer_json
from gpudeck.api.history import HistoryQueries, TheHistory
from gpudeck.api.login import TheAuth
from gpudeck.api.parameters import (
    HostName,
    Length,
    Moment,
    Time,
    read_length,
    read_moment,
    read_past,
    read_words,
    word_list,
)
from gpudeck.auth.auth import Auth
from gpudeck.auth.settings import RuleName
from gpudeck.history.base import HistoryRefused
from gpudeck.history.time_range import check_range
from gpudeck.model import clock
from gpudeck.model.alert import ALERT_STATES, Alert, AlertList, AlertTest, Mute, MuteList
from gpudeck.model.event import SEVERITIES
from gpudeck.model.text import clean

_LONGEST = 366 * 86_400.0
_SPAN = 'such as 2h, or "end" with a time'
_NOT_FIRING = "no alert with the id {} fires."
MOST_AT_ONCE = 1000
"""Alerts that one request is about, and hosts of one mute."""

_Words = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"\S")]
_Id = Annotated[str, PathParameter(max_length=16, description="Its id", schema_extra={"pattern": "^[0-9a-f]{1,16}$"})]


class NewMute(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """At least one of `host`, `rule` (both may have * in them), `hosts` (names) and `labels`; all that is given has to
    fit. From `start`, or now, until `end` or for a length."""

    reason: Annotated[str, Meta(min_length=1, max_length=500, pattern=r"\S")]
    host: _Words | None = None
    hosts: Annotated[list[_Words], Meta(max_length=MOST_AT_ONCE)] = field(default_factory=list)
    rule: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"\S")] | None = None
    labels: Annotated[
        dict[Annotated[str, Meta(min_length=1, max_length=256)], Annotated[str, Meta(max_length=256)]],
        Meta(max_length=16),
    ] = field(default_factory=dict)
    start: Moment | None = None
    end: Moment | None = None
    length: Length | None = field(default=None, name="for")


class AlertIds(Struct, frozen=True, forbid_unknown_fields=True):
    """The ids of alerts."""

    ids: Annotated[
        list[Annotated[str, Meta(max_length=16, pattern="^[0-9a-f]{1,16}$")]],
        Meta(min_length=1, max_length=MOST_AT_ONCE),
    ]


class FailedAlert(Struct, frozen=True):
    """An alert about which nothing was done, and why: `code` for programs, `message` for people."""

    id: str
    code: str
    message: str


class AcknowledgedAlerts(Struct, frozen=True):
    """`acknowledged` are the alerts as they are now; one that another account has acknowledged before stays theirs.
    `failed` are those that could not be."""

    acknowledged: list[Alert]
    failed: list[FailedAlert]


TheAlerts = NamedDependency[AlertManager]


@get("/api/v1/alerts", opt=access("read"))
async def list_alerts(
    *,
    request: HubRequest,
    alerts: TheAlerts,
    wanted: Annotated[str, word_list(ALERT_STATES, name="state")] = "firing,acknowledged",
    severity: Annotated[str | None, word_list(SEVERITIES)] = None,
    host: HostName = None,
    rule: Annotated[str | None, QueryParameter(max_length=64, description="The name of a rule")] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=MAX_LISTED, description="At most so many")] = MAX_LISTED,
) -> Response[AlertList]:
    """Alerts that fire, the worst first. With `state=resolved`, past alerts."""
    states, severities = read_words("state", wanted, ALERT_STATES), read_words("severity", severity, SEVERITIES)
    found = [
        alert
        for alert in alerts.active(states)
        if (not severities or alert.severity in severities)
        and (host is None or host in {alert.host, alert.host_id})
        and (rule is None or alert.rule == rule)
    ][:limit]
    if "resolved" in states and len(found) < limit:
        ask = AlertQuery(severities=severities, host=host, rule=rule, limit=limit - len(found))
        found += await alerts.store.find_resolved(ask)
    return await answer_json(request, AlertList(found, clock.wall()))


@post("/api/v1/alerts/{key:str}/acknowledge", status_code=200, opt=access("user"))
async def acknowledge_alert(caller: TheCaller, key: _Id, auth: TheAuth, alerts: TheAlerts) -> Alert:
    """Acknowledge an alert: no more notifications are sent. It is resolved when its cause ends.
    One that another account has acknowledged stays theirs."""
    found = (await alerts.acknowledge_all([key], caller.name)).get(key)
    if found is None:
        raise RequestRefused(404, "unknown_alert", _NOT_FIRING.format(clean(key)), "GET /api/v1/alerts lists them.")
    await auth.audit.record(caller, "acknowledge alert", f"alert {found.id}", details=found.title)
    return found


@post("/api/v1/alerts/acknowledge", status_code=200, opt=access("user"))
async def acknowledge_alerts(
    caller: TheCaller, data: JSONBody[AlertIds], auth: TheAuth, alerts: TheAlerts
) -> AcknowledgedAlerts:
    """Acknowledge several alerts at once. Alerts that no longer fire are listed as failed."""
    wanted = dict.fromkeys(data.ids)
    found = await alerts.acknowledge_all(wanted, caller.name)
    done = [found[key] for key in wanted if key in found]
    await auth.audit.record_all(caller, "acknowledge alert", {f"alert {one.id}": one.title for one in done})
    failed = [FailedAlert(key, "unknown_alert", _NOT_FIRING.format(key)) for key in wanted if key not in found]
    return AcknowledgedAlerts(done, failed)


@post("/api/v1/alerts/unacknowledge", status_code=200, opt=access("user"))
async def unacknowledge_alerts(
    caller: TheCaller, data: JSONBody[AlertIds], auth: TheAuth, alerts: TheAlerts
) -> AlertList:
    """Withdraw your own acknowledgements. Those of others, and resolved alerts, stay as they are."""
    found = await alerts.withdraw_all(data.ids, caller.name)
    await auth.audit.record_all(caller, "unacknowledge alert", {f"alert {one.id}": one.title for one in found})
    return AlertList(found, clock.wall())


@get("/api/v1/mutes", opt=access("read"))
async def list_mutes(alerts: TheAlerts) -> MuteList:
    """The mutes: what they match, until when, who added them and why."""
    return MuteList(alerts.mutes(), clock.wall())


@post("/api/v1/mutes", opt=access("admin"))
async def add_mute(caller: TheCaller, data: JSONBody[NewMute], auth: TheAuth, alerts: TheAlerts) -> Mute:
    """Mute alerts for a while. They still fire and are shown, but no notifications are sent."""
    now = clock.wall()
    wanted = _read_mute(data, caller.name, now, alerts.engine.rule_names)
    if len(alerts.mutes()) >= MAX_MUTES:
        raise RequestRefused(409, "full", f"there are {MAX_MUTES} mutes already.", "End some of them.")
    made = await alerts.mute(wanted)
    details = f"{describe(made)}, for {made.end - made.start:.0f} s: {made.reason}"
    await auth.audit.record(caller, "add mute", f"mute {made.id}", details=details)
    return made


@delete("/api/v1/mutes/{key:str}", status_code=200, opt=access("admin"))
async def end_mute(caller: TheCaller, key: _Id, auth: TheAuth, alerts: TheAlerts) -> Mute:
    """End a mute now. Alerts that still fire are then sent."""
    ended = await alerts.end_mute(key, caller.name)
    if ended is None:
        raise RequestRefused(404, "unknown_mute", f"there is no mute with the id {clean(key)}.")
    await auth.audit.record(caller, "end mute", f"mute {ended.id}", details=describe(ended))
    return ended


def _read_mute(data: NewMute, by: str, now: float, rules: Sequence[str]) -> Mute:
    if data.host is None and data.rule is None and not data.hosts and not data.labels:
        raise ValidationException("give host, hosts, rule or labels: a mute of everything hides everything")
    if data.host is not None and data.hosts:
        raise ValidationException("give host, a pattern, or hosts, a list of names, and not both")
    if pattern := next((name for name in data.hosts if set(name) & set("*?[")), None):
        raise ValidationException(f"hosts: {clean(pattern)!r} is a pattern, and hosts are names; put it into host")
    if data.rule is not None and not fnmatch.filter(rules, data.rule.strip()):
        raise ValidationException(f"rule: there is none that {clean(data.rule.strip())} fits")
    if (data.end is None) == (data.length is None):
        raise ValidationException(f'give "for" with a length {_SPAN}')
    start = read_moment("start", data.start, now)
    begin = now if start is None else max(now, start)
    length = read_length(data.length)
    end = read_moment("end", data.end, now) if length is None else begin + length
    if end is None or end <= begin:
        raise ValidationException("end: a mute has to end after it begins, and after now")
    if end - now > _LONGEST:
        raise ValidationException("end: a mute ends within a year; turn the rule off in gpudeck.yaml instead")
    return Mute(
        id="",
        start=begin,
        end=end,
        created_at=now,
        created_by=by,
        reason=clean(data.reason.strip()),
        host=None if data.host is None else clean(data.host.strip()),
        hosts=sorted({clean(host.strip()) for host in data.hosts}),
        rule=None if data.rule is None else clean(data.rule.strip()),
        labels={clean(name): clean(value) for name, value in data.labels.items()},
    )


ThePersonalMutes = NamedDependency[PersonalMuteStore]


class PersonalMuteChange(Struct, frozen=True, forbid_unknown_fields=True):
    """The names of rules, such as `gpu_idle`; `watch` are your own watches."""

    rules: Annotated[list[RuleName], Meta(max_length=MAX_PERSONAL_MUTES)]


class PersonalMutes(Struct, frozen=True):
    """`rules` are your own choice; `by_settings` is what the hub's settings mute for you."""

    rules: list[str]
    by_settings: list[str]


@get("/api/v1/me/mutes", opt=access("self"))
async def read_personal_mutes(caller: TheCaller, auth: TheAuth, mutes: ThePersonalMutes) -> PersonalMutes:
    """The rules that you have muted."""
    return _show_personal_mutes(caller.name, auth, mutes)


@put("/api/v1/me/mutes", status_code=200, opt=access("self"))
async def choose_personal_mutes(
    caller: TheCaller, data: JSONBody[PersonalMuteChange], auth: TheAuth, mutes: ThePersonalMutes
) -> PersonalMutes:
    """Mute these rules for you, and no others."""
    if unknown := sorted(set(data.rules) - set(TOPICS)):
        raise ValidationException(f"rules: there is no rule {unknown[0]}")
    await mutes.choose(caller.name, data.rules)
    await auth.audit.record(caller, "choose mutes", caller.name, details=", ".join(sorted(set(data.rules))))
    return _show_personal_mutes(caller.name, auth, mutes)


def _show_personal_mutes(account: str, auth: Auth, mutes: PersonalMuteStore) -> PersonalMutes:
    return PersonalMutes(sorted(mutes.of(account)), sorted(auth.users.user_of(account).mute))


MAX_FIRINGS: Final = 1_000
_SECONDS: Final = 20.0
"""A test of a large fleet ends after so long, and says how many hosts are left."""


@get("/api/v1/alerts/test", opt=access("read"))
async def try_alert_rule(
    *,
    request: HubRequest,
    alerts: TheAlerts,
    hub: TheHub,
    history: TheHistory,
    rule: Annotated[str | None, QueryParameter(max_length=64, description="A rule of the operator's own")] = None,
    expr: Annotated[str | None, QueryParameter(max_length=1000, description="An expression in its place")] = None,
    start: Time = "-7d",
    end: Time = "now",
    host: HostName = None,
) -> Response[AlertTest]:
    """How often a rule would have fired, by default in the last seven days."""
    history.check_kept()
    now, chosen = history.now(), choose_rule(alerts.engine, rule, expr)
    span = read_past(start, end, now)
    check_range(*span)
    hosts = [one for one in hub.fleet.ordered() if host is None or host in {one.name, one.id}]
    if host is not None and not hosts:
        raise RequestRefused(404, "unknown_host", f"there is no host {clean(host)}.")
    pasts, tested, until = list[HostPast](), 0, monotonic() + _SECONDS
    for one in hosts:
        if tested and monotonic() >= until:
            break
        limits = chosen.limits_of(one.name, one.facts.labels)
        if limits.is_on:
            place = one.id, one.name
            question = partial(try_on_host, host=place, rule=chosen, limits=limits, span=span)
            pasts += await _ask_known(history, question)
        tested += 1
    firings = sorted((firing for past in pasts for firing in past.firings), key=lambda firing: firing.fired_at)
    total = sum(past.total for past in pasts)
    found = AlertTest(
        rule=rule,
        expr=chosen.expression.text,
        start=span[0],
        end=span[1],
        step=max((past.step for past in pasts), default=None),
        known=round(sum(past.known for past in pasts) / total, 4) if total else None,
        hosts=tested,
        hosts_left=len(hosts) - tested,
        count=len(firings),
        firings=firings[:MAX_FIRINGS],
    )
    return await answer_json(request, found)


async def _ask_known(history: HistoryQueries, question: "partial[HostPast]") -> list[HostPast]:
    """Nothing of a host that the history does not know yet."""
    try:
        return [await history.ask(question)]
    except HistoryRefused as error:
        if error.code != "unknown_host":
            raise
        return []
