"""Start a hub: settings → fleet, API, ticks, and the agent that belongs to it, until it is told to stop."""

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

import msgspec
from msgspec import Struct

from gpudeck.agent.token_file import ensure_token
from gpudeck.api.about import HubPlace
from gpudeck.api.access import Policy
from gpudeck.api.app import FrontDoor
from gpudeck.api.host_book import HostBook
from gpudeck.api.house import House
from gpudeck.app.auth import grant_by, make_keeper, make_policy, note_configuration, running_auth
from gpudeck.app.child_agent import ChildAgent
from gpudeck.app.compat import SideDoors
from gpudeck.app.history import Archive
from gpudeck.app.host_lists import HostLists
from gpudeck.app.plan import Plan
from gpudeck.app.reload import HubReload, Part, handle_sighup
from gpudeck.app.rooms import Rooms
from gpudeck.app.systemd import SystemdNotifier
from gpudeck.app.watching import Watching
from gpudeck.app.ways import make_ways
from gpudeck.auth.parts import Auth
from gpudeck.discovery.managed import ManagedHosts
from gpudeck.discovery.static import StaticHosts
from gpudeck.fetch import shared_trust
from gpudeck.hub.clock_monitor import ClockMonitor
from gpudeck.hub.hub import Hub
from gpudeck.hub.stream import Stream
from gpudeck.model.cpu_budget import THREAD_SECONDS, run_in_steps
from gpudeck.model.errors import Temporary, UsageError
from gpudeck.model.listening import open_socket
from gpudeck.model.settings import Address
from gpudeck.model.target import Target
from gpudeck.ops.data_folder import share
from gpudeck.server.admission import AdmissionGate
from gpudeck.server.asgi import App
from gpudeck.server.connections import ConnectionLimiter
from gpudeck.server.headers import SafeApp
from gpudeck.server.http_server import LimitedServer
from gpudeck.server.tls import Tls
from gpudeck.server.urls import url_elsewhere, url_here, write_url
from gpudeck.settings import Settings, exposure_problem, find_data_dir, find_token_file, grouped_usage
from gpudeck.sources.poller import Way

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
_HAD_REAL_HOSTS = "had-real-hosts"
"""In the data folder: a hub that has shown real hosts never shows the demo by itself again, not even for a moment."""


class Started(Struct, frozen=True):
    """A running hub as its starter wants to know it.

    `url` is for this machine, `url_elsewhere` for others: None where they cannot reach it. `config` is the file that
    was read, if there is one. `first_admin` is the link with which the first account is made, where one is needed.
    """

    url: str
    url_elsewhere: str | None
    plan: Plan
    token_file: Path
    config: Path | None
    first_admin: str | None = None


