"""The hosts that the configuration file itself names, and those of a command line: `gpu01,ada@gpu[02-04,07]:2222`."""

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct, field

from gpudeck.discovery.base import MAX_HOSTS, Labels, Provider
from gpudeck.discovery.host_names import expand, read_host_address
from gpudeck.model.errors import UsageError
from gpudeck.model.settings import Text
from gpudeck.model.target import REACH_FIELDS, SOURCES, Target, Via


class HostEntry(Struct, frozen=True):
    """A host that is to be watched, or a range of them."""

    config_shorthand: ClassVar[str] = "name"

    name: Annotated[str, Meta(min_length=1, extra={"config_words": "a host's name or a range such as gpu[01-16]"})]
    """The name of the host, or a range: gpu[01-16], gpu[1-4,7], rack[1-2]-gpu[01-16]. Zeros in front are kept."""
    via: Via = "ssh"
    """How it is read. `push`: by its own agent, it is only expected; `pull`: from its agent's port; `ssh`: without an
    agent; `scrape`: from a Prometheus exporter; the others: from a monitor that came before (see docs/migrate)."""
    address: Text | None = None
    """What to connect to, where that is not the name."""
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    """The port; the usual one of that way if none is given."""
    user: Text | None = None
    """Who logs in (ssh)."""
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
    """Shown beside the name, such as rack: b3."""

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
        """The hosts that it means."""
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
    for word in _split(text):
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


def _split(text: str) -> list[str]:
    """At commas and spaces, but not within brackets."""
    words, depth = [""], 0
    for letter in text:
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if depth <= 0 and (letter == "," or letter.isspace()):
            words.append("")
        else:
            words[-1] += letter
    return [word for word in words if word]
