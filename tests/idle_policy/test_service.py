"""The running policy: each step once, in order, with its audit entry; restarts, gaps, clocks, keeps, hooks."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from sqlalchemy import text

from fakes.api_app import make_auth
from fakes.clock import FakeClock
from fakes.reports import GIB, make_envelope, make_gpu, make_process
from gpudeck.alerts.notifiers.message_service import MessageService
from gpudeck.alerts.notifiers.settings import NotifySettings
from gpudeck.auth.caller import LOCAL_ADMIN
from gpudeck.cli import gpudeck as command_line
from gpudeck.demo.service import DemoInbox
from gpudeck.events.service import EventLog
from gpudeck.events.settings import EventSettings
from gpudeck.fleet.hub import Hub
from gpudeck.idle_policy.service import IdlePolicyService
from gpudeck.idle_policy.settings import Exemptions, IdlePolicySettings, IdleRule
from gpudeck.idle_policy.store import KEPT_SECONDS
from gpudeck.model.allocation import Allocation, SchedulerMark
from gpudeck.model.cluster import Duty
from gpudeck.model.errors import ConfigurationError, RequestRefused
from gpudeck.model.event import Event
from gpudeck.model.idle_policy import Keep
from gpudeck.reservations.calendar import ReservationCalendar
from gpudeck.reservations.settings import ReservationSettings
from gpudeck.reservations.store import ReservationStore

NOW = 1_790_000_000.0
MINUTE = 60.0
INTERVAL = 20.0


class Site:
    """A hub with a host whose clock is the test's. Another one in the same folder is the same hub after a restart.
    `state` and `user` are those of the host's GPUs, with blanks in between. A user has one process."""

    def __init__(
        self,
        folder: Path,
        settings: IdlePolicySettings,
        clock: FakeClock,
        *,
        has_inbox: bool = True,
        is_alone: bool = True,
    ) -> None:
        self.clock = clock
        self.hub = Hub(now=clock)
        self.auth = make_auth(folder)
        self.told: list[Event] = []
        self.is_held = is_alone
        self.has_slow_hooks = False
        self.events = events = EventLog(self.auth.database, EventSettings(), now=clock)
        events.subscribe(self.told.append)
        inbox = DemoInbox(events) if has_inbox else None
        self.messages = MessageService(self.hub, self.auth, NotifySettings(), events, inbox=inbox, now=clock)
        calendar = ReservationCalendar(ReservationStore(self.auth.database), ReservationSettings())
        self.service = IdlePolicyService(
            self.hub,
            self.auth,
            settings,
            events,
            self.messages,
            calendar,
            duty=Duty("alerts", lambda: self.is_held),
        )
        self.sequence = 0

    async def pass_time(self, minutes: float, state: str | None = "idle", user: str = "alice") -> None:
        """`state` None: its host is silent."""
        until = self.clock.now + minutes * MINUTE
        while self.clock.now < until:
            self.clock.advance(INTERVAL)
            if state is not None:
                self.report(state, user)
            self.hub.fleet.age(self.clock.now)
            await self.look()

    async def look(self) -> None:
        self.service.on_second()
        if self.service.task is not None:
            await self.service.task
        if not self.has_slow_hooks:
            await asyncio.gather(*self.service.hooks)

    def report(self, state: str, user: str = "alice") -> None:
        self.sequence += 1
        gpus, users = [], user.split()
        for index, (one, name) in enumerate(zip(state.split(), users, strict=True)):
            process = make_process(pid=4711 + users.index(name), user=name)
            held = {"metrics": {"memory_used_bytes": 9 * GIB}, "processes": [process]}
            if one == "busy":
                held["metrics"]["utilization_percent"] = 97
            gpus.append(make_gpu(index, idle_seconds=9000.0, **({} if one == "free" else held)))
        envelope = make_envelope(gpus=gpus, sequence=self.sequence, run_id=f"run {id(self)}", host_id="id-1")
        self.hub.fleet.apply(envelope, via="push", now=self.clock.now)

    def kinds(self) -> list[str]:
        return [event.kind.removeprefix("idle_policy_") for event in self.told if event.kind.startswith("idle_policy")]

    async def audit(self) -> list[str]:
        return [entry.action for entry in reversed(await self.auth.audit.list()) if entry.who == "idle policy"]

    async def sent(self) -> int:
        """How many messages were put into the outbox, also by hubs before."""
        await self.messages.outbox.flush()
        return int((await self.auth.local.execute(text("SELECT count(*) FROM outbox"))).scalar_one())


