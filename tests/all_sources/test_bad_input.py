"""Hosts that answer anything but a report, through the whole hub: each gets its reason, and harms nobody else."""

import contextlib
from collections.abc import Iterator

import psutil
import pytest

from all_sources import bad_servers
from all_sources.bad_servers import serving
from all_sources.exporters import Exporter, recorded
from all_sources.hub import Hub, Seen, hub_with, watched
from fakes.sshd import IS_HERE, WHY_NOT, running_sshd
from fakes.waiting import wait_until
from gpudeck.collectors.host import machine_id

pytestmark = pytest.mark.skipif(not IS_HERE, reason=WHY_NOT)

NEIGHBOURS = ("live", "logged-in", "scraped")
GROWTH_BYTES = 100 * 1024**2
"""The largest answers that are taken, several at once, and not ten times as much."""
ANSWERS = {
    "html": bad_servers.answer_html,
    "half": bad_servers.answer_half_a_line,
    "endless": bad_servers.answer_without_end,
    "mute": bad_servers.answer_nothing,
    "closing": bad_servers.close_at_once,
}
PRINTED = {
    "html": "echo '<!doctype html><title>Welcome</title>'",
    "half": 'sh -c "$SSH_ORIGINAL_COMMAND" | head -c 700',
    "endless": "head -c 1G /dev/zero",
    "mute": "sleep 60",
    "closing": "kill -9 $PPID",
}
REASONS = {
    "pull-html": "answers something that is no report (text/html). Does an agent listen there?",
    "pull-half": "it breaks off in the middle of its answer",
    "pull-endless": "answers more than 1 MiB.",
    "pull-mute": "/api/v1/report did not answer within 2 s.",
    "pull-closing": "does not answer: Server disconnected",
    "pull-twin": "pull-twin answers as the machine that is shown as live already.",
    "scrape-html": "It answers a web page, not metrics. Check its port and path: exporters use /metrics.",
    "scrape-half": "it breaks off in the middle of its answer",
    "scrape-endless": "answers more than 8 MiB.",
    "scrape-mute": "/metrics did not answer within 2 s.",
    "scrape-closing": "does not answer: Server disconnected",
    "ssh-html": "does not greet as an sshd does",
    "ssh-half": "does not greet as an sshd does",
    "ssh-endless": "does not greet as an sshd does: another program listens",
    "ssh-mute": "takes the connection, but no login is finished in time: it is overloaded, or hangs.",
    "ssh-closing": "does not greet as an sshd does",
    "shell-html": "The machine did not run the command; it answered",
    "shell-half": "The machine's answer breaks off in the part",
    "shell-endless": "The host printed more than 4 MiB.",
    "shell-mute": "shell-mute is connected, but does not answer: it is overloaded, or hangs.",
    "shell-closing": "closed the connection",
}
"""What stands beside each bad host. `pull`, `scrape` and `ssh` are pointed at a server that answers so, `shell` at an
sshd whose forced command prints so; a twin answers as a machine that is there already."""


class Site:
    """A hub with three good hosts and, once they are up, all the bad ones. `before` is the hub's memory until then."""

    def __init__(self, hub: Hub, seen: Seen, sshd_port: int) -> None:
        self.hub = hub
        self.seen = seen
        self.process = psutil.Process(hub.process.pid)
        self.before = self.process.memory_info().rss
        self.sshd_port = sshd_port


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("bad")
    with contextlib.ExitStack() as parts:
        sshd = parts.enter_context(running_sshd(folder / "sshd"))
        exporter = Exporter(recorded("dcgm-exporter-4-h100x8"))
        parts.callback(exporter.stop)
        exporter.start()
        live = parts.enter_context(serving(bad_servers.answer_as("one-machine")))
        settings = {
            "ssh": {
                "host_keys": "accept-new",
                "known_hosts": [str(folder / "known_hosts")],
                "key_files": [str(sshd.key)],
            },
            "hosts": [
                {"name": "live", "via": "pull", "address": "127.0.0.1", "port": live},
                {"name": "logged-in", "via": "ssh", "address": "127.0.0.1", "port": sshd.port},
                {"name": "scraped", "via": "scrape", "address": "127.0.0.1", "port": exporter.port},
            ],
        }
        hub = parts.enter_context(hub_with(folder / "hub", settings))
        hub.wait_for("up", *NEIGHBOURS)
        site = Site(hub, parts.enter_context(watched(hub)), sshd.port)
        for kind, answer in ANSWERS.items():
            port = parts.enter_context(serving(answer))
            for via in ("pull", "ssh", "scrape"):
                hub.add(f"{via}-{kind}", via=via, port=port)
        for kind, command in PRINTED.items():
            bad = parts.enter_context(running_sshd(folder / kind, options=f"ForceCommand {command}"))
            (bad.folder / "authorized_keys").write_text((sshd.folder / "client.pub").read_text())
            hub.add(f"shell-{kind}", via="ssh", port=bad.port)
        twin = parts.enter_context(serving(bad_servers.answer_as("one-machine")))
        hub.add("pull-twin", via="pull", port=twin)
        yield site


@pytest.mark.parametrize("name", REASONS)
def test_bad_host_has_its_reason_beside_it_and_shows_nothing(site: Site, name: str) -> None:
    wait_until(lambda: REASONS[name] in site.hub.problems_of(name), f"{REASONS[name]!r} of {name}")
    host = site.hub.hosts()[name]
    assert (host["status"], host["gpus"], len(host["problems"])) == ("never_seen", [], 1)


@pytest.mark.skipif(not machine_id(), reason="a machine in a container has no id that is believed")
def test_machine_that_is_there_over_ssh_already_is_not_shown_twice(site: Site) -> None:
    site.hub.add("ssh-twin", via="ssh", port=site.sshd_port)
    words = "ssh-twin answers as the machine that is shown as logged-in already."
    wait_until(lambda: words in site.hub.problems_of("ssh-twin"), words)
    twin, first = site.hub.hosts()["ssh-twin"], site.hub.hosts()["logged-in"]
    assert (twin["status"], twin["gpus"], first["status"]) == ("never_seen", [], "up")


def test_neighbours_of_bad_hosts_stay_up_and_the_hub_stays_small(site: Site) -> None:
    """After all of the above: every bad host has failed at least once."""
    wait_until(lambda: all(site.hub.problems_of(name) for name in REASONS), "every host's failure")
    assert {name: site.seen.statuses[name] for name in NEIGHBOURS} == {name: ["up"] for name in NEIGHBOURS}
    assert [site.hub.problems_of(name) for name in NEIGHBOURS] == ["", "", ""]
    assert site.process.memory_info().rss - site.before < GROWTH_BYTES
