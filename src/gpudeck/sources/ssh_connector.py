"""Opens connections to hosts over SSH: as ~/.ssh/config says, through shared jump hosts, with host keys verified. TCP
connections are awaited apart from logins, so hosts that do not answer block no other host."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any, cast

import asyncssh
import msgspec
from msgspec import Struct

from gpudeck.fetch import AddressGuard, look_up
from gpudeck.model.errors import PluginError, Refused, Temporary
from gpudeck.model.target import Target
from gpudeck.sources.base import SshSettings
from gpudeck.sources.ssh_config import KnownHosts, Offer, SshRoute, SshRoutes, agent_socket, parse_login
from gpudeck.sources.ssh_errors import Attempt, explain, home_as_tilde

_MAX_JUMPS = 8
_LOGINS_AT_ONCE = 32  # each costs the hub some milliseconds of CPU
_NO_LOGIN = "takes the connection, but no login is finished in time: it is overloaded, or hangs."


class Jump(Struct, frozen=True):
    name: str
    connection: asyncssh.SSHClientConnection


class _FileKeys(list[Offer]):
    """The keys to offer. Always true: without keys the library would look for the usual files itself."""

    def __bool__(self) -> bool:
        return True


class _SshClient(asyncssh.SSHClient):
    def __init__(self, attempt: Attempt, known_hosts: KnownHosts, *, accept_new: bool) -> None:
        self._attempt = attempt
        self._known_hosts = known_hosts
        self._accept_new = accept_new

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self._attempt.connection = conn

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Called for keys that no file contains. A key that differs from a known one is never accepted."""
        self._attempt.offered = key
        if not self._accept_new or self._attempt.trusted.keys:
            return False
        try:
            self._known_hosts.add(*self._attempt.known_as, key)
        except (OSError, RuntimeError) as error:
            self._attempt.note = f"The new host key cannot be written to {self._attempt.known_hosts}: {error}."
            return False
        return True


