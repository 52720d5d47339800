"""A hub with a small fleet and the bot in front of it."""

import asyncio
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from fakes.api_app import make_auth
from fakes.clock import FakeClock
from fakes.reports import make_busy_gpu, make_envelope, make_gpu
from gpudeck.alerts.watches import Watches
from gpudeck.api.access import Commands, Policy
from gpudeck.auth.auth import UserDirectory
from gpudeck.auth.settings import AccountRole, UserSettings
from gpudeck.chat.blocks import ChatAnswer
from gpudeck.chat.bot import Bot, BotServices, Question, Read
from gpudeck.events.service import EventLog
from gpudeck.events.settings import EventSettings
from gpudeck.fleet.hub import Hub
from gpudeck.history.base import Store
from gpudeck.model.alert import Alert
from gpudeck.reservations.calendar import ReservationCalendar
from gpudeck.reservations.settings import ReservationSettings
from gpudeck.reservations.store import ReservationStore

NOW = 1_790_000_000.0
ADA, BOB, EVE = "U0ADA", "U0BOB", "U0EVE"
"""Of these `users` knows the first two."""
ZONE = ZoneInfo("Europe/Berlin")


class Lab:
    """gpu01 has an idle GPU, one that alice is on and one that ada is on; gpu02 has two idle ones. ada and bob have
    accounts, eve has none."""

    def __init__(
        self,
        folder: Path,
        *,
        is_readable: bool = True,
        commands: Commands = "everyone",
        read: Read | None = None,
        needs_accounts: bool = True,
        roles: dict[str, AccountRole] | None = None,
        history: Store | None = None,
    ) -> None:
        self.clock = FakeClock(NOW)
        self.hub = Hub(now=self.clock)
        self.auth = make_auth(folder)
        self.auth.users = UserDirectory(
            {"ada": UserSettings(slack=ADA), "bob": UserSettings(logins=["bobby"], slack=BOB)}
        )
        for name, role in ({"ada": "user", "bob": "user"} if roles is None else roles).items():
            asyncio.run(self.auth.accounts.add(name, role, None))
        self.report("gpu01", [make_gpu(0), make_busy_gpu(1, uuid="GPU-1"), make_busy_gpu(2, "ada", uuid="GPU-2")])
        self.report("gpu02", [make_gpu(index, uuid=f"GPU-b{index}") for index in range(2)])
        self.hub.stream.tick()
        self.calendar = ReservationCalendar(ReservationStore(self.auth.database), ReservationSettings(), self.clock)
        self.watches = Watches(self.auth.database, "real", now=self.clock)
        policy = Policy(is_readable=is_readable, needs_accounts=needs_accounts, commands=commands)
        self.place = BotServices(
            hub=self.hub,
            auth=self.auth,
            policy=policy,
            reservations=self.calendar,
            events=EventLog(self.auth.database, EventSettings()),
            watches=self.watches,
            history=history,
        )
        self.bot = Bot(self.place, self.find_zone, read)

    def report(self, host: str, gpus: list[Any]) -> None:
        self.hub.fleet.apply(make_envelope(host, gpus=gpus), via="push", now=self.clock.now)

    async def find_zone(self, slack_id: str) -> tzinfo:
        return ZONE if slack_id == ADA else UTC

    def ask(self, text: str, user: str = ADA, **others: Any) -> ChatAnswer:
        answer = self.ask_perhaps(text, user, **others)
        assert answer is not None
        return answer

    def ask_perhaps(self, text: str, user: str = ADA, **others: Any) -> ChatAnswer | None:
        return asyncio.run(self.bot.answer(Question(text=text, slack_id=user, **others)))

    def say(self, text: str, user: str = ADA, **others: Any) -> str:
        """The answer as a person reads it."""
        return words_of(self.ask(text, user, **others))


def make_alert(title: str, **others: Any) -> Alert:
    """One that has fired ten minutes ago."""
    usual: dict[str, Any] = dict.fromkeys(Alert.__struct_fields__) | {
        "id": title[:8],
        "rule": "gpu_hot",
        "severity": "warning",
        "state": "firing",
        "action": "",
        "accounts": [],
        "since": NOW - 600,
        "fired_at": NOW - 600,
    }
    return Alert(**(usual | others | {"title": title}))


def words_of(answer: ChatAnswer) -> str:
    texts: list[str] = []
    for block in answer.blocks:
        texts += [block["text"]["text"]] if "text" in block else []
        texts += [element["text"] for element in block.get("elements", ()) if isinstance(element["text"], str)]
    return "\n".join([*texts, *([answer.snippet.text] if answer.snippet else [])])
