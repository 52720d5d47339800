"""Sending one message: with Apprise, which knows about a hundred services, or to a webhook that takes `{"text": …}`.

Blocks, and takes half a second to import: only the sender process does. Apprise says why it failed in its log alone:
that is read here, matched against known reasons, and never repeated, as it may contain a secret.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apprise
import msgspec
import urllib3
from apprise.plugins import url_to_dict

from gpudeck.alerts.message import Message
from gpudeck.alerts.notifiers.rendering import escape_for, for_slack, render
from gpudeck.alerts.notifiers.sender_process import SENT, SendRequest, SendResult
from gpudeck.alerts.notifiers.settings import scheme_of

_HOST = SendResult("temporary", "the name of its host cannot be found.", "Check the host in the address, and the DNS.")


_REFUSES = SendResult("temporary", "its host refuses the connection.", "Check host and port; is the service running?")


_UNREACHABLE = SendResult(
    "temporary", "its host cannot be reached.", "Check the network between the hub and that host."
)


_SLOW = SendResult(
    "temporary", "it does not answer in time.", "Check host and port; a firewall may swallow what is sent."
)


_TRUST = SendResult("refused", "its certificate is not trusted.", "Check the host's name, or add `?verify=no`.")


_PLAIN = SendResult("refused", "it does not speak TLS there, or other TLS.", "Check the port and the kind of address.")


_TOKEN = SendResult("refused", "it refuses the token or the password.", "Make a new one and write it into the address.")


_GONE = SendResult("refused", "it does not know this address.", "It may have been deleted there: copy it anew.")


_RECIPIENT = SendResult("unreached", "it refuses the recipient.", "Check to whom it goes.")


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
    (r"connection (aborted|reset)|remote end closed|connection unexpectedly closed|errno 104", _SERVER_ERROR),
)


_MOST_ANSWER = 4096
_MAIL = ("mailto", "mailtos")
_NO_DIRECT = SendResult(
    "refused", "it cannot write to somebody by themselves.", "notify.mail needs mailto://, notify.slack a bot's token."
)


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
    """From what a library said, which may be secret in part."""
    said = said.lower()
    if found := re.search(r"\berror=([1-5][0-9]{2})\b", said):
        return of_status(int(found[1]))
    return next((outcome for pattern, outcome in _SAID if re.search(pattern, said)), _UNCLEAR)


def unknown_address(scheme: str, *, is_known: bool) -> SendResult:
    """Where an address makes no sense at all."""
    if is_known:
        return SendResult(
            "refused", f"the address {scheme}:// is not complete.", "Compare it with Apprise's documents."
        )
    return SendResult(
        "refused", f"there is no kind of address {scheme}://.", "Apprise's documents list those there are."
    )


def write_text(message: Message, page: str | None) -> str:
    """As Slack's own marks have it, the title in bold; a text of the operator's own as it is."""
    rendered = render(message, for_slack, page)
    title = rendered.title if message.text else f"*{rendered.title.replace('*', '∗')}*"
    return f"{title}\n{rendered.body}" if rendered.body else title


def post(request: SendRequest) -> SendResult:
    body = msgspec.json.encode({"text": write_text(request.message, request.page)})
    limits = urllib3.Timeout(connect=min(5.0, request.seconds), read=request.seconds)
    with urllib3.PoolManager(retries=False, timeout=limits) as pool:
        try:
            answer = pool.request(
                "POST",
                request.url,
                body=body,
                headers={"content-type": "application/json", "user-agent": "gpudeck"},
                preload_content=False,
                redirect=False,
            )
            # Whatever it has to say: a little of it is enough.
            answer.read(_MOST_ANSWER)
        except (urllib3.exceptions.HTTPError, ValueError, OSError) as error:
            return of_words(f"{type(error).__name__} {error}")
        return of_status(answer.status)


def send(request: SendRequest) -> SendResult:
    scheme = scheme_of(request.url)
    parts: dict[str, Any] | None = url_to_dict(request.url)  # type: ignore[no-untyped-call]
    if scheme in {"http", "https"} and (parts is None or parts["schema"] in {"slack", "http", "https"}):
        return _NO_DIRECT if request.recipient else post(request)
    if parts is None:
        return unknown_address(scheme, is_known=_is_known(scheme))
    if request.recipient is not None and not _address(parts, request.recipient):
        return _NO_DIRECT
    if parts["schema"] in _MAIL:
        parts.setdefault("format", "text")
    with _listening() as said:
        service = apprise.Apprise.instantiate(parts, suppress_exceptions=True)
        if not isinstance(service, apprise.NotifyBase):
            return unknown_address(scheme, is_known=_is_known(scheme))
        rendered = render(request.message, escape_for(parts["schema"]), request.page)
        is_sent = service.notify(
            # A service without titles of its own puts it before the text; one that takes no empty text gets the title.
            body=rendered.body or rendered.title,
            title=rendered.title if rendered.body or parts["schema"] in _MAIL else "",
            notify_type=rendered.mood,
            body_format="text",
        )
    return SENT if is_sent else of_words("\n".join(said))


def _address(parts: dict[str, Any], recipient: str) -> bool:
    """Replace all recipients by this one. False where the service cannot do that."""
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


def _is_known(scheme: str) -> bool:
    return any(scheme in (*plugin["protocols"], *plugin["secure_protocols"]) for plugin in _plugins())


def _plugins() -> list[dict[str, Any]]:
    found = apprise.Apprise().details()["schemas"]
    return [{name: plugin[name] or () for name in ("protocols", "secure_protocols")} for plugin in found]


@contextmanager
def _listening() -> Iterator[list[str]]:
    """What Apprise says meanwhile, down to its remarks about sockets."""
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
