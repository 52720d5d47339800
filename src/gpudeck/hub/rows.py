"""The live fleet's views as structs, for code that wants one host or one GPU with checked fields."""

from collections.abc import Iterator

import msgspec

from gpudeck.hub.host import HostState
from gpudeck.hub.sight import EVERYTHING, Sight
from gpudeck.model.view import Gpu, Host
from gpudeck.model.wanted import OfferedGpu, offer


def host_row(host: HostState, sight: Sight = EVERYTHING) -> Host:
    """A copy of a host as it is now, as whoever has this sight may see it."""
    return msgspec.convert(sight.host(host.view), Host)


def offers_of(host: HostState, *, only_open: bool = False) -> Iterator[OfferedGpu]:
    """Its GPUs for whoever looks for one; with `only_open` those that nobody is on. Of thousands that are in use none
    is looked at closer."""
    row = Host(**{**host.view, "gpus": []})
    for view in host.view["gpus"]:
        if not only_open or view["availability"] in {"free", "booked"}:
            yield offer(row, Gpu(**view))
