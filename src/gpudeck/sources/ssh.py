"""Hosts without an agent: one command over a kept SSH connection tells all that nvidia-smi, ps and /proc know.

Nothing is written on the host, and no Python is needed there. The command and its answer are the collectors' room
(`smi_command`, `nvidia_smi`); how a host is reached is `ssh_connector`'s. A driver that hangs costs the GPUs alone: the
host's own figures come first in the answer.
"""

import re
import secrets

import msgspec

from gpudeck.collectors.nvidia_smi import Kept, Reading, parse, parse_host
from gpudeck.collectors.smi_answer import split_answer
from gpudeck.collectors.smi_command import COLUMNS, shell_command
from gpudeck.model.errors import Absent, PluginError, Temporary, UsageError
from gpudeck.model.target import Target
from gpudeck.model.turns import parse_aside
from gpudeck.sources.base import Arrival, Source
from gpudeck.sources.ssh_connection import Output, SshConnection
from gpudeck.sources.ssh_connector import Connector
from gpudeck.sources.ssh_settings import SshSettings
from gpudeck.wire import HOST_NAME, VERSION, Envelope

# Shares of the deadline: nvidia-smi gives up first, so that its host can still say so; then this side does.
_DRIVER_SHARE = 0.6
_READING_SHARE = 0.9
LARGE_CHARACTERS = 64 * 1024
"""Answers from this length on are read in the thread for large input: 8 GPUs with 20 processes answer 30,000."""
_LAST_HOST_PART = "system"
_LATE = Temporary("nvidia-smi did not answer in time: the driver hangs.", "Look at the kernel log (dmesg).")
_STUCK = Temporary(
    "nvidia-smi of an earlier reading has not ended: the driver hangs. It is not called again until it has.",
    "Look at the kernel log (dmesg); mostly only a restart helps.",
)


class SshSources:
    """Makes the sources of hosts that are read over SSH, and what they share: keys, known hosts, jump hosts.

    `password` is one that a person typed. Opens nothing by itself. When the last source is closed, jump hosts are too.
    """

    def __init__(self, settings: SshSettings, password: str | None = None) -> None:
        self.settings = settings
        self._connector = Connector(settings, password)
        self._open: set[SshSource] = set()

    def __call__(self, target: Target) -> Source:
        """Raises UsageError for a target whose name cannot be shown, or whose address cannot be meant."""
        if re.fullmatch(HOST_NAME, target.name) is None:
            raise UsageError(f"{target.name[:80]!r} cannot be the name of a host.", "Letters, digits, dots and dashes.")
        if target.host.startswith("-") or any(letter.isspace() for letter in target.host):
            raise UsageError(f"{target.host[:80]!r} is no address.")
        source = SshSource(target, self)
        self._open.add(source)
        return source

    def connect(self, target: Target) -> SshConnection:
        return SshConnection(target, self._connector)

    async def closed(self, source: "SshSource") -> None:
        """A source tells that it is closed."""
        self._open.discard(source)
        if not self._open:
            await self._connector.close()


class SshSource:
    """Reads one host over SSH."""

    def __init__(self, target: Target, sources: SshSources) -> None:
        self._target = target
        self._sources = sources
        self._settings = sources.settings
        self._connection = sources.connect(target)
        self._run_id = secrets.token_hex(8)
        self._sequence = 0
        self._columns = COLUMNS
        self._reading: Reading | None = None

    async def read(self, now: float) -> Arrival:
        is_stuck = self._connection.is_stuck
        # After a failure the driver may be another one: everything is asked for again.
        columns, self._columns = self._columns, COLUMNS
        output = await self._connection.run(self._command(columns, with_gpus=not is_stuck), self._seconds)
        if len(output.text) > LARGE_CHARACTERS:
            reading = await parse_aside(self._parse, output, now, is_stuck)
        else:
            reading = self._parse(output, now, is_stuck)
        self._reading, self._columns = reading, reading.kept.columns
        return self._seal(reading, now)

    async def close(self) -> None:
        await self._connection.close()
        await self._sources.closed(self)

    @property
    def _seconds(self) -> float:
        return _READING_SHARE * self._settings.deadline

    def _command(self, columns: tuple[str, ...], *, with_gpus: bool) -> str:
        return shell_command(
            columns,
            with_arguments=self._settings.commands in {"full", "redacted"},
            with_gpus=with_gpus,
            seconds=max(1, int(_DRIVER_SHARE * self._settings.deadline)),
        )

    def _parse(self, output: Output, now: float, is_stuck: bool) -> Reading:
        """The answer as a report: the whole machine or, if its GPUs cannot be read, its own figures at least."""
        # The last line may be cut, and half a number is a wrong one.
        text = output.text[: output.text.rfind("\n") + 1] if output.is_late else output.text
        before = self._reading
        reading = self._parse_after(before, text, now, _STUCK if is_stuck else _LATE if output.is_late else None)
        if before is not None and before.identity.boot_id != reading.identity.boot_id:
            # It was restarted, or another machine answers to that name: what was known of it is no longer so.
            reading = self._parse_after(None, text, now, _STUCK if is_stuck else _LATE if output.is_late else None)
        return reading

    def _parse_after(self, before: Reading | None, text: str, now: float, failure: PluginError | None) -> Reading:
        kept = before.kept if before else None
        try:
            if failure is not None:
                raise failure
            return parse(text, now, kept, self._settings.collector())
        except PluginError as error:
            return _read_host_alone(text, now, error, kept)

    def _seal(self, reading: Reading, now: float) -> Arrival:
        self._sequence += 1
        report = reading.report
        if self._target.labels:
            report = msgspec.structs.replace(report, labels=report.labels | self._target.labels)
        envelope = Envelope(
            version=VERSION,
            host=self._target.name,
            host_id=reading.identity.machine_id,
            boot_id=reading.identity.boot_id,
            run_id=self._run_id,
            sequence=self._sequence,
            # By the host's clock where it tells it, as an agent's: the hub compares the two to find wrong clocks.
            collected_at=now if reading.clock is None else reading.clock,
            interval_seconds=self._settings.interval,
            report=report,
        )
        return Arrival(envelope, reading.clock)


def _read_host_alone(text: str, now: float, failure: PluginError, kept: Kept | None) -> Reading:
    """The host's own figures. Raises the failure where the answer does not even have all of these."""
    if _LAST_HOST_PART not in split_answer(text).parts:
        raise failure
    reading = parse_host(text, now, str(failure), kept)
    if isinstance(failure, Absent):
        # A machine without such GPUs has no problem.
        return msgspec.structs.replace(reading, report=msgspec.structs.replace(reading.report, problems=[]))
    return reading


def make(settings: SshSettings, password: str | None = None) -> SshSources:
    """What makes the sources of all hosts that are read over SSH with these settings."""
    return SshSources(settings, password)
