"""A small HTTP server that answers every question with the same body."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from fakes.waiting import close_listening


@contextlib.asynccontextmanager
async def json_server(
    body: bytes,
    *headers: str,
    status: Callable[[], str] = lambda: "200 OK",
    header: Callable[[], str] = lambda: "X-Nothing: 0",
    seen: list[str] | None = None,
) -> AsyncIterator[str]:
    """Its address. `status` and one more `header` are made for each answer; `seen` gets the questions with headers."""
    handlers: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while question := await reader.readuntil(b"\r\n\r\n"):
                (seen if seen is not None else []).append(question.decode())
                lines = [f"HTTP/1.1 {status()}", f"Content-Length: {len(body)}", *headers, header(), "", ""]
                writer.write("\r\n".join(lines).encode() + body)
                await writer.drain()
        writer.transport.abort()
        handlers.discard(task)

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        await close_listening(listening)
        for task in list(handlers):
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
