"""The `cluster` section of the configuration."""

import socket
from typing import Annotated

from msgspec import Meta, Struct

from gpudeck.model.settings import Duration

_SERVER = r"(?:nats|tls)://(?:[^@,\s]+@)?[^@:/,\s]+(?::[0-9]{1,5})?"
_WORDS = {"config_words": "a URL such as nats://bus1:4222, or several with commas between them"}
_NAME_WORDS = {"config_words": "letters, digits, - and _"}


class ClusterSettings(Struct, frozen=True):
    """Several hubs that serve one fleet. All of them have the same `bus`, `database` and `history`."""

    bus: Annotated[str, Meta(pattern=rf"^{_SERVER}(?:,{_SERVER})*$(?!\n)", extra=_WORDS)]
    """The NATS server with JetStream, or several with commas between them."""
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{0,64}$", extra=_NAME_WORDS)] = ""
    """The name of this hub, different on each; the default is the name of its machine."""
    id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,32}$", extra=_NAME_WORDS)] = "gpudeck"
    """The name of the cluster, the same on all hubs: several clusters can use one NATS server."""
    credentials_file: str | None = None
    """A file with NATS credentials (.creds). User and password can also be part of `bus`."""
    ca_file: str | None = None
    """Certificates of authorities that the NATS servers' are checked with (`tls://…`), instead of the system's."""
    certificate_file: str | None = None
    """The certificate of this hub, where the NATS servers ask for one."""
    key_file: str | None = None
    """The key of `certificate_file`, if it is not in that file."""
    keep: Annotated[Duration, Meta(ge=300)] = 3600.0
    """How long the bus keeps reports: a hub that was away for less catches up completely."""
    replicas: Annotated[int, Meta(ge=1, le=5)] = 1
    """How many NATS servers keep each report: 3 for a NATS cluster of three."""

    @property
    def hub_name(self) -> str:
        host = socket.gethostname().partition(".")[0]
        return self.name or "".join(char if char.isalnum() or char in "-_" else "-" for char in host)[:64] or "hub"


def cluster_problem(cluster: ClusterSettings | None, database: str | None, history_kind: str) -> str | None:
    """What a cluster lacks; None: nothing."""
    if cluster is None:
        return None
    if database is None:
        return "`cluster` needs `database: postgresql://…`, the same on all hubs: accounts and leases are kept there"
    if history_kind != "prometheus":
        return (
            "`cluster` needs `history: {kind: prometheus, …}`, the same store on all hubs: a hub that joins later "
            "has no past of its own"
        )
    return None
