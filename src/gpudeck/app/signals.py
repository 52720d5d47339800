"""Signals of a running agent: SIGTERM and SIGINT end it, SIGHUP reloads its settings.

SIGHUP of a terminal that was closed ends it, as it does other programs. New settings are tried beside the old ones, and
the agent starts again with them; settings with a mistake change nothing.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable

from gpudeck.agent.settings import AgentSettings
from gpudeck.app.systemd import SystemdNotifier
from gpudeck.model.errors import UsageError

log = logging.getLogger(__name__)


class AgentSignals:
    """`told` is set whenever there is something to do; `is_over` says that it is the end. Made in the main thread."""

    def __init__(self) -> None:
        self.told = threading.Event()
        self.is_over = False
        self._terminal = ControllingTerminal()
        # nohup: whoever started this wants it to outlive its terminal.
        self._outlives_terminal = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.end())
        signal.signal(signal.SIGHUP, lambda *_: self._hang_up())

    def end(self) -> None:
        self.is_over = True
        self._tell()

    def _tell(self) -> None:
        """In a thread: a signal may come while the main thread holds the lock of `told`, and would wait for itself."""
        threading.Thread(target=self.told.set, daemon=True).start()

    def _hang_up(self) -> None:
        if not self._terminal.is_gone():
            self._tell()
        elif not self._outlives_terminal:
            self.end()


class ControllingTerminal:
    """The terminal that this process was started in, if there was one."""

    def __init__(self) -> None:
        self._was_there = _opens()

    def is_gone(self) -> bool:
        """Whether it was there and has been closed since: the hangup is then its own, and nobody's wish."""
        return self._was_there and not _opens()


def _opens() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


class AgentReload:
    """`read` gives the settings as they are written now, `rehearse` tries new ones beside those that count. Both raise
    UsageError."""

    def __init__(
        self,
        supervisor: SystemdNotifier,
        *,
        read: Callable[[], AgentSettings],
        rehearse: Callable[[AgentSettings, AgentSettings], None],
    ) -> None:
        self._supervisor = supervisor
        self._read = read
        self._rehearse = rehearse

    def look(self, before: AgentSettings) -> AgentSettings | None:
        """Settings that count from now on; None where those from before stay. Whoever starts with them says ready."""
        self._supervisor.reloading()
        try:
            wanted = self._read()
            if wanted != before:
                self._rehearse(wanted, before)
                log.info("the settings have changed: starting again with the new ones")
                return wanted
        except UsageError as error:
            log.error("the settings from before stay, as the new ones cannot be used: %s", error)  # noqa: TRY400
            self._supervisor.ready("runs with older settings: those in its file cannot be used")
            return None
        log.info("the settings have not changed")
        self._supervisor.ready()
        return None
