"""How each host is reached over SSH, from gpudeck's settings and ~/.ssh/config: routes, keys, trusted host keys.
Files are cached until they change. Host keys are looked up as ssh does: by the name in use, with its port unless
that is 22."""

import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import asyncssh
from msgspec import Struct

from gpudeck.model.errors import Refused
from gpudeck.model.settings import file_stamp
from gpudeck.model.target import Target
from gpudeck.sources.base import SshSettings

KEY_FILES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")

Offer = asyncssh.SSHKey | tuple[asyncssh.SSHKey, asyncssh.SSHCertificate]
KNOWN_HOSTS_FILES = (
    "~/.ssh/known_hosts",
    "~/.ssh/known_hosts2",
    "/etc/ssh/ssh_known_hosts",
    "/etc/ssh/ssh_known_hosts2",
)
_PORT = 22
KEEPALIVE_SECONDS = 15
# A reading costs the hub 2.3 ms of CPU with AES-GCM and 3.4 with ChaCha20, the library's preference.
_FAST_CIPHERS = "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"


class SshKeys(Struct, frozen=True):
    offers: tuple[Offer, ...] = ()
    names: tuple[str, ...] = ()
    locked: tuple[str, ...] = ()
    public: tuple[bytes, ...] = ()


class KeyRing:
    """Private keys, cached until their files change. Blocks: call it in a thread."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[object, SshKeys]] = {}

    def load(self, files: Iterable[str], *, must_exist: bool) -> SshKeys:
        found = [self._load(file, must_exist=must_exist) for file in files]
        return SshKeys(
            offers=tuple(offer for keys in found for offer in keys.offers),
            names=tuple(name for keys in found for name in keys.names),
            locked=tuple(name for keys in found for name in keys.locked),
            public=tuple(public for keys in found for public in keys.public),
        )

    def _load(self, file: str, *, must_exist: bool) -> SshKeys:
        try:
            path = Path(file).expanduser()
            signature = [file_stamp(path.with_name(path.name + suffix)) for suffix in ("", "-cert.pub", ".pub")]
            known = self._read.get(file)
            if known is None or known[0] != signature:
                known = self._read[file] = (signature, _read(path, file))
        except (OSError, RuntimeError) as error:
            if must_exist or not isinstance(error, FileNotFoundError | RuntimeError):
                reason = getattr(error, "strerror", None) or str(error)
                raise Refused(f"The key file {file} cannot be read: {reason}.", "Mend ssh.key_files.") from error
            return SshKeys()
        return known[1]


def _read(path: Path, name: str) -> SshKeys:
    written = path.read_bytes()
    try:
        key = asyncssh.import_private_key(written)
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        public = _read_public(path)
        if "passphrase" in str(error).lower():
            return SshKeys(locked=(name,), public=public)
        # A public key in place of a private one selects a key of the ssh-agent, as with ssh.
        if public and b"PRIVATE KEY" not in written:
            return SshKeys(names=(name,), public=public)
        raise Refused(f"{name} is no private key that can be used: {error}.") from error
    certificate = _read_certificate(path)
    offers: tuple[Offer, ...] = (key,) if certificate is None else ((key, certificate), key)
    return SshKeys(offers, (name,), (), (key.public_data,))


def _read_public(path: Path) -> tuple[bytes, ...]:
    for candidate in (f"{path}.pub", str(path)):
        try:
            return (asyncssh.read_public_key(candidate).public_data,)
        except (OSError, asyncssh.KeyImportError):
            continue
    return ()


def _read_certificate(path: Path) -> asyncssh.SSHCertificate | None:
    try:
        return asyncssh.read_certificate(f"{path}-cert.pub")
    except (OSError, asyncssh.KeyImportError):
        return None


def agent_socket() -> str | None:
    return os.environ.get("SSH_AUTH_SOCK") or None


class HostTrust(Struct, frozen=True):
    keys: tuple[asyncssh.SSHKey, ...] = ()
    authorities: tuple[asyncssh.SSHKey, ...] = ()
    revoked: tuple[asyncssh.SSHKey, ...] = ()


class KnownHosts:
    """The known hosts of some files, parsed again only if one of them changed."""

    def __init__(self, files: Iterable[str]) -> None:
        self.files = tuple(files)
        self._signature: object = None
        self._known = asyncssh.import_known_hosts("")

    def refresh(self) -> None:
        """Check the files. Blocks: call it in a thread. A missing file has no hosts."""
        texts = [_read_known_hosts(file) for file in self.files]
        if texts == self._signature:
            return
        known = asyncssh.import_known_hosts("")
        for line in "\n".join(texts).splitlines():
            try:
                known.load(line)
            except ValueError:
                continue  # ssh skips unreadable lines, too
        self._signature, self._known = texts, known

    def find(self, host: str, port: int) -> HostTrust:
        """The known keys of a host, without its address: a name is trusted, not where it leads today."""
        keys, authorities, revoked, *_ = self._known.match(entry_name(host, port), "", None)
        return HostTrust(tuple(keys), tuple(authorities), tuple(revoked))

    def add(self, host: str, port: int, key: asyncssh.SSHKey) -> None:
        """Add a new key to the first file. Raises OSError."""
        path = Path(self.files[0]).expanduser()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        line = f"{entry_name(host, port)} {key.export_public_key().decode().strip()}\n"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "rb+") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            file.write((b"\n" if size and file.read(1) != b"\n" else b"") + line.encode())
        self._known.load(line)


def entry_name(host: str, port: int) -> str:
    return host if port == _PORT else f"[{host}]:{port}"


def describe_key(key: asyncssh.SSHKey) -> str:
    return f"{key.get_fingerprint()}, {key.get_algorithm().removeprefix('ssh-')}"


def _read_known_hosts(file: str) -> str:
    try:
        return Path(file).expanduser().read_text(errors="replace")
    except (OSError, RuntimeError):
        return ""


class SshRoute(Struct, frozen=True):
    """How one host is reached. `options` are the library's; `jump` are the jump hosts, separated by commas."""

    options: asyncssh.SSHClientConnectionOptions
    known_hosts: KnownHosts
    keys: SshKeys
    password: str | None
    jump: str | None
    uses_agent: bool


