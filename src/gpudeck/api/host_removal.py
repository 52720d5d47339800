"""Hosts leave the fleet for good: from the list of added hosts, the live fleet, the hub's memory, and their alerts."""

import contextlib
from collections.abc import Iterable

from litestar.di import NamedDependency
from msgspec import Struct

from gpudeck.alerts.keeper import Alerts
from gpudeck.api.host_book import HostBook
from gpudeck.auth.token_rules import is_for
from gpudeck.auth.tokens import Tokens
from gpudeck.hub.host import HostState
from gpudeck.hub.hub import Hub
from gpudeck.hub.memory import HostMemory
from gpudeck.model.cpu_budget import LoopBudget
from gpudeck.model.errors import Temporary


class HostSelection(Struct, frozen=True):
    """Which hosts are meant: all that is given has to fit. `name` is a pattern, `token` a token's name or id, `down`:
    only those that are down."""

    name: str | None = None
    token: str | None = None
    down: bool = False

    def __str__(self) -> str:
        parts = (self.name, self.token and f"token {self.token}", "down" if self.down else "")
        return ", ".join(part for part in parts if part)


class HostRemoval:
    """A host that still reports comes back with its next report, unless its token was revoked."""

    def __init__(
        self, hub: Hub, book: HostBook, tokens: Tokens, alerts: Alerts | None, memory: HostMemory | None
    ) -> None:
        self._hub = hub
        self._book = book
        self._tokens = tokens
        self._alerts = alerts
        self._memory = memory

    async def find(self, wanted: HostSelection) -> tuple[list[HostState], int]:
        """The hosts that fit, by name, and how many more do that only a configuration file, or discovery, can remove.
        Raises Temporary."""
        ids = None if wanted.token is None else await self._find_tokens(wanted.token)
        fitting = [
            host
            for host in self._hub.fleet.ordered()
            if is_for(wanted.name, host.name)
            and (ids is None or host.token in ids)
            and (not wanted.down or host.status == "down")
        ]
        ours = [host for host in fitting if self._is_ours(host)]
        return ours, len(fitting) - len(ours)

    async def remove(self, hosts: list[HostState]) -> None:
        """Raises HTTPException, and then none is removed."""
        await self._book.remove_all([host.target or host.name for host in hosts])
        await self.forget(host.id for host in hosts)

    async def forget(self, host_ids: Iterable[str]) -> None:
        """Remove hosts, or what is left of them, that are in no list any more."""
        host_ids, budget = list(host_ids), LoopBudget()
        for host_id in host_ids:
            if host_id in self._hub.fleet.hosts:
                self._hub.fleet.remove(host_id)
            await budget.checkpoint()
        # Where the database does not answer, alerts and memory themselves try again.
        with contextlib.suppress(Temporary):
            if self._alerts is not None and self._alerts.remove_hosts(host_ids):
                await self._alerts.flush()
        with contextlib.suppress(Temporary):
            if self._memory is not None:
                await self._memory.flush()

    def alerts_alone(self, name: str) -> set[str]:
        """The ids of hosts of that name or id of which nothing is left but alerts."""
        return set() if self._alerts is None else self._alerts.engine.hosts_called(name) - self._hub.fleet.hosts.keys()

    def _is_ours(self, host: HostState) -> bool:
        name = host.target or host.name
        return self._book.origin_of(name) is None or self._book.has(name)

    async def _find_tokens(self, name: str) -> set[int]:
        return {token.id for token in await self._tokens.list() if name in {token.name, str(token.id)}}


TheRemoval = NamedDependency[HostRemoval]
"""As a route's parameter `removal`."""
