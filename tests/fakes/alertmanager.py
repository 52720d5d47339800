"""A real Alertmanager on a port of its own, which sends what it routes to a webhook."""

import contextlib
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.ports import free_port
from fakes.waiting import wait_until

PROGRAM = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
needs_alertmanager = pytest.mark.skipif(PROGRAM is None, reason="no Alertmanager: run tests/system-packages.sh")
CONFIG = """
route:
  receiver: all
  group_by: [alertname, host]
  group_wait: 0s
  group_interval: 1s
  repeat_interval: 1h
receivers:
  - name: all
    webhook_configs:
      - {url: "%s", send_resolved: true}
"""


class Alertmanager:
    def __init__(self, folder: Path, webhook: str = "http://127.0.0.1:9/") -> None:
        folder.mkdir()
        (folder / "config.yml").write_text(CONFIG % webhook)
        self._folder = folder
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._options = [
            f"--config.file={folder}/config.yml",
            f"--storage.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen([PROGRAM or "", *self._options], stdout=log, stderr=log)
        wait_until(self._is_ready, "the start of Alertmanager", 30)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def alerts(self) -> list[dict[str, Any]]:
        """Those that fire there."""
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts", timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)
        return found

    def names(self) -> list[str]:
        return sorted(one["labels"]["alertname"] for one in self.alerts())

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/-/ready", timeout=5):
            return True
        return False


@contextlib.contextmanager
def running_alertmanager(folder: Path, webhook: str = "http://127.0.0.1:9/") -> Iterator[Alertmanager]:
    one = Alertmanager(folder, webhook)
    one.start()
    try:
        yield one
    finally:
        one.stop()
