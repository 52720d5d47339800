"""Start a hub: settings → fleet, services, API, ticks, and the hub's own agent, until a signal ends it."""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct

from gpudeck.agent.child import ChildAgent
from gpudeck.agent.signals import SystemdNotifier
from gpudeck.agent.token_file import ensure_token
from gpudeck.api.access import Policy
from gpudeck.api.app import REPORTS, ApiApp
from gpudeck.api.hosts import HostAdmin
from gpudeck.api.install import Installer
from gpudeck.api.mcp import McpApp
from gpudeck.api.reports import DirectReports
from gpudeck.api.services import ApiServices, HubPlace
from gpudeck.app.plan import Plan, make_poll_methods
from gpudeck.app.reload import HubReload, ReloadablePart, handle_sighup
from gpudeck.app.services import HubServices, make_authenticator, make_policy, route_by_duty
from gpudeck.auth.auth import Auth
from gpudeck.auth.service import note_configuration, running_auth
from gpudeck.compat.service import CompatRoutes
from gpudeck.compat.service import make_providers as make_compat_providers
from gpudeck.database.schema import name_fleet
from gpudeck.discovery.managed import ManagedHosts
from gpudeck.discovery.registry import HostLists
from gpudeck.discovery.service import PollingService
from gpudeck.discovery.static import StaticHosts
from gpudeck.fetch import shared_trust
from gpudeck.fleet.clock_monitor import ClockMonitor
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.observers import EverySecond, tick_forever
from gpudeck.model.address import open_socket
from gpudeck.model.clock import SharedClock, wall
from gpudeck.model.cpu_budget import tune_process
from gpudeck.model.errors import Temporary, UsageError
from gpudeck.model.settings import Address, expand_home
from gpudeck.model.target import Target
from gpudeck.ops.backup import record_restore
from gpudeck.ops.data_folder import lock_fleet, lock_for_hub
from gpudeck.server.addresses import note_address, url_elsewhere, url_here, write_url
from gpudeck.server.admission import AdmissionGate
from gpudeck.server.asgi import App, SafeApp
from gpudeck.server.connections import ConnectionLimiter
from gpudeck.server.http_server import LimitedServer
from gpudeck.server.tls import Tls
from gpudeck.settings import Settings, exposure_problem, find_data_dir, find_missing_extras

log = logging.getLogger(__name__)

_HAD_REAL_HOSTS = "had-real-hosts"
"""A file in the data folder: a hub that has shown real hosts never starts the demo by itself again."""


class HubStartInfo(Struct, frozen=True):
    """A running hub, as reported to its starter.

    `url` is for this machine, `url_elsewhere` for others: None if they cannot reach it. `config` is the file that was
    read, if there is one. `first_admin` is the link that creates the first account, if one is needed.
    """

    url: str
    url_elsewhere: str | None
    plan: Plan
    token_file: Path
    config: Path | None
    first_admin: str | None = None


