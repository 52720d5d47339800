"""Real stores that take remote_write and answer PromQL: a Prometheus and a VictoriaMetrics, on ports of their own."""

import base64
import contextlib
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from fakes.ports import free_port
from fakes.waiting import wait_until

Kind = Literal["prometheus", "victoria-metrics"]
_CONFIG = "global: {scrape_interval: 1h}\nstorage: {tsdb: {out_of_order_time_window: %s}}\n"


def find_store(kind: Kind) -> str:
    """The program; skips the test where there is none."""
    return shutil.which(kind) or pytest.skip(f"there is no {kind} on this machine: run tests/system-packages.sh")


class StoreProcess:
    """`stop` and `start` again keep the address and everything that was taken.

    `takes_late` is how late Prometheus takes samples, such as `1d`; VictoriaMetrics takes them always. With a
    `password` VictoriaMetrics wants it, from the user `hub`.
    """

    def __init__(
        self, kind: Kind, folder: Path, *, takes_late: str = "0s", password: str = "", host: str = "127.0.0.1"
    ) -> None:
        self._program = find_store(kind)
        self._kind = kind
        self._folder = folder
        self._password = password
        login = base64.b64encode(f"hub:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {login}"} if password else {}
        self.process: subprocess.Popen[bytes] | None = None
        port = free_port()
        self._address = f"{host}:{port}"
        self.read_url = f"http://{self._address}"
        self.write_url = f"{self.read_url}/api/v1/write"
        (folder / "prometheus.yml").write_text(_CONFIG % takes_late)

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen([self._program, *self._options()], stdout=log, stderr=log, cwd=self._folder)
        wait_until(self._is_ready, f"the start of {self._kind}", 60)

    def stop(self) -> None:
        """As its service would be stopped: what it took is on the disk."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(30)
            self.process = None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None

    def show_all(self) -> None:
        """What was taken is found from now on; VictoriaMetrics takes up to a second for it by itself."""
        if self._kind == "victoria-metrics":
            request = urllib.request.Request(f"{self.read_url}/internal/force_flush", headers=self._headers)
            urllib.request.urlopen(request, timeout=20).close()

    def _options(self) -> list[str]:
        if self._kind == "victoria-metrics":
            return [
                f"-httpListenAddr={self._address}",
                f"-storageDataPath={self._folder}/data",
                "-retentionPeriod=100y",
                "-memory.allowedBytes=256MB",
                *(["-httpAuth.username=hub", f"-httpAuth.password={self._password}"] if self._password else []),
            ]
        return [
            f"--web.listen-address={self._address}",
            f"--config.file={self._folder}/prometheus.yml",
            f"--storage.tsdb.path={self._folder}/data",
            "--storage.tsdb.retention.time=100y",
            "--web.enable-remote-write-receiver",
        ]

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self._folder / "log").read_text()[-2000:]
        path = {"prometheus": "/-/ready", "victoria-metrics": "/health"}[self._kind]
        with contextlib.suppress(OSError), urllib.request.urlopen(self.read_url + path, timeout=5) as answer:
            return bool(answer.status == 200)
        return False


@contextlib.contextmanager
def running_store(
    kind: Kind, *, takes_late: str = "0s", password: str = "", host: str = "127.0.0.1"
) -> Iterator[StoreProcess]:
    """A store that is ended at the end, with all that it kept."""
    with tempfile.TemporaryDirectory(prefix=f"gpudeck-{kind}-", ignore_cleanup_errors=True) as folder:
        store = StoreProcess(kind, Path(folder), takes_late=takes_late, password=password, host=host)
        try:
            store.start()
            yield store
        finally:
            store.kill()
