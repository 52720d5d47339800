"""Durations, sizes and addresses: what is read, what is refused, and that writing and reading agree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudeck.config import format_duration, format_size, parse_address, parse_duration, parse_size
from gpudeck.model.settings import Address


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10s", 10.0),
        ("250ms", 0.25),
        ("5m", 300.0),
        ("2h", 7200.0),
        ("1d 6h", 108000.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        ("1w", 604800.0),
        ("10 s", 10.0),
        ("90", 90.0),
        ("0.5", 0.5),
        ("0", 0.0),
    ],
)
def test_duration_is_read_as_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "-1s",
        "6h 1d",
        "1h 1h",
        "5 minutes",
        "010",
        "1:30",
        "1e3",
        "٣s",
        "10S",
        "1" * 400,
        "1d" + " " * 9999 + "x",
    ],
)
def test_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("512MiB", 512 * 1024**2),
        ("20GB", 20 * 10**9),
        ("40G", 40 * 10**9),
        ("40gib", 40 * 1024**3),
        ("1.5 KiB", 1536),
        ("7B", 7),
        ("7", 7),
        ("0", 0),
    ],
)
def test_size_is_read_as_bytes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "MiB", "-1", "20 gigs", "1GiBs", "1 2", "01", "1e3", "1" * 400])
def test_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


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
    assert parse_size(format_size(size_bytes)) == size_bytes


@given(st.integers(0, 10**14))
def test_every_duration_in_milliseconds_survives_writing_and_reading(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == milliseconds / 1000


@given(st.floats(1e-6, 1e9))
def test_every_other_duration_survives_writing_and_reading(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (600.0, "10m"), (90061.25, "1d 1h 1m 1s 250ms"), (0.1, "100ms")]
)
def test_duration_is_written_in_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(("size_bytes", "text"), [(0, "0B"), (1025, "1025B"), (2**29, "512MiB"), (20 * 10**9, "20GB")])
def test_size_is_written_with_the_unit_that_fits(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text
