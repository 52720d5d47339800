"""Names of SSH hosts are looked up as those of all others: a few at once."""

import asyncio
import socket
import threading

import pytest

from gpudeck.sources.ssh_connector import dial


class Names:
    """`dead…` never gets an answer until `release`; every other name is this machine, by IPv6 and IPv4."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.release = threading.Event()

    def look_up(self, host: str, port: int, **_: object) -> list[object]:
        self.asked.append(host)
        if host.startswith("dead"):
            self.release.wait(30)
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)),
        ]


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Names:
    names = Names()
    monkeypatch.setattr(socket, "getaddrinfo", names.look_up)
    return names


async def reach(host: str, port: int, family: int = socket.AF_UNSPEC) -> int:
    sock = await dial(host, port, family, None, None)
    sock.close()
    return sock.family


def test_names_that_never_resolve_do_not_keep_a_known_host_waiting(dns: Names) -> None:
    async def dialling(port: int) -> int:
        await reach("gpu01", port)
        dead = [asyncio.create_task(reach(f"dead{number}", port)) for number in range(100)]
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(20):
                return await reach("gpu01", port)
        finally:
            dns.release.set()
            for task in dead:
                task.cancel()
            await asyncio.gather(*dead, return_exceptions=True)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert asyncio.run(dialling(listening.getsockname()[1])) == socket.AF_INET
    assert len(dns.asked) < 50


def test_only_addresses_of_the_family_that_is_asked_for_are_tried(dns: Names) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert asyncio.run(reach("gpu01", port, socket.AF_INET)) == socket.AF_INET
        with pytest.raises(OSError, match="it has no address"):
            asyncio.run(reach("gpu01", port, socket.AF_UNIX))
    assert dns.asked == ["gpu01", "gpu01"]
