"""Sends digests: once a minute it looks which are due.

A digest is put into the outbox before the database has its row: a hub that is killed in between puts it there again
under the same key, so it is sent once. Of several hubs the one with the duty `digests` sends.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, Literal

from msgspec import Struct
from sqlalchemy import delete, select

from gpudeck.alerts.notifiers.message_service import MessageService
from gpudeck.alerts.notifiers.rendering import DEMO_PREFIX, MailContent, Message
from gpudeck.alerts.notifiers.routes import Destination
from gpudeck.api.access import Policy
from gpudeck.auth.auth import Auth
from gpudeck.auth.caller import Caller, Role
from gpudeck.database.engine import Database, FleetStore
from gpudeck.database.schema import REAL
from gpudeck.database.schema import digests as table
from gpudeck.digests.content import Digest, DigestSection, Style, describe_fleet, describe_group, describe_own
from gpudeck.digests.figures import FigureReader, FleetFigures, PeriodFigures, UserRuns, sum_use
from gpudeck.digests.periods import DigestPeriod, find_period
from gpudeck.digests.render import render_html, render_lines, render_text
from gpudeck.digests.settings import DigestSettings
from gpudeck.fleet.observers import Service
from gpudeck.history.base import HistoryRefused
from gpudeck.model.cluster import Duty
from gpudeck.model.cpu_budget import LoopBudget, cancel_tasks
from gpudeck.model.errors import Temporary
from gpudeck.model.text import clean
from gpudeck.model.times import load_zone
from gpudeck.model.usage import DigestPreview, Frequency, NumberFormat

log = logging.getLogger(__name__)

TOPIC: Final = "digest"
CHECK_SECONDS: Final = 60.0
KEPT_SECONDS: Final = 400 * 86_400.0
_RETRY_SECONDS: Final = 3600.0
_BATCH: Final = 100
_WORDS: Final = {"week": "every week", "month": "every month"}
DigestKey = tuple[str, str]
"""The name of the period; an account, or `#` and a channel."""
Outcome = Literal["sent", "muted", "no_data"]


class Recipient(Struct, frozen=True):
    """`account` is `#` and a name for a channel. `groups` are those that it leads, `period` is the newest one due."""

    account: str
    role: Role
    logins: frozenset[str]
    every: Literal["week", "month"]
    zone: str
    numbers: NumberFormat
    groups: tuple[str, ...]
    period: DigestPeriod

    @property
    def channel(self) -> str | None:
        return self.account.removeprefix("#") if self.account.startswith("#") else None

    @property
    def key(self) -> DigestKey:
        return self.period.name, self.account


class DigestStore(FleetStore):
    """Which digests are done: a row for each period and recipient. All of it raises Temporary where the database does
    not answer, or another hub has the duty."""

    async def find_done(self, periods: Collection[str]) -> set[DigestKey]:
        wanted = select(table.c.period, table.c.recipient).where(
            table.c.fleet == self._fleet, table.c.period.in_(sorted(periods))
        )
        return {(period, recipient) for period, recipient in await self._database.execute(wanted)}

    async def add(self, done: Iterable[tuple[DigestKey, Outcome]], now: float) -> None:
        """A row that is there already stays as it is. Old rows are deleted."""
        rows = [
            {"fleet": self._fleet, "period": period, "recipient": recipient, "outcome": outcome, "done_at": now}
            for (period, recipient), outcome in done
        ]
        async with self._database.begin() as connection:
            await connection.execute(self._database.insert(table).on_conflict_do_nothing(), rows)
            await connection.execute(delete(table).where(table.c.done_at < now - KEPT_SECONDS))


class DigestService(Service):
    """`preview` answers the API."""

    name = "digests"

    def __init__(
        self,
        settings: DigestSettings,
        auth: Auth,
        policy: Policy,
        messages: MessageService,
        reader: FigureReader,
        *,
        group_of: Callable[[str], str | None] = lambda _: None,
        page: str | None = None,
        fleet: str = REAL,
        duty: Duty | None = None,
        fenced: Database | None = None,
    ) -> None:
        self._settings = settings
        self._auth = auth
        self._policy = policy
        self._messages = messages
        self._reader = reader
        self._group_of = group_of
        self._page = page
        self._duty = duty or Duty("digests")
        self._store = DigestStore(fenced or auth.database, fleet)
        self._prefix = "" if fleet == REAL else DEMO_PREFIX
        self._next_at = float("-inf")
        self.task: asyncio.Task[None] | None = None

    def on_second(self) -> None:
        now = self._reader.hub.clock()
        # A clock that was set back must not delay the next look.
        is_time = now >= self._next_at or now < self._next_at - _RETRY_SECONDS
        if self._duty.is_held and self._is_on and is_time:
            self._next_at = now + CHECK_SECONDS
            if self.task is None or self.task.done():
                self.task = asyncio.get_running_loop().create_task(self._step(now))

    async def close(self) -> None:
        await cancel_tasks(self.task)

    async def preview(self, account: str, every: Frequency | None = None) -> DigestPreview:
        """The newest digest of an account, or of `#` and a channel, whether it was sent or not. Raises HistoryRefused,
        and Temporary."""
        roles, now = await self._list_roles(), self._reader.hub.clock()
        one = self._describe(account, roles.get(account, "user"), now, every)
        figures = await self._reader.read_period(one.period)
        (runs,), fleet = await self._read([one])
        digest = self._compose(one, figures, runs, fleet, now)
        message = None if digest is None else self._make_message(one, digest)
        mail = MailContent("", "") if message is None or message.mail is None else message.mail
        return DigestPreview(
            account=account,
            period=one.period.name,
            start=one.period.start,
            end=one.period.end,
            due_at=one.period.due,
            zone=one.zone,
            title="" if message is None else message.title,
            text=mail.text,
            html=mail.html,
            to=[] if message is None else [to.channel for to in self._find_channels(one, message)],
            not_sent=self._explain(one, message)
            if account in roles
            else f"{account} is not an account that gets digests. Name one, or #CHANNEL of digests.channels.",
        )

    def _explain(self, one: Recipient, message: Message | None) -> str | None:
        """Why nothing is sent; None if it is."""
        if one.channel is None and self._every_of(one.account) == "off":
            return (
                f"digests are off for {one.account}: see users.{one.account}.digest and digests.every in gpudeck.yaml."
            )
        if one.channel is None and self._messages.is_muted(one.account, TOPIC):
            return f"{one.account} does not want digests."
        if message is None:
            return "no use of a GPU was recorded in this period."
        return None if self._find_channels(one, message) else f"{one.account} has no channel: see users.NAME.mail."

    @property
    def _is_on(self) -> bool:
        own = (self._auth.users.user_of(account).digest for account in self._auth.users.accounts)
        return (
            self._settings.every != "off"
            or bool(self._settings.channels)
            or any(one not in {None, "off"} for one in own)
        )

    def _every_of(self, account: str) -> Frequency:
        return self._auth.users.user_of(account).digest or self._settings.every

    def _describe(self, account: str, role: Role, now: float, wanted: Frequency | None = None) -> Recipient:
        user, settings = self._auth.users.user_of(account), self._settings
        every: Literal["week", "month"] = "month" if (wanted or self._every_of(account)) == "month" else "week"
        zone = user.zone or settings.zone
        return Recipient(
            account=account,
            role=role,
            logins=frozenset() if account.startswith("#") else self._auth.users.logins_of(account),
            every=every,
            zone=zone,
            numbers=user.numbers or settings.numbers,
            groups=tuple(group for group, leads in settings.leads.items() if account in leads),
            period=find_period(every, settings, load_zone(zone), now),
        )

    async def _list_roles(self) -> dict[str, Role]:
        """All who can get digests: accounts, and channels, which see what admins see. Raises Temporary."""
        roles: dict[str, Role] = dict.fromkeys(self._auth.users.accounts, "user")
        for account in await self._auth.accounts.list():
            roles[account.name] = account.role
            if account.is_disabled:
                del roles[account.name]
        channels: dict[str, Role] = {f"#{name}": "admin" for name in self._settings.channels}
        return dict(sorted(roles.items())) | channels

    async def _step(self, now: float) -> None:
        try:
            by_period: dict[tuple[float, float], list[Recipient]] = defaultdict(list)
            for one in await self._find_due(now):
                by_period[one.period.start, one.period.end].append(one)
            for same in by_period.values():
                figures = await self._reader.read_period(same[0].period)
                for at in range(0, len(same), _BATCH):
                    await self._send(same[at : at + _BATCH], figures, now)
        except Temporary as error:
            log.debug("digests wait: %s", error)
        except HistoryRefused as error:
            self._next_at = now + _RETRY_SECONDS
            log.warning("digests cannot be made: %s", error)
        except Exception:
            self._next_at = now + _RETRY_SECONDS
            log.exception("digests could not be made")

    async def _find_due(self, now: float) -> list[Recipient]:
        """Recipients who can be reached and whose digest is not done. Opting out is noted, so that a later change of
        mind sends nothing old."""

        def is_reached(account: str) -> bool:
            if account.startswith("#"):
                return not self._messages.is_withheld
            return self._every_of(account) != "off" and self._messages.reaches(account)

        roles = await self._list_roles()
        found = [self._describe(account, role, now) for account, role in roles.items() if is_reached(account)]
        done = await self._store.find_done({one.period.name for one in found})
        found = [one for one in found if one.key not in done]
        muted = [one for one in found if one.channel is None and self._messages.is_muted(one.account, TOPIC)]
        if muted:
            await self._store.add([(one.key, "muted") for one in muted], now)
        return [one for one in found if one not in muted]

    async def _send(self, due: Sequence[Recipient], figures: PeriodFigures, now: float) -> None:
        """A digest that cannot be made is tried again later, and does not affect the others."""
        done: list[tuple[DigestKey, Outcome]] = []
        runs, fleet = await self._read(due)
        budget = LoopBudget()
        for one, own in zip(due, runs, strict=True):
            await budget.checkpoint()
            try:
                digest = self._compose(one, figures, own, fleet, now)
            except Exception:
                log.exception("the digest of %s could not be made", one.account)
                self._next_at = now + _RETRY_SECONDS
                continue
            done.append((one.key, "no_data" if digest is None else "sent"))
            if digest is not None and one.channel is None:
                self._messages.outbox.put(self._make_message(one, digest))
            elif digest is not None:
                self._messages.outbox.put_to(self._make_message(one, digest), Destination(one.channel or ""))
        await self._messages.outbox.flush()
        if done:
            await self._store.add(done, now)

    async def _read(self, some: Sequence[Recipient]) -> tuple[list[UserRuns], FleetFigures | None]:
        """The runs of recipients of the same period, and the figures of the fleet if one of them sees those."""
        period = some[0].period
        runs = await self._reader.read_runs(period, [one.logins for one in some])
        return runs, await self._reader.read_fleet(period) if any(one.role == "admin" for one in some) else None

    def _compose(
        self, one: Recipient, figures: PeriodFigures, runs: UserRuns, fleet: FleetFigures | None, now: float
    ) -> Digest | None:
        """None if there is nothing to report."""
        style = Style(one.numbers, load_zone(one.zone), figures.usage.currency)
        sections: list[DigestSection] = []
        if (use := sum_use(figures, one.logins)) is not None:
            caller = Caller(kind="account", role=one.role, name=one.account, logins=one.logins)
            visibility = self._policy.visibility(caller)
            shows = all(visibility.shows_commands_of(login) for login in one.logins)
            sections.append(describe_own(figures, use, runs, style, shows_commands=shows))
        for group in one.groups:
            members = {row.user for row in figures.usage.rows if row.user and self._group_of(row.user) == group}
            sections.append(describe_group(figures, group, members, style))
        if one.role == "admin" and fleet is not None:
            sections += describe_fleet(figures, fleet, style, now)
        if not sections:
            return None
        days = f"{one.period.first} to {one.period.last}"
        link, note = "#/history", "This channel gets it as digests.channels in gpudeck.yaml says."
        if one.channel is None:
            how = "run `gpudeck digest --off`, or clear “digests” on the page under Your account"
            link, note = "#/mine", f"You get this {_WORDS[one.every]}. To stop it, {how}."
        footer = [f"{days}, {clean(one.zone)}.", note]
        return Digest(f"{self._prefix}GPU digest, {days}", sections, footer, link, self._page)

    def _make_message(self, one: Recipient, digest: Digest) -> Message:
        return Message(
            key=f"digest {one.period.name} {one.account}",
            at=one.period.due,
            kind="digest",
            rule=TOPIC,
            severity="info",
            title=digest.title,
            lines=tuple(render_lines(digest)),
            link=digest.link,
            accounts=() if one.channel is not None else (one.account,),
            is_personal=one.channel is None,
            mail=MailContent(render_html(digest), render_text(digest)),
        )

    def _find_channels(self, one: Recipient, message: Message) -> Sequence[Destination]:
        if one.channel is not None:
            return [Destination(one.channel)]
        return self._messages.find_channels(message)