class SshRoutes:
    """Finds routes and caches files. Blocks while it reads files: call it in threads."""

    def __init__(self, settings: SshSettings, password: str | None = None) -> None:
        self._settings = settings
        self._password = password
        self._lock = threading.Lock()
        self._config = _expand(settings.config_file or "~/.ssh/config")
        self._keys = KeyRing()
        self._known_hosts: dict[tuple[str, ...], KnownHosts] = {}
        self._options: dict[object, tuple[object, asyncssh.SSHClientConnectionOptions]] = {}

    def find(self, target: Target, *, is_jump: bool = False) -> SshRoute:
        """Raises Refused, or the library's error for an invalid configuration."""
        # One at a time, so that others use what one has read.
        with self._lock:
            options = self._read_options(target)
            keys, uses_agent = self._find_keys(target, options)
            return SshRoute(
                options=options,
                known_hosts=self._find_known_hosts(options),
                keys=keys,
                password=_read_password(target.password_file or self._settings.password_file) or self._password,
                jump=self._find_jump(target, options, is_jump=is_jump),
                uses_agent=uses_agent,
            )

    def _find_known_hosts(self, options: asyncssh.SSHClientConnectionOptions) -> KnownHosts:
        """Never None: even if ~/.ssh/config disables the check, host keys are verified."""
        files = tuple(self._settings.known_hosts)
        if not files:
            user, system = (options.config.get(name) for name in ("UserKnownHostsFile", "GlobalKnownHostsFile"))
            files = (
                *(cast("list[str]", user) or KNOWN_HOSTS_FILES[:2]),
                *(cast("list[str]", system) or KNOWN_HOSTS_FILES[2:]),
            )
        known_hosts = self._known_hosts.setdefault(files, KnownHosts(files))
        known_hosts.refresh()
        return known_hosts

    def _find_keys(self, target: Target, options: asyncssh.SSHClientConnectionOptions) -> tuple[SshKeys, bool]:
        named = [target.key_file] if target.key_file else self._settings.key_files
        configured = cast("list[str] | None", options.config.get("IdentityFile"))
        keys = self._keys.load(named or configured or KEY_FILES, must_exist=bool(named))
        is_limited = bool(named) or bool(options.config.get("IdentitiesOnly"))
        uses_agent = self._settings.agent and agent_socket() is not None and (bool(keys.public) or not is_limited)
        options.kwargs["agent_identities"] = list(keys.public) if is_limited else None
        return keys, uses_agent

    def _find_jump(self, target: Target, options: asyncssh.SSHClientConnectionOptions, *, is_jump: bool) -> str | None:
        """The setting is for hosts only: jump hosts, and hosts that are jump hosts themselves, are reached directly."""
        jump = target.jump or (None if is_jump else self._settings.jump)
        if jump and target.jump is None and parse_login(jump.split(",")[-1], "ssh.jump").host == target.host:
            return None
        jump = jump or cast("str | None", options.tunnel)
        return None if not jump or jump.lower() == "none" else jump

    def _read_options(self, target: Target) -> asyncssh.SSHClientConnectionOptions:
        """Read again if the configuration file changed."""
        try:
            stamp = file_stamp(self._config)
            if stamp is None and self._settings.config_file is not None:
                self._config.stat()
        except OSError as error:
            raise Refused(f"{error.filename} cannot be read: {error.strerror}.", "Mend ssh.config_file.") from error
        key = (target.host, target.port, target.user)
        kept = self._options.get(key)
        if kept is None or kept[0] != stamp:
            kept = self._options[key] = (
                stamp,
                self._make_options(target, [] if stamp is None else [str(self._config)]),
            )
        return kept[1]

    def _make_options(self, target: Target, config: list[str]) -> asyncssh.SSHClientConnectionOptions:
        settings = self._settings
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
            canonicalize_hostname=False,
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
        # The file has been read: options derived from these do not read it again.
        options.kwargs["config"] = ()
        return options


def parse_login(text: str, origin: str) -> Target:
    """`[user@]host[:port]`, with an IPv6 address in brackets if a port follows. Raises Refused."""
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


def _expand(file: str) -> Path:
    """For a user without a home, `~` stays as it is, which is no file."""
    try:
        return Path(file).expanduser()
    except RuntimeError:
        return Path(file)
