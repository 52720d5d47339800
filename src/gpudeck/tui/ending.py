"""Ends one of the user's own processes on this machine, from top.

Top may show a process seconds late. Before a signal is sent, the start time and the owner of the process are checked
through a pidfd, so that the signal never reaches another process with the same pid.
"""

import os
import signal
from contextlib import closing

from msgspec import Struct

from gpudeck.collectors.owners import find_user_name
from gpudeck.collectors.proc import Proc
from gpudeck.model.errors import GpudeckError
from gpudeck.model.view import Host, ShownProcess

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_TOLERANCE = 2.0
"""Seconds by which the kernel's boot time moves when the clock is set."""
SIGNALS = {"y": signal.SIGTERM, "9": signal.SIGKILL}
"""The keys that confirm, and the signals that they send."""


class ProcessToEnd(Struct, frozen=True):
    """A process as it was shown. `started_at` is in Unix seconds."""

    pid: int
    started_at: float
    command: str


class NotEnded(GpudeckError):
    """No signal was sent."""


def choose_process(host: Host, process: ShownProcess, own_id: str, *, is_local: bool) -> ProcessToEnd:
    """`own_id` is the machine id of this machine; empty where it has none, as in a container. Raises NotEnded."""
    if not is_local and (not own_id or host.id != own_id):
        raise NotEnded(f"{host.display_name} is not this machine.", "Run `gpudeck top --local` there.")
    if process.started_at is None:
        raise NotEnded(f"the start of process {process.pid} is unknown, so it may be another one by now.")
    return ProcessToEnd(process.pid, process.started_at, process.command or "")


def end_process(wanted: ProcessToEnd, number: signal.Signals) -> None:
    """Raises NotEnded where the process has ended, is another one by now, or belongs to another user."""
    try:
        with closing(os.fdopen(os.pidfd_open(wanted.pid))) as handle:
            _check(wanted, Proc())
            signal.pidfd_send_signal(handle.fileno(), number)
    except PermissionError as error:
        raise NotEnded(f"you are not allowed to end process {wanted.pid}.") from error
    except (OSError, ValueError) as error:
        raise NotEnded(f"process {wanted.pid} has ended already.") from error


def _check(wanted: ProcessToEnd, proc: Proc) -> None:
    stat, uid = proc.stat(wanted.pid), proc.uid(wanted.pid)
    if stat.state in {"Z", "X"}:
        raise ProcessLookupError
    if abs(proc.boot_time() + stat.start_ticks / _TICKS_PER_SECOND - wanted.started_at) > _TOLERANCE:
        raise NotEnded(f"process {wanted.pid} is another one by now.")
    if os.geteuid() not in {0, uid}:
        raise NotEnded(f"process {wanted.pid} belongs to {find_user_name(uid)}, not to you.")
