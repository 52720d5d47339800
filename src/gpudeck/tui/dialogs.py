"""Dialogs of top: the help, a prompt, and ending a process of one's own on this machine.

What a hub reports is seconds old, so the host has to be this machine, and the process with that pid has to be the one
shown: that is checked again right before each signal, through a handle that no other process can take.
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
HELP = """\
Keys, as in htop and nvitop where they have them

up down pgup pgdn home end  move      P  sort by utilization
enter    open the row or the group    M  by memory
esc      back; drop the filter        T  by time
f or 1   fleet                        N  by host
p or 2   processes                    U  by user
u or 3   people                       < >  by the column beside
/        filter by words              I  turn the order around
s        search, n goes on            g  group: host, model, user, none
space    stand still, go on           k  end a process of your own
q        quit                            on this machine

Words of filter and search, as on the page:
free busy idle allocated reserved drained unknown
h200  gpu07  -alice  user:ann  >40G
""".splitlines()


class ProcessToEnd(Struct, frozen=True):
    """A process as it was shown. `started_at` is in Unix seconds."""

    pid: int
    started_at: float
    command: str


class NotEnded(GpudeckError):
    """The process was left alone."""


def choose_process(host: Host, process: ShownProcess, own_id: str, *, is_local: bool) -> ProcessToEnd:
    """`own_id` is the machine id of where this runs; empty where it has none, as in a container. Raises NotEnded."""
    name = host.display_name
    if not is_local and (not own_id or host.id != own_id):
        raise NotEnded(f"{name} is not this machine.", f"There: gpudeck top --local on {name}.")
    if process.started_at is None:
        raise NotEnded(f"when process {process.pid} started is not known, so it may be another one by now.")
    return ProcessToEnd(process.pid, process.started_at, process.command or "")


def check(victim: ProcessToEnd, proc: Proc | None = None) -> None:
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


def send(victim: ProcessToEnd, number: signal.Signals) -> None:
    """Raises NotEnded where it is no longer what it was."""
    with _held(victim.pid) as handle:
        check(victim)
        try:
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError as error:
            raise NotEnded(f"process {victim.pid} has ended already.") from error
        except PermissionError as error:
            raise NotEnded(f"process {victim.pid} may not be ended by you.") from error


def is_running(victim: ProcessToEnd) -> bool:
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


class Prompt(Struct):
    """A line that is being typed: a filter or a search. `before` is the filter to go back to."""

    kind: str
    text: str
    before: str


class ConfirmDialog(Struct, frozen=True):
    """Whether a process is to be ended."""

    victim: ProcessToEnd
    is_hard: bool
    lines: tuple[str, ...]


def type_key(prompt: Prompt, key: str, character: str | None) -> None:
    if key == "backspace":
        prompt.text = prompt.text[:-1]
    elif key == "ctrl+u":
        prompt.text = ""
    elif character is not None and character.isprintable():
        prompt.text += character


def ask_to_end(victim: ProcessToEnd) -> ConfirmDialog:
    return ConfirmDialog(victim, False, (f"End process {victim.pid}?", victim.command or "(its command is not known)"))


def ask_to_kill(victim: ProcessToEnd) -> ConfirmDialog:
    """It was asked to end and did not."""
    lines = (f"Process {victim.pid} is still there.", "It can be ended at once, without saving anything (SIGKILL).")
    return ConfirmDialog(victim, True, lines)
