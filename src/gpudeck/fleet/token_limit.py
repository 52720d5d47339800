"""How many hosts one agent token may bring into the fleet: one in wrong hands must not fill it with invented names."""

from collections import Counter
from typing import Final

from msgspec import Struct

from gpudeck.fleet.host import HostState
from gpudeck.model.errors import ReportRefused

_SAID_SECONDS: Final = 3600.0
"""So long after the last refusal it is shown as a problem of the hub."""
_MOST_SHOWN: Final = 3


class TokenName(Struct, frozen=True):
    """Which token a report came with: its id, and what people call it."""

    id: int
    name: str


class TokenLimit:
    """Counts the hosts of each token. One event loop owns it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._hosts: Counter[int] = Counter()
        self._refused: dict[TokenName, tuple[int, float | None]] = {}

    def check(self, token: TokenName, host: str) -> None:
        """Before a host that is not known joins the fleet. Raises ReportRefused."""
        if self._hosts[token.id] < self._most:
            return
        count, _ = self._refused.get(token, (0, None))
        self._refused[token] = count + 1, None
        raise ReportRefused(
            429,
            "too_many_hosts",
            f"the token {token.name!r} has brought {self._count} into this hub already, and {host} is another",
            "Raise fleet.max_hosts_per_token in the hub's configuration, use another token for this host, or remove "
            f"hosts: gpudeck hosts remove --token {token.name!r} --down.",
        )

    @property
    def _count(self) -> str:
        return f"{self._most} host{'s' * (self._most != 1)}"

    def charge(self, host: HostState, token: int | None) -> None:
        """From here on the host is one of that token's; None: it leaves."""
        if host.token is not None:
            self._hosts[host.token] -= 1
            if not self._hosts[host.token]:
                del self._hosts[host.token]
        host.token = token
        if token is not None:
            self._hosts[token] += 1

    def problems(self, now: float) -> list[str]:
        """Once a second: what an admin has to know of tokens that were refused within the last hour."""
        if not self._refused:
            return []
        # A refusal is dated here: its caller has no clock.
        dated = {token: (count, now if at is None else min(at, now)) for token, (count, at) in self._refused.items()}
        self._refused = {token: (count, at) for token, (count, at) in dated.items() if now - at < _SAID_SECONDS}
        shown = sorted(self._refused, key=lambda token: token.name)[:_MOST_SHOWN]
        return [
            f"the agent token {token.name!r} is at its limit of {self._count}: reports of further hosts are "
            "refused. Raise fleet.max_hosts_per_token, or remove hosts that do not exist: "
            f"gpudeck hosts remove --token {token.name!r} --down"
            for token in shown
        ]
