"""What a discovery provider is: something that says which hosts there are.

A provider is one function. `refresh` calls it again and again, keeps its last good answer, and tells what changed.
"""

from typing import Protocol

from gpudeck.model.target import Target


class Provider(Protocol):
    """Says which hosts there are. `origin` names it for people ("hosts.txt", "consul gpu-nodes").

    `find` returns all hosts that it knows now. It may wait for a change (`pause` is then 0) and may be cancelled. It
    raises Temporary when it cannot tell now, Refused when credentials are not accepted, and never returns part of a
    list because the rest could not be read. `pause` is how many seconds lie between two calls.
    """

    origin: str
    pause: float

    async def find(self) -> list[Target]: ...

    async def close(self) -> None: ...
