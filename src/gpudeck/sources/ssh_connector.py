"""Opens connections to hosts over SSH: as ~/.ssh/config says, through jump hosts, with host keys verified.

One connector serves all hosts of a hub. Jump hosts are shared: two hundred hosts behind one cost it one login. Files
are read in threads, each once until it changes; TCP connections are awaited apart from logins, so hosts that do not
answer hold up nobody's turn.
"""

import asyncio
import contextlib
import os
import socket
import time
from pathlib import Path
from typing import Any, cast

import asyncssh
from msgspec import Struct

from gpudeck.model.errors import PluginError, Refused
from gpudeck.model.target import Target
from gpudeck.sources.ssh_errors import Attempt, explain, home_as_tilde
from gpudeck.sources.ssh_host_keys import DEFAULT_FILES, KnownHosts, Trusted
from gpudeck.sources.ssh_keys import DEFAULT_FILES as KEY_FILES
from gpudeck.sources.ssh_keys import KeyRing, Keys, Offer, agent_socket
from gpudeck.sources.ssh_settings import SshSettings

KEEPALIVE_SECONDS = 15
_CONFIG_SECONDS = 60.0
_JUMPS_AT_MOST = 8
# Measured here: AES-GCM costs the hub half of what ChaCha20 does, which the library would rather take.
_FAST_CIPHERS = "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"


class Route(Struct, frozen=True):
    """How one host is reached, all files read. `options` are the library's, made from ~/.ssh/config."""

    options: asyncssh.SSHClientConnectionOptions
    known_hosts: KnownHosts
    keys: Keys
    password: str | None
    jump: str | None
    uses_agent: bool


class _FileKeys(list[Offer]):
    """Keys to offer. Never false: without any the library would look for the usual files by itself."""

    def __bool__(self) -> bool:
        return True


