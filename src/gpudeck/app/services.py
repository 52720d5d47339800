"""All services of a hub, in the order of their dependencies, and the access policy from its settings."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Raw, msgpack

from gpudeck.alerts.notifiers.alertmanager import AlertmanagerNotifier
from gpudeck.alerts.notifiers.message_service import MessageService
from gpudeck.alerts.notifiers.rendering import DEMO_PREFIX
from gpudeck.alerts.notifiers.settings import NotifySettings
from gpudeck.alerts.service import AlertService, ShownAlerts
from gpudeck.api.access import Authenticator, Policy
from gpudeck.api.history import HistoryQueries
from gpudeck.app.plan import Plan
from gpudeck.auth.auth import Auth
from gpudeck.chat.bot import BotServices
from gpudeck.chat.service import ChatService, DirectMessageChannel
from gpudeck.database.engine import Database
from gpudeck.database.schema import REAL, name_fleet
from gpudeck.demo.service import Demo, DemoInbox
from gpudeck.digests.figures import SHARE as DIGEST_SHARE
from gpudeck.digests.figures import FigureReader
from gpudeck.digests.service import DigestService
from gpudeck.discovery.managed import ManagedHostList, ManagedHosts
from gpudeck.events.service import EventLog, EventService
from gpudeck.fleet.clock_monitor import ClockMonitor
from gpudeck.fleet.host_memory import HostMemory
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.observers import EverySecond, Service
from gpudeck.history.service import HistoryService
from gpudeck.history.usage import find_groups, unix_group
from gpudeck.idle_policy.service import IdlePolicyService
from gpudeck.maintenance.service import MaintenanceService
from gpudeck.model.cluster import Duty
from gpudeck.model.cpu_budget import cancel_tasks
from gpudeck.model.errors import Temporary
from gpudeck.model.event import Event
from gpudeck.model.plugins import need
from gpudeck.model.settings import is_loopback
from gpudeck.queueing.queue import QueueService
from gpudeck.reservations.service import ReservationService
from gpudeck.schedulers.job_report import JobReporter
from gpudeck.schedulers.job_store import JobStore
from gpudeck.schedulers.jobs import JobService
from gpudeck.schedulers.registry import make_schedulers
from gpudeck.schedulers.service import SchedulerService, SharedReadings
from gpudeck.server.asgi import App
from gpudeck.settings import Settings, grouped_usage

if TYPE_CHECKING:
    from gpudeck.cluster.service import ClusterService

log = logging.getLogger(__name__)

_AGAIN_SECONDS: Final = 1.0


class HubServices:
    """`open` before the hub serves, `start` when it serves, `close` at the end, in the event loop that owns the hub.
    Each service is registered with the fleet's observers."""

    def __init__(
        self,
        hub: Hub,
        auth: Auth,
        policy: Policy,
        settings: Settings,
        *,
        plan: Plan,
        clock: ClockMonitor,
        data_dir: Path,
    ) -> None:
        self._hub = hub
        self._auth = auth
        self._clock = clock
        self._opening: asyncio.Task[None] | None = None
        self._unopened: list[Callable[[], Awaitable[None]]] = []
        fleet, min_free = name_fleet(plan.demo_hosts), settings.history.min_free
        demo = None
        if plan.demo_hosts is not None:
            demo = Demo(plan.demo_hosts, plan.demo_days, data_dir, until=hub.started_at, min_free=min_free)
        self.cluster = cluster = _make_cluster(hub, auth, settings, plan, data_dir)

        def duty(name: str) -> Duty | None:
            return None if cluster is None else cluster.duty(name)

        def fence(name: str) -> Database | None:
            return None if cluster is None else cluster.leases.fence(name)

        def share(name: str) -> Callable[[Any], None] | None:
            return None if cluster is None else partial(cluster.share, name)

        hub_name = "" if settings.cluster is None or cluster is None else settings.cluster.hub_name
        self.memory = HostMemory(hub, auth.local)
        self.events = EventService(
            hub,
            auth.database,
            settings.events,
            fleet=fleet,
            duty=duty("events"),
            hub_name=hub_name,
            fenced=fence("events"),
            missed="" if cluster is None else cluster.missed,
        )
        events = self.events.events
        clock.subscribe(events.add)
        usage = grouped_usage(settings)
        self.history = HistoryService(
            hub,
            settings.history,
            usage if demo is None else demo.usage(usage),
            data_dir,
            add_event=events.add,
            demo=plan.demo_hosts,
            prepare=None if demo is None else demo.wait_for_past,
            find_group=partial(_find_group, auth) if demo is None else demo.find_group,
            hub_name=hub_name or None,
        )
        store = self.history.store
        self.maintenance = MaintenanceService(
            hub, auth, events, data_dir=data_dir, fleet=fleet, add_found=self.events.add_found
        )
        of_jobs = fence("schedulers") or auth.database
        readers = [*make_schedulers(settings.schedulers), *(() if demo is None else demo.schedulers())]
        jobs = JobService(
            hub,
            JobStore(of_jobs, fleet),
            keep=settings.schedulers.keep,
            duty=duty("schedulers"),
            is_expected=bool(readers),
        )
        schedulers = SchedulerService(
            hub,
            readers,
            data_dir=data_dir,
            note_ended=jobs.note_ended,
            duty=duty("schedulers"),
            share=share("schedulers"),
        )
        self.jobs = JobReporter(jobs, self.history.usage, self.history.find_group)
        self.reservations = ReservationService(
            hub,
            auth,
            settings.reservations,
            events,
            data_dir=data_dir,
            fleet=fleet,
            maintenance=lambda: self.maintenance.windows.all,
            of_schedulers=lambda: schedulers.reservations,
            duty=duty("reservations"),
            fenced=fence("reservations"),
        )
        self.queue = QueueService(
            hub,
            auth.database,
            self.reservations.calendar,
            settings.queue,
            auth.users,
            history=store,
            find_outdated=schedulers.find_outdated,
            fleet=fleet,
        )
        notify = settings.notify
        bot = None if settings.chat.slack is None else DirectMessageChannel(auth.users.user_of, notify.page)
        self.messages = MessageService(
            hub,
            auth,
            notify,
            events,
            claimed=lambda: self.queue.queue.claimed,
            bot=bot,
            inbox=None if demo is None else DemoInbox(events),
            fleet=fleet,
            database=None if cluster is None else auth.database,
        )
        self.alerts = AlertService(
            hub,
            auth,
            settings.alerts,
            events,
            send=self.messages.outbox.put,
            settle=self.messages.outbox.flush,
            late_reservations=lambda: self.reservations.late,
            history=lambda: self.history.trouble,
            fleet=fleet,
            duty=duty("alerts"),
            database=fence("alerts"),
            share=share("alerts"),
            now=hub.clock,
        )
        self.idle_policy = IdlePolicyService(
            hub,
            auth,
            settings.idle_policy,
            events,
            self.messages,
            self.reservations.calendar,
            group_of=find_groups(usage, self.history.find_group),
            fleet=fleet,
            duty=duty("alerts"),
            fenced=fence("alerts"),
        )
        self.digests = DigestService(
            settings.digests,
            auth,
            policy,
            self.messages,
            FigureReader(
                hub,
                HistoryQueries(store, hub.clock, DIGEST_SHARE),
                self.jobs,
                events,
                self.alerts.alerts,
                self.queue.queue,
            ),
            group_of=find_groups(usage, self.history.find_group),
            page=notify.page,
            fleet=fleet,
            duty=duty("digests"),
            fenced=fence("digests"),
        )
        bot_services = BotServices(
            hub=hub,
            auth=auth,
            policy=policy,
            reservations=self.reservations.calendar,
            events=events,
            watches=self.messages.watches,
            waiting=self.queue.queue,
            history=store,
            reaches=self.messages.reaches,
            address=notify.page or f"on {socket.gethostname()}, listening on {settings.listen}",
        )
        chat = ChatService(bot_services, settings.chat, direct_messages=bot, duty=duty("chat"))
        if cluster is not None:
            cluster.subscribe("alerts", self._show_shared_alerts)
            cluster.subscribe("removed", self._remove_hosts)
            cluster.subscribe("event", lambda raw: hub.stream.announce(msgpack.decode(raw, type=Event)))
            self.events.pass_on(partial(cluster.notify, "event"))
            cluster.subscribe("schedulers", lambda raw: schedulers.use_shared(msgpack.decode(raw, type=SharedReadings)))
        self._all: list[Service] = [
            *([] if cluster is None else [cluster]),
            self.memory,
            self.events,
            self.history,
            self.maintenance,
            schedulers,
            jobs,
            self.reservations,
            self.queue,
            self.messages,
            self.alerts,
            *self._make_alertmanager(notify, events, fleet),
            self.idle_policy,
            self.digests,
            chat,
        ]
        if demo is not None:
            calendar, queue, windows = self.reservations.calendar, self.queue.queue, self.maintenance.windows
            self._all += demo.services(
                hub, events, auth.database, calendar, queue, maintenance=windows, has_history=store is not None
            )
        for observer in (
            EverySecond("clock", partial(clock.tick, hub.fleet)),
            EverySecond("database", self._check_auth),
            *self._all,
        ):
            hub.fleet.observers.add(observer)

    def _make_alertmanager(self, notify: NotifySettings, events: EventLog, fleet: str) -> list[Service]:
        """None without the setting, and none for a demo without messages."""
        if notify.alertmanager is None or (fleet != REAL and not notify.demo):
            return []
        prefix = "" if fleet == REAL else DEMO_PREFIX
        hub, find = self._hub, self.alerts.find_engine
        return [
            AlertmanagerNotifier(
                notify.alertmanager, hub.fleet, events, find, page=notify.page, prefix=prefix, now=hub.clock
            )
        ]

    async def open(self) -> None:
        """Load each service's data from the database: now, or as soon as it answers. The hub serves meanwhile."""
        for service in self._all:
            await self.open_part(service.open)

    async def open_part(self, open_part: Callable[[], Awaitable[None]]) -> None:
        """Open one part, again and again if it raises Temporary because its database does not answer."""
        try:
            await open_part()
        except Temporary as error:
            log.debug("a part of the hub waits for its database: %s", error)
            self._unopened.append(open_part)
            if self._opening is None:
                self._opening = asyncio.create_task(self._open_rest())

    def start(self) -> None:
        for service in self._all:
            service.start()

    async def close(self) -> None:
        await cancel_tasks(self._opening)
        for service in reversed(self._all):
            await service.close()
        self._clock.close()

    async def _open_rest(self) -> None:
        while self._unopened:
            # In order, because alerts need the hosts; the next one may use another database.
            for open_part in list(self._unopened):
                try:
                    await open_part()
                except Temporary:
                    continue
                except Exception:
                    log.exception("a part of the hub could not be loaded")
                self._unopened.remove(open_part)
            await asyncio.sleep(_AGAIN_SECONDS if self._unopened else 0.0)
        self._opening = None
        log.warning("all that waited for the database is loaded")

    def _show_shared_alerts(self, raw: Raw) -> None:
        shown = msgpack.decode(raw, type=ShownAlerts)
        if self.cluster is not None and not self.cluster.leases.holds("alerts"):
            self._hub.fleet.show_alerts(shown.alerts, shown.counts)

    def _remove_hosts(self, raw: Raw) -> None:
        """Remove hosts that were removed on another hub."""
        host_ids = msgpack.decode(raw, type=list[str])
        for host_id in host_ids:
            if host_id in self._hub.fleet.hosts:
                self._hub.fleet.remove(host_id)
        self.alerts.alerts.remove_hosts(host_ids)

    def share_hosts(self, managed: ManagedHosts) -> None:
        """Hosts that are added on one hub are added on all."""
        if self.cluster is not None:
            self.cluster.subscribe("hosts", lambda raw: managed.adopt(msgpack.decode(raw, type=ManagedHostList)))
            managed.call_with_changes(partial(self.cluster.share, "hosts"))
            self.cluster.share("hosts", managed.all)

    def _check_auth(self) -> None:
        problem = self._auth.problem
        self._hub.fleet.set_problems("database", [] if problem is None else [problem])
        self._hub.fleet.set_problems("login", self._auth.login_problems)


