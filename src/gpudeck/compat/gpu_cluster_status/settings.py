"""What an operator decides about nodes and readers of GPU Cluster Status Monitor. The agent reads it too."""

from typing import Annotated

from msgspec import Meta, Struct

from gpudeck.model.settings import Duration

_Password = Annotated[
    str, Meta(min_length=1, max_length=256, extra={"config_words": "the password of the nodes, in quotes"})
]


class GpuClusterStatusSettings(Struct, frozen=True):
    """The hub reads hosts `via: gpu-cluster-status` and answers `GET /get-status` as a main does; an agent that
    listens answers `POST /get-status` as a node does."""

    password: _Password
    """What nodes want to be asked with: their PASSWD. There is no default; `8888` was everybody's."""
    port: Annotated[int, Meta(ge=1, le=65535)] = 7080
    """Where nodes listen, unless a host says otherwise."""
    interval: Annotated[Duration, Meta(ge=0.5, le=3600)] = 5.0
    """How often each node is asked."""
    deadline: Annotated[Duration, Meta(ge=0.1, le=60)] = 5.0
    """How long a node may take to answer: it asks nvidia-smi only then."""

    def __repr__(self) -> str:
        """Without the password: settings may end up in a trace."""
        return f"GpuClusterStatusSettings(port={self.port!r}, interval={self.interval!r}, deadline={self.deadline!r})"
