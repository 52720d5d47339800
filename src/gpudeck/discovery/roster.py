"""All hosts that anybody names: the providers' lists put together into one, in which a name stands once."""

import functools
from collections.abc import Callable, Iterator, Sequence

from gpudeck.discovery.base import MAX_HOSTS, Provider
from gpudeck.discovery.ranges import is_host_name, quote
from gpudeck.discovery.refresh import Refresh, name_trouble
from gpudeck.model.target import Target

MAX_CLASHES = 100
"""Sentences about hosts that are named twice: past so many nobody reads them."""


class Roster:
    """Watches the providers. `start` and `stop` in the event loop.

    `on_change` gets the whole list whenever it has changed, in the order of the providers. Of a host that is named
    twice the first one counts. `problems` are sentences for the admin: providers that do not answer, entries that make
    no sense, hosts that are named twice; `on_problems` is called whenever they have changed.
    """

    def __init__(
        self,
        providers: Sequence[Provider],
        on_change: Callable[[list[Target]], None],
        on_problems: Callable[[list[str]], None] = lambda _: None,
    ) -> None:
        self._providers = list(providers)
        self._on_change = on_change
        self._on_problems = on_problems
        self._lists: list[list[Target]] = [[] for _ in providers]
        self._troubles: list[str | None] = [None for _ in providers]
        self._clashes: list[str] = []
        self._refreshes = [
            Refresh(provider, functools.partial(self._take, index), functools.partial(self._note, index))
            for index, provider in enumerate(providers)
        ]
        self.targets: list[Target] = []
        self.problems: list[str] = []

    def start(self) -> None:
        for refresh in self._refreshes:
            refresh.start()

    async def stop(self) -> None:
        """May be called twice, and without a start."""
        for refresh in self._refreshes:
            await refresh.stop()

    def _take(self, index: int, targets: list[Target]) -> None:
        self._lists[index] = targets
        together, self._clashes = put_together(self._lists)
        self._tell_problems()
        if together != self.targets:
            self.targets = together
            self._on_change(together)

    def _note(self, index: int, origin: str, trouble: str | None) -> None:
        kept = len(self._lists[index])
        still = f" Its last list of {kept} host{'' if kept == 1 else 's'} counts." if kept else ""
        self._troubles[index] = trouble and f"{name_trouble(origin, trouble)}{still}"
        self._tell_problems()

    def _tell_problems(self) -> None:
        problems = [*filter(None, self._troubles), *self._left_out(), *self._clashes]
        if problems != self.problems:
            self.problems = problems
            self._on_problems(problems)

    def _left_out(self) -> Iterator[str]:
        for provider in self._providers:
            yield from provider.problems


def put_together(lists: Sequence[Sequence[Target]]) -> tuple[list[Target], list[str]]:
    """One target a name, and sentences about those that are left out."""
    kept: dict[str, Target] = {}
    clashes: list[str] = []
    for target in (target for targets in lists for target in targets):
        known = kept.get(target.name)
        if known is not None:
            clashes += _explain_clash(known, target)
        elif not is_host_name(target.name):
            clashes.append(f"{target.origin}: {quote(target.name)} is no name of a host; it is left out.")
        elif len(kept) < MAX_HOSTS:
            kept[target.name] = target
        else:
            clashes.append(f"{target.origin}: {target.name} is left out, as there are more than {MAX_HOSTS} hosts.")
    if len(clashes) > MAX_CLASHES:
        clashes[MAX_CLASHES - 1 :] = [f"{len(clashes) - MAX_CLASHES + 1} more hosts are left out."]
    return list(kept.values()), clashes


def _explain_clash(first: Target, second: Target) -> list[str]:
    """Nothing where one provider says the same twice."""
    if first == second:
        return []
    if first.origin != second.origin:
        return [f"{first.name} is named by {first.origin} and by {second.origin}; the first counts."]
    return [f"{first.name} is named twice by {first.origin}, {_reach(first)} and {_reach(second)}; the first counts."]


def _reach(target: Target) -> str:
    user = f"{target.user}@" if target.user else ""
    port = f":{target.port}" if target.port else ""
    return f"as {user}{target.host}{port} via {target.via}"
