"""The bot: answers one question, with the permissions of the user who asks. Uses the hub; of Slack it gets only the
user's ID."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import tzinfo
from functools import partial
from types import MappingProxyType
from typing import Final, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from gpudeck.alerts.watches import USUAL, Watches
from gpudeck.api.access import Policy
from gpudeck.api.history import HistoryQueries
from gpudeck.api.jobs import judge_runs
from gpudeck.api.reservations import ReservationHandler
from gpudeck.auth.auth import Auth
from gpudeck.auth.caller import NOBODY, Caller
from gpudeck.chat import answers
from gpudeck.chat.answers import MAX_RUNS, explain
from gpudeck.chat.blocks import ChatAnswer, escape, show_time, text_answer
from gpudeck.chat.commands import (
    LONGEST,
    Command,
    Name,
    TooLong,
    is_conversation,
    read_command,
    read_kind,
    read_mention,
    read_report,
    read_request,
    read_reservation,
    split_clauses,
)
from gpudeck.events.service import EventLog
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.visibility import Visibility
from gpudeck.history.base import RunsQuery, Store
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.times import read_span
from gpudeck.model.view import Fleet
from gpudeck.queueing.queue import WaitQueue
from gpudeck.reservations.calendar import ReservationCalendar
from gpudeck.reservations.conflicts import Conflict
from gpudeck.reservations.store import ReservationQuery

FROM = "Slack"
"""In the audit log, where the address stands."""
Read = Literal["everyone", "users"]
MAX_RESERVATIONS = 200
_WEEK = 7 * 86_400.0
_WRITING = {"reserve", "release", "watch", "watches", "unwatch"}
"""Commands that need the role user."""
FindZone = Callable[[str], Awaitable[tzinfo]]
"""The time zone of a Slack user, by ID."""
_LOOKS: Final[dict[Name, Callable[[Fleet, tuple[str, ...]], ChatAnswer]]] = {
    "help": lambda _, __: answers.answer_help(),
    "hosts": answers.answer_hosts,
    "all": answers.answer_fleet,
    "all_cmd": partial(answers.answer_fleet, table=True),
    "all_detail": partial(answers.answer_fleet, detail=True),
    "users": answers.answer_everybody,
    "alerts": answers.answer_alerts,
    "who": answers.answer_who,
    "other": answers.answer_other,
}
"""Commands that only read the fleet."""


class ChatUser(Struct, frozen=True):
    """`caller` is NOBODY if no entry of `users` names the `slack_id`.

    `trouble` is why a named person may do nothing. `is_guest`: perhaps of another organisation in the same channel.
    """

    slack_id: str
    caller: Caller
    trouble: str = ""
    is_guest: bool = False


class ChatUsers:
    """Finds users: Slack has the ID, the setting `users` the account."""

    def __init__(self, auth: Auth, policy: Policy, read: Read | None) -> None:
        self._auth = auth
        self._policy = policy
        self.is_open = policy.is_readable if read is None else read == "everyone"
        """Whether everyone in the workspace may look, and so may read answers in a channel."""

    async def find(self, slack_id: str, *, is_guest: bool = False) -> ChatUser:
        """Raises Temporary when the database does not answer."""
        name = self._auth.users.account_of_slack(slack_id)
        if name is None:
            return ChatUser(slack_id, NOBODY, is_guest=is_guest)
        account = await self._auth.accounts.find(name)
        if account is None:
            # An entry of `users` is enough only on a hub without accounts.
            if self._policy.needs_accounts or self._auth.has_accounts:
                return ChatUser(slack_id, NOBODY, f"the hub has no account {escape(name)} yet.")
            logins = self._auth.users.logins_of(name)
            return ChatUser(slack_id, Caller(kind="account", role="user", name=name, logins=logins, address=FROM))
        if account.is_disabled:
            return ChatUser(slack_id, NOBODY, f"the account {escape(name)} is disabled.")
        return ChatUser(slack_id, self._auth.caller_of(account, FROM))

    def may_look(self, user: ChatUser) -> bool:
        if user.caller.is_at_least("viewer"):
            return True
        return self.is_open and not user.is_guest and not user.trouble

    def logins_of_slack(self, slack_id: str) -> tuple[str, frozenset[str]] | None:
        """The account of a mentioned person, and their logins; None if unknown."""
        name = self._auth.users.account_of_slack(slack_id)
        return None if name is None else (name, self._auth.users.logins_of(name))

    def logins_of(self, name: str) -> frozenset[str]:
        """The logins of the person with that login or account."""
        users = self._auth.users
        return frozenset((name,)) | users.logins_of(users.account_of(name) or name.lower())


def explain_unknown_user(user: ChatUser) -> str:
    """Why they may not, and what to do, in Slack's markup."""
    if user.trouble:
        return f"I know you, but {user.trouble} Ask the admin of this hub."
    if user.is_guest:
        return "I answer people of this workspace only."
    return (
        "I do not know you yet. Ask the admin of this hub to put your Slack ID into `users` of gpudeck.yaml: "
        f"`slack: {escape(user.slack_id)}`"
    )


