"""A host of the live fleet as its JSON has it, for tests that look at many fields of it."""

from typing import Any

import msgspec

from gpudeck.fleet.host import HostState

View = dict[str, Any]


def show(host: HostState) -> View:
    view: View = msgspec.to_builtins(host.view())
    return view
