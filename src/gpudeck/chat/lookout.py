"""Watches that fired, told in direct messages to those who would hear of them in no other way."""

from collections.abc import Awaitable, Callable
from typing import Final

from gpudeck.alerts.watch import Watch
from gpudeck.alerts.watches import Watches
from gpudeck.chat.blocks import Answer, say
from gpudeck.chat.escape import escape
from gpudeck.model import clock

GIVE_UP_SECONDS: Final = 3600.0
"""That GPUs were free an hour ago is no news."""
PAUSE_SECONDS: Final = 30.0
"""After a message that Slack did not take."""

Write = Callable[[str, Answer], Awaitable[bool]]
"""To somebody's Slack ID; False where that is not possible now."""


class Lookout:
    """`tell` now and then. What fired before it was made was told by the hub that ran then.

    `slack_id_of` gives the Slack ID of an account that is to be told here, None for all others.
    """

    def __init__(
        self, watches: Watches, slack_id_of: Callable[[str | None], str | None], now: clock.Clock = clock.wall
    ) -> None:
        self._watches = watches
        self._slack_id_of = slack_id_of
        self._now = now
        self._since = now()
        self._rest_until = 0.0
        self._told: set[int] = set()

    async def tell(self, write: Write) -> None:
        if self._now() < self._rest_until:
            return
        known = self._watches.list_of()
        self._told &= {one.id for one in known}
        for one in filter(self._is_news, known):
            slack_id = self._slack_id_of(one.account)
            if slack_id is not None and not await write(slack_id, answer_fired(one)):
                self._rest_until = self._now() + PAUSE_SECONDS
                return
            self._told.add(one.id)

    def _is_news(self, one: Watch) -> bool:
        earliest = max(self._since, self._now() - GIVE_UP_SECONDS)
        return one.fired_at is not None and one.fired_at >= earliest and one.id not in self._told


def answer_fired(one: Watch) -> Answer:
    hosts: dict[str, list[str]] = {}
    for gpu in one.found:
        hosts.setdefault(gpu.host, []).append(gpu.label)
    where = " ".join(f"{host}:{','.join(labels)}" for host, labels in hosts.items())
    verb = "is" if one.wanted.gpus == 1 else "are"
    return say(
        f"*{escape(one.wanted.describe())} {verb} free:* {escape(where, 400)}",
        "Nothing is held: `book` books, and whoever is first has them.",
    )
