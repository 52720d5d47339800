"""Runs the idle policy: follows the idle GPUs of the fleet and takes the steps that are due.

A step is recorded with its audit entry, in one transaction, after its message is in the outbox. A hub that is killed in
between puts the message there again under the same key, so it is sent once. A hook is recorded before it runs, so it
never runs twice.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

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
from gpudeck.idle_policy.settings import IdlePolicySettings, IdleRule
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
_MAX_OUTPUT: Final = 64 * 1024
_POLICY: Final = Caller(kind="local", role="admin", name="idle policy")
Place = tuple[HostState, GpuState]


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
        self.task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self.keeps.load(self._hub.clock())

    def on_second(self) -> None:
        now = self._hub.clock()
        if self.settings.rules and not 0 <= now - self._looked_at < CHECK_SECONDS:
            self._looked_at = now
            if self.task is None or self.task.done():
                self.task = asyncio.get_running_loop().create_task(self._step(now))

    async def close(self) -> None:
        await cancel_tasks(self.task)
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
            await self.keeps.load(now)
            self._look(now)
            if now - self._written_at >= _WRITE_SECONDS or now < self._written_at:
                await self._store.replace_all(self._records.values())
                self._written_at = now
            for place, rules in list(self._list_idle()):
                await self._climb(place, rules, now)
        except Temporary as error:
            log.debug("the idle policy waits: %s", error)
        except Exception:
            log.exception("the idle policy could not take a step")

    def _look(self, now: float) -> None:
        """An unknown GPU is neither idle nor working: its span does not grow."""
        idle = {"idle", "allocated"} if self.settings.with_allocated else {"idle"}
        for host in self._hub.fleet.hosts.values():
            for gpu in host.gpus.values():
                if gpu.availability in idle:
                    self._note_idle(gpu, now)
                elif gpu.availability != "unknown":
                    self._records.pop(gpu.uuid, None)

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
                if (record := self._records.get(gpu.uuid)) is not None:
                    labels = host.facts.labels
                    facts = IdleFacts(labels | {"host": host.name}, gpu.name, record.users, record.jobs)
                    if rules := find_rules(self.settings, facts, self.group_of):
                        yield (host, gpu), rules

    async def _climb(self, place: Place, rules: Sequence[IdleRule], now: float) -> None:
        record = self._records[place[1].uuid]
        due = self._due(record, rules, now)
        if not due or record.stopped is not None or self.settings.mode == "dry-run":
            return
        step = LadderStep(due[0].kind, due[0].rule, now, due[0].idle_seconds)
        rule = next(one for one in rules if one.name == step.rule)
        if step.kind == "act":
            if self.settings.mode == "act":
                await self._act(place, record, rule, step)
            return
        message = self._write_message(place, record, rule, step)
        is_sent = bool(message.accounts) and bool(self._messages.find_channels(message))
        if is_sent:
            self._messages.outbox.put(message)
            await self._messages.outbox.flush()
        elif step.kind == "warn":
            # Nothing happens to a GPU without a warning.
            why = f"{', '.join(record.users) or 'its owner'} cannot be warned: no channel, so nothing happens to it"
            did, told = "nobody can be warned of", f"{step.rule}: {why}"
            await self._note(place, replace(record, stopped=why), "stopped", did, told, is_bad=True)
            return
        told = f"to {', '.join(message.accounts)}" if is_sent else "no channel reaches them"
        did = "could not notify" if not is_sent else "notified" if step.kind == "notify" else "warned"
        await self._note_step(place, record, step, f"{did} the owner of", told)

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

    async def _note_step(
        self, place: Place, record: LadderRecord, step: LadderStep, did: str, detail: str, *, is_bad: bool = False
    ) -> None:
        whose = ", ".join(record.users) or "nobody who is known"
        told = f"{step.rule}: {whose}, idle for {show_length(step.idle_seconds)}; {detail}"
        await self._note(place, replace(record, done=[*record.done, step]), step.kind, did, told, is_bad=is_bad)

    async def _note(
        self, place: Place, changed: LadderRecord, kind: str, did: str, detail: str, *, is_bad: bool
    ) -> None:
        """Record a change with its audit entry. If the database fails, it did not happen."""
        entry = self._auth.audit.entry(_POLICY, f"idle policy: {kind}", _name(place), details=detail)
        await self._store.write(changed, entry)
        self._records[changed.gpu] = changed
        title = f"Idle policy: {did} GPU {place[1].label} of {place[0].name}"
        self._add_event(place, f"idle_policy_{kind}", title, detail, is_bad=is_bad)

    async def _act(self, place: Place, record: LadderRecord, rule: IdleRule, step: LadderStep) -> None:
        """Recorded first, so that a hub that is killed now does not run the hook again."""
        facts = hook_facts(place, record, step)
        await self._note_step(place, record, step, "acts on", f"runs {rule.hook[0]}", is_bad=True)
        # Only what a command needs to be found and to write: no secret of the hub's own.
        own = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TZ") if name in os.environ}
        try:
            done = await asyncio.to_thread(
                child_process.run,
                rule.hook,
                seconds=rule.hook_timeout,
                bytes_at_most=_MAX_OUTPUT,
                environment=own | facts,
            )
            told, is_bad = f"{rule.hook[0]} ended with {done.code}", done.code != 0
            output = clean(" ".join(done.output.decode(errors="replace").split()))[:500]
            told += f": {output}" if output else ""
        except child_process.ChildFailed as error:
            told, is_bad = str(error), True
        title = f"Idle policy: the hook of {rule.name} {'failed' if is_bad else 'ran'} for {_name(place)}"
        self._add_event(place, "idle_policy_hook", title, told, is_bad=is_bad)

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
                    reason=record.stopped,
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


def hook_facts(place: Place, record: LadderRecord, step: LadderStep) -> dict[str, str]:
    """Environment variables of a hook. Unknown values are empty."""
    host, gpu = place
    allocation = gpu.scheduling.allocation
    facts: dict[str, str | None] = {
        "GPUDECK_HOST": host.name,
        "GPUDECK_GPU": gpu.label,
        "GPUDECK_GPU_UUID": gpu.uuid,
        "GPUDECK_MODEL": gpu.name,
        "GPUDECK_USERS": " ".join(record.users),
        "GPUDECK_PIDS": " ".join(str(process.pid) for process in gpu.processes or ()),
        "GPUDECK_RULE": step.rule,
        "GPUDECK_IDLE_SECONDS": f"{step.idle_seconds:.0f}",
        "GPUDECK_SCHEDULER": None if allocation is None else allocation.scheduler,
        "GPUDECK_JOB": None if allocation is None else allocation.number or allocation.job,
        "GPUDECK_NAMESPACE": None if allocation is None else allocation.namespace,
        "GPUDECK_POD": None if allocation is None else allocation.pod,
    }
    return {name: (value or "").replace("\0", "") for name, value in facts.items()}
