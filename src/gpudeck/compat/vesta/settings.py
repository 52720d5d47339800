"""What an operator decides about vesta's senders and readers."""

import ipaddress
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from gpudeck.model.settings import Duration

_Token = Annotated[
    str, Meta(min_length=1, max_length=256, extra={"config_words": "the token that the senders bring, in quotes"})
]


class VestaSettings(Struct, frozen=True):
    """The hub answers as a server of vesta: its senders report here, and `/states/` and `/?term=true` look as there."""

    token: _Token
    """What senders bring in `token=`: their TOKEN. There is no default; `0000` was everybody's."""
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
    """How many columns the text view has, as TERM_WIDTH."""

    def __repr__(self) -> str:
        """Without the token: settings may end up in a trace."""
        return f"VestaSettings(read_from={self.read_from!r}, down_after={self.down_after!r})"

    def __post_init__(self) -> None:
        for network in self.read_from:
            try:
                ipaddress.ip_network(network, strict=False)
            except ValueError as error:
                raise ValueError(f"{network[:60]!r} is no network such as 192.0.2.0/24") from error
