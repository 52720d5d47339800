"""gpudeck wait: queues for GPUs on a hub or this machine, then runs a command with them, or prints which they are."""

import contextlib
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, Protocol

import click
import msgspec

from gpudeck.cli.request_options import ask_hub, check_place, kind_options, place_options, read_wanted, this_user
from gpudeck.cli.terminal import check_output
from gpudeck.model.errors import GpudeckError, Unreachable, UsageError
from gpudeck.model.printable import clean
from gpudeck.model.quantity import show_length, show_span
from gpudeck.model.times import parse_span
from gpudeck.model.visible import visible_devices
from gpudeck.model.wanted import OfferedGpu, Wanted, offer_all
from gpudeck.queueing.request import Granted, GrantedGpu
from gpudeck.queueing.scheduler import QueuePosition
from gpudeck.views.table import shorten

if TYPE_CHECKING:
    from gpudeck.app.local import LocalWatch

POLL_SECONDS = 5.0
"""How often a hub is asked for the position. The turn itself is told at once."""
FIRST_SECONDS = 1.5
AGAIN_SECONDS = 1.0
"""How soon a hub that does not answer is asked again."""
LOOK_SECONDS = 2.0
KEEP_SECONDS = 20.0
"""How long a question is open that says that a command is still about to use its GPUs."""

