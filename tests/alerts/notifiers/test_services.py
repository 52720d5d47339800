"""What the services that Apprise knows really get, when names are hostile."""

import email
import email.policy
import io
import sys
from typing import Any

import msgspec
import pytest
import requests

from alerts.notifiers.sinks import make_message, running_mail_server
from gpudeck.alerts.notifiers.rendering import MailContent
from gpudeck.alerts.notifiers.sender import of_words, send
from gpudeck.alerts.notifiers.sender_process import SENT, SendRequest

# Some of Apprise's services import what a later Python will not have.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

HOSTILE = "<!channel> <@U1> @everyone @here [bank](https://evil.example) <https://evil.example|bank> <b>x</b>"
ADDRESSES = {
    "slack webhook": "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/",
    "slack bot": "slack://xoxb-123456789012-123456789012-abcdefabcdefabcdefabcdef/#gpus",
    "discord": "discord://123456789012345678/abcdefghijklmnopqrstuvwxyz",
    "telegram": "tgram://123456789:abcdefg_hijklmnop/12345678",
    "teams": "workflows://example.org/0123456789abcdef0123456789abcdef/signature",
    "mattermost": "mmost://example.org/abcdefghijklmnopqrstuvwxyz",
}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What would have gone out over HTTP."""
    bodies: list[str] = []

    def note(_: Any, method: str, url: str, **options: Any) -> requests.Response:
        body = options.get("json") or options.get("data") or ""
        bodies.append(body if isinstance(body, str) else msgspec.json.encode(body).decode())
        answer = requests.Response()
        answer.status_code, answer.raw = 200, io.BytesIO(b'{"ok": true, "result": [], "message_id": "1", "ts": "1"}')
        return answer

    monkeypatch.setattr(requests.Session, "request", note)
    return bodies


@pytest.mark.parametrize("service", ADDRESSES)
def test_hostile_name_calls_nobody_and_leads_nowhere(sent: list[str], service: str) -> None:
    message = make_message(title=HOSTILE, lines=(HOSTILE,), action=HOSTILE, link="")
    assert send(SendRequest(url=ADDRESSES[service], message=message)).kind == "sent"
    body = "".join(sent).replace("\\u200b", "\u200b")
    assert "evil.example" in body
    for mark in ("<!channel", "<@U1", "@everyone", "@here", "](https", "https://evil", "<b>x", "<https"):
        assert mark not in body


def test_message_to_a_person_in_slack_goes_to_that_person_alone(sent: list[str]) -> None:
    assert send(SendRequest(url=ADDRESSES["slack bot"], message=make_message(), recipient="U012AB3CD")).kind == "sent"
    assert [msgspec.json.decode(body)["channel"] for body in sent] == ["@U012AB3CD"]


def test_webhook_of_slack_cannot_write_to_a_person(sent: list[str]) -> None:
    outcome = send(SendRequest(url=ADDRESSES["slack webhook"], message=make_message(), recipient="U012AB3CD"))
    assert (outcome.kind, sent) == ("refused", [])


def test_without_apprise_an_address_that_needs_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    outcome = send(SendRequest(url=ADDRESSES["discord"], message=make_message()))
    assert (outcome.kind, outcome.words) == ("refused", "discord:// needs gpudeck[apprise].")
    assert outcome.hint == f"Install it: {sys.executable} -m pip install 'gpudeck[apprise]'"


def test_mail_with_a_html_part_has_both_parts_and_the_same_words_for_trouble() -> None:
    content = MailContent("<p>Zoë</p>\n", "Zoë\n")
    message = make_message(title="Figures of the week", mail=content)
    with running_mail_server() as server:
        url = f"mailto://ada:right@127.0.0.1:{server.port}/?from=Hub<hub@example.org>&to=list@example.org&cc=c@example.org"
        assert send(SendRequest(url=url, message=message)) == SENT
        refused = send(SendRequest(url=url, message=message, recipient="nobody@example.org"))
        wrong = send(SendRequest(url=url.replace("right", "wrong"), message=message))
        assert send(SendRequest(url=f"{url}&format=text", message=message)) == SENT
    assert refused == of_words("SMTPRecipientsRefused")
    assert wrong == of_words("SMTPAuthenticationError")
    (recipients, content_sent), (_, plain) = server.mails
    mail = email.message_from_string(content_sent, policy=email.policy.default)
    assert sorted(recipients) == ["c@example.org", "list@example.org"]
    head = [str(mail[name]) for name in ("Subject", "From", "Cc")]
    assert head == ["Figures of the week", "Hub <hub@example.org>", "c@example.org"]
    assert mail.get_content_type() == "multipart/alternative"
    assert [part.get_content().replace("\r", "") for part in mail.iter_parts()] == [content.text, content.html]
    assert "text/html" not in plain
