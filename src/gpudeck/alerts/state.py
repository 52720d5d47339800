"""The states of an alert (pending, firing, acknowledged, resolved) and their transitions: a rule finds it, no longer
finds it, or cannot tell."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from gpudeck.alerts.grouping import MessageGrouping
from gpudeck.alerts.record import AlertRecord, Mutes, make_id
from gpudeck.alerts.rule import FleetContext, HostSnapshot, Rule, RuleFinding
from gpudeck.alerts.settings import AlertSettings, Limits
from gpudeck.model.alert import MAINTENANCE
from gpudeck.model.event import SEVERITIES, Event, make_event, recent_falls

FLAPS: Final = 3
"""An alert that fires so often within an hour is flapping: it resolves after `FLAP_CALM` without firing again."""
FLAP_CALM: Final = 1800.0
UNKNOWN_SAID_AFTER: Final = 60.0
UNKNOWN_ENDS_AFTER: Final = 7 * 86_400.0
_FLAPPING: Final = "It is flapping."


OpenAlerts = dict[tuple[str, str, str], AlertRecord]
"""Of one host, by rule, GPU and part."""


class AlertStateMachine:
    """The alerts that are not resolved, and their transitions; `AlertEngine` decides about these."""

    def __init__(
        self,
        settings: AlertSettings,
        emit: Callable[[Event], None],
        account_of: Callable[[str], str | None],
        rules: Mapping[str, Rule],
        prefix: str,
    ) -> None:
        self._emit = emit
        self._account_of = account_of
        self._rules = dict(rules)
        self._active: dict[str, OpenAlerts] = {}
        self._falls: dict[tuple[str, str, str, str], list[float]] = {}
        self._down: set[str] = set()
        self._context = FleetContext(now=0.0)
        self.mutes = Mutes()
        self._grouping = MessageGrouping(settings, self._rules, self.is_muted, prefix=prefix)
        self.changed: dict[str, AlertRecord] = {}
        self.version = 0

    def _start(self, rule: Rule, host: HostSnapshot, finding: RuleFinding, limits: Limits) -> None:
        now = self._context.now
        key = (rule.name, host.id, finding.gpu or "", finding.part)
        record = AlertRecord(
            id=make_id(key, now),
            rule=rule.name,
            severity=finding.severity or limits.severity,
            state="pending",
            title=finding.title,
            action=finding.action or rule.action,
            host=host.name or None,
            host_id=host.id,
            gpu=finding.gpu or "",
            part=finding.part,
            label=finding.label,
            model=finding.model,
            labels={**host.labels, **rule.labels},
            users=finding.users,
            accounts=self._accounts_of(finding),
            is_personal=finding.is_personal,
            since=now if finding.since is None else min(now, finding.since),
        )
        self._put(record)
        if now - record.since >= limits.wait:
            self._fire(record)

    def _go_on(self, record: AlertRecord, finding: RuleFinding, limits: Limits) -> None:
        record.title = finding.title
        if record.calm_since is not None:
            self._note_return(record)
        if record.unknown_since is not None:
            self._know_again(record)
        if record.state == "pending":
            if not finding.is_bad:
                self._drop(record)
            elif self._context.now - record.since >= limits.wait:
                record.severity = finding.severity or limits.severity
                self._fire(record)
        elif finding.is_bad:
            if finding.severity is not None:
                self._raise(record, finding)
            if self._rules[record.rule].kind == "reservation":
                self._note_newcomers(record, finding)

    def _accounts_of(self, finding: RuleFinding) -> tuple[str, ...]:
        accounts = [*finding.accounts, *(self._account_of(user) for user in finding.users)]
        return tuple(dict.fromkeys(account for account in accounts if account is not None))

    def _note_newcomers(self, record: AlertRecord, finding: RuleFinding) -> None:
        """The user of a reserved GPU, or its owner, has changed, and has not been notified yet."""
        accounts = self._accounts_of(finding)
        if set(accounts) <= set(record.accounts):
            return
        record.accounts, record.users = accounts, finding.users
        self._send_again(record, self._context.now)

    def _send_again(self, record: AlertRecord, now: float) -> None:
        record.message, record.told_at, record.ready_at = None, None, now
        self._grouping.add(record)
        self._note(record)

    def _note_return(self, record: AlertRecord) -> None:
        """It was gone, but not for long enough to be resolved: that counts as firing again."""
        now = self._context.now
        record.calm_since = None
        record.falls = [*recent_falls(record.falls, now), now]
        self._falls[record.key] = record.falls
        if len(record.falls) == FLAPS:
            record.note = _FLAPPING
            self._note(record)

    def _raise(self, record: AlertRecord, finding: RuleFinding) -> None:
        """A higher severity is sent again, even if the lower one was acknowledged."""
        severity = finding.severity or record.severity
        if SEVERITIES.index(severity) <= SEVERITIES.index(record.severity):
            return
        record.severity, record.state, record.acknowledged_at, record.acknowledged_by = severity, "firing", None, None
        self._send_again(record, self._context.now)
        self._emit_event(record, "alert_fired", f"It got worse: {record.title}", self._context.now, record.action)

    def _fire(self, record: AlertRecord) -> None:
        now = self._context.now
        falls = self._falls[record.key] = [*recent_falls(self._falls.get(record.key, ()), now), now]
        record.falls = list(falls)
        record.state, record.fired_at, record.ready_at = "firing", now, now
        if len(falls) >= FLAPS:
            record.note = _FLAPPING
        record.muted_by = self._find_mute(record, now)
        if self._rules[record.rule].inhibits_host:
            self._down.add(record.host_id)
        if not record.is_personal or record.accounts:
            self._grouping.add(record)
        self._note(record)
        self._emit_event(record, "alert_fired", record.title, now, record.action)

    def _ease(self, record: AlertRecord, limits: Limits) -> None:
        """No rule finds it any more. It is resolved after a while, which is longer if it is flapping."""
        now = self._context.now
        if record.state == "pending":
            self._drop(record)
            return
        if record.unknown_since is not None:
            self._know_again(record)
        if record.calm_since is None or record.calm_since > now:
            record.calm_since = now
        needed = FLAP_CALM if len(recent_falls(record.falls, now)) >= FLAPS else limits.clear_after
        # The findings of some rules last for that time already.
        if now - record.calm_since >= (0.0 if self._rules[record.rule].clears_itself else needed):
            self._resolve(record, None)

    def _end(self, record: AlertRecord, why: str | None) -> bool:
        """Its subject is gone. Returns whether it fired."""
        if record.is_firing:
            self._resolve(record, why)
            return True
        self._drop(record)
        return False

    def _resolve(self, record: AlertRecord, end: str | None) -> None:
        now = self._context.now
        record.state, record.resolved_at, record.ready_at, record.end = "resolved", now, now, end
        self._drop(record)
        self._grouping.end(record)
        self._note(record)
        why = f" ({end})" if end else ""
        self._emit_event(record, "alert_resolved", f"Resolved: {record.title}{why}", now)

    def _note_unknown(self, record: AlertRecord, why: str) -> None:
        now = self._context.now
        if record.state == "pending":
            # Unknown time does not count.
            self._drop(record)
            return
        record.calm_since = None
        if record.unknown_since is None or record.unknown_since > now:
            record.unknown_since = now
        elif now - record.unknown_since >= UNKNOWN_ENDS_AFTER:
            self._resolve(record, "nothing has been known of it for a week")
        elif now - record.unknown_since >= UNKNOWN_SAID_AFTER:
            note = f"Whether it is still so is not known: {why.rstrip('.')}."
            if record.note != note:
                record.note = note
                self._note(record)

    def _know_again(self, record: AlertRecord) -> None:
        record.unknown_since = None
        if record.note is not None and record.note.startswith("Whether"):
            record.note = None
            self._note(record)

    def is_muted(self, record: AlertRecord, now: float) -> bool:
        """While a host is down, its other alerts wait until it is back."""
        if record.host_id in self._down and not self._rules[record.rule].inhibits_host:
            return True
        return self._find_mute(record, now) is not None

    def _find_mute(self, record: AlertRecord, now: float) -> str | None:
        """The id of the mute that suppresses its messages."""
        if self._is_drained(record.host_id, record.gpu):
            return MAINTENANCE
        mute = self.mutes.find(record, now)
        return None if mute is None else mute.id

    def _is_drained(self, host_id: str, gpu: str | None) -> bool:
        return bool(self._context.drained) and (host_id in self._context.drained or gpu in self._context.drained)

    def _records(self) -> list[AlertRecord]:
        return [record for records in self._active.values() for record in records.values()]

    def _put(self, record: AlertRecord) -> None:
        self._active.setdefault(record.host_id, {})[record.rule, record.gpu, record.part] = record
        if record.is_firing and self._rules[record.rule].inhibits_host:
            self._down.add(record.host_id)

    def _drop(self, record: AlertRecord) -> None:
        records = self._active[record.host_id]
        del records[record.rule, record.gpu, record.part]
        if not records:
            del self._active[record.host_id]
        if self._rules[record.rule].inhibits_host:
            self._down.discard(record.host_id)

    def _note(self, record: AlertRecord) -> None:
        self.changed[record.id] = record
        self.version += 1

    def _emit_event(self, record: AlertRecord, kind: str, title: str, now: float, detail: str = "") -> None:
        where: dict[str, Any] = {"host": record.host, "host_id": record.host_id or None, "gpu": record.gpu or None}
        user = record.users[0] if record.users else None
        severity = record.severity if kind == "alert_fired" else "info"
        said = f"{record.rule}, {record.id}. {detail}".rstrip()
        self._emit(make_event(now, kind, title, severity=severity, label=record.label, user=user, detail=said, **where))
