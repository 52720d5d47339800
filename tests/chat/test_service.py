"""A whole hub with a bot: configured by a file, connected to a stand-in for Slack, and never held up by it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.hubs import HubProcess, gpudeck, running_hub
from fakes.slack import APP_TOKEN, BOT_TOKEN, SlackThread, read, slack_in_a_thread
from fakes.waiting import wait_until

CONFIG = """
chat:
  slack:
    app_token_file: {folder}/app.token
    bot_token_file: {folder}/bot.token
    api_url: {api}
users:
  ada: {{slack: U0ADA}}
"""


def configure(folder: Path, api: str) -> list[str]:
    (folder / "app.token").write_text(APP_TOKEN)
    (folder / "bot.token").write_text(BOT_TOKEN)
    (folder / "gpudeck.yaml").write_text(CONFIG.format(folder=folder, api=api))
    return ["--config", str(folder / "gpudeck.yaml"), "--demo", "3"]


def ask(thread: SlackThread, sending: Any, find: Callable[[str], bool]) -> str:
    """The first text that is what is looked for."""
    slack = thread.slack
    before = len(slack.said)
    thread.do(sending)
    wait_until(lambda: any(find(read(one)) for one in slack.said[before:]), "an answer")
    return next(read(one) for one in slack.said[before:] if find(read(one)))


def problems_of(hub: HubProcess) -> list[str]:
    found: list[str] = json.loads(hub.get("/api/v1/fleet"))["problems"]
    return found


@pytest.mark.slow
def test_a_hub_answers_in_slack_and_again_after_a_restart(tmp_path: Path) -> None:
    with slack_in_a_thread() as thread:
        slack = thread.slack
        arguments = configure(tmp_path, slack.api)
        with running_hub(tmp_path, *arguments) as hub:
            wait_until(lambda: slack.opened, "a connection")
            wait_until(lambda: json.loads(hub.get("/api/v1/totals"))["hosts_up"] >= 2, "a fleet")
            said = ask(thread, slack.write("hosts"), lambda text: "up" in text)
            assert "DEMO DATA, simulated" in said
            name = json.loads(hub.get("/api/v1/fleet"))["hosts"][0]["name"]
            assert name in ask(thread, slack.slash(f"who {name}"), lambda text: name in text)
            assert "Reserved" in ask(thread, slack.write("reserve 1 mig for 4h"), lambda text: "eserved" in text)
            assert problems_of(hub) == []
        opened = slack.opened
        with running_hub(tmp_path, *arguments):
            wait_until(lambda: slack.opened > opened, "another connection")
            assert "*ada*" in ask(thread, slack.write("reservations mine"), lambda text: "reservation" in text)
    assert not [secret for secret in (APP_TOKEN, BOT_TOKEN, "ticket") if secret in (tmp_path / "log").read_text()]


@pytest.mark.slow
def test_a_hub_whose_bot_is_refused_runs_and_says_so_without_a_secret(tmp_path: Path) -> None:
    with slack_in_a_thread() as thread:
        thread.slack.tokens["bot"] = "xoxb-another"
        with running_hub(tmp_path, *configure(tmp_path, thread.slack.api)) as hub:
            wait_until(lambda: problems_of(hub), "a problem")
            [problem] = problems_of(hub)
            assert "the Slack bot is not connected: Slack refuses the bot's bot_token (invalid_auth)" in problem
            assert BOT_TOKEN not in problem
            assert hub.get("/healthz")
            assert hub.stop() == 0


@pytest.mark.slow
def test_a_slack_that_hangs_does_not_keep_the_hub_from_stopping(tmp_path: Path) -> None:
    with slack_in_a_thread() as thread:
        thread.slack.hanging.add("auth.test")
        with running_hub(tmp_path, *configure(tmp_path, thread.slack.api)) as hub:
            wait_until(lambda: thread.slack.calls, "a question")
            assert json.loads(hub.get("/api/v1/totals"))
            assert hub.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--user", "ada"], 0, "ada through chat.slack: the service accepted the test message."),
        (["--user", "bob"], 2, "users.bob.slack is not set."),
        ([], 2, "Name one of them with --user."),
    ],
)
def test_the_bot_is_tried_from_the_command_line(tmp_path: Path, arguments: list[str], code: int, told: str) -> None:
    with slack_in_a_thread() as thread:
        configure(tmp_path, thread.slack.api)
        done = gpudeck(tmp_path, "notify", "test", "chat.slack", *arguments)
        assert (done.returncode, told in done.stdout + done.stderr) == (code, True), done.stderr
        assert [said["channel"] for said in thread.slack.said] == ["D0ADA"] * (code == 0)


def test_a_bot_with_a_wrong_token_is_found_by_the_test(tmp_path: Path) -> None:
    with slack_in_a_thread() as thread:
        thread.slack.tokens["bot"] = "xoxb-another"
        configure(tmp_path, thread.slack.api)
        done = gpudeck(tmp_path, "notify", "test", "chat.slack", "--user", "ada")
    assert done.returncode == 1
    assert "did not arrive: Slack refuses the bot's bot_token (invalid_auth)" in done.stderr
    assert BOT_TOKEN not in done.stdout + done.stderr


def test_a_wrong_setting_is_found_by_check_and_not_printed(tmp_path: Path) -> None:
    file = tmp_path / "gpudeck.yaml"
    file.write_text("chat:\n  slack:\n    app_token: hunter2\n    bot_token: xoxb-1\n")
    done = gpudeck(tmp_path, "check", "--config", str(file))
    assert done.returncode == 2
    assert "app_token has to begin with xapp-" in done.stdout + done.stderr
    assert "hunter2" not in done.stdout + done.stderr
