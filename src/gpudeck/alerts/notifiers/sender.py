"""The sender process of a channel: reads requests from its standard input, and answers each with one line.

It ends when its input ends, when the hub dies, and when a request misses its deadline. Its memory is limited, against
services that answer without end.

Messages go to a webhook (`NOTIFIERS`), to a plugin, or through Apprise if that is installed (gpudeck[apprise]). Apprise
logs why it failed: the log is matched against known reasons, and never repeated, as it may contain a secret.
"""

import contextlib
import logging
import os
import re
import resource
import signal
import smtplib
import ssl
import sys
from collections.abc import Callable, Iterator
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import Any, Final

import msgspec

from gpudeck.alerts.notifiers.rendering import MailContent, Message, escape_for, for_slack, render
from gpudeck.alerts.notifiers.sender_process import SENT, SendRequest, SendResult
from gpudeck.alerts.notifiers.settings import needs_apprise, scheme_of
from gpudeck.child_process import die_with_parent
from gpudeck.fetch import BlockingFetcher
from gpudeck.model.errors import PluginError
from gpudeck.model.plugins import Plugin, find_plugins, is_installed, pip_command

_MEMORY: Final = 1 << 30
_SPARE_SECONDS: Final = 2.0
"""The hub ends this process at the deadline. If it does not, the process ends itself so much later."""
_HOST = SendResult("temporary", "the name of its host cannot be found.", "Check the host in the address, and the DNS.")
_REFUSES = SendResult("temporary", "its host refuses the connection.", "Check host and port; is the service running?")
_UNREACHABLE = SendResult(
    "temporary", "its host cannot be reached.", "Check the network between the hub and that host."
)
_SLOW = SendResult(
    "temporary", "it does not answer in time.", "Check host and port; a firewall may swallow what is sent."
)
_TRUST = SendResult("refused", "its certificate is not trusted.", "Check the host's name, or add `?verify=no`.")
_PLAIN = SendResult(
    "refused",
    "it does not accept TLS on this port, or another version of it.",
    "Check the port and the kind of address.",
)
_TOKEN = SendResult("refused", "it refuses the token or the password.", "Make a new one and write it into the address.")
_GONE = SendResult("refused", "it does not know this address.", "It may have been deleted there: copy it anew.")
_RECIPIENT = SendResult("unreached", "it refuses the recipient.", "Check the recipient.")
_SENDER = SendResult("refused", "it refuses the sender.", "Check `from` in the address.")
_CONTENT = SendResult("refused", "it does not accept what it was sent.", "Check the kind of address.")
_RATE_LIMITED = SendResult("temporary", "it takes no more messages for now.")
_SERVER_ERROR = SendResult("temporary", "it has trouble of its own.")
_REDIRECTED = SendResult("refused", "it sends on to another address.", "Write that one into the settings.")
_UNCLEAR = SendResult(
    "temporary", "it did not take the message, and gave no reason.", "Check every part of the address."
)
_SAID = (
    (r"invalid_auth|not_authed|token_revoked|token_expired|account_inactive|missing_scope|invalid_token", _TOKEN),
    (r"channel_not_found|user_not_found|is_archived|not_in_channel|no_team|invalid_user", _RECIPIENT),
    (r"ratelimited|rate_limited|too many requests", _RATE_LIMITED),
    (r"smtpauthenticationerror|authentication (failed|error)|\(53[0-9],|auth extension not supported", _TOKEN),
    (r"smtprecipientsrefused|recipients? refused", _RECIPIENT),
    (r"smtpsenderrefused|sender refused", _SENDER),
    (r"\{'[^']*': \(5[0-9]{2},", _RECIPIENT),
    (r"\{'[^']*': \(4[0-9]{2},", _RATE_LIMITED),
    (r"certificate.verify|certificate_verify|hostname mismatch|self.signed", _TRUST),
    (r"wrong_version_number|wrong version number|ssl: |sslerror|starttls extension not supported", _PLAIN),
    (r"nameresolution|getaddrinfo|name or service not known|failed to resolve|name resolution|no address assoc", _HOST),
    (r"connection refused|errno 111", _REFUSES),
    (r"timed out|timeout", _SLOW),
    (r"unreachable|no route to host|errno 113|errno 101", _UNREACHABLE),
    (
        r"connection (aborted|reset)|remote end closed|server disconnected|connection unexpectedly closed|errno 104",
        _SERVER_ERROR,
    ),
)
_MAX_ANSWER = 4096
_MAIL = ("mailto", "mailtos")
_NO_DIRECT = SendResult(
    "refused", "it cannot write to single users.", "notify.mail needs mailto://, notify.slack a bot's token."
)


