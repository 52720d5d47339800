"""Errors of SSH logins as one short sentence and the next step."""

import errno
import logging
import shlex
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncssh
from msgspec import Struct

from gpudeck.collectors.redaction import clean
from gpudeck.model.errors import PluginError, Refused, Temporary, Wrong
from gpudeck.sources.base import SshLoginRefused
from gpudeck.sources.ssh_config import HostTrust, SshKeys, describe_key, entry_name

log = logging.getLogger(__name__)

_SHOWN = 200
_PORT = 22
_CHANNEL_CODES = {
    1: "it is administratively prohibited",
    2: "the connection failed",
    3: "this kind of channel is unknown there",
    4: "it is short of resources",
}
"""Reasons of RFC 4254, section 5.1: the text that the other side adds is not shown."""
_NO_ROUTE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.EADDRNOTAVAIL}


class Attempt(Struct):
    """A login attempt with everything that its error message needs. `name` is the display name of the host; `known_as`
    is its name and port in the known-hosts files, `trusted` are their keys, `offered` is the rejected key, `note` why
    it could not be saved."""

    name: str
    host: str
    port: int
    user: str
    through: str | None = None
    is_jump: bool = False
    keys: SshKeys = SshKeys()
    uses_agent: bool = False
    known_as: tuple[str, int] = ("", 22)
    trusted: HostTrust = HostTrust()
    known_hosts: str = "~/.ssh/known_hosts"
    has_password: bool = False
    offered: asyncssh.SSHKey | None = None
    note: str | None = None
    connection: asyncssh.SSHClientConnection | None = None

    @property
    def is_sshd(self) -> bool:
        """Whether the other end identified itself as SSH; true if nothing was connected yet."""
        return self.connection is None or bool(self.connection.get_extra_info("server_version"))

    @property
    def place(self) -> str:
        """The host's name in a sentence, with its address if that differs."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        address = self.host if self.port == _PORT else f"{host}:{self.port}"
        shown = address if self.host == self.name else f"{self.name} ({address})"
        return f"the jump host {shown}" if self.is_jump else shown

    @property
    def login(self) -> str:
        port = [] if self.port == _PORT else ["-p", str(self.port)]
        jump = ["-J", self.through] if self.through else []
        return shlex.join(["ssh", *jump, *port, f"{self.user}@{self.host}"])


def explain(error: Exception, attempt: Attempt) -> PluginError:
    return next(words(error, attempt) for kind, words in _WORDS if isinstance(error, kind))


def quote(text: str) -> str:
    return " ".join(clean(text).split())[:_SHOWN].rstrip(".")


def home_as_tilde(path: str) -> str:
    try:
        home = str(Path.home())
    except RuntimeError:
        return path
    return f"~{path.removeprefix(home)}" if path.startswith(f"{home}/") else path


def _explain_host_key(error: Any, attempt: Attempt) -> PluginError:
    place, shown, trusted = _begin(attempt.place), attempt.offered, attempt.trusted
    if attempt.note:
        return Refused(attempt.note)
    if shown is None or shown in trusted.revoked:
        return Refused(f"{place} shows a host key that cannot be believed: {quote(str(error))}.")
    if trusted.keys:
        old = " or ".join(describe_key(key) for key in trusted.keys)
        return Refused(
            f"{place} has another host key than before: it was {old} and is {describe_key(shown)}. "
            "Either the host was installed anew, or the connection is intercepted.",
            f"If it is right: {forget(attempt)}, then {attempt.login} once.",
        )
    scan = ["ssh-keyscan", *([] if attempt.port == _PORT else ["-p", str(attempt.port)]), attempt.host]
    by_scan = "" if attempt.through else f"{_make_folder(attempt)}{shlex.join(scan)} >> {attempt.known_hosts}  or  "
    return Refused(
        f"{place}'s host key is not known ({describe_key(shown)}).",
        f"If it is the right one: {by_scan}{attempt.login} once.",
    )


def _make_folder(attempt: Attempt) -> str:
    """The command that must come first if the folder of the known hosts does not exist."""
    folder = attempt.known_hosts.rpartition("/")[0]
    try:
        is_there = not folder or Path(folder).expanduser().is_dir()
    except (OSError, RuntimeError):
        is_there = True  # it could not be made
    return "" if is_there else f"mkdir -p {folder} && "


def forget(attempt: Attempt) -> str:
    name = entry_name(*attempt.known_as)
    quoted = f"'{name}'" if "[" in name else shlex.quote(name)
    is_usual = attempt.known_hosts == "~/.ssh/known_hosts"
    return f"ssh-keygen -R {quoted}{'' if is_usual else f' -f {attempt.known_hosts}'}"


def _explain_denial(_: Any, attempt: Attempt) -> PluginError:
    keys = attempt.keys
    tried = [*keys.names, *(["those of the ssh-agent"] if attempt.uses_agent else [])]
    ways = [f"keys tried: {', '.join(tried)}" if tried else "no key was there to try"]
    if keys.locked:
        ways.append(f"not usable without their passphrase: {', '.join(keys.locked)}")
    if attempt.has_password:
        ways.append("the password was not accepted either")
    message = f"{_begin(attempt.place)} does not let {attempt.user} in ({'; '.join(ways)})."
    if keys.locked and not keys.names:
        return SshLoginRefused(message, f"Unlock the key first: ssh-add {keys.locked[0]}")
    first = "" if tried or keys.locked else "Make a key: ssh-keygen -t ed25519  and then: "
    if attempt.through and not attempt.is_jump:
        return SshLoginRefused(
            message, f"{first}Put a public key into that user's ~/.ssh/authorized_keys; try it with: {attempt.login}"
        )
    port = [] if attempt.port == _PORT else ["-p", str(attempt.port)]
    install = shlex.join(["ssh-copy-id", *port, f"{attempt.user}@{attempt.host}"])
    return SshLoginRefused(message, f"{first or 'Install a key: '}{install}")


def _explain_channel(error: Any, attempt: Attempt) -> PluginError:
    said, place = _CHANNEL_CODES.get(error.code, f"code {error.code}"), _begin(attempt.place)
    log.debug("%s: %s", place, quote(error.reason))
    if attempt.through:
        return Temporary(f"{place} cannot be reached from the jump host {attempt.through}: {said}.")
    return Temporary(f"{place} opens no session: {said}.", "Look at MaxSessions in its sshd_config.")


def _explain_exchange(error: Any, attempt: Attempt) -> PluginError:
    said, place = quote(error.reason), _begin(attempt.place)
    if attempt.trusted.keys and "host key" in error.reason:
        old = " or ".join(describe_key(key) for key in attempt.trusted.keys)
        hint = f"If that is right: {forget(attempt)}, then {attempt.login} once."
        return Refused(f"{place} no longer has a host key of the known kind ({old}).", hint)
    return Temporary(f"{place} and the hub have no way of encryption in common: {said}.")


def _explain_end(error: Any, attempt: Attempt) -> PluginError:
    place = _begin(attempt.place)
    if "Too many authentication failures" in error.reason:
        hint = "Name the one that fits: ssh.key_files, or IdentityFile and IdentitiesOnly in ~/.ssh/config."
        return Refused(f"{place} gave up before the right key was tried: too many keys were offered.", hint)
    # The other side's text goes only to the log, because every reader of the hub sees the message.
    log.debug("%s: %s", place, quote(error.reason))
    is_silent = isinstance(error, asyncssh.ConnectionLost)
    return _explain_closing(attempt, "" if is_silent else f" ({type(error).__name__})")


def _explain_closing(attempt: Attempt, said: str = "") -> PluginError:
    """A connection closed before the greeting may not be an sshd at all."""
    if attempt.is_sshd:
        return Temporary(f"{_begin(attempt.place)} closed the connection{said}.")
    reason = f"another program listens on port {attempt.port}, or sshd takes no more logins (MaxStartups)"
    return Temporary(f"{_begin(attempt.place)} does not greet as an sshd does: {reason}.")


def _explain_network(error: Any, attempt: Attempt) -> PluginError:
    place = _begin(attempt.place)
    if isinstance(error, socket.gaierror):
        return Temporary(f"The name {attempt.host} is not known to the name service.", "Check it: ssh " + attempt.host)
    if isinstance(error, ConnectionRefusedError):
        return Temporary(f"{place} refuses connections: no sshd listens on port {attempt.port}.")
    if isinstance(error, TimeoutError):
        return Temporary(f"{place} does not answer: it is down, or a firewall is in between.")
    if error.errno in _NO_ROUTE:
        return Temporary(f"There is no route to {attempt.place}: it is down, or the network is.")
    if isinstance(error, ConnectionError):
        return _explain_closing(attempt)
    return Temporary(f"{place} cannot be reached: {quote(error.strerror or str(error)).lower()}.")


def _begin(place: str) -> str:
    return place.replace("the ", "The ", 1) if place.startswith("the jump host") else place


# The first match counts.
_WORDS: tuple[tuple[type[Exception], Callable[[Any, Attempt], PluginError]], ...] = (
    (PluginError, lambda error, _: error),
    (asyncssh.HostKeyNotVerifiable, _explain_host_key),
    (asyncssh.PermissionDenied, _explain_denial),
    (asyncssh.KeyExchangeFailed, _explain_exchange),
    (asyncssh.ChannelOpenError, _explain_channel),
    (asyncssh.Error, _explain_end),
    (OSError, _explain_network),
    (
        asyncssh.ConfigParseError,
        lambda error, _: Refused(f"The SSH configuration cannot be read: {error}.", "Mend that file."),
    ),
    (ValueError, lambda error, at: Refused(f"No login to {at.place} is possible: {quote(str(error))}.")),
    (
        Exception,
        lambda error, at: Wrong(
            f"Reading {at.place} failed in an unforeseen way: {type(error).__name__}: {quote(str(error))}."
        ),
    ),
)