class HubServer:
    """A hub with its listening socket and files: `serve` it once."""

    def __init__(
        self,
        settings: Settings,
        plan: Plan,
        config: Path | None = None,
        *,
        targets: Sequence[Target] = (),
        ssh_password: str | None = None,
        reread: Callable[[], Settings] | None = None,
        listening: socket.socket | None = None,
        systemd: SystemdNotifier | None = None,
        first_admin: str | None = None,
    ) -> None:
        """`config` is the file that the settings came from; the hub's own agent reads it too.

        `targets` are hosts given as an option, and `ssh_password` was typed for hosts that accept no key. `reread`
        reads the settings again, for SIGHUP; it raises UsageError. `listening`, `systemd` and `first_admin`, the secret
        of a link that was printed, come from the hub that this one replaces. Raises UsageError.
        """
        problem = exposure_problem(settings.listen, settings.read)
        if problem:
            raise UsageError(f"{problem}.")
        self._data_dir = data_dir = find_data_dir(settings)
        lock_for_hub(data_dir).close()  # completes an interrupted restore before anything is read
        if not plan.demo_is_asked and (data_dir / _HAD_REAL_HOSTS).exists():
            plan = msgspec.structs.replace(plan, demo_hosts=None)
        self._settings, self._plan, self._config, self._reread = settings, plan, config, reread
        own_token = data_dir / "agent.token"
        self._token_file = expand_home("token_file", settings.token_file) if settings.token_file else own_token
        ensure_token(self._token_file)
        ensure_token(data_dir / "admin.token")
        # It listens when the hub serves. Before that, thousands of agents that reconnect after a restart would overflow
        # the kernel's queue, and TCP would retry only after one, three, seven seconds.
        self._listening = listening or open_socket(settings.listen, listens=False)
        self._systemd = systemd or SystemdNotifier.of_this_process()
        self._first_admin = first_admin
        self._make_next = partial(
            HubServer,
            settings,
            msgspec.structs.replace(plan, demo_hosts=None),
            config,
            targets=targets,
            ssh_password=ssh_password,
            reread=reread,
            listening=self._listening,
            systemd=self._systemd,
        )
        self._lock = lock_for_hub(data_dir)
        self._fleet_lock = lock_fleet(data_dir, name_fleet(plan.demo_hosts))
        self._is_demo_over = self._is_ended = False
        self._clock = ClockMonitor(data_dir)
        is_simulated = plan.demo_hosts is not None
        now = wall if settings.cluster is None or is_simulated else SharedClock()
        self.hub = Hub(
            settings.fleet, now, names=settings.names, is_simulated=is_simulated, retention=self._clock.retention
        )
        scheme = "http" if settings.tls is None else "https"
        self.url = url_here(settings.listen, self._listening, scheme)
        self._page = settings.notify.page
        self._url_elsewhere = url_elsewhere(settings.listen, self._listening, scheme, self._page)
        self._tls = None if settings.tls is None else Tls(settings.tls)
        self._plain = None if settings.tls is None else open_socket(Address("127.0.0.1", 0))
        self._child: ChildAgent | None = None
        self._services: HubServices | None = None
        history = settings.history
        self._compat_routes = CompatRoutes(
            settings.compat,
            forget_after=settings.fleet.forget_after,
            history_kept=max(history.raw, history.quarter_hour, history.hour),
        )
        self._managed = ManagedHosts(data_dir / "hosts.yaml")
        # A host from an option or a file takes precedence over one that was added on the page.
        self._lists = HostLists(
            settings.hosts,
            settings.discovery,
            config.name if config else "gpudeck.yaml",
            first=[StaticHosts(targets)] if targets else [],
            last=[*make_compat_providers(settings.compat), self._managed],
        )
        self._make_poll_methods = partial(make_poll_methods, ssh_password=ssh_password)
        self._agent_port = settings.pull.port
        self._polling_shards: frozenset[int] | None = None
        self._watching = PollingService(
            self.hub, self._lists.providers, self._make_poll_methods(settings), keeps_away=self._keeps_away
        )

    async def serve(self, when_started: Callable[[HubStartInfo], None]) -> "HubServer | None":
        """Serve until SIGINT or SIGTERM. Raises UsageError if the database refuses the hub; one that does not answer is
        retried. Returns the hub to serve next if a demo ended because a real host reported."""
        with self._lock, self._fleet_lock:
            await self._serve(when_started)
        if self._is_demo_over and not self._is_ended:
            return self._make_next(first_admin=self._first_admin)
        self._listening.close()
        return None

    async def _serve(self, when_started: Callable[[HubStartInfo], None]) -> None:
        settings = self._settings
        self._report_missing_extras()
        async with running_auth(
            self._data_dir,
            self._token_file,
            self._config,
            database_url=settings.database,
            login=settings.login,
            users=settings.users,
            public_url=settings.public_url,
            retention=self._clock.retention,
            when_loaded=lambda auth: record_restore(auth.audit, self._data_dir),
        ) as auth:
            policy = make_policy(settings)
            needs_link = policy.needs_accounts and auth.has_own_passwords
            first_admin = await _make_first_admin(auth, self._first_admin) if needs_link else None
            limiter = ConnectionLimiter(settings.limits, proxies=settings.login.proxy.addresses)
            self._services = services = HubServices(
                self.hub, auth, policy, settings, plan=self._plan, clock=self._clock, data_dir=self._data_dir
            )
            services.share_hosts(self._managed)
            # Loading the system's certificates takes 100 ms; do it before the first host is read.
            await asyncio.gather(services.open(), asyncio.to_thread(shared_trust))
            app, direct = await self._open_app(services, auth, policy, limiter.hits)
            server = LimitedServer(
                app,
                limiter,
                self._tls,
                plain=[] if self._plain is None else [self._plain],
                direct=direct,
                when_started=lambda: self._begin(when_started, first_admin, end_demo),
                before_end=self._end,
                timeout_graceful_shutdown=5,
                backlog=65_535,
            )

            def end_demo() -> None:
                self._first_admin = first_admin if auth.first_admin.is_open else None
                self._end_demo()
                server.end()

            ticking = asyncio.create_task(tick_forever(self.hub.fleet.observers, self._systemd.alive))
            try:
                with handle_sighup(self._make_reload(auth, services), server.end):
                    # A copy, because the server closes it: connections to the next hub wait in the original's queue.
                    await server.serve(sockets=[self._listening.dup()])
            finally:
                self._is_ended = server.is_signalled
                await self._watching.stop()
                ticking.cancel()
                await services.close()

    def _report_missing_extras(self) -> None:
        """A channel or a bot whose extra is missing does not keep the hub from starting. The log has the install
        command for admins; all readers see the rest."""
        errors = find_missing_extras(self._settings)
        for error in errors:
            log.warning("%s", error)
        self.hub.fleet.set_problems("extras", [error.message for error in errors])

    def _make_reload(self, auth: Auth, services: HubServices) -> HubReload:
        """The settings that can change while the hub runs. All others need a restart."""

        async def change_hosts(settings: Settings) -> None:
            self._lists.change(settings.hosts, settings.discovery)
            await self._watching.change(self._lists.providers)

        async def change_sources(settings: Settings) -> None:
            self._agent_port = settings.pull.port
            await self._watching.change(self._lists.providers, self._make_poll_methods(settings))

        return HubReload(
            self._settings,
            self._reread or (lambda: self._settings),
            [
                ReloadablePart(("hosts", "discovery"), change_hosts),
                ReloadablePart(("ssh", "pull", "scrape"), change_sources),
                ReloadablePart(("names",), lambda settings: self.hub.fleet.rename(settings.names)),
                ReloadablePart(("users",), lambda settings: auth.users.take(settings.users)),
                ReloadablePart(("alerts",), lambda settings: services.alerts.change(settings.alerts)),
                ReloadablePart(("agent",), lambda _: None if self._child is None else self._child.reload()),
            ],
            supervisor=self._systemd,
            report_problem=lambda problem: self.hub.fleet.set_problems(
                "settings", [] if problem is None else [problem]
            ),
            note=lambda: note_configuration(auth, self._data_dir, self._config),
        )

    async def _open_app(
        self, services: HubServices, auth: Auth, policy: Policy, hits: Counter[str]
    ) -> tuple[App, DirectReports]:
        """From the outside in: common headers, limits, authentication, routes. And the short path that serves most
        reports."""
        settings = self._settings
        installer = Installer(self._data_dir / "wheelhouse", self._url_elsewhere or self.url)
        cluster = services.cluster
        host_admin = HostAdmin(
            self.hub,
            self._managed,
            auth.tokens,
            self._find_target,
            installer,
            alerts=services.alerts.alerts,
            memory=services.memory,
            note=note_address(settings.listen, self._url_elsewhere, self._page),
            notify_removed=(lambda _: None) if cluster is None else partial(cluster.notify, "removed"),
        )
        api = ApiServices(
            hub=self.hub,
            auth=auth,
            policy=policy,
            host_admin=host_admin,
            prefix=settings.path_prefix,
            hits=hits,
            history=services.history.store,
            events=services.events.events,
            reservations=services.reservations.calendar,
            maintenance=services.maintenance.windows,
            notes=services.maintenance.notes,
            queue=services.queue.queue,
            jobs=services.jobs,
            alerts=services.alerts.alerts,
            watches=services.messages.watches,
            mutes=services.messages.mutes,
            outbox=services.messages.outbox,
            idle_policy=services.idle_policy,
            reaches=services.messages.reaches,
            preview_digest=services.digests.preview,
            cluster=None if cluster is None else cluster.describe,
            agent_port=lambda: self._agent_port,
            place=HubPlace(
                listen=str(settings.listen),
                data_dir=str(self._data_dir),
                config=None if self._config is None else str(self._config),
                database=auth.database.place,
            ),
        )
        authenticator = make_authenticator(settings, auth)
        compat_routes = await self._compat_routes.open(api, authenticator, services.open_part)
        api_app = ApiApp(api, auth.tokens.find_agent, authenticator, compat_routes)
        prefix = settings.path_prefix
        routed = api_app if cluster is None else route_by_duty(api_app, cluster, prefix)
        limited = AdmissionGate(
            McpApp(routed, policy, authenticator.identify, prefix),
            settings.limits,
            proxies=settings.login.proxy.addresses,
            hits=hits,
            senders=self._compat_routes.senders,
            prefix=settings.path_prefix,
        )
        paths = sorted({REPORTS, settings.path_prefix.rstrip("/") + REPORTS})
        return SafeApp(limited), DirectReports(api_app.reports, limited, paths)

    async def _end(self) -> None:
        """Before the server stops: stop the hub's own agent, and close open streams and waiting requests, which would
        not end."""
        if not self._is_demo_over:
            self._systemd.stopping()
        if self._child is not None:
            await self._child.stop()
        self.hub.stream.close()
        if self._services is not None:
            await self._services.queue.close()

    def _begin(
        self, when_started: Callable[[HubStartInfo], None], first_admin: str | None, end_demo: Callable[[], None]
    ) -> None:
        arguments = ["--hub", self._url_of_child(), "--token-file", str(self._token_file)]
        if self._config is not None:
            arguments += ["--config", str(self._config)]
        if self._plan.demo_hosts is not None:
            self._child = ChildAgent([*arguments, *_simulate(self._plan.demo_hosts)])
            if not self._plan.demo_is_asked:
                self.hub.ingest.end_simulation_with(end_demo)
        elif self._plan.watch_this_machine:
            self._child = ChildAgent(arguments)
        if self._child is not None:
            self._child.start()
        self._share_polling()
        self._watching.start()
        if self._services is not None:
            self._services.start()
            self.hub.fleet.observers.add(EverySecond("polling", self._share_polling))
        self._systemd.ready(f"serving {self._url_elsewhere or self.url}")
        link = None if first_admin is None else f"{self._url_elsewhere or self.url}/#first-admin={first_admin}"
        when_started(HubStartInfo(self.url, self._url_elsewhere, self._plan, self._token_file, self._config, link))

    def _share_polling(self) -> None:
        """In a cluster, each hub reads some of the hosts."""
        cluster = None if self._services is None else self._services.cluster
        if cluster is not None and (shards := cluster.polling_shards) != self._polling_shards:
            self._polling_shards = shards
            self._watching.change_share(cluster.polls)

    def _url_of_child(self) -> str:
        """The URL for the hub's own agent: without TLS, because certificates are not issued for loopback addresses."""
        return self.url if self._plain is None else write_url("127.0.0.1", self._plain, "http")

    def _find_target(self, name: str) -> Target | None:
        """Raises UsageError if the demo was requested: then no real host is watched."""
        if self._plan.demo_is_asked:
            raise UsageError("this hub was started with --demo and watches no real hosts.", "Start it without --demo.")
        return self._watching.find(name)

    def _keeps_away(self) -> bool:
        """A requested demo shows nothing else; any other ends when there are hosts to watch."""
        self.hub.ingest.end_simulation()
        return self.hub.fleet.is_simulated

    def _end_demo(self) -> None:
        if not self._is_demo_over:
            log.info("a real host reports or was added: the hub restarts without the simulated fleet")
        self._is_demo_over = True
        with contextlib.suppress(OSError):
            (self._data_dir / _HAD_REAL_HOSTS).touch()


