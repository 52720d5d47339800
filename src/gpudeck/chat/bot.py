"""The bot: a question in, an answer out, with what the asker may see and do. Knows the hub, and of Slack only the ID of
whoever asks.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import tzinfo
from functools import partial
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from gpudeck.alerts.watches import USUAL, Watches
from gpudeck.api.access import Policy
from gpudeck.api.booking_desk import BookingDesk
from gpudeck.api.questions import Questions
from gpudeck.auth.audit import Audit
from gpudeck.auth.caller import NOBODY, Caller
from gpudeck.auth.parts import Auth
from gpudeck.chat import answers
from gpudeck.chat.blocks import ChatAnswer, escape, say, show_time
from gpudeck.chat.bookings import (
    BOOK,
    RELEASE,
    BookingOffer,
    Return,
    answer_booked,
    answer_bookings,
    answer_conflict,
    answer_released,
    explain,
    read_button,
)
from gpudeck.chat.commands import (
    LONGEST,
    Command,
    Name,
    TooLong,
    is_talk,
    read_asked,
    read_booking,
    read_command,
    read_kind,
    read_mention,
    read_report,
    split_clauses,
)
from gpudeck.hub.hub import Hub
from gpudeck.hub.sight import Sight
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.moments import read_span
from gpudeck.model.view import Fleet
from gpudeck.queueing.queue import WaitQueue
from gpudeck.reservations.requests import ReservationDraft
from gpudeck.reservations.rules import Conflict
from gpudeck.reservations.store import ReservationAsk

FROM = "Slack"
"""In the audit log, where the address stands."""
Read = Literal["everyone", "people"]
MOST_BOOKINGS = 200
FindZone = Callable[[str], Awaitable[tzinfo]]
"""The zone of somebody in Slack, by their ID."""


class Asker(Struct, frozen=True):
    """`slack_id` is theirs, `caller` who they are to the hub: nobody, where no entry of `people` names the ID.

    `trouble` is why somebody who is named may do nothing. `is_guest` is for those who may be of another organisation,
    which is in the same channel.
    """

    slack_id: str
    caller: Caller
    trouble: str = ""
    is_guest: bool = False


class Askers:
    """Looks people up. Nobody is believed who they say they are: Slack tells the ID, `people` the account."""

    def __init__(self, auth: Auth, policy: Policy, read: Read | None) -> None:
        self._auth = auth
        self._policy = policy
        self._is_open = policy.is_readable if read is None else read == "everyone"

    @property
    def is_open(self) -> bool:
        """Whether everyone in the workspace may look, and so may read answers that stand in a channel."""
        return self._is_open

    async def find(self, slack_id: str, *, is_guest: bool = False) -> Asker:
        """Raises Temporary when the database does not answer."""
        name = self._auth.people.account_of_slack(slack_id)
        if name is None:
            return Asker(slack_id, NOBODY, is_guest=is_guest)
        account = await self._auth.accounts.find(name)
        if account is None:
            return self._without_account(slack_id, name)
        if account.is_disabled:
            return Asker(slack_id, NOBODY, f"the account {escape(name)} is disabled.")
        return Asker(slack_id, self._auth.caller_of(account, FROM))

    def may_look(self, asker: Asker) -> bool:
        if asker.caller.is_at_least("viewer"):
            return True
        return self._is_open and not asker.is_guest and not asker.trouble

    def logins_of_slack(self, slack_id: str) -> tuple[str, frozenset[str]] | None:
        """The account of somebody who was mentioned, and their names on the hosts; None where nobody knows them."""
        name = self._auth.people.account_of_slack(slack_id)
        return None if name is None else (name, self._auth.people.logins_of(name))

    def logins_of(self, name: str) -> frozenset[str]:
        """The names on the hosts of whoever is called so, there or on the hub."""
        people = self._auth.people
        return frozenset((name,)) | people.logins_of(people.account_of(name) or name.lower())

    def _without_account(self, slack_id: str, name: str) -> Asker:
        """Where a hub has accounts, an entry alone makes nobody a user; where it has none, the entry is all there is:
        whoever writes the configuration decides."""
        if self._policy.needs_accounts or self._auth.has_accounts:
            return Asker(slack_id, NOBODY, f"the hub has no account {escape(name)} yet.")
        logins = self._auth.people.logins_of(name)
        return Asker(slack_id, Caller(kind="account", role="user", name=name, logins=logins, address=FROM))


def explain_stranger(asker: Asker) -> str:
    """Why they may not, and what to do, in Slack's markup."""
    if asker.trouble:
        return f"I know you, but {asker.trouble} Ask whoever runs this hub."
    if asker.is_guest:
        return "I answer people of this workspace only."
    return (
        "I do not know you yet. Ask whoever runs this hub to put your Slack ID into `people` of gpudeck.yaml: "
        f"`slack: {escape(asker.slack_id)}`"
    )


