"""Hosts without an agent: one command over a persistent SSH connection reads nvidia-smi, ps and /proc.

Nothing is written on the host. `ssh_connector` opens the connection. A driver that hangs affects only the GPUs: the
host's own values come first in the output.
"""

import asyncio
import getpass
import re
import sys
import time
from collections.abc import Callable, Sequence

import asyncssh
import msgspec
from msgspec import Struct

from gpudeck.collectors.nvidia_smi import SmiReader, SmiReading
from gpudeck.collectors.smi_command import split_answer
from gpudeck.fleet.state import FleetState
from gpudeck.model.cpu_budget import parse_in_thread
from gpudeck.model.errors import Absent, GpudeckError, PluginError, Temporary, UsageError
from gpudeck.model.gpu_state import FleetSettings
from gpudeck.model.target import Target
from gpudeck.model.view import Fleet
from gpudeck.sources.base import EnvelopeSequence, FetchedReport, MakeSource, Source, SshLoginRefused, SshSettings
from gpudeck.sources.ssh_connector import Connector, end
from gpudeck.sources.ssh_errors import Attempt, explain
from gpudeck.wire import HOST_NAME

MAX_BYTES = 4 * 1024 * 1024
"""The limit of one output: 16 GPUs with 256 processes, whose command lines are cut at 1,100 bytes, print less than 1
MiB."""
# Shares of the deadline: nvidia-smi gives up first, so that its host can still report it; then this side does.
_DRIVER_SHARE = 0.6
_READING_SHARE = 0.9
LARGE_CHARACTERS = 64 * 1024
"""Longer outputs are parsed in the thread for large input: 8 GPUs with 20 processes print 30,000."""
_LAST_HOST_PART = "system"
_LATE = Temporary("nvidia-smi did not answer in time: the driver hangs.", "Look at the kernel log (dmesg).")
_STUCK = Temporary(
    "nvidia-smi of an earlier reading has not ended: the driver hangs. It is not called again until it has.",
    "Look at the kernel log (dmesg); mostly only a restart helps.",
)


class Output(Struct, frozen=True):
    """The output of a command until it ended or, if `is_late`, until the deadline."""

    text: str
    is_late: bool = False


class SshConnection:
    """Runs commands on one host, never two at once. In case of doubt the connection is dropped."""

    def __init__(self, target: Target, connector: Connector) -> None:
        self._target = target
        self._connector = connector
        self._connection: asyncssh.SSHClientConnection | None = None
        self._late: asyncio.Task[None] | None = None
        self._closings = 0

    @property
    def is_stuck(self) -> bool:
        return self._late is not None and not self._late.done()

    async def run(self, command: str, seconds: float) -> Output:
        """The output of the command within that many seconds. Raises only PluginError."""
        finish_at = asyncio.get_running_loop().time() + seconds
        is_kept = self._connection is not None and not self._connection.is_closed()
        try:
            printed = bytearray()
            try:
                return await self._run(command, printed, finish_at)
            except (asyncssh.Error, ConnectionError):
                # A persistent connection may have died unnoticed since the last command: that is not the host's
                # failure.
                if not is_kept or printed:
                    raise
                self._abort()
                return await self._run(command, printed, finish_at)
        except (asyncio.CancelledError, PluginError):
            self._abort()
            raise
        except Exception as error:
            self._abort()
            target = self._target
            attempt = Attempt(target.name, target.host, target.port or 22, target.user or "")
            raise explain(error, attempt) from error

    async def close(self) -> None:
        """Idempotent; may be called at any time. A running command then fails."""
        self._closings += 1
        connection, self._connection, self._late = self._connection, None, None
        if connection is not None:
            await end(connection)

    async def _run(self, command: str, printed: bytearray, finish_at: float) -> Output:
        connection = await self._open(finish_at)
        process: asyncssh.SSHClientProcess[bytes] | None = None
        try:
            async with asyncio.timeout_at(finish_at):
                # Error messages are mixed with the output: no line of them looks like the output.
                process = await connection.create_process(
                    command, stdin=asyncssh.DEVNULL, stderr=asyncssh.STDOUT, encoding=None, request_pty=False
                )
                while chunk := await process.stdout.read(65536):
                    printed += chunk
                    if len(printed) > MAX_BYTES:
                        raise Temporary(f"The host printed more than {MAX_BYTES // 2**20} MiB.")
                await process.wait_closed()
        except TimeoutError:
            if process is None or not printed:
                message = f"{self._target.name} is connected, but does not answer: it is overloaded, or hangs."
                raise Temporary(message) from None
            # Data arrived, so the connection is fine: the command is slow.
            self._late = asyncio.create_task(process.wait_closed())
            return Output(printed.decode(errors="replace"), is_late=True)
        if connection.is_closed():
            raise ConnectionResetError
        return Output(printed.decode(errors="replace"))

    async def _open(self, finish_at: float) -> asyncssh.SSHClientConnection:
        if self._connection is None or self._connection.is_closed():
            self._connection = self._late = None
            closings = self._closings
            connection = await self._connector.open(self._target, finish_at)
            if closings != self._closings:
                connection.abort()
                raise Temporary(f"{self._target.name} is no longer watched.")
            self._connection = connection
        return self._connection

    def _abort(self) -> None:
        connection, self._connection, self._late = self._connection, None, None
        if connection is not None:
            connection.abort()


