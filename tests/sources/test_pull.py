"""Pull: a real agent in a process of its own, asked by the hub's side; servers that answer anything but a report."""

import asyncio
import contextlib
import gzip
import re
import signal
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from fakes.certificates import Authority
from fakes.hubs import start
from fakes.reports import make_envelope
from fakes.waiting import close_listening, until, wait_until
from gpudeck.model.errors import PluginError, Refused, Temporary, UsageError
from gpudeck.model.report import Report
from gpudeck.model.target import Target
from gpudeck.sources.base import FetchedReport
from gpudeck.sources.poller import Poller, PollMethod, PullSettings, PullSource
from gpudeck.wire import Envelope, encode

SOON = PullSettings(interval=0.5, deadline=5.0)


class Agent:
    """`gpudeck agent --listen`, running on a port of its own."""

    def __init__(self, folder: Path, *arguments: str, listen: str = "127.0.0.1:0") -> None:
        self.folder = folder
        self.log = folder / "agent.log"
        self.log.unlink(missing_ok=True)
        options = ("--token-file", "token", "--interval", "0.2s", "--name", "itself")
        self.process: subprocess.Popen[str] = start(
            folder, "agent.log", "agent", "--listen", listen, *options, *arguments
        )
        wait_until(lambda: "listening on" in self.log.read_text(), "the agent's start")
        found = re.search(r"listening on (\S+):(\d+):", self.log.read_text())
        assert found is not None
        self.port = int(found[2])

    def target(self, **others: Any) -> Target:
        place = {"name": "gpu01", "via": "pull", "address": "127.0.0.1", "port": self.port}
        return Target(**(place | {"token_file": str(self.folder / "token")} | others))

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        try:
            return self.process.wait(15)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()


@contextlib.contextmanager
def running_agent(folder: Path, *arguments: str, listen: str = "127.0.0.1:0") -> Iterator[Agent]:
    agent = Agent(folder, *arguments, listen=listen)
    try:
        yield agent
    finally:
        agent.stop()


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    with running_agent(tmp_path_factory.mktemp("agent")) as running:
        yield running


@contextlib.asynccontextmanager
async def source_of(target: Target, settings: PullSettings = SOON) -> AsyncIterator[PullSource]:
    source = PullSource(target, settings)
    try:
        yield source
    finally:
        await source.close()


async def read_when_ready(source: PullSource) -> FetchedReport:
    """The first report; an agent that has just started says 503 until it has read its machine."""

    async def read() -> FetchedReport | None:
        with contextlib.suppress(Temporary):
            return await source.read(0.0)
        return None

    report = await until(read, "a report")
    assert report is not None
    return report


def read_once(target: Target, settings: PullSettings = SOON) -> FetchedReport:
    async def read() -> FetchedReport:
        async with source_of(target, settings) as source:
            return await read_when_ready(source)

    return asyncio.run(read())


def failure_of(target: Target, settings: PullSettings = SOON) -> PluginError:
    async def read() -> PluginError:
        async with source_of(target, settings) as source:
            with pytest.raises(PluginError) as caught:
                await source.read(0.0)
            return caught.value

    return asyncio.run(read())


def test_a_real_agent_is_read_under_the_name_that_people_gave_it(agent: Agent) -> None:
    arrival = read_once(agent.target(labels={"rack": "r7"}))
    envelope = arrival.envelope
    assert (envelope.host, envelope.report.labels["rack"], envelope.interval_seconds) == ("gpu01", "r7", 0.5)
    assert envelope.report.metrics["memory_total_bytes"] > 0
    assert arrival.sent_at is not None
    assert abs(arrival.sent_at - time.time()) < 60
    assert envelope.collected_at <= arrival.sent_at


def test_a_host_that_is_given_by_its_address_alone_keeps_the_name_that_it_reports(agent: Agent) -> None:
    assert read_once(agent.target(name="127.0.0.1", address="")).envelope.host == "itself"


