"""A rolling upgrade: a hub of an older version and hubs of this one serve a fleet together."""

import contextlib
import io
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.clusters import ClusterUnderTest
from chaos.hosts import reporting
from fakes.nats_server import running_nats
from fakes.postgres import running_postgres
from fakes.prometheus import running_store
from fakes.waiting import wait_until
from gpudeck import __version__

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
HOSTS = 4
_BACK = 5
"""Before there is a release: so many changes of the cluster ago."""


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, timeout=60).stdout


@pytest.fixture
def older(tmp_path: Path) -> str:
    """The folder with the code of the release before this one."""
    try:
        tags = git("tag", "--list", "v*", "--sort=-version:refname", "--merged").decode().split()
        commits = git("rev-list", f"--skip={_BACK}", "-n", "1", "HEAD", "--", "src/gpudeck/cluster").decode().split()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is no clone of the repository")
    found = next((tag for tag in tags if tag != f"v{__version__}"), None) or next(iter(commits), None)
    if found is None:
        pytest.skip("this clone has no older version")
    with tarfile.open(fileobj=io.BytesIO(git("archive", found, "src"))) as archive:
        archive.extractall(tmp_path / "older", filter="data")
    return str(tmp_path / "older" / "src")


@pytest.fixture
def cluster(tmp_path: Path, older: str) -> Iterator[ClusterUnderTest]:
    """The first hub is of the older version, and is started first: the tables are those of before then."""
    with contextlib.ExitStack() as stack:
        made = ClusterUnderTest(
            tmp_path,
            stack.enter_context(running_nats()),
            stack.enter_context(running_postgres()),
            stack.enter_context(running_store("victoria-metrics")),
            "",
        )
        made.hubs[0].prefix = ("env", f"PYTHONPATH={older}")
        for hub in made.hubs:
            stack.callback(hub.kill)
            hub.start()
        wait_until(made.is_whole, "a whole cluster", 120)
        yield made


def test_hubs_of_two_versions_serve_one_fleet(cluster: ClusterUnderTest, older: str) -> None:
    environment = Path(f"/proc/{cluster.hubs[0].pid}/environ").read_bytes()
    assert f"PYTHONPATH={older}".encode() in environment
    first, *others = (hub.port for hub in cluster.hubs)
    with reporting(first, cluster.hubs[0].token, HOSTS, others=others, deadline=3.0) as fleet:
        for hub in cluster.hubs:
            wait_until(lambda hub=hub: list(hub.statuses().values()) == ["up"] * HOSTS, "all hosts on all hubs", 60)
        fleet.mute("gpu01")
        wait_until(lambda: cluster.hubs[0].alerts("firing"), "an alert", 90)
        ids = [[alert["id"] for alert in hub.alerts("firing")] for hub in cluster.hubs]
        assert ids == [ids[0]] * len(cluster.hubs)
        fleet.mute()
        cluster.hubs[0].kill()
        cluster.hubs[0].prefix = ()
        cluster.hubs[0].start()
        wait_until(cluster.is_whole, "the older hub after its upgrade", 120)
        wait_until(lambda: not cluster.hubs[0].alerts("firing"), "the end of the alert", 90)
        for hub in cluster.hubs:
            wait_until(lambda hub=hub: list(hub.statuses().values()) == ["up"] * HOSTS, "all hosts on all hubs", 60)
