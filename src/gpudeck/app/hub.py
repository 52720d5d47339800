"""Start a hub: settings → fleet, API, ticks, and the agent that belongs to it, until it is told to stop."""

import asyncio
import contextlib
import gc
import logging
import resource
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from gpudeck.api.about import HubPlace
from gpudeck.api.access import Policy
from gpudeck.api.app import FrontDoor
from gpudeck.api.asgi import App
from gpudeck.api.headers import SafeApp
from gpudeck.api.house import House
from gpudeck.api.limits import LOGINS, LimitedApp
from gpudeck.app.auth import grant_by, make_keeper, make_policy, running_auth
from gpudeck.app.backfill import DAYS
from gpudeck.app.child_agent import ChildAgent
from gpudeck.app.diary import Diary
from gpudeck.app.history import Archive
from gpudeck.app.host_book import Book, ManagedHosts
from gpudeck.app.http_limits import Wall
from gpudeck.app.http_server import LimitedServer
from gpudeck.app.queue import WaitingLine
from gpudeck.app.reservations import Bookings
from gpudeck.app.settings import Settings, exposure_problem, find_data_dir, find_token_file
from gpudeck.app.tls import Tls
from gpudeck.app.tokens import ensure_token
from gpudeck.app.watching import Watching
from gpudeck.app.ways import make_ways
from gpudeck.auth.parts import Auth
from gpudeck.discovery.base import Provider
from gpudeck.discovery.option import OptionHosts
from gpudeck.discovery.registry import make_providers
from gpudeck.discovery.settings import DiscoverySettings
from gpudeck.hub.hub import Hub
from gpudeck.hub.stream import Stream
from gpudeck.model.errors import UsageError
from gpudeck.model.listening import open_socket
from gpudeck.model.settings import Address, is_loopback
from gpudeck.model.target import Target
from gpudeck.sources.poller import Way

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
DEMO_HOSTS = 24
_ANYWHERE = {"", "0.0.0.0", "::"}  # noqa: S104
_HAD_REAL_HOSTS = "had-real-hosts"
"""In the data folder: a hub that has shown real hosts never shows the demo by itself again, not even for a moment."""


class Plan(Struct, frozen=True):
    """What this hub is going to show. `demo_is_asked` keeps the demo even when real hosts report; `demo_days` is how
    long a past it begins with.

    `named_hosts` is how many hosts an option names; 0 where only the configuration names any, None where nobody does.
    """

    demo_hosts: int | None = None
    demo_is_asked: bool = False
    demo_days: float = DAYS
    watch_this_machine: bool = False
    named_hosts: int | None = None


def make_plan(settings: Settings, demo_hosts: int | None, has_gpus: Callable[[], bool], *, ssh_hosts: int = 0) -> Plan:
    """The demo when it is asked for; else this machine where it has GPUs, and the hosts that are named; and where there
    is neither, the demo until somebody reports."""
    if demo_hosts is not None:
        return Plan(demo_hosts=demo_hosts, demo_is_asked=True)
    named = ssh_hosts if ssh_hosts or names_hosts(settings) else None
    if settings.local == "auto" and has_gpus():
        return Plan(watch_this_machine=True, named_hosts=named)
    is_demo = settings.demo == "auto" and named is None
    return Plan(demo_hosts=DEMO_HOSTS if is_demo else None, named_hosts=named)