Scene = Callable[[Callable[..., Site]], Awaitable[None]]


def rule(folder: Path, code: str = "", **changes: Any) -> IdleRule:
    """Its hook writes the facts that it is given beside what was there, and runs `code`."""
    write = f"open({str(folder / 'acted')!r}, 'a').write(json.dumps(dict(os.environ)) + chr(10))"
    program = f"import json, os; {write}; {code}"
    known: dict[str, Any] = {"notify_after": 60.0, "warn_after": 120.0, "act_after": 240.0, "grace": 60.0}
    return IdleRule(name="usual", **{"hook": [sys.executable, "-c", program]} | known | changes)


def acted(folder: Path) -> list[dict[str, str]]:
    file = folder / "acted"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def play(folder: Path, scene: Scene, settings: IdlePolicySettings | None = None, **others: Any) -> None:
    clock = FakeClock(NOW)
    policy = settings or IdlePolicySettings(mode="act", rules=[rule(folder)])

    async def run() -> None:
        opened: list[Site] = []

        async def start(**more: Any) -> Site:
            site = Site(folder, policy, clock, **others | more)
            opened.append(site)
            await site.messages.outbox.open()
            await site.service.open()
            return site

        await scene(start)

    asyncio.run(run())


def test_an_owner_is_notified_then_warned_and_then_the_hook_runs_once(tmp_path: Path) -> None:
    async def scene(start: Any) -> None:
        site = await start()
        site.report("busy")
        await site.pass_time(20)
        assert site.kinds() == ["notify", "warn", "act", "hook"]
        assert await site.audit() == ["idle policy: notify", "idle policy: warn", "idle policy: act"]
        [facts] = acted(tmp_path)
        assert (facts["GPUDECK_HOST"], facts["GPUDECK_GPU"], facts["GPUDECK_USERS"]) == ("gpu01", "0", "alice")
        assert (facts["GPUDECK_JOB"], facts["GPUDECK_RULE"]) == ("", "usual")
        assert 240 <= float(facts["GPUDECK_IDLE_SECONDS"]) <= 240 + 2 * INTERVAL

    play(tmp_path, scene)


def test_work_begins_the_ladder_anew(tmp_path: Path) -> None:
    async def scene(start: Any) -> None:
        site = await start()
        await site.pass_time(3)
        await site.pass_time(1, "busy")
        # The hub calls it idle ten minutes after the last work.
        await site.pass_time(11.5)
        assert site.kinds() == ["notify", "warn", "notify"]
        assert acted(tmp_path) == []

    play(tmp_path, scene)


def test_a_dry_run_tells_nobody_and_does_nothing(tmp_path: Path) -> None:
    async def scene(start: Any) -> None:
        site = await start()
        await site.pass_time(20)
        assert (site.kinds(), await site.audit(), acted(tmp_path)) == ([], [], [])
        [ladder] = site.service.show().ladders
        assert (ladder.next and ladder.next.kind, ladder.done) == ("notify", [])

    play(tmp_path, scene, IdlePolicySettings(rules=[rule(tmp_path)]))


def test_with_mode_notify_no_hook_runs(tmp_path: Path) -> None:
    async def scene(start: Any) -> None:
        site = await start()
        await site.pass_time(20)
        assert site.kinds() == ["notify", "warn"]

    play(tmp_path, scene, IdlePolicySettings(mode="notify", rules=[rule(tmp_path)]))
    assert acted(tmp_path) == []


