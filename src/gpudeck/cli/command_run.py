"""Running somebody's command as if they had started it themselves: its signals, its terminal, its exit code."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType

import click

_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGQUIT)
_OF_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""What a terminal sends to all who are in its foreground by itself."""
_NOT_FOUND, _NOT_RUNNABLE = 127, 126


class Ended(BaseException):
    """A signal asks this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise Ended here, as SIGINT raises KeyboardInterrupt."""

    def end(number: int, _: FrameType | None) -> None:
        raise Ended(number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_command(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Its exit code; 128 and the signal that ended it; 127 and 126 where it is not there or cannot be run, as a shell
    has it. It gets every signal that we get."""
    children: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _: FrameType | None) -> None:
        if not children:
            raise Ended(number)
        if number not in _OF_TERMINAL or not _is_in_foreground():
            with contextlib.suppress(ProcessLookupError):
                children[0].send_signal(number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        children.append(subprocess.Popen(command, env={**os.environ, **variables}))  # noqa: S603 - it is the user's own
        code = children[0].wait()
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError)
        click.echo(f"gpudeck: {command[0]} cannot be run: {str(error.strerror).lower()}.", err=True)
        return _NOT_FOUND if is_missing else _NOT_RUNNABLE
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _is_in_foreground() -> bool:
    for descriptor in (0, 1, 2):
        with contextlib.suppress(OSError):
            return os.tcgetpgrp(descriptor) == os.getpgrp()
    return False