class SshSources:
    """Creates the sources of hosts read over SSH. They share keys, known hosts and jump hosts, which are closed with
    the last one."""

    def __init__(self, settings: SshSettings, password: str | None = None) -> None:
        self.settings = settings
        self.connector = Connector(settings, password)
        self._open: set[SshSource] = set()

    def __call__(self, target: Target) -> Source:
        """Raises UsageError for a target with an invalid name or address."""
        if re.fullmatch(HOST_NAME, target.name) is None:
            raise UsageError(f"{target.name[:80]!r} cannot be the name of a host.", "Letters, digits, dots and dashes.")
        if target.host.startswith("-") or any(letter.isspace() for letter in target.host):
            raise UsageError(f"{target.host[:80]!r} is no address.")
        source = SshSource(target, self)
        self._open.add(source)
        return source

    async def closed(self, source: "SshSource") -> None:
        self._open.discard(source)
        if not self._open:
            await self.connector.close()


class SshSource:
    def __init__(self, target: Target, sources: SshSources) -> None:
        self._target = target
        self._sources = sources
        self._settings = sources.settings
        self._connection = SshConnection(target, sources.connector)
        self._envelopes = EnvelopeSequence(target, self._settings.interval)
        self._reader = SmiReader(self._settings.collector())

    async def read(self, now: float) -> FetchedReport:
        is_stuck = self._connection.is_stuck
        command = self._reader.shell_command(
            with_gpus=not is_stuck, seconds=max(1, int(_DRIVER_SHARE * self._settings.deadline))
        )
        output = await self._connection.run(command, _READING_SHARE * self._settings.deadline)
        if len(output.text) > LARGE_CHARACTERS:
            reading = await parse_in_thread(self._parse, output, now, is_stuck)
        else:
            reading = self._parse(output, now, is_stuck)
        return self._seal(reading, now)

    async def close(self) -> None:
        await self._connection.close()
        await self._sources.closed(self)

    def _parse(self, output: Output, now: float, is_stuck: bool) -> SmiReading:
        """The output as a report: the whole machine or, if its GPUs cannot be read, at least its own values."""
        # The last line may be cut, and half a number is a wrong one.
        text = output.text[: output.text.rfind("\n") + 1] if output.is_late else output.text
        try:
            if is_stuck:
                raise _STUCK
            if output.is_late:
                raise _LATE
            return self._reader.parse(text, now)
        except PluginError as failure:
            if _LAST_HOST_PART not in split_answer(text).parts:
                raise failure from None
            reading = self._reader.parse_host(text, str(failure))
            if isinstance(failure, Absent):
                # A machine without such GPUs has no problem.
                return msgspec.structs.replace(reading, report=msgspec.structs.replace(reading.report, problems=[]))
            return reading

    def _seal(self, reading: SmiReading, now: float) -> FetchedReport:
        report = reading.report
        if self._target.labels:
            report = msgspec.structs.replace(report, labels=report.labels | self._target.labels)
        # By the host's clock if known, like an agent's: the hub compares the two to find wrong clocks.
        collected_at = now if reading.clock is None else reading.clock
        envelope = self._envelopes.put(report, collected_at, host_id=reading.machine_id, boot_id=reading.boot_id)
        return FetchedReport(envelope, reading.clock)


make = SshSources
"""Creates the sources of all hosts that are read over SSH with these settings."""


# Logins take turns: with many hosts, the last may need longer.
_SECONDS_A_HOST = 0.05

Ask = Callable[[Sequence[str]], str | None]
"""Prompts for the password of these hosts; None without a terminal."""

_Result = tuple[FetchedReport, float] | GpudeckError
"""The report and the time of its arrival, or the error."""


class SshScan(Struct, frozen=True):
    fleet: Fleet
    failures: dict[str, str]


def read_over_ssh(targets: Sequence[Target], settings: SshSettings, ask: Ask) -> SshScan:
    """Read every host once, all at the same time. Blocks. If keys are refused, the user is prompted once. Raises
    UsageError."""
    return asyncio.run(_read(targets, settings, ask))


def ask_password(hosts: Sequence[str]) -> str | None:
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr and sys.stderr.isatty()):
        return None
    named = ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else "")
    try:
        return getpass.getpass(f"No key is accepted by {named}. Password: ", stream=sys.stderr) or None
    except EOFError:
        return None


async def _read(targets: Sequence[Target], settings: SshSettings, ask: Ask) -> SshScan:
    deadline = settings.deadline + _SECONDS_A_HOST * len(targets)
    settings_for_all = msgspec.structs.replace(settings, deadline=deadline)
    results = await _read_all(make(settings_for_all), targets, deadline)
    refused = [target for target in targets if isinstance(results[target.name], SshLoginRefused)]
    password = ask([target.name for target in refused]) if refused and not settings.password_file else None
    if password is not None:
        results |= await _read_all(make(settings_for_all, password), refused, deadline)
    return _show(targets, results)


async def _read_all(make: MakeSource, targets: Sequence[Target], deadline: float) -> dict[str, _Result]:
    readings = await asyncio.gather(*(_read_one(make, target, deadline) for target in targets))
    return {target.name: reading for target, reading in zip(targets, readings, strict=True)}


async def _read_one(make: MakeSource, target: Target, deadline: float) -> _Result:
    source = make(target)
    try:
        async with asyncio.timeout(deadline):
            fetched = await source.read(time.time())
    except GpudeckError as error:
        return error
    except TimeoutError:
        return GpudeckError(f"It did not answer within {deadline:g} s.")
    else:
        return fetched, time.time()
    finally:
        await source.close()


def _show(targets: Sequence[Target], results: dict[str, _Result]) -> SshScan:
    fleet = FleetState(FleetSettings())
    fleet.expect(targets)
    failures = {}
    for target in targets:
        result = results[target.name]
        try:
            if isinstance(result, GpudeckError):
                raise result
            fetched, at = result
            fleet.apply(fetched.envelope, via="ssh", now=at, sent_at=fetched.sent_at, target=target.name)
        except GpudeckError as error:
            failures[target.name] = str(error)
            fleet.note_failure(target.name, str(error))
    return SshScan(fleet.view(time.time()), failures)