def _find_group(auth: Auth, login: str) -> str | None:
    """The group from the login provider, else the Unix group on this machine."""
    return auth.users.group_of(login) or unix_group(login)


def _make_cluster(hub: Hub, auth: Auth, settings: Settings, plan: Plan, data_dir: Path) -> "ClusterService | None":
    """None for a single hub, and for a demo."""
    if settings.cluster is None or plan.demo_hosts is not None:
        return None
    need("cluster", "the setting `cluster`")
    from gpudeck.cluster.service import ClusterService  # noqa: PLC0415 - its libraries are not installed everywhere

    return ClusterService(hub, settings.cluster, auth.database, data_dir)


def route_by_duty(app: App, cluster: "ClusterService", prefix: str) -> App:
    """`app`, except for requests that another hub must answer."""
    from gpudeck.cluster.forwarding import DutyRouter  # noqa: PLC0415 - as above

    return DutyRouter(app, cluster, prefix)


def make_policy(settings: Settings) -> Policy:
    return Policy(
        is_readable=settings.read == "open",
        needs_accounts=not is_loopback(settings.listen.host) or settings.read == "login",
        commands=settings.commands,
        reserves_without_account=settings.read == "open" and settings.reservations.without_account,
    )


def make_authenticator(settings: Settings, auth: Auth) -> Authenticator:
    return Authenticator(
        auth,
        is_private=is_loopback(settings.listen.host),
        is_decided=settings.read is not None,
        needs_login=settings.read == "login",
        prefix=settings.path_prefix,
    )
