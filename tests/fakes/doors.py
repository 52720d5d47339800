"""The hub's front door without a server: its ASGI application, with tokens that tests know."""

from pathlib import Path

from gpudeck.api.app import FrontDoor
from gpudeck.api.host_book import AddedHosts, NewHost
from gpudeck.api.reports import Grant
from gpudeck.api.writing import Writers
from gpudeck.app.agent_tokens import AgentTokens
from gpudeck.app.host_book import Book, ManagedHosts
from gpudeck.hub.hub import Hub
from gpudeck.model.target import Target

AGENT_TOKEN = "agent-token"
ADMIN_TOKEN = "admin-token"


class ClosedBook:
    """For tests that add no hosts."""

    def add(self, new: NewHost) -> AddedHosts:
        raise AssertionError(f"a test adds {new.name}")

    def remove(self, name: str) -> bool:
        raise AssertionError(f"a test removes {name}")


def make_door(hub: Hub, prefix: str = "", *, is_private: bool = False) -> FrontDoor:
    """A door that knows one agent token and one admin token."""
    writers = Writers(lambda token: token == ADMIN_TOKEN, is_private=is_private)
    return FrontDoor(
        hub, lambda token: Grant() if token == AGENT_TOKEN else None, prefix, writers=writers, book=ClosedBook()
    )


def make_door_with_book(hub: Hub, folder: Path, *, is_private: bool = False) -> FrontDoor:
    """A door whose added hosts are kept in `folder`, and expected by the hub at once."""
    tokens = AgentTokens(folder / "host-tokens.json", AGENT_TOKEN)
    managed = ManagedHosts(folder / "hosts.yaml")
    by_name = {"configured": "gpudeck.yaml"}

    class Expecting(Book):
        def add(self, new: NewHost) -> AddedHosts:
            added = super().add(new)
            hub.fleet.expect(managed.targets())
            return added

    book = Expecting(
        managed,
        tokens,
        lambda name: Target(name=name, origin=by_name[name]) if name in by_name else None,
        url="http://hub.example:8042",
        url_here="http://127.0.0.1:8042",
    )
    writers = Writers(lambda token: token == ADMIN_TOKEN, is_private=is_private)
    return FrontDoor(hub, tokens.find_grant, writers=writers, book=book)
