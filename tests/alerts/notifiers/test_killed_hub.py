"""A real hub with real channels: killed while it sends, and started again."""

import json
import signal
from pathlib import Path

import pytest

from alerts.notifiers.sinks import Webhook, running_mail_server, running_webhook
from fakes.hubs import gpudeck, running_hub
from fakes.waiting import wait_until

SECRET = "the-secret-part"


def configure(folder: Path, hook: Webhook, mail_port: int = 1) -> None:
    """Two channels on the same server, of which each hears when the hub starts; nobody else reports."""
    (folder / "gpudeck.yaml").write_text(
        f"""
demo: never
local: never
users:
  ada: {{mail: ada@example.org}}
notify:
  mail: mail
  routes: [{{to: [hook], rules: [history_failing]}}]
  channels:
    hook: {{url: "{hook.url}", events: [hub_started]}}
    secret: {{url: "{hook.url.replace("/hook", f"/{SECRET}")}", events: [hub_started]}}
    mail: "mailto://127.0.0.1:{mail_port}/?from=hub@example.org"
"""
    )


@pytest.mark.slow
def test_hub_that_is_killed_while_it_sends_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    with running_webhook() as hook:
        configure(tmp_path, hook)
        hook.hangs = True
        with running_hub(tmp_path) as hub:
            wait_until(lambda: hook.asked == 2, "both channels being asked")
            hub.stop(signal.SIGKILL)
        assert hook.taken == []
        hook.hangs = False
        with running_hub(tmp_path):
            wait_until(lambda: len(hook.texts()) == 2, "the message of before and that of this start")
        with running_hub(tmp_path):
            wait_until(lambda: len(hook.texts()) == 3, "the message of this start")
        first, second, third = hook.texts()
        assert "ended without being stopped" not in first
        assert "ended without being stopped" in second
        assert "ended without being stopped" not in third


@pytest.mark.slow
def test_trouble_of_a_channel_is_shown_and_its_secret_nowhere(tmp_path: Path) -> None:
    with running_webhook() as hook:
        configure(tmp_path, hook)
        hook.status = 403
        with running_hub(tmp_path) as hub:

            def problems() -> list[str]:
                told: list[str] = json.loads(hub.get("/api/v1/fleet"))["problems"]
                return told

            wait_until(problems, "a problem", seconds=40)
            wait_until(lambda: len(problems()) == 2, "the problem of both channels", seconds=40)
            assert problems()[0] == (
                "the channel hook does not take messages: it refuses the token or the password (HTTP 403)."
            )
            assert 'gpudeck_messages_waiting{channel="hook"} 1' in hub.get("/metrics").decode()
            pages = ["/api/v1/about", "/api/v1/fleet", "/metrics", "/api/v1/events", "/"]
            shown = b"".join(map(hub.get, pages)).decode()
        assert SECRET not in shown
        assert SECRET not in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_watch_is_mailed_to_whom_it_belongs(tmp_path: Path) -> None:
    with running_webhook() as hook, running_mail_server() as mail:
        configure(tmp_path, hook, mail.port)
        file = tmp_path / "gpudeck.yaml"
        file.write_text(file.read_text().replace("notify:", "notify:\n  demo: true"))
        with running_hub(tmp_path, "--demo", "40") as hub:
            told = gpudeck(tmp_path, "watch", "--memory", "20G", "--hub", hub.url, LOGNAME="ada")
            assert "You are notified by mail or Slack." in told.stdout
            wait_until(lambda: mail.mails, "a mail")
            assert mail.mails[0][0] == ["ada@example.org"]
            assert "Subject: Demo: 1 GPU with 20 GiB is free" in mail.mails[0][1]
            listed = json.loads(gpudeck(tmp_path, "watch", "list", "--json", "--hub", hub.url).stdout)
            assert [(one["user"], len(one["found"])) for one in listed["watches"]] == [("ada", 1)]
            events = "/api/v1/events?kind=watch_fired"
            wait_until(lambda: len(json.loads(hub.get(events))["events"]) == 1, "the event")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["test", "hook"], 0, "hook: the service accepted the test message."),
        (["test", "gone"], 2, "there is no channel gone. There are: hook, secret, mail."),
        (["test", "mail", "--user", "ada"], 1, "its host refuses the connection."),
        (["test", "mail", "--user", "bob"], 2, "users.bob.mail is not set."),
        (["test", "hook", "--user", "ada"], 2, "hook does not send to single users."),
    ],
)
def test_channels_are_tried_from_the_command_line(tmp_path: Path, arguments: list[str], code: int, told: str) -> None:
    with running_webhook() as hook:
        configure(tmp_path, hook)
        done = gpudeck(tmp_path, "notify", *arguments)
    assert (done.returncode, told in done.stdout + done.stderr) == (code, True), done.stderr
    assert SECRET not in done.stdout + done.stderr
