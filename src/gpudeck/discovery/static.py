"""Hosts that the operator names: in the configuration file, on a command line (`gpu01,ada@gpu[02-04,07]:2222`), and in
files with one host a line.

gpu[01-16]                 # a range
ada@gpu17:2222 rack=b3     # a user, a port, a label
[2001:db8::17]:9400
"""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from gpudeck.discovery.host_names import expand, quote, read_host_address
from gpudeck.discovery.inputs import (
    MAX_HOSTS,
    FileProvider,
    HostFindings,
    Labels,
    Provider,
    WatchedFile,
    bound_labels,
    find_path,
)
from gpudeck.model.errors import UsageError
from gpudeck.model.settings import Text
from gpudeck.model.target import REACH_FIELDS, SOURCES, Target, Via

_SEPARATORS = re.compile(r"[,\s]+(?![^\[\]]*\])")
"""Between hosts, not within the brackets of a range."""


class HostEntry(Struct, frozen=True):
    """A host that is to be watched, or a range of them."""

    config_shorthand: ClassVar[str] = "name"

    name: Annotated[str, Meta(min_length=1, extra={"config_words": "a host's name or a range such as gpu[01-16]"})]
    """The name of the host, or a range: gpu[01-16], gpu[1-4,7], rack[1-2]-gpu[01-16]. Zeros in front are kept."""
    via: Via = "ssh"
    """How it is read. `push`: by its own agent, it is only expected; `pull`: from its agent's port; `ssh`: without an
    agent; `scrape`: from a Prometheus exporter; the others: from a monitor that came before (see docs/migrate)."""
    address: Text | None = None
    """The address to connect to, if it is not the name."""
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    """The port; the usual one of that way if none is given."""
    user: Text | None = None
    """The user to log in as (ssh)."""
    key_file: Text | None = None
    """The private key (ssh)."""
    password_file: Text | None = None
    """A file whose first line is the password (ssh)."""
    jump: Text | None = None
    """The host through which it is reached (ssh)."""
    token_file: Text | None = None
    """A file whose first line is the token to show (pull, scrape)."""
    scheme: Literal["http", "https"] = "http"
    """Whether it is asked with or without TLS (pull, scrape)."""
    path: Annotated[str, Meta(pattern="^/", extra={"config_words": "a path that begins with /"})] | None = None
    """The path below its address, such as /metrics (pull, scrape)."""
    labels: Labels = field(default_factory=dict)
    """Shown next to the name, such as rack: b3."""

    def __post_init__(self) -> None:
        try:
            names = expand(self.name)
        except ValueError as error:
            raise ValueError(f"this name cannot be used: {error}") from None
        if self.address is not None and len(names) > 1:
            raise ValueError(f"address fits one host, and name means {len(names)}")
        if misplaced := [setting for setting in SOURCES[self.via].unused if self._is_set(setting)]:
            raise ValueError(f"{misplaced[0]} is of no use with `via: {self.via}`")

    def _is_set(self, setting: str) -> bool:
        return getattr(self, setting) not in {None, "http"}

    def targets(self, origin: str, *, is_operators: bool = False) -> list[Target]:
        reach = {setting: getattr(self, setting) for setting in REACH_FIELDS if self._is_set(setting)}
        return [
            Target(name=name, via=self.via, labels=self.labels, origin=origin, is_operators=is_operators, **reach)
            for name in expand(self.name)
        ]


def find_repeated_hosts(entries: list[HostEntry]) -> Iterator[tuple[int, str]]:
    """Entries that name a host which an earlier one has named, and those past the last host that is watched."""
    first: dict[str, int] = {}
    for index, entry in enumerate(entries):
        names = expand(entry.name)
        if repeated := next((name for name in names if name in first), None):
            yield index, f"{repeated} is named before, by hosts[{first[repeated]}]"
        first |= {name: index for name in names if name not in first}
        if len(first) > MAX_HOSTS:
            yield index, f"more than {MAX_HOSTS} hosts in all"
            return


Hosts = Annotated[list[HostEntry], Meta(extra={"config_check": find_repeated_hosts})]
"""The type of the setting `hosts`: a host may stand there once."""


class StaticHosts(Provider):
    """A provider of hosts that never change: those of the configuration file, or of an option. At least one."""

    pause = 3600.0

    def __init__(self, targets: Sequence[Target]) -> None:
        self.origin = targets[0].origin
        self._targets = list(targets)

    async def find(self) -> list[Target]:
        return self._targets


def read_option(text: str, origin: str, via: Via = "ssh") -> list[Target]:
    """The hosts that an option names, in its order. Raises UsageError, which begins with `origin`."""
    targets: dict[str, Target] = {}
    for word in filter(None, _SEPARATORS.split(text)):
        try:
            place = read_host_address(word)
            names = [place.host] if place.address else expand(place.host)
        except ValueError as error:
            raise UsageError(f"{origin}: {error}.") from error
        for name in names:
            targets[name] = Target(
                name=name,
                via=via,
                address=place.address,
                port=place.port,
                user=place.user,
                origin=origin,
                is_operators=True,
            )
    if not targets:
        raise UsageError(f"{origin} names no host.", "Write it as gpu01,gpu02 or gpu[01-16].")
    return list(targets.values())


class HostsFileSettings(Struct, frozen=True):
    """A file with one host a line. It is looked at each second."""

    config_shorthand: ClassVar[str] = "path"

    path: Text
    """The file; `~` is the home folder, a relative path begins in the folder where the hub was started."""
    via: Via = "ssh"
    """How the hosts in it are read."""


class HostsFile(FileProvider):
    """The hosts in one file, read again when it changes. An invalid line becomes a problem."""

    def __init__(self, settings: HostsFileSettings) -> None:
        super().__init__(settings.path)
        self._via = settings.via
        self._file: WatchedFile | None = None

    def _find(self) -> HostFindings:
        if self._file is None:
            self._file = WatchedFile(find_path(self.origin), self.origin)
        content = self._file.read_if_changed()
        return self._findings if content is None else read_hosts(content, self.origin, self._via)


def read_hosts(content: bytes, origin: str, via: Via) -> HostFindings:
    lines = content.decode("utf-8-sig", errors="replace").split("\n")
    return HostFindings().read(lines, lambda line: _read_line(line, origin, via), f"{origin}, line")


def _read_line(line: str, origin: str, via: Via) -> list[Target]:
    words = line.partition("#")[0].split()
    if not words:
        return []
    where = read_host_address(words[0])
    labels = bound_labels(dict(map(_read_label, words[1:])))
    # The operator writes this file, as gpudeck.yaml: its hosts may be anywhere.
    reach = Target(
        name="", via=via, address=where.address, port=where.port, user=where.user, labels=labels, is_operators=True
    )
    return [replace(reach, name=name, origin=origin) for name in expand(where.host)]


def _read_label(word: str) -> tuple[str, str]:
    name, sign, value = word.partition("=")
    if not name or not sign:
        raise ValueError(f"{quote(word)} is no label; write name=value")
    return name, value
