"""A notifier: each message is a line of a file.

notify: {channels: {log: "logfile:///var/log/gpudeck-messages.log"}}
"""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from gpudeck.alerts.notifiers.rendering import escape_for, render
from gpudeck.alerts.notifiers.sender_process import SENT, SendRequest, SendResult


def send(request: SendRequest) -> SendResult:
    """Runs in a process of its own, and may block."""
    if request.recipient is not None:
        return SendResult("refused", "a file cannot write to single users.")
    # Host and user names are not ours: `render` escapes and shortens them.
    rendered = render(request.message, escape_for("syslog"), request.page)
    text = " | ".join([rendered.title, *rendered.body.splitlines()])
    try:
        with Path(unquote(urlsplit(request.url).path)).open("a") as file:
            file.write(f"{text}\n")
    except OSError as error:
        # The reason without the address: it might hold a secret.
        return SendResult("temporary", f"the file cannot be written: {error.strerror}.", "Check its folder.")
    return SENT
