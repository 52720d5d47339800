"""A channel as its settings have it, behind the one door that its worker knows."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from gpudeck.alerts.message import Message
from gpudeck.alerts.notifiers.courier import START_SECONDS, Courier
from gpudeck.alerts.notifiers.order import Order, Unreached
from gpudeck.alerts.notifiers.routes import Reached
from gpudeck.alerts.notifiers.settings import NotifySettings, read_url
from gpudeck.model.errors import Refused, UsageError

log = logging.getLogger(__name__)

_UNREADABLE: Final = "its address cannot be read on the hub's machine."


class ChannelPost:
    """One channel, with a courier of its own."""

    def __init__(self, name: str, settings: NotifySettings, person_of: Callable[[str], Reached]) -> None:
        self._name = name
        self._settings = settings
        self._person_of = person_of
        self._courier = Courier()

    @property
    def longest(self) -> float:
        return self._settings.deadline + START_SECONDS

    async def send(self, message: Message, account: str | None) -> None:
        """Raises Temporary or Refused, with words for everybody who may look at the hub."""
        settings = self._settings
        try:
            url = await asyncio.to_thread(read_url, self._name, settings.channels[self._name])
        except UsageError as error:
            log.warning("%s", error)
            raise Refused(_UNREADABLE, "The hub's log says which file.") from error
        order = Order(
            url=url,
            message=message,
            recipient=None if account is None else self._recipient(account),
            page=settings.page,
            seconds=settings.deadline,
        )
        await self._courier.send(order)

    async def rest(self) -> None:
        await self._courier.close()

    def _recipient(self, account: str) -> str:
        person = self._person_of(account)
        recipient = person.mail if self._name == self._settings.mail else person.slack
        if recipient is None:
            raise Unreached(f"people has no way to {account} any more.")
        return recipient
