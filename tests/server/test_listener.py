"""Connections that are refused get their answer late, and waiting ones delay nobody else."""

import asyncio
import contextlib
import errno
import itertools
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import uvloop

from fakes.serving import serving
from fakes.waiting import wait_until
from gpudeck.model.settings import LimitsSettings
from gpudeck.server import http_server
from gpudeck.server.connections import Connection, ConnectionLimiter
from gpudeck.server.http_server import ConnectionListener


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 20)


def is_cut_off(caller: socket.socket) -> bool:
    """Whether it has been, without waiting for it."""
    caller.setblocking(False)
    try:
        return caller.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def only(number: int) -> ConnectionLimiter:
    return ConnectionLimiter(LimitsSettings(connections_per_address=number))


def test_who_is_turned_away_hears_of_it_only_later() -> None:
    limiter = only(1)
    with serving(limiter) as port, connect(port), connect(port) as second:
        wait_until(lambda: limiter.hits["connections_per_address"] == 1, "it is turned away")
        assert not is_cut_off(second)
        wait_until(lambda: is_cut_off(second), "it is cut off")


def test_of_too_many_who_were_turned_away_the_first_have_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_HELD", 2)
    limiter = only(1)
    with serving(limiter, hold=3600.0) as port, connect(port), contextlib.ExitStack() as opened:
        others = [opened.enter_context(connect(port)) for _ in range(4)]
        wait_until(lambda: limiter.hits["connections_per_address"] == 4, "all are turned away")
        wait_until(lambda: is_cut_off(others[0]) and is_cut_off(others[1]), "the first two are cut off")
        assert not any(is_cut_off(other) for other in others[2:])


class Exhausted(socket.socket):
    """A listening socket of a process that has no descriptor left for the first who come."""

    failures = 3

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


@contextlib.contextmanager
def listening(kind: type[socket.socket] = socket.socket) -> Iterator[socket.socket]:
    plain = socket.create_server(("127.0.0.1", 0), backlog=256)
    with kind(fileno=plain.detach()) as opened:
        yield opened


async def accept_all(listening: socket.socket, number: int, now: Callable[[], float] = time.monotonic) -> Counter[int]:
    """How many were let in by each turn of the loop, when so many wait at once."""
    loop, turn, counted = asyncio.get_running_loop(), 0, Counter[int]()
    everybody = asyncio.Event()

    def count_turn() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(count_turn)

    async def welcome(connection: socket.socket, admitted: Connection) -> None:
        counted[turn] += 1
        connection.close()
        admitted.release()
        if counted.total() == number:
            everybody.set()

    port = listening.getsockname()[1]
    with contextlib.ExitStack() as opened:
        for _ in range(number):
            opened.enter_context(connect(port))
        app = ConnectionListener(listening, ConnectionLimiter(), welcome, now=now)
        app.open(256)
        loop.call_soon(count_turn)
        async with asyncio.timeout(20):
            await everybody.wait()
        await app.close()
    return counted


@pytest.mark.parametrize(("milliseconds", "admitted"), [(0, 8), (4, 8), (20, 32)])
def test_connections_are_begun_a_few_at_a_time_and_more_after_a_long_turn(milliseconds: int, admitted: int) -> None:
    clock = itertools.count(0.0, milliseconds / 1000 + 1e-6)
    with listening() as opened:
        counted = uvloop.run(accept_all(opened, 50, clock.__next__))
    assert (max(counted.values()), counted.total()) == (admitted, 50)


def test_connections_are_accepted_again_after_all_descriptors_were_used() -> None:
    with listening(Exhausted) as opened:
        assert uvloop.run(accept_all(opened, 3)).total() == 3


def test_closing_the_listener_answers_every_waiting_connection() -> None:
    async def close_in_the_middle(opened: socket.socket, limiter: ConnectionLimiter) -> bool:
        arrived = asyncio.Event()

        async def welcome(connection: socket.socket, admitted: Connection) -> None:
            arrived.set()
            try:
                await asyncio.Event().wait()
            finally:
                connection.close()
                admitted.release()

        app = ConnectionListener(opened, limiter, welcome, hold=3600.0)
        app.open(16)
        with connect(opened.getsockname()[1]) as first, connect(opened.getsockname()[1]) as second:
            async with asyncio.timeout(20):
                await arrived.wait()
            await app.close()
            first.settimeout(20)
            second.settimeout(20)
            return first.recv(1) == b"" and second.recv(1) == b""

    limiter = only(1)
    with listening() as opened:
        assert uvloop.run(close_in_the_middle(opened, limiter))
    assert limiter.hits["connections_per_address"] == 1


def test_a_connection_whose_serving_has_not_begun_is_closed_with_the_listener() -> None:
    async def close_before_serving(opened: socket.socket, limiter: ConnectionLimiter) -> bool:
        async def serve(accepted: socket.socket, connection: Connection) -> None:
            raise AssertionError("too late")

        listener = ConnectionListener(opened, limiter, serve)
        listener.open(16)
        with connect(opened.getsockname()[1]) as client:
            while not limiter.unused:  # noqa: ASYNC110 - the very turn matters
                await asyncio.sleep(0)
            await listener.close()
            await asyncio.sleep(0)
            return is_cut_off(client)

    limiter = only(1)
    with listening() as opened:
        assert uvloop.run(close_before_serving(opened, limiter))
    assert not limiter.unused
