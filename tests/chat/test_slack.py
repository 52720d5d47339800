"""The bot with the real slack-sdk against a stand-in for Slack: every call has the shape that Slack demands."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.chats import ADA, BOB, EVE, Lab
from fakes.reports import make_gpu
from fakes.slack import APP_TOKEN, BOT, BOT_TOKEN, FakeSlack, read, running_slack
from fakes.waiting import until
from gpudeck.chat import slack as slack_module
from gpudeck.chat.settings import SlackSettings
from gpudeck.chat.slack import SlackBot

SECRETS = ("secret", APP_TOKEN, BOT_TOKEN)


class Bench:
    """A bot that is connected to a Slack of its own."""

    def __init__(self, lab: Lab, slack: FakeSlack) -> None:
        self.lab = lab
        self.slack = slack
        self.problems: list[str | None] = []
        self.running: asyncio.Task[None] | None = None

    async def end(self) -> None:
        """The bot, not its Slack."""
        assert self.running is not None
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)

    async def answer(self, sending: Any) -> dict[str, Any]:
        """What is said next."""
        before = len(self.slack.said)
        await sending
        await until(lambda: len(self.slack.said) > before, "an answer")
        return self.slack.said[-1]


@contextlib.asynccontextmanager
async def running_bot(
    lab: Lab, *, is_connected: bool = True, prepare: Callable[[FakeSlack], None] | None = None, **settings: Any
) -> AsyncIterator[Bench]:
    async with running_slack() as slack:
        if prepare is not None:
            prepare(slack)
        bench = Bench(lab, slack)
        tokens = {} if "bot_token_file" in settings else {"bot_token": BOT_TOKEN}
        chosen = SlackSettings(**{"app_token": APP_TOKEN, "api_url": slack.api} | tokens | settings)
        bot = SlackBot(chosen, lab.place, bench.problems.append, first_pause=0.02)
        bench.running = asyncio.create_task(bot.run())
        try:
            if is_connected:
                await until(lambda: slack.opened, "a connection")
            yield bench
        finally:
            await bench.end()


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_a_bot_leaves_what_the_hub_logs_alone(lab: Lab) -> None:
    async def scenario() -> None:
        async with running_bot(lab) as bench:
            await bench.answer(bench.slack.write("free"))

    before = logging.getLogger("gpudeck").level
    asyncio.run(scenario())
    assert logging.getLogger("gpudeck").level == before


def test_a_direct_message_is_answered(lab: Lab) -> None:
    async def scenario() -> None:
        async with running_bot(lab) as bench:
            said = await bench.answer(bench.slack.write("free"))
            assert said["channel"] == "D0ADA"
            assert "3 of 5 GPUs" in read(said)
            assert "3 of 5 GPUs" in said["text"]
            assert said["unfurl_links"] in {False, "0"}

    asyncio.run(scenario())


def test_a_mention_is_answered_in_its_channel_and_thread(lab: Lab) -> None:
    async def scenario() -> None:
        async with running_bot(lab) as bench:
            said = await bench.answer(bench.slack.mention("hosts", event={"thread_ts": "7.7"}))
            assert (said["channel"], said["thread_ts"], said["is_ephemeral"]) == ("C0GPUS", "7.7", False)
            assert "gpu01" in read(said)

    asyncio.run(scenario())


@pytest.mark.parametrize("command", ["/gpu", "/gpus-of-the-lab"])
def test_a_slash_command_is_answered_to_whoever_typed_it(lab: Lab, command: str) -> None:
    async def scenario() -> None:
        async with running_bot(lab) as bench:
            said = await bench.answer(bench.slack.slash("who gpu01", command=command))
            assert said["is_response"]
            assert said["is_ephemeral"]
            assert "alice" in read(said)

    asyncio.run(scenario())


def test_every_envelope_is_acknowledged_also_those_that_are_nothing_to_us(lab: Lab) -> None:
    async def scenario() -> None:
        async with running_bot(lab) as bench:
            slack = bench.slack
            numbers = [
                await slack.send("events_api", {"type": "event_callback", "event": {"type": "reaction_added"}}),
                await slack.send("interactive", {"type": "view_closed"}),
                await slack.send("events_api", "nonsense"),
                await slack.send("something_new", {}),
                await slack.write("hosts"),
            ]
            await slack.sockets[-1].send_str("no json")
            await slack.sockets[-1].send_str("[]")
            await until(lambda: set(numbers) <= slack.acks.keys(), "acknowledgements")
            await until(lambda: slack.said, "an answer")

    asyncio.run(scenario())


def test_an_acknowledgement_does_not_wait_for_slacks_api(lab: Lab) -> None:
    async def scenario() -> None:
        async with running_bot(lab) as bench:
            bench.slack.hanging.add("chat.postMessage")
            numbers = [await bench.slack.write("free") for _ in range(10)]
            await until(lambda: set(numbers) <= bench.slack.acks.keys(), "acknowledgements", 3)

    asyncio.run(scenario())


def test_a_bot_that_is_ended_in_the_middle_of_questions_leaves_no_work_behind(lab: Lab) -> None:
    async def scenario() -> None:
        async with running_bot(lab) as bench:
            bench.slack.hanging.add("chat.postMessage")
            for user in (ADA, BOB, EVE):
                await bench.slack.write("free", user=user)
            await until(lambda: "chat.postMessage" in dict(bench.slack.calls), "an answer")
            numbers = [await bench.slack.write("reserve gpu02:0 for 4h") for _ in range(10)]
            await until(lambda: set(numbers) <= bench.slack.acks.keys(), "acknowledgements")
            await bench.end()
            works = [str(task.get_coro()) for task in asyncio.all_tasks()]
            assert [work for work in works if "SlackBot" in work] == []

    asyncio.run(scenario())


def test_an_event_that_comes_again_is_answered_once(lab: Lab) -> None:
    async def scenario() -> None:
        async with running_bot(lab) as bench:
            await bench.answer(bench.slack.write("release 7", event_id="Ev77"))
            for _ in range(3):
                await bench.slack.write("release 7", event_id="Ev77")
            for _ in range(5):
                await bench.answer(bench.slack.write("hosts"))
            assert sum("no reservation 7" in text for text in bench.slack.texts) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "event",
    [
        {"bot_id": "B9"},
        {"bot_id": "B9", "subtype": "bot_message"},
        {"subtype": "message_changed"},
        {"user": BOT},
        {"user": None},
        {"channel": "C0OTHER", "channel_type": "channel"},
        {"channel": "C0OWN", "channel_type": "channel", "text": "good morning all"},
        {"channel": "C0OWN", "channel_type": "channel", "text": f"<@{BOT}> free"},
    ],
)
def test_what_is_not_said_to_the_bot_by_a_person_is_not_answered(lab: Lab, event: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with running_bot(lab, channel="C0OWN") as bench:
            await bench.slack.write("free", event=event)
            for _ in range(5):
                await bench.answer(bench.slack.write("hosts", channel="C0OWN"))
            assert [one["channel"] for one in bench.slack.said] == ["C0OWN"] * 5
            assert not any("can be used now" in text for text in bench.slack.texts)

    asyncio.run(scenario())


def test_a_long_answer_is_a_snippet_where_it_was_asked(lab: Lab) -> None:
    async def scenario() -> None:
        async with running_bot(lab) as bench:
            await bench.slack.mention("all_detail")
            await until(lambda: any("file" in one for one in bench.slack.said), "a snippet")
            file = bench.slack.said[-1]
            assert file["channel"] == "C0GPUS"
            assert "alice" in file["file"]
            assert [method for method, _ in bench.slack.calls][-2:] == [
                "files.getUploadURLExternal",
                "files.completeUploadExternal",
            ]

    asyncio.run(scenario())


def test_a_long_answer_to_one_person_goes_into_their_direct_messages(lab: Lab) -> None:
    async def scenario() -> None:
        async with running_bot(lab) as bench:
            await bench.slack.slash("all_detail")
            await until(lambda: any("file" in one for one in bench.slack.said), "a snippet")
            assert bench.slack.said[-1]["channel"] == "D0ADA"
            assert "in our direct messages" in read(bench.slack.said[0])

    asyncio.run(scenario())


def test_without_the_permission_for_files_that_is_told(lab: Lab) -> None:
    async def scenario() -> None:
        async with running_bot(lab) as bench:
            bench.slack.refusals["files.getUploadURLExternal"] = {"error": "missing_scope", "needed": "files:write"}
            await bench.slack.write("all_detail")
            await until(lambda: any("files:write" in text for text in bench.slack.texts), "the reason")
            assert "could not be sent here (missing_scope)" in bench.slack.texts[-1]

    asyncio.run(scenario())


def test_a_closed_hub_answers_in_a_channel_to_the_asker_alone(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        async with running_bot(lab) as bench:
            said = await bench.answer(bench.slack.mention("free"))
            assert (said["is_ephemeral"], said["user"]) == (True, ADA)
            refused = await bench.answer(bench.slack.mention("free", user=EVE))
            assert refused["is_ephemeral"]
            assert f"slack: {EVE}" in read(refused)

    asyncio.run(scenario(Lab(tmp_path, is_readable=False)))


def test_people_of_another_organisation_are_not_answered(lab: Lab) -> None:
    async def scenario() -> None:
        async with running_bot(lab) as bench:
            said = await bench.answer(bench.slack.mention("free", user=EVE, is_ext_shared_channel=True))
            assert "this workspace only" in read(said)

    asyncio.run(scenario())


def test_times_are_read_in_the_zone_that_slack_knows(lab: Lab) -> None:
    async def scenario() -> None:
        async with running_bot(lab) as bench:
            bench.slack.zones[ADA] = "Asia/Tokyo"
            await bench.answer(bench.slack.write("reserve gpu02:0 from 2026-09-25 09:00 for 4h"))
            await bench.answer(bench.slack.write("reserve gpu02:1 from 2026-09-25 09:00 for 4h"))
            found = await lab.calendar.find(1)
            # 2026-09-25 00:00 UTC.
            assert found.start == 1_790_294_400.0

    asyncio.run(scenario())


def test_a_zone_that_slack_does_not_tell_is_utc(lab: Lab) -> None:
    async def scenario() -> None:
        async with running_bot(lab) as bench:
            bench.slack.refusals["users.info"] = {"error": "missing_scope"}
            await bench.answer(bench.slack.write("reserve gpu02:0 from 2026-09-25 09:00 for 4h"))
            assert (await lab.calendar.find(1)).start == 1_790_326_800.0

    asyncio.run(scenario())


# The line.


def test_a_new_socket_is_opened_when_slack_asks_for_one(lab: Lab) -> None:
    async def scenario() -> None:
        async with running_bot(lab) as bench:
            await bench.slack.ask_for_a_new_socket("warning")
            await until(lambda: bench.slack.opened == 2, "a second socket")
            assert "gpu01" in read(await bench.answer(bench.slack.write("hosts")))
            assert [one for one in bench.problems if one] == []

    asyncio.run(scenario())


def test_a_line_that_is_cut_is_opened_again(lab: Lab) -> None:
    async def scenario() -> None:
        async with running_bot(lab) as bench:
            for times in (2, 3, 4):
                bench.slack.drop()
                await until(lambda times=times: bench.slack.opened == times, "another socket")
            assert "gpu01" in read(await bench.answer(bench.slack.write("hosts")))

    asyncio.run(scenario())


def test_a_slack_that_is_away_is_told_and_found_again(lab: Lab) -> None:
    async def scenario() -> None:
        async with running_bot(lab) as bench:
            slack = bench.slack
            slack.drop()
            await slack.stop()
            await until(lambda: any(bench.problems), "a problem")
            await slack.start(slack.port)
            await until(lambda: slack.opened == 2, "a connection")
            await until(lambda: bench.problems[-1] is None, "the end of the problem")
            assert "cannot be reached at 127.0.0.1" in str(next(one for one in bench.problems if one))

    asyncio.run(scenario())


def refuse(method: str, **refusal: str) -> Callable[[FakeSlack], None]:
    return lambda slack: slack.refusals.update({method: refusal})


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (refuse("auth.test", error="invalid_auth"), "refuses the bot's bot_token (invalid_auth)"),
        (refuse("apps.connections.open", error="token_revoked"), "refuses the bot's app_token (token_revoked)"),
        (refuse("apps.connections.open", error="missing_scope", needed="connections:write"), "connections:write"),
        (refuse("auth.test", error="fatal_error"), "Slack answers fatal_error"),
    ],
)
def test_a_refusal_is_told_with_the_next_step_and_without_a_secret(
    lab: Lab, prepare: Callable[[FakeSlack], None], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running_bot(lab, is_connected=False, prepare=prepare) as bench:
            await until(lambda: bench.problems, "a problem")
            assert words in str(bench.problems[0])
            bench.slack.refusals.clear()
            await until(lambda: bench.slack.opened, "a connection")
            await until(lambda: bench.problems[-1] is None, "all being well")

    with caplog.at_level(logging.DEBUG):
        asyncio.run(scenario())
    assert not [line for line in caplog.messages if any(secret in line for secret in SECRETS)]


def test_a_socket_that_says_no_hello_is_given_up(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudeck.chat.slack.HELLO_SECONDS", 0.1)

    async def scenario() -> None:
        async with running_bot(lab, is_connected=False, prepare=lambda slack: setattr(slack, "greets", False)) as bench:
            await until(lambda: bench.problems, "a problem")
            assert "cannot be opened" in str(bench.problems[0])
            bench.slack.greets = True
            await until(lambda: bench.slack.opened, "a connection")

    asyncio.run(scenario())


def test_socket_mode_that_is_switched_off_is_told(lab: Lab) -> None:
    async def scenario() -> None:
        async with running_bot(lab) as bench:
            await bench.slack.ask_for_a_new_socket("link_disabled")
            await until(lambda: any(bench.problems), "a problem")
            assert "Socket Mode is switched off" in str(bench.problems[-1])

    asyncio.run(scenario())


def test_an_api_that_hangs_costs_its_own_answers_only(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slack_module, "ANSWER_SECONDS", 2.0)

    async def scenario() -> None:
        async with running_bot(lab) as bench:
            bench.slack.hanging.add("chat.postMessage")
            for _ in range(10):
                await bench.slack.write("free")
            said = await bench.answer(bench.slack.slash("free", user=BOB))
            assert "3 of 5" in read(said)
            bench.slack.hanging.clear()
            await until(lambda: bench.slack.calls, "calls")
            assert "gpu01" in read(await bench.answer(bench.slack.write("hosts", user=BOB, channel="D0BOB")))

    asyncio.run(scenario())


def test_an_answer_waits_as_long_as_slack_tells_it_to(lab: Lab) -> None:
    async def scenario() -> None:
        async with running_bot(lab) as bench:
            bench.slack.limits["chat.postMessage"] = 1, 1
            assert "3 of 5" in read(await bench.answer(bench.slack.write("free")))
            assert [method for method, _ in bench.slack.calls].count("chat.postMessage") == 2

    asyncio.run(scenario())


def test_a_limit_that_does_not_end_is_given_up_and_the_next_answer_comes(lab: Lab) -> None:
    async def scenario() -> None:
        async with running_bot(lab) as bench:
            bench.slack.limits["chat.postMessage"] = 3, 0
            await bench.slack.write("free")
            await until(lambda: not bench.slack.limits["chat.postMessage"][0], "three refusals")
            assert "gpu01" in read(await bench.answer(bench.slack.write("hosts")))

    asyncio.run(scenario())


def test_one_person_cannot_keep_the_bot_from_others(lab: Lab) -> None:
    async def scenario() -> None:
        async with running_bot(lab) as bench:
            for _ in range(40):
                await bench.slack.write("all_detail", user=EVE, channel="D0EVE")
            await bench.slack.write("hosts")
            await until(lambda: any(one.get("channel") == "D0ADA" for one in bench.slack.said), "an answer")

    asyncio.run(scenario())


# Tokens.


def test_tokens_are_read_from_files_again_for_each_connection(lab: Lab, tmp_path: Path) -> None:
    file = tmp_path / "bot.token"

    async def scenario() -> None:
        async with running_bot(lab, is_connected=False, bot_token_file=str(file)) as bench:
            await until(lambda: bench.problems, "a problem")
            assert "chat.slack.bot_token_file cannot be read: No such file" in str(bench.problems[0])
            file.write_text("hunter2\n")
            await until(lambda: "no such token" in str(bench.problems[-1]), "another problem")
            assert "hunter2" not in str(bench.problems)
            file.write_text(f"{BOT_TOKEN}\n")
            await until(lambda: bench.slack.opened, "a connection")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "either app_token_file or app_token"),
        ({"app_token": "xapp-1", "app_token_file": "f", "bot_token": "xoxb-1"}, "either app_token_file or app_token"),
        ({"app_token": "xoxb-1", "bot_token": "xoxb-1"}, "app_token has to begin with xapp-"),
        ({"app_token": "xapp-1", "bot_token": "xapp-1"}, "bot_token has to begin with xoxb-"),
        ({"app_token": "xapp-1", "bot_token": "xoxb-1 2"}, "bot_token has to begin with xoxb- and have no blanks"),
        ({"app_token": "xapp-1", "bot_token": "xoxb-1", "api_url": "http://slack.example/api/"}, "https://"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        SlackSettings(**settings)


def test_settings_do_not_show_their_secrets() -> None:
    shown = repr(SlackSettings(app_token=APP_TOKEN, bot_token=BOT_TOKEN))
    assert not any(secret in shown for secret in SECRETS)


def test_a_large_fleet_is_told_within_slacks_limits(lab: Lab) -> None:
    for number in range(100):
        lab.report(f"node{number:03}", [make_gpu(index, uuid=f"GPU-{number}-{index}") for index in range(8)])
    lab.hub.stream.tick()

    async def scenario() -> None:
        async with running_bot(lab) as bench:
            for text in ("free", "hosts", "all", "all_cmd", "where", "reservations"):
                await bench.answer(bench.slack.write(text))
            await until(lambda: sum("file" in one for one in bench.slack.said) == 4, "four snippets")

    asyncio.run(scenario())
