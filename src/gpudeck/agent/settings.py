"""The settings of the agent."""

import re
from typing import Annotated

from msgspec import Meta

from gpudeck.collectors.base import CollectorSettings
from gpudeck.model.address import DEFAULT_HUB, check_proxy, split_hubs
from gpudeck.model.errors import UsageError
from gpudeck.model.settings import Address, Duration, Size, TlsSettings
from gpudeck.wire import HOST_NAME

MIN_INTERVAL = 0.1
MAX_INTERVAL = 3600.0
_NAME_WORDS = "at most 253 letters, digits, dots, dashes and underscores, the first and the last a letter or digit"
# Without a pattern: msgspec 0.22 crashes on a union of a list and text with one. The addresses are checked below.
_HubUrl = Annotated[str, Meta(extra={"config_words": f"a URL such as {DEFAULT_HUB} or https://host/path"})]


class AgentSettings(CollectorSettings, frozen=True):
    """How often this machine is read, and where its reports go."""

    hub: _HubUrl | list[_HubUrl] | None = None
    """The hub that reports are pushed to; http://127.0.0.1:8042 if neither this nor `agent.listen` is given. A list
    names several hubs of one fleet: the agent uses one of them, and the next if that one does not answer."""
    listen: Address | None = None
    """Where this agent answers hubs that ask for its report. Others than this machine need the token."""
    token_file: str | None = None
    """A file whose first line is the token: the agent sends it to the hub, and requires it of callers."""
    tls: TlsSettings | None = None
    """The certificate that this agent shows to those who ask; plain HTTP without."""
    ca_file: str | None = None
    """Certificates (PEM) of the authority that signed the hub's; this machine's own are then not trusted."""
    proxy: Annotated[str, Meta(extra={"config_words": "environment, none, or a URL such as http://proxy:3128"})] = (
        "environment"
    )
    """The proxy to the hub: that of HTTPS_PROXY, HTTP_PROXY and NO_PROXY, none, or a URL."""
    name: Annotated[str, Meta(pattern=HOST_NAME, extra={"config_words": _NAME_WORDS})] | None = None
    """The name this host reports under; its host name if none is given."""
    interval: Annotated[Duration, Meta(ge=MIN_INTERVAL, le=MAX_INTERVAL)] = 2.0
    """How often this machine is read."""
    outbox_dir: Annotated[str, Meta(extra={"config_words": "a folder, or none"})] | None = None
    """Where reports that the hub has not taken within seconds are kept across a restart of the agent: `outbox` in
    data_dir if not given. `none` keeps them in memory only."""
    outbox_size: Annotated[Size, Meta(ge=1)] = 64 * 1024 * 1024
    """How much space those reports may take; the oldest are dropped first."""
    outbox_age: Annotated[Duration, Meta(ge=1)] = 86_400.0
    """How old those reports may become; older ones are dropped."""

    def __post_init__(self) -> None:
        if self.name is not None and re.fullmatch(HOST_NAME, self.name) is None:
            raise ValueError(f"name {self.name[:80]!r} has to be {_NAME_WORDS}")
        try:
            if self.hub is not None:
                split_hubs(self.hubs)
            if self.proxy not in {"environment", "none"}:
                check_proxy(self.proxy)
        except UsageError as error:
            raise ValueError(str(error)) from error

    @property
    def hubs(self) -> str:
        return ",".join([self.hub] if isinstance(self.hub, str) else self.hub or [])
