"""The private keys that a login offers, and the host keys that are trusted.

Each key file is read once until it changes: an RSA key takes a quarter of a second. Host keys are looked up as ssh
does: by the name in use, with its port unless that is 22.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import asyncssh
from msgspec import Struct

from gpudeck.model.errors import Refused

KEY_FILES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")

Offer = asyncssh.SSHKey | tuple[asyncssh.SSHKey, asyncssh.SSHCertificate]
KNOWN_HOSTS_FILES = (
    "~/.ssh/known_hosts",
    "~/.ssh/known_hosts2",
    "/etc/ssh/ssh_known_hosts",
    "/etc/ssh/ssh_known_hosts2",
)
_PORT = 22


class SshKeys(Struct, frozen=True):
    """What a login offers. `locked` are files with a passphrase, whose keys only an ssh-agent can use; `public` are the
    public halves of all of them, which tell the agent's keys apart."""

    offers: tuple[Offer, ...] = ()
    names: tuple[str, ...] = ()
    locked: tuple[str, ...] = ()
    public: tuple[bytes, ...] = ()


class KeyRing:
    """Remembers what it has read until the file changes. Blocks: call it in a thread."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[object, SshKeys]] = {}

    def load(self, files: Iterable[str], *, must_exist: bool) -> SshKeys:
        """Raises Refused for a file that is no private key or, if they must exist, cannot be read."""
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
            signature = [_signature(path.with_name(path.name + suffix)) for suffix in ("", "-cert.pub", ".pub")]
            known = self._read.get(file)
            if known is None or known[0] != signature:
                known = self._read[file] = (signature, _read(path, file))
        except (OSError, RuntimeError) as error:
            if must_exist or not isinstance(error, FileNotFoundError | RuntimeError):
                reason = getattr(error, "strerror", None) or str(error)
                raise Refused(f"The key file {file} cannot be read: {reason}.", "Mend ssh.key_files.") from error
            return SshKeys()
        return known[1]


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    return state.st_ino, state.st_mtime_ns, state.st_size


def _read(path: Path, name: str) -> SshKeys:
    written = path.read_bytes()
    try:
        key = asyncssh.import_private_key(written)
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        public = _read_public(path)
        if "passphrase" in str(error).lower():
            return SshKeys(locked=(name,), public=public)
        # A public key in place of a private one chooses among those of an ssh-agent, as with ssh.
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
    """Where the ssh-agent listens, if there is one."""
    return os.environ.get("SSH_AUTH_SOCK") or None


class Trusted(Struct, frozen=True):
    """What the files say of one host: its keys, the authorities that may vouch for it, and what is revoked."""

    keys: tuple[asyncssh.SSHKey, ...] = ()
    authorities: tuple[asyncssh.SSHKey, ...] = ()
    revoked: tuple[asyncssh.SSHKey, ...] = ()


class KnownHosts:
    """The known hosts of some files, parsed again only after one of them changed."""

    def __init__(self, files: Iterable[str]) -> None:
        self.files = tuple(files)
        self._signature: object = None
        self._known = asyncssh.import_known_hosts("")

    def refresh(self) -> None:
        """Look at the files. Blocks: call it in a thread. A file that is not there has no hosts."""
        texts = [_read_known_hosts(file) for file in self.files]
        if texts == self._signature:
            return
        known = asyncssh.import_known_hosts("")
        for line in "\n".join(texts).splitlines():
            try:
                known.load(line)
            except ValueError:
                continue  # ssh leaves out what it cannot read, too
        self._signature, self._known = texts, known

    def find(self, host: str, port: int) -> Trusted:
        """What is known of a host, without its address: a name is trusted, not where it leads today."""
        keys, authorities, revoked, *_ = self._known.match(entry_name(host, port), "", None)
        return Trusted(tuple(keys), tuple(authorities), tuple(revoked))

    def add(self, host: str, port: int, key: asyncssh.SSHKey) -> None:
        """Write a new key to the first file. Raises OSError."""
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
    """The name of a host in a file of known hosts."""
    return host if port == _PORT else f"[{host}]:{port}"


def describe_key(key: asyncssh.SSHKey) -> str:
    """A key as people compare it: its fingerprint and its kind."""
    return f"{key.get_fingerprint()}, {key.get_algorithm().removeprefix('ssh-')}"


def _read_known_hosts(file: str) -> str:
    try:
        return Path(file).expanduser().read_text(errors="replace")
    except (OSError, RuntimeError):
        return ""