def test_the_same_report_is_given_until_there_is_a_newer_one(agent: Agent) -> None:
    async def read() -> list[int]:
        async with source_of(agent.target()) as source:
            seen = [(await read_when_ready(source)).envelope.sequence]
            while seen[-1] < seen[0] + 3:
                seen.append((await source.read(0.0)).envelope.sequence)
            return seen

    seen = asyncio.run(read())
    assert seen == sorted(seen)
    assert len(seen) > len(set(seen))


def test_a_wrong_token_is_refused_and_a_corrected_one_is_read_again(agent: Agent, tmp_path: Path) -> None:
    token_file = tmp_path / "copy"
    token_file.write_text("wr0ng\n")

    async def read() -> tuple[PluginError, FetchedReport]:
        async with source_of(agent.target(token_file=str(token_file))) as source:
            with pytest.raises(Refused) as caught:
                await source.read(0.0)
            token_file.write_text((agent.folder / "token").read_text())
            return caught.value, await read_when_ready(source)

    refusal, arrival = asyncio.run(read())
    assert "wr0ng" not in str(refusal)
    assert str(refusal).endswith(
        f"answers 401: the token is not accepted. Copy the agent's token file to {token_file} again."
    )
    assert arrival.envelope.host == "gpu01"


def test_no_token_at_all_is_refused_with_the_setting_to_add(agent: Agent) -> None:
    failure = failure_of(agent.target(token_file=None))
    assert (type(failure), "Set pull.token_file" in str(failure)) == (Refused, True)
    assert "answers 401: it asks for a token." in str(failure)


def test_host_at_an_address_that_is_not_read_is_told_so_and_nothing_of_tokens(agent: Agent) -> None:
    failure = failure_of(agent.target(token_file=None, local_networks=()))
    assert "has the loopback address 127.0.0.1," in str(failure)
    assert "discovery.allow_addresses" in failure.hint


@pytest.mark.parametrize("name", ["absent", "empty", "~nobody-of-that-name/token"])
def test_a_token_file_without_a_token_is_refused(agent: Agent, tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").touch()
    failure = failure_of(agent.target(token_file=str(tmp_path / name).replace(f"{tmp_path}/~", "~")))
    assert type(failure) is Refused
    assert name.rpartition("/")[0] in str(failure)


def test_a_token_file_that_is_not_there_has_one_next_step(agent: Agent, tmp_path: Path) -> None:
    failure = failure_of(agent.target(token_file=str(tmp_path / "absent")))
    assert failure.hint == "Copy it from the host."
    assert "Copy" not in failure.message


def test_the_token_of_the_settings_is_used_where_the_host_has_none(agent: Agent) -> None:
    settings = PullSettings(interval=7.0, deadline=5.0, port=agent.port, token_file=str(agent.folder / "token"))
    arrival = read_once(Target(name="localhost", via="pull"), settings)
    assert (arrival.envelope.host, arrival.envelope.interval_seconds) == ("localhost", 7.0)


def test_a_killed_agent_fails_and_its_successor_is_read_by_the_same_source(tmp_path: Path) -> None:
    first = Agent(tmp_path)

    async def read() -> tuple[Envelope, PluginError, Envelope]:
        async with source_of(first.target()) as source:
            before = await read_when_ready(source)
            first.stop(signal.SIGKILL)
            with pytest.raises(Temporary) as caught:
                await source.read(0.0)
            with running_agent(tmp_path, listen=f"127.0.0.1:{first.port}"):
                after = await read_when_ready(source)
            return before.envelope, caught.value, after.envelope

    before, failure, after = asyncio.run(read())
    assert "does not answer: " in str(failure)
    assert (before.run_id != after.run_id, before.host_id == after.host_id) == (True, True)


def test_a_stopped_agent_ends_cleanly_while_a_hub_is_connected(tmp_path: Path) -> None:
    agent = Agent(tmp_path)

    async def read() -> int:
        async with source_of(agent.target()) as source:
            await read_when_ready(source)
            return await asyncio.to_thread(agent.stop)

    assert asyncio.run(read()) == 0
    assert "Traceback" not in agent.log.read_text()


def test_a_frozen_agent_is_given_up_at_the_deadline(tmp_path: Path) -> None:
    with running_agent(tmp_path) as agent:
        read_once(agent.target())
        agent.process.send_signal(signal.SIGSTOP)
        failure = failure_of(agent.target(), PullSettings(deadline=0.3))
        agent.process.send_signal(signal.SIGCONT)
        assert str(failure).endswith("/api/v1/report did not answer within 0.3 s.")
        assert read_once(agent.target()).envelope.host == "gpu01"


def test_a_simulated_host_is_not_taken_for_a_real_one(tmp_path: Path) -> None:
    with running_agent(tmp_path, "--simulate", "1") as agent:
        wait_until(lambda: "simulated" in str(failure_of(agent.target())), "the simulated report")
        failure = failure_of(agent.target())
    assert (type(failure), str(failure).endswith("Start its agent without --simulate.")) == (Temporary, True)


def test_the_poller_reads_a_real_agent_again_and_again(agent: Agent) -> None:
    arrived: list[FetchedReport] = []
    thrice = asyncio.Event()

    def deliver(_: Target, arrival: FetchedReport) -> bool:
        arrived.append(arrival)
        if len({arrival.envelope.sequence for arrival in arrived}) == 3:
            thrice.set()
        return True

    async def poll() -> None:
        poller = Poller(
            {"pull": PollMethod(lambda target: PullSource(target, SOON), 0.05, 5.0)}, deliver, lambda *_: None
        )
        poller.watch([agent.target()])
        async with asyncio.timeout(30):
            await thrice.wait()
        await poller.stop()

    asyncio.run(poll())
    assert {arrival.envelope.host for arrival in arrived} == {"gpu01"}


Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
GOOD = encode(make_envelope("itself", interval_seconds=30.0, report=Report(labels={"rack": "r1", "row": "2"})))
ZSTD = "Content-Encoding: zstd"
HEAD = "HTTP/1.1 200 OK\r\nContent-Type: {}\r\n{}\r\n"


def saying(body: bytes, media: str = "application/msgpack", *headers: str, length: int | None = None) -> Answering:
    """A server that answers each question so, whatever it is."""
    told = [*headers, f"Content-Length: {len(body) if length is None else length}"]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD.format(media, "".join(f"{line}\r\n" for line in told)).encode() + body)
        await writer.drain()
        writer.close()

    return answer


