"""What an operator decides about the agent."""

import re
from typing import Annotated

from msgspec import Meta

from gpudeck.collectors.settings import CollectorSettings
from gpudeck.model.errors import UsageError
from gpudeck.model.hub_url import DEFAULT_HUB, check_hub_url
from gpudeck.model.settings import Duration, Size
from gpudeck.wire import HOST_NAME

SHORTEST_INTERVAL = 0.1
LONGEST_INTERVAL = 3600.0
_NAME_WORDS = "at most 253 letters, digits, dots, dashes and underscores, the first and the last a letter or digit"
_HUB_PATTERN = r"^\s*[Hh][Tt][Tt][Pp][Ss]?://[^\s/?#]+(?:/[^\s?#]*)?\s*$"


class AgentSettings(CollectorSettings, frozen=True):
    """How often this machine is read, and where its reports go."""

    hub: Annotated[
        str, Meta(pattern=_HUB_PATTERN, extra={"config_words": f"a URL such as {DEFAULT_HUB} or https://host/path"})
    ] = DEFAULT_HUB
    """The hub's address."""
    token_file: str | None = None
    """A file whose first line is the agent token of that hub."""
    name: Annotated[str, Meta(pattern=HOST_NAME, extra={"config_words": _NAME_WORDS})] | None = None
    """The name this host reports under; its host name if none is given."""
    interval: Annotated[Duration, Meta(ge=SHORTEST_INTERVAL, le=LONGEST_INTERVAL)] = 2.0
    """How often this machine is read."""
    outbox_reports: Annotated[int, Meta(ge=1)] = 3600
    """How many reports are kept while the hub is away; the oldest go first."""
    outbox_size: Annotated[Size, Meta(ge=1)] = 16 * 1024 * 1024
    """How much memory those reports may take."""

    def __post_init__(self) -> None:
        if self.name is not None and re.fullmatch(HOST_NAME, self.name) is None:
            raise ValueError(f"name {self.name[:80]!r} has to be {_NAME_WORDS}")
        try:
            check_hub_url(self.hub)
        except UsageError as error:
            raise ValueError(str(error)) from error
