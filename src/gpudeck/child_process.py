"""Child processes: `run` for one bounded answer, `start` and `end` for one that stays on an event loop.

Every child leads a process group of its own: Ctrl-C is the parent's to handle, and what the child started is killed
with it. One that hangs in the kernel is never waited for. Importing this loads no asyncio: agents need none.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Literal, NamedTuple, NoReturn, cast

from gpudeck.model.errors import Temporary

if TYPE_CHECKING:
    from asyncio.subprocess import Process

MAX_BYTES: Final = 16 * 2**20
_REAP_SECONDS: Final = 1.0
_PR_SET_PDEATHSIG: Final = 1


class ChildFailed(Temporary):
    """A child process gave no answer: it could not be started, was too slow, or printed too much. `output` is what one
    that was too slow had printed."""

    def __init__(self, why: Literal["start", "time", "size"], message: str, output: bytes = b"") -> None:
        super().__init__(message)
        self.why = why
        self.output = output


class Finished(NamedTuple):
    """`code` is the exit code, or the signal's number below zero."""

    code: int
    output: bytes


def python_module(name: str, *arguments: str) -> list[str]:
    """The command for a module of ours. -P: nothing is imported from the folder that the parent was started in."""
    program = f"import runpy, sys; del sys.path[0]; runpy.run_module({name!r}, run_name='__main__', alter_sys=True)"
    options = ["-P", "-m", name] if sys.version_info >= (3, 11) else ["-c", program]
    return [sys.executable, *options, *arguments]


def spawn(
    command: Sequence[str],
    *,
    stdin: int | IO[bytes] = subprocess.PIPE,
    stdout: int = subprocess.PIPE,
    stderr: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> "subprocess.Popen[bytes]":
    """Start a child in a process group of its own, without a shell. Raises OSError."""
    return subprocess.Popen(  # noqa: S603
        command, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True, env=environment
    )


def die_with_parent() -> None:
    """In a child: be killed when the parent is. Elsewhere than on Linux nothing happens."""
    import ctypes  # noqa: PLC0415 - parents do without it

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class ForkedProcess:
    """A forked child with pipes, as far as it is used like a Popen."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Raises subprocess.TimeoutExpired."""
        ends_at = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() >= ends_at:
                raise subprocess.TimeoutExpired([str(self.pid)], timeout)
            time.sleep(0.001)
        return code

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


Spawned = subprocess.Popen[bytes] | ForkedProcess


def fork(live: Callable[[int, int], NoReturn]) -> ForkedProcess:
    """A fork of this process, which may have no other threads: a fork has only one, and the locks of all. It calls
    `live` with the descriptors of its input and its output. Raises OSError."""
    (stdin, write), (read, stdout) = os.pipe(), os.pipe()
    try:
        pid = os.fork()
    except OSError:
        for descriptor in (stdin, write, read, stdout):
            os.close(descriptor)
        raise
    if not pid:
        live(stdin, stdout)
    os.close(stdin)
    os.close(stdout)
    return ForkedProcess(pid, os.fdopen(write, "wb"), os.fdopen(read, "rb", 0))


def run(
    command: Sequence[str],
    *,
    seconds: float,
    bytes_at_most: int = MAX_BYTES,
    body: bytes = b"",
    stderr: int | None = subprocess.DEVNULL,
    environment: Mapping[str, str] | None = None,
) -> Finished:
    """What the command prints, and its exit code. Blocks; call it in a thread where that matters. `body` is its
    standard input, `environment` takes the place of this process's. Raises ChildFailed, after the child and all that it
    started were killed."""
    name = Path(command[0]).name
    try:
        with _open_input(body) as stdin:
            child = spawn(command, stdin=stdin, stderr=stderr, environment=environment)
    except OSError as error:
        raise ChildFailed("start", f"{command[0]} cannot be started: {error.strerror or error}.") from error
    ends_at, output = time.monotonic() + seconds, bytearray()
    try:
        with cast("IO[bytes]", child.stdout) as stdout:
            is_whole = _read_all(stdout.fileno(), output, ends_at, bytes_at_most)
        if len(output) > bytes_at_most:
            raise ChildFailed("size", f"{name} printed more than {bytes_at_most} bytes.")
        if is_whole:
            with contextlib.suppress(subprocess.TimeoutExpired):
                # One that has closed its output is about to end.
                return Finished(child.wait(max(_REAP_SECONDS, ends_at - time.monotonic())), bytes(output))
        raise ChildFailed("time", f"{name} did not answer within {seconds:g} s.", bytes(output))
    finally:
        kill(child)


def _open_input(body: bytes) -> IO[bytes]:
    """A file in memory: a child that does not read would block a parent that writes into a pipe."""
    if not body:
        return open(os.devnull, "rb")  # noqa: PTH123 - as a file object
    file = os.fdopen(os.memfd_create("input"), "w+b")
    file.write(body)
    file.seek(0)
    return file


def _read_all(descriptor: int, body: bytearray, ends_at: float, bytes_at_most: int) -> bool:
    """Adds what another process writes until it closes the pipe, cut behind `bytes_at_most`; False when it does not
    close it by `ends_at` (monotonic)."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while poll.poll(max(0.0, ends_at - time.monotonic()) * 1000):
        chunk = os.read(descriptor, 65536)
        body += chunk
        if not chunk or len(body) > bytes_at_most:
            return True
    return False


def kill(child: Spawned, seconds: float = _REAP_SECONDS) -> None:
    """Kill a child and its group, and wait a moment for its end; one that is stuck in the kernel is left to it."""
    _signal(child, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(seconds)


async def start(command: Sequence[str], *, stdin: int = subprocess.PIPE, stdout: int = subprocess.PIPE) -> "Process":
    """A child of the running event loop, in a process group of its own; `end` it. Raises OSError."""
    from asyncio import create_subprocess_exec  # noqa: PLC0415 - see the module

    return await create_subprocess_exec(*command, stdin=stdin, stdout=stdout, start_new_session=True)


async def end(child: "Process", patience: float = 0.0) -> int:
    """End a child and its group: by SIGTERM where it has `patience` seconds for that, then by SIGKILL. Returns its exit
    code. A child that has ended by itself leaves nothing to do."""
    from asyncio import TimeoutError as TimeIsUp  # noqa: PLC0415 - see the module; in Python 3.10 not the built-in one
    from asyncio import wait_for  # noqa: PLC0415 - the same

    if patience:
        _signal(child, signal.SIGTERM)
        with contextlib.suppress(TimeIsUp):
            return await wait_for(child.wait(), patience)
    _signal(child, signal.SIGKILL)
    return await child.wait()


def _signal(child: "Spawned | Process", number: int) -> None:
    """To the whole group, until the end of its leader was noted: from then on the number may be another's."""
    if child.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            child.kill()  # not started here, so it leads no group
