"""All hosts that anybody names: the providers' lists put together into one, in which a name stands once."""

from collections.abc import Callable, Iterator, Sequence

from gpudeck.discovery.base import MAX_HOSTS, Provider
from gpudeck.discovery.ranges import is_host_name, quote
from gpudeck.discovery.refresh import Refresh, name_trouble
from gpudeck.model.target import Target

MAX_CLASHES = 100
"""Sentences about hosts that are named twice: past so many nobody reads them."""


class _Watch:
    """One provider as the roster follows it: its last list, and what is wrong with it."""

    def __init__(self, provider: Provider, on_change: Callable[[], None]) -> None:
        self.provider = provider
        self.targets: list[Target] = []
        self.has_answered = False
        self.trouble: str | None = None
        self.refresh = Refresh(provider, self._take, self._note)
        self._on_change = on_change

    def _take(self, targets: list[Target]) -> None:
        self.targets = targets
        self.has_answered = True
        self._on_change()

    def _note(self, origin: str, trouble: str | None) -> None:
        kept = len(self.targets)
        still = f" Its last list of {kept} host{'' if kept == 1 else 's'} counts." if kept else ""
        self.trouble = trouble and f"{name_trouble(origin, trouble)}{still}"
        self._on_change()


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
        self._on_change = on_change
        self._on_problems = on_problems
        self._watches = [_Watch(provider, self._put_together) for provider in providers]
        self.targets: list[Target] = []
        self.problems: list[str] = []

    @property
    def is_complete(self) -> bool:
        """Whether every provider has answered once: whom none of them names is configured nowhere."""
        return all(watch.has_answered for watch in self._watches)

    def start(self) -> None:
        for watch in self._watches:
            watch.refresh.start()

    async def stop(self) -> None:
        """May be called twice, and without a start."""
        for watch in self._watches:
            await watch.refresh.stop()

    async def change(self, providers: Sequence[Provider]) -> None:
        """From now on these, while running. One that was there before goes on with the list that it has."""
        before = {id(watch.provider): watch for watch in self._watches}
        new = [_Watch(provider, self._put_together) for provider in providers if id(provider) not in before]
        known = before | {id(watch.provider): watch for watch in new}
        self._watches = [known[id(provider)] for provider in providers]
        for watch in before.values():
            if watch not in self._watches:
                await watch.refresh.stop()
        self._put_together()
        for watch in new:
            watch.refresh.start()

    def _put_together(self) -> None:
        together, clashes = put_together([watch.targets for watch in self._watches])
        self._tell_problems(clashes)
        if together != self.targets:
            self.targets = together
            self._on_change(together)

    def _tell_problems(self, clashes: list[str]) -> None:
        troubles = filter(None, (watch.trouble for watch in self._watches))
        problems = [*troubles, *self._left_out(), *clashes]
        if problems != self.problems:
            self.problems = problems
            self._on_problems(problems)

    def _left_out(self) -> Iterator[str]:
        for watch in self._watches:
            yield from watch.provider.problems


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