def test_after_a_restart_nothing_is_said_twice_and_the_ladder_goes_on(tmp_path: Path) -> None:
    """The hub is replaced without a word between all steps, as after a kill -9."""

    async def scene(start: Any) -> None:
        kinds = []
        for _ in range(6):
            site = await start()
            await site.pass_time(100 / 60)
            kinds += site.kinds()
        assert kinds == ["notify", "warn", "act", "hook"]
        assert await site.audit() == ["idle policy: notify", "idle policy: warn", "idle policy: act"]

    play(tmp_path, scene)
    assert len(acted(tmp_path)) == 1


def test_a_hub_that_ends_after_its_message_was_kept_sends_it_once(tmp_path: Path) -> None:
    """Between the message and the note about it: the next hub puts the same message into the outbox."""

    async def scene(start: Any) -> None:
        site = await start()
        await site.pass_time(1)

        kept = site.messages.outbox.flush

        async def flush_and_die() -> None:
            await kept()
            raise RuntimeError("the hub is gone")

        site.messages.outbox.flush = flush_and_die
        await site.pass_time(1)
        assert site.kinds() == []
        after = await start()
        await after.pass_time(0.5)
        assert after.kinds() == ["notify"]
        assert await after.sent() == 1

    play(tmp_path, scene)


def test_a_hub_that_was_away_for_long_begins_anew(tmp_path: Path) -> None:
    async def scene(start: Any) -> None:
        site = await start()
        await site.pass_time(3)
        site.clock.advance(3600)
        after = await start()
        await after.pass_time(3)
        assert (site.kinds(), after.kinds()) == (["notify", "warn"], ["notify", "warn"])

    play(tmp_path, scene)


def test_a_silent_host_is_not_idle(tmp_path: Path) -> None:
    async def scene(start: Any) -> None:
        site = await start()
        await site.pass_time(3)
        await site.pass_time(8, None)
        assert site.kinds() == ["notify", "warn"]
        await site.pass_time(0.5)
        assert site.kinds() == ["notify", "warn"]
        await site.pass_time(2)
        assert site.kinds() == ["notify", "warn", "act", "hook"]

    play(tmp_path, scene)


@pytest.mark.parametrize("jump", [7200.0, -7200.0])
def test_a_clock_that_is_set_leads_to_no_act(tmp_path: Path, jump: float) -> None:
    async def scene(start: Any) -> None:
        site = await start()
        await site.pass_time(3)
        site.clock.advance(jump)
        await site.pass_time(3)
        assert site.kinds() == ["notify", "warn", "notify", "warn"]

    play(tmp_path, scene)
    assert acted(tmp_path) == []


def test_an_owner_who_cannot_be_warned_is_not_acted_on(tmp_path: Path) -> None:
    async def scene(start: Any) -> None:
        site = await start()
        await site.pass_time(20)
        assert site.kinds() == ["notify", "stopped"]
        assert await site.audit() == ["idle policy: notify", "idle policy: stopped"]
        [ladder] = site.service.show().ladders
        assert "cannot be warned" in (ladder.reason or "")
        assert site.told[0].title == "Idle policy: could not notify the owner of GPU 0 of gpu01"

    play(tmp_path, scene, has_inbox=False)
    assert acted(tmp_path) == []


def test_a_kept_gpu_is_left_alone(tmp_path: Path) -> None:
    async def scene(open_site: Any) -> None:
        site = await open_site()
        await site.pass_time(1.5)
        entry = site.auth.audit.entry
        start, end = site.clock.now, site.clock.now + 10 * MINUTE
        wanted = Keep(id=0, gpu="GPU-0", host="gpu01", label="0", user="alice", start=start, end=end, reason="a demo")
        keep = await site.service.keeps.add(wanted, start, 1, entry(LOCAL_ADMIN, "keep gpu"))
        await site.pass_time(9.5)
        assert site.kinds() == ["notify"]
        assert site.service.show().ladders[0].kept_until == keep.end
        another = replace(wanted, gpu="GPU-1", label="1")
        with pytest.raises(RequestRefused, match="keeps 1 GPUs already"):
            await site.service.keeps.add(another, site.clock.now, 1, entry(LOCAL_ADMIN, "keep gpu"))
        await site.pass_time(3)
        assert site.kinds() == ["notify", "notify", "warn"]
        # Old ones are deleted.
        later = end + KEPT_SECONDS + 1
        another = replace(another, start=later, end=later + MINUTE)
        await site.service.keeps.add(another, later, 1, entry(LOCAL_ADMIN, "keep gpu"))
        assert [one.gpu for one in await site.service.keeps.list_since(0)] == ["GPU-1"]

    play(tmp_path, scene)


