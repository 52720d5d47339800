"""Signals to a running agent and its notices to systemd (sd_notify(3)): SIGTERM and SIGINT end it, SIGHUP reloads its
settings. SIGHUP of a terminal that was closed ends it."""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, MutableMapping

log = logging.getLogger(__name__)

_SYSTEMD_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class AgentSignals:
    """`received` is set whenever there is something to do; `is_over` says that it is the end. Made in the main
    thread."""

    def __init__(self) -> None:
        self.received = threading.Event()
        self.is_over = False
        self._terminal = ControllingTerminal()
        # nohup: the process is meant to outlive its terminal.
        self._outlives_terminal = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.end())
        signal.signal(signal.SIGHUP, lambda *_: self._hang_up())

    def end(self) -> None:
        self.is_over = True
        self._wake()

    def _wake(self) -> None:
        """In a thread: a signal may come while the main thread holds the lock of `received`, and would wait for
        itself."""
        threading.Thread(target=self.received.set, daemon=True).start()

    def _hang_up(self) -> None:
        if not self._terminal.is_gone():
            self._wake()
        elif not self._outlives_terminal:
            self.end()


class ControllingTerminal:
    """The terminal that this process was started in, if there was one."""

    def __init__(self) -> None:
        self._was_there = _opens()

    def is_gone(self) -> bool:
        """Whether it was there and has been closed since: the hangup then comes from the terminal, not from a user."""
        return self._was_there and not _opens()


def _opens() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


class SystemdNotifier:
    """The service manager that started this program. Nothing here raises or blocks. `watchdog` is after how many
    seconds of silence it ends the program."""

    def __init__(
        self, address: str | None, watchdog: float | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = address
        self._now = now
        self._notified_at = float("-inf")
        self.pause = None if watchdog is None else watchdog / 4

    @classmethod
    def of_this_process(cls, environ: MutableMapping[str, str] = os.environ) -> "SystemdNotifier":
        """The one that the environment names. It is taken out of there: what this program starts is not watched."""
        address, watchdog, pid = (environ.pop(name, "") for name in _SYSTEMD_VARIABLES)
        is_ours = pid in {"", str(os.getpid())} and watchdog.isascii() and watchdog.isdigit()
        return cls(address or None, int(watchdog) / 1e6 if address and is_ours and int(watchdog) else None)

    def ready(self, status: str = "") -> None:
        """It has started, or has read its settings again. `status` is what `systemctl status` shows."""
        self._notify("READY=1", f"STATUS={' '.join(status.split())}")

    def reloading(self) -> None:
        self._notify("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        self._notify("STOPPING=1")

    def alive(self) -> None:
        """Called wherever the program's own work goes on, and nowhere else. Sends as often as the watchdog needs."""
        if self.pause is not None and self._now() - self._notified_at >= self.pause:
            self._notified_at = self._now()
            self._notify("WATCHDOG=1")

    def _notify(self, *lines: str) -> None:
        if self._address is None:
            return
        # A name that begins with @ is no file: it lies in the kernel alone, and is written there with a null.
        place = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as opened:
                opened.sendto("\n".join(lines).encode(), place)
        except OSError as error:
            log.debug("%s was not notified of %s: %s", self._address, lines[0], error)
