"""The server of these tests leaves nothing behind that another test would be blamed for."""

import asyncio
import gc
import socket
from urllib.parse import urlsplit

import pytest

from discovery.servers import json_server


@pytest.mark.parametrize("turns", range(6))
def test_connection_that_was_just_accepted_ends_with_the_server(turns: int) -> None:
    async def connecting() -> None:
        async with json_server(b"[]") as url:
            address = urlsplit(url)
            with socket.create_connection((address.hostname, address.port)):
                for _ in range(turns):
                    await asyncio.sleep(0)

    asyncio.run(connecting())
    gc.collect()