class HubServer:
    """A hub with its listening socket and files: made by `open`, which raises UsageError, then `serve`d."""

    def __init__(
        self,
        settings: Settings,
        plan: Plan,
        config: Path | None,
        *,
        data_dir: Path,
        listening: socket.socket,
        token_file: Path,
        managed: ManagedHosts,
        lists: HostLists,
        make_ways: Callable[[Settings], dict[str, Way]],
        side_doors: SideDoors,
        reread: Callable[[], Settings] | None,
        lock: IO[bytes],
        open_again: Callable[[Plan], "HubServer"],
        systemd: SystemdNotifier,
    ) -> None:
        self._settings = settings
        self._plan = plan
        self._data_dir = data_dir
        self._lock = lock
        self._open_again = open_again
        self._is_demo_over = self._is_ended = False
        self._config = config
        self._listening = listening
        self._token_file = token_file
        self._clock = ClockMonitor(data_dir)
        self.hub = Hub(
            settings.fleet,
            names=settings.names,
            demo=plan.demo_hosts is not None,
            retention=self._clock.retention,
        )
        scheme = "http" if settings.tls is None else "https"
        self.url = url_here(settings.listen, listening, scheme)
        self._url_elsewhere = url_elsewhere(settings.listen, listening, scheme, settings.notify.page)
        self._child: ChildAgent | None = None
        self._managed = managed
        self._side_doors = side_doors
        self._tls = None if settings.tls is None else Tls(settings.tls)
        self._plain = None if settings.tls is None else open_socket(Address("127.0.0.1", 0))
        self._lists = lists
        self._make_ways = make_ways
        self._agent_port = settings.pull.port
        self._watching = Watching(self.hub, lists.providers, make_ways(settings))
        self._reread = reread
        self._systemd = systemd
        self._rooms: Rooms | None = None
        self._archive = Archive(
            self.hub,
            settings.history,
            grouped_usage(settings),
            data_dir,
            demo=plan.demo_hosts,
            demo_days=plan.demo_days,
        )

    @classmethod
    def open(
        cls,
        settings: Settings,
        plan: Plan,
        config: Path | None = None,
        *,
        targets: Sequence[Target] = (),
        ssh_password: str | None = None,
        reread: Callable[[], Settings] | None = None,
        listening: socket.socket | None = None,
        systemd: SystemdNotifier | None = None,
    ) -> "HubServer":
        """`config` is the file that the settings came from, for the hub's own agent to read.

        `targets` are hosts that an option names, and `ssh_password` what a person typed for hosts that take no key.
        `reread` gives the settings as they are written later, for SIGHUP; it raises UsageError. `listening` and
        `systemd` are those of the hub in whose place this one starts.
        """
        problem = exposure_problem(settings.listen, settings.read)
        if problem:
            raise UsageError(f"{problem}.")
        data_dir = find_data_dir(settings)
        share(data_dir).close()  # completes a restore that was interrupted, before anything is read
        if not plan.demo_is_asked and (data_dir / _HAD_REAL_HOSTS).exists():
            plan = msgspec.structs.replace(plan, demo_hosts=None)
        token_file = find_token_file(settings.token_file) if settings.token_file else data_dir / "agent.token"
        ensure_token(token_file)
        ensure_token(data_dir / "admin.token")
        managed = ManagedHosts(data_dir / "hosts.yaml")
        option = [StaticHosts(targets)] if targets else []
        side_doors = SideDoors(settings)
        listening, systemd = listening or open_socket(settings.listen), systemd or SystemdNotifier.of_this_process()
        return cls(
            settings,
            plan,
            config,
            data_dir=data_dir,
            listening=listening,
            token_file=token_file,
            managed=managed,
            # Whom an option or a file names counts before whom somebody added by hand.
            lists=HostLists(settings, config.name if config else "gpudeck.yaml", first=option, last=[managed]),
            make_ways=lambda settings: make_ways(settings, ssh_password, side_doors.nodes),
            side_doors=side_doors,
            reread=reread,
            lock=share(data_dir),
            open_again=lambda plan: cls.open(
                settings,
                plan,
                config,
                targets=targets,
                ssh_password=ssh_password,
                reread=reread,
                listening=listening,
                systemd=systemd,
            ),
            systemd=systemd,
        )

    async def serve(self, when_started: Callable[[Started], None]) -> "HubServer | None":
        """Serve until SIGINT or SIGTERM. Raises UsageError when the database refuses the hub; one that does not answer
        is waited for. Returns the hub to serve next where a demo has ended because a real host reported."""
        with self._lock:
            await self._serve(when_started)
        if not self._is_demo_over or self._is_ended:
            return None
        return self._open_again(msgspec.structs.replace(self._plan, demo_hosts=None))

    async def _serve(self, when_started: Callable[[Started], None]) -> None:
        retention = self._clock.retention
        async with running_auth(
            self._settings, self._data_dir, self._token_file, self._config, retention=retention
        ) as auth:
            policy = make_policy(self._settings)
            first_admin = await _make_first_admin(auth) if policy.needs_accounts else None
            limiter = ConnectionLimiter(self._settings.limits, proxies=self._settings.login.proxy.addresses)
            self._rooms = rooms = Rooms(
                self.hub,
                auth,
                self._settings,
                self._archive,
                clock=self._clock,
                data_dir=self._data_dir,
                demo=self._plan.demo_hosts,
            )
            # Loading this machine's certificates takes 100 ms: not when the first host is read.
            await asyncio.gather(rooms.open(), asyncio.to_thread(shared_trust))
            door = await self._open_door(rooms, auth, policy, limiter.hits)
            plain = [] if self._plain is None else [self._plain]
            server = _Server(
                door,
                limiter,
                self._tls,
                lambda: self._begin(when_started, first_admin, end_demo),
                self._end,
                plain=plain,
            )

            def end_demo() -> None:
                self._end_demo()
                server.end()

            ticking = asyncio.create_task(tick_forever(self.hub.stream, self._systemd.alive))
            try:
                with handle_sighup(self._make_reload(auth), server.end):
                    # A copy: the server closes it, and connections to the next one wait in the queue of the other.
                    await server.serve(sockets=[self._listening.dup()])
            finally:
                self._is_ended = server.is_signalled
                await self._watching.stop()
                ticking.cancel()
                await rooms.close()

    def _make_reload(self, auth: Auth) -> HubReload:
        """What can change while the hub runs. A part of which nothing stands here needs a restart."""

        async def change_hosts(settings: Settings) -> None:
            self._lists.change(settings)
            await self._watching.change(self._lists.providers)

        async def change_ways(settings: Settings) -> None:
            self._agent_port = settings.pull.port
            await self._watching.change(self._lists.providers, self._make_ways(settings))

        async def change_names(settings: Settings) -> None:
            self.hub.fleet.rename(settings.names)

        async def change_people(settings: Settings) -> None:
            auth.people.take(settings.people)

        async def change_alerts(settings: Settings) -> None:
            if self._rooms is not None:
                await self._rooms.alarm.change(settings.alerts)

        async def change_agent(_: Settings) -> None:
            if self._child is not None:
                self._child.reload()

        return HubReload(
            self._settings,
            self._reread or (lambda: self._settings),
            [
                Part(("hosts", "discovery"), change_hosts),
                Part(("ssh", "pull", "scrape"), change_ways),
                Part(("names",), change_names),
                Part(("people",), change_people),
                Part(("alerts",), change_alerts),
                Part(("agent",), change_agent),
            ],
            supervisor=self._systemd,
            tell=lambda problem: self.hub.fleet.say("settings", [] if problem is None else [problem]),
            note=lambda: note_configuration(auth, self._data_dir, self._config),
        )

    async def _open_door(self, rooms: Rooms, auth: Auth, policy: Policy, hits: Counter[str]) -> App:
        """From the outside in: headers that every answer carries, limits, who it is, the routes."""
        settings = self._settings
        book = HostBook(self._managed, auth.tokens, self._watching.find, url=self._url_elsewhere, url_here=self.url)
        house = House(
            hub=self.hub,
            auth=auth,
            policy=policy,
            book=book,
            prefix=settings.path_prefix,
            hits=hits,
            history=self._archive.store,
            events=rooms.diary.events,
            reservations=rooms.bookings.calendar,
            waiting=rooms.line.queue,
            alerts=rooms.alarm.alerts,
            memory=rooms.memory,
            watches=rooms.messages.watches,
            mutes=rooms.messages.mutes,
            outbox=rooms.messages.outbox,
            reaches=rooms.messages.reaches,
            agent_port=lambda: self._agent_port,
            place=HubPlace(
                listen=str(settings.listen),
                data_dir=str(self._data_dir),
                config=None if self._config is None else str(self._config),
                database=auth.database.place,
            ),
        )
        keeper = make_keeper(settings, auth)
        door = FrontDoor(house, grant_by(auth), keeper, await self._side_doors.open(house, keeper, rooms.open_part))
        limited = AdmissionGate(
            door,
            settings.limits,
            proxies=settings.login.proxy.addresses,
            hits=hits,
            senders=self._side_doors.senders,
            prefix=settings.path_prefix,
        )
        return SafeApp(limited)

    async def _end(self) -> None:
        """Before the door closes: the hub's own agent, which would find it closed, and what is kept open: the streams,
        which never end, and the questions of those who wait."""
        if not self._is_demo_over:
            self._systemd.stopping()
        if self._child is not None:
            await self._child.stop()
        self.hub.stream.close()
        if self._rooms is not None:
            await self._rooms.hush()

    def _begin(
        self, when_started: Callable[[Started], None], first_admin: str | None, end_demo: Callable[[], None]
    ) -> None:
        arguments = ["--hub", self._url_of_child(), "--token-file", str(self._token_file)]
        if self._config is not None:
            arguments += ["--config", str(self._config)]
        if self._plan.demo_hosts is not None:
            self._child = ChildAgent([*arguments, *_simulate(self._plan.demo_hosts)])
            if not self._plan.demo_is_asked:
                self.hub.ingest.end_demo_with(end_demo)
        elif self._plan.watch_this_machine:
            self._child = ChildAgent(arguments)
        if self._child is not None:
            self._child.start()
        self._watching.start()
        if self._rooms is not None:
            self._rooms.start()
        self._systemd.ready(f"serving {self._url_elsewhere or self.url}")
        link = None if first_admin is None else f"{self._url_elsewhere or self.url}/#first-admin={first_admin}"
        when_started(Started(self.url, self._url_elsewhere, self._plan, self._token_file, self._config, link))

    def _url_of_child(self) -> str:
        """Where the hub's own agent reaches it: without TLS, as a certificate is not for this machine's own address."""
        return self.url if self._plain is None else write_url("127.0.0.1", self._plain, "http")

    def _end_demo(self) -> None:
        if not self._is_demo_over:
            log.info("a real host reports: the hub starts again without the simulated fleet")
        self._is_demo_over = True
        with contextlib.suppress(OSError):
            (self._data_dir / _HAD_REAL_HOSTS).touch()


