"""The private keys that a login is tried with. Each file is read once: an RSA key takes a quarter of a second."""

import os
from collections.abc import Iterable
from pathlib import Path

import asyncssh
from msgspec import Struct

from gpudeck.model.errors import Refused

DEFAULT_FILES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")

Offer = asyncssh.SSHKey | tuple[asyncssh.SSHKey, asyncssh.SSHCertificate]


class Keys(Struct, frozen=True):
    """What a login offers. `locked` are files with a passphrase, whose keys only an ssh-agent can use; `public` are the
    public halves of all of them, which tell the agent's keys apart."""

    offers: tuple[Offer, ...] = ()
    names: tuple[str, ...] = ()
    locked: tuple[str, ...] = ()
    public: tuple[bytes, ...] = ()


class KeyRing:
    """Remembers what it has read until the file changes. Blocks: call it in a thread."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[object, Keys]] = {}

    def load(self, files: Iterable[str], *, must_exist: bool) -> Keys:
        """Raises Refused for a file that is no private key or, if they must exist, cannot be read."""
        found = [self._load(file, must_exist=must_exist) for file in files]
        return Keys(
            offers=tuple(offer for keys in found for offer in keys.offers),
            names=tuple(name for keys in found for name in keys.names),
            locked=tuple(name for keys in found for name in keys.locked),
            public=tuple(public for keys in found for public in keys.public),
        )

    def _load(self, file: str, *, must_exist: bool) -> Keys:
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
            return Keys()
        return known[1]


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    return state.st_ino, state.st_mtime_ns, state.st_size


def _read(path: Path, name: str) -> Keys:
    written = path.read_bytes()
    try:
        key = asyncssh.import_private_key(written)
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        public = _read_public(path)
        if "passphrase" in str(error).lower():
            return Keys(locked=(name,), public=public)
        # A public key in place of a private one chooses among those of an ssh-agent, as with ssh.
        if public and b"PRIVATE KEY" not in written:
            return Keys(names=(name,), public=public)
        raise Refused(f"{name} is no private key that can be used: {error}.") from error
    certificate = _read_certificate(path)
    offers: tuple[Offer, ...] = (key,) if certificate is None else ((key, certificate), key)
    return Keys(offers, (name,), (), (key.public_data,))


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
