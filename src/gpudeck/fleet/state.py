"""The fleet in memory: the newest state of every host, and which of them changed since the last tick of the stream.
Every report arrives at `Ingest`. One event loop owns a fleet: nothing here locks or blocks."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from gpudeck import __version__
from gpudeck.auth.caller import is_for
from gpudeck.fleet.host import BACKLOG_SECONDS, ENCODED_AT_ONCE, HostState, Sender, encode_hosts
from gpudeck.fleet.identity import Register, TokenName
from gpudeck.fleet.late_reports import LateReports
from gpudeck.fleet.observers import SOURCE, Observers
from gpudeck.fleet.table import FleetTable, Pending, refuse_undescribed
from gpudeck.fleet.visibility import EVERYTHING, Visibility
from gpudeck.model.alert import Alert, AlertCounts
from gpudeck.model.allocation import SchedulerMark
from gpudeck.model.clock import Clock, RetentionClock
from gpudeck.model.cpu_budget import Steps, finish
from gpudeck.model.errors import ReportRefused
from gpudeck.model.gpu_state import FleetSettings
from gpudeck.model.report import Report
from gpudeck.model.reservation import MaintenanceWindow, ReservationMark
from gpudeck.model.target import READ_WAYS, WAYS, Target
from gpudeck.model.text import Names
from gpudeck.model.view import Fleet, HostNote, Totals
from gpudeck.wire import Envelope, Head, ShortReport, check_report, decode_any

MAX_WHOLE_HOSTS = 1000
"""In one delta: after a start thousands are due at once, and each has 8 kB."""
FORGET_TICKS = 3600
"""Seconds between two searches for hosts to forget."""
_RANKS = {way: rank for rank, way in enumerate(WAYS)}


PARTS: Final = (
    "cluster",
    "database",
    "events",
    "schedulers",
    "reservations",
    "alerts",
    "messages",
    "alertmanager",
    "history",
    SOURCE,
)
"""The parts of a hub that may fail while the hub continues: each reports its problems with `set_problems`."""


SIMULATED_PAST: Final = "simulated past"
"""The source of the problem that the history of a demo is not complete yet."""


class ArrivedReport(NamedTuple):
    """A report that arrived at `arrived_at`. `sent_at` is the agent's clock when it was sent, which distinguishes a
    wrong clock from a report that waited. `target` is the configured host that was polled, `only` the names (or
    pattern) that the sender may report as."""

    envelope: Envelope | ShortReport
    via: str
    arrived_at: float
    sent_at: float | None = None
    target: str | None = None
    only: str | None = None
    token: TokenName | None = None


class FleetState:
    """All hosts by id, in `hosts`. `problems` are the hub's own. `alerts` are the firing ones, the worst first.
    `uptime` is the monotonic clock for silence; without one, the time of each call is used."""

    def __init__(
        self,
        settings: FleetSettings,
        names: Names | None = None,
        uptime: Clock | None = None,
        retention: RetentionClock | None = None,
        *,
        is_simulated: bool = False,
    ) -> None:
        self.settings = settings
        self.is_simulated = is_simulated
        self.uptime = uptime
        self._retention = retention
        self.counters: Counter[str] = Counter()
        self._marks: dict[str, ReservationMark] = {}
        self.table = FleetTable(settings, names or Names(), self._marks, self._note_settled)
        self._register = Register(settings, self.table)
        self.hosts = self._register.hosts
        self.problems: list[str] = []
        self._problems_by_source: dict[str, list[str]] = {}
        self.alerts: list[Alert] = []
        self.alert_counts = AlertCounts()
        self.observers = Observers(self.set_problems, self.counters)
        self._late = LateReports(self._marks, self.table, self.observers)
        self._restored: dict[str, HostState] = {}
        self.has_postponed = False
        """Whether hosts that must be sent whole wait for the next tick."""
        self._forward: Callable[[ArrivedReport], None] | None = None
        self._is_cut_off: Callable[[], bool] = bool
        self._ticks = 0
        self._order: list[HostState] = []
        self._order_of = (-1, 0)

    def apply(self, envelope: Envelope | ShortReport, *, via: str, now: float, **others: Any) -> bool:
        """`take` for a report that arrives now; `others` are further fields of `ArrivedReport`."""
        return self.take(ArrivedReport(envelope, via, now, **others))

    def take(self, arrived: ArrivedReport, age: float | None = None) -> bool:
        """Take a report; False if it is a repeated or outdated one, which changes nothing. `age` is how long ago
        another hub took it. Raises ReportRefused, also for a short report that must be sent whole."""
        host = self._take(arrived, age)
        if host is None:
            return False
        if self._forward is not None and age is None:
            self._forward(arrived)
        return True

    def _take(self, arrived: ArrivedReport, age: float | None) -> HostState | None:
        envelope, via, now, sent_at, target, only, token = arrived
        uptime = (now if self.uptime is None else self.uptime()) - (age or 0.0)
        waited = 0.0 if sent_at is None else max(0.0, sent_at - envelope.collected_at)
        skew = None if sent_at is None else round(10 * (sent_at - now)) / 10  # four times as fast as with digits
        sender = (
            self._register.version,
            envelope.host,
            envelope.host_id,
            via,
            only,
            None if token is None else token.id,
        )
        if isinstance(envelope, ShortReport) and (following := self._find_next(envelope, sender)) is not None:
            following.is_forwarded = age is not None
            following.take_next(envelope, now - waited, skew, now, uptime)
            self._note_taken(waited)
            return following
        envelope = self._register.disambiguate(envelope, target)
        host, host_id = self._register.find(envelope, via, target, only, token)
        if self._has_better_source(host, via):
            self.counters["reports_other_source"] += 1
            return None
        if isinstance(envelope, ShortReport):
            known = host.description_of(envelope)
            known.check(envelope.numbers)
            report = known.report
        else:
            report = envelope.report
        # A report that the hub fetched itself is always the newest.
        is_sent = target is None and sent_at is not None
        if is_sent and self._late.is_late(host, envelope, now - waited, now):
            if isinstance(envelope, ShortReport):
                raise refuse_undescribed(envelope, f"a report of {envelope.host} that comes late has to be whole")
            host.is_forwarded = age is not None
            return host if self._take_late(host, envelope, now - waited, skew, now, uptime) else None
        if not host.order.is_newer(envelope, is_up=host.status == "up"):
            self.counters["reports_outdated"] += 1
            self._refuse_rival(host, envelope, now)
            if age is None:
                host.note_report(now, uptime)
            return None
        if is_sent and not host.order.is_next(envelope):
            self._late.note_gap(host, envelope, now - waited, uptime)
        host.via = via
        envelope = self._register.name(host, envelope)
        self._register.settle(host, host_id, envelope, target)
        if token is not None and host.token != token.id:
            self._register.tokens.charge(host, token.id)
        if self._restored:
            self._take_over(host, report)
        # If the register has changed, the sender is looked up again.
        host.sender = sender if target is None and self._register.is_settled(host) else None
        host.is_forwarded = age is not None
        host.take(envelope, now - waited, skew, now, uptime)
        self._note_taken(waited)
        return host

    def join_cluster(self, forward: Callable[[ArrivedReport], None] | None, is_cut_off: Callable[[], bool]) -> None:
        """Several hubs serve the fleet: `forward` is called with each report that is taken here. `is_cut_off` returns
        whether reports may have gone to unreachable hubs: then a silent host is late, but never down."""
        self._forward, self._is_cut_off = forward, is_cut_off

    def settle(self) -> None:
        """Evaluate the waiting reports and notify the observers. Readers of the fleet call this first."""
        self.table.settle()

    def set_problems(self, source: str, problems: list[str]) -> None:
        """Replace the problems that a part of the hub reports to admins; an empty list clears them."""
        if self._problems_by_source.get(source, []) != problems:
            self._problems_by_source[source] = problems
            self.problems = [problem for some in self._problems_by_source.values() for problem in some]

    def problems_of(self, source: str) -> list[str]:
        return self._problems_by_source.get(source, [])

    def show_alerts(self, alerts: list[Alert], counts: AlertCounts) -> None:
        """Show these firing alerts, the worst first, to all viewers. `counts` covers all alerts."""
        self.alerts, self.alert_counts = alerts, counts

    def mark(self, marks: Mapping[str, ReservationMark], now: float) -> None:
        """Apply the reservations that count from now on, by UUID; the key "" stands for all other GPUs. Shown at once,
        and applied to later reports."""
        changed = {uuid for uuid in marks.keys() | self._marks.keys() if marks.get(uuid) != self._marks.get(uuid)}
        if not changed:
            return
        for uuid in changed:
            self._late.marks.note_end(uuid, marks.get(uuid), now)
        self.settle()
        self._marks.clear()
        self._marks.update(marks)
        for host in self.hosts.values():
            if touched := set(host.gpus) if "" in changed else changed & host.gpus.keys():
                host.update_marks(touched, now)

    def drain(self, windows: Sequence[MaintenanceWindow], now: float) -> None:
        """Apply the maintenance windows, with those that ended lately. Shown at once, and applied to later reports."""
        schedule, known = self.table.maintenance, frozenset(one.host_id for one in windows if one.host_id in self.hosts)
        before = schedule.running
        if tuple(windows) != schedule.windows or known != schedule.known:
            self._late.drain(windows, known)
        schedule.change(windows, now, known)
        if not (changed := set(before) ^ set(schedule.running)):
            return
        self.settle()
        ids, names = {one.host_id for one in changed}, {one.host for one in changed}
        gpus = {one.gpu for one in changed if one.gpu is not None}
        for host in self.hosts.values():
            if host.id in ids or host.name in names or gpus & host.gpus.keys():
                host.update_marks(host.gpus, now, "maintenance")

    def annotate(self, notes: Mapping[str, HostNote]) -> None:
        known = self.table.notes
        changed = {host_id for host_id in known.keys() | notes.keys() if known.get(host_id) != notes.get(host_id)}
        known.clear()
        known.update(notes)
        for host_id in changed & self.hosts.keys():
            self.hosts[host_id].note_changed()

    def drained(self) -> frozenset[str]:
        """The ids of hosts and the UUIDs of GPUs that are drained now, including GPUs that are gone."""
        schedule = self.table.maintenance
        if not schedule:
            return frozenset()
        self.settle()
        windows = schedule.running
        hosts = {host.id for one in windows for host in (self.hosts.get(one.host_id), *self.called(one.host)) if host}
        rows = np.flatnonzero(self.table.gpus.is_drained[: self.table.gpus.end]).tolist()
        gpus = {gpu.uuid for row in rows if (gpu := self.table.gpu_at[row]) is not None}
        whole = {host_id for host_id in hosts if self.hosts[host_id].maintenance is not None}
        return frozenset(whole | gpus | {one.gpu for one in windows if one.gpu is not None})

    def allocate(self, marks: Mapping[str, SchedulerMark], now: float) -> None:
        """Apply what schedulers report, by UUID. Shown at once, and applied to later reports."""
        before = self.table.scheduling
        changed = {uuid for uuid in before.keys() | marks.keys() if before.get(uuid) != marks.get(uuid)}
        if not changed:
            return
        self.settle()
        before.clear()
        before.update(marks)
        self._late.allocate(marks)
        for host in self.hosts.values():
            if touched := changed & host.gpus.keys():
                host.update_marks(touched, now)

    def rename(self, names: Names) -> None:
        self._register.rename(names)

    def expect(self, targets: Iterable[Target]) -> None:
        finish(self.expect_in_steps(targets))

    def expect_in_steps(self, targets: Iterable[Target]) -> Steps[None]:
        """`expect`, one step per host. An unfinished call may be abandoned for a newer one."""
        return self._register.expect(targets)

    @property
    def targets(self) -> list[Target]:
        return self._register.targets

    def note_failure(self, target: str, reason: str | None) -> None:
        host = self._register.targeted(target)
        self.counters["poll_failures"] += reason is not None
        if host is not None:
            host.flag("read", reason)

    def has_better_source(self, target: str, via: str) -> bool:
        host = self._register.targeted(target)
        return host is not None and self._has_better_source(host, via)

    def make_host(self, host_id: str, via: str) -> HostState:
        return self._register.make(host_id, via)

    def restore(self, host: HostState, target: str = "") -> bool:
        is_back = self._register.restore(host, target)
        if is_back:
            self._restored |= dict.fromkeys(host.gpus, host)
        return is_back

    def remove_unconfigured(self) -> Steps[None]:
        """Remove hosts that were restored after a restart, were read by the hub, and are no longer configured. One step
        per host."""
        for host in list(self.hosts.values()):
            is_there = self.hosts.get(host.id) is host
            if is_there and host.is_restored and host.target is None and host.via in READ_WAYS:
                self.remove(host.id)
            yield

    def age(self, now: float) -> None:
        finish(self.age_in_steps(now))

    def age_in_steps(self, now: float) -> Steps[None]:
        """`age`, one step per host whose status may have changed."""
        self.settle()
        self.observers.on_time(now)
        uptime = now if self.uptime is None else self.uptime()
        self._late.pass_time(uptime)
        for host in self.table.find_aged(now, uptime):
            if self.hosts.get(host.id) is host:
                self._age(host, now, uptime)
            yield
        self.set_problems("tokens", self._register.tokens.problems(now))
        self._ticks += 1
        if self._ticks % FORGET_TICKS == 0:
            self._forget(now)

    def remove(self, host_id: str) -> None:
        """Forget a host; it returns with its next report. It no longer counts towards its token's limit."""
        self._register.remove(host_id)

    def take_changes(self) -> tuple[list[HostState], list[str]]:
        """The hosts with changes other than numbers, and the ids that left since the last call. The number of hosts
        that must be sent whole is limited; the others follow next time."""
        is_published = self.table.hosts.is_published
        changed = [host for host in self.table.changed_hosts() if self.hosts.get(host.id) is host]
        postponed = {host.id for host in [host for host in changed if not is_published[host.row]][MAX_WHOLE_HOSTS:]}
        self.has_postponed = bool(postponed)
        removed = sorted(self._register.removed)
        self._register.removed.clear()
        return [host for host in changed if host.id not in postponed] if postponed else changed, removed

    def ordered(self) -> list[HostState]:
        """The hosts by name, the order of all lists. Do not modify it."""
        version = self._register.version, len(self.hosts)
        if self._order_of != version:
            self._order_of, self._order = version, sorted(self.hosts.values(), key=attrgetter("name", "id"))
        return self._order

    def called(self, name: str) -> list[HostState]:
        return self._register.called(name)

    def find(self, name: str) -> HostState | None:
        return self.hosts.get(name) or next((host for host in self.hosts.values() if host.name == name), None)

    def totals(self) -> Totals:
        return self.table.totals()

    def view(self, time: float) -> Fleet:
        """The whole fleet as structs: a read-only snapshot."""
        return Fleet(**self.facts(time), hosts=[host.cached_view() for host in self.ordered()])

    def encoded(self, time: float, *, visibility: Visibility = EVERYTHING) -> bytes:
        return b"".join(self.encode_in_parts(time, visibility=visibility))

    def encode_in_parts(self, time: float, *, visibility: Visibility = EVERYTHING) -> Iterator[bytes]:
        """The whole fleet as JSON, in parts: each host as it is when its part is made."""
        facts = self.facts(time) | {"hosts": []}
        yield msgspec.json.encode(facts)[:-2]
        yield from self.encode_hosts_in_parts(self.ordered(), visibility)
        yield b"]}"

    def encode_hosts_in_parts(self, hosts: Sequence[HostState], visibility: Visibility) -> Iterator[bytes]:
        """These hosts as items of a JSON array, in parts. A host that is removed meanwhile is left out."""
        before = b""
        for start in range(0, len(hosts), ENCODED_AT_ONCE):
            there = [host for host in hosts[start : start + ENCODED_AT_ONCE] if self.hosts.get(host.id) is host]
            if encoded := encode_hosts(self.table, there, visibility):
                yield before + b",".join(encoded)
                before = b","

    def facts(self, time: float) -> dict[str, Any]:
        return {
            "demo": self.is_simulated,
            "time": time,
            "version": __version__,
            "totals": self.totals(),
            "problems": self.problems,
            "alerts": self.alerts,
            "alert_counts": self.alert_counts,
        }

    def _note_settled(self, reports: list[Pending]) -> None:
        self.counters["values_rejected"] = self.table.rejected
        uptime = None if self.uptime is None else self.uptime()
        self.observers.on_reports(self.table, reports)
        for report in reports:
            host = report.host
            if host.has_changed:
                self.observers.on_host_changed(host, report.now)
            # Only now: the report describes its own time, and the GPUs are unknown after that.
            is_old = report.now - report.observed_at > host.late_after
            if host.status != "up" or is_old or self._is_cut_off():
                host.age(report.now, uptime, may_be_down=not self._is_cut_off())

    def _age(self, host: HostState, now: float, uptime: float) -> None:
        if host.age(now, uptime, may_be_down=not self._is_cut_off()):
            self.observers.on_host_changed(host, now)

    def _find_next(self, envelope: ShortReport, sender: Sender) -> HostState | None:
        """The host of a short report that follows the last one of the same sender: it needs no lookup. `sender`
        contains the version of the register, so a changed host or target forces a lookup."""
        host = self.hosts.get(envelope.host_id or envelope.host)
        if host is None or host.sender != sender or not host.order.is_next(envelope):
            return None
        host.description_of(envelope).check(envelope.numbers)
        return host

    def _note_taken(self, waited: float) -> None:
        self.counters["reports_taken"] += 1
        if waited > BACKLOG_SECONDS:
            # The sender is answered only when it is stored.
            self.settle()

    def _take_late(  # noqa: PLR0917 - what `apply` has found out
        self, host: HostState, envelope: Envelope, observed_at: float, skew: float | None, now: float, uptime: float
    ) -> bool:
        """Take a report from before the one that is shown: it is added to the history, and shows that the host is
        alive."""
        is_new = self._late.take(host, envelope, observed_at, skew=skew, uptime=uptime)
        if not host.is_forwarded:
            # If another hub took it then, it proves nothing.
            host.note_report(now, uptime)
            self._age(host, now, uptime)
        for counter in ("reports_taken", "reports_late") if is_new else ("reports_outdated",):
            self.counters[counter] += 1
        return is_new

    def _forget(self, now: float) -> None:
        """Remove silent hosts that are not configured, by a clock that is certainly not ahead."""
        certain = now if self._retention is None else self._retention.certain
        since = certain - self.settings.forget_after
        for host in [host for host in self.hosts.values() if host.target is None and host.observed_at < since]:
            self.remove(host.id)

    def _take_over(self, host: HostState, report: Report) -> None:
        """GPUs of this report leave the restored hosts that had them before the restart."""
        for gpu in report.gpus or ():
            before = self._restored.pop(gpu.uuid, None)
            if before is None or before is host or not before.is_restored:
                continue
            if self.hosts.get(before.id) is before:
                before.release_gpu(gpu.uuid)

    def _refuse_rival(self, host: HostState, envelope: Head, now: float) -> None:
        """Two agents claim to be one host at the same time: the newer one counts, and both hosts show a problem."""
        if host.order.is_of_run(envelope):
            return
        host.flag("rival", "another agent reports as this host too; only the one started last is shown")
        if host.has_changed:
            self.observers.on_host_changed(host, now)
        raise ReportRefused(
            409,
            "replaced",
            f"another agent, started later, reports as {host.name}",
            "Stop one of the two, or give each machine an id of its own (/etc/machine-id).",
        )

    def _has_better_source(self, host: HostState, via: str) -> bool:
        return host.status == "up" and _RANKS.get(via, 0) > _RANKS.get(host.via, 0)