def keeping(connections: list[int]) -> Answering:
    """A server that goes on answering on a connection, and notes how many questions came on each."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at = len(connections)
        connections.append(0)
        while True:
            await reader.readuntil(b"\r\n\r\n")
            connections[at] += 1
            writer.write(
                HEAD.format("application/msgpack", f"{ZSTD}\r\nContent-Length: {len(GOOD)}\r\n").encode() + GOOD
            )

    return answer


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.close()


async def say_nothing(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(HEAD.format("application/msgpack", "Content-Length: 100000\r\n").encode())
    with contextlib.suppress(OSError):
        while not writer.is_closing():
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(HEAD.format("application/msgpack", f"Content-Length: {10**9}\r\n").encode())
    with contextlib.suppress(OSError):
        for _ in range(10**9 // 65536):
            writer.write(b"x" * 65536)
            await writer.drain()


@contextlib.asynccontextmanager
async def serving(answering: Answering, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server that answers like that, on the port that is given; every answer has ended at the end."""
    answers: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            await answering(reader, writer)
        with contextlib.suppress(OSError):
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield int(server.sockets[0].getsockname()[1])
        await close_listening(server)
        await asyncio.gather(*filter(None, answers))


def ask(answering: Answering, settings: PullSettings = SOON, **others: Any) -> FetchedReport:
    """What a source makes of a server that answers like that. Raises what it raises."""

    async def read() -> tuple[FetchedReport | None, PluginError | None]:
        async with serving(answering) as port:
            target = Target(name="gpu01", address="127.0.0.1", port=port, **others)
            async with source_of(target, settings) as source:
                try:
                    return await source.read(0.0), None
                except PluginError as error:
                    return None, error

    arrival, failure = asyncio.run(read())
    if arrival is None:
        raise failure or AssertionError
    return arrival


def test_a_host_is_asked_over_one_connection_again_and_again() -> None:
    connections: list[int] = []

    async def read() -> None:
        async with (
            serving(keeping(connections)) as port,
            source_of(Target(name="gpu01", address="127.0.0.1", port=port)) as source,
        ):
            for _ in range(20):
                await source.read(0.0)

    asyncio.run(read())
    assert connections == [20]


