"""Settings of the older monitors. All of it is off by default."""

import ipaddress
from collections.abc import Collection
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from gpudeck.model.address import Url, check_url
from gpudeck.model.settings import Duration, Text

_Token = Annotated[
    str, Meta(min_length=1, max_length=256, extra={"config_words": "the token that the senders bring, in quotes"})
]
_Password = Annotated[
    str, Meta(min_length=1, max_length=256, extra={"config_words": "the password of the nodes, in quotes"})
]
NODES_NOT_READABLE = (
    "hosts or discovery name nodes via gpu-cluster-status, and nothing says with which password; add the line "
    '`compat: {gpu_cluster_status: {password: "…"}}`'
)


class VestaSettings(Struct, frozen=True):
    """The hub as a server of vesta: its senders report here, and `/states/` and `/?term=true` have its format."""

    token: _Token
    """The token of the senders in `token=`: their TOKEN. There is no default; vesta's was `0000`."""
    read_from: list[Annotated[str, Meta(extra={"config_words": "a network such as 192.0.2.0/24"})]] = field(
        default_factory=list
    )
    """Networks from which `/states/` and the text view can be read, as VALID_NETWORK; all if none is given. Senders
    report from anywhere, and the page follows `read`."""
    down_after: Annotated[Duration, Meta(ge=1, le=3600)] = 60.0
    """A sender that has not posted for this long is down, as DOWN_TH."""
    timestamp_format: Literal["MDY", "YMD", "DMY"] = "MDY"
    """How times are written in text, as TIMESTAMP_FORMAT."""
    sort_by: Literal["name", "ip"] = "ip"
    """The order of hosts, as SORT_BY."""
    term_width: Annotated[int, Meta(ge=60, le=240)] = 80
    """The columns of the text view, as TERM_WIDTH."""

    def __repr__(self) -> str:
        """Without the token: settings may end up in a trace."""
        return f"VestaSettings(read_from={self.read_from!r}, down_after={self.down_after!r})"

    def __post_init__(self) -> None:
        for network in self.read_from:
            try:
                ipaddress.ip_network(network, strict=False)
            except ValueError as error:
                raise ValueError(f"{network[:60]!r} is no network such as 192.0.2.0/24") from error


class GpuClusterStatusSettings(Struct, frozen=True):
    """The hub reads hosts `via: gpu-cluster-status` and answers `GET /get-status` as a main does; an agent that
    listens answers `POST /get-status` as a node does."""

    password: _Password
    """The password of the nodes: their PASSWD. There is no default; that of the nodes was `8888`."""
    port: Annotated[int, Meta(ge=1, le=65535)] = 7080
    """The port of nodes, unless a host has its own."""
    interval: Annotated[Duration, Meta(ge=0.5, le=3600)] = 5.0
    """How often each node is asked."""
    deadline: Annotated[Duration, Meta(ge=0.1, le=60)] = 5.0
    """How long a node may take to answer: it asks nvidia-smi only then."""

    def __repr__(self) -> str:
        """Without the password: settings may end up in a trace."""
        return f"GpuClusterStatusSettings(port={self.port!r}, interval={self.interval!r}, deadline={self.deadline!r})"


class GpumonitorSettings(Struct, frozen=True):
    """Hosts with `via: gpumonitor`: nodes of gpumonitor, which answer over XML-RPC. The hub also answers `/gpus` and
    `/index`, where its web server had its page."""

    interval: Annotated[Duration, Meta(ge=1, le=3600)] = 5.0
    """How often each node is asked."""
    deadline: Annotated[Duration, Meta(ge=0.1, le=60)] = 2.0
    """How long a node may take to answer: `rpc_timeout` of its config.yml."""
    port: Annotated[int, Meta(ge=1, le=65535)] = 8043
    """The port of nodes, unless a host has its own: `rpc_port` of its config.yml."""


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
    """The port of hosts with `via: gpu-monitor`, unless a host has its own."""
    old_after: Annotated[Duration, Meta(ge=20, le=86_400)] = 120.0
    """Files that have not changed for this long are too old: the host is then shown as not readable."""
    consul: Url | None = None
    """An address that answers a list in JSON with a `Node` for each host, such as
    http://127.0.0.1:8500/v1/catalog/service/gpu. Each is watched via gpu-monitor."""

    def __post_init__(self) -> None:
        if self.consul is not None:
            check_url(self.consul)


class CompatSettings(Struct, frozen=True):
    """The older monitors whose clients, nodes and files this hub accepts. Only those named here are served."""

    vesta: VestaSettings | None = None
    """Senders and readers of vesta."""
    gpu_cluster_status: GpuClusterStatusSettings | None = None
    """Nodes and readers of GPU Cluster Status Monitor."""
    gpumonitor: GpumonitorSettings | None = None
    """Nodes of gpumonitor, which answer over XML-RPC."""
    gpu_monitor: GpuMonitorSettings | None = None
    """Files of gpu-monitor's scripts."""


def compat_problem(ways: Collection[str], settings: CompatSettings) -> str | None:
    """Why hosts with these `via` cannot be read; None if they can."""
    return NODES_NOT_READABLE if "gpu-cluster-status" in ways and settings.gpu_cluster_status is None else None
