"""A hub with the real parts of digests: an embedded history, the outbox, channels that send, a clock of the test."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import select

from fakes.api_app import make_alerts, make_auth
from fakes.clock import FakeClock
from fakes.offers import FakeClaims
from fakes.waiting import until
from gpudeck.alerts.notifiers.message_service import MessageService
from gpudeck.alerts.notifiers.settings import ChannelSettings, NotifySettings
from gpudeck.api.access import Policy
from gpudeck.api.history import HistoryQueries
from gpudeck.auth.settings import UserSettings
from gpudeck.database.schema import outbox
from gpudeck.digests.figures import FigureReader
from gpudeck.digests.service import DigestService
from gpudeck.digests.settings import DigestSettings
from gpudeck.events.service import EventLog
from gpudeck.events.settings import EventSettings
from gpudeck.fleet.hub import Hub
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES, STATE_NUMBERS, GpuSample, HostSample, ProcessSample
from gpudeck.history.settings import HistorySettings, UsageSettings
from gpudeck.model.cluster import Duty
from gpudeck.queueing.queue import QueueStore, WaitQueue
from gpudeck.queueing.settings import QueueSettings
from gpudeck.schedulers.job_report import JobReporter
from gpudeck.schedulers.job_store import JobStore
from gpudeck.schedulers.jobs import JobService

GIB = 2.0**30
WEDNESDAY = datetime(2026, 11, 11, 10, tzinfo=UTC).timestamp()
MONDAY = datetime(2026, 11, 16, 8, tzinfo=UTC).timestamp()
"""After the week of that Wednesday, when its digest is due."""
USAGE = UsageSettings(currency="EUR", prices={"H200": 3.0})
OPEN = Policy(is_readable=True, needs_accounts=False)
MUTED = frozenset({"digest"})
Work = tuple[str, str, float]
"""Who, in which state, how busy."""


def make_history(path: Path, work: Sequence[Work], begin: float = WEDNESDAY, hours: float = 2.0) -> EmbeddedStore:
    """One GPU for each of them, for that time; nothing is monitored before and after."""
    clock = FakeClock(begin)
    store = EmbeddedStore(path / "history.db", HistorySettings(), clock, prices=USAGE)
    samples = []
    for number in range(int(hours * 120) + 1):
        at = begin + 30.0 * number
        gpus = []
        for index, (user, state, level) in enumerate(work):
            known = {"memory_used_bytes": 60 * GIB, "memory_total_bytes": 140 * GIB, "utilization_percent": level}
            values = dict.fromkeys(GPU_NAMES) | known
            process = ProcessSample(
                100 + index, begin, user, f"python train_{index}.py", None, None, int(60 * GIB), None
            )
            gpus.append(
                GpuSample(
                    *(f"GPU-{index}", str(index), "NVIDIA H200", STATE_NUMBERS[state]),
                    tuple(values[name] for name in GPU_NAMES),
                    (process,),
                )
            )
        samples.append(HostSample("id-1", "gpu01", at, 30.0, (None,) * len(HOST_NAMES), tuple(gpus)))
    store.take(samples)
    store.take([HostSample("id-1", "gpu01", begin + hours * 3600 + 30, 30.0, (None,) * len(HOST_NAMES), ())])
    clock.advance(MONDAY - begin)
    assert store.flush()
    return store


class Site:
    """Another one in the same folder, with the same history, is the same hub after a restart."""

    def __init__(
        self,
        folder: Path,
        history: EmbeddedStore,
        settings: DigestSettings,
        users: Mapping[str, UserSettings],
        channels: Mapping[str, ChannelSettings] | None = None,
        *,
        now: float = MONDAY,
        mail: str | None = "mail",
        policy: Policy = OPEN,
        groups: Mapping[str, str] | None = None,
    ) -> None:
        self.clock = FakeClock(now)
        self.hub = Hub(now=self.clock)
        self.auth = make_auth(folder)
        self.auth.users.take(dict(users))
        self.is_held = True
        events = EventLog(self.auth.database, EventSettings(), now=self.clock)
        notify = NotifySettings(channels=dict(channels or {}), mail=mail if channels else None)
        self.messages = MessageService(self.hub, self.auth, notify, events, now=self.clock)
        jobs = JobService(self.hub, JobStore(self.auth.database), keep=86_400.0, is_expected=False)
        queue = WaitQueue(QueueStore(self.auth.database), QueueSettings(), FakeClaims())
        self.reader = FigureReader(
            *(self.hub, HistoryQueries(history, self.clock), JobReporter(jobs, USAGE), events),
            *(make_alerts(self.auth.database), queue),
        )
        self.service = DigestService(
            settings,
            self.auth,
            policy,
            self.messages,
            self.reader,
            group_of=dict(groups or {}).get,
            page="https://gpus.example.org",
            duty=Duty("digests", lambda: self.is_held),
        )

    async def look(self) -> None:
        """As once a minute."""
        self.clock.advance(61)
        self.service.on_second()
        if self.service.task is not None:
            await self.service.task

    async def send(self) -> None:
        """Look, and send what is in the outbox."""
        await self.messages.open()
        self.messages.start()
        try:
            await self.look()
            await until(self._has_sent, "that the outbox is empty")
        finally:
            await self.messages.close()

    async def _has_sent(self) -> bool:
        return not await self.waiting()

    async def waiting(self) -> list[str]:
        """The accounts for which something is in the outbox."""
        wanted = select(outbox.c.account).where(outbox.c.state == "waiting").order_by(outbox.c.account)
        return [account for (account,) in await self.auth.database.execute(wanted)]
