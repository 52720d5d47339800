"""Sizes and addresses: what is read, what is refused, and that writing and reading agree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudeck.config import parse_address
from gpudeck.config.convert import format_size
from gpudeck.model.settings import Address
from gpudeck.model.text import parse_bytes


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8042", "127.0.0.1", 8042),
        ("gpu-1.example.org:80", "gpu-1.example.org", 80),
        (":8042", "", 8042),
        ("[::1]:8042", "::1", 8042),
        ("[fe80::1%eth0]:0", "fe80::1%eth0", 0),
    ],
)
def test_address_is_read_and_written_back_the_same(text: str, host: str, port: int) -> None:
    assert parse_address(text) == (host, port)
    assert str(Address(host, port)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "here",
        "8042",
        "a:",
        "a:b",
        "a:65536",
        "a:-1",
        "a:01",
        "::1:80",
        "[::1]",
        "[here]:80",
        "[1.2.3.4]:80",
        "1.2.3:80",
        "a b:80",
        "-a:80",
        "http://a:80",
        "a:80/x",
        "a:８０",
    ],
)
def test_text_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not|does not appear to be"):
        parse_address(text)


@given(st.integers(0, 10**15))
def test_every_size_survives_writing_and_reading(size_bytes: int) -> None:
    assert parse_bytes(format_size(size_bytes)) == size_bytes
