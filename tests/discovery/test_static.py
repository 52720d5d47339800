"""Hosts as they are typed after --ssh."""

import pytest

from gpudeck.discovery.static import read_option
from gpudeck.model.errors import UsageError
from gpudeck.model.target import Target


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu01", ["gpu01"]),
        ("gpu01,gpu02", ["gpu01", "gpu02"]),
        (" gpu01, gpu02 ,", ["gpu01", "gpu02"]),
        ("gpu[01-03,07],big", ["gpu01", "gpu02", "gpu03", "gpu07", "big"]),
        ("gpu01,gpu01", ["gpu01"]),
    ],
)
def test_names_and_ranges_are_split_at_commas_outside_of_brackets(text: str, names: list[str]) -> None:
    assert [target.name for target in read_option(text, "--ssh")] == names


def test_user_port_and_ipv6_address_are_taken() -> None:
    first, second = read_option("ada@gpu01:2222,[2001:db8::1]:22", "--ssh")
    assert first == Target(name="gpu01", via="ssh", port=2222, user="ada", origin="--ssh", is_operators=True)
    assert (second.host, second.port) == ("2001:db8::1", 22)


@pytest.mark.parametrize("text", ["", ",", "gpu[03-01]", "gpu01:99999", "-oProxyCommand=x", "a b/c"])
def test_what_names_no_host_is_refused_with_the_option(text: str) -> None:
    with pytest.raises(UsageError, match="--ssh"):
        read_option(text, "--ssh")
