"""What an operator decides about where hosts are found. Needs nothing that only a hub's install has."""

from ipaddress import ip_network
from typing import Annotated, ClassVar
from urllib.parse import urlsplit

from msgspec import Meta, Struct, field

from gpudeck.model.hub_url import mask_password
from gpudeck.model.settings import Duration
from gpudeck.model.target import Via

Text = Annotated[str, Meta(min_length=1, max_length=1024)]
Url = Annotated[
    str,
    Meta(
        pattern=r"^[Hh][Tt][Tt][Pp][Ss]?://[^\s/?#]+(?:[/?][^\s#]*)?$(?!\n)",
        extra={"config_words": "a URL that begins with http:// or https://"},
    ),
]
Network = Annotated[str, Meta(min_length=2, max_length=49)]


class HostsFileSettings(Struct, frozen=True):
    """A file with one host a line. It is looked at each second."""

    config_shorthand: ClassVar[str] = "path"

    path: Text
    """The file; `~` is the home folder, a relative path begins in the folder where the hub was started."""
    via: Via = "ssh"
    """How the hosts in it are read."""


class FileSdSettings(Struct, frozen=True):
    """Files as Prometheus reads them with file_sd: YAML or JSON, groups of targets with labels."""

    paths: Annotated[list[Text], Meta(min_length=1)]
    """The files; `*` and `?` stand for any name, such as targets/*.yml."""
    via: Via = "scrape"
    """How the hosts in them are read."""


class HttpSdSettings(Struct, frozen=True):
    """An address as Prometheus asks it with http_sd: JSON, groups of targets with labels."""

    url: Url
    """What is asked."""
    via: Via = "scrape"
    """How the hosts in the answer are read."""
    interval: Annotated[Duration, Meta(ge=1, le=86_400)] = 60.0
    """How often it is asked."""
    token_file: Text | None = None
    """A file whose first line is sent as a bearer token."""
    ca_file: Text | None = None
    """The certificates that are believed, in place of those of this machine."""

    def __post_init__(self) -> None:
        check_url(self.url)


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
    """The certificates that are believed, in place of those of this machine."""

    def __post_init__(self) -> None:
        check_url(self.url)
        if "?" in self.url:
            raise ValueError("url has a part after ?")


class DiscoverySettings(Struct, frozen=True):
    """Where hosts are found besides `hosts`. The same host in two places is read as the first of them says."""

    hosts_files: list[HostsFileSettings] = field(default_factory=list)
    """Files with one host a line."""
    file_sd: list[FileSdSettings] = field(default_factory=list)
    """Files as Prometheus reads them."""
    http_sd: list[HttpSdSettings] = field(default_factory=list)
    """Addresses as Prometheus asks them."""
    consul: list[ConsulSettings] = field(default_factory=list)
    """Services in Consul."""
    allow_addresses: list[Network] = field(default_factory=list)
    """Networks such as 127.0.0.0/8 in which hosts of file_sd, http_sd and Consul, and hosts that were added with
    `gpudeck hosts add` or on the page, may have loopback, link-local, multicast or cloud metadata addresses. Otherwise
    the hub does not connect to these. Hosts of `hosts` and `hosts_files` may have any address."""

    def __post_init__(self) -> None:
        for network in self.allow_addresses:
            try:
                ip_network(network)
            except ValueError:
                raise ValueError(f"allow_addresses has {network!r}, which is no network such as 127.0.0.0/8") from None


def check_url(url: str) -> None:
    """Raises ValueError, which names the setting `url`, where the pattern does not see that it is none."""
    try:
        parts = urlsplit(url)
        is_good = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_good = False
    if not is_good:
        raise ValueError(f"url {mask_password(url)!r} has no valid host and port")
