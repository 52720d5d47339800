"""Child processes: `run` for one bounded result, `start` and `end` for a child that stays on an event loop.

Every child leads its own process group: the parent handles Ctrl-C, and everything that the child started is killed with
it. A child that hangs in the kernel is never waited for. Importing this module does not import asyncio, which agents do
not need.
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
    """A child process returned no result: it could not be started, was too slow, or printed too much. `output` is what
    a slow one had printed."""

    def __init__(self, why: Literal["start", "time", "size"], message: str, output: bytes = b"") -> None:
        super().__init__(message)
        self.why = why
        self.output = output


class Finished(NamedTuple):
    """`code` is the exit code, or the negative number of the signal."""

    code: int
    output: bytes


def python_module(name: str, *arguments: str) -> list[str]:
    """The command for one of our modules. -P: nothing is imported from the parent's working directory."""
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
    """Start a child in its own process group, without a shell. Raises OSError."""
    return subprocess.Popen(  # noqa: S603
        command, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True, env=environment
    )


def die_with_parent() -> None:
    """Called in a child: it is killed when its parent dies. Linux only."""
    import ctypes  # noqa: PLC0415 - parents do without it

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class ForkedProcess:
    """A forked child with pipes: the part of Popen that is used."""

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
    """Fork this process, which must have no other threads: the child would have only one, and the locks of all. It
    calls `live` with the descriptors of its input and its output. Raises OSError."""
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
    """Run the command; returns its output and exit code. Blocks. `body` is its standard input, `environment` replaces
    that of this process. Raises ChildFailed, after the child and everything it started were killed."""
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
                # A child that has closed its output is about to exit.
                return Finished(child.wait(max(_REAP_SECONDS, ends_at - time.monotonic())), bytes(output))
        raise ChildFailed("time", f"{name} did not answer within {seconds:g} s.", bytes(output))
    finally:
        kill(child)


def _open_input(body: bytes) -> IO[bytes]:
    """A file in memory: a child that does not read would block a parent that writes to a pipe."""
    if not body:
        return open(os.devnull, "rb")  # noqa: PTH123 - as a file object
    file = os.fdopen(os.memfd_create("input"), "w+b")
    file.write(body)
    file.seek(0)
    return file


def _read_all(descriptor: int, body: bytearray, ends_at: float, bytes_at_most: int) -> bool:
    """Adds what another process writes until it closes the pipe, cut after `bytes_at_most`; False if it does not close
    it by `ends_at` (monotonic)."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while poll.poll(max(0.0, ends_at - time.monotonic()) * 1000):
        chunk = os.read(descriptor, 65536)
        body += chunk
        if not chunk or len(body) > bytes_at_most:
            return True
    return False


def kill(child: Spawned, seconds: float = _REAP_SECONDS) -> None:
    """Kill a child and its group and wait a moment for its exit; one that is stuck in the kernel is abandoned."""
    _signal(child, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(seconds)


async def start(command: Sequence[str], *, stdin: int = subprocess.PIPE, stdout: int = subprocess.PIPE) -> "Process":
    """Start a child of the running event loop in its own process group; `end` it. Raises OSError."""
    from asyncio import create_subprocess_exec  # noqa: PLC0415 - see the module

    return await create_subprocess_exec(*command, stdin=stdin, stdout=stdout, start_new_session=True)


async def end(child: "Process", patience: float = 0.0) -> int:
    """End a child and its group: with SIGTERM if it has `patience` seconds, then with SIGKILL. Returns its exit code.
    Harmless if the child has exited."""
    from asyncio import TimeoutError as TimeIsUp  # noqa: PLC0415 - see the module; in Python 3.10 not the built-in one
    from asyncio import wait_for  # noqa: PLC0415 - the same

    if patience:
        _signal(child, signal.SIGTERM)
        with contextlib.suppress(TimeIsUp):
            return await wait_for(child.wait(), patience)
    _signal(child, signal.SIGKILL)
    return await child.wait()


def _signal(child: "Spawned | Process", number: int) -> None:
    """Signal the whole group, unless its leader was reaped: then the number may belong to another group."""
    if child.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            child.kill()  # not started here, so it leads no group
