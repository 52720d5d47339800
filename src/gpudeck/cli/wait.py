"""gpudeck wait: queues for GPUs on a hub or this machine, then runs a command with them, or prints which they are."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

import click
import msgspec

from gpudeck.cli.hub_access import ask, connect, fetch, machine_zone
from gpudeck.cli.options import (
    check_place,
    find_collector_settings,
    find_configured_hub,
    kind_options,
    place_options,
    read_wanted,
)
from gpudeck.cli.terminal import check_output
from gpudeck.client.client import this_user
from gpudeck.client.queue import HostReference, HubQueueClient, are_here, await_turn, find_this_host
from gpudeck.collectors.host import host_name
from gpudeck.hub_lookup import HubChoice
from gpudeck.model.address import mask_password
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.gpu_request import (
    CandidateGpu,
    GpuRequest,
    Granted,
    GrantedGpu,
    QueuePosition,
    candidates,
    visible_devices,
)
from gpudeck.model.text import clean, show_length, show_span
from gpudeck.model.times import read_span, show_moment
from gpudeck.views.table import shorten

CHECK_SECONDS = 2.0
WARN_SECONDS = 86_400.0
"""Maintenance that begins within this time is reported."""

Note = Callable[[str], None]
"""Prints a message for the waiting user."""
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGQUIT)
_OF_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""A terminal sends these to every process in its foreground."""
_NOT_FOUND, _NOT_RUNNABLE = 127, 126
_ELSEWHERE = 4
"""The exit code if the GPUs are on another host, so that the command was not run."""


class LocalQueueClient:
    """A position in the queue of this machine, with the interface of HubQueueClient."""

    def __init__(self, user: str, wanted: GpuRequest, claim_seconds: float = 120.0) -> None:
        from gpudeck.agent.lock_files import lock_folder  # noqa: PLC0415 - a hub's queue needs none of it
        from gpudeck.queueing.local_queue import LocalQueue  # noqa: PLC0415 - the same
        from gpudeck.views.this_machine import watch_locally  # noqa: PLC0415 - the same

        self._watch = watch_locally(find_collector_settings(), CHECK_SECONDS)
        self._claim_seconds = claim_seconds
        self._is_first = True
        self._queue = LocalQueue(lock_folder(), self._read, user, wanted)

    def join(self) -> None:
        try:
            self._queue.join()
        except OSError as error:
            raise GpudeckError(f"the queue of this machine cannot be joined: {str(error.strerror).lower()}.") from error

    def poll(self, seconds: float) -> QueuePosition | None:
        if not self._is_first:
            time.sleep(min(CHECK_SECONDS, seconds))
        self._is_first = False
        return self._queue.poll()

    def keeping(self) -> contextlib.AbstractContextManager[None]:
        """The locks last as long as this process."""
        return contextlib.nullcontext()

    def leave(self) -> None:
        self._queue.close()
        self._watch.close()

    def hand_over(self) -> None:
        self._queue.keep(self._claim_seconds)
        self.leave()

    def _read(self) -> list[CandidateGpu]:
        return candidates(self._watch.read().hosts)


_Queue = HubQueueClient | LocalQueueClient


