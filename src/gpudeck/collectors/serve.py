"""What a collector's child process runs: `python -m gpudeck.collectors.serve NAME`. `child` is the parent's side.

It answers one question at a time, on its standard input and output, in frames of a length and a msgpack body, and ends
when its parent does. It imports little: there is one such process on every watched machine.
"""

import os
import select
import struct
import sys
import time
import traceback
from typing import BinaryIO, Literal

import msgspec
from msgspec import Struct

from gpudeck.collectors.base import Collector, CollectorSettings, Factory, find_factory
from gpudeck.model.errors import Absent, PluginError, Refused, Temporary, UsageError, Wrong
from gpudeck.model.report import Report

LENGTH = struct.Struct("!I")
"""How the length of a body is written."""

Kind = Literal["absent", "temporary", "refused", "wrong"]
KINDS: dict[Kind, type[PluginError]] = {"absent": Absent, "temporary": Temporary, "refused": Refused, "wrong": Wrong}


class CollectRequest(Struct, frozen=True, omit_defaults=True):
    """`settings` count when the collector is made, which is when it is first asked."""

    now: float
    settings: CollectorSettings = CollectorSettings()


class CollectResponse(Struct, frozen=True, omit_defaults=True):
    """A report, or what kind of failure there was instead of one."""

    report: Report | None = None
    failure: Kind | None = None
    message: str = ""
    hint: str = ""
    trace: str = ""


class Server:
    """The child's work: answers every question in turn until the parent closes the pipe."""

    def __init__(self, factory: Factory) -> None:
        self._factory = factory
        self._collector: Collector | None = None

    def serve(self, questions: BinaryIO, answers: BinaryIO) -> None:
        while (body := _read_frame(questions)) is not None:
            answers.write(frame(self.answer(msgspec.msgpack.decode(body, type=CollectRequest))))
            answers.flush()

    def close(self) -> None:
        if self._collector is not None:
            self._collector.close()

    def answer(self, question: CollectRequest) -> bytes:
        """The answer as msgpack. Never raises."""
        try:
            if self._collector is None:
                self._collector = self._factory(question.settings)
            return msgspec.msgpack.encode(CollectResponse(report=self._collector.collect(question.now)))
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent has to hear of it
            return msgspec.msgpack.encode(_describe(error))


def _describe(error: Exception) -> CollectResponse:
    for kind, error_type in KINDS.items():
        if isinstance(error, error_type):
            return CollectResponse(failure=kind, message=error.message, hint=error.hint)
    return CollectResponse(failure="wrong", message=f"{type(error).__name__}: {error}", trace=traceback.format_exc())


def open_response(answer: CollectResponse) -> Report:
    """The report in it; raises the failure that there was instead of one."""
    if answer.failure is not None:
        failure = KINDS[answer.failure](answer.message, answer.hint)
        if answer.trace:
            failure.add_note(answer.trace)
        raise failure
    return answer.report or Report()


def _read_frame(stream: BinaryIO) -> bytes | None:
    head = stream.read(LENGTH.size)
    return stream.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None


def read_all(descriptor: int, ends_at: float, bytes_at_most: int) -> bytes | None:
    """What another process writes until it closes the pipe, cut behind `bytes_at_most`; None when it does not close it
    by `ends_at` (monotonic)."""
    body = bytearray()
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while poll.poll(max(0.0, ends_at - time.monotonic()) * 1000):
        chunk = os.read(descriptor, 65536)
        body += chunk
        if not chunk or len(body) > bytes_at_most:
            return bytes(body)
    return None


def frame(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


def main() -> None:
    # A library that prints must not write into the answers: standard output becomes standard error.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        server = Server(find_factory(sys.argv[1]))
    except UsageError as error:
        sys.exit(str(error))
    try:
        server.serve(sys.stdin.buffer, answers)
    finally:
        server.close()


if __name__ == "__main__":
    main()
