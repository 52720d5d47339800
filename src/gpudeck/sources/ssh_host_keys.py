"""Which host keys are believed. Looked up as ssh does: by the name in use, with its port unless that is 22."""

import os
from collections.abc import Iterable
from pathlib import Path

import asyncssh
from msgspec import Struct

DEFAULT_FILES = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
_PORT = 22


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
        texts = [_read(file) for file in self.files]
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


def describe(key: asyncssh.SSHKey) -> str:
    """A key as people compare it: its fingerprint and its kind."""
    return f"{key.get_fingerprint()}, {key.get_algorithm().removeprefix('ssh-')}"


def _read(file: str) -> str:
    try:
        return Path(file).expanduser().read_text(errors="replace")
    except (OSError, RuntimeError):
        return ""
