"""The bot: a question in, an answer out. Knows the hub, and of Slack only the ID of whoever asks."""

from msgspec import Struct
from msgspec.structs import replace

from gpudeck.chat.askers import explain_stranger
from gpudeck.chat.blocks import Answer, say
from gpudeck.chat.bookings import explain
from gpudeck.chat.commands import LONGEST, Command, TooLong, is_talk, read_command
from gpudeck.chat.turn import FindZone, Place, Turn
from gpudeck.model.errors import GpudeckError


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

    def __init__(self, place: Place, find_zone: FindZone) -> None:
        self._place = place
        self._askers = place.askers
        self._find_zone = find_zone

    async def answer(self, question: Question) -> Answer | None:
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

    async def press(self, action: str, value: str, slack_id: str) -> Answer:
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
