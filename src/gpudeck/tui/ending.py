"""Ending a process of one's own on this machine: the right one, or none.

What a hub tells is seconds old and from anywhere. So the host has to be this machine, and what has the pid now has to
be what was shown: that is looked at again right before each signal, through a handle that no other process can take.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

from gpudeck.collectors.owners import find_user_name
from gpudeck.collectors.proc import Proc
from gpudeck.model.errors import GpudeckError
from gpudeck.model.view import Host, ShownProcess

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_TOLERANCE = 2.0
"""Seconds by which the kernel's own idea of when it booted moves, as its clock is set."""


class Victim(Struct, frozen=True):
    """A process as it was shown. `started_at` is in Unix seconds."""

    pid: int
    started_at: float
    command: str


class NotEnded(GpudeckError):
    """The process was left alone."""


def choose_victim(host: Host, process: ShownProcess, own_id: str, *, is_local: bool) -> Victim:
    """`own_id` is the machine id of where this runs; empty where it has none, as in a container. Raises NotEnded."""
    name = host.display_name
    if not is_local and (not own_id or host.id != own_id):
        raise NotEnded(f"{name} is not this machine.", f"There: gpudeck top --local on {name}.")
    if process.started_at is None:
        raise NotEnded(f"when process {process.pid} started is not known, so it may be another one by now.")
    return Victim(process.pid, process.started_at, process.command or "")


def check(victim: Victim, proc: Proc | None = None) -> None:
    """Whether it is there, the same one, and ours to end; raises NotEnded where not."""
    proc = proc or Proc()
    try:
        stat, uid = proc.stat(victim.pid), proc.uid(victim.pid)
        started_at = proc.boot_time() + stat.start_ticks / _TICKS_PER_SECOND
    except (OSError, ValueError) as error:
        raise NotEnded(f"process {victim.pid} has ended already.") from error
    if stat.state in {"Z", "X"}:
        raise NotEnded(f"process {victim.pid} has ended already.")
    if abs(started_at - victim.started_at) > _TOLERANCE:
        raise NotEnded(f"process {victim.pid} is another one by now.")
    if os.geteuid() not in {0, uid}:
        raise NotEnded(f"process {victim.pid} belongs to {find_user_name(uid)}, not to you.")


def send(victim: Victim, number: signal.Signals) -> None:
    """Raises NotEnded where it is no longer what it was."""
    with _held(victim.pid) as handle:
        check(victim)
        try:
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError as error:
            raise NotEnded(f"process {victim.pid} has ended already.") from error
        except PermissionError as error:
            raise NotEnded(f"process {victim.pid} may not be ended by you.") from error


def is_running(victim: Victim) -> bool:
    try:
        check(victim)
    except NotEnded:
        return False
    return True


@contextmanager
def _held(pid: int) -> Iterator[int]:
    try:
        handle = os.pidfd_open(pid)
    except OSError as error:
        raise NotEnded(f"process {pid} has ended already.") from error
    try:
        yield handle
    finally:
        os.close(handle)
