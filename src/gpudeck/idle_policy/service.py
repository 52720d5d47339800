"""Runs the idle policy: follows the idle GPUs of the fleet and takes the steps that are due.

A step is recorded with its audit entry, in one transaction, after its message is in the outbox. A hub that is killed in
between puts the message there again under the same key, so it is sent once. A hook is recorded before it runs, so it
never runs twice.

Each step is decided by the state of its moment, also if the one before it took long. Hooks run beside the policy. A
hook may end jobs and processes, so it runs when it is due for all GPUs of these, once for all of them.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import asdict, replace

from gpudeck import child_process
from gpudeck.alerts.notifiers.message_service import MessageService
from gpudeck.alerts.notifiers.rendering import DEMO_PREFIX, Message
from gpudeck.auth.auth import Auth
from gpudeck.auth.caller import Caller
from gpudeck.database.engine import Database
from gpudeck.database.schema import REAL
from gpudeck.events.service import EventLog
from gpudeck.fleet.gpu import GpuState
from gpudeck.fleet.host import HostState
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.observers import Service
from gpudeck.idle_policy.ladder import GAP_SECONDS, IdleFacts, LadderStep, Spans, climb, find_rules
from gpudeck.idle_policy.report import reserved_spans
from gpudeck.idle_policy.settings import IdlePolicySettings, IdleRule, find_mistakes
from gpudeck.idle_policy.store import Keeps, LadderRecord, LadderStore
from gpudeck.model.cluster import Duty
from gpudeck.model.cpu_budget import cancel_tasks
from gpudeck.model.errors import Temporary
from gpudeck.model.event import make_event
from gpudeck.model.idle_policy import IdleLadder, IdlePolicyState, PolicyStep
from gpudeck.model.text import clean, show_length
from gpudeck.reservations.calendar import ReservationCalendar

log = logging.getLogger(__name__)

TOPIC: Final = "idle_policy"
CHECK_SECONDS: Final = 5.0
_NEXT_SECONDS: Final = 30.0
"""After a longer pause between two checks, the GPU was not monitored in between."""
_WRITE_SECONDS: Final = 60.0
_FAR: Final = 400 * 86_400.0
MAX_HOOKS: Final = 8
"""So many hooks run at a time. Others are decided again later."""
_MAX_OUTPUT: Final = 64 * 1024
_POLICY: Final = Caller(kind="local", role="admin", name="idle policy")
_MAX_NAMES: Final = 4
Place = tuple[HostState, GpuState]
_Change = tuple[Place, LadderRecord, str]
"""A GPU, its changed record, and what the audit log says about it."""


class _Due(NamedTuple):
    place: Place
    record: LadderRecord
    rule: IdleRule
    step: LadderStep


class IdlePolicyService(Service):
    """Of several hubs, the one with the `duty` acts. The API uses `keeps` and `show`."""

    name = "idle policy"

    def __init__(  # noqa: PLR0917 - the services that it follows and uses
        self,
        hub: Hub,
        auth: Auth,
        settings: IdlePolicySettings,
        events: EventLog,
        messages: MessageService,
        reservations: ReservationCalendar,
        *,
        group_of: Callable[[str], str | None] = lambda _: None,
        fleet: str = REAL,
        duty: Duty | None = None,
        fenced: Database | None = None,
    ) -> None:
        self.settings = settings
        self.group_of = group_of
        self.keeps = Keeps(auth.database, fleet)
        self._hub = hub
        self._auth = auth
        self._events = events
        self._messages = messages
        self._reservations = reservations
        self._duty = duty or Duty("alerts")
        self._store = LadderStore(fenced or auth.database, fleet)
        self._prefix = "" if fleet == REAL else DEMO_PREFIX
        self._records: dict[str, LadderRecord] = {}
        self._is_loaded = False
        self._looked_at = self._written_at = float("-inf")
        self._sharing: dict[Hashable, list[Place]] | None = None
        self._waiting: dict[str, str] = {}
        self._threads = ThreadPoolExecutor(MAX_HOOKS, "hook")
        self.task: asyncio.Task[None] | None = None
        self.hooks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        problems = find_mistakes(self.settings)
        for problem in problems:
            log.warning("%s", problem)
        self._hub.fleet.set_problems(self.name, problems)
        await self.keeps.load(self._hub.clock())

    def on_second(self) -> None:
        now = self._hub.clock()
        if self.settings.rules and not 0 <= now - self._looked_at < CHECK_SECONDS:
            self._looked_at = now
            if self.task is None or self.task.done():
                self.task = asyncio.get_running_loop().create_task(self._step(now))

    async def close(self) -> None:
        await cancel_tasks(self.task, *self.hooks)
        self._threads.shutdown(wait=False)
        try:
            if self._is_loaded and self._duty.is_held:
                await self._store.replace_all(self._records.values())
        except Temporary as error:
            log.debug("ladders cannot be written: %s", error)

    async def _step(self, now: float) -> None:
        try:
            if not self._duty.is_held:
                # Another hub goes on from what is in the database.
                self._is_loaded, self._records = False, {}
                return
            if not self._is_loaded:
                self._records, self._is_loaded = await self._store.load(), True
            self._look(gpu for host in self._hub.fleet.hosts.values() for gpu in host.gpus.values())
            await self.keeps.load(now)
            if now - self._written_at >= _WRITE_SECONDS or now < self._written_at:
                await self._store.replace_all(self._records.values())
                self._written_at = now
            self._sharing, self._waiting = None, {}
            for place, _ in list(self._list_idle()):
                await self._climb(place)
        except Temporary as error:
            log.debug("the idle policy waits: %s", error)
        except Exception:
            log.exception("the idle policy could not take a step")

    def _look(self, gpus: Iterable[GpuState]) -> None:
        """An unknown GPU is neither idle nor working: its span does not grow."""
        now = self._hub.clock()
        self._hub.fleet.settle()
        for gpu in gpus:
            if self._is_idle(gpu):
                self._note_idle(gpu, now)
            elif gpu.availability != "unknown":
                self._records.pop(gpu.uuid, None)

    def _is_idle(self, gpu: GpuState) -> bool:
        return gpu.availability == "idle" or (gpu.availability == "allocated" and self.settings.with_allocated)

    def _note_idle(self, gpu: GpuState, now: float) -> None:
        users, jobs = find_owners(gpu), find_jobs(gpu)
        known = self._records.get(gpu.uuid)
        start, end = (now, now) if known is None else known.spans[-1]
        # A clock that was set is a gap too.
        if known is None or known.users != users or known.jobs != jobs or not -1 <= now - end <= GAP_SECONDS:
            self._records[gpu.uuid] = LadderRecord(gpu.uuid, users, jobs, [(now, now)])
        elif now - end <= _NEXT_SECONDS:
            known.spans[-1] = start, max(end, now)
        else:
            known.spans.append((now, now))

    def _list_idle(self) -> Iterator[tuple[Place, list[IdleRule]]]:
        for host in list(self._hub.fleet.hosts.values()):
            for gpu in list(host.gpus.values()):
                if rules := self._find_rules((host, gpu)):
                    yield (host, gpu), rules

    def _find_rules(self, place: Place) -> list[IdleRule]:
        host, gpu = place
        if (record := self._records.get(gpu.uuid)) is None:
            return []
        facts = IdleFacts(host.facts.labels | {"host": host.name}, gpu.name, record.users, record.jobs)
        return find_rules(self.settings, facts, self.group_of)

    def _find_due(self, place: Place) -> _Due | None:
        """The step that is due for a GPU that is idle at this moment."""
        self._look([place[1]])
        rules, record = self._find_rules(place), self._records.get(place[1].uuid)
        if not rules or record is None or record.stopped is not None or not self._is_idle(place[1]):
            return None
        now = self._hub.clock()
        if not (due := self._due(record, rules, now)):
            return None
        step = LadderStep(due[0].kind, due[0].rule, now, due[0].idle_seconds)
        return _Due(place, record, next(one for one in rules if one.name == step.rule), step)

    async def _climb(self, place: Place) -> None:
        due = None if self.settings.mode == "dry-run" else self._find_due(place)
        if due is None:
            return
        if due.step.kind == "act":
            if self.settings.mode == "act" and len(self.hooks) < MAX_HOOKS:
                await self._act(due)
            return
        _, record, rule, step = due
        message = self._write_message(place, record, rule, step)
        is_sent = bool(message.accounts) and bool(self._messages.find_channels(message))
        if is_sent:
            self._messages.outbox.put(message)
            await self._messages.outbox.flush()
        elif step.kind == "warn":
            # Nothing happens to a GPU without a warning.
            why = f"{', '.join(record.users) or 'its owner'} cannot be warned: no channel, so nothing happens to it"
            changed, told = replace(record, stopped=why), f"{step.rule}: {why}"
            await self._note([(place, changed, told)], "stopped", "nobody can be warned of", is_bad=True)
            return
        told = f"to {', '.join(message.accounts)}" if is_sent else "no channel reaches them"
        did = "could not notify" if not is_sent else "notified" if step.kind == "notify" else "warned"
        await self._note([_take(due, told)], step.kind, f"{did} the owner of")

    def _due(self, record: LadderRecord, rules: Sequence[IdleRule], now: float, ahead: float = 0.0) -> list[LadderStep]:
        """The steps that are due; none while the GPU is kept. With `ahead`, as if it stayed idle for that long."""
        if self.keeps.find(record.gpu, now) is not None:
            return []
        keeps = [(one.start, one.end) for one in self.keeps.all if one.gpu == record.gpu]
        start, end = record.spans[-1]
        spans: Spans = [*record.spans[:-1], (start, end + ahead)]
        return climb(spans, rules, self.settings, keeps=keeps, exempt=self._reserved(record), done=record.done)

    def _reserved(self, record: LadderRecord) -> Spans:
        found = [one for one in self._reservations.near if any(gpu.uuid == record.gpu for gpu in one.gpus)]
        accounts = {self._auth.users.account_of(user) or user for user in record.users}
        return reserved_spans(self.settings, found, sorted({*record.users, *accounts}))

    async def _note(self, changes: Sequence[_Change], kind: str, did: str, *, is_bad: bool = False) -> None:
        """Record changes with their audit entries. If the database fails, they did not happen."""
        entry = self._auth.audit.entry
        entries = [entry(_POLICY, f"idle policy: {kind}", _name(place), details=told) for place, _, told in changes]
        await self._store.write([record for _, record, _ in changes], entries)
        self._sharing = None
        for place, record, told in changes:
            self._records[record.gpu] = record
            title = f"Idle policy: {did} GPU {place[1].label} of {place[0].name}"
            self._add_event(place, f"idle_policy_{kind}", title, told, is_bad=is_bad)

    async def _act(self, due: _Due) -> None:
        """Recorded first, so that a hub that is killed now does not run the hook again."""
        places = self._find_sharing(due.place)
        together = [one for place in places if (one := self._find_due(place)) is not None and one.step.kind == "act"]
        if len(together) < len(places):
            others = sorted({_name(place) for place in places} - {_name(one.place) for one in together})
            some = ", ".join(others[:_MAX_NAMES]) + (" …" if len(others) > _MAX_NAMES else "")
            self._waiting[due.record.gpu] = f"waits until {some}, of the same job or process, can be released too"
            return
        changes = [_take(one, f"runs {due.rule.hook[0]}") for one in together]
        await self._note(changes, "act", "acts on", is_bad=True)
        self._look(gpu for _, gpu in places)
        if all(self._is_idle(gpu) and self._records.get(gpu.uuid) is record for (_, gpu), record, _ in changes):
            task = asyncio.get_running_loop().create_task(self._run_hook(due, hook_facts(due, together)))
            self.hooks.add(task)
            task.add_done_callback(self.hooks.discard)
            return
        title = f"Idle policy: the hook of {due.rule.name} did not run for {_name(due.place)}"
        self._add_event(due.place, "idle_policy_hook", title, "a GPU is not idle any more", is_bad=False)

    def _find_sharing(self, place: Place) -> list[Place]:
        """This GPU, and those that have a job or a process in common with it."""
        if self._sharing is None:
            self._sharing = {}
            for host in self._hub.fleet.hosts.values():
                for gpu in host.gpus.values():
                    for key in _find_work(host, gpu):
                        self._sharing.setdefault(key, []).append((host, gpu))
        found = {place[1].uuid: place}
        for key in _find_work(*place):
            found |= {other[1].uuid: other for other in self._sharing.get(key, ())}
        return list(found.values())

    async def _run_hook(self, due: _Due, facts: dict[str, str]) -> None:
        rule = due.rule
        # Only what a command needs to be found and to write: no secret of the hub's own.
        own = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TZ") if name in os.environ}
        run = partial(
            child_process.run,
            rule.hook,
            seconds=rule.hook_timeout,
            bytes_at_most=_MAX_OUTPUT,
            environment=own | facts,
        )
        try:
            done = await asyncio.get_running_loop().run_in_executor(self._threads, run)
            told, is_bad = f"{rule.hook[0]} ended with {done.code}", done.code != 0
            output = clean(" ".join(done.output.decode(errors="replace").split()))[:500]
            told += f": {output}" if output else ""
        except child_process.ChildFailed as error:
            told, is_bad = str(error), True
        title = f"Idle policy: the hook of {rule.name} {'failed' if is_bad else 'ran'} for {facts['GPUDECK_GPUS']}"
        self._add_event(due.place, "idle_policy_hook", title, told, is_bad=is_bad)

    def _add_event(self, place: Place, kind: str, title: str, detail: str, *, is_bad: bool) -> None:
        host, gpu = place
        self._events.add(
            make_event(
                self._hub.clock(),
                kind,
                title,
                severity="warning" if is_bad else "info",
                host=host.name,
                host_id=host.id,
                gpu=gpu.uuid,
                label=gpu.label,
                detail=detail,
            )
        )

    def _write_message(self, place: Place, record: LadderRecord, rule: IdleRule, step: LadderStep) -> Message:
        host, gpu = place
        found = (self._auth.users.account_of(user) for user in record.users)
        accounts = tuple(dict.fromkeys(one for one in found if one is not None and self._messages.reaches(one)))
        idle = show_length(step.idle_seconds)
        left = max(rule.grace, (rule.act_after or 0.0) - (rule.warn_after or 0.0))
        warning = f"If it stays idle for {show_length(left)} more, {rule.hook[0]} is run." if rule.hook else ""
        is_acting = step.kind == "warn" and self.settings.mode == "act" and bool(warning)
        return Message(
            key=f"idle {record.id} {step.kind}",
            at=step.at,
            kind="alert",
            rule=TOPIC,
            severity="warning" if step.kind == "warn" else "info",
            title=f"{self._prefix}GPU {gpu.label} of {host.name} is idle for {idle}, and yours",
            lines=(*((warning,) if is_acting else ()), f"Rule: {rule.name}."),
            action=f"End your process, or keep the GPU: gpudeck keep {host.name}:{gpu.label} --for 8h --reason TEXT",
            link=f"#/gpu/{gpu.uuid}",
            labels={"host": host.name, "model": gpu.name},
            accounts=accounts,
            is_personal=True,
        )

    def show(self) -> IdlePolicyState:
        """Of several hubs, only the one with the duty knows the ladders."""
        now = self._hub.clock()
        shown = IdlePolicyState(
            mode=self.settings.mode,
            rules=[rule.name for rule in self.settings.rules],
            longest_keep_seconds=self.settings.longest_keep,
            keeps=self.keeps.open_at(now),
        )
        for place, rules in self._list_idle():
            record, (host, gpu) = self._records[place[1].uuid], place
            keep = self.keeps.find(gpu.uuid, now)
            due = self._due(record, rules, now, _FAR)
            step = partial(_show_step, place, record)
            shown.ladders.append(
                IdleLadder(
                    gpu=gpu.uuid,
                    host=host.name,
                    label=gpu.label,
                    users=record.users,
                    idle_since=record.spans[0][0],
                    done=[step(one) for one in record.done],
                    next=step(due[0]) if due else None,
                    kept_until=None if keep is None else keep.end,
                    reason=record.stopped or self._waiting.get(gpu.uuid),
                )
            )
        return shown


def _show_step(place: Place, record: LadderRecord, step: LadderStep) -> PolicyStep:
    host, gpu = place
    return PolicyStep(
        **asdict(step),
        gpu=gpu.uuid,
        host=host.name,
        label=gpu.label,
        model=gpu.name,
        users=record.users,
        jobs=record.jobs,
    )


def _take(due: _Due, detail: str) -> _Change:
    step, record = due.step, due.record
    whose = ", ".join(record.users) or "nobody who is known"
    told = f"{step.rule}: {whose}, idle for {show_length(step.idle_seconds)}; {detail}"
    return due.place, replace(record, done=[*record.done, step]), told


def _name(place: Place) -> str:
    return f"{place[0].name}:{place[1].label}"


def find_owners(gpu: GpuState) -> list[str]:
    """The owners of a GPU: the users of its processes, or of the job that has it."""
    allocation = gpu.scheduling.allocation
    if gpu.users or allocation is None or allocation.user is None:
        return sorted(gpu.users)
    return [allocation.user]


def find_jobs(gpu: GpuState) -> list[str]:
    """The ids and names of jobs on it."""
    found = [process.job for process in gpu.processes or () if process.job is not None]
    allocation = gpu.scheduling.allocation
    if allocation is not None and allocation.job:
        found += [allocation.job, *([allocation.name] if allocation.name else [])]
    return sorted(set(found))


def _find_work(host: HostState, gpu: GpuState) -> set[Hashable]:
    """The processes and jobs on a GPU."""
    found, allocation = set[Hashable](), gpu.scheduling.allocation
    for process in gpu.reported_processes or ():
        found |= {(host.id, process.pid), process.job}
    if allocation is not None:
        found |= {allocation.job, allocation.number}
    return found - {None, ""}


def hook_facts(due: _Due, together: Sequence[_Due]) -> dict[str, str]:
    """Environment variables of a hook for a GPU, and for all that it releases with it. Unknown values are empty."""
    host, gpu = due.place
    allocation = gpu.scheduling.allocation
    names = sorted({user for one in together for user in one.record.users})
    here = [one.place[1] for one in together if one.place[0] is host]
    pids = sorted({process.pid for one in here for process in one.reported_processes or ()})
    facts: dict[str, str | None] = {
        "GPUDECK_HOST": host.name,
        "GPUDECK_GPU": gpu.label,
        "GPUDECK_GPU_UUID": gpu.uuid,
        "GPUDECK_GPUS": " ".join(_name(one.place) for one in together),
        "GPUDECK_MODEL": gpu.name,
        "GPUDECK_USERS": " ".join(names),
        "GPUDECK_PIDS": " ".join(map(str, pids)),
        "GPUDECK_RULE": due.step.rule,
        "GPUDECK_IDLE_SECONDS": f"{min(one.step.idle_seconds for one in together):.0f}",
        "GPUDECK_SCHEDULER": None if allocation is None else allocation.scheduler,
        "GPUDECK_JOB": None if allocation is None else allocation.number or allocation.job,
        "GPUDECK_NAMESPACE": None if allocation is None else allocation.namespace,
        "GPUDECK_POD": None if allocation is None else allocation.pod,
    }
    return {name: (value or "").replace("\0", "") for name, value in facts.items()}