def test_a_hook_that_fails_or_hangs_is_an_event_and_runs_once(tmp_path: Path) -> None:
    async def scene(start: Any) -> None:
        site = await start()
        await site.pass_time(10)
        [hook] = [event for event in site.told if event.kind == "idle_policy_hook"]
        assert hook.severity == "warning"
        assert "did not answer within 1 s" in hook.detail

    slow = rule(tmp_path, "import time; time.sleep(60)", hook_timeout=1.0)
    play(tmp_path, scene, IdlePolicySettings(mode="act", rules=[slow]))
    assert len(acted(tmp_path)) == 1


def test_the_policy_goes_on_while_hooks_run(tmp_path: Path) -> None:
    async def scene(start: Any) -> None:
        site = await start()
        site.has_slow_hooks = True
        await site.pass_time(6, "idle idle", "alice bob")
        await site.pass_time(15, "idle idle", "alice carol")
        assert [event.kind for event in site.told if event.gpu == "GPU-0"] == [
            f"idle_policy_{kind}" for kind in ("notify", "warn", "act")
        ]
        assert [event.kind for event in site.told if event.gpu == "GPU-1"] == [
            f"idle_policy_{kind}" for kind in ("notify", "warn", "act") * 2
        ]
        (tmp_path / "go").touch()
        await asyncio.gather(*site.service.hooks)
        assert site.kinds().count("hook") == 3

    wait = f"import os.path, time\nwhile not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)"
    slow = rule(tmp_path, "pass\n" + wait, hook_timeout=300.0)
    play(tmp_path, scene, IdlePolicySettings(mode="act", rules=[slow]))
    assert sorted(one["GPUDECK_USERS"] for one in acted(tmp_path)) == ["alice", "bob", "carol"]


def test_a_gpu_that_works_again_while_another_is_acted_on_is_left_alone(tmp_path: Path) -> None:
    async def scene(start: Any) -> None:
        site = await start()
        await site.pass_time(5, "idle idle", "alice bob")

        def work(event: Event) -> None:
            if event.kind == "idle_policy_act":
                site.report("idle busy", "alice bob")

        site.events.subscribe(work)
        await site.pass_time(0.5, "idle idle", "alice bob")
        assert [event.gpu for event in site.told if event.kind == "idle_policy_act"] == ["GPU-0"]

    play(tmp_path, scene)
    assert [one["GPUDECK_GPU"] for one in acted(tmp_path)] == ["0"]


@pytest.mark.parametrize("state", ["busy", None], ids=["works", "is not observed"])
def test_a_gpu_that_is_not_idle_any_more_when_its_act_is_recorded_is_left_alone(
    tmp_path: Path, state: str | None
) -> None:
    async def scene(start: Any) -> None:
        site = await start()

        def change(event: Event) -> None:
            if event.kind == "idle_policy_act" and state is None:
                site.hub.fleet.age(site.clock.now + 600)
            elif event.kind == "idle_policy_act":
                site.report(state)

        site.events.subscribe(change)
        await site.pass_time(5.5)
        assert site.kinds() == ["notify", "warn", "act", "hook"]
        assert "did not run for gpu01:0" in site.told[-1].title

    play(tmp_path, scene)
    assert acted(tmp_path) == []