def explain_role(asker: Asker) -> str:
    return f"{escape(asker.caller.name)} has the role {asker.caller.role}, and this needs the role user."


class BotServices(Struct, frozen=True):
    """The rooms that the bot asks. Without one it says so. `audit` is where what is changed is written down."""

    hub: Hub
    policy: Policy
    askers: Askers
    desk: BookingDesk
    audit: Audit
    questions: Questions
    waiting: WaitQueue | None = None
    watches: Watches | None = None
    reaches: Callable[[str | None], bool] = field(default=lambda _: True)
    """Whether an account can be told by itself, when a watch of theirs fires."""
    keywords: Mapping[str, Name] = field(default_factory=dict)
    """Words of the site's own for commands."""
    address: str = ""
    """Where people open the page, or where the hub listens."""


class Turn:
    """One question of one person."""

    def __init__(self, place: BotServices, find_zone: FindZone, asker: Asker, *, is_private: bool) -> None:
        self._place = place
        self._find_zone = find_zone
        self._asker = asker
        # What stands in a channel is read by everybody there: they see what a stranger may see.
        self._sight: Sight = place.policy.sight(asker.caller if is_private else NOBODY)

    async def take(self, command: Command) -> ChatAnswer:
        """Raises GpudeckError."""
        takers: dict[Name, Callable[[tuple[str, ...]], Awaitable[ChatAnswer]]] = {
            "help": self._help,
            "free": self._free,
            "hosts": self._hosts,
            "all": self._all,
            "all_cmd": partial(self._all, table=True),
            "all_detail": partial(self._all, detail=True),
            "users": self._users,
            "alerts": self._alerts,
            "who": self._who,
            "where": self._where,
            "bookings": self._bookings,
            "book": self._book,
            "release": self._release,
            "report": self._report,
            "watch": self._watch,
            "watches": self._watches,
            "unwatch": self._unwatch,
            "other": self._other,
        }
        return await takers[command.name](command.words)

    async def press(self, action: str, value: str) -> ChatAnswer:
        """Raises GpudeckError."""
        found = read_button(value, BookingOffer) if action == BOOK else read_button(value, Return)
        if found is None or action not in {BOOK, RELEASE}:
            return say("I no longer know that button. Ask again.", is_private=True)
        if found.asker != self._asker.slack_id:
            return say("That was offered to somebody else. Ask me yourself.", is_private=True)
        if isinstance(found, BookingOffer):
            return await self._write_booking(found.draft)
        return await self._give_back(found.number)

    async def _look(self, question: Callable[[Fleet], ChatAnswer]) -> ChatAnswer:
        """In a thread: a large fleet takes a while to read."""
        return await asyncio.to_thread(question, await self._place.hub.stream.fresh_view(self._sight))

    async def _help(self, _: tuple[str, ...]) -> ChatAnswer:
        return answers.answer_help()

    async def _hosts(self, words: tuple[str, ...]) -> ChatAnswer:
        return await self._look(lambda fleet: answers.answer_hosts(fleet, words))

    async def _users(self, words: tuple[str, ...]) -> ChatAnswer:
        return await self._look(lambda fleet: answers.answer_everybody(fleet, words))

    async def _alerts(self, words: tuple[str, ...]) -> ChatAnswer:
        return await self._look(lambda fleet: answers.answer_alerts(fleet, words))

    async def _all(self, words: tuple[str, ...], *, detail: bool = False, table: bool = False) -> ChatAnswer:
        return await self._look(lambda fleet: answers.answer_fleet(fleet, words, detail=detail, table=table))

    async def _free(self, words: tuple[str, ...]) -> ChatAnswer:
        asked = read_asked(words)
        caller = self._asker.caller
        names = frozenset((caller.name,)) if caller.name else frozenset[str]()
        kept = () if self._place.waiting is None else tuple(self._place.waiting.kept)
        return await self._look(lambda fleet: answers.answer_free(fleet, asked, names, kept))

    async def _who(self, words: tuple[str, ...]) -> ChatAnswer:
        if len(words) != 1:
            return (
                await self._look(answers.answer_everybody)
                if not words
                else say("Such as `who gpu07` or `who gpu07:3`.")
            )
        return await self._look(lambda fleet: answers.answer_who(fleet, words[0]))

    async def _where(self, words: tuple[str, ...]) -> ChatAnswer:
        """Somebody by login, account or mention; a host, or none for the hub itself, as the predecessor's WHERE."""
        if not words:
            return await self._look(lambda fleet: answers.answer_hub(fleet, self._place.address))
        word = words[0]
        if (mentioned := read_mention(word)) is not None:
            known = self._place.askers.logins_of_slack(mentioned)
            if known is None:
                return say("I do not know who that is on the hosts: `people` of gpudeck.yaml names no such Slack ID.")
            word, logins = known
        else:
            logins = self._place.askers.logins_of(word)

        def find(fleet: Fleet) -> ChatAnswer:
            name = None if mentioned else answers.find_name(fleet, word)
            if name is None:
                return answers.answer_where(fleet, word, logins)
            return answers.answer_who(fleet, name, with_address=True)

        return await self._look(find)

    async def _other(self, words: tuple[str, ...]) -> ChatAnswer:
        """The name of a host, a GPU, a host with words, or the words of a search alone."""
        name, *more = words

        def find(fleet: Fleet) -> ChatAnswer:
            found = None if more else answers.answer_host(fleet, name)
            if found is not None:
                return found
            if more and more[-1].lower() in {"detail", "details"} and answers.find_name(fleet, name) is not None:
                return answers.answer_fleet(fleet, words[:-1], detail=True)
            if answers.is_search(fleet, words):
                return answers.answer_fleet(fleet, words)
            if not more and (":" in name or name.upper().startswith(("GPU-", "MIG-"))):
                return answers.answer_who(fleet, name)
            return answers.answer_help(answers.no_such_command(fleet, name))

        return await self._look(find)

    async def _bookings(self, words: tuple[str, ...]) -> ChatAnswer:
        word = words[0] if words else None
        is_own = word is not None and word.lower() in {"mine", "my", "me"}
        host = None if word is None or is_own else self._spell(word)
        user = self._asker.caller.name if is_own else word if host is None else None
        if is_own and not user:
            return say(explain_stranger(self._asker), is_private=True)
        now = self._place.desk.now()
        found = await self._place.desk.search(ReservationAsk(start=now, host=host, user=user, limit=MOST_BOOKINGS))
        return answer_bookings(self._place.desk.show_all(found), now)

    async def _book(self, words: tuple[str, ...]) -> ChatAnswer:
        if (refusal := self._refuse_write()) is not None:
            return refusal
        zone = await self._find_zone(self._asker.slack_id)
        draft = read_booking(words, self._place.desk.now(), zone)
        if draft.wish.host is not None:
            wish = replace(draft.wish, host=self._spell(draft.wish.host) or draft.wish.host)
            draft = replace(draft, wish=wish)
        return await self._write_booking(draft)

    async def _write_booking(self, draft: ReservationDraft) -> ChatAnswer:
        """As whoever asks, and never as anybody else: the desk is told no other name."""
        if (refusal := self._refuse_write()) is not None:
            return refusal
        try:
            made = await self._place.desk.book(draft, self._asker.caller, None)
        except Conflict as conflict:
            return answer_conflict(conflict, self._asker.slack_id, draft.note)
        return answer_booked(made, self._asker.slack_id)

    async def _release(self, words: tuple[str, ...]) -> ChatAnswer:
        return await self._give_back(read_number(words, "release 12"))

    async def _give_back(self, number: int) -> ChatAnswer:
        if (refusal := self._refuse_write()) is not None:
            return refusal
        after = await self._place.desk.release(number, self._asker.caller)
        return answer_released(after, after.state)

    async def _report(self, words: tuple[str, ...]) -> ChatAnswer:
        zone = await self._find_zone(self._asker.slack_id)
        ask = read_report(words, self._place.questions.now(), zone)
        return answers.answer_report(await self._place.questions.ask(lambda store: store.usage(ask)))

    async def _watch(self, words: tuple[str, ...]) -> ChatAnswer:
        if not words:
            return await self._watches(words)
        if (refusal := self._refuse_write()) is not None:
            return refusal
        kind, clauses = split_clauses(words, ("for",))
        wanted = read_kind(kind)
        seconds = read_span("for", clauses["for"]) if "for" in clauses else USUAL
        if seconds < 60:
            raise UsageError("the shortest watch is a minute.")
        caller = self._asker.caller
        made = await self._all_watches.add(caller.name, caller.name, wanted, seconds)
        await self._place.audit.record(caller, "add watch", f"{made.id} {made.user}", details=wanted.describe())
        told = "I tell you" if self._place.reaches(caller.name) else "The page tells you (I may not write by myself)"
        return say(
            f"{told} when there are: *{escape(wanted.describe())}*. It is watch {made.id}, "
            f"until {show_time(made.expires_at)}. Nothing is held then: whoever is first has them."
        )

    async def _watches(self, _: tuple[str, ...]) -> ChatAnswer:
        if (refusal := self._refuse_write()) is not None:
            return refusal
        lines = [
            f"watch {one.id}: {escape(one.wanted.describe())}, until {show_time(one.expires_at)}"
            for one in self._all_watches.open
            if one.user == self._asker.caller.name
        ]
        return say(*(lines or ["You watch nothing.", "`watch 2 h100 40G` tells you when they are free."]))

    async def _unwatch(self, words: tuple[str, ...]) -> ChatAnswer:
        if (refusal := self._refuse_write()) is not None:
            return refusal
        number, caller = read_number(words, "unwatch 3"), self._asker.caller
        one = self._all_watches.find(number)
        if one is None or one.user != caller.name or not await self._all_watches.remove(number):
            return say(f"You have no watch {number}.")
        await self._place.audit.record(caller, "remove watch", str(number))
        return say(f"Watch {number} is over.")

    @property
    def _all_watches(self) -> Watches:
        if self._place.watches is None:
            raise UsageError("this hub keeps no watches.")
        return self._place.watches

    def _refuse_write(self) -> ChatAnswer | None:
        """None for whoever may change something."""
        caller = self._asker.caller
        if caller.is_at_least("user"):
            return None
        is_known = caller.is_at_least("viewer")
        return say(explain_role(self._asker) if is_known else explain_stranger(self._asker), is_private=True)

    def _spell(self, name: str) -> str | None:
        """A host's name as it is written, from one in any case; None where there is none."""
        names = [host.name for host in self._place.hub.fleet.ordered()]
        return name if name in names else next((one for one in names if one.lower() == name.lower()), None)


