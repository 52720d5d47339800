"""The hosts that were added while the hub runs, as the routes see them."""

from collections.abc import Collection
from typing import Annotated, Literal, Protocol, runtime_checkable

from litestar.di import NamedDependency
from msgspec import Meta, Struct, field

from gpudeck.model.report import Word
from gpudeck.model.target import AddedHosts, Via

_Text = Annotated[str, Meta(min_length=1, max_length=1024)]


class NewHost(Struct, frozen=True, forbid_unknown_fields=True):
    """A host to be watched, or a range such as gpu[01-16]. Only what its way in needs has to be given.

    No file of the hub's machine can be named here: keys, passwords and tokens are the configuration file's.
    """

    name: Annotated[str, Meta(min_length=1, max_length=253)]
    via: Via = "push"
    address: Annotated[str, Meta(min_length=1, max_length=253)] | None = None
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    user: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    jump: _Text | None = None
    scheme: Literal["http", "https"] = "http"
    path: Annotated[str, Meta(max_length=1024, pattern="^/")] | None = None
    labels: Annotated[dict[Word, Annotated[str, Meta(max_length=256)]], Meta(max_length=64)] = field(
        default_factory=dict
    )


class HostOrigin(Struct, frozen=True):
    """Who named a host: a file, a provider of discovery, an option, or somebody who added it (`is_added`). `origin`
    is None where nobody did, and the host reports by itself. One that is named elsewhere cannot be removed here."""

    id: str
    name: str
    origin: str | None
    is_added: bool


class HostOrigins(Struct, frozen=True):
    hosts: list[HostOrigin]


@runtime_checkable
class HostBook(Protocol):
    """Keeps the added hosts. `add` and `remove` raise HTTPException."""

    async def add(self, new: NewHost, created_by: str) -> AddedHosts: ...

    async def remove(self, name: str) -> bool:
        """Whether a host of that name had been added."""
        ...

    async def remove_all(self, names: Collection[str]) -> None:
        """Hosts of these names, some of which may have been added. Their own tokens are worth nothing any more."""
        ...

    def origin_of(self, name: str) -> str | None:
        """Who named the host that is configured under that name; None where nobody did."""
        ...

    def has(self, name: str) -> bool:
        """Whether a host of that name was added, and nobody else names it."""
        ...


TheBook = NamedDependency[HostBook]
"""The book, as a route's parameter `book`."""