class BotServices(Struct, frozen=True):
    """The services that the bot uses; a missing one is named in the answer."""

    hub: Hub
    auth: Auth
    policy: Policy
    reservations: ReservationCalendar
    events: EventLog
    watches: Watches
    waiting: WaitQueue | None = None
    history: Store | None = None
    reaches: Callable[[str | None], bool] = field(default=lambda _: True)
    """Whether an account can be notified directly when one of its watches fires."""
    address: str = ""
    """Where users open the page, or where the hub listens."""


class CommandHandler:
    """One question of one user."""

    def __init__(self, services: BotServices, users: ChatUsers, zone: FindZone, user: ChatUser, *, is_private: bool):
        self._services = services
        self._users = users
        self._find_zone = zone
        self._user = user
        self._reservations_of_hub = ReservationHandler(services.hub, services.auth, services.reservations)
        self._questions = HistoryQueries(services.history, services.hub.clock)
        # All members of a channel read what is posted there: it shows what a caller without an account may see.
        self._visibility: Visibility = services.policy.visibility(user.caller if is_private else NOBODY)

    async def handle(self, command: Command) -> ChatAnswer:
        """Raises GpudeckError."""
        if command.name in _WRITING and (refusal := self._refuse_write()) is not None:
            return refusal
        if (question := _LOOKS.get(command.name)) is not None:
            return await self._look(lambda fleet: question(fleet, command.words))
        answer: Callable[[tuple[str, ...]], Awaitable[ChatAnswer]] = getattr(self, f"_{command.name}")
        return await answer(command.words)

    async def _look(self, question: Callable[[Fleet], ChatAnswer]) -> ChatAnswer:
        """In a thread: a large fleet takes a while to read."""
        return await asyncio.to_thread(question, await self._services.hub.stream.fresh_view(self._visibility))

    async def _free(self, words: tuple[str, ...]) -> ChatAnswer:
        asked = read_request(words)
        caller = self._user.caller
        names = frozenset((caller.name,)) if caller.name else frozenset[str]()
        claimed = () if self._services.waiting is None else tuple(self._services.waiting.claimed)
        return await self._look(lambda fleet: answers.answer_free(fleet, asked, names, claimed))

    async def _where(self, words: tuple[str, ...]) -> ChatAnswer:
        """A person by login, account or mention; a host; or the hub itself, as the predecessor's WHERE."""
        if not words:
            return await self._look(lambda fleet: answers.answer_hub(fleet, self._services.address))
        word = words[0]
        if (mentioned := read_mention(word)) is not None:
            known = self._users.logins_of_slack(mentioned)
            if known is None:
                return text_answer("`users` of gpudeck.yaml has no such Slack ID.")
            word, logins = known
        else:
            logins = self._users.logins_of(word)

        def find(fleet: Fleet) -> ChatAnswer:
            name = None if mentioned else answers.find_name(fleet, word)
            if name is None:
                return answers.answer_where(fleet, word, logins)
            return answers.answer_place(fleet, name, with_address=True)

        return await self._look(find)

    async def _reservations(self, words: tuple[str, ...]) -> ChatAnswer:
        word = words[0] if words else None
        is_own = word is not None and word.lower() in {"mine", "my", "me"}
        host = None if word is None or is_own else self._spell(word)
        user = self._user.caller.name if is_own else word if host is None else None
        if is_own and not user:
            return text_answer(explain_unknown_user(self._user), is_private=True)
        now = self._reservations_of_hub.now()
        found = await self._services.reservations.search(
            ReservationQuery(start=now, host=host, user=user, limit=MAX_RESERVATIONS)
        )
        return answers.answer_reservations(self._reservations_of_hub.show_all(found), now)

    async def _reserve(self, words: tuple[str, ...]) -> ChatAnswer:
        zone = await self._find_zone(self._user.slack_id)
        draft = read_reservation(words, self._reservations_of_hub.now(), zone)
        if draft.wanted.host is not None:
            wanted = replace(draft.wanted, host=self._spell(draft.wanted.host) or draft.wanted.host)
            draft = replace(draft, wanted=wanted)
        # In the name of the user who asked only.
        try:
            made = await self._reservations_of_hub.reserve(draft, self._user.caller, None)
        except Conflict as conflict:
            return answers.answer_conflict(conflict)
        return answers.answer_reserved(made)

    async def _release(self, words: tuple[str, ...]) -> ChatAnswer:
        number = read_number(words, "release 12")
        return answers.answer_released(await self._reservations_of_hub.release(number, self._user.caller))

    async def _report(self, words: tuple[str, ...]) -> ChatAnswer:
        zone = await self._find_zone(self._user.slack_id)
        ask = read_report(words, self._questions.now(), zone)
        return answers.answer_report(await self._questions.ask(lambda store: store.usage(ask)))

    async def _runs(self, _: tuple[str, ...]) -> ChatAnswer:
        """Of the user, under all of their logins."""
        if not (logins := sorted(self._user.caller.logins)):
            return text_answer(explain_unknown_user(self._user), is_private=True)
        history = self._questions
        now = history.now()
        queries = [RunsQuery(now - _WEEK, user=login, limit=MAX_RUNS) for login in logins]
        pages = await history.ask(lambda store: [store.runs(query) for query in queries])
        runs = (run for page in pages for run in page.runs)
        newest = sorted(runs, key=lambda run: run.seen_at, reverse=True)[:MAX_RUNS]
        return answers.answer_runs(await judge_runs(history, self._services.events, newest), now)

    async def _watch(self, words: tuple[str, ...]) -> ChatAnswer:
        if not words:
            return await self._watches(words)
        kind, clauses = split_clauses(words, ("for",))
        wanted = read_kind(kind)
        seconds = read_span("for", clauses["for"]) if "for" in clauses else USUAL
        if seconds < 60:
            raise UsageError("the shortest watch is a minute.")
        caller = self._user.caller
        made = await self._services.watches.add(caller.name, caller.name, wanted, seconds)
        await self._services.auth.audit.record(caller, "add watch", f"{made.id} {made.user}", details=wanted.describe())
        told = "I'll notify you" if self._services.reaches(caller.name) else "An event will appear on the page"
        return text_answer(
            f"{told} when there are: *{escape(wanted.describe())}*. It is watch {made.id}, "
            f"until {show_time(made.expires_at)}. This does not reserve them."
        )

    async def _watches(self, _: tuple[str, ...]) -> ChatAnswer:
        lines = [
            f"watch {one.id}: {escape(one.wanted.describe())}, until {show_time(one.expires_at)}"
            for one in self._services.watches.open
            if one.user == self._user.caller.name
        ]
        return text_answer(*(lines or ["You watch nothing.", "`watch 2 h100 40G` notifies you when they are free."]))

    async def _unwatch(self, words: tuple[str, ...]) -> ChatAnswer:
        number, caller = read_number(words, "unwatch 3"), self._user.caller
        one = self._services.watches.find(number)
        if one is None or one.user != caller.name or not await self._services.watches.remove(number):
            return text_answer(f"You have no watch {number}.")
        await self._services.auth.audit.record(caller, "remove watch", str(number))
        return text_answer(f"Watch {number} is removed.")

    def _refuse_write(self) -> ChatAnswer | None:
        """None if the user may change something."""
        caller = self._user.caller
        if caller.is_at_least("user"):
            return None
        if not caller.is_at_least("viewer"):
            return text_answer(explain_unknown_user(self._user), is_private=True)
        return text_answer(
            f"{escape(caller.name)} has the role {caller.role}, and this needs the role user.", is_private=True
        )

    def _spell(self, name: str) -> str | None:
        """The exact name of a host, from a name in any case; None without such a host."""
        names = [host.name for host in self._services.hub.fleet.ordered()]
        return name if name in names else next((one for one in names if one.lower() == name.lower()), None)