def read_number(words: tuple[str, ...], example: str) -> int:
    """Raises UsageError."""
    text = words[0].lstrip("#") if len(words) == 1 else ""
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise UsageError("which number?", f"Such as '{example}'.")
    return int(text)


class Question(Struct, frozen=True, kw_only=True):
    """What somebody wrote. `bot` is the bot's own ID; `is_private` says that nobody else sees the answer; where the bot
    is not addressed (`is_addressed`), people talk to each other. `is_shared` is a channel with another organisation in
    it."""

    text: str
    slack_id: str
    bot: str | None = None
    is_private: bool = False
    is_addressed: bool = True
    is_shared: bool = False


class Bot:
    """Never raises for what somebody typed: a mistake is an answer. One event loop owns it."""

    def __init__(self, place: BotServices, find_zone: FindZone) -> None:
        self._place = place
        self._askers = place.askers
        self._find_zone = find_zone

    async def answer(self, question: Question) -> ChatAnswer | None:
        """None where the bot was not meant."""
        try:
            command = read_command(question.text, question.bot, self._place.keywords)
        except TooLong:
            return say(f"That is longer than {LONGEST} characters.") if question.is_addressed else None
        if not question.is_addressed and (is_talk(command) or not self._is_ours(command)):
            return None
        # Where not everyone may look, what is asked before others is answered to whoever asks alone.
        is_private = question.is_private or question.is_shared or not self._askers.is_open
        try:
            asker = await self._askers.find(question.slack_id, is_guest=question.is_shared)
            if not self._askers.may_look(asker):
                return say(explain_stranger(asker), is_private=True)
            given = await Turn(self._place, self._find_zone, asker, is_private=is_private).take(command)
        except GpudeckError as error:
            return say(explain(error), is_private=is_private)
        return replace(given, is_private=True) if is_private else given

    async def press(self, action: str, value: str, slack_id: str) -> ChatAnswer:
        """Somebody pressed a button below one of our answers."""
        try:
            asker = await self._askers.find(slack_id)
            turn = Turn(self._place, self._find_zone, asker, is_private=True)
            return await turn.press(action, value)
        except GpudeckError as error:
            return say(explain(error), is_private=True)

    def _is_ours(self, command: Command) -> bool:
        if command.name != "other":
            return True
        word = command.words[0].lower()
        return any(word in {host.name.lower(), host.id} for host in self._place.hub.fleet.hosts.values())
