"""Figures that need two readings: the share of time that engines were busy, watts from joules."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpudeck.collectors.drm_clients import Client, Engine


class Shares(NamedTuple):
    """Percent of the time between two readings that the busiest engine worked, by client's key and by card's address.

    A client or card that is not in it is unknown.
    """

    clients: dict[str, float]
    cards: dict[str, float]


class EngineWatch:
    """Remembers the engine times of clients from reading to reading.

    Work of a client that came or went between the two is not counted for its card. Drivers may step back for a moment;
    the higher value stays until they have caught up, as drm-usage-stats.rst asks.
    """

    def __init__(self) -> None:
        self._before: dict[str, dict[str, Engine]] = {}
        self._read_at: float | None = None

    def compare(self, clients: Mapping[str, Client], addresses: Iterable[str], now: float) -> Shares:
        """The shares since the last call. `addresses` are the cards: one without clients was not busy."""
        elapsed = 0.0 if self._read_at is None else now - self._read_at
        shares = Shares({}, {})
        if elapsed > 0:
            busy = {key: self._compare_client(client, elapsed) for key, client in clients.items()}
            shares.clients.update((key, _busiest(engines)) for key, engines in busy.items() if engines is not None)
            shares.cards.update((address, _add_up(address, clients, busy)) for address in addresses)
        self._before = {key: self._keep_higher(key, client.engines) for key, client in clients.items()}
        self._read_at = now
        return shares

    def _compare_client(self, client: Client, elapsed: float) -> dict[str, float] | None:
        """The share of each engine, 0 to 1; None where the client was not there before."""
        before = self._before.get(client.key)
        if before is None:
            return None
        return {name: _share(before.get(name), engine, elapsed) for name, engine in client.engines.items()}

    def _keep_higher(self, key: str, engines: Mapping[str, Engine]) -> dict[str, Engine]:
        before = self._before.get(key, {})
        return {
            name: before[name] if name in before and engine.busy < before[name].busy else engine
            for name, engine in engines.items()
        }


def _share(before: Engine | None, after: Engine, elapsed: float) -> float:
    """amdgpu leaves out an engine until it was used: it began at 0 then. A clock that stands or restarts gives 0."""
    busy = after.busy - (before.busy if before else 0)
    if after.total is None:
        span = elapsed * 1e9
    else:
        span = after.total - before.total if before and before.total is not None else 0
    return max(0.0, busy / (span * after.capacity)) if span > 0 else 0.0


def _busiest(engines: Mapping[str, float]) -> float:
    return min(100.0, 100.0 * max(engines.values(), default=0.0))


def _add_up(address: str, clients: Mapping[str, Client], busy: Mapping[str, dict[str, float] | None]) -> float:
    engines: dict[str, float] = {}
    for key, client in clients.items():
        if client.address == address:
            for name, share in (busy[key] or {}).items():
                engines[name] = engines.get(name, 0.0) + share
    return _busiest(engines)


class EnergyWatch:
    """Watts between two readings of a counter of joules."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, float]] = {}

    def compare(self, uuid: str, joules: float, now: float) -> float | None:
        """The mean power since the last call; None at first, and where clock or counter stepped back."""
        before = self._before.get(uuid)
        self._before[uuid] = joules, now
        if before is None or now <= before[1] or joules < before[0]:
            return None
        return (joules - before[0]) / (now - before[1])