class Terminated(BaseException):
    """A signal asked this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def ending_on_signals() -> Iterator[Callable[[], bool]]:
    """SIGTERM, SIGHUP and SIGINT raise Terminated here, and again when the yielded function is called: Python drops an
    exception of a handler that runs while a module is compiled."""
    received: list[int] = []

    def check() -> bool:
        if received:
            raise Terminated(received[0])
        return False

    def end(number: int, _: FrameType | None) -> None:
        received.append(number)
        check()

    with _handling((signal.SIGTERM, signal.SIGHUP, signal.SIGINT), end):
        yield check


@contextlib.contextmanager
def _handling(numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle these signals, except those that are ignored, as after nohup."""
    heard = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def run_command(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run a command with these variables, and forward signals to it. Returns its exit code as a shell does: 128 + N if
    signal N ended it, 127 if it does not exist, 126 if it cannot be run."""
    children: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def forward(number: int, _: FrameType | None) -> None:
        if not children:
            # The command is being started, and may run already.
            early.append(number)
        elif number not in _OF_TERMINAL or not _is_in_foreground():
            with contextlib.suppress(ProcessLookupError):
                children[0].send_signal(number)

    with _handling(_FORWARDED, forward):
        try:
            children.append(subprocess.Popen(command, env={**os.environ, **variables}))  # noqa: S603 - the user's own
        except OSError as error:
            click.echo(f"gpudeck: {command[0]} cannot be run: {str(error.strerror).lower()}.", err=True)
            return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_RUNNABLE
        for number in early:
            forward(number, None)
        code = children[0].wait()
    return code if code >= 0 else 128 - code


def _is_in_foreground() -> bool:
    for descriptor in (0, 1, 2):
        with contextlib.suppress(OSError):
            return os.tcgetpgrp(descriptor) == os.getpgrp()
    return False


class Progress:
    """`note` prints a sentence that stays, `show` the position. `clear` before anything else is written."""

    def __init__(self, since: float) -> None:
        self._since = since
        self._is_live = (
            sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") not in {None, "", "dumb"}
        )
        self._said = ""
        self._is_drawn = False

    def note(self, sentence: str) -> None:
        self.clear()
        self._write(f"gpudeck: {clean(sentence)}\n")

    def show(self, place: QueuePosition) -> None:
        text = _describe(place)
        if self._is_live:
            waited = show_span(time.time() - self._since)
            line = shorten(f"gpudeck: waiting for {waited}, {text}", max(20, shutil.get_terminal_size().columns - 1))
            self._write(f"\r\x1b[K{line}")
            self._is_drawn = True
        elif text != self._said:
            self._write(f"gpudeck: {text}\n")
        self._said = text

    def clear(self) -> None:
        if self._is_drawn:
            self._write("\r\x1b[K")
            self._is_drawn = False

    def _write(self, text: str) -> None:
        if sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()


def _describe(place: QueuePosition) -> str:
    position = "queued" if place.position is None else f"queue position {place.position} of {place.waiting}"
    told = [f"{position} for {clean(place.wanted.describe())}"]
    if place.reason is not None:
        told.append(clean(place.reason))
    elif place.estimate_seconds is not None:
        told.append(f"about {show_length(place.estimate_seconds)} at recent run times")
    if place.claimed:
        told.append(f"{place.claimed} of {place.wanted.gpus} claimed so far")
    return ", ".join(told)


_AFTER = """\b
First come, first served among the requests that can be met: a request for one
GPU does not wait behind one for eight. After ten minutes (the hub's setting
queue.patience), the first request is no longer overtaken.

\b
Exit codes:
  0    granted; with a command: its own exit code
  1    not within --timeout, or the request can never be met
  2    wrong usage, or you are not logged in
  3    the hub does not answer
  4    granted on another host: the command was not run, its ssh line is printed
  126  the command cannot be run; 127: it does not exist
  130  Ctrl-C: removed from the queue

\b
Examples:
  gpudeck wait -- python train.py                 one GPU of this machine
  gpudeck wait --gpus 2 --memory 40G -- torchrun --nproc-per-node 2 train.py
  gpudeck wait --any-host --ssh -- python train.py    on the first host with a free GPU
  gpudeck wait --host gpu07 --model H200          print the GPU, claimed for two minutes
  gpudeck wait --local -- make bench              on a machine without a hub
"""


@click.command("wait", epilog=_AFTER, context_settings={"allow_interspersed_args": False})
@click.argument("command_line", nargs=-1, metavar="[-- COMMAND…]", type=click.UNPROCESSED)
@click.option("--gpus", type=int, default=1, show_default=True, metavar="N", help="The number of GPUs.")
@kind_options
@click.option("--any-host", is_flag=True, help="Accept GPUs of any host, not only of this machine.")
@click.option("--ssh", "over_ssh", is_flag=True, help="Run the command over SSH if the GPUs are on another host.")
@click.option("--timeout", metavar="TIME", help="Give up after this time: 90 (seconds), 30m, 8h.")
@click.option("--json", "as_json", is_flag=True, help="Print the granted GPUs as JSON; not with a command.")
@place_options
def command(
    command_line: tuple[str, ...],
    *,
    gpus: int,
    memory: str | None,
    model: str | None,
    same_host: bool,
    host: str | None,
    mig: bool,
    allow_mig: bool,
    any_host: bool,
    over_ssh: bool,
    timeout: str | None,
    as_json: bool,
    hub: str,
    local: bool,
) -> None:
    """Wait in the hub's queue until GPUs of this machine are free, then run COMMAND with CUDA_VISIBLE_DEVICES set to
    their UUIDs.

    With --host or --any-host, the GPUs may be on another host. With --ssh, the command then runs there; without it, the
    line to run there is printed and the exit code is 4. Without a command, the granted GPUs are printed. They are
    claimed for you for two minutes, and the fleet shows that.

    Your position in the queue survives a restart of the hub. --local is for machines without a hub. If an agent on this
    machine reports to a hub, --local waits in that hub's queue.
    """
    check_output()
    if as_json and command_line:
        raise UsageError("--json and a command exclude each other.", "The standard output is the command's.")
    check_place(local=local)
    _check_hosts(host, any_host=any_host, over_ssh=over_ssh, local=local, has_command=bool(command_line))
    wanted = read_wanted(
        gpus, memory, model, host, same_host=same_host or bool(command_line), mig=mig, allow_mig=allow_mig
    )
    seconds = None if timeout is None else read_span("--timeout", timeout, allow_plain_seconds=True)
    progress = Progress(time.time())
    shared = _find_shared_hub() if local else HubChoice(hub, "")
    if shared is not None and host is None:
        here = _find_this_host(shared, is_needed=not any_host)
        place = {"near": here and here.id} if any_host else {"host": here and here.name}
        wanted = msgspec.structs.replace(wanted, **place)
    if local and shared is not None:
        progress.note(f"{shared.named_by} names the hub {mask_password(shared.url)}: waiting in its queue.")
    queue: _Queue = (
        LocalQueueClient(this_user(), wanted)
        if shared is None
        else HubQueueClient(connect(shared.url), this_user(), wanted, progress.note)
    )
    with ending_on_signals() as check_signals:
        try:
            queue.join()
            granted = await_turn(queue, wanted, seconds, is_cancelled=check_signals, on_position=progress.show)
            progress.clear()
            if shared is not None:
                _warn_of_maintenance(shared.url, granted.gpus, progress.note)
            code = _use(queue, granted, command_line, as_json=as_json, over_ssh=over_ssh)
        except BaseException as ending:
            progress.clear()
            queue.leave()
            if not isinstance(ending, Terminated):
                raise
            code = 128 + ending.number
    sys.exit(code)


def _check_hosts(host: str | None, *, any_host: bool, over_ssh: bool, local: bool, has_command: bool) -> None:
    """Raises UsageError for options that contradict each other."""
    named = [
        option for option, is_given in (("--host", host), ("--any-host", any_host), ("--local", local)) if is_given
    ]
    if len(named) > 1:
        raise UsageError(f"{named[0]} and {named[1]} exclude each other.")
    if over_ssh and (not has_command or named not in (["--host"], ["--any-host"])):
        raise UsageError("--ssh needs a command, and --host or --any-host.")


def _find_shared_hub() -> HubChoice | None:
    """The hub that this machine's agent reports to: its queue is for this machine, too. None without one. Raises
    GpudeckError if only an agent of another user names it, which cannot be trusted."""
    from gpudeck.agent.lock_files import find_agent_hubs  # noqa: PLC0415 - a hub's queue needs none of it

    for one in find_agent_hubs():
        if one.is_trusted:
            return HubChoice(one.url, "the agent of this machine")
        raise GpudeckError(
            f"an agent of user {one.uid} reports this machine to {mask_password(one.url)}: others may queue there.",
            "If it is your hub, use --hub; otherwise have that agent stopped.",
        )
    configured = find_configured_hub()
    return configured if configured is not None and configured.named_by.startswith("agent.hub") else None


def _find_this_host(hub: HubChoice, *, is_needed: bool) -> HostReference | None:
    """This machine as the hub knows it; None if it does not. Raises GpudeckError if `is_needed` then, and
    Unreachable."""
    found = ask(hub.url, find_this_host)
    if found is not None or not is_needed:
        return found
    raise GpudeckError(
        f"this machine ({host_name()}) is not a host of {mask_password(hub.url)}, so you cannot queue for its GPUs "
        "there.",
        "Use --any-host for GPUs of any host, --host for those of one, or --local without a hub.",
    )


def _warn_of_maintenance(hub: str, gpus: Sequence[GrantedGpu], note: Note) -> None:
    """Note the maintenance that is planned on these GPUs for the next day. If the hub does not answer, it is not
    known."""
    from gpudeck.model.reservation import MaintenanceList  # noqa: PLC0415 - a local queue needs none

    with contextlib.suppress(GpudeckError):
        planned = fetch(hub, MaintenanceList, "/api/v1/maintenance")[0]
        hosts, uuids = {gpu.host_id for gpu in gpus}, {gpu.uuid for gpu in gpus}
        for one in planned.maintenance:
            is_meant = one.host_id in hosts if one.gpu is None else one.gpu in uuids
            if is_meant and one.state == "planned" and one.start - planned.time <= WARN_SECONDS:
                begin = show_moment(one.start, machine_zone(), time.time())
                left = show_length(one.start - planned.time)
                note(f"maintenance of {one.place} begins in {left}, at {begin}: {one.reason}.")


def _use(queue: _Queue, granted: Granted, command_line: Sequence[str], *, as_json: bool, over_ssh: bool) -> int:
    """Run the command where the GPUs are, or print where they are. Returns the exit code."""
    is_here = isinstance(queue, LocalQueueClient) or are_here(granted.gpus)
    if command_line and (is_here or over_ssh):
        variable, value = visible_devices(granted.gpus)
        with queue.keeping():
            if is_here:
                code = run_command(command_line, {variable: value})
            else:
                code = run_command(_ssh_command(granted.gpus[0].host, f"{variable}={value}", command_line), {})
        queue.leave()
        return code
    _print(granted, command_line, as_json=as_json)
    queue.hand_over()
    return _ELSEWHERE if command_line else 0


def _print(granted: Granted, command_line: Sequence[str], *, as_json: bool) -> None:
    hosts: dict[str, list[GrantedGpu]] = {}
    for gpu in granted.gpus:
        hosts.setdefault(gpu.host, []).append(gpu)
    environment = {host: dict([visible_devices(gpus)]) for host, gpus in hosts.items()}
    if as_json:
        click.echo(msgspec.json.encode({**msgspec.to_builtins(granted), "environment": environment}))
        return
    for host, variables in environment.items():
        assigned = " ".join(f"{name}={value}" for name, value in variables.items())
        click.echo(shlex.join(_ssh_command(host, assigned, command_line)) if command_line else f"{host} {assigned}")
    left = max(1, round(granted.until - time.time()))
    what = "Not run: run the line above" if command_line else "Start"
    click.echo(f"gpudeck: Claimed for {left} s. {what} on {', '.join(map(clean, hosts))} before that.", err=True)


def _ssh_command(host: str, variable: str, command_line: Sequence[str]) -> list[str]:
    """The command line that runs the command on that host, in the same folder. A shell there parses the last word."""
    terminal = ["-t"] if sys.stdin is not None and sys.stdin.isatty() else []
    remote = f"cd {shlex.quote(str(Path.cwd()))} && {variable} {shlex.join(command_line)}"
    return ["ssh", *terminal, host, remote]
