"""The course of one alert: what becomes of it when a rule finds it, finds it no longer, or cannot tell."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from gpudeck.alerts.finding import Rule, RuleFinding
from gpudeck.alerts.grouping import Grouping
from gpudeck.alerts.life import Life, make_id
from gpudeck.alerts.limits import Limits
from gpudeck.alerts.settings import AlertSettings
from gpudeck.alerts.silences import Silences
from gpudeck.alerts.snapshot import Around, SeenHost
from gpudeck.model.event import SEVERITIES, Event, make_event

HOUR: Final = 3600.0
FLAPS: Final = 3
"""What fires so often within an hour comes and goes: it is over when it has been calm for `FLAP_CALM`."""
FLAP_CALM: Final = 1800.0
UNKNOWN_SAID_AFTER: Final = 60.0
UNKNOWN_ENDS_AFTER: Final = 7 * 86_400.0
_COMES_AND_GOES: Final = "It comes and goes."

Subjects = dict[tuple[str, str], Life]


class Course:
    """All lives that are not over, and every step one can take; `Engine` decides which. `_around` is the moment."""

    def __init__(
        self,
        settings: AlertSettings,
        tell: Callable[[Event], None],
        account_of: Callable[[str], str | None],
        rules: Mapping[str, Rule],
        prefix: str,
    ) -> None:
        self._tell = tell
        self._account_of = account_of
        self._rules = rules
        self._active: dict[str, dict[str, Subjects]] = {}
        self._falls: dict[tuple[str, str, str, str], list[float]] = {}
        self._down: set[str] = set()
        self._around = Around(now=0.0)
        self.silences = Silences()
        self._grouping = Grouping(settings, self._rules, self._is_muted, prefix=prefix)
        self.changed: dict[str, Life] = {}
        self.version = 0

    def _start(self, rule: Rule, host: SeenHost, finding: RuleFinding, limits: Limits) -> None:
        now = self._around.now
        key = (rule.name, host.id, finding.gpu or "", finding.part)
        life = Life(
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
            labels=dict(host.labels),
            users=finding.users,
            people=self._people_of(finding),
            is_personal=finding.is_personal,
            since=now if finding.since is None else min(now, finding.since),
        )
        self._put(life)
        if now - life.since >= limits.wait:
            self._fire(life)

    def _go_on(self, life: Life, finding: RuleFinding, limits: Limits) -> None:
        life.title = finding.title
        if life.calm_since is not None:
            self._note_return(life)
        if life.unknown_since is not None:
            self._know_again(life)
        if life.state == "pending":
            if not finding.is_bad:
                self._drop(life)
            elif self._around.now - life.since >= limits.wait:
                life.severity = finding.severity or limits.severity
                self._fire(life)
        elif finding.is_bad:
            if finding.severity is not None:
                self._raise(life, finding)
            if self._rules[life.rule].kind == "booking":
                self._note_newcomers(life, finding)

    def _people_of(self, finding: RuleFinding) -> tuple[str, ...]:
        people = [*finding.accounts, *(self._account_of(user) for user in finding.users)]
        return tuple(dict.fromkeys(person for person in people if person is not None))

    def _note_newcomers(self, life: Life, finding: RuleFinding) -> None:
        """Another one is on a booked GPU, or it is another's by now: they have not been told."""
        people = self._people_of(finding)
        if set(people) <= set(life.people):
            return
        life.people, life.users = people, finding.users
        life.message, life.told_at, life.ready_at = None, None, self._around.now
        self._grouping.add(life)
        self._note(life)

    def _note_return(self, life: Life) -> None:
        """It was over, though not for long enough to count: that is a fall like any other."""
        now = self._around.now
        life.calm_since = None
        life.falls = [*(at for at in life.falls if 0 <= now - at < HOUR), now][-64:]
        self._falls[life.key] = life.falls
        if len(life.falls) == FLAPS:
            life.note = _COMES_AND_GOES
            self._note(life)

    def _raise(self, life: Life, finding: RuleFinding) -> None:
        """It got worse: that is told as news, also where somebody had acknowledged what was less bad."""
        severity = finding.severity or life.severity
        if SEVERITIES.index(severity) <= SEVERITIES.index(life.severity):
            return
        life.severity, life.state, life.message, life.told_at = severity, "firing", None, None
        life.acknowledged_at = life.acknowledged_by = None
        life.ready_at = self._around.now
        self._grouping.add(life)
        self._note(life)
        self._tell_of(life, "alert_fired", f"It got worse: {life.title}", self._around.now, life.action)

    def _fire(self, life: Life) -> None:
        now = self._around.now
        falls = [at for at in self._falls.get(life.key, ()) if 0 <= now - at < HOUR]
        falls.append(now)
        self._falls[life.key] = falls[-64:]
        life.falls = list(self._falls[life.key])
        life.state, life.fired_at, life.ready_at = "firing", now, now
        if len(falls) >= FLAPS:
            life.note = _COMES_AND_GOES
        silence = self.silences.find(life, now)
        life.silenced_by = None if silence is None else silence.id
        if life.rule == "host_down":
            self._down.add(life.host_id)
        if not life.is_personal or life.people:
            self._grouping.add(life)
        self._note(life)
        self._tell_of(life, "alert_fired", life.title, now, life.action)

    def _ease(self, life: Life, limits: Limits) -> None:
        """It is not so any more; how long that has to last depends on how often it came back."""
        now = self._around.now
        if life.state == "pending":
            self._drop(life)
            return
        if life.unknown_since is not None:
            self._know_again(life)
        if life.calm_since is None or life.calm_since > now:
            life.calm_since = now
        recent = [at for at in life.falls if 0 <= now - at < HOUR]
        needed = FLAP_CALM if len(recent) >= FLAPS else limits.clear_after
        # What a rule counts for its own time is not waited for once more.
        if now - life.calm_since >= (needed if life.rule != "xid" else 0.0):
            self._resolve(life, None)

    def _resolve(self, life: Life, end: str | None, *, is_told: bool = True) -> None:
        """Without `is_told` there is no event of it: whoever ends many at once tells of all in one."""
        now = self._around.now
        life.state, life.resolved_at, life.ready_at, life.end = "resolved", now, now, end
        self._drop(life)
        self._grouping.end(life)
        self._note(life)
        why = f" ({end})" if end else ""
        if is_told:
            self._tell_of(life, "alert_resolved", f"Over: {life.title}{why}", now)

    def _note_unknown(self, life: Life, why: str) -> None:
        now = self._around.now
        if life.state == "pending":
            # Time in which nobody could look is no time in which it was so.
            self._drop(life)
            return
        life.calm_since = None
        if life.unknown_since is None or life.unknown_since > now:
            life.unknown_since = now
        elif now - life.unknown_since >= UNKNOWN_ENDS_AFTER:
            self._resolve(life, "nothing has been known of it for a week")
        elif now - life.unknown_since >= UNKNOWN_SAID_AFTER:
            note = f"Whether it is still so is not known: {why.rstrip('.')}."
            if life.note != note:
                life.note = note
                self._note(life)

    def _know_again(self, life: Life) -> None:
        life.unknown_since = None
        if life.note is not None and life.note.startswith("Whether"):
            life.note = None
            self._note(life)

    def _is_muted(self, life: Life, now: float) -> bool:
        """A host that is down has said so: what else is wrong there is told when it is back."""
        if life.rule != "host_down" and life.host_id in self._down:
            return True
        return self.silences.find(life, now) is not None

    def _lives(self) -> list[Life]:
        return [life for rules in self._active.values() for subjects in rules.values() for life in subjects.values()]

    def _put(self, life: Life) -> None:
        self._active.setdefault(life.host_id, {}).setdefault(life.rule, {})[life.gpu, life.part] = life
        if life.rule == "host_down" and life.is_firing:
            self._down.add(life.host_id)

    def _drop(self, life: Life) -> None:
        rules = self._active[life.host_id]
        del rules[life.rule][life.gpu, life.part]
        if not rules[life.rule]:
            del rules[life.rule]
        if not rules:
            del self._active[life.host_id]
        if life.rule == "host_down":
            self._down.discard(life.host_id)

    def _note(self, life: Life) -> None:
        self.changed[life.id] = life
        self.version += 1

    def _tell_of(self, life: Life, kind: str, title: str, now: float, detail: str = "") -> None:
        where: dict[str, Any] = {"host": life.host, "host_id": life.host_id or None, "gpu": life.gpu or None}
        user = life.users[0] if life.users else None
        severity = life.severity if kind == "alert_fired" else "info"
        said = f"{life.rule}, {life.id}. {detail}".rstrip()
        self._tell(make_event(now, kind, title, severity=severity, label=life.label, user=user, detail=said, **where))
