"""A collector that is read once, in a fork of this process, so that nobody waits for ever for a driver that hangs.

For a single reading from a shell. Ctrl-C alone would not do: Python hears of it only when the library returns. A fork
takes 3 ms where the fresh interpreter of `child` takes 100, and inherits no locks from a program without other threads.
"""

import contextlib
import os
import select
import signal
import time
from typing import NoReturn

import msgspec

from gpudeck.collectors.registry import find_factory
from gpudeck.collectors.serve import Answer, Question, Server, open_answer
from gpudeck.collectors.settings import CollectorSettings
from gpudeck.model.errors import Temporary
from gpudeck.model.report import Report

# Without nvidia-persistenced a driver with eight GPUs takes that long to be opened.
_DEADLINE_SECONDS = 30.0
_CHUNK = 65536


class ForkedCollector:
    """Reads the collector called `name`, anew each time. `collect` raises Temporary after `deadline` seconds.

    Not for a process with several threads, of which a fork has only one.
    """

    def __init__(self, name: str, settings: CollectorSettings, *, deadline: float = _DEADLINE_SECONDS) -> None:
        self.name = name
        self._settings = settings
        self._deadline = deadline

    def collect(self, now: float) -> Report:
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            self._answer_and_end(writer, Question(now, self._settings))
        os.close(writer)
        try:
            body = _read_all(reader, time.monotonic() + self._deadline)
        finally:
            os.close(reader)
            _end(pid)
        return self._judge(body)

    def close(self) -> None:
        """Nothing is held open."""

    def _answer_and_end(self, writer: int, question: Question) -> NoReturn:
        try:
            # A library that prints must not write into what this program prints.
            os.dup2(2, 1)
            with os.fdopen(writer, "wb") as answers:
                answers.write(Server(find_factory(self.name)).answer(question))
        finally:
            os._exit(0)  # what the fork inherited is the parent's to close

    def _judge(self, body: bytes | None) -> Report:
        if body is None:
            raise Temporary(f"driver not answering for {self._deadline:.0f} s")
        try:
            answer = msgspec.msgpack.decode(body, type=Answer)
        except msgspec.DecodeError as error:
            raise Temporary(f"The process of the collector {self.name} ended in the middle of a reading.") from error
        return open_answer(answer)


def _read_all(reader: int, ends_at: float) -> bytes | None:
    """What was written until the writer ended; None when it did not end in time."""
    body = bytearray()
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    while poll.poll(max(0.0, ends_at - time.monotonic()) * 1000):
        chunk = os.read(reader, _CHUNK)
        if not chunk:
            return bytes(body)
        body += chunk
    return None


def _end(pid: int) -> None:
    """What hangs in the kernel is left to it."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, os.WNOHANG)
