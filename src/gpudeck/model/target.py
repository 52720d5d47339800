"""A configured or discovered host, and how it is reached: what discovery finds and sources read."""

import ipaddress
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field

from gpudeck.model.plugins import find_plugins

_SSH = ("user", "key_file", "password_file", "jump")
_HTTP = ("token_file", "scheme", "path")
REACH_FIELDS = ("address", "port", *_SSH, *_HTTP)


class SourceKind(Struct, frozen=True):
    """`unused` are fields of a target that have no meaning for this source: setting one is a mistake. `step` is what
    `gpudeck hosts test` calls a reading. `lists_processes`: a reading without processes is a problem."""

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
"""From the best to the poorest; the last ones are those of the monitors that came before (see `compat`), and of
plugins."""
for _name in find_plugins("sources"):
    SOURCES.setdefault(_name, SourceKind((), _name, lists_processes=False))

if TYPE_CHECKING:
    Via = str
else:
    Via = Literal[tuple(SOURCES)]

WAYS: tuple[str, ...] = (*SOURCES, "vesta")
"""Where a host reports on two ways at once the earlier one here counts: it reports more, and sooner. No host can be
configured `via` vesta: its senders come by themselves."""
READ_WAYS = frozenset(SOURCES) - {"push"}
"""Those on which the hub reads the host: it is watched as long as it is configured."""


class Target(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One host to be watched. Two targets are equal when nothing about reaching the host differs.

    `name` is what people call the host, and what it is shown as. `origin` says who named it ("gpudeck.yaml", "--ssh",
    "consul gpu-nodes"), for messages. An empty `address` means that the name is the address. None anywhere means: as
    the settings of that source say. A target `via` push is expected, not read: the host itself has to report.

    `is_operators` says that the operator named it, in the hub's own files or on its command line: it may have any
    address. For all others `local_networks` are those networks of this machine, of its link and of cloud metadata in
    which it may be; None where that is not checked (see `fetch.addresses`).
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
        """What to connect to: a name or an address, IPv6 without brackets."""
        return self.address or self.name

    @property
    def is_named(self) -> bool:
        """Whether people gave it a name. A host of which they gave an address alone is called what it calls itself."""
        try:
            address = str(ipaddress.ip_address(self.host))
        except ValueError:
            return True
        return self.name != address and address.replace(":", "-").replace("%", "-") not in self.name

    def url(self, port: int, path: str) -> str:
        """Its address on the web, where the target itself says neither port nor path."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port or port}{self.path or path}"


class AddedHosts(Struct, frozen=True):
    """`names` are watched from now on. For hosts that report by themselves `command` has their tokens, shown only here:
    for one host it is the line to run there, which installs the agent, for several a line for each, to run where
    `ssh NAME` logs in. `token` is that of one host; `note` says what may still stand in the way."""

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
