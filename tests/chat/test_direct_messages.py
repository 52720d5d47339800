"""Messages that the bot writes to people by themselves, through the real client against a stand-in for Slack."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from alerts.notifiers.sinks import make_message
from fakes.chats import ADA, Lab
from fakes.slack import APP_TOKEN, BOT_TOKEN, FakeSlack, buttons_of, read, running_slack
from fakes.waiting import until
from gpudeck.alerts.notifiers.rendering import Message
from gpudeck.alerts.notifiers.sender_process import Unreached
from gpudeck.chat.service import DirectMessageChannel
from gpudeck.chat.settings import SlackSettings
from gpudeck.chat.slack import SlackBot
from gpudeck.model.errors import GpudeckError, Refused, Temporary

HOSTILE = "<!channel> <@U1> *x* `y` https://evil.example <https://evil.example|bank>\n\r\u202e" + 300 * "x"


class Hub:
    """A bot that is connected, and what a hub sends with."""

    def __init__(self, folder: Path) -> None:
        self.lab = Lab(folder)
        self.post = DirectMessageChannel(self.lab.auth.users.user_of, "https://gpus.example.org/")

    def send(self, message: Message, account: str = "ada", **refusals: Any) -> FakeSlack:
        """Raises what sending raises."""
        return asyncio.run(self._send(message, account, refusals))

    async def _send(self, message: Message, account: str, refusals: dict[str, Any]) -> FakeSlack:
        async with running_slack() as slack:
            settings = SlackSettings(app_token=APP_TOKEN, bot_token=BOT_TOKEN, api_url=slack.api)
            bot = SlackBot(settings, self.lab.place, lambda _: None, first_pause=0.02)
            self.post.connect(bot.write_to)
            running = asyncio.create_task(bot.run())
            try:
                await until(lambda: slack.opened, "the bot's connection")
                slack.refusals |= {"chat.postMessage": refusals} if refusals else {}
                await self.post.send(message, account)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
            return slack


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    return Hub(tmp_path)


def test_a_message_is_a_direct_one_with_a_way_to_the_page(hub: Hub) -> None:
    slack = hub.send(make_message())
    [said] = slack.said
    assert said["channel"] == f"D{ADA[1:]}"
    assert read(said).startswith("*gpu07 is down*\nIt has not reported for 60 s.\nLook at its power and network.")
    assert [one["url"] for one in buttons_of(said)] == ["https://gpus.example.org/#/host/gpu07"]
    assert said["text"] == "gpu07 is down"


def test_hostile_names_call_nobody_and_lead_nowhere(hub: Hub) -> None:
    """The stand-in complains of every mention and link in what it gets, and of what is too long."""
    slack = hub.send(make_message(title=HOSTILE, lines=(HOSTILE,) * 30, action=HOSTILE))
    [said] = slack.said
    assert "&lt;!channel&gt;" in read(said)
    assert "… and 10 more" in read(said)
    assert "\r" not in read(said)
    assert "<" not in said["text"]


def test_a_watch_tells_the_words_of_the_bot(hub: Hub) -> None:
    [said] = hub.send(make_message(kind="watch", action="They are not reserved: `gpudeck reserve` does that.")).said
    assert "`reserve` does that" in read(said)


@pytest.mark.parametrize(
    ("code", "kind", "told"),
    [
        ("user_not_found", Unreached, "does not let the bot write to this user (user_not_found)"),
        ("channel_not_found", Unreached, "does not let the bot write to this user"),
        ("token_revoked", Refused, "Slack refuses the bot's bot_token (token_revoked, "),
        ("missing_scope", Refused, "bot_token (missing_scope, it needs chat:write)"),
        ("fatal_error", Temporary, "Slack answers fatal_error"),
    ],
)
def test_what_slack_refuses_is_told_in_words(hub: Hub, code: str, kind: type[GpudeckError], told: str) -> None:
    with pytest.raises(kind) as caught:
        hub.send(make_message(), error=code, needed="chat:write")
    assert told in str(caught.value)
    assert type(caught.value) is kind


def test_who_has_no_id_any_more_cannot_be_told(hub: Hub) -> None:
    with pytest.raises(Unreached, match="users has no Slack ID of eve any more"):
        hub.send(make_message(), "eve")


def test_before_a_bot_runs_it_is_tried_again(hub: Hub) -> None:
    with pytest.raises(Temporary, match="not connected"):
        asyncio.run(hub.post.send(make_message(), "ada"))
