"""What systemd hears of a program that it has started: that it is ready, that it lives, what it does (sd_notify(3)).

Where nobody asked to be told, nothing is told.
"""

import logging
import os
import socket
import time
from collections.abc import Callable, MutableMapping

log = logging.getLogger(__name__)

_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class SystemdNotifier:
    """Whoever started this program and watches over it. Nothing here raises or blocks.

    `address` is the socket to tell it at, None where there is none; `watchdog` is after how many seconds of silence it
    ends the program, None where it waits forever.
    """

    def __init__(
        self, address: str | None, watchdog: float | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = address
        self._now = now
        self._told_at = float("-inf")
        self.pause = None if watchdog is None else watchdog / 4
        """How often `alive` wants to be called, in seconds; None: not at all."""

    @classmethod
    def of_this_process(cls, environ: MutableMapping[str, str] = os.environ) -> "SystemdNotifier":
        """The one that the environment names. It is taken out of there: what this program starts is not watched."""
        address, watchdog, pid = (environ.pop(name, "") for name in _VARIABLES)
        is_ours = pid in {"", str(os.getpid())} and watchdog.isascii() and watchdog.isdigit()
        return cls(address or None, int(watchdog) / 1e6 if address and is_ours and int(watchdog) else None)

    def ready(self, status: str = "") -> None:
        """It has started, or has read its settings again. `status` is what `systemctl status` shows."""
        self._tell("READY=1", f"STATUS={_one_line(status)}")

    def reloading(self) -> None:
        """Until the next `ready`."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        self._tell("STOPPING=1")

    def alive(self) -> None:
        """Called wherever the program's own work goes on, and nowhere else. Tells it as often as it has to be told."""
        if self.pause is not None and self._now() - self._told_at >= self.pause:
            self._told_at = self._now()
            self._tell("WATCHDOG=1")

    def _tell(self, *lines: str) -> None:
        if self._address is None:
            return
        # A name that begins with @ is no file: it lies in the kernel alone, and is written there with a null.
        place = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as opened:
                opened.sendto("\n".join(lines).encode(), place)
        except OSError as error:
            log.debug("%s was not told %s: %s", self._address, lines[0], error)


def _one_line(text: str) -> str:
    return " ".join(text.split())
