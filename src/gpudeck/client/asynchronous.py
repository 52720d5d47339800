"""The client for asyncio. Each request runs in a thread, so that there is one implementation of all of them."""

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from gpudeck.client.client import Client
from gpudeck.model.gpu_request import GrantedGpu

P = ParamSpec("P")
T = TypeVar("T")
MAX_THREADS = 32
"""So many requests of one client run at a time; further ones wait."""


def _in_thread(
    method: "Callable[Concatenate[Client, P], T]",
) -> "Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]":
    @functools.wraps(method)
    async def call(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(functools.partial(method, self.blocking, *args, **kwargs))

    return call


def _iterated(
    method: "Callable[Concatenate[Client, P], Iterator[T]]",
) -> "Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]":
    @functools.wraps(method)
    def call(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return self._iterate(method(self.blocking, *args, **kwargs))

    return call


class AsyncClient:
    """A hub, with the methods of `Client`, as coroutines and asynchronous iterators; opened like it. `blocking` is the
    client that the threads use. Close it, or use it in `async with`."""

    def __init__(
        self, hub: str | None = None, timeout: float = 10.0, *, token: str | None = None, retries: int = 2
    ) -> None:
        self.blocking = Client(hub, timeout, token=token, retries=retries)
        self._threads = ThreadPoolExecutor(MAX_THREADS, "gpudeck-client")

    async def close(self) -> None:
        """Close the connections that are kept. Does not wait for requests that still run."""
        self.blocking.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    get = _in_thread(Client.get)
    post = _in_thread(Client.post)
    put = _in_thread(Client.put)
    delete = _in_thread(Client.delete)
    me = _in_thread(Client.me)
    fleet = _in_thread(Client.fleet)
    totals = _in_thread(Client.totals)
    hosts = _in_thread(Client.hosts)
    host = _in_thread(Client.host)
    health = _in_thread(Client.health)
    gpus = _in_thread(Client.gpus)
    alerts = _in_thread(Client.alerts)
    history = _in_thread(Client.history)
    usage = _in_thread(Client.usage)
    run = _in_thread(Client.run)
    reservations = _in_thread(Client.reservations)
    reserve = _in_thread(Client.reserve)
    next_free = _in_thread(Client.next_free)
    release = _in_thread(Client.release)
    queue = _in_thread(Client.queue)
    metrics = _in_thread(Client.metrics)
    events = _iterated(Client.events)
    runs = _iterated(Client.runs)
    stream = _iterated(Client.stream)
    live = _iterated(Client.live)

    @asynccontextmanager
    async def wait(self, gpus: int = 1, **options: Any) -> AsyncIterator[list[GrantedGpu]]:
        """As `Client.wait`, with the same options. A task that is cancelled leaves the queue, within seconds."""
        cancelled = threading.Event()
        waiting = self.blocking.wait(gpus, **options, is_cancelled=cancelled.is_set)
        entering = self._threads.submit(waiting.__enter__)
        try:
            granted = await asyncio.wrap_future(entering)
        except asyncio.CancelledError:
            cancelled.set()
            entering.add_done_callback(lambda done: None if done.exception() else waiting.__exit__(None, None, None))
            raise
        try:
            yield granted
        finally:
            await asyncio.shield(self._run(lambda: waiting.__exit__(None, None, None)))

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _iterate(self, values: Iterator[T]) -> AsyncIterator[T]:
        """One step at a time, so that nothing is requested that nobody takes."""
        end = object()
        step: asyncio.Future[Any] | None = None
        try:
            while True:
                step = asyncio.ensure_future(self._run(lambda: next(values, end)))
                value = await asyncio.shield(step)
                if value is end:
                    return
                yield value
        finally:
            # A step that still runs ends by itself; then the connection is closed.
            close = getattr(values, "close", None)
            if close is not None:
                if step is not None and not step.done():
                    step.add_done_callback(lambda done: done.cancelled() or (done.exception(), close()))
                else:
                    with suppress(RuntimeError):
                        close()
