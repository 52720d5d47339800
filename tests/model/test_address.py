import socket

import pytest

from gpudeck.model.address import cannot_listen, check_hub_url, open_socket
from gpudeck.model.errors import UsageError
from gpudeck.model.settings import Address


@pytest.mark.parametrize(
    ("text", "expected"),
    [("http://hub:8042/", "http://hub:8042"), (" https://lab.example/gpus/ ", "https://lab.example/gpus")],
)
def test_an_address_is_taken_without_its_last_slash(text: str, expected: str) -> None:
    assert check_hub_url(text) == expected


@pytest.mark.parametrize("text", ["", "ftp://hub", "http://", "http://hub:99999", "http://hub/?a=1", "http://[::1"])
def test_anything_else_is_refused_with_the_next_step(text: str) -> None:
    with pytest.raises(UsageError, match=r"http://127\.0\.0\.1:8042"):
        check_hub_url(text)


def test_a_bound_socket_refuses_connections_until_it_listens_and_only_one_may() -> None:
    with open_socket(Address("127.0.0.1", 0), listens=False) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)
        with open_socket(Address("127.0.0.1", port), listens=False) as second:
            first.listen()
            with pytest.raises(OSError, match="in use") as caught:
                second.listen()
            error = cannot_listen(Address("127.0.0.1", port), caught.value)
            assert error.message == f"cannot listen on 127.0.0.1:{port}: address already in use."
        with pytest.raises(UsageError, match="address already in use"):
            open_socket(Address("127.0.0.1", port))


def test_all_addresses_are_those_of_both_versions() -> None:
    with open_socket(Address("", 0)) as opened:
        port = opened.getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), 5).close()