@pytest.mark.parametrize("shared", ["job", "process"])
def test_a_hook_waits_for_all_gpus_of_a_job_and_runs_once_for_them(tmp_path: Path, shared: str) -> None:
    users = "alice bob" if shared == "job" else "alice alice"
    job = SchedulerMark(Allocation("slurm", "4711", user="alice"))

    async def scene(start: Any) -> None:
        site = await start()
        site.report("idle busy", users)
        if shared == "job":
            site.hub.fleet.allocate(dict.fromkeys(["GPU-0", "GPU-1"], job), site.clock.now)
        await site.pass_time(20, "idle busy", users)
        assert site.kinds() == ["notify", "warn"]
        assert "waits until gpu01:1" in (site.service.show().ladders[0].reason or "")
        await site.pass_time(20, "idle idle", users)
        assert site.kinds() == ["notify", "warn"] * 2 + ["act", "act", "hook"]
        assert (await site.audit())[-2:] == ["idle policy: act"] * 2

    play(tmp_path, scene)
    [facts] = acted(tmp_path)
    assert (facts["GPUDECK_GPU"], facts["GPUDECK_GPUS"]) == ("0", "gpu01:0 gpu01:1")
    assert facts["GPUDECK_USERS"] == " ".join(sorted(set(users.split())))
    assert facts["GPUDECK_PIDS"] == ("4711 4712" if shared == "job" else "4711")
    assert facts["GPUDECK_JOB"] == ("4711" if shared == "job" else "")
    assert 240 <= float(facts["GPUDECK_IDLE_SECONDS"]) <= 240 + 3 * INTERVAL


def test_a_hook_gets_the_job_and_none_of_the_hubs_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUDECK_TOKEN", "a secret")
    strange = "4711; rm -rf $HOME"

    async def scene(start: Any) -> None:
        site = await start()
        site.report("free")
        mark = SchedulerMark(Allocation("slurm", strange, name="train", user="alice"))
        site.hub.fleet.allocate({"GPU-0": mark}, site.clock.now)
        await site.pass_time(10, "free")
        assert site.kinds() == ["notify", "warn", "act", "hook"]

    play(tmp_path, scene)
    [facts] = acted(tmp_path)
    assert (facts["GPUDECK_JOB"], facts["GPUDECK_SCHEDULER"], facts["GPUDECK_USERS"]) == (strange, "slurm", "alice")
    assert "GPUDECK_TOKEN" not in facts


def test_a_hook_that_cannot_be_run_is_a_problem_of_the_hub_and_a_mistake_of_check(tmp_path: Path) -> None:
    async def scene(start: Any) -> None:
        site = await start()
        [problem] = site.hub.fleet.problems
        assert "the hook /no/such/hook of usual is not a command that can be run here" in problem

    play(tmp_path, scene, IdlePolicySettings(mode="act", rules=[rule(tmp_path, hook=["/no/such/hook"])]))
    file = tmp_path / "gpudeck.yaml"
    usual = {"name": "usual", "warn_after": "1h", "act_after": "2h", "hook": ["/no/such/hook"]}
    for policy, told in (
        ({"mode": "act", "rules": [usual]}, "/no/such/hook of usual is not a command"),
        ({"mode": "act"}, "there is a mode, and no rules"),
    ):
        file.write_text(json.dumps({"idle_policy": policy}))
        done = CliRunner().invoke(command_line, ["check", "--config", str(file)])
        assert isinstance(done.exception, ConfigurationError)
        assert told in str(done.exception)


def test_exempt_users_are_left_alone(tmp_path: Path) -> None:
    async def scene(start: Any) -> None:
        site = await start()
        await site.pass_time(10)
        assert (site.kinds(), site.service.show().ladders) == ([], [])

    exempt = Exemptions(users=["al*"])
    play(tmp_path, scene, IdlePolicySettings(mode="act", rules=[rule(tmp_path)], exempt=exempt))


def test_of_two_hubs_one_acts_and_the_other_goes_on_from_there(tmp_path: Path) -> None:
    async def scene(start: Any) -> None:
        first, second = await start(), await start(is_alone=False)
        for _ in range(5):
            await first.pass_time(0.5)
            second.report("idle")
            await second.look()
        assert (first.kinds(), second.kinds()) == (["notify", "warn"], [])
        first.is_held, second.is_held = False, True
        await second.pass_time(3)
        await first.look()
        assert (first.kinds(), second.kinds()) == (["notify", "warn"], ["act", "hook"])

    play(tmp_path, scene)
    assert len(acted(tmp_path)) == 1
