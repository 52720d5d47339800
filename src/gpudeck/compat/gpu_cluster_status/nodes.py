"""What nodes tell of themselves that the fleet has no place for, kept for those who ask as they asked the main."""

from typing import Any

from msgspec import Struct

Json = dict[str, Any]


class NodeFacts(Struct, frozen=True):
    """`last_update` is on the node's own clock, in its own words."""

    hostname: str
    last_update: str


Nodes = dict[str, NodeFacts]
"""By the name under which a node is watched. Whoever reads the nodes writes it, in the event loop."""