def read_number(words: tuple[str, ...], example: str) -> int:
    """Raises UsageError."""
    text = words[0].lstrip("#") if len(words) == 1 else ""
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise UsageError("which number?", f"Such as '{example}'.")
    return int(text)


class Question(Struct, frozen=True, kw_only=True):
    """The message of a user. `bot` is the bot's own ID. `is_private`: only that user sees the answer. `is_addressed`:
    it is meant for the bot. `is_shared`: the channel is shared with another organisation."""

    text: str
    slack_id: str
    bot: str | None = None
    is_private: bool = False
    is_addressed: bool = True
    is_shared: bool = False


class Bot:
    """Never raises for what a person typed: a mistake is an answer. One event loop owns it."""

    def __init__(
        self,
        services: BotServices,
        find_zone: FindZone,
        read: Read | None = None,
        keywords: Mapping[str, Name] = MappingProxyType({}),
    ) -> None:
        """`read` says who may look; if None, the policy of the hub. `keywords` are the site's own words for
        commands."""
        self._services = services
        self._users = ChatUsers(services.auth, services.policy, read)
        self._find_zone = find_zone
        self._keywords = keywords

    async def answer(self, question: Question) -> ChatAnswer | None:
        """None where the bot was not meant."""
        try:
            command = read_command(question.text, question.bot, self._keywords)
        except TooLong:
            return text_answer(f"That is longer than {LONGEST} characters.") if question.is_addressed else None
        if not question.is_addressed and (is_conversation(command) or not self._is_ours(command)):
            return None
        # Unless everyone may look, only the user who asked sees the answer to a question in a channel.
        is_private = question.is_private or question.is_shared or not self._users.is_open
        try:
            user = await self._users.find(question.slack_id, is_guest=question.is_shared)
            if not self._users.may_look(user):
                return text_answer(explain_unknown_user(user), is_private=True)
            handler = CommandHandler(self._services, self._users, self._find_zone, user, is_private=is_private)
            given = await handler.handle(command)
        except GpudeckError as error:
            return text_answer(explain(error), is_private=is_private)
        return replace(given, is_private=True) if is_private else given

    def _is_ours(self, command: Command) -> bool:
        if command.name != "other":
            return True
        word = command.words[0].lower()
        return any(word in {host.name.lower(), host.id} for host in self._services.hub.fleet.hosts.values())
