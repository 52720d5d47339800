"""What an operator decides about hosts that run an exporter. Needs nothing that only a hub's install has."""

from typing import Annotated

from msgspec import Meta, Struct

from gpudeck.collectors.redaction import Commands
from gpudeck.model.settings import Duration


class ScrapeSettings(Struct, frozen=True):
    """Hosts whose GPUs are read from a Prometheus exporter that they run already."""

    interval: Annotated[Duration, Meta(ge=1, le=3600)] = 15.0
    """How often each exporter is read. dcgm-exporter itself looks at its GPUs every 30 s unless told otherwise."""
    deadline: Annotated[Duration, Meta(gt=0, le=60)] = 5.0
    """How long an exporter may take to answer."""
    port: Annotated[int, Meta(ge=1, le=65535)] = 9400
    """The exporter's port, where the host's own entry names none: 9400 is dcgm-exporter's."""
    path: Annotated[str, Meta(pattern=r"^/[^\s#]*$", extra={"config_words": "a path such as /metrics"})] = "/metrics"
    """The exporter's path, where the host's own entry names none."""
    ca_file: str | None = None
    """Certificates that are believed with https; those of the operating system if not given."""
    token_file: str | None = None
    """A file with a token that is sent as a bearer token, where the host's own entry names none."""
    commands: Commands = "redacted"
    """How much of a process's command line is kept: full, redacted (secrets hidden), its name, or none."""
