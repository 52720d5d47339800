"""The life of alerts: what rules find becomes pending, firing, resolved, and every change an event. Never blocks.

Once a second: `begin`, `look` at every host that may be of interest, `finish`. In between others may have their turn.
Of interest are hosts that `preselect` selects, those in `active_hosts`, and all that are not up. Of an alert that fires
and whose rule `reads` nothing but numbers there is nothing to look at until one of them changes. What is not known
neither fires nor resolves anything: an alert whose subject fell silent goes on, and says so.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from gpudeck.alerts.course import HOUR, Course, Subjects
from gpudeck.alerts.finding import Find, FleetColumns, Rule, RuleFinding
from gpudeck.alerts.grouping import Outgoing
from gpudeck.alerts.life import Life
from gpudeck.alerts.limits import Limits
from gpudeck.alerts.rules.registry import RULES
from gpudeck.alerts.settings import AlertSettings
from gpudeck.alerts.silences import describe
from gpudeck.alerts.snapshot import HUB, Around, SeenHost, Selection
from gpudeck.alerts.thresholds import LimitsByRule, Thresholds
from gpudeck.model.cpu_budget import Steps
from gpudeck.model.cpu_budget import finish as finish_steps
from gpudeck.model.event import SEVERITIES, Event, make_event
from gpudeck.model.fleet_settings import RETURN_SECONDS, STUCK_SECONDS
from gpudeck.model.view import Gpu, Host

RETURN_BEATS: Final = 4.0
"""A host that is read less often than agents return has so many turns to be read again."""
_LOOK_AROUND: Final = 30.0
_MOST_TOLD: Final = 100
"""Alerts of removed hosts whose end is an event of its own; of more, one event tells."""
_NOT_HEARD: Final = "nothing has been heard of it since the hub was started"


class Engine(Course):
    """`tell` gets every event. `account_of` is the account of a login. One event loop owns it.

    `changed` are lives that are not written down yet, `outgoing` messages that are to be sent after that;
    `take_changed` and `take_outgoing` are for whoever writes them. `version` grows with whatever others see.
    """

    def __init__(
        self,
        settings: AlertSettings,
        tell: Callable[[Event], None],
        account_of: Callable[[str], str | None] = lambda login: login,
        *,
        defaults: LimitsByRule | None = None,
        prefix: str = "",
        rules: Sequence[Rule] = RULES,
        started_at: float | None = None,
    ) -> None:
        """`started_at` is when the hub was: hosts that were heard since have returned. None: at the first look."""
        super().__init__(settings, tell, account_of, {rule.name: rule for rule in rules}, prefix)
        self._defaults = defaults
        self._of_hosts = [(rule, rule.name, rule.find) for rule in rules if rule.scope == "host"]
        self._of_gpus = [(rule, rule.name, rule.find) for rule in rules if rule.scope == "gpu"]
        self._reads = tuple(dict.fromkeys(name for rule, _, _ in self._of_gpus for name in rule.reads))
        self._of_hub = [rule for rule in rules if rule.scope == "hub"]
        self._seen: set[str] = set()
        self._known: set[str] = set()
        self._begun_at: float | None = None
        self._started_at = started_at
        self._returning_since = float("-inf")
        self._looked_around_at = 0.0
        self._take_limits(settings)
        self.outgoing: list[Outgoing] = []

    def take_changed(self) -> dict[str, Life]:
        """The lives to write down, each once; those that could not be written are to be `put_back`."""
        taken, self.changed = self.changed, {}
        return taken

    def put_back(self, taken: dict[str, Life]) -> None:
        self.changed = taken | self.changed

    def take_outgoing(self) -> list[Outgoing]:
        """The messages to send, each once."""
        taken, self.outgoing = self.outgoing, []
        return taken

    def change(self, settings: AlertSettings) -> None:
        """Other limits from the next look on, between two looks. What fires and is no longer wrong by them resolves as
        anything else does."""
        self._take_limits(settings)
        self._grouping.change(settings)

    def _take_limits(self, settings: AlertSettings) -> None:
        self._is_anew = True
        self._thresholds = Thresholds(settings, self._defaults)
        self._by_model = self._thresholds.by_model
        self._loosest = {name: self._thresholds.loosest(name) for name in self._rules}
        self._repeat = None if settings.repeat == "off" else settings.repeat

    def load(self, lives: Iterable[Life], now: float) -> None:
        """What was kept before this start: those that are not over, and those of the last hour that are. Nothing of it
        is told again. Where that could not be read at once, it takes the place of what was found meanwhile."""
        lives = [life for life in lives if life.rule in self._rules]
        for life in lives:
            life.ready_at, life.calm_since, life.unknown_since = now, None, None
            self._falls[life.key] = sorted({*self._falls.get(life.key, ()), *life.falls})[-64:]
            if life.is_firing:
                self._forget_subject(life)
                self._put(life)
                if life.message is None and (life.people or not life.is_personal):
                    self._grouping.add(life)
            elif life.end_message is None:
                self._grouping.end(life)
        self.outgoing += self._grouping.rebuild(lives, now)
        self.version += 1
        self._is_anew = True

    def _forget_subject(self, life: Life) -> None:
        """What was begun of the same subject, as if it had not been."""
        found = self._active.get(life.host_id, {}).get(life.rule, {}).get((life.gpu, life.part))
        if found is not None and found is not life:
            self._drop(found)
            self._grouping.forget(found)
            self.changed.pop(found.id, None)

    def begin(self, around: Around) -> None:
        """Once a second, before hosts are looked at. After a start, and where the hub itself was away, hosts that do
        not report are given time to return."""
        now = around.now
        before = replace(self._around, now=now, late_bookings=(), history=None, free=0, known=0)
        if before != replace(around, late_bookings=(), history=None, free=0, known=0):
            self._is_anew = True
        if self._begun_at is None or not 0 <= now - self._begun_at < STUCK_SECONDS:
            self._is_anew = True
            self._returning_since = min(now, self._started_at or now) if self._begun_at is None else now
            self._count_anew(now)
        self._begun_at = now
        self._around = around
        self._seen = set()

    def _count_anew(self, now: float) -> None:
        """The hub was away, or its clock was set: nobody knows for how long anything has lasted by that clock."""
        for life in self._lives():
            if life.state == "pending":
                life.since = now
            if life.calm_since is not None:
                life.calm_since = now
            if life.unknown_since is not None:
                life.unknown_since = now

    def preselect(self, fleet: FleetColumns) -> Selection:
        """The hosts and GPUs of which some rule may find something. After `begin`."""
        hosts, gpus = fleet.hosts.end, fleet.gpus.end
        each_time, steady = ({"host": np.zeros(hosts, np.bool_), "gpu": np.zeros(gpus, np.bool_)} for _ in range(2))
        for rule, name, _ in (*self._of_gpus, *self._of_hosts):
            limits, rows = self._loosest[name], (steady if rule.reads else each_time)[rule.scope]
            if limits.is_on:
                rows |= True if rule.preselect is None else rule.preselect(fleet, limits, self._around)
        is_anew, self._is_anew = self._is_anew, False
        return Selection(each_time["host"], each_time["gpu"], steady["host"], steady["gpu"], self._reads, is_anew)

    def active_hosts(self) -> dict[str, set[str]]:
        """The ids of hosts with an alert that is not over, and the UUIDs of those of their GPUs, "" for the host, whose
        alerts may become others though nothing is reported."""
        return {
            host_id: {
                life.gpu
                for name, subjects in rules.items()
                for life in subjects.values()
                if life.state == "pending"
                or life.calm_since is not None
                or life.unknown_since is not None
                or not self._rules[name].reads
            }
            for host_id, rules in self._active.items()
            if host_id
        }

    def look(self, host: SeenHost) -> None:
        """At one host of the fleet."""
        self._seen.add(host.id)
        active = self._active.get(host.id)
        if host.status != "never" and host.name != host.id and host.name in self._active:
            self._note_first_seen(host.name)
        if host.status != "up":
            self._look_at_silent(host, active)
            return
        limits = self._thresholds.of(host.name, host.labels)
        gpus = host.gpus
        self._apply_all(self._of_hosts, host, (), limits, active)
        if not host.has_gpus:
            if active:
                self._note_unread(host, active)
            if not host.gone:
                return
        # Where nothing was preselected, rules find nothing: there are alerts that may be over, at most.
        rules = self._of_gpus if gpus or host.gone else [one for one in self._of_gpus if active and one[1] in active]
        if self._by_model:
            self._look_by_model(rules, host, active)
        else:
            self._apply_all(rules, host, gpus, limits, active)

    def finish(self, present: Collection[str] = ()) -> None:
        """After all hosts: what concerns the fleet, hosts that are gone, and messages whose time has come. `present`
        are the ids of all hosts in the fleet, also of those that were not looked at."""
        finish_steps(self.finish_in_steps(present))

    def finish_in_steps(self, present: Collection[str] = ()) -> Steps[None]:
        """The same, one step a host."""
        now = self._around.now
        limits = self._thresholds.of("", {})
        for rule in self._of_hub:
            self._apply(rule, HUB, (), limits[rule.name], self._active.get(""))
        self._seen.update(present)
        yield from self._note_absent(now)
        self._known |= self._seen
        if not 0 <= now - self._looked_around_at < _LOOK_AROUND:
            self._looked_around_at = now
            self._look_around(now)
            yield
        self._send(now)

    def firing(self) -> list[Life]:
        """The worst first, the newest first among them."""
        lives = [life for life in self._lives() if life.is_firing]
        return sorted(lives, key=lambda life: (-SEVERITIES.index(life.severity), -(life.fired_at or 0.0), life.id))

    def pending(self) -> list[Life]:
        return sorted((life for life in self._lives() if life.state == "pending"), key=lambda life: -life.since)

    def find(self, alert_id: str) -> Life | None:
        return next((life for life in self._lives() if life.id == alert_id), None)

    def acknowledge(self, life: Life, by: str, now: float) -> bool:
        """Somebody looks after it: it is not told again. False: it does not fire, or somebody does already."""
        if life.state != "firing":
            return False
        life.state, life.acknowledged_at, life.acknowledged_by = "acknowledged", now, by
        self._note(life)
        self._tell_of(life, "alert_acknowledged", f"{by} looks after: {life.title}", now)
        return True

    def hosts_called(self, name: str) -> set[str]:
        """The ids of hosts with an alert, by their name or id, whether they are in the fleet or not."""
        return {life.host_id for life in self._lives() if life.host_id and name in {life.host, life.host_id}}

    def remove_hosts(self, host_ids: Iterable[str], now: float) -> int:
        """Somebody removed these hosts: their alerts are over. Returns how many fired."""
        self._around = replace(self._around, now=now)
        lives = [life for host_id in host_ids for life in self._of(host_id)]
        firing = [life for life in lives if life.is_firing]
        for life in lives:
            if life.is_firing:
                self._resolve(life, "the host was removed", is_told=len(firing) <= _MOST_TOLD)
            else:
                self._drop(life)
        self._tell_removed(len(firing), now)
        return len(firing)

    def _tell_removed(self, count: int, now: float) -> None:
        """So many alerts have ended with their hosts."""
        if count > _MOST_TOLD:
            self._tell(make_event(now, "alert_resolved", f"Over: {count} alerts (their hosts were removed)"))

    def refresh_silences(self, now: float) -> None:
        """After one was made or ended: who is silenced now."""
        for life in self._lives():
            silence = self.silences.find(life, now)
            silenced_by = None if silence is None else silence.id
            if silenced_by != life.silenced_by:
                life.silenced_by = silenced_by
                if life.state != "pending":
                    self._note(life)

    def note_sent(self, sent: Outgoing, now: float) -> None:
        """Its message is on its way."""
        for life in sent.lives:
            if sent.is_end:
                life.end_told_at = now
            else:
                life.told_at = now
            self.changed[life.id] = life

    def _look_at_silent(self, host: SeenHost, active: Mapping[str, Subjects] | None) -> None:
        for rule, name, _ in self._of_hosts:
            if rule.sees_silent and ((active and name in active) or not self._may_return(host)):
                limits = self._thresholds.of(host.name, host.labels)[rule.name]
                self._apply(rule, host, (), limits, self._active.get(host.id))
        if not active:
            return
        why = _NOT_HEARD if host.status == "never" else f"the host is {host.status}"
        for name, subjects in list(active.items()):
            if not self._rules[name].sees_silent:
                for life in list(subjects.values()):
                    self._note_unknown(life, why)

    def _may_return(self, host: SeenHost) -> bool:
        """Whether it is too early to say that the host is gone: the hub was away, and has not heard of it since."""
        if host.status == "never" or host.silent_since > self._returning_since:
            return False
        seconds = max(RETURN_SECONDS, RETURN_BEATS * (host.view.interval_seconds or 0.0))
        return self._around.now < self._returning_since + seconds

    def _look_by_model(
        self, rules: Sequence[tuple[Rule, str, Find]], host: SeenHost, active: Mapping[str, Subjects] | None
    ) -> None:
        """Each model has limits of its own, also where all GPUs of it are gone. What a rule says of GPUs that are gone
        it says each time: the one with their model counts."""
        models: dict[str, list[Gpu]] = {gpu.model: [] for gpu in host.gone}
        for gpu in host.gpus:
            models.setdefault(gpu.name, []).append(gpu)
        by_model = {model: self._thresholds.of(host.name, host.labels, model) for model in models}
        everybody = self._thresholds.of(host.name, host.labels)
        for rule, _, _ in rules:
            found: dict[str, tuple[RuleFinding, Limits]] = {}
            for model in sorted(models):
                limits = by_model[model][rule.name]
                for finding in rule.find(host, models[model], limits, self._around) if limits.is_on else ():
                    if finding.model == model:
                        found[f"{finding.gpu}\0{finding.part}"] = (finding, limits)
            subjects = active.get(rule.name) if active else None
            if found or subjects:
                self._settle(rule, host, list(found.values()), subjects, everybody[rule.name])

    def _apply_all(
        self,
        rules: Sequence[tuple[Rule, str, Find]],
        host: SeenHost,
        gpus: Sequence[Gpu],
        limits: LimitsByRule,
        active: Mapping[str, Subjects] | None,
    ) -> None:
        """Of a thousand hosts nearly all are well: what is done for those stands in this loop."""
        around = self._around
        for rule, name, find in rules:
            own = limits[name]
            found = find(host, gpus, own, around)
            if (found and own.is_on) or (active and name in active):
                subjects = active.get(name) if active else None
                self._settle(rule, host, [(one, own) for one in found] if own.is_on else (), subjects, own)

    def _apply(
        self, rule: Rule, host: SeenHost, gpus: Sequence[Gpu], limits: Limits, active: Mapping[str, Subjects] | None
    ) -> None:
        found = rule.find(host, gpus, limits, self._around) if limits.is_on else ()
        subjects = active.get(rule.name) if active else None
        if found or subjects:
            self._settle(rule, host, [(finding, limits) for finding in found], subjects, limits)

    def _settle(
        self,
        rule: Rule,
        host: SeenHost,
        found: Sequence[tuple[RuleFinding, Limits]],
        subjects: Subjects | None,
        limits: Limits,
    ) -> None:
        there = set()
        for finding, own in found:
            subject = (finding.gpu or "", finding.part)
            there.add(subject)
            life = subjects.get(subject) if subjects else None
            if life is not None:
                self._go_on(life, finding, own)
            elif finding.is_bad:
                self._start(rule, host, finding, own)
        for subject, life in list(subjects.items()) if subjects else ():
            if subject not in there and host.is_chosen(life.gpu):
                why = _why_unknown(rule, host, life) if limits.is_on else None
                if why is not None:
                    self._note_unknown(life, why)
                else:
                    self._ease(life, limits)

    def _note_first_seen(self, name: str) -> None:
        """Until a host reports for the first time its name is its id."""
        for life in list(self._active[name].get("host_unreadable", {}).values()):
            self._resolve(life, None) if life.is_firing else self._drop(life)

    def _note_unread(self, host: SeenHost, active: Mapping[str, Subjects]) -> None:
        """None of its GPUs can be read now."""
        why = host.view.reasons.get("gpus") or "the host tells of no GPU"
        for _, name, _ in self._of_gpus:
            for life in list(active.get(name, {}).values()):
                if not host.is_gone(life.gpu):
                    self._note_unknown(life, why)

    def _note_absent(self, now: float) -> Steps[None]:
        """A host that was there in this run was removed; of another one nobody has heard since the hub was started."""
        absent = [host_id for host_id in self._active if host_id and host_id not in self._seen]
        firing = sum(life.is_firing for host_id in absent if host_id in self._known for life in self._of(host_id))
        for host_id in absent:
            # Whoever had a turn in between may have ended some of them.
            for life in self._of(host_id):
                if host_id not in self._known:
                    self._note_unknown(life, _NOT_HEARD)
                elif life.is_firing:
                    self._resolve(life, "the host is no longer in the fleet", is_told=firing <= _MOST_TOLD)
                else:
                    self._drop(life)
            yield
        self._tell_removed(firing, now)

    def _of(self, host_id: str) -> list[Life]:
        return [life for subjects in self._active.get(host_id, {}).values() for life in subjects.values()]

    def _look_around(self, now: float) -> None:
        """Twice a minute: silences that ended, what is to be told again, and falls that are forgotten."""
        for silence in self.silences.take_ended(now):
            title = f"{silence.created_by}'s silence of {describe(silence)} is over"
            self._tell(make_event(now, "alert_silence_ended", title, detail=silence.reason))
        self.refresh_silences(now)
        self._falls = {key: falls for key, falls in self._falls.items() if now - falls[-1] < HOUR}
        if self._repeat is None:
            return
        for life in self._lives():
            is_open = life.state == "firing" and life.severity == "critical" and life.told_at is not None
            if is_open and now - (life.told_at or now) >= self._repeat and not self._is_muted(life, now):
                life.repeats += 1
                life.message, life.told_at, life.ready_at = None, None, now
                self._grouping.add(life)
                self._note(life)

    def _send(self, now: float) -> None:
        for sent in self._grouping.due(now):
            self.outgoing.append(sent)
            for life in sent.lives:
                self.changed[life.id] = life


def _why_unknown(rule: Rule, host: SeenHost, life: Life) -> str | None:
    """Why it cannot be told whether it is still so; None where it can, and it is over."""
    if rule.why_unknown is not None and (why := rule.why_unknown(host, life.gpu, life.part)) is not None:
        return why
    if rule.scope == "hub":
        return None
    view: Host | Gpu = host.view
    if rule.scope == "gpu":
        board = host.boards.get(life.gpu)
        if board is None:
            return "the host does not tell of this GPU"
        if board.missing is not None and not rule.reads_missing:
            return board.missing
        view = board.view()
    unread = next((name for name in rule.needs if getattr(view, name) is None), None)
    return None if unread is None else view.reasons.get(unread) or "it could not be read"