async def _make_first_admin(auth: Auth, secret: str | None) -> str | None:
    try:
        return await auth.first_admin.make(secret)
    except Temporary:
        log.warning(
            "no link for the first admin: the database does not answer; `gpudeck account add NAME --role admin` "
            "creates the account later"
        )
        return None


def _simulate(hosts: int) -> list[str]:
    """Large fleets report less often: hub, simulated agents and browser usually share one small machine."""
    return ["--simulate", str(hosts), "--interval", f"{max(2.0, hosts / 250):g}s"]


def run_hub(server: HubServer | None, when_started: Callable[[HubStartInfo], None]) -> None:
    """Serve in this thread until Ctrl-C or SIGTERM."""
    import uvloop  # noqa: PLC0415 - only the running hub needs it

    is_ended = False

    def begin(started: HubStartInfo) -> None:
        # What was loaded until now is never scanned again.
        gc.freeze()
        gc.enable()
        when_started(started)
        if is_ended:
            signal.raise_signal(signal.SIGTERM)

    def end(*_: object) -> None:
        """A signal while no server runs: before the first one, or between a demo and the next hub."""
        nonlocal is_ended
        if is_ended:
            raise KeyboardInterrupt
        is_ended = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)

    tune_process()
    with contextlib.suppress(KeyboardInterrupt):
        while server is not None and not is_ended:
            server = uvloop.run(server.serve(begin))