async def _make_first_admin(auth: Auth) -> str | None:
    try:
        return await auth.first_admin.make()
    except Temporary:
        log.warning("whether there are accounts is not known yet: `gpudeck account add` makes the first one")
        return None


def _simulate(hosts: int) -> list[str]:
    """Large fleets report less often: hub, simulated agents and the browser usually share one small machine."""
    return ["--simulate", str(hosts), "--interval", f"{max(2.0, hosts / 250):g}s"]


class _Server(LimitedServer):
    """A server that tells when it has started and before it stops."""

    def __init__(
        self,
        app: App,
        limiter: ConnectionLimiter,
        tls: Tls | None,
        when_started: Callable[[], None],
        before_end: Callable[[], Awaitable[None]],
        *,
        plain: Sequence[socket.socket],
    ) -> None:
        super().__init__(app, limiter, tls, plain=plain, timeout_graceful_shutdown=5, backlog=2048)
        self._when_started = when_started
        self._before_end = before_end
        self.is_signalled = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.is_signalled = True
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._when_started()

    def end(self) -> None:
        """As SIGTERM does."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._before_end()
        await super().shutdown(sockets)


async def tick_forever(stream: Stream, when_done: Callable[[], None] = lambda: None) -> None:
    """Publish once a second, and have the fleet's observers do what else is due. A tick that fails is logged, and the
    next one comes; `when_done` is called after each that does not."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        try:
            await run_in_steps(stream.tick_in_steps())
            when_done()
        except Exception:
            log.exception("a tick failed")
        await asyncio.sleep(0)
        stream.fleet.observers.on_second()
        due = max(due + TICK_SECONDS, loop.time())
        await asyncio.sleep(due - loop.time())


def run_hub(server: HubServer | None, when_started: Callable[[Started], None]) -> None:
    """Serve in this thread until Ctrl-C or SIGTERM."""
    import uvloop  # noqa: PLC0415 - only the running hub needs it

    is_ended = False

    def begin(started: Started) -> None:
        # A hub keeps hundreds of thousands of small objects that never form circles: what was loaded is never looked
        # through again, and all of the rest seldom. A look at the newest is short, whatever comes in: each object
        # takes up to 3 µs, and the event loop waits.
        gc.freeze()
        gc.enable()
        when_started(started)
        if is_ended:
            signal.raise_signal(signal.SIGTERM)

    def end(*_: object) -> None:
        """A signal while no server runs: before the first one, or between a demo and the hub that follows it."""
        nonlocal is_ended
        if is_ended:
            raise KeyboardInterrupt
        is_ended = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)

    gc.set_threshold(10_000, 5, 1_000)
    # Each viewer and each agent is a descriptor, and the usual limit of 1,024 is soon used up.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    sys.setswitchinterval(THREAD_SECONDS)
    with contextlib.suppress(KeyboardInterrupt):
        while server is not None and not is_ended:
            server = uvloop.run(server.serve(begin))