class Ingest:
    """Takes reports into a fleet: simulated ones only into a simulated fleet, real ones only into a real one. A
    simulated fleet stays until the call given to `end_simulation_with` ends it."""

    def __init__(self, fleet: FleetState, clock: Clock) -> None:
        self.fleet = fleet
        self._end_simulation: Callable[[], None] | None = None
        self._find_refusal: Callable[[], str | None] = lambda: None
        self._clock = clock

    def take(
        self,
        body: bytes,
        content_type: str,
        encoding: str = "",
        *,
        via: str = "push",
        sent_at: float | None = None,
        only: str | None = None,
        token: TokenName | None = None,
    ) -> bool:
        """Take one report; False if it was a repeated one. Raises ReportRefused, which the caller counts. `only` is the
        host, or pattern of names, that the sender may report as."""
        envelope = decode_any(body, content_type, encoding)
        if only is not None and not is_for(only, envelope.host):
            raise ReportRefused(
                403,
                "other_host",
                f"this token is for {only}, and the report is of {envelope.host}",
                _for_another_host(only, envelope.host),
            )
        self._check_kind(envelope)
        if envelope.simulated:
            via, token = "simulated", None
        return self.fleet.take(ArrivedReport(envelope, via, self._clock(), sent_at, None, only, token))

    def take_fetched(self, envelope: Envelope, *, via: str, target: str, sent_at: float | None = None) -> bool:
        """Take a report that the hub fetched from a configured host. False if a better source reports that host
        already. Raises ReportRefused."""
        check_report(envelope)
        self._check_kind(envelope)
        taken = self.fleet.take(ArrivedReport(envelope, via, self._clock(), sent_at, target))
        return taken or not self.fleet.has_better_source(target, via)

    def take_forwarded(self, arrived: ArrivedReport, age: float) -> bool:
        """Take one that another hub took `age` seconds ago; False if it is a repeated one. Raises ReportRefused."""
        return self.fleet.take(arrived._replace(arrived_at=self._clock() - age), age)

    @property
    def refusal(self) -> str | None:
        """Why no reports are taken now, so that agents send them to another hub or again; None if they are taken."""
        return self._find_refusal()

    def refuse_with(self, find_refusal: Callable[[], str | None]) -> None:
        """Call `find_refusal` before each report; it returns why none is taken now."""
        self._find_refusal = find_refusal

    def count(self, refusal: ReportRefused) -> None:
        self.fleet.counters[f"refused_{refusal.code}"] += 1

    def end_simulation_with(self, end_simulation: Callable[[], None]) -> None:
        """Call this on the first real report, and before real hosts are read."""
        self._end_simulation = end_simulation

    def end_simulation(self) -> bool:
        """Real hosts have appeared. False if the simulated fleet stays."""
        if self._end_simulation is None:
            return False
        self._end_simulation()
        return True

    def _check_kind(self, envelope: Head) -> None:
        if (refusal := self._find_refusal()) is not None:
            raise ReportRefused(503, "not_ready", refusal, "Send the report again, or to another hub.")
        if envelope.simulated == self.fleet.is_simulated:
            return
        if envelope.simulated:
            raise ReportRefused(409, "not_a_demo", "this hub shows real hosts and takes no simulated reports")
        if self.end_simulation():
            raise ReportRefused(503, "demo_ends", "the hub ends its demo and starts again", "Send the report again.")
        raise ReportRefused(
            409, "demo_hub", "this hub was started with --demo and takes no real reports", "Start it without --demo."
        )


def _for_another_host(only: str, host: str) -> str:
    step = f"On the hub, `gpudeck hosts add {host}` prints a line that installs the agent with a token for {host}."
    return step if set(only) & set("*?[") else f"{step} If this machine is {only}, set `agent.name: {only}`."
