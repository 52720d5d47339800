"""What a running agent is told by signals: to end, or to read its settings again."""

import signal
import threading

from gpudeck.app.hangup import Terminal


class Orders:
    """`told` is set whenever there is something to do; `is_over` says that it is the end. Made in the main thread."""

    def __init__(self) -> None:
        self.told = threading.Event()
        self.is_over = False
        self._terminal = Terminal()
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
