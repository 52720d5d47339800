"""The alert engine: turns the findings of rules into pending, firing and resolved alerts, and emits an event for every
change. Never blocks.

Once a second: `begin`, `evaluate` for hosts that `preselect` selects, that are in `active_hosts`, or that are not up,
then `finish`. Other tasks may run in between. An alert whose rule has `reads` is evaluated again when one of these
changes. Unknown values neither fire nor resolve an alert: if its host stops reporting, it continues and says so.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from gpudeck.alerts.grouping import OutgoingMessage
from gpudeck.alerts.record import AlertRecord, describe
from gpudeck.alerts.rule import HUB, FleetContext, HostSnapshot, Rule, RuleFinding, Selection
from gpudeck.alerts.rules import RULES
from gpudeck.alerts.rules.own import make_own_rules, retired_rule
from gpudeck.alerts.settings import AlertSettings, Limits, LimitsByRule, Thresholds
from gpudeck.alerts.state import AlertStateMachine, OpenAlerts
from gpudeck.fleet.table import FleetTable
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.cpu_budget import Steps
from gpudeck.model.cpu_budget import finish as finish_steps
from gpudeck.model.event import HOUR, SEVERITIES, Event, make_event
from gpudeck.model.gpu_state import RETURN_SECONDS, STUCK_SECONDS
from gpudeck.model.view import Gpu, Host

RETURN_INTERVALS: Final = 4.0
"""After a start, a host with a long interval has so many intervals to report."""
_CARE_SECONDS: Final = 30.0
_NOT_SEEN: Final = "it has not reported since the hub was started"


class AlertEngine(AlertStateMachine):
    """`emit` gets every event. `account_of` returns the account of a login. One event loop owns it.

    `changed` are records that are not in the database yet, `outgoing` messages to send after that; `take_changed` and
    `take_outgoing` are for their writer. `version` grows with every visible change.
    """

    def __init__(
        self,
        settings: AlertSettings,
        emit: Callable[[Event], None],
        account_of: Callable[[str], str | None] = lambda login: login,
        *,
        defaults: LimitsByRule | None = None,
        prefix: str = "",
        rules: Sequence[Rule] = RULES,
        started_at: float | None = None,
    ) -> None:
        """`started_at` is the start of the hub, None for the first `begin`: hosts that reported since have returned."""
        super().__init__(settings, emit, account_of, {rule.name: rule for rule in rules}, prefix)
        self._defaults = defaults
        self._given = tuple(rules)
        self._of_hosts, self._of_gpus, self._of_hub = list[Rule](), list[Rule](), list[Rule]()
        self._reads: tuple[str, ...] = ()
        self._seen: set[str] = set()
        self._known: set[str] = set()
        self._begun_at: float | None = None
        self._started_at = started_at
        self._returning_since = float("-inf")
        self._cared_at = 0.0
        self._take_limits(settings)
        self.outgoing: list[OutgoingMessage] = []

    def take_changed(self) -> dict[str, AlertRecord]:
        """The records to write, each once. Records that could not be written have to be `put_back`."""
        taken, self.changed = self.changed, {}
        return taken

    def put_back(self, taken: dict[str, AlertRecord]) -> None:
        self.changed = taken | self.changed

    def take_outgoing(self) -> list[OutgoingMessage]:
        """The messages to send, each once."""
        taken, self.outgoing = self.outgoing, []
        return taken

    def change(self, settings: AlertSettings) -> None:
        """Use other limits and own rules from the next `begin` on. Not between `begin` and `finish`."""
        self._take_limits(settings)
        self._resolve_retired()
        self._grouping.change(settings)

    def _take_limits(self, settings: AlertSettings) -> None:
        self._is_anew, self.settings = True, settings
        self.thresholds = Thresholds(settings, self._defaults)
        self._by_model = self.thresholds.by_model
        rules = (*self._given, *make_own_rules(settings))
        # Removed rules stay known, for the messages about their last alerts.
        self._rules |= {rule.name: rule for rule in rules}
        self._of_hosts, self._of_gpus, self._of_hub = (
            [rule for rule in rules if rule.scope == scope] for scope in ("host", "gpu", "hub")
        )
        self._reads = tuple(dict.fromkeys(name for rule in self._of_gpus for name in rule.reads if name in GPU_METRICS))
        self._loosest = {rule.name: self.thresholds.loosest(rule.name) for rule in rules}
        self._repeat = None if settings.repeat == "off" else settings.repeat

    def load(self, records: Iterable[AlertRecord], now: float) -> None:
        """Load the alerts of before this start: open ones, and those that ended within the last hour. None is sent
        again. They replace alerts of the same subject that began before they could be read."""
        records = list(records)
        for record in records:
            self._rules.setdefault(record.rule, retired_rule(record.rule))
            record.ready_at, record.calm_since, record.unknown_since = now, None, None
            self._falls[record.key] = sorted({*self._falls.get(record.key, ()), *record.falls})[-64:]
            if record.is_firing:
                self._forget_subject(record)
                self._put(record)
                if record.message is None and (record.accounts or not record.is_personal):
                    self._grouping.add(record)
            elif record.end_message is None:
                self._grouping.end(record)
        self.outgoing += self._grouping.rebuild(records, now)
        self._resolve_retired()
        self.version += 1
        self._is_anew = True

    def _resolve_retired(self) -> None:
        """End alerts of rules that are no longer in the settings."""
        for record in self._records():
            if record.rule not in self._loosest:
                self._end(record, "the rule was removed")

    @property
    def rule_names(self) -> tuple[str, ...]:
        """The names of all rules that are evaluated."""
        return tuple(self._loosest)

    def _forget_subject(self, record: AlertRecord) -> None:
        """Drop an alert of the same subject that began meanwhile."""
        found = self._active.get(record.host_id, {}).get((record.rule, record.gpu, record.part))
        if found is not None and found is not record:
            self._drop(found)
            self._grouping.forget(found)
            self.changed.pop(found.id, None)

    def begin(self, context: FleetContext) -> None:
        """Once a second, before hosts are evaluated. After a start or a suspend of the hub, silent hosts have time to
        return."""
        now = context.now
        if _steady(self._context, now) != _steady(context, now):
            self._is_anew = True
        if self._begun_at is None or not 0 <= now - self._begun_at < STUCK_SECONDS:
            self._is_anew = True
            self._returning_since = min(now, self._started_at or now) if self._begun_at is None else now
            self._count_anew(now)
        self._begun_at = now
        is_other, self._context = context.drained != self._context.drained, context
        if is_other:
            self.refresh_mutes(now)
        self._seen = set()

    def _count_anew(self, now: float) -> None:
        """The hub was suspended, or its clock was set: durations by that clock are unknown."""
        for record in self._records():
            if record.state == "pending":
                record.since = now
            if record.calm_since is not None:
                record.calm_since = now
            if record.unknown_since is not None:
                record.unknown_since = now

    def preselect(self, fleet: FleetTable) -> Selection:
        """The hosts and GPUs that may have findings. After `begin`."""
        hosts, gpus = fleet.hosts.end, fleet.gpus.end
        each_time, steady = ({"host": np.zeros(hosts, np.bool_), "gpu": np.zeros(gpus, np.bool_)} for _ in range(2))
        for rule in (*self._of_gpus, *self._of_hosts):
            limits, rows = self._loosest[rule.name], (steady if rule.reads else each_time)[rule.scope]
            if limits.is_on:
                rows |= True if rule.preselect is None else rule.preselect(fleet, limits, self._context)
        is_anew, self._is_anew = self._is_anew, False
        return Selection(each_time["host"], each_time["gpu"], steady["host"], steady["gpu"], self._reads, is_anew)

    def active_hosts(self) -> dict[str, set[str]]:
        """The ids of hosts with open alerts, and the UUIDs of those of their GPUs, "" for the host, whose alerts may
        change without a report. After `begin`."""
        now, wait = self._context.now, {name: limits.wait for name, limits in self._loosest.items()}
        always = {name: not self._rules[name].reads for name in self._loosest}
        return {
            host_id: {
                record.gpu
                for record in records.values()
                if always[record.rule]
                or record.calm_since is not None
                or record.unknown_since is not None
                or (record.state == "pending" and now - record.since >= wait[record.rule])
            }
            for host_id, records in self._active.items()
            if host_id
        }

    def evaluate(self, host: HostSnapshot) -> None:
        self._seen.add(host.id)
        active = self._active.get(host.id, {})
        if host.status != "never_seen" and host.name != host.id and host.name in self._active:
            # Until a host reports for the first time, its id is its name.
            for record in self._of(host.name):
                if record.rule == "host_unreadable":
                    self._end(record, None)
        if host.status != "up":
            self._evaluate_silent(host, active)
            return
        limits = self.thresholds.of(host.name, host.labels)
        self._apply(self._of_hosts, host, (), limits, active)
        if not host.has_gpus:
            self._note_unread(host, active)
            if not host.gone:
                return
        # If no GPU was preselected, rules find nothing, and only alerts may end.
        rules = self._of_gpus
        if not host.gpus and not host.gone:
            names = {name for name, _, _ in active}
            rules = [rule for rule in rules if rule.name in names]
        if self._by_model:
            self._evaluate_by_model(rules, host, active)
        else:
            self._apply(rules, host, host.gpus, limits, active)

    def finish(self, present: Collection[str] = ()) -> None:
        """After all hosts: rules about the fleet, hosts that are gone, and messages that are due. `present` are the ids
        of all hosts in the fleet, also of those that were not evaluated."""
        finish_steps(self.finish_in_steps(present))

    def finish_in_steps(self, present: Collection[str] = ()) -> Steps[None]:
        """The same in steps, one for each host."""
        now = self._context.now
        self._apply(self._of_hub, HUB, (), self.thresholds.of("", {}), self._active.get("", {}))
        self._seen.update(present)
        yield from self._note_absent()
        self._known |= self._seen
        if not 0 <= now - self._cared_at < _CARE_SECONDS:
            self._cared_at = now
            self._care(now)
            yield
        due = self._grouping.due(now)
        self.outgoing += due
        self.changed |= {record.id: record for sent in due for record in sent.records}

    def firing(self) -> list[AlertRecord]:
        """By severity, then the newest first."""
        firing = (record for record in self._records() if record.is_firing)
        return sorted(firing, key=lambda one: (-SEVERITIES.index(one.severity), -(one.fired_at or 0.0), one.id))

    def firing_of(self, host_id: str) -> list[AlertRecord]:
        """Firing alerts of one host and its GPUs."""
        return [record for record in self._of(host_id) if record.is_firing]

    def pending(self) -> list[AlertRecord]:
        return sorted((one for one in self._records() if one.state == "pending"), key=lambda one: -one.since)

    def find_all(self, alert_ids: Collection[str]) -> dict[str, AlertRecord]:
        """By their id, those that are there."""
        return {record.id: record for record in self._records() if record.id in alert_ids}

    def acknowledge_all(self, records: Iterable[AlertRecord], by: str, now: float) -> int:
        """They are not sent again. Returns how many fired and were not acknowledged before."""
        firing = [record for record in records if record.state == "firing"]
        for record in firing:
            record.state, record.acknowledged_at, record.acknowledged_by = "acknowledged", now, by
            self._note(record)
            self._emit_event(record, "alert_acknowledged", f"{by} acknowledged: {record.title}", now)
        return len(firing)

    def withdraw_all(self, records: Iterable[AlertRecord], by: str, now: float) -> list[AlertRecord]:
        """Withdraw the acknowledgements of `by`: these alerts fire again."""
        own = [record for record in records if record.state == "acknowledged" and record.acknowledged_by == by]
        for record in own:
            record.state, record.acknowledged_at, record.acknowledged_by = "firing", None, None
            self._note(record)
            self._emit_event(record, "alert_unacknowledged", f"{by} withdrew the acknowledgement: {record.title}", now)
        return own

    def hosts_called(self, name: str) -> set[str]:
        """The ids of hosts with this name or id that have alerts, also if they are not in the fleet."""
        return {
            record.host_id for record in self._records() if record.host_id and name in {record.host, record.host_id}
        }

    def remove_hosts(self, host_ids: Iterable[str], now: float) -> int:
        """These hosts were removed: their alerts are resolved. Returns how many fired."""
        self._context = replace(self._context, now=now)
        records = [record for host_id in host_ids for record in self._of(host_id)]
        return sum(self._end(record, "the host was removed") for record in records)

    def refresh_mutes(self, now: float) -> None:
        """After a mute was added or ended."""
        for record in self._records():
            muted_by = self._find_mute(record, now)
            if muted_by != record.muted_by:
                record.muted_by = muted_by
                if record.state != "pending":
                    self._note(record)

    def note_sent(self, sent: OutgoingMessage, now: float) -> None:
        """Its message is on its way."""
        for record in sent.records:
            if sent.is_end:
                record.end_told_at = now
            else:
                record.told_at = now
            self.changed[record.id] = record

    def _evaluate_silent(self, host: HostSnapshot, active: OpenAlerts) -> None:
        may_return, names = self._may_return(host), {name for name, _, _ in active}
        rules = [rule for rule in self._of_hosts if rule.sees_silent and (rule.name in names or not may_return)]
        self._apply(rules, host, (), self.thresholds.of(host.name, host.labels), active)
        why = _NOT_SEEN if host.status == "never_seen" else f"the host is {host.status}"
        for record in list(active.values()):
            if not self._rules[record.rule].sees_silent:
                self._note_unknown(record, why)

    def _may_return(self, host: HostSnapshot) -> bool:
        """Whether it is too early to call the host down: the hub was away, and has had no report of it since."""
        if host.status == "never_seen" or host.silent_since > self._returning_since:
            return False
        seconds = max(RETURN_SECONDS, RETURN_INTERVALS * (host.view.interval_seconds or 0.0))
        return self._context.now < self._returning_since + seconds

    def _evaluate_by_model(self, rules: Sequence[Rule], host: HostSnapshot, active: OpenAlerts) -> None:
        """Each model has its own limits, also if all of its GPUs are gone."""
        models: dict[str, list[Gpu]] = {gpu.model: [] for gpu in host.gone}
        for gpu in host.gpus:
            models.setdefault(gpu.name, []).append(gpu)
        limits, open_alerts = self.thresholds.of(host.name, host.labels), _by_rule(active)
        by_model = {model: self.thresholds.of(host.name, host.labels, model) for model in sorted(models)}
        for rule in rules:
            # Of GPUs that are gone a rule finds all each time: the group with their model counts.
            found = [
                (finding, own[rule.name])
                for model, own in by_model.items()
                if own[rule.name].is_on
                for finding in rule.find(host, models[model], own[rule.name], self._context)
                if finding.model == model
            ]
            if found or rule.name in open_alerts:
                self._settle(rule, host, found, open_alerts.get(rule.name, {}), limits[rule.name])

    def _apply(
        self, rules: Sequence[Rule], host: HostSnapshot, gpus: Sequence[Gpu], limits: LimitsByRule, active: OpenAlerts
    ) -> None:
        """Short, as nearly all hosts of a large fleet are well."""
        context, open_alerts = self._context, _by_rule(active)
        for rule in rules:
            own = limits[rule.name]
            found = list(rule.find(host, gpus, own, context)) if own.is_on else ()
            if found or (open_alerts and rule.name in open_alerts):
                subjects = open_alerts.get(rule.name, {})
                self._settle(rule, host, [(finding, own) for finding in found], subjects, own)

    def _settle(
        self,
        rule: Rule,
        host: HostSnapshot,
        found: Sequence[tuple[RuleFinding, Limits]],
        active: OpenAlerts,
        limits: Limits,
    ) -> None:
        there = set()
        for finding, own in found:
            subject = (rule.name, finding.gpu or "", finding.part)
            there.add(subject)
            record = active.get(subject)
            is_drained = self._is_drained(host.id, finding.gpu)
            if record is not None and record.state == "pending" and is_drained:
                self._drop(record)
            elif record is not None:
                self._go_on(record, finding, own)
            elif finding.is_bad and not is_drained:
                self._start(rule, host, finding, own)
        for subject, record in list(active.items()):
            if subject not in there and host.is_chosen(record.gpu):
                why = _why_unknown(rule, host, record, self._context) if limits.is_on else None
                if why is not None:
                    self._note_unknown(record, why)
                else:
                    self._ease(record, limits)

    def _note_unread(self, host: HostSnapshot, active: OpenAlerts) -> None:
        """None of the host's GPUs can be read now."""
        why = host.view.reasons.get("gpus") or "the host reports no GPU"
        for record in list(active.values()):
            if self._rules[record.rule].scope == "gpu" and not host.is_gone(record.gpu):
                self._note_unknown(record, why)

    def _note_absent(self) -> Steps[None]:
        """Hosts that have left the fleet since the start were removed; others have not reported yet."""
        for host_id in [host_id for host_id in self._active if host_id and host_id not in self._seen]:
            # Other tasks may have ended some of them in between.
            for record in self._of(host_id):
                if host_id not in self._known:
                    self._note_unknown(record, _NOT_SEEN)
                else:
                    self._end(record, "the host is no longer in the fleet")
            yield

    def _of(self, host_id: str) -> list[AlertRecord]:
        return list(self._active.get(host_id, {}).values())

    def _care(self, now: float) -> None:
        """Twice a minute: mutes that ended, reminders, and what flap detection can forget."""
        for mute in self.mutes.take_ended(now):
            title = f"{mute.created_by}'s mute of {describe(mute)} has ended"
            self._emit(make_event(now, "alert_mute_ended", title, detail=mute.reason))
        self.refresh_mutes(now)
        self._falls = {key: falls for key, falls in self._falls.items() if now - falls[-1] < HOUR}
        if self._repeat is None:
            return
        for record in self._records():
            is_open = record.state == "firing" and record.severity == "critical" and record.told_at is not None
            if is_open and now - (record.told_at or now) >= self._repeat and not self.is_muted(record, now):
                record.repeats += 1
                self._send_again(record, now)


