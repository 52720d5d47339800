"""The section `notify`: what is wrong is told, and no secret with it."""

from pathlib import Path

import pytest

from gpudeck.alerts.notifiers.settings import ChannelSettings, NotifySettings, read_url
from gpudeck.config import ConfigMistakes, load
from gpudeck.model.errors import UsageError
from gpudeck.settings import Settings

SECRET = "xoxb-very-secret"


def read(text: str) -> NotifySettings:
    return load(f"notify:\n{text}", "x.yaml", Settings).notify


def mistakes_in(text: str) -> str:
    with pytest.raises(ConfigMistakes) as caught:
        read(text)
    return str(caught.value)


def test_an_address_alone_stands_for_a_channel() -> None:
    assert read("  channels:\n    ops: ntfy://example.org/gpus\n").channels == {
        "ops": ChannelSettings("ntfy://example.org/gpus")
    }


@pytest.mark.parametrize(
    ("way", "address"),
    [
        ("mail", "mailto://mail.example/?from=a@b.example"),
        ("mail", "mailtos://ada:secret@mail.example"),
        ("slack", "slack://xoxb-1234-5678-abc"),
        ("slack", "slack://hub@xoxb-1234-5678-abc/#gpus"),
        ("slack", "slack://?token=xoxb-1234-5678-abc"),
    ],
)
def test_a_channel_that_writes_to_people_is_taken_as_one(way: str, address: str) -> None:
    assert getattr(read(f"  channels: {{a: '{address}'}}\n  {way}: a"), way) == "a"


def test_messages_link_to_the_public_address_without_one_of_their_own() -> None:
    assert load("public_url: https://a.example/gpus\n", "x.yaml", Settings).notify.page == "https://a.example/gpus"
    both = "public_url: https://a.example\nnotify: {page: 'https://b.example'}\n"
    assert load(both, "x.yaml", Settings).notify.page == "https://b.example"
    assert read("  channels: {}\n").page is None


def test_an_address_in_a_file_is_not_looked_into(tmp_path: Path) -> None:
    assert read(f"  channels: {{a: {{url_file: {tmp_path / 'no.url'}}}}}\n  mail: a\n  slack: a").mail == "a"


def test_routes_are_read_with_the_words_of_the_file() -> None:
    (route,) = read("  channels: {ops: 'json://x.example'}\n  routes:\n    - {to: [ops], continue: true}\n").routes
    assert (route.to, route.goes_on, route.severity) == (["ops"], True, "warning")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"  channels: {{ops: {{url: '{SECRET}'}}}}", "x.yaml:2: notify.channels.ops.url: url has to be an address"),
        (f"  channels: {{ops: {SECRET}}}", "url has to be an address"),
        (f"  channels: {{ops: {{url: 'slack://{SECRET}', url_file: /x}}}}", "either a url or a url_file"),
        ("  channels: {ops: {}}", "either a url or a url_file"),
        (f"  channels: slack://{SECRET}", "notify.channels: found text, expected a mapping"),
        (f"  channels: [slack://{SECRET}]", "notify.channels: found a list, expected a mapping"),
        (f"  channels: {{ops: [slack://{SECRET}]}}", "notify.channels.ops: found a list"),
        (f"  channels: {{ops: {{urll: 'slack://{SECRET}'}}}}", "did you mean url?"),
        ("  routes: [{to: [ops]}]", "number 1 names the channel ops, which is not there; channels is empty"),
        ("  channels: {a: 'json://a'}\n  mail: b", "mail names the channel b, which is not there; channels has a"),
        (
            f"  channels: {{a: 'https://hooks.example/{SECRET}'}}\n  mail: a",
            "mail names the channel a, which needs an address mailto:// or mailtos:// for that",
        ),
        (
            f"  channels: {{a: 'slack://T1JJ3T3L2/A1BRTD4JD/{SECRET}'}}\n  slack: a",
            "slack names the channel a, which needs an address slack:// with a bot's token",
        ),
        (
            f"  channels: {{a: {{url: 'json://{SECRET}', events: [host_up, hots_down]}}}}",
            "events: there is no kind hots_down; did you mean host_down?",
        ),
        ("  channels: {a: {url: 'json://a', events: [x]}}", "events: there is no kind x; there are host_seen, host_up"),
        ("  routes: [{to: []}]", "notify.routes[0].to: found 0 items"),
        ("  channels: {Ops!: 'json://a'}", "a channel's name"),
        ("  channels: {a: 'json://a'}\n  routes: [{to: [a], severity: bad}]", "one of critical, info, warning"),
    ],
)
def test_mistake_is_told_without_the_secret(text: str, told: str) -> None:
    said = mistakes_in(text)
    assert told in said
    assert SECRET not in said


def test_address_is_read_from_its_file_each_time(tmp_path: Path) -> None:
    file = tmp_path / "ops.url"
    channel = ChannelSettings(url_file=str(file))
    file.write_text("json://one.example\n")
    assert read_url("ops", channel) == "json://one.example"
    file.write_text("json://two.example\n")
    assert read_url("ops", channel) == "json://two.example"


@pytest.mark.parametrize("content", [b"", b"no address " + SECRET.encode(), b"json://a\njson://b", b"\xff\xfe"])
def test_file_that_holds_no_address_is_named_and_not_shown(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "ops.url"
    file.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_url("ops", ChannelSettings(url_file=str(file)))
    assert str(file) in str(caught.value)
    assert SECRET not in str(caught.value)


def test_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ops.url, cannot be read: no such file"):
        read_url("ops", ChannelSettings(url_file=str(tmp_path / "ops.url")))


def test_rule_that_does_not_exist_is_found_in_routes_and_mutes() -> None:
    channels = "  channels: {ops: 'json://x.example'}\n  routes:\n"
    told = mistakes_in(f"{channels}    - {{to: [ops], rules: [host_*, gpu_lsot]}}\n")
    assert "notify.routes[0].rules" in told
    assert "there is none that gpu_lsot fits" in told
    with pytest.raises(ConfigMistakes, match=r"users\.ada\.mute: there is no rule gpu_idel"):
        load("users:\n  ada: {mute: [watch, gpu_idel]}\n", "x.yaml", Settings)
