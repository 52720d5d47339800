"""The child process of a collector: `python -m gpudeck.collectors.serve NAME`. `child` is the parent's side.

It answers one question at a time, on its standard input and output, in frames of a length and a msgpack body, and ends
when its parent does. It imports little: there is one such process on every watched machine.
"""

import contextlib
import os
import signal
import struct
import sys
import traceback
from typing import BinaryIO, Literal, NoReturn

import msgspec
from msgspec import Struct

from gpudeck.collectors.base import Collector, CollectorSettings, find_collector_plugin, find_factory
from gpudeck.model.errors import Absent, PluginError, Refused, Temporary, Wrong
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


def _serve(name: str, questions: BinaryIO, answers: BinaryIO) -> None:
    """The child's work: answers every question in turn until the parent closes the pipe."""
    collector: Collector | None = None
    try:
        while (body := _read_frame(questions)) is not None:
            question = msgspec.msgpack.decode(body, type=CollectRequest)
            try:
                collector = collector or find_factory(name)(question.settings)
                answer = msgspec.msgpack.encode(CollectResponse(report=collector.collect(question.now)))
            except Exception as error:  # noqa: BLE001 - the parent reports every error
                plugin = find_collector_plugin(name)
                answer = msgspec.msgpack.encode(_describe(plugin.explain(error) if plugin else error))
            answers.write(frame(answer))
            answers.flush()
    finally:
        if collector is not None:
            collector.close()


def _describe(error: Exception) -> CollectResponse:
    for kind, error_type in KINDS.items():
        if isinstance(error, error_type):
            return CollectResponse(failure=kind, message=error.message, hint=error.hint)
    return CollectResponse(failure="wrong", message=f"{type(error).__name__}: {error}", trace=traceback.format_exc())


def _read_frame(stream: BinaryIO) -> bytes | None:
    head = stream.read(LENGTH.size)
    return stream.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None


def frame(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


def main() -> None:
    # A library that prints must not write into the answers: standard output becomes standard error.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _serve(sys.argv[1], sys.stdin.buffer, answers)


def serve_and_end(name: str, questions: int, answers: int) -> NoReturn:
    """The whole life of a child that was just forked: nothing of its parent's is open in it, or handled by it."""
    code = 1
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(questions, 0)
        os.dup2(2, 1)
        os.dup2(answers, 3)
        for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - numbers
            if descriptor > 3:
                with contextlib.suppress(OSError):  # that of the list itself
                    os.close(descriptor)
        _serve(name, os.fdopen(0, "rb", closefd=False), os.fdopen(3, "wb"))
        code = 0
    finally:
        os._exit(code)  # what the fork inherited is the parent's to close


if __name__ == "__main__":
    main()
