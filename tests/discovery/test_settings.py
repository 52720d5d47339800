"""What the configuration file says about hosts: read into types, or answered with the exact place of each mistake."""

import pytest
from msgspec import Struct, field

from docs.settings_reference import reference
from gpudeck.config import ConfigMistakes, load
from gpudeck.discovery.consul import ConsulSettings
from gpudeck.discovery.prometheus_sd import FileSdSettings, HttpSdSettings
from gpudeck.discovery.registry import DiscoverySettings
from gpudeck.discovery.static import HostEntry, Hosts, HostsFileSettings


class Whole(Struct, frozen=True):
    hosts: Hosts = field(default_factory=list)
    """Hosts that are watched."""
    discovery: DiscoverySettings = field(default_factory=DiscoverySettings)


def mistakes_in(text: str) -> list[str]:
    with pytest.raises(ConfigMistakes) as caught:
        load(text, "x.yaml", Whole)
    return str(caught.value).split("\n")


def test_everything_that_can_be_said_is_read() -> None:
    text = """
hosts:
  - gpu[01-16]
  - {name: "n[1-2]", via: pull, port: 7443, scheme: https, token_file: t, labels: {rack: b3}}
discovery:
  hosts_files: [hosts.txt, {path: more.txt, via: scrape}]
  file_sd: [{paths: ["targets/*.yml"], via: scrape}]
  http_sd: [{url: "https://cmdb/sd?x=1", interval: 5m, token_file: t, ca_file: c}]
  consul: [{service: gpudeck-agent, tags: [a, b], datacenter: east, only_passing: no}]
"""
    assert load(text, "x.yaml", Whole) == Whole(
        hosts=[
            HostEntry("gpu[01-16]"),
            HostEntry("n[1-2]", "pull", port=7443, scheme="https", token_file="t", labels={"rack": "b3"}),
        ],
        discovery=DiscoverySettings(
            hosts_files=[HostsFileSettings("hosts.txt"), HostsFileSettings("more.txt", "scrape")],
            file_sd=[FileSdSettings(["targets/*.yml"])],
            http_sd=[HttpSdSettings("https://cmdb/sd?x=1", interval=300.0, token_file="t", ca_file="c")],
            consul=[ConsulSettings("gpudeck-agent", tags=["a", "b"], datacenter="east", only_passing=False)],
        ),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "hosts:\n  - ok\n  - gpu[16-01]",
            "x.yaml:3: hosts[1].name: this name cannot be used: [16-01] goes down; write [01-16]",
        ),
        ("hosts:\n  - name: gpu[1-x]", "x.yaml:2: hosts[0].name: this name cannot be used: '[1-x]' is no range"),
        (
            "hosts: [[a]]",
            "x.yaml:1: hosts[0]: found a list, expected a host's name or a range such as gpu[01-16] or a ",
        ),
        ("hosts: ['gpu[0-10000]']", "x.yaml:1: hosts[0].name: this name cannot be used: '[0-10000]' means more"),
        ("hosts: ['a b']", "x.yaml:1: hosts[0].name: this name cannot be used: 'a b' is no name of a host"),
        ("hosts: [~]", "x.yaml:1: hosts[0].name: missing, expected a host's name or a range such as "),
        ("hosts:\n  - a\n  - b[1-2]\n  - b2", "x.yaml:4: hosts[2]: b2 is named before, by hosts[1]"),
        ("hosts: ['a[1-9999]', 'b[1-9999]', c, d, e]", "x.yaml:1: hosts[4]: more than 20000 hosts in all"),
        ("hosts:\n  - name: a\n    via: shs", "x.yaml:3: hosts[0].via: found 'shs', expected one of gpu-"),
        ("hosts:\n  - name: a\n    port: 0", "x.yaml:3: hosts[0].port: found '0', expected a whole number"),
        ("hosts: [{name: 'a[1-2]', address: b}]", "x.yaml:1: hosts[0].address: address fits one host, and name mea"),
        ("hosts: [{name: a, via: scrape, user: b}]", "x.yaml:1: hosts[0].user: user is of no use with `via: scrape`"),
        ("hosts: [{name: a, path: /metrics}]", "x.yaml:1: hosts[0].path: path is of no use with `via: ssh`"),
        ("hosts: [{name: a, via: push, port: 1}]", "x.yaml:1: hosts[0].port: port is of no use with `via: push`"),
        ("discovery: {http_sd: [{url: cmdb/sd}]}", "x.yaml:1: discovery.http_sd[0].url: found 'cmdb/sd'"),
        ("discovery: {http_sd: [{url: 'http://a:0/'}]}", "x.yaml:1: discovery.http_sd[0].url: url 'http://a:0/' has"),
        ("discovery: {http_sd: [{url: 'http://[1/'}]}", "x.yaml:1: discovery.http_sd[0].url: url 'http://[1/' has no"),
        ("discovery: {http_sd: [{url: 'http://a', interval: 10ms}]}", "x.yaml:1: discovery.http_sd[0].interval: fou"),
        ("discovery: {http_sd: [{}]}", "x.yaml:1: discovery.http_sd[0].url: missing, expected a URL that begins wi"),
        ("discovery: {consul: [{url: 'http://a'}]}", "x.yaml:1: discovery.consul[0].service: missing, expected text"),
        ("discovery: {consul: [{service: a, url: 'http://a?b'}]}", "x.yaml:1: discovery.consul[0].url: url has a part"),
        ("discovery: {file_sd: [{paths: []}]}", "x.yaml:1: discovery.file_sd[0].paths: found 0 items, expected a li"),
        ("discovery: {hosts_files: [{}]}", "x.yaml:1: discovery.hosts_files[0].path: missing, expected text"),
    ],
)
def test_mistake_is_told_with_its_exact_place(text: str, message: str) -> None:
    (told,) = mistakes_in(text)
    assert told.startswith(message)


def test_password_in_an_address_is_not_told() -> None:
    assert "hunter2" not in "".join(mistakes_in("discovery: {http_sd: [{url: 'http://ada:hunter2@a:0/'}]}"))


def test_every_setting_has_its_help() -> None:
    rows = [line for line in reference(Whole).splitlines() if line.startswith("| `")]
    assert len(rows) > 25
    assert [row for row in rows if row.endswith("|  |")] == []