Tell = Callable[[str], None]
"""Shows a sentence to whoever waits."""
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGQUIT)
_OF_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""What a terminal sends to all who are in its foreground by itself."""
_NOT_FOUND, _NOT_RUNNABLE = 127, 126


class Line(Protocol):
    """`join` first; then `look` again and again, which takes up to `seconds` and gives None where nothing could be
    learned. `leave` gives up the place or what was granted, `hand_over` lets what was granted stay kept for its time;
    while it is `keeping`, also for longer, until the command is on its GPUs. None of these raises."""

    def join(self) -> None: ...
    def look(self, seconds: float) -> QueuePosition | None: ...
    def keeping(self) -> contextlib.AbstractContextManager[None]: ...
    def leave(self) -> None: ...
    def hand_over(self) -> None: ...


class HubLine:
    """A place at a hub. A hub that goes away is waited for: it knows the line from before when it is back."""

    def __init__(self, hub: str, user: str, wanted: Wanted, tell: Tell) -> None:
        self._hub = hub
        self._body = {**msgspec.to_builtins(wanted), "user": user, "key": secrets.token_hex(16)}
        self._tell = tell
        self._number: int | None = None
        self._seen = ""
        self._is_lost = False
        self._may_stand = False
        self._is_first = True

    def join(self) -> None:
        """Raises Unreachable where no hub answers."""
        self._may_stand = True
        joined = self._join()
        self._number, self._seen = joined.id, joined.version

    def look(self, seconds: float) -> QueuePosition | None:
        try:
            place = self._ask(seconds)
        except UsageError:
            raise
        except GpudeckError as error:
            self._lose(error)
            time.sleep(min(AGAIN_SECONDS, seconds))
            return None
        if self._is_lost:
            self._is_lost = False
            self._tell("the hub is back.")
        self._seen = place.version
        return place

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """The hub is told that the command runs, until it sees it on the GPUs. Nobody waits for the last answer."""
        is_over = threading.Event()
        threading.Thread(target=self._keep, args=(is_over,), daemon=True).start()
        try:
            yield
        finally:
            is_over.set()

    def leave(self) -> None:
        try:
            if self._number is None and self._may_stand:
                # Its answer never came: whoever asks with the same key is told the number.
                self.join()
            number = self._number
            if number is not None:
                ask_hub(self._hub, lambda client: client.leave_queue(number))
        except GpudeckError:
            # The hub forgets whoever it does not hear of.
            return

    def hand_over(self) -> None:
        """The hub keeps it for its time."""

    def _keep(self, is_over: threading.Event) -> None:
        from gpudeck.client.client import Busy  # noqa: PLC0415 - by now it is loaded

        number = self._number
        while number is not None and not is_over.is_set():
            try:
                found = ask_hub(self._hub, lambda client: client.ask_queue(number, KEEP_SECONDS, self._seen))
            except (Unreachable, Busy):
                is_over.wait(AGAIN_SECONDS)
                continue
            except GpudeckError:
                # The terminal is the command's: what the hub does not want to hear is not told there.
                return
            if found is None:
                return
            self._seen = self._read(found).version

    def _ask(self, seconds: float) -> QueuePosition:
        number = self._number
        # Who is served at once need not hear of a line.
        wait = min(FIRST_SECONDS if self._is_first else POLL_SECONDS, seconds)
        self._is_first = False
        found = (
            None if number is None else ask_hub(self._hub, lambda client: client.ask_queue(number, wait, self._seen))
        )
        if found is None:
            self._tell("the hub does not know this place any more: standing in line anew.")
            place = self._join()
            self._number = place.id
            return place
        return self._read(found)

    def _join(self) -> QueuePosition:
        return self._read(ask_hub(self._hub, lambda client: client.join_queue(self._body)))

    def _read(self, body: bytes) -> QueuePosition:
        from gpudeck.client.answers import read_answer  # noqa: PLC0415 - by now it is loaded

        return read_answer(body, QueuePosition, self._hub)

    def _lose(self, error: GpudeckError) -> None:
        """Raises what waiting does not mend."""
        from gpudeck.client import Forbidden  # noqa: PLC0415 - by now it is loaded

        if isinstance(error, Forbidden):
            raise error
        if not self._is_lost:
            self._is_lost = True
            why = (
                error.message.rstrip(".")
                if isinstance(error, Unreachable)
                else f"the hub says: {error.message.rstrip('.')}"
            )
            self._tell(f"{why}; the place in line is kept, asking again.")


class MachineLine:
    """A place in the line of this machine."""

    def __init__(self, user: str, wanted: Wanted, hold_seconds: float = 120.0) -> None:
        from gpudeck.queueing.local_queue import LocalQueue, lock_folder  # noqa: PLC0415 - a hub's line needs none of it

        self._watch: LocalWatch | None = None
        self._hold_seconds = hold_seconds
        self._is_first = True
        self._line = LocalQueue(lock_folder(), self._read, user, wanted)

    def join(self) -> None:
        try:
            self._line.join()
        except OSError as error:
            raise GpudeckError(f"the line of this machine cannot be joined: {str(error.strerror).lower()}.") from error

    def look(self, seconds: float) -> QueuePosition | None:
        if not self._is_first:
            time.sleep(min(LOOK_SECONDS, seconds))
        self._is_first = False
        return self._line.look()

    def keeping(self) -> contextlib.AbstractContextManager[None]:
        """Its locks last as long as this process."""
        return contextlib.nullcontext()

    def leave(self) -> None:
        self._line.close()
        self._end_watch()

    def hand_over(self) -> None:
        self._line.keep(self._hold_seconds)
        self.leave()

    def _read(self) -> list[OfferedGpu]:
        if self._watch is None:
            from gpudeck.app.local import watch_locally  # noqa: PLC0415 - a hub's line needs none of it
            from gpudeck.cli.show import find_collector_settings  # noqa: PLC0415 - the same

            self._watch = watch_locally(find_collector_settings(), LOOK_SECONDS)
        return offer_all(self._watch.read().hosts)

    def _end_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()


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


class Progress:
    """`tell` says a sentence that stays, `show` where somebody stands. `clear` before anything else is written."""

    def __init__(self, since: float) -> None:
        self._since = since
        self._is_live = (
            sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") not in {None, "", "dumb"}
        )
        self._said = ""
        self._is_drawn = False

    def tell(self, sentence: str) -> None:
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
    position = "in line" if place.position is None else f"place {place.position} of {place.waiting} in line"
    told = [f"{position} for {clean(place.wanted.describe())}"]
    if place.reason is not None:
        told.append(clean(place.reason))
    elif place.estimate_seconds is not None:
        told.append(f"about {show_length(place.estimate_seconds)} by how long programs stayed lately")
    if place.kept:
        told.append(f"{place.kept} of {place.wanted.gpus} kept so far")
    return ", ".join(told)


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
