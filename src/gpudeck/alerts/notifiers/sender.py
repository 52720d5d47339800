"""The sender process of a channel: reads one request after another from its standard input, answers each with one line.

It ends when its input ends, when the hub dies, and when a request takes longer than it may. Its memory is limited, so
that a service that answers without end harms nothing else.
"""

import contextlib
import os
import resource
import signal
import sys
from typing import Final

import msgspec

from gpudeck.alerts.notifiers.sender_process import SendRequest, SendResult
from gpudeck.child_process import die_with_parent

_MEMORY: Final = 1 << 30
_SPARE_SECONDS: Final = 2.0
"""The hub ends us when the time is up; we end ourselves only if it did not."""


def main() -> None:
    die_with_parent()
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    # Whatever a library prints must not get between the answers, nor anywhere else: it may hold a secret.
    answers = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    for line in sys.stdin.buffer:
        answers.write(msgspec.json.encode(_carry_out(msgspec.json.decode(line, type=SendRequest))) + b"\n")
        answers.flush()


def _carry_out(request: SendRequest) -> SendResult:
    from gpudeck.alerts.notifiers.services import send  # noqa: PLC0415 - takes a while, and libraries print

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


if __name__ == "__main__":
    main()
