"""The running digests: once a minute it looks whose is due, and sends it.

A digest is in the outbox before it is written down that it was sent: a hub that is killed in between puts it there
again under the same key, and so once. Of several hubs the one with the duty `digests` sends.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import tzinfo
from typing import Final, Literal

from msgspec import Struct

from gpudeck.alerts.notifiers.message_service import MessageService
from gpudeck.alerts.notifiers.rendering import DEMO_PREFIX, MailContent, Message
from gpudeck.alerts.notifiers.routes import Destination
from gpudeck.api.access import Policy
from gpudeck.auth.auth import Auth
from gpudeck.auth.caller import Caller, Role
from gpudeck.database.engine import Database
from gpudeck.database.schema import REAL
from gpudeck.digests.content import (
    Digest,
    DigestSection,
    Style,
    describe_fleet,
    describe_group,
    describe_own,
    make_digest,
)
from gpudeck.digests.figures import FigureReader, FleetFigures, OwnRuns, PeriodFigures, sum_use
from gpudeck.digests.periods import DigestPeriod, find_period
from gpudeck.digests.render import render_html, render_lines, render_text
from gpudeck.digests.settings import DigestSettings
from gpudeck.digests.store import DigestKey, DigestStore, Outcome
from gpudeck.fleet.observers import Service
from gpudeck.history.base import HistoryRefused
from gpudeck.model.cluster import Duty
from gpudeck.model.cpu_budget import LoopBudget, cancel_tasks
from gpudeck.model.errors import Temporary
from gpudeck.model.times import load_zone
from gpudeck.model.usage import DigestPreview, Frequency, NumberFormat

log = logging.getLogger(__name__)

TOPIC: Final = "digest"
CHECK_SECONDS: Final = 60.0
_AGAIN_SECONDS: Final = 3600.0
"""After a digest could not be made it is tried again, until the next one is due."""
_AT_ONCE: Final = 100
_WORDS: Final = {"week": "every week", "month": "every month"}
Every = Literal["week", "month"]


class Recipient(Struct, frozen=True):
    """`account` is `#` and a name for a channel. `groups` are those that they lead."""

    account: str
    role: Role
    logins: frozenset[str]
    every: Every
    zone: str
    numbers: NumberFormat
    groups: tuple[str, ...] = ()

    @property
    def channel(self) -> str | None:
        return self.account.removeprefix("#") if self.account.startswith("#") else None

    @property
    def sees_fleet(self) -> bool:
        return self.role == "admin"


_Due = tuple[Recipient, DigestPeriod]


class DigestService(Service):
    """`preview` is what the API asks."""

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
        self._failed: dict[DigestKey, float] = {}
        self.task: asyncio.Task[None] | None = None

    def on_second(self) -> None:
        now = self._reader.hub.clock()
        # A clock that was set back is no reason to wait.
        is_time = now >= self._next_at or now < self._next_at - _AGAIN_SECONDS
        if self._duty.is_held and self._is_on and is_time:
            self._next_at = now + CHECK_SECONDS
            if self.task is None or self.task.done():
                self.task = asyncio.get_running_loop().create_task(self._step(now))

    async def close(self) -> None:
        await cancel_tasks(self.task)

    async def preview(self, account: str, every: Frequency | None = None) -> DigestPreview:
        """The newest digest of an account, or of `#` and a channel, whether it was sent or not. Raises HistoryRefused,
        and Temporary."""
        known = {one.account: one for one in await self._find_recipients(is_any=True)}
        one = known.get(account) or self._describe(account, "user", every or self._every_of(account))
        if every in {"week", "month"}:
            one = self._describe(account, one.role, every)
        now = self._reader.hub.clock()
        period = find_period(one.every, self._settings, load_zone(one.zone), now)
        (made,) = await self._compose([one], period, await self._reader.read_period(period), now)
        message = None if made is None else self._write(one, period, made)
        content = None if message is None else message.mail
        return DigestPreview(
            account=account,
            period=period.name,
            start=period.start,
            end=period.end,
            due_at=period.due,
            zone=one.zone,
            title="" if message is None else message.title,
            text="" if content is None else content.text,
            html="" if content is None else content.html,
            to=[to.channel for to in ([] if message is None else self._find_channels(one, message))],
            not_sent=self._explain(one, message)
            if account in known
            else f"{account} is not an account that gets digests. Name one, or #CHANNEL of digests.channels.",
        )

    def _explain(self, one: Recipient, message: Message | None) -> str | None:
        """Why nothing is sent; None if it is."""
        if one.channel is None and self._every_of(one.account) == "off":
            return "digests are off: see digests.every in gpudeck.yaml."
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

    def _describe(self, account: str, role: Role, every: Frequency) -> Recipient:
        user, settings = self._auth.users.user_of(account), self._settings
        is_channel = account.startswith("#")
        return Recipient(
            account=account,
            role="admin" if is_channel else role,
            logins=frozenset() if is_channel else self._auth.users.logins_of(account),
            every="month" if every == "month" else "week",
            zone=user.zone or settings.zone,
            numbers=user.numbers or settings.numbers,
            groups=tuple(group for group, leads in settings.leads.items() if account in leads),
        )

    async def _find_recipients(self, *, is_any: bool = False) -> list[Recipient]:
        """Those that get digests and can be reached; with `is_any` all that are known. Raises Temporary."""
        roles: dict[str, Role] = dict.fromkeys(self._auth.users.accounts, "user")
        for account in await self._auth.accounts.list():
            roles[account.name] = account.role
            if account.is_disabled:
                del roles[account.name]
        found = [
            self._describe(account, role, self._every_of(account))
            for account, role in sorted(roles.items())
            if is_any or (self._every_of(account) != "off" and self._messages.reaches(account))
        ]
        channels = [] if self._messages.is_withheld and not is_any else self._settings.channels
        return found + [self._describe(f"#{name}", "admin", self._settings.every) for name in channels]

    async def _step(self, now: float) -> None:
        try:
            due = await self._find_due(now)
            by_period: dict[tuple[float, float], list[_Due]] = defaultdict(list)
            for one in due:
                by_period[one[1].start, one[1].end].append(one)
            for same in by_period.values():
                figures = await self._reader.read_period(same[0][1])
                for at in range(0, len(same), _AT_ONCE):
                    await self._send(same[at : at + _AT_ONCE], figures, now)
        except Temporary as error:
            log.debug("digests wait: %s", error)
        except HistoryRefused as error:
            self._next_at = now + _AGAIN_SECONDS
            log.warning("digests cannot be made: %s", error)
        except Exception:
            self._next_at = now + _AGAIN_SECONDS
            log.exception("digests could not be made")

    async def _find_due(self, now: float) -> list[_Due]:
        """Those that are not done. Who does not want any is noted, so that a later change of mind sends nothing old."""
        periods: dict[tuple[Every, str], DigestPeriod] = {}
        found: list[_Due] = []
        for one in await self._find_recipients():
            if (one.every, one.zone) not in periods:
                periods[one.every, one.zone] = find_period(one.every, self._settings, load_zone(one.zone), now)
            found.append((one, periods[one.every, one.zone]))
        done = await self._store.find_done({period.name for _, period in found})
        found = [
            (one, period)
            for one, period in found
            if (period.name, one.account) not in done and self._failed.get((period.name, one.account), 0.0) <= now
        ]
        muted = [one for one in found if one[0].channel is None and self._messages.is_muted(one[0].account, TOPIC)]
        if muted:
            await self._store.add([((period.name, one.account), "muted") for one, period in muted], now)
        return [one for one in found if one not in muted]

    async def _send(self, due: Sequence[_Due], figures: PeriodFigures, now: float) -> None:
        done: list[tuple[DigestKey, Outcome]] = []
        made = await self._compose([one for one, _ in due], due[0][1], figures, now)
        budget = LoopBudget()
        for (one, period), digest in zip(due, made, strict=True):
            await budget.checkpoint()
            key = period.name, one.account
            if digest is None:
                if key not in self._failed:
                    done.append((key, "no_data"))
                continue
            message = self._write(one, period, digest)
            if one.channel is None:
                self._messages.outbox.put(message)
            else:
                self._messages.outbox.put_to(message, Destination(one.channel))
            done.append((key, "sent"))
        await self._messages.outbox.flush()
        if done:
            await self._store.add(done, now)

    async def _compose(
        self, some: Sequence[Recipient], period: DigestPeriod, figures: PeriodFigures, now: float
    ) -> list[Digest | None]:
        """None where there is nothing to say, and for one that failed, which harms no other."""
        runs = await self._reader.read_runs(period, [one.logins for one in some])
        fleet = await self._reader.read_fleet(period) if any(one.sees_fleet for one in some) else None
        found: list[Digest | None] = []
        budget = LoopBudget()
        for one, own in zip(some, runs, strict=True):
            await budget.checkpoint()
            self._failed.pop((period.name, one.account), None)
            try:
                found.append(self._compose_one(one, period, figures, own, fleet, now))
            except Exception:
                log.exception("the digest of %s could not be made", one.account)
                self._failed[period.name, one.account] = now + _AGAIN_SECONDS
                found.append(None)
        return found

    def _compose_one(  # noqa: PLR0917 - what a digest is made of
        self,
        one: Recipient,
        period: DigestPeriod,
        figures: PeriodFigures,
        runs: OwnRuns,
        fleet: FleetFigures | None,
        now: float,
    ) -> Digest | None:
        zone: tzinfo = load_zone(one.zone)
        style = Style(one.numbers, zone, figures.usage.currency)
        sections: list[DigestSection] = []
        if (use := sum_use(figures, one.logins)) is not None:
            caller = Caller(kind="account", role=one.role, name=one.account, logins=one.logins)
            visibility = self._policy.visibility(caller)
            shows = all(visibility.shows_commands_of(login) for login in one.logins)
            sections.append(describe_own(figures, use, runs, style, shows_commands=shows))
        for group in one.groups:
            members = {row.user for row in figures.usage.rows if row.user and self._group_of(row.user) == group}
            sections.append(describe_group(figures, group, members, style))
        if one.sees_fleet and fleet is not None:
            sections += describe_fleet(figures, fleet, style, now)
        if not sections:
            return None
        link = "#/mine" if one.channel is None else "#/history"
        notes = self._note_ways_out(one)
        return make_digest(period, sections, notes, prefix=self._prefix, page=self._page, zone=one.zone, link=link)

    def _note_ways_out(self, one: Recipient) -> list[str]:
        if one.channel is not None:
            return ["This channel gets it as digests.channels in gpudeck.yaml says."]
        how = "run `gpudeck digest --off`, or clear “digests” on the page under Your account"
        return [f"You get this {_WORDS[one.every]}. To stop it, {how}."]

    def _write(self, one: Recipient, period: DigestPeriod, digest: Digest) -> Message:
        return Message(
            key=f"digest {period.name} {one.account}",
            at=period.due,
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