def _by_rule(active: OpenAlerts) -> dict[str, OpenAlerts]:
    found: dict[str, OpenAlerts] = {}
    for subject, record in active.items():
        found.setdefault(subject[0], {})[subject] = record
    return found


def _steady(context: FleetContext, now: float) -> FleetContext:
    """Without the fields whose rules are evaluated each time anyway."""
    return replace(context, now=now, late_reservations=(), history=None, free=0, known=0, growth={}, usual_clocks={})


def _why_unknown(rule: Rule, host: HostSnapshot, record: AlertRecord, context: FleetContext) -> str | None:
    """Why it is unknown whether the finding still applies; None if it no longer does."""
    if rule.why_unknown is not None and (why := rule.why_unknown(host, record.gpu, record.part)) is not None:
        return why
    if rule.scope == "hub":
        return None
    view: Host | Gpu = host.view
    if rule.scope == "gpu":
        board = host.boards.get(record.gpu)
        if board is None:
            return "the host does not report this GPU"
        if board.missing is not None and not rule.reads_missing:
            return board.missing
        view = board.view()
    unread = next((name for name in rule.needs if getattr(view, name) is None), None)
    if unread is not None:
        return view.reasons.get(unread) or "it could not be read"
    return context.why_uncounted(rule.window, record.gpu) if rule.counter and record.gpu else None