@pytest.mark.parametrize(
    ("answering", "told"),
    [
        (saying(b"<html>log in</html>", "text/html"), "answers something that is no report (text/html). Does an agent"),
        (saying(b"", "application/msgpack"), "answers something that is no report (application/msgpack)"),
        (saying(b"{}", "application/json"), "no report (application/json)"),
        (saying(b"{" * 100_000, "application/json"), "no report (application/json)"),
        (saying(b"\x93" * 100_000), "no report ("),
        (saying(GOOD[:50], "application/msgpack", ZSTD), "no report (application/msgpack)"),
        (saying(GOOD[:50], "application/msgpack", ZSTD, length=len(GOOD)), "does not answer: "),
        (saying(GOOD, "application/msgpack", "Content-Encoding: br"), "in a content encoding that was not asked for"),
        (saying(b"x" * 2_000_000), "answers more than 1 MiB."),
        (flood, "answers more than 1 MiB."),
        (hang_up, "does not answer: "),
        (saying(b"\x88\xa7version\x63"), "no report ("),
    ],
)
def test_what_is_no_report_is_named_shortly(answering: Answering, told: str) -> None:
    with pytest.raises(Temporary) as caught:
        ask(answering)
    assert told in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("answering", [say_nothing, drip])
def test_what_takes_too_long_is_given_up(answering: Answering) -> None:
    with pytest.raises(Temporary, match=r"did not answer within 0\.3 s\."):
        ask(answering, PullSettings(deadline=0.3))


def test_a_bomb_of_few_bytes_is_not_unpacked() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(512 * 1024 * 1024))
    with pytest.raises(Temporary, match="cannot be taken: the report is larger than"):
        ask(saying(bomb, "application/msgpack", ZSTD))


def test_labels_of_the_target_count_before_those_of_the_agent_and_the_longer_interval_counts() -> None:
    arrival = ask(saying(GOOD, "application/msgpack", ZSTD), labels={"rack": "r9"})
    assert arrival.envelope.report.labels == {"rack": "r9", "row": "2"}
    assert (arrival.envelope.host, arrival.envelope.interval_seconds) == ("gpu01", 30.0)


@pytest.mark.parametrize("media", ["application/msgpack", "application/x-msgpack; v=1"])
def test_a_report_in_another_packing_is_read_too(media: str) -> None:
    plain = msgspec.msgpack.encode(make_envelope())
    packed = [saying(plain, media), saying(gzip.compress(plain), media, "Content-Encoding: gzip")]
    assert [ask(answering).envelope for answering in packed] == [make_envelope(interval_seconds=2.0)] * 2


@pytest.mark.parametrize(
    ("told", "sent_at"),
    [("1790000000.5", 1_790_000_000.5), ("nan", None), ("inf", None), ("-1", None), ("1e300", None), ("soon", None)],
)
def test_only_a_plausible_clock_is_taken_over(told: str, sent_at: float | None) -> None:
    assert ask(saying(GOOD, "application/msgpack", ZSTD, f"Gpudeck-Sent-At: {told}")).sent_at == sent_at


def test_a_host_with_a_private_authority_is_asked_by_https(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def read(settings: PullSettings) -> str:
        async with serving(saying(GOOD, "application/msgpack", ZSTD), authority.server_context()) as port:
            source = PullSource(Target(name="gpu01", address="127.0.0.1", port=port, scheme="https"), settings)
            try:
                return (await source.read(0.0)).envelope.host
            except Temporary as error:
                return str(error)
            finally:
                await source.close()

    believed = asyncio.run(read(PullSettings(deadline=5.0, ca_file=str(authority.ca_file))))
    unknown = asyncio.run(read(PullSettings(deadline=5.0)))
    assert believed == "gpu01"
    assert "its certificate is not believed: unable to get local issuer certificate" in unknown


def test_a_file_of_certificates_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent\.pem cannot be read"):
        PullSource(Target(name="gpu01"), PullSettings(ca_file=str(tmp_path / "absent.pem")))
