"""A configured or discovered host, and how it is reached: what discovery finds and sources read."""

import ipaddress
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field

from gpudeck.model.plugins import find_plugins

_SSH = ("user", "key_file", "password_file", "jump")
_HTTP = ("token_file", "scheme", "path")
REACH_FIELDS = ("address", "port", *_SSH, *_HTTP)


class SourceKind(Struct, frozen=True):
    """`unused` are fields of a target without a meaning for this source: setting one is a mistake. `step` is the name
    of a reading in `gpudeck hosts test`. `lists_processes`: a reading without processes is a problem."""

    unused: tuple[str, ...]
    step: str
    lists_processes: bool = True


SOURCES: dict[str, SourceKind] = {
    "push": SourceKind(REACH_FIELDS, "report"),
    "pull": SourceKind(_SSH, "agent"),
    "ssh": SourceKind(_HTTP, "login"),
    "scrape": SourceKind(_SSH, "exporter", lists_processes=False),
    "gpu-cluster-status": SourceKind((*_SSH, "token_file"), "gpu-cluster-status"),
    "gpumonitor": SourceKind((*_SSH, "token_file"), "gpumonitor"),
    "gpu-monitor": SourceKind((*_SSH, "token_file"), "gpu-monitor"),
    "gpu-monitor-files": SourceKind(REACH_FIELDS, "gpu-monitor-files"),
}
"""From best to worst; last are those of the predecessors (see `compat`) and of plugins."""
for _name in find_plugins("sources"):
    SOURCES.setdefault(_name, SourceKind((), _name, lists_processes=False))

if TYPE_CHECKING:
    Via = str
else:
    Via = Literal[tuple(SOURCES)]

WAYS: tuple[str, ...] = (*SOURCES, "vesta")
"""If a host reports over two sources, the earlier one here counts: it reports more, and sooner. No host can be
configured `via` vesta, because its senders register themselves."""
READ_WAYS = frozenset(SOURCES) - {"push"}
"""The sources that the hub polls, as long as the host is configured."""


class Target(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One host to monitor. Equal targets are reached in the same way.

    `name` is the host's configured and displayed name. `origin` is who named it ("gpudeck.yaml", "--ssh", "consul
    gpu-nodes"), for messages. An empty `address` means that the name is the address. None means the default of that
    source's settings. A target `via` push is not polled: the host must report. `is_operators`: the operator named it,
    in the hub's own files or on its command line, so it may have any address. For others `local_networks` are the
    networks of this machine, of its link and of cloud metadata in which it may be; None if that is not checked (see
    `fetch.AddressGuard`).
    """

    name: str
    via: Via = "ssh"
    address: str = ""
    port: int | None = None
    user: str | None = None
    key_file: str | None = None
    password_file: str | None = None
    jump: str | None = None
    token_file: str | None = None
    scheme: Literal["http", "https"] = "http"
    path: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    origin: str = ""
    is_operators: bool = False
    local_networks: tuple[str, ...] | None = None

    @property
    def host(self) -> str:
        """The name or address to connect to, IPv6 without brackets."""
        return self.address or self.name

    @property
    def is_named(self) -> bool:
        """Whether it has a configured name. A host with only an address is shown under the name that it reports."""
        try:
            address = str(ipaddress.ip_address(self.host))
        except ValueError:
            return True
        return self.name != address and address.replace(":", "-").replace("%", "-") not in self.name

    def url(self, port: int, path: str) -> str:
        """Its URL, with these defaults for port and path."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port or port}{self.path or path}"


class AddedHosts(Struct, frozen=True):
    """`names` are monitored from now on. For hosts that push reports, `command` contains their tokens, shown only once:
    for one host the line to run there, which installs the agent; for several one line each, to run where `ssh NAME`
    logs in. `token` is that of one host; `note` says what may still be missing."""

    names: list[str]
    via: Via
    token: str | None = None
    command: str | None = None
    note: str | None = None


class RemovedHosts(Struct, frozen=True):
    """`count` hosts were removed, or would be; `names` are the first of them. `kept` more are named by a configuration
    file or by discovery, and can only be removed there."""

    count: int
    names: list[str]
    kept: int
