"""The name that a trusted proxy tells, and what it has to be configured with."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, field

from gpudeck.auth.caller import read_proxied_name
from gpudeck.auth.settings import AuthSettings, ProxySettings, UserEntries, read_name
from gpudeck.config import ConfigMistakes, load

PROXY = ProxySettings(header="Remote-User", addresses=["10.0.0.7", "192.0.2.0/28", "2001:db8::/64"])


class Whole(Struct, frozen=True):
    """The part of gpudeck.yaml that this is about."""

    login: AuthSettings = field(default_factory=AuthSettings)
    users: UserEntries = field(default_factory=dict)


@pytest.mark.parametrize("peer", ["10.0.0.7", "192.0.2.15", "2001:db8::1", "::ffff:10.0.0.7"])
def test_a_name_from_the_proxy_counts(peer: str) -> None:
    assert read_proxied_name("ada", peer, PROXY) == "ada"


@pytest.mark.parametrize(
    "peer",
    ["10.0.0.8", "192.0.2.16", "2001:db8:0:1::1", "127.0.0.1", "::ffff:10.0.0.8", "", "proxy", "10.0.0.7 "],
)
def test_a_name_from_anywhere_else_counts_nothing(peer: str) -> None:
    assert read_proxied_name("ada", peer, PROXY) is None


def test_without_a_configured_header_no_header_counts() -> None:
    assert read_proxied_name("ada", "10.0.0.7", ProxySettings(addresses=["10.0.0.7"])) is None


@pytest.mark.parametrize("value", [" ada\t", "Ada", "ADA", ["ada"]])
def test_a_name_is_taken_in_any_case_and_without_blanks_around_it(value: str | Sequence[str]) -> None:
    assert read_proxied_name(value, "10.0.0.7", PROXY) == "ada"


@pytest.mark.parametrize("name", ["ada@example.org", "ada.lovelace", "a", "a_b-c", "x" * 64])
def test_names_as_proxies_tell_them_can_be_accounts(name: str) -> None:
    assert read_proxied_name(name, "10.0.0.7", PROXY) == name


@pytest.mark.parametrize(
    "value",
    [
        *(None, "", " ", "x" * 65, "a b", "ada\n", "ada\x00", "-ada", "ada/..", "ada;", "ädä", "\udcff"),
        "\N{KELVIN SIGN}ate",  # in lower case it would be kate
        *("ada,grace", "ada, grace", ["ada", "grace"], ["ada", "ada"], []),
    ],
)
def test_what_is_not_exactly_one_name_is_refused(value: str | list[str] | None) -> None:
    assert read_proxied_name(value, "10.0.0.7", PROXY) is None


@given(st.text(max_size=80))
def test_no_text_becomes_a_name_that_is_another(text: str) -> None:
    assert read_name(text) in {None, text.lower()}
    assert read_name(text) is None or (read_name(text) or "").isascii()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("login: {proxy: {header: Remote-User}}", "login.proxy.header: header is accepted only from the proxy"),
        ("login: {proxy: {addresses: [10.0.0.0/33]}}", "'10.0.0.0/33' is no address"),
        ("login: {proxy: {addresses: [10.0.0.1/24]}}", "'10.0.0.1/24' is no address"),
        ("login: {proxy: {addresses: [proxy.example]}}", "'proxy.example' is no address"),
        ("login: {proxy: {header: Remote User}}", "a header, such as Remote-User"),
        ("login: {proxy: {role: root}}", "one of admin, user, viewer"),
        ("login: {idle: 8d, expire: 1d}", "idle has to be at most as long as expire"),
        ("login: {idle: 1m}", "5m"),
        ("users: {Ada: [ada]}", "an account's name"),
        ("users: {ada: [a b]}", "a login, such as ada"),
    ],
)
def test_mistakes_in_the_settings_are_told(text: str, told: str) -> None:
    with pytest.raises(ConfigMistakes) as mistakes:
        load(text, "gpudeck.yaml", Whole)
    assert told in str(mistakes.value)


def test_good_settings_are_read() -> None:
    text = "login: {idle: 1d, proxy: {header: X-User, addresses: [127.0.0.1], role: viewer}}\nusers: {ada: [a, b]}\n"
    assert load(text, "gpudeck.yaml", Whole) == Whole(
        AuthSettings(idle=86_400.0, proxy=ProxySettings("X-User", ["127.0.0.1"], "viewer")), {"ada": ["a", "b"]}
    )
