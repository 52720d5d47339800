"""gpudeck wait: stands in line for GPUs, then runs a command with them, or says which they are."""

import shlex
import signal
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

import click
import msgspec

from gpudeck.cli.command_run import Ended, ending_on_signals, run_command
from gpudeck.cli.lines import POLL_SECONDS, HubLine, Line, MachineLine
from gpudeck.cli.progress import Progress
from gpudeck.cli.terminal import check_output
from gpudeck.cli.wanting import check_place, kind_options, place_options, read_wanted, this_user
from gpudeck.model.errors import GpudeckError, Unreachable, UsageError
from gpudeck.model.times import parse_span
from gpudeck.model.visible import visible_devices
from gpudeck.model.wanted import Wanted
from gpudeck.queueing.request import Granted, GrantedGpu

_AFTER = """\b
Whoever comes first is served first, among those that can be served: who waits
for one GPU need not wait behind who waits for eight. After ten minutes (the
hub's setting queue.patience) the first in line is not overtaken any more.

\b
Environment:
  GPUDECK_HUB        the hub's address, where --hub is not given
  GPUDECK_TOKEN      what to show to a hub that wants to know who asks
  GPUDECK_LOCK_DIR   where this machine's line is, without a hub (/run/lock/gpudeck)

\b
Exit codes:
  0    granted; with a command: as the command ended
  1    not within --timeout
  2    wrong use
  3    the hub that was named does not answer
  126  the command cannot be run; 127: it is not there
  130  Ctrl-C: the place in line is given up

\b
Examples:
  gpudeck wait --gpus 1 -- python train.py
  gpudeck wait --gpus 2 --memory 40G --same-host -- torchrun --nproc-per-node 2 train.py
  gpudeck wait --host gpu07 --model H200          says which, and keeps them for two minutes
  gpudeck wait --gpus 4 --timeout 8h --json | jq -r '.environment'
  gpudeck wait --local -- make bench              this machine alone, without any hub

\b
See also:
  gpudeck free                                    what could be used right now
"""


@click.command("wait", epilog=_AFTER, context_settings={"allow_interspersed_args": False})
@click.argument("command_line", nargs=-1, metavar="[-- COMMAND…]", type=click.UNPROCESSED)
@click.option("--gpus", type=int, default=1, show_default=True, metavar="N", help="How many.")
@kind_options
@click.option("--timeout", metavar="TIME", help="Give up after so long: 90, 30m, 8h.")
@click.option("--json", "as_json", is_flag=True, help="What was granted as JSON; not with a command.")
@place_options
def command(
    command_line: tuple[str, ...],
    *,
    gpus: int,
    memory: str | None,
    model: str | None,
    same_host: bool,
    host: str | None,
    timeout: str | None,
    as_json: bool,
    hub: str | None,
    local: bool,
) -> None:
    """Stand in line until GPUs are free, then run COMMAND on this host with CUDA_VISIBLE_DEVICES set to their UUIDs.

    All GPUs of a command are on one host, on this one if it can be. Where they are on another, the line to run there
    is printed. Without a command it is printed which they are. For two minutes they are kept free for you: everybody
    sees that you are about to start.

    The place in line survives a restart of the hub. Where no hub answers, and none was named, the line is that of this
    machine alone.
    """
    check_output()
    if as_json and command_line:
        raise UsageError("--json and a command exclude each other.", "The standard output is the command's.")
    place = check_place(hub, local=local)
    near = _this_host()[0] if command_line and host is None else None
    wanted = read_wanted(gpus, memory, model, host, same_host=same_host or bool(command_line), near=near)
    deadline = None if timeout is None else time.monotonic() + _read_timeout(timeout)
    progress = Progress(time.time())
    with ending_on_signals():
        line = _choose_line(place, wanted, progress, is_named=hub is not None, local=local)
        try:
            granted = _await_turn(line, progress, deadline)
            progress.clear()
            code = 0 if granted is None else _use(line, granted, command_line, as_json=as_json)
        except (KeyboardInterrupt, Ended) as ending:
            _leave_and_end(line, progress, ending)
        except BaseException:
            progress.clear()
            line.leave()
            raise
    if granted is None:
        line.leave()
        raise GpudeckError(f"{wanted.describe()} did not become free in time.")
    sys.exit(code)


def _read_timeout(text: str) -> float:
    try:
        return float(text) if text.isdecimal() else parse_span(text)
    except ValueError as error:
        raise UsageError(f"--timeout: {error}.") from error


def _choose_line(hub: str, wanted: Wanted, progress: Progress, *, is_named: bool, local: bool) -> Line:
    """A place at the hub; on this machine where nobody named a hub and none answers."""
    line: Line = MachineLine(this_user(), wanted) if local else HubLine(hub, this_user(), wanted, progress.tell)
    try:
        line.join()
    except Unreachable as error:
        if is_named or local:
            raise
        progress.tell(f"{error.message} Waiting on this machine alone.")
        line = MachineLine(this_user(), wanted)
        line.join()
    except (KeyboardInterrupt, Ended) as ending:
        _leave_and_end(line, progress, ending)
    return line


def _await_turn(line: Line, progress: Progress, deadline: float | None) -> Granted | None:
    while True:
        left = POLL_SECONDS if deadline is None else deadline - time.monotonic()
        place = line.look(max(0.0, left))
        if place is not None and place.granted is not None:
            return place.granted
        if place is not None:
            progress.show(place)
        if deadline is not None and time.monotonic() >= deadline:
            return None


def _leave_and_end(line: Line, progress: Progress, ending: BaseException) -> NoReturn:
    progress.clear()
    line.leave()
    sys.exit(128 + (ending.number if isinstance(ending, Ended) else signal.SIGINT))


def _use(line: Line, granted: Granted, command_line: Sequence[str], *, as_json: bool) -> int:
    """Run the command where the GPUs are here; else say where they are. The exit code."""
    if command_line and (isinstance(line, MachineLine) or _is_here(granted.gpus)):
        variable, value = visible_devices(granted.gpus)
        with line.keeping():
            code = run_command(command_line, {variable: value})
        line.leave()
        return code
    _print(granted, command_line, as_json=as_json)
    line.hand_over()
    return 0


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
        click.echo(_ssh_line(host, assigned, command_line) if command_line else f"{host} {assigned}")
    what = "run this there" if command_line else "start there"
    left = max(1, round(granted.until - time.time()))
    click.echo(f"gpudeck: kept for you for {left} s: {what} until then.", err=True)


def _ssh_line(host: str, variable: str, command_line: Sequence[str]) -> str:
    """What a shell here takes for one line, and the shell there for another."""
    remote = f"{variable} {shlex.join(command_line)}"
    is_plain = remote == f"{variable} {' '.join(command_line)}"
    return f"ssh {shlex.quote(host)} {remote if is_plain else shlex.quote(remote)}"


def _this_host() -> tuple[str, str]:
    """The id and the name under which this machine reports."""
    from gpudeck.collectors.host import host_name, machine_id  # noqa: PLC0415 - most questions need neither

    return machine_id() or host_name(), host_name()


def _is_here(gpus: Sequence[GrantedGpu]) -> bool:
    """A machine that was cloned with its id is told apart by its name."""
    own, name = _this_host()
    return all(gpu.host_id in {own, f"{own}:{name}"} for gpu in gpus)
