"""Sending for real: to a mail server and to webhooks that take it, refuse it, hang, and answer without end."""

import asyncio
from collections.abc import Iterator

import pytest

from alerts.notifiers.sinks import (
    MailServer,
    Webhook,
    make_message,
    running_mail_server,
    running_webhook,
)
from fakes.ports import free_port
from gpudeck.alerts.notifiers.rendering import Message
from gpudeck.alerts.notifiers.sender_process import SenderProcess, SendRequest
from gpudeck.model.errors import PluginError, Refused, Temporary

SECRET = "the-secret-part"


@pytest.fixture(scope="module")
def mail() -> Iterator[MailServer]:
    with running_mail_server() as server:
        yield server


@pytest.fixture
def hook() -> Iterator[Webhook]:
    with running_webhook() as server:
        yield server


class SharedSender:
    """One process for all tests: to start one takes most of a second."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._process = SenderProcess()

    def send(
        self, *urls: str, recipient: str | None = None, message: Message | None = None, seconds: float = 20.0
    ) -> list[str]:
        """The error of each, one after the other; "" for a message that was accepted."""
        return [
            self._try(SendRequest(url=url, message=message or make_message(), recipient=recipient, seconds=seconds))
            for url in urls
        ]

    def _try(self, request: SendRequest) -> str:
        try:
            self._runner.run(self._process.send(request))
        except PluginError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def close(self) -> None:
        self._runner.run(self._process.close())
        self._runner.close()


@pytest.fixture(scope="module")
def sender() -> Iterator[SharedSender]:
    made = SharedSender()
    yield made
    made.close()


def test_mail_arrives_with_its_subject_and_all_lines(sender: SharedSender, mail: MailServer) -> None:
    assert sender.send(f"mailto://127.0.0.1:{mail.port}/?from=hub@example.org&to=ops@example.org") == [""]
    recipients, text = mail.mails[-1]
    assert recipients == ["ops@example.org"]
    assert "Subject: gpu07 is down" in text
    assert "It has not reported for 60 s.\r\nLook at its power and network." in text


def test_mail_to_a_person_goes_to_nobody_else(sender: SharedSender, mail: MailServer) -> None:
    url = f"mailto://127.0.0.1:{mail.port}/?from=hub@example.org&to=ops@example.org&cc=all@example.org"
    assert sender.send(url, recipient="ada@example.org") == [""]
    assert mail.mails[-1][0] == ["ada@example.org"]
    assert "all@example.org" not in mail.mails[-1][1]


def test_a_title_cannot_add_a_header(sender: SharedSender, mail: MailServer) -> None:
    url = f"mailto://127.0.0.1:{mail.port}/?from=hub@example.org&to=ops@example.org"
    assert sender.send(url, message=make_message(title="gpu\r\nBcc: all@example.org\r\n\r\nhello")) == [""]
    assert mail.mails[-1][0] == ["ops@example.org"]
    assert "\nBcc:" not in mail.mails[-1][1]


def test_what_is_wrong_is_said_in_plain_words_without_the_secret(sender: SharedSender, mail: MailServer) -> None:
    server = f"127.0.0.1:{mail.port}"
    told = sender.send(
        f"mailto://ada:{SECRET}@{server}/?from=hub@example.org",
        f"mailto://{server}/?from=hub@example.org&to=nobody@example.org",
        f"mailto://ada:{SECRET}@127.0.0.1:{free_port()}/?from=hub@example.org",
        f"jsons://ada:{SECRET}@no-such-host.invalid/{SECRET}",
        f"json://127.0.0.1:{free_port()}/{SECRET}",
        f"bogus://{SECRET}",
        f"slack://{SECRET}",
    )
    assert [line.partition(" Check")[0].partition(" Make")[0] for line in told[:5]] == [
        "Refused: it refuses the token or the password.",
        "Unreached: it refuses the recipient.",
        "Temporary: its host refuses the connection.",
        "Temporary: the name of its host cannot be found.",
        "Temporary: its host refuses the connection.",
    ]
    assert told[5].startswith("Refused: the address bogus:// is incomplete, or of an unknown kind.")
    assert told[6].startswith("Refused: the address slack:// is incomplete, or of an unknown kind.")
    assert SECRET not in "".join(told)


def test_webhook_gets_the_text_as_slack_reads_it(sender: SharedSender, hook: Webhook) -> None:
    message = make_message(title="<!channel> & @here", lines=("[x](https://evil.example)",), action="")
    assert sender.send(hook.url, message=message) == [""]
    (text,) = hook.texts()
    assert text.replace("\u200b", "") == "*&lt;!channel&gt; &amp; @here*\n[x](https://evil.example)"
    assert "@here" not in text
    assert "](" not in text
    assert "://" not in text


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Refused),
        (401, Refused),
        (403, Refused),
        (404, Refused),
        (410, Refused),
        (429, Temporary),
        (500, Temporary),
        (503, Temporary),
    ],
)
@pytest.mark.parametrize("scheme", ["http", "json"])
def test_status_decides_whether_a_person_has_to_act(
    sender: SharedSender, hook: Webhook, status: int, kind: type[PluginError], scheme: str
) -> None:
    hook.status = status
    [error] = sender.send(hook.url.replace("http", scheme))
    assert error.startswith(f"{kind.__name__}: ")
    assert f"HTTP {status}" in error


def test_service_that_hangs_is_left_and_the_next_message_goes_through(sender: SharedSender, hook: Webhook) -> None:
    # Its process is there: from here on only the time of the request counts.
    assert sender.send(hook.url) == [""]
    hook.hangs = True
    assert "does not answer in time" in sender.send(hook.url, seconds=1.0)[0]
    hook.hangs = False
    assert sender.send(hook.url) == [""]
    assert len(hook.taken) == 2


def test_service_that_answers_without_end_is_no_trouble_to_a_webhook(sender: SharedSender, hook: Webhook) -> None:
    hook.floods = True
    assert sender.send(hook.url) == [""]
    assert len(hook.taken) == 1


def test_only_mail_and_a_bot_write_to_somebody_by_themselves(sender: SharedSender, hook: Webhook) -> None:
    told = sender.send(hook.url, hook.url.replace("http", "json"), recipient="U012AB3CD")
    assert [line.startswith("Refused: it cannot write to single users.") for line in told] == [True, True]
    assert hook.asked == 0
