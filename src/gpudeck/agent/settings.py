"""What an operator decides about the agent."""

import re
from typing import Annotated

from msgspec import Meta

from gpudeck.collectors.settings import CollectorSettings
from gpudeck.model.errors import UsageError
from gpudeck.model.hub_url import DEFAULT_HUB, check_hub_url
from gpudeck.model.settings import Duration, Size
from gpudeck.wire import HOST_NAME


class AgentSettings(CollectorSettings, frozen=True):
    """How often this machine is read, and where its reports go."""

    hub: str = DEFAULT_HUB
    """The hub's address."""
    token_file: str | None = None
    """A file whose first line is the agent token of that hub."""
    name: str | None = None
    """The name this host reports under; its host name if none is given."""
    interval: Annotated[Duration, Meta(ge=0.1, le=3600)] = 2.0
    """How often this machine is read."""
    outbox_reports: Annotated[int, Meta(ge=1)] = 3600
    """How many reports are kept while the hub is away; the oldest go first."""
    outbox_size: Annotated[Size, Meta(ge=1)] = 16 * 1024 * 1024
    """How much memory those reports may take."""

    def __post_init__(self) -> None:
        if self.name is not None and re.fullmatch(HOST_NAME, self.name) is None:
            raise ValueError(f"name {self.name[:80]!r} has to be letters, digits, dots, dashes and underscores")
        try:
            check_hub_url(self.hub)
        except UsageError as error:
            raise ValueError(str(error)) from error
