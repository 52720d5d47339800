"""Sending with Apprise, which knows about a hundred services. Blocks, and takes half a second to import: never in the
hub's own process.

Apprise says yes or no, and why only in its log: that is listened to, and never written anywhere.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apprise
from apprise.plugins import url_to_dict

from gpudeck.alerts.notifiers import verdict, webhook
from gpudeck.alerts.notifiers.letter import escape_for, write_letter
from gpudeck.alerts.notifiers.order import SENT, Order, Outcome
from gpudeck.alerts.notifiers.settings import scheme_of

_MAIL = ("mailto", "mailtos")
_NO_DIRECT = Outcome(
    "refused", "it cannot write to somebody by themselves.", "notify.mail needs mailto://, notify.slack a bot's token."
)


def send(order: Order) -> Outcome:
    scheme = scheme_of(order.url)
    parts: dict[str, Any] | None = url_to_dict(order.url)  # type: ignore[no-untyped-call]
    if scheme in {"http", "https"} and (parts is None or parts["schema"] in {"slack", "http", "https"}):
        return _NO_DIRECT if order.recipient else webhook.post(order)
    if parts is None:
        return verdict.unknown_address(scheme, is_known=_is_known(scheme))
    if order.recipient is not None and not _address(parts, order.recipient):
        return _NO_DIRECT
    if parts["schema"] in _MAIL:
        parts.setdefault("format", "text")
    with _listening() as said:
        service = apprise.Apprise.instantiate(parts, suppress_exceptions=True)
        if not isinstance(service, apprise.NotifyBase):
            return verdict.unknown_address(scheme, is_known=_is_known(scheme))
        letter = write_letter(order.message, escape_for(parts["schema"]), order.page)
        is_sent = service.notify(
            # A service without titles of its own puts it before the text; one that takes no empty text gets the title.
            body=letter.body or letter.title,
            title=letter.title if letter.body or parts["schema"] in _MAIL else "",
            notify_type=letter.mood,
            body_format="text",
        )
    return SENT if is_sent else verdict.of_words("\n".join(said))


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
    ear = logging.Handler(logging.DEBUG)
    ear.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("apprise")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(ear)
    try:
        yield said
    finally:
        logger.removeHandler(ear)