def names_hosts(settings: Settings) -> bool:
    """Whether the settings say of any host that it is there, or of anybody who knows."""
    return bool(settings.hosts) or settings.discovery != DiscoverySettings()


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
        providers: Sequence[Provider],
        ways: dict[str, Way],
    ) -> None:
        self._settings = settings
        self._plan = plan
        self._data_dir = data_dir
        self._config = config
        self._listening = listening
        self._token_file = token_file
        self.hub = Hub(settings.fleet, names=settings.names, demo=plan.demo_hosts is not None)
        scheme = "http" if settings.tls is None else "https"
        self.url = _url_of(settings.listen, listening, scheme)
        self._url_elsewhere = _url_elsewhere(settings.listen, listening, scheme)
        self._child: ChildAgent | None = None
        self._managed = managed
        self._tls = None if settings.tls is None else Tls(settings.tls)
        self._plain = None if settings.tls is None else open_socket(Address("127.0.0.1", 0))
        self._watching = Watching(self.hub, providers, ways)
        self._endings: set[asyncio.Task[None]] = set()
        self._waiting: WaitingLine | None = None
        self._diary: Diary | None = None
        self._bookings: Bookings | None = None
        self._archive = Archive(
            self.hub, settings.history, settings.usage, data_dir, demo=plan.demo_hosts, demo_days=plan.demo_days
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
    ) -> "HubServer":
        """`config` is the file that the settings came from, for the hub's own agent to read.

        `targets` are hosts that an option names, and `ssh_password` what a person typed for hosts that take no key.
        """
        problem = exposure_problem(settings.listen, settings.read)
        if problem:
            raise UsageError(f"{problem}.")
        data_dir = find_data_dir(settings)
        if not plan.demo_is_asked and (data_dir / _HAD_REAL_HOSTS).exists():
            plan = msgspec.structs.replace(plan, demo_hosts=None)
        token_file = find_token_file(settings.token_file) if settings.token_file else data_dir / "agent.token"
        ensure_token(token_file)
        ensure_token(data_dir / "admin.token")
        managed = ManagedHosts(data_dir / "hosts.yaml")
        providers = make_providers(settings.hosts, settings.discovery, config.name if config else "gpudeck.yaml")
        option = [OptionHosts(targets)] if targets else []
        return cls(
            settings,
            plan,
            config,
            data_dir=data_dir,
            listening=open_socket(settings.listen),
            token_file=token_file,
            managed=managed,
            # Whom an option or a file names counts before whom somebody added by hand.
            providers=[*option, *providers, managed],
            ways=make_ways(settings, ssh_password),
        )

    async def serve(self, when_started: Callable[[Started], None]) -> None:
        """Serve until SIGINT or SIGTERM. Raises UsageError when the database cannot be used."""
        tell = self._watching.note_problem
        async with running_auth(self._settings, self._data_dir, self._token_file, self._config, tell) as auth:
            policy = make_policy(self._settings)
            first_admin = await auth.first_admin.make() if policy.needs_accounts else None
            wall = Wall(self._settings.limits, proxies=self._settings.login.proxy.addresses)
            self._diary = diary = Diary(self.hub, auth.database, self._settings.events, demo=self._plan.demo_hosts)
            await diary.open()
            self._bookings = bookings = self._make_bookings(auth, diary)
            await bookings.open()
            self._waiting = self._make_line(auth, bookings)
            await self._waiting.open()
            door = self._open_door(auth, policy, wall.hits)
            plain = [] if self._plain is None else [self._plain]
            server = _Server(
                door, wall, self._tls, lambda: self._begin(when_started, first_admin), self._end, plain=plain
            )
            ticking = asyncio.create_task(tick_forever(self.hub.stream, self._tick))
            try:
                await server.serve(sockets=[self._listening])
            finally:
                await self._watching.stop()
                ticking.cancel()
                await self._waiting.stop()
                await bookings.close()
                await self._archive.close()
                await diary.close()

    def _make_bookings(self, auth: Auth, diary: Diary) -> Bookings:
        settings, demo = self._settings.reservations, self._plan.demo_hosts
        return Bookings(self.hub, auth, settings, diary.events, demo=demo)

    def _make_line(self, auth: Auth, bookings: Bookings) -> WaitingLine:
        settings, demo = self._settings.queue, self._plan.demo_hosts
        return WaitingLine(
            self.hub, auth.database, bookings.calendar, settings, auth.people, history=self._archive.store, demo=demo
        )

    def _tick(self) -> None:
        self._archive.tick()
        if self._bookings is not None:
            self._bookings.tick()
        if self._diary is not None:
            self._diary.tick(None if self._archive.store is None else self._archive.store.problem)

    def _open_door(self, auth: Auth, policy: Policy, hits: Counter[str]) -> App:
        """From the outside in: headers that every answer carries, limits, who it is, the routes."""
        settings = self._settings
        book = Book(self._managed, auth.tokens, self._watching.find, url=self._url_elsewhere, url_here=self.url)
        house = House(
            hub=self.hub,
            auth=auth,
            policy=policy,
            book=book,
            prefix=settings.path_prefix,
            hits=hits,
            history=self._archive.store,
            events=None if self._diary is None else self._diary.events,
            reservations=None if self._bookings is None else self._bookings.calendar,
            waiting=None if self._waiting is None else self._waiting.queue,
            place=HubPlace(
                listen=str(settings.listen),
                data_dir=str(self._data_dir),
                config=None if self._config is None else str(self._config),
                database=auth.database.place,
            ),
        )
        door = FrontDoor(house, grant_by(auth), make_keeper(settings, auth))
        # A limit knows routes by their paths: those below the prefix are the same ones.
        paths = [f"{prefix}{path}" for path in LOGINS for prefix in {"", settings.path_prefix.rstrip("/")}]
        proxies = settings.login.proxy.addresses
        return SafeApp(LimitedApp(door, settings.limits, proxies=proxies, hits=hits, logins=paths))

    async def _end(self) -> None:
        """Before the door closes: the hub's own agent, which would find it closed, and what is kept open: the streams,
        which never end, and the questions of those who wait."""
        if self._child is not None:
            await self._child.stop()
        self.hub.stream.close()
        if self._waiting is not None:
            await self._waiting.stop()

    def _begin(self, when_started: Callable[[Started], None], first_admin: str | None) -> None:
        arguments = ["--hub", self._url_of_child(), "--token-file", str(self._token_file)]
        if self._config is not None:
            arguments += ["--config", str(self._config)]
        if self._plan.demo_hosts is not None:
            self._child = ChildAgent([*arguments, *_simulate(self._plan.demo_hosts)])
            if not self._plan.demo_is_asked:
                self.hub.end_demo_on_first_real_report(self._end_demo)
        elif self._plan.watch_this_machine:
            self._child = ChildAgent(arguments)
        if self._child is not None:
            self._child.start()
        self._watching.start()
        if self._waiting is not None:
            self._waiting.start()
        self._archive.start(None if self._diary is None else self._diary.take_past)
        link = None if first_admin is None else f"{self._url_elsewhere or self.url}/#first-admin={first_admin}"
        when_started(Started(self.url, self._url_elsewhere, self._plan, self._token_file, self._config, link))

    def _url_of_child(self) -> str:
        """Where the hub's own agent reaches it: without TLS, as a certificate is not for this machine's own address."""
        return self.url if self._plain is None else _write_url("127.0.0.1", self._plain, "http")

    def _end_demo(self) -> None:
        log.info("a real host reports: the simulated fleet ends")
        self._archive.end_demo()
        if self._diary is not None:
            self._diary.end_demo()
        if self._bookings is not None:
            self._bookings.end_demo()
        if self._waiting is not None:
            self._waiting.end_demo()
        with contextlib.suppress(OSError):
            (self._data_dir / _HAD_REAL_HOSTS).touch()
        if self._child is not None:
            ending = asyncio.get_running_loop().create_task(self._child.stop())
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)


