"""What an operator decides about the files of gpu-monitor. Needs nothing that only a hub's install has."""

from typing import Annotated

from msgspec import Meta, Struct

from gpudeck.collectors.redaction import Commands
from gpudeck.discovery.base import Text, Url, check_url
from gpudeck.model.settings import Duration


class GpuMonitorSettings(Struct, frozen=True):
    """The files that gpu-monitor's scripts write: in a folder here, or served by the hosts themselves."""

    folder: Text | None = None
    """The folder into which hosts copy their files: the `data` folder of its page. Every host with files there is
    watched, via gpu-monitor-files."""
    interval: Annotated[Duration, Meta(ge=1, le=3600)] = 10.0
    """How often the files of each host are read. The scripts write them every 20 s."""
    deadline: Annotated[Duration, Meta(ge=0.1, le=60)] = 5.0
    """How long a host may take to answer."""
    port: Annotated[int, Meta(ge=1, le=65535)] = 8114
    """Where hosts with `via: gpu-monitor` serve their files, unless a host says otherwise."""
    old_after: Annotated[Duration, Meta(ge=20, le=86_400)] = 120.0
    """Files that have not changed for this long say nothing of now: the host is then shown as not readable."""
    consul: Url | None = None
    """An address that answers a list in JSON with a `Node` for each host, such as
    http://127.0.0.1:8500/v1/catalog/service/gpu. Each is watched via gpu-monitor."""
    consul_interval: Annotated[Duration, Meta(ge=1, le=86_400)] = 60.0
    """How often that address is asked."""
    commands: Commands = "redacted"
    """How much of a process's name is kept: full, redacted (secrets hidden), its name, or none."""

    def __post_init__(self) -> None:
        if self.consul is not None:
            check_url(self.consul)
