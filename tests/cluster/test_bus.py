"""The bus on real NATS servers: three of them of which one dies after another, and one that wants TLS."""

import asyncio
import contextlib
import subprocess
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from fakes.clock import FakeClock
from fakes.nats_server import NatsServer, running_nats
from fakes.ports import free_port
from fakes.waiting import until, wait_until
from gpudeck.cluster.bus import Bus
from gpudeck.cluster.settings import ClusterSettings

pytestmark = pytest.mark.slow


class Listener:
    """What came from a bus, in its order: at least once, and here each once."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []

    async def receive(self, body: bytes, at: float) -> None:
        assert abs(at - time.time()) < 3600
        if body not in self.heard:
            self.heard.append(body)

    async def answer(self, body: bytes) -> bytes:
        return body[::-1]


@contextlib.asynccontextmanager
async def connected(settings: ClusterSettings) -> AsyncIterator[tuple[Bus, Listener]]:
    listener = Listener()
    bus = Bus(settings, listener.receive, listener.answer, since=time.time() - 10)
    bus.start()
    try:
        yield bus, listener
    finally:
        await bus.close()


class ThreeServers:
    """A NATS cluster of three. `monitors` are the ports on which each says how it is."""

    def __init__(self, folder: Path) -> None:
        routes, self.monitors = [free_port() for _ in range(3)], [free_port() for _ in range(3)]
        all_routes = ",".join(f"nats://127.0.0.1:{port}" for port in routes)
        self.servers = []
        for number in range(3):
            (folder / f"{number}").mkdir()
            cluster = ["--cluster_name", "test", "--cluster", f"nats://127.0.0.1:{routes[number]}"]
            options = ["--name", f"n{number}", *cluster, "--routes", all_routes, "-m", str(self.monitors[number])]
            self.servers.append(NatsServer(folder / f"{number}", options=options))
        self.url = ",".join(server.url for server in self.servers)

    def is_well(self) -> bool:
        """Whether each has a leader, and is up to date with what the others have."""
        for port in self.monitors:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
                    answer.read()
            except OSError:
                return False
        return True


@pytest.fixture
def three(tmp_path: Path) -> Iterator[ThreeServers]:
    made = ThreeServers(tmp_path)
    try:
        for server in made.servers:
            server.start()
        wait_until(made.is_well, "a NATS cluster", 60)
        yield made
    finally:
        for server in made.servers:
            server.kill()


def test_no_message_is_lost_while_one_server_of_three_after_another_dies(three: ThreeServers) -> None:
    async def work() -> None:
        settings = [ClusterSettings(bus=three.url, name=name, replicas=3) for name in ("a", "b")]
        async with connected(settings[0]) as (one, heard_by_one), connected(settings[1]) as (other, heard_by_other):
            sent = [b"before"]
            one.publish(sent[0])
            await until(lambda: heard_by_other.heard == sent, "the first message")
            for server in three.servers:
                server.kill()
                sent.append(f"without {server.port}".encode())
                one.publish(sent[-1])
                await hear(one, heard_by_one, sent)
                await hear(other, heard_by_other, sent)
                assert await until(lambda: ask(one), "an answer of the other hub") == b"olleh"
                await asyncio.to_thread(server.start)
                await asyncio.to_thread(wait_until, three.is_well, "three servers again", 60)
            assert other.dropped == one.dropped == 0

    async def hear(bus: Bus, listener: Listener, sent: list[bytes]) -> None:
        for _ in range(6):
            with contextlib.suppress(AssertionError):
                await until(lambda: listener.heard == sent, "a message", 10)
                return
            bus.note_lost()  # as a hub does that hears nothing of itself
        raise AssertionError(f"{listener.heard} instead of {sent}")

    async def ask(bus: Bus) -> bytes:
        with contextlib.suppress(Exception):
            return await bus.request("b", b"hello", 2.0)
        return b""

    asyncio.run(work())


def test_a_bus_is_not_idle_while_there_is_much_to_read(tmp_path: Path) -> None:
    """However long that takes: the hub would subscribe anew again and again."""

    async def work(url: str) -> None:
        clock, idle = FakeClock(), list[float]()
        async with connected(ClusterSettings(bus=url, name="a")) as (one, heard):
            for number in range(50):
                one.publish(b"%d" % number)
            await until(lambda: len(heard.heard) == 50, "all messages", 30)

        async def read_slowly(_: bytes, at: float) -> None:
            idle.append(other.idle_seconds)
            clock.advance(4)

        since = time.time() - 60
        other = Bus(ClusterSettings(bus=url, name="b"), read_slowly, heard.answer, since=since, monotonic=clock)
        other.start()
        await until(lambda: len(idle) == 50, "all messages", 30)
        assert idle == [0.0] * 50
        await until(lambda: other.idle_seconds == 0.0, "the end of the last one")
        clock.advance(11)
        assert other.idle_seconds == 11
        await other.close()

    with running_nats() as nats:
        asyncio.run(work(nats.url))


def test_fewer_servers_than_replicas_are_a_reason(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    server.start()

    async def work() -> None:
        async with connected(ClusterSettings(bus=server.url, name="a", replicas=3)) as (bus, _):
            await until(lambda: bus.problem == "it has fewer servers than cluster.replicas", "the reason")

    try:
        asyncio.run(work())
    finally:
        server.kill()


def make_certificates(folder: Path) -> None:
    """An authority, and what it has signed for a server on this machine and for a hub."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)

    new = ("req", "-newkey", "rsa:2048", "-nodes")
    openssl(*new, "-x509", "-subj", "/CN=authority", "-days", "2", "-keyout", "ca.key", "-out", "ca.pem")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    for name in ("server", "hub"):
        openssl(*new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem")


def test_a_bus_with_tls_and_certificates_on_both_sides(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    files = ["--tlscert", f"{tmp_path}/server.pem", "--tlskey", f"{tmp_path}/server.key"]
    server = NatsServer(tmp_path, options=["--tls", *files, "--tlsverify", "--tlscacert", f"{tmp_path}/ca.pem"])
    server.start()
    url, ca = server.url.replace("nats://", "tls://"), f"{tmp_path}/ca.pem"
    own = {"certificate_file": f"{tmp_path}/hub.pem", "key_file": f"{tmp_path}/hub.key"}
    refused = "a certificate is not accepted, or a file that `cluster` names cannot be read: see the hub's log"

    async def work() -> None:
        async with connected(ClusterSettings(bus=url, name="a", ca_file=ca, **own)) as (bus, listener):
            bus.publish(b"secret")
            await until(lambda: listener.heard == [b"secret"], "a message over TLS")
            assert bus.problem is None
        async with connected(ClusterSettings(bus=url, name="a", **own)) as (bus, _):
            await until(lambda: bus.problem == refused, "that the authority is not known")
        async with connected(ClusterSettings(bus=url, name="a", ca_file=ca)) as (bus, listener):
            bus.publish(b"from a stranger")
            await until(lambda: bus.problem not in {None, "it has not been reached yet"}, "that it is refused")
            assert not listener.heard
        async with connected(ClusterSettings(bus=url, name="a", ca_file=f"{tmp_path}/nowhere.pem")) as (bus, _):
            await until(lambda: bus.problem == refused, "that the file is missing")

    try:
        asyncio.run(work())
    finally:
        server.kill()