def main() -> None:
    die_with_parent()
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    # Discard what libraries print: it may contain a secret, and must not get between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    for line in sys.stdin.buffer:
        answers.write(msgspec.json.encode(_carry_out(msgspec.json.decode(line, type=SendRequest))) + b"\n")
        answers.flush()


def _carry_out(request: SendRequest) -> SendResult:
    signal.setitimer(signal.ITIMER_REAL, request.seconds + _SPARE_SECONDS)
    try:
        return send(request)
    except MemoryError:
        return SendResult("temporary", "it answers without end.")
    except Exception as error:  # noqa: BLE001 - a service of Apprise may fail in any way, with a secret in its text
        return SendResult(
            "temporary", f"sending failed with {type(error).__name__}, which may be a mistake of Apprise."
        )
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def of_status(status: int) -> SendResult:
    """From the status of an HTTP answer."""
    if 200 <= status < 300:
        return SENT
    known = {401: _TOKEN, 403: _TOKEN, 404: _GONE, 405: _GONE, 410: _GONE, 408: _SLOW, 429: _RATE_LIMITED}
    found = known.get(status)
    if found is None:
        found = _REDIRECTED if status < 400 else _CONTENT if status < 500 else _SERVER_ERROR
    return SendResult(found.kind, f"{found.words[:-1]} (HTTP {status}).", found.hint)


def of_words(said: str) -> SendResult:
    """From the log of a library, which may contain a secret."""
    said = said.lower()
    if found := re.search(r"\berror=([1-5][0-9]{2})\b", said):
        return of_status(int(found[1]))
    return next((outcome for pattern, outcome in _SAID if re.search(pattern, said)), _UNCLEAR)


def write_text(message: Message, page: str | None) -> str:
    """In Slack's markup, with the title in bold; the channel's own text as it is."""
    rendered = render(message, for_slack, page)
    title = rendered.title if message.text else f"*{rendered.title.replace('*', '∗')}*"
    return f"{title}\n{rendered.body}" if rendered.body else title


def post(request: SendRequest) -> SendResult:
    body = msgspec.json.encode({"text": write_text(request.message, request.page)})
    fetcher = BlockingFetcher(seconds=request.seconds)
    try:
        # The content of the answer does not matter.
        headers = {"Content-Type": "application/json"}
        answer = fetcher.post(request.url, body, headers, bytes_at_most=_MAX_ANSWER, is_cut=True)
    except PluginError as error:
        return of_words(f"{type(error.__cause__).__name__} {error.__cause__}")
    finally:
        fetcher.close()
    return of_status(answer.status)


NOTIFIERS: dict[str, Callable[[SendRequest], SendResult]] = {"http": post, "https": post}
"""By the scheme of the address. Apprise sends to all others."""


def send(request: SendRequest) -> SendResult:
    scheme = scheme_of(request.url)
    plugin = None if scheme in NOTIFIERS else find_plugins("notifiers").get(scheme)
    if plugin is not None:
        return _send_with(plugin, request)
    if is_installed("apprise"):
        return _send(request)
    if needs_apprise(request.url):
        return SendResult(
            "refused", f"{scheme_of(request.url)}:// needs gpudeck[apprise].", f"Install it: {pip_command('apprise')}"
        )
    return _NO_DIRECT if request.recipient else post(request)


def _send_with(plugin: Plugin, request: SendRequest) -> SendResult:
    try:
        result = plugin.load()(request)
    except Exception as error:  # noqa: BLE001 - whatever a plugin does, its sender goes on
        # Without the error's message, which may contain the address.
        kind = type(error.__cause__ or error).__name__
        return SendResult("temporary", f"{plugin.label} failed with {kind}.", "Look at the plugin's documentation.")
    if isinstance(result, SendResult):
        return result
    return SendResult("temporary", f"{plugin.label} did not say whether it has sent the message.")