def _simulate(hosts: int) -> list[str]:
    """Large fleets report less often: hub, simulated agents and the browser usually share one small machine."""
    return ["--simulate", str(hosts), "--interval", f"{max(2.0, hosts / 250):g}s"]


class _Server(LimitedServer):
    """A server that tells when it has started and before it stops."""

    def __init__(
        self,
        app: App,
        wall: Wall,
        tls: Tls | None,
        when_started: Callable[[], None],
        before_end: Callable[[], Awaitable[None]],
        *,
        plain: Sequence[socket.socket],
    ) -> None:
        super().__init__(app, wall, tls, plain=plain, timeout_graceful_shutdown=5, backlog=2048)
        self._when_started = when_started
        self._before_end = before_end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._when_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._before_end()
        await super().shutdown(sockets)


async def tick_forever(stream: Stream, also: Callable[[], None]) -> None:
    """Publish once a second, and do what else is due. A tick that fails is logged, and the next one comes."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        try:
            stream.tick()
            also()
        except Exception:
            log.exception("a tick failed")
        due = max(due + TICK_SECONDS, loop.time())
        await asyncio.sleep(due - loop.time())


def _url_of(address: Address, listening: socket.socket, scheme: str) -> str:
    """The address for a browser on this machine."""
    host = address.host
    if host in _ANYWHERE:
        takes_ipv4 = listening.family == socket.AF_INET or not listening.getsockopt(
            socket.IPPROTO_IPV6, socket.IPV6_V6ONLY
        )
        host = "127.0.0.1" if takes_ipv4 else "::1"
    return _write_url(host, listening, scheme)


def _url_elsewhere(address: Address, listening: socket.socket, scheme: str) -> str | None:
    """The address for other machines, which know this one by its name; None where they cannot reach the hub."""
    if is_loopback(address.host):
        return None
    return _write_url(socket.gethostname() if address.host in _ANYWHERE else address.host, listening, scheme)


def _write_url(host: str, listening: socket.socket, scheme: str) -> str:
    port = listening.getsockname()[1]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def run_hub(server: HubServer, when_started: Callable[[Started], None]) -> None:
    """Serve in this thread until Ctrl-C or SIGTERM."""
    import uvloop  # noqa: PLC0415 - only the running hub needs it

    # A hub keeps hundreds of thousands of small objects that never form circles: looking through all of them often
    # would cost tens of milliseconds each time, in the middle of a tick.
    gc.freeze()
    gc.enable()
    # Each viewer and each agent is a descriptor, and the usual limit of 1,024 is soon used up.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gc.set_threshold(50_000, 20, 100)
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(server.serve(when_started))
