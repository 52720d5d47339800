"""`gpudeck` without the CPU time that its imports, its routes and its interpreter's end take, 1 s of a hub and up to
0.5 s of a command: forked by a process that has imported everything, and ended once its exit handlers have run.

What runs is what `python -m gpudeck` runs, from the arguments to the exit code, in a process and a session of its own.
Hubs of the documents' shell blocks and of the units of systemd are started as a user does it, as are those whose clock
or namespace is another one.
"""

import array
import atexit
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TextIO

_MAX_BYTES = 1 << 20
_IMPORTED_LATE = (
    "gpudeck.collectors.machine",
    "gpudeck.config.convert",
    "gpudeck.history.embedded.store",
    "numpy.ma",
    "uvicorn.lifespan.off",
    "uvicorn.protocols.http.httptools_impl",
    "uvloop",
)
"""By a hub while it starts."""


class ForkedProcess:
    """As `subprocess.Popen`, of which tests use this much. `stdout` is a pipe, unless the output goes to the log."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        log: IO[Any],
        *,
        is_output_logged: bool = False,
    ) -> None:
        reader, writer = (None, os.dup(log.fileno())) if is_output_logged else os.pipe()
        self.stdout: TextIO | None = None if reader is None else os.fdopen(reader)
        self.returncode: int | None = None
        request = {"arguments": list(arguments), "environment": dict(environment), "folder": str(folder)}
        try:
            self.pid: int = _forker().ask(request, (writer, log.fileno()))
        finally:
            os.close(writer)
        self._ended = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("gpudeck", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """It is killed where its output has not ended in time."""
        assert self.stdout is not None
        killing = threading.Timer(timeout or threading.TIMEOUT_MAX, self.kill)
        killing.start()
        try:
            with self.stdout:
                said = self.stdout.read()
            self.wait()
        finally:
            killing.cancel()
        return said, None

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            self.returncode = _forker().ask({"wait": self.pid})
            os.close(self._ended)
        return self.returncode


class _Forker:
    """The process that forks. It ends with this one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # No threads of numpy: what forks has one.
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,
            )

        atexit.register(self._close)

    def _close(self) -> None:
        self._ours.close()
        self._process.wait(10)

    def ask(self, request: Any, files: Sequence[int] = ()) -> int:
        with self._lock:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
            self._ours.sendmsg([json.dumps(request).encode()], rights)
            return int(self._ours.recv(64))


@functools.cache
def _forker() -> _Forker:
    return _Forker()


_exit_codes: list[int] = []


def _end_at_once() -> None:
    """The last of all exit handlers: what an interpreter does after them is to free memory."""
    if _exit_codes:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_exit_codes[0])


def main() -> None:
    atexit.register(_end_at_once)
    import click  # noqa: PLC0415 - what all of this is about

    from gpudeck.api.app import read_routes  # noqa: PLC0415
    from gpudeck.app import hub  # noqa: F401, PLC0415
    from gpudeck.cli import gpudeck  # noqa: PLC0415
    from gpudeck.cli import main as run  # noqa: PLC0415

    nothing = click.Context(gpudeck)
    for name in gpudeck.list_commands(nothing):
        gpudeck.get_command(nothing, name)
    for module in _IMPORTED_LATE:
        importlib.import_module(module)
    # As long as all the rest of a start; the same for every hub.
    read_routes()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        is_child = _serve(asked)
    if is_child:
        try:
            run()
        except SystemExit as ended:
            if ended.code is None or isinstance(ended.code, int):
                _exit_codes.append(ended.code or 0)
            raise


def _serve(asked: socket.socket) -> bool:
    """True in each process that is to become a hub."""
    while True:
        message, files, _, _ = socket.recv_fds(asked, _MAX_BYTES, 2)
        if not message:
            return False
        request = json.loads(message)
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        elif (answer := os.fork()) == 0:
            _become(request, files)
            return True
        for file in files:
            os.close(file)
        asked.send(str(answer).encode())


def _become(request: dict[str, Any], files: Sequence[int]) -> None:
    os.setsid()
    for number, file in enumerate(files, 1):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False, errors="backslashreplace")
    sys.argv = ["gpudeck", *request["arguments"]]


if __name__ == "__main__":
    main()
