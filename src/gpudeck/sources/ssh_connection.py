"""One host's kept connection: opened when first needed, one command at a time, thrown away when in doubt."""

import asyncio

import asyncssh
from msgspec import Struct

from gpudeck.model.errors import PluginError, Temporary
from gpudeck.model.target import Target
from gpudeck.sources.ssh_connector import Connector, end
from gpudeck.sources.ssh_errors import Attempt, explain

BYTES_AT_MOST = 4 * 1024 * 1024
"""Of one answer: 16 GPUs with 256 processes, whose command lines are cut at 1,100 bytes, answer less than 1 MiB."""
_STDERR_BYTES = 1000


class Output(Struct, frozen=True):
    """What a command printed until it ended or, where `is_late`, until the time was over."""

    text: str
    is_late: bool = False


class _Command(asyncssh.SSHClientSession[bytes]):
    """Collects what one command prints. `done` is set when the other side has closed the channel."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.printed = bytearray()
        self.complained = bytearray()
        self.failure: Exception | None = None
        self._is_over = False

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if self._is_over:
            return
        if datatype is not None:
            self.complained += data[: _STDERR_BYTES - len(self.complained)]
            return
        self.printed += data
        if len(self.printed) > BYTES_AT_MOST:
            self.failure = Temporary(f"The host printed more than {BYTES_AT_MOST // 2**20} MiB.")
            self.abandon()
            self.done.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.failure = self.failure or exc
        self.done.set()

    def abandon(self) -> None:
        """Keep nothing of what may still come."""
        self._is_over = True
        self.printed = bytearray()

    @property
    def text(self) -> str:
        """What it printed; what it complained about instead, where it printed nothing."""
        return (self.printed or self.complained).decode(errors="replace")


class SshConnection:
    """Runs commands on one host. Never two at once: that is the caller's part.

    After anything that leaves doubt about the connection it is dropped, and the next command opens another.
    """

    def __init__(self, target: Target, connector: Connector) -> None:
        self._target = target
        self._connector = connector
        self._connection: asyncssh.SSHClientConnection | None = None
        self._late: _Command | None = None
        self._closings = 0

    @property
    def is_stuck(self) -> bool:
        """Whether a command of before still runs there, though its time was over long ago."""
        return self._late is not None and not self._late.done.is_set()

    async def run(self, command: str, seconds: float) -> Output:
        """What the command prints, within that many seconds. Raises PluginError, and nothing else."""
        finish_at = asyncio.get_running_loop().time() + seconds
        is_kept = self._connection is not None and not self._connection.is_closed()
        try:
            running = _Command()
            try:
                return await self._run(command, running, finish_at)
            except (asyncssh.Error, ConnectionError):
                # A kept connection may have died unnoticed since the last command: that is no failure of the host.
                if not is_kept or running.printed:
                    raise
                self._abort()
                return await self._run(command, _Command(), finish_at)
        except (asyncio.CancelledError, PluginError):
            self._abort()
            raise
        except Exception as error:
            self._abort()
            raise explain(error, self._attempt()) from error

    async def close(self) -> None:
        """May be called at any time, and again; a command under way fails then."""
        self._closings += 1
        connection, self._connection, self._late = self._connection, None, None
        if connection is not None:
            await end(connection)

    async def _run(self, command: str, running: _Command, finish_at: float) -> Output:
        connection = await self._open(finish_at)
        try:
            async with asyncio.timeout_at(finish_at):
                channel, _ = await connection.create_session(lambda: running, command, encoding=None, request_pty=False)
                channel.write_eof()
                await running.done.wait()
        except TimeoutError:
            return self._give_up(running)
        if running.failure is not None:
            raise running.failure
        return Output(running.text)

    def _give_up(self, running: _Command) -> Output:
        """The time is over. A connection on which something came is a good one: the command is what is slow."""
        output = Output(running.text, is_late=True)
        if not output.text:
            raise Temporary(f"{self._target.name} is connected, but does not answer: it is overloaded, or hangs.")
        running.abandon()
        self._late = running
        return output

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

    def _attempt(self) -> Attempt:
        target = self._target
        return Attempt(target.name, target.host, target.port or 22, target.user or "")

    def _abort(self) -> None:
        connection, self._connection, self._late = self._connection, None, None
        if connection is not None:
            connection.abort()