def _send(request: SendRequest) -> SendResult:
    import apprise  # noqa: PLC0415 - an extra
    from apprise.plugins import url_to_dict  # noqa: PLC0415 - the same

    scheme = scheme_of(request.url)
    notifier = NOTIFIERS.get(scheme)
    parts: dict[str, Any] | None = url_to_dict(request.url)  # type: ignore[no-untyped-call]
    if notifier is not None and (parts is None or parts["schema"] in {"slack", *NOTIFIERS}):
        return _NO_DIRECT if request.recipient else notifier(request)
    if parts is None:
        return _unknown_address(scheme)
    if request.recipient is not None and not _address(parts, request.recipient):
        return _NO_DIRECT
    is_mail = parts["schema"] in _MAIL
    content = request.message.mail if is_mail and parts.get("format") != "text" else None
    if is_mail:
        parts.setdefault("format", "text")
    with _listening() as said:
        service = apprise.Apprise.instantiate(parts, suppress_exceptions=True)
        if not isinstance(service, apprise.NotifyBase):
            return _unknown_address(scheme)
        rendered = render(request.message, escape_for(parts["schema"]), request.page)
        if content is not None:
            return _send_mail(service, rendered.title, content, request.seconds)
        is_sent = service.notify(
            # A service without titles of its own puts it before the text; one that takes no empty text gets the title.
            body=rendered.body or rendered.title,
            title=rendered.title if rendered.body or is_mail else "",
            notify_type=rendered.mood,
            body_format="text",
        )
    return SENT if is_sent else of_words("\n".join(said))


def _send_mail(service: Any, title: str, content: MailContent, seconds: float) -> SendResult:
    """With an HTML part and our own plain text, which Apprise cannot send. `service` is Apprise's, with the server, the
    sender and the recipients of the channel's address."""
    name, sender = service.from_addr
    recipients = [address for _, address in service.targets]
    mail = EmailMessage()
    mail["Subject"] = " ".join(title.split())
    mail["From"] = Address(name or "", addr_spec=sender)
    mail["To"] = ", ".join(recipients)
    mail["Date"] = formatdate(localtime=True)
    mail["Message-ID"] = make_msgid(domain=sender.rpartition("@")[2] or None)
    # No automatic replies.
    mail["Auto-Submitted"] = "auto-generated"
    for header, others in (("Cc", service.cc), ("Reply-To", service.reply_to)):
        if others:
            mail[header] = ", ".join(sorted(others))
    mail.set_content(content.text, cte="base64" if not content.text.isascii() else None)
    mail.add_alternative(content.html, subtype="html", cte="quoted-printable")
    try:
        with _connect(service, seconds) as server:
            if service.user and service.password:
                server.login(service.user, service.password)
            refused = server.send_message(mail, sender, [*recipients, *service.cc, *service.bcc])
        if refused:
            raise smtplib.SMTPRecipientsRefused(refused)
    except (OSError, smtplib.SMTPException) as error:
        return of_words(f"{type(error).__name__} {error}")
    return SENT


def _connect(service: Any, seconds: float) -> smtplib.SMTP:
    context = ssl.create_default_context()
    if not service.verify_certificate:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if service.secure_mode == "ssl":
        return smtplib.SMTP_SSL(service.smtp_host, service.port, timeout=seconds, context=context)
    server = smtplib.SMTP(service.smtp_host, service.port, timeout=seconds)
    if service.secure_mode == "starttls":
        server.starttls(context=context)
    return server


def _address(parts: dict[str, Any], recipient: str) -> bool:
    """Replace all recipients by this one. False if the service cannot do that."""
    if parts["schema"] in _MAIL:
        parts["targets"] = [recipient]
        for copy in ("cc", "bcc"):
            parts.pop(copy, None)
            parts["qsd"].pop(copy, None)
        return True
    if parts["schema"] == "slack" and parts.get("access_token"):
        parts["targets"] = [f"@{recipient}"]
        return True
    return False


def _unknown_address(scheme: str) -> SendResult:
    words = f"the address {scheme}:// is incomplete, or of an unknown kind."
    return SendResult("refused", words, "Compare it with Apprise's documentation.")


@contextlib.contextmanager
def _listening() -> Iterator[list[str]]:
    """The log of Apprise meanwhile."""
    said: list[str] = []
    handler = logging.Handler(logging.DEBUG)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("apprise")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)


if __name__ == "__main__":
    main()
