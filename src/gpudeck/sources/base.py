"""The interface of sources: a source reads one host for the hub. Also the settings of the built-in sources, without
dependencies of the hub.

Readings go to the hub in an envelope, as if the host had pushed them. `registry` maps each `via` to the module of its
sources; `poller` decides how often they are read and with which deadline.
"""

import os
from collections.abc import Callable
from typing import Annotated, Literal, Protocol

from msgspec import Meta, Struct, field

from gpudeck.collectors.base import DISPLAY_SERVERS, CollectorSettings
from gpudeck.collectors.redaction import Commands
from gpudeck.model.errors import Refused
from gpudeck.model.report import Report
from gpudeck.model.settings import Duration
from gpudeck.model.target import Target
from gpudeck.wire import VERSION, Envelope


class SshLoginRefused(Refused):
    """Neither a key nor a password was accepted."""


class FetchedReport(Struct, frozen=True):
    envelope: Envelope
    sent_at: float | None = None


class EnvelopeSequence:
    """Puts the reports of one host into envelopes, in order. `boot_id` is used if the host's own is unknown."""

    def __init__(self, target: Target, interval: float, boot_id: str = "unknown") -> None:
        self._target = target
        self._interval = interval
        self._boot_id = boot_id
        self._run_id = os.urandom(8).hex()
        self._sequence = 0

    def put(
        self,
        report: Report,
        collected_at: float,
        *,
        host: str | None = None,
        host_id: str = "",
        boot_id: str | None = None,
    ) -> Envelope:
        """`host` is the host's own name, used if it has no configured one."""
        self._sequence += 1
        return Envelope(
            version=VERSION,
            host=host or self._target.name,
            host_id=host_id,
            boot_id=self._boot_id if boot_id is None else boot_id,
            run_id=self._run_id,
            sequence=self._sequence,
            collected_at=collected_at,
            interval_seconds=self._interval,
            report=report,
        )


class Source(Protocol):
    """Reads one host repeatedly.

    `read` is never called again before it has returned, and may be cancelled. It raises Temporary if the host cannot be
    reached or answers invalid data, Refused for credentials or host keys, Absent if there is nothing to read. The
    message is shown as a problem of the host. Connections stay open until `close`, which may be called at any time;
    after a failed or cancelled `read` the next one starts afresh.
    """

    async def read(self, now: float) -> FetchedReport: ...

    async def close(self) -> None:
        return


MakeSource = Callable[[Target], Source]
"""Creates the source of a target without opening anything. Raises UsageError for a target that cannot be read that
way."""


class SourcePlugin(Struct, frozen=True, kw_only=True):
    """The object of a plugin's entry point: creates the source of a host; how often it is read and how long that may
    take, in seconds; and the default port."""

    make: MakeSource
    interval: float = 15.0
    deadline: float = 10.0
    port: int | None = None


class PullSettings(Struct, frozen=True):
    """How agents that listen are asked."""

    interval: Annotated[Duration, Meta(ge=0.5, le=3600)] = 5.0
    """How often each host is asked. Its agent reads the machine at an interval of its own."""
    deadline: Annotated[Duration, Meta(ge=0.1, le=60)] = 2.0
    """How long a host may take to answer."""
    port: Annotated[int, Meta(ge=1, le=65535)] = 7080
    """Where agents listen, unless a host says otherwise."""
    token_file: str | None = None
    """A file whose first line is the token that the agents want: a copy of theirs."""
    ca_file: str | None = None
    """Certificates (PEM) of the authority that signed those of hosts that are asked by https."""


class ScrapeSettings(Struct, frozen=True):
    """Hosts whose GPUs are read from a Prometheus exporter that they run already."""

    interval: Annotated[Duration, Meta(ge=1, le=3600)] = 15.0
    """How often each exporter is read. dcgm-exporter itself looks at its GPUs every 30 s by default."""
    deadline: Annotated[Duration, Meta(gt=0, le=60)] = 5.0
    """How long an exporter may take to answer."""
    port: Annotated[int, Meta(ge=1, le=65535)] = 9400
    """The exporter's port, where the host's own entry names none: 9400 is dcgm-exporter's."""
    path: Annotated[str, Meta(pattern=r"^/[^\s#]*$", extra={"config_words": "a path such as /metrics"})] = "/metrics"
    """The exporter's path, where the host's own entry names none."""
    ca_file: str | None = None
    """Certificates that are believed with https; those of the operating system if not given."""
    token_file: str | None = None
    """A file with a token that is sent as a bearer token, where the host's own entry names none."""
    commands: Commands = "redacted"
    """How much of a process's command line is kept: full, redacted (secrets hidden), its name, or none."""


class SshSettings(Struct, frozen=True):
    """How hosts are reached over SSH. What is not set here is as ~/.ssh/config says, host by host."""

    user: str | None = None
    """Who logs in; without it whom ~/.ssh/config names, else the user that the hub runs as."""
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    """The port of sshd; without it what ~/.ssh/config says, else 22."""
    key_files: list[str] = field(default_factory=list)
    """Private keys to log in with, and no others; without any those of ~/.ssh and of the ssh-agent."""
    agent: bool = True
    """Whether keys of the ssh-agent are used, where $SSH_AUTH_SOCK names one."""
    password_file: str | None = None
    """A file whose first line is the password, for hosts that take no key."""
    known_hosts: list[str] = field(default_factory=list)
    """Files with the host keys that are believed; without any ~/.ssh/known_hosts and /etc/ssh/ssh_known_hosts."""
    host_keys: Literal["strict", "accept-new"] = "strict"
    """What happens with a host key that no file has: strict refuses it, accept-new writes it to the first file."""
    config_file: str | None = None
    """The file to use in place of ~/.ssh/config; /dev/null for none."""
    jump: str | None = None
    """The host, or hosts with commas between, through which all others are reached: [user@]host[:port]."""
    interval: Annotated[Duration, Meta(ge=1.0, le=3600.0)] = 5.0
    """How often a host is read."""
    deadline: Annotated[Duration, Meta(ge=3.0, le=600.0)] = 10.0
    """How long one reading may take, the login included."""
    commands: Commands = "redacted"
    """How much of a process's command line is shown: full, redacted (secrets hidden), its name, or none."""
    display_servers: list[str] = field(default_factory=lambda: list(DISPLAY_SERVERS))
    """Programs that draw the desktop: with graphics alone on a GPU they do not make it busy."""

    def collector(self) -> CollectorSettings:
        return CollectorSettings(commands=self.commands, display_servers=self.display_servers)
