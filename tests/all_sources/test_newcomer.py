"""Somebody without any configuration points the hub at a host over SSH, and does what it says until it works."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from all_sources.hub import Hub
from fakes.hubs import environment, gpudeck
from fakes.sshd import IS_HERE, WHY_NOT, Sshd, running_sshd
from fakes.waiting import wait_until

pytestmark = pytest.mark.skipif(not IS_HERE, reason=WHY_NOT)


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    with running_sshd(tmp_path / "sshd") as running:
        yield running


@pytest.fixture
def home(tmp_path: Path, sshd: Sshd) -> Path:
    """A home with a key that the host takes, and no host that is known."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    shutil.copy(sshd.key, home / ".ssh" / "id_ed25519")
    return home


@pytest.fixture
def hub(home: Path, sshd: Sshd) -> Iterator[Hub]:
    running = Hub(home, ["--listen", "127.0.0.1:0", "--ssh", f"127.0.0.1:{sshd.port}"])
    try:
        yield running
    finally:
        running.stop()


def test_unknown_host_key_is_explained_and_the_advice_works_as_it_is_written(hub: Hub, home: Path, sshd: Sshd) -> None:
    assert "shows 1 host over SSH" in hub.greeting
    wait_until(lambda: "host key is not known" in hub.problems_of("127.0.0.1"), "the reason")
    fingerprint = subprocess.run(
        ["ssh-keygen", "-l", "-f", str(sshd.folder / "host.pub")], capture_output=True, text=True, check=True
    ).stdout.split()[1]
    said = hub.problems_of("127.0.0.1")
    advice = re.search(r"If it is the right one: (.+?)  or  ", said)
    assert fingerprint in said
    assert advice is not None
    assert hub.statuses() == {"127.0.0.1": "never_seen"}
    subprocess.run(advice[1], shell=True, env=environment(home), check=True, capture_output=True, timeout=30)
    hub.wait_for("up", "127.0.0.1")
    assert hub.problems_of("127.0.0.1") == ""
    shown = gpudeck(home, "show", "--hub", hub.url)
    assert (shown.returncode, "H200" in shown.stdout) == (0, True)
