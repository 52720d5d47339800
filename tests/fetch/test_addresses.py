"""Hosts that somebody else names are not read at local addresses, unless the operator allows it."""

import asyncio
import socket
import ssl
import threading

import pytest

from fetch.test_fetcher import answer, say, server
from gpudeck.fetch import AddressGuard, AddressInfo, Fetcher, Lookups
from gpudeck.model.errors import Refused
from gpudeck.model.target import Target

LOCAL = {
    "127.0.0.1": "loopback",
    "127.8.8.8": "loopback",
    "::1": "loopback",
    "::ffff:127.0.0.1": "loopback",
    "64:ff9b::7f00:1": "loopback",
    "2002:7f00:1::": "loopback",
    "169.254.7.7": "link-local",
    "fe80::1%eth0": "link-local",
    "169.254.169.254": "cloud metadata",
    "::ffff:169.254.169.254": "cloud metadata",
    "fd00:ec2::254": "cloud metadata",
    "100.100.100.200": "cloud metadata",
    "0.0.0.0": "unspecified",
    "0.1.2.3": "unspecified",
    "::": "unspecified",
    "255.255.255.255": "unspecified",
    "224.0.0.1": "multicast",
    "ff02::1": "multicast",
}


@pytest.mark.parametrize(("address", "kind"), LOCAL.items())
def test_local_addresses_are_refused_with_host_address_and_setting(address: str, kind: str) -> None:
    with pytest.raises(Refused) as caught:
        AddressGuard("gpu07", ()).check(address)
    shown = address.partition("%")[0]
    assert caught.value.message.startswith(f"gpu07 has the {kind} address {shown},")
    assert "discovery.allow_addresses" in caught.value.hint


@pytest.mark.parametrize("address", ["10.0.0.7", "192.168.1.9", "172.16.0.1", "8.8.8.8", "2001:db8::7", "fd12::7"])
def test_addresses_of_other_machines_are_taken(address: str) -> None:
    AddressGuard("gpu07", ()).check(address)


def test_what_the_operator_allows_is_taken_and_nothing_else() -> None:
    guard = AddressGuard("gpu07", ("127.0.0.0/8", "fe80::/10"))
    guard.check("127.0.0.1")
    guard.check("fe80::1%eth0")
    with pytest.raises(Refused):
        guard.check("169.254.169.254")


def test_hosts_of_the_operator_have_no_guard() -> None:
    assert AddressGuard.of(Target(name="a")) is None
    assert AddressGuard.of(Target(name="a", local_networks=())) is not None


def ask(url: str, guard: AddressGuard, trust: ssl.SSLContext | None = None) -> bytes:
    async def asking() -> bytes:
        fetcher = Fetcher(deadline=10.0, guard=guard, trust=trust)
        try:
            return (await fetcher.get(url)).body
        finally:
            await fetcher.close()

    return asyncio.run(asking())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "2130706433", "[::1]", "[::ffff:127.0.0.1]"])
def test_nothing_is_connected_to_whatever_the_address_is_written_as(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(Refused, match="gpu07 has the loopback address"):
            ask(f"http://{host}:{port}/", AddressGuard("gpu07", ()))
        listening.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            listening.accept()


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What gpu07 resolves to, question by question; the last one stays."""
    answers: list[list[str]] = []
    resolve = socket.getaddrinfo

    def answer_name(host: object, port: object, *args: object, **kwargs: object) -> object:
        if host != "gpu07":
            return resolve(host, port, *args, **kwargs)  # type: ignore[arg-type, call-overload]
        addresses = answers.pop(0) if len(answers) > 1 else answers[0]
        return [entry for address in addresses for entry in resolve(address, port, type=socket.SOCK_STREAM)]  # type: ignore[call-overload]

    monkeypatch.setattr(socket, "getaddrinfo", answer_name)
    return answers


def test_the_checked_address_is_connected_to_even_if_the_name_moves(names: list[list[str]]) -> None:
    names += [["127.0.0.2"], ["127.0.0.1"]]

    async def asking() -> list[bytes]:
        async with server(lambda request, writer: say(answer(request))(request, writer)) as url:
            port = int(url.rpartition(":")[2])
            # It listens at 127.0.0.1 alone, to which the name moves after it was checked.
            guard = AddressGuard("gpu07", ("127.0.0.2/32",))
            fetcher = Fetcher(deadline=2.0, guard=guard)
            with pytest.raises(Exception, match="connection refused"):
                await fetcher.get(f"http://gpu07:{port}/x")
            with pytest.raises(Refused, match=r"loopback address 127\.0\.0\.1,"):
                await fetcher.get(f"http://gpu07:{port}/x")
            await fetcher.close()
        return []

    asyncio.run(asking())


def test_one_local_address_among_others_refuses_the_host(names: list[list[str]]) -> None:
    names += [["10.0.0.7", "169.254.169.254"]]
    with pytest.raises(Refused, match="cloud metadata address"):
        ask("http://gpu07:9400/", AddressGuard("gpu07", ()))


def test_the_server_is_asked_under_its_own_name(names: list[list[str]]) -> None:
    names += [["127.0.0.1"]]

    async def asking() -> bytes:
        async with server(lambda request, writer: say(answer(request))(request, writer)) as url:
            port = int(url.rpartition(":")[2])
            fetcher = Fetcher(deadline=2.0, guard=AddressGuard("gpu07", ("127.0.0.0/8",)))
            body = (await fetcher.get(f"http://gpu07:{port}/x")).body
            await fetcher.close()
        return body.lower()

    assert b"\r\nhost: gpu07:" in asyncio.run(asking())


class Names:
    """`dead…` never gets an answer until `release`, `none…` does not exist, and every other name has an address."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.release = threading.Event()

    def look_up(self, host: str, port: int, **_: object) -> list[object]:
        self.asked.append(host)
        if host.startswith("dead"):
            self.release.wait(30)
        if not host.startswith("gpu"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.7", port))]


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Names:
    names = Names()
    monkeypatch.setattr(socket, "getaddrinfo", names.look_up)
    return names


def test_names_that_never_resolve_do_not_keep_a_known_one_waiting(dns: Names) -> None:
    async def asking() -> list[AddressInfo]:
        lookups = Lookups()
        await lookups.find("gpu07", 80)
        dead = [asyncio.create_task(lookups.find(f"dead{number}", 80)) for number in range(200)]
        await asyncio.sleep(0)
        try:
            return await lookups.find("gpu07", 80)
        finally:
            dns.release.set()
            for task in dead:
                task.cancel()
            await asyncio.gather(*dead, return_exceptions=True)

    assert [entry[4][0] for entry in asyncio.run(asking())] == ["192.0.2.7"]
    assert len(dns.asked) < 50


def test_name_that_does_not_resolve_is_not_asked_for_again_at_once(dns: Names) -> None:
    async def asking() -> None:
        lookups = Lookups()
        for _ in range(3):
            with pytest.raises(socket.gaierror, match="not known"):
                await lookups.find("none", 80)

    asyncio.run(asking())
    assert dns.asked == ["none"]
