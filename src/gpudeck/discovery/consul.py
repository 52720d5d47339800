"""A service in Consul: a host for each of its instances.

A blocking query answers when something has changed, or after a while. An index that is missing or goes back, as after a
restart of Consul, means that we know nothing.
"""

from typing import Annotated
from urllib import parse

import msgspec
from msgspec import Meta, Struct, field

from gpudeck.discovery.host_names import is_host_name, quote
from gpudeck.discovery.inputs import DEADLINE, HostFindings, ServerProvider, bound_labels
from gpudeck.model.address import Url, check_url, show_url
from gpudeck.model.errors import Refused, Temporary
from gpudeck.model.settings import Text
from gpudeck.model.target import Target, Via
from gpudeck.model.text import read_whole

WAIT = 30
"""How long Consul waits for a change, in seconds. A connection that died in silence is noticed after this."""
WAIT_WHILE_EMPTY = 5
"""The same where the last answer was empty: the next one says soon whether that is so."""


class ConsulSettings(Struct, frozen=True):
    """A service in Consul: a host for each instance of it."""

    service: Text
    """The name of the service, such as gpudeck-agent."""
    url: Url = "http://127.0.0.1:8500"
    """The address of a Consul agent."""
    tags: list[Text] = field(default_factory=list)
    """Only instances that have all of these tags."""
    datacenter: Text | None = None
    """The datacenter; that of the agent if none is given."""
    token_file: Text | None = None
    """A file whose first line is a Consul token that may read the service and its nodes."""
    only_passing: bool = True
    """Whether hosts vanish whose checks fail in Consul. If not they stay, and are shown as down."""
    via: Via = "pull"
    """How the hosts are read."""
    ca_file: Text | None = None
    """The certificates that are trusted, instead of those of this machine."""

    def __post_init__(self) -> None:
        check_url(self.url)
        if "?" in self.url:
            raise ValueError("url has a part after ?")


class _ConsulNode(Struct, rename="pascal"):
    node: str
    address: str = ""
    meta: dict[str, str] | None = None


class _Service(Struct, rename="pascal"):
    address: str = ""
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    meta: dict[str, str] | None = None


class _Instance(Struct, rename="pascal"):
    node: _ConsulNode
    service: _Service = field(default_factory=_Service)


_decode = msgspec.json.Decoder(_Instance).decode


class Consul(ServerProvider):
    """The instances of one service. The first `find` answers at once, the next ones when something has changed."""

    header, scheme = "X-Consul-Token", ""

    def __init__(self, settings: ConsulSettings) -> None:
        place = f" in {settings.datacenter}" if settings.datacenter else ""
        super().__init__(f"consul {settings.service}{place}", 0.0, settings.token_file, settings.ca_file)
        self._settings = settings
        self._url = f"{settings.url.rstrip('/')}/v1/health/service/{parse.quote(settings.service, safe='')}"
        self._index = 0

    async def find(self) -> list[Target]:
        known, self._index = self._index, 0  # whatever goes wrong now, the next question is answered at once
        wait = WAIT if self._findings.targets else WAIT_WHILE_EMPTY
        # Consul adds up to a sixteenth to the wait, so that not all questions come back at the same time.
        deadline = DEADLINE + (wait * 17 / 16 if known else 0)
        url, shown = f"{self._url}?{self._query(known, wait)}", show_url(self._settings.url)
        headers = await self._fetch(url, read_instances, self.origin, self._settings.via, shown, deadline=deadline)
        if not self._findings.targets and headers.get("x-consul-results-filtered-by-acls") == "true":
            raise Refused(f"Consul does not show {self.origin}: the token may not read it.", "Check token_file.")
        index = read_whole(headers.get("x-consul-index", ""), 2**64) or 0
        self._index = index if index >= known else 0
        return self._findings.targets

    def _query(self, index: int, wait: int) -> str:
        blocking = [("index", str(index)), ("wait", f"{wait}s")] if index else []
        passing = [("passing", "true")] if self._settings.only_passing else []
        datacenter = [("dc", self._settings.datacenter)] if self._settings.datacenter else []
        return parse.urlencode([*blocking, *passing, *datacenter, *(("tag", tag) for tag in self._settings.tags)])


def read_instances(body: bytes, origin: str, via: Via, url: str) -> HostFindings:
    """Raises Temporary."""
    try:
        instances = msgspec.json.decode(body, type=list[msgspec.Raw])
    except (ValueError, RecursionError) as error:
        message = f"{url} answers no list of instances in JSON."
        raise Temporary(message, "Is that the address of a Consul agent?") from error
    return HostFindings().read(
        instances, lambda raw: [_read_instance(_decode(raw), origin, via)], f"{origin}, instance"
    )


def _read_instance(instance: _Instance, origin: str, via: Via) -> Target:
    node, service = instance.node, instance.service
    if not is_host_name(node.node):
        raise ValueError(f"{quote(node.node)} is no name of a host")
    labels = bound_labels(_labels_of(node) | (service.meta or {}))
    address = service.address or node.address
    if not address.isprintable() or any(char in address for char in " /@[]"):
        raise ValueError(f"the address {quote(address)} of {node.node} is invalid")
    return Target(name=node.node, via=via, address=address, port=service.port or None, labels=labels, origin=origin)


def _labels_of(node: _ConsulNode) -> dict[str, str]:
    """What Consul writes there about itself is no label of a host."""
    return {name: value for name, value in (node.meta or {}).items() if not name.startswith("consul-")}