class Connector:
    """Opens connections. A typed `password` is kept only in memory. Raises only PluginError."""

    def __init__(self, settings: SshSettings, password: str | None = None) -> None:
        asyncssh.set_log_level("WARNING")  # the library logs every channel, which is every reading
        self._settings = settings
        self._routes = SshRoutes(settings, password)
        self._handshakes = asyncio.Semaphore(_LOGINS_AT_ONCE)
        self._jumps: dict[tuple[str, ...], asyncssh.SSHClientConnection] = {}
        self._locks: dict[tuple[str, ...], asyncio.Lock] = {}

    async def close(self) -> None:
        jumps = [self._jumps.pop(key) for key in reversed(list(self._jumps))]
        for connection in jumps:
            await end(connection)

    async def open(
        self, target: Target, finish_at: float, before: Jump | None = None, chain: tuple[str, ...] = ()
    ) -> asyncssh.SSHClientConnection:
        """A connection to the host, opened before that time of the event loop. The caller closes it. `before` is the
        jump host to use, if known; `chain` is the path to a jump host."""
        attempt = Attempt(target.name, target.host, target.port or 22, target.user or "", is_jump=bool(chain))
        try:
            route = await asyncio.to_thread(self._routes.find, target, is_jump=bool(chain))
            if before is None and route.jump:
                # A jump host named by the host itself is no more trusted than the host.
                networks = target.local_networks if target.jump else None
                before = await self._reach(route.jump, chain, finish_at, networks)
            self._describe(attempt, route, before)
            guard = AddressGuard.of(target)
            return await self._connect(route, before.connection if before else None, attempt, finish_at, guard)
        except PluginError:
            raise
        except Exception as error:
            raise explain(error, attempt) from error

    def _describe(self, attempt: Attempt, route: SshRoute, before: Jump | None) -> None:
        options = route.options
        attempt.host, attempt.port, attempt.user = options.host, options.port, options.username
        attempt.through, attempt.keys = before.name if before else None, route.keys
        attempt.known_hosts = home_as_tilde(route.known_hosts.files[0])
        attempt.has_password = route.password is not None
        attempt.uses_agent = route.uses_agent
        alias = options.host_key_alias
        attempt.known_as = (alias, 22) if alias else (options.host, options.port)
        attempt.trusted = route.known_hosts.find(*attempt.known_as)

    async def _connect(
        self,
        route: SshRoute,
        via: asyncssh.SSHClientConnection | None,
        attempt: Attempt,
        finish_at: float,
        guard: AddressGuard | None,
    ) -> asyncssh.SSHClientConnection:
        options = route.options
        sock = None
        if via is None and not options.proxy_command:
            async with asyncio.timeout_at(finish_at):
                sock = await dial(options.host, options.port, options.family, options.local_addr, guard)
        try:
            async with self._turn(attempt, finish_at), _within(finish_at, f"{attempt.place} {_NO_LOGIN}"):
                return await self._log_in(route, sock, via, attempt)
        except BaseException:
            if sock is not None:
                sock.close()
            raise

    async def _log_in(
        self, route: SshRoute, sock: socket.socket | None, via: asyncssh.SSHClientConnection | None, attempt: Attempt
    ) -> asyncssh.SSHClientConnection:
        accept_new = self._settings.host_keys == "accept-new"
        return await asyncssh.connect(
            route.options.orig_host,
            route.options.port,
            sock=sock,
            tunnel=via or cast("Any", None),
            options=route.options,
            # Repeated, because `Match final` in a configuration makes the library forget what it has read.
            username=route.options.username,
            proxy_command=route.options.proxy_command,
            client_factory=lambda: _SshClient(attempt, route.known_hosts, accept_new=accept_new),
            known_hosts=lambda *_: (
                list(attempt.trusted.keys),
                list(attempt.trusted.authorities),
                list(attempt.trusted.revoked),
            ),
            server_host_key_algs=_choose_host_keys(route, attempt),
            client_keys=_FileKeys(route.keys.offers),
            agent_path=agent_socket() if route.uses_agent else None,
            password=route.password,
        )

    @contextlib.asynccontextmanager
    async def _turn(self, attempt: Attempt, finish_at: float) -> AsyncIterator[None]:
        waiting = f"{attempt.place} waits for its turn: {_LOGINS_AT_ONCE} logins are under way at once."
        async with _within(finish_at, waiting):
            await self._handshakes.acquire()
        try:
            yield
        finally:
            self._handshakes.release()

    async def _reach(
        self, jump: str, chain: tuple[str, ...], finish_at: float, networks: tuple[str, ...] | None
    ) -> Jump:
        reached: Jump | None = None
        for word in filter(None, (word.strip() for word in jump.split(","))):
            if len(chain) >= _MAX_JUMPS or word in chain:
                raise Refused(f"The jump hosts lead in a circle: {' → '.join((*chain, word))}.", "Mend ProxyJump.")
            chain = (*chain, word)
            reached = Jump(word, await self._jump(word, reached, chain, finish_at, networks))
        if reached is None:
            raise Refused(f"ProxyJump names no host: {jump!r}.")
        return reached

    async def _jump(
        self, word: str, before: Jump | None, chain: tuple[str, ...], finish_at: float, networks: tuple[str, ...] | None
    ) -> asyncssh.SSHClientConnection:
        async with self._locks.setdefault(chain, asyncio.Lock()):
            connection = self._jumps.get(chain)
            if connection is None or connection.is_closed():
                login = msgspec.structs.replace(parse_login(word, "ProxyJump"), local_networks=networks)
                connection = await self.open(login, finish_at, before, chain)
                self._jumps[chain] = connection
            return connection


async def end(connection: asyncssh.SSHClientConnection) -> None:
    connection.close()
    with contextlib.suppress(TimeoutError, OSError, asyncssh.Error):
        async with asyncio.timeout(1.0):
            await connection.wait_closed()
            return
    connection.abort()


@contextlib.asynccontextmanager
async def _within(finish_at: float, otherwise: str) -> AsyncIterator[None]:
    """Raises Temporary with this message when the time is over."""
    try:
        async with asyncio.timeout_at(finish_at):
            yield
    except TimeoutError as error:
        raise Temporary(otherwise) from error


async def dial(
    host: str, port: int, family: int, local_address: tuple[str, int] | None, guard: AddressGuard | None
) -> socket.socket:
    """A TCP connection to the first of the host's addresses that accepts it. Raises the last OSError, and Refused."""
    loop = asyncio.get_running_loop()
    failure = OSError("it has no address")
    for kind, _, protocol, _, address in await look_up(host, port):
        if family not in {socket.AF_UNSPEC, kind}:
            continue
        if guard is not None:
            guard.check(str(address[0]))
        sock = socket.socket(kind, socket.SOCK_STREAM, protocol)
        try:
            sock.setblocking(False)
            if local_address:
                sock.bind(local_address)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure


def _choose_host_keys(route: SshRoute, attempt: Attempt) -> Any:
    """The kinds of host key to request: no certificates if no CA is known, because the library would not fall back to
    the plain key."""
    is_configured = route.options.config.get("HostKeyAlgorithms") is not None
    return () if is_configured or attempt.trusted.authorities else "-*-cert-v01@openssh.com"
