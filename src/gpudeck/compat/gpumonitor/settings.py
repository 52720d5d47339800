"""What an operator decides about the nodes of gpumonitor. Needs nothing that only a hub's install has."""

from typing import Annotated

from msgspec import Meta, Struct

from gpudeck.collectors.redaction import Commands
from gpudeck.model.settings import Duration


class GpumonitorSettings(Struct, frozen=True):
    """Hosts with `via: gpumonitor`: nodes of gpumonitor, which answer over XML-RPC. The hub also answers `/gpus` and
    `/index`, where its web server had its page."""

    interval: Annotated[Duration, Meta(ge=1, le=3600)] = 5.0
    """How often each node is asked."""
    deadline: Annotated[Duration, Meta(ge=0.1, le=60)] = 2.0
    """How long a node may take to answer: `rpc_timeout` of its config.yml."""
    port: Annotated[int, Meta(ge=1, le=65535)] = 8043
    """Where the nodes listen, unless a host says otherwise: `rpc_port` of its config.yml."""
    commands: Commands = "redacted"
    """How much of a process's name is kept: full, redacted (secrets hidden), its name, or none."""