class _Client(asyncssh.SSHClient):
    """Says which host keys are believed, and remembers the one that was not."""

    def __init__(self, attempt: Attempt, known_hosts: KnownHosts, *, accept_new: bool) -> None:
        self._attempt = attempt
        self._known_hosts = known_hosts
        self._accept_new = accept_new

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Called for keys that no file has. A key that differs from a known one is never accepted."""
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
    """Makes connections. `password` is one that a person typed; it is kept in memory alone.

    Its methods raise PluginError and nothing else. `close` ends the shared jump hosts.
    """

    def __init__(self, settings: SshSettings, password: str | None = None) -> None:
        asyncssh.set_log_level("WARNING")  # the library tells of every channel, which is every reading
        self.settings = settings
        self._password = password
        self._keys = KeyRing()
        self._known_hosts: dict[tuple[str, ...], KnownHosts] = {}
        self._options: dict[object, tuple[object, asyncssh.SSHClientConnectionOptions]] = {}
        self._handshakes = asyncio.Semaphore(settings.handshakes)
        self._jumps: dict[tuple[str, ...], asyncssh.SSHClientConnection] = {}
        self._locks: dict[tuple[str, ...], asyncio.Lock] = {}

    async def open(self, target: Target) -> asyncssh.SSHClientConnection:
        """A connection to the host. The caller closes it, and gives it a deadline."""
        return await self._open(target, None, ())

    async def close(self) -> None:
        jumps = [self._jumps.pop(key) for key in reversed(list(self._jumps))]
        for connection in jumps:
            await end(connection)

    async def _open(
        self,
        target: Target,
        via: asyncssh.SSHClientConnection | None,
        behind: tuple[str, ...],
        *,
        is_jump: bool = False,
    ) -> asyncssh.SSHClientConnection:
        """`behind` are the jump hosts before it, which `via` leads through."""
        attempt = Attempt(target.name, target.host, target.port or 22, target.user or "", is_jump=is_jump)
        try:
            route = await asyncio.to_thread(self._plan, target)
            if via is None and route.jump:
                via, behind = await self._reach(route.jump, behind)
            self._describe(attempt, route, behind[-1] if via is not None else None)
            return await self._connect(route, via, attempt)
        except PluginError:
            raise
        except Exception as error:
            raise explain(error, attempt) from error

    def _describe(self, attempt: Attempt, route: Route, through: str | None) -> None:
        options = route.options
        attempt.host, attempt.port, attempt.user = options.host, options.port, options.username
        attempt.through, attempt.keys = through, route.keys
        attempt.known_hosts = home_as_tilde(route.known_hosts.files[0])
        attempt.has_password = route.password is not None
        attempt.uses_agent = route.uses_agent
        alias = options.host_key_alias
        attempt.known_as = (alias, 22) if alias else (options.host, options.port)
        attempt.trusted = route.known_hosts.find(*attempt.known_as)

    async def _connect(
        self, route: Route, via: asyncssh.SSHClientConnection | None, attempt: Attempt
    ) -> asyncssh.SSHClientConnection:
        options = route.options
        sock = None
        if via is None and not options.proxy_command:
            sock = await _dial(options.host, options.port, options.family, options.local_addr)
        try:
            async with self._handshakes:
                return await asyncssh.connect(
                    options.orig_host,
                    options.port,
                    sock=sock,
                    tunnel=via or cast("Any", None),
                    options=options,
                    client_factory=lambda: _Client(
                        attempt, route.known_hosts, accept_new=self.settings.host_keys == "accept-new"
                    ),
                    known_hosts=lambda *_: _as_lists(attempt.trusted),
                    client_keys=_FileKeys(route.keys.offers),
                    agent_path=agent_socket() if route.uses_agent else None,
                    password=route.password,
                )
        except BaseException:
            if sock is not None:
                sock.close()
            raise

    async def _reach(self, jump: str, behind: tuple[str, ...]) -> tuple[asyncssh.SSHClientConnection, tuple[str, ...]]:
        """The last of the jump hosts, one behind the other; those that are connected already are used."""
        via: asyncssh.SSHClientConnection | None = None
        chain = behind
        for word in filter(None, (word.strip() for word in jump.split(","))):
            chain = (*chain, word)
            if len(chain) > _JUMPS_AT_MOST or word in behind:
                raise Refused(f"The jump hosts lead in a circle: {' → '.join(chain)}.", "Mend ProxyJump.")
            via = await self._jump(word, via, chain)
        if via is None:
            raise Refused(f"ProxyJump names no host: {jump!r}.")
        return via, chain

    async def _jump(
        self, word: str, via: asyncssh.SSHClientConnection | None, chain: tuple[str, ...]
    ) -> asyncssh.SSHClientConnection:
        async with self._locks.setdefault(chain, asyncio.Lock()):
            connection = self._jumps.get(chain)
            if connection is None or connection.is_closed():
                connection = await self._open(parse_login(word, "ProxyJump"), via, chain, is_jump=True)
                self._jumps[chain] = connection
            return connection

    def _plan(self, target: Target) -> Route:
        """Blocks: it reads files."""
        settings, options = self.settings, self._read_options(target)
        files = settings.known_hosts or _config_files(options, "UserKnownHostsFile", "GlobalKnownHostsFile")
        known_hosts = self._known_hosts.setdefault(tuple(files), KnownHosts(files))
        known_hosts.refresh()
        named = [target.key_file] if target.key_file else settings.key_files
        files = named or cast("list[str]", options.config.get("IdentityFile") or KEY_FILES)
        keys = self._keys.load(files, must_exist=bool(named))
        only = bool(named) or bool(options.config.get("IdentitiesOnly"))
        uses_agent = settings.agent and agent_socket() is not None and (bool(keys.public) or not only)
        if uses_agent and only:
            options.kwargs["agent_identities"] = list(keys.public)
        jump = target.jump or settings.jump or options.tunnel
        return Route(
            options=options,
            known_hosts=known_hosts,
            keys=keys,
            password=_read_password(target.password_file or settings.password_file) or self._password,
            jump=None if jump in {None, "none"} or target.jump == "none" else cast("str", jump),
            uses_agent=uses_agent,
        )

    def _read_options(self, target: Target) -> asyncssh.SSHClientConnectionOptions:
        """Made again when the file of the configuration changed, or an included one may have."""
        file = Path(self.settings.config_file or "~/.ssh/config").expanduser()
        signature = (_changed_at(file), int(time.monotonic() / _CONFIG_SECONDS))
        key = (target.host, target.port, target.user)
        kept = self._options.get(key)
        if kept is None or kept[0] != signature:
            exists = self.settings.config_file is not None or os.access(file, os.R_OK)
            kept = self._options[key] = (signature, self._make_options(target, [str(file)] if exists else []))
        return kept[1]

    def _make_options(self, target: Target, config: list[str]) -> asyncssh.SSHClientConnectionOptions:
        settings = self.settings
        given: dict[str, Any] = {"username": target.user or settings.user, "port": target.port or settings.port}
        options = asyncssh.SSHClientConnectionOptions(
            config=config,
            host=target.host,
            **{name: value for name, value in given.items() if value is not None},
            known_hosts=b"",
            client_keys=None,
            send_env=[],
            env={},
            agent_forwarding=False,
            x11_forwarding=False,
            request_pty=False,
            gss_auth=False,
            gss_kex=False,
            host_based_auth=False,
            x509_trusted_certs=None,
            compression_algs=["none"],
            encoding=None,
            connect_timeout=settings.deadline,
            login_timeout=settings.deadline,
            keepalive_interval=KEEPALIVE_SECONDS,
        )
        if options.config.get("Ciphers") is None:
            options.kwargs["encryption_algs"] = _FAST_CIPHERS
        # The file has been read: making options out of these does not read it again.
        options.kwargs["config"] = ()
        return options


def parse_login(text: str, origin: str) -> Target:
    """`[user@]host[:port]`, with an IPv6 address in brackets if a port follows it. Raises Refused."""
    user, _, place = text.strip().rpartition("@")
    if place.startswith("["):
        host, _, rest = place[1:].partition("]")
        port = rest.removeprefix(":")
    elif place.count(":") == 1:
        host, _, port = place.partition(":")
    else:
        host, port = place, ""
    is_port = not port or (port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 65536)
    if not host or not is_port or host.startswith("-"):
        raise Refused(f"{origin}: {text!r} is not [user@]host[:port].")
    return Target(name=host, port=int(port) if port else None, user=user or None, origin=origin)


async def end(connection: asyncssh.SSHClientConnection) -> None:
    """Close a connection, politely for a second and then at once."""
    connection.close()
    with contextlib.suppress(TimeoutError, OSError, asyncssh.Error):
        async with asyncio.timeout(1.0):
            await connection.wait_closed()
            return
    connection.abort()


async def _dial(host: str, port: int, family: int, local_address: tuple[str, int] | None) -> socket.socket:
    """A TCP connection, to the first of the host's addresses that takes it. Raises OSError of the last."""
    loop = asyncio.get_running_loop()
    failure = OSError("it has no address")
    for kind, _, protocol, _, address in await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM):
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


def _as_lists(trusted: Trusted) -> Any:
    """As the library wants it. An empty list would make it take no look at all at what is shown: it is asked anyway."""
    return list(trusted.keys), list(trusted.authorities), list(trusted.revoked)


def _config_files(options: asyncssh.SSHClientConnectionOptions, *names: str) -> list[str]:
    """The files of known hosts, as the configuration has them, else the usual ones."""
    user, system = (options.config.get(name) for name in names)
    chosen = [
        *(cast("list[str]", user) if user else DEFAULT_FILES[:2]),
        *(cast("list[str]", system) if system else DEFAULT_FILES[2:]),
    ]
    return [file for file in chosen if file.lower() != "none"]


def _read_password(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        lines = Path(file).expanduser().read_text().splitlines()
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise Refused(f"The password file {file} cannot be read: {reason}.") from error
    if not lines or not lines[0]:
        raise Refused(f"The password file {file} is empty.", "Its first line has to be the password.")
    return lines[0]


def _changed_at(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
