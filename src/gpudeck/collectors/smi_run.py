"""Runs one shell command on this machine, with a deadline and a bound on what it may print."""

import os
import selectors
import signal
import subprocess
import time
from typing import IO, cast

from gpudeck.model.errors import Temporary

DEADLINE_SECONDS = 30.0
BYTES_AT_MOST = 16 * 1024 * 1024
_CHUNK = 65536


def run_here(command: str, deadline_seconds: float = DEADLINE_SECONDS, bytes_at_most: int = BYTES_AT_MOST) -> str:
    """What the command prints. Blocks until it ends; its exit code does not matter.

    Raises Temporary when it takes too long or prints too much. The shell and what it started are then killed, but for
    what stands below `timeout`, which has a limit of its own; what hangs in the kernel is not waited for.
    """
    try:
        # Its own process group, so that what it started can be ended with it.
        shell = subprocess.Popen(  # noqa: S603 - the command is ours
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise Temporary(f"/bin/sh cannot be started: {error}.") from error
    try:
        with cast("IO[bytes]", shell.stdout) as output:
            printed = _read(output, time.monotonic() + deadline_seconds, bytes_at_most)
        shell.wait(1.0)
    except (Temporary, subprocess.TimeoutExpired) as error:
        _kill(shell)
        raise error if isinstance(error, Temporary) else Temporary("The command does not end.") from error
    return printed.decode(errors="replace")


def _read(output: IO[bytes], deadline: float, bytes_at_most: int) -> bytes:
    printed = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())):
            chunk = os.read(output.fileno(), _CHUNK)
            if not chunk:
                return bytes(printed)
            printed += chunk
            if len(printed) > bytes_at_most:
                raise Temporary(f"The command printed more than {bytes_at_most} bytes.")
    raise Temporary("nvidia-smi did not answer in time: the driver may hang.", "Look at the kernel log (dmesg).")


def _kill(shell: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(shell.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    try:
        shell.wait(1.0)
    except subprocess.TimeoutExpired:
        return  # stuck in the kernel; it is collected when this process ends
