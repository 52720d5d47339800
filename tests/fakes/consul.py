"""A real Consul on ports of its own: hosts come, fail and go through its HTTP API."""

import contextlib
import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.ports import free_port
from fakes.waiting import wait_until

SERVICE = "gpudeck-agent"


def find_consul() -> str:
    """The program; skips the test where there is none. `tests/system-packages.sh` fetches it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    found = shutil.which("consul") or shutil.which(str(cache / "gpudeck" / "consul" / "usr" / "bin" / "consul"))
    return found or pytest.skip("there is no Consul on this machine: run tests/system-packages.sh")


class ConsulProcess:
    """`consul agent -dev`: it forgets everything when it ends. `start` again keeps the address.

    With `secret` it accepts that token alone, and shows nothing to others.
    """

    def __init__(self, folder: Path, secret: str | None = None) -> None:
        self._program = find_consul()
        self._folder = folder
        self._secret = secret
        self._ports = [free_port() for _ in range(4)]
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self._ports[0]}"

    def start(self) -> None:
        http, server, lan, wan = self._ports
        arguments = [
            *("-bind=127.0.0.1", "-client=127.0.0.1", "-node=consul", "-dns-port=-1", "-grpc-port=-1"),
            *(f"-http-port={http}", f"-server-port={server}", f"-serf-lan-port={lan}", f"-serf-wan-port={wan}"),
            *(["-config-file", str(self._write_rules())] if self._secret else []),
        ]
        with (self._folder / "consul.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "agent", "-dev", *arguments], stdout=log, stderr=log, cwd=self._folder
            )
        wait_until(self._is_ready, "Consul's start", 60)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)

    def register(self, node: str, port: int = 7080, *, passing: bool = True, **more: object) -> None:
        """Put an instance of the service on a node, or change it. `more` is `address`, `tags`, `meta`, `node_meta`."""
        check = {"Name": "alive", "CheckID": "alive", "ServiceID": SERVICE, "Status": _STATUS[passing]}
        service = {
            "ID": SERVICE,
            "Service": SERVICE,
            "Port": port,
            "Address": more.get("address", ""),
            "Tags": more.get("tags", []),
            "Meta": more.get("meta", {}),
        }
        told = {"Node": node, "Address": "10.0.0.9", "NodeMeta": more.get("node_meta", {})}
        self._put("/v1/catalog/register", told | {"Service": service, "Check": check})

    def deregister(self, node: str) -> None:
        self._put("/v1/catalog/deregister", {"Node": node})

    def _put(self, path: str, body: object) -> None:
        headers = {"X-Consul-Token": self._secret} if self._secret else {}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers, method="PUT")
        urllib.request.urlopen(request, timeout=10).close()

    def _is_ready(self) -> bool:
        """Whether it has a leader and takes what is written to it."""
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "consul.log").read_text()[-2000:]
        with contextlib.suppress(OSError):
            self._put("/v1/catalog/deregister", {"Node": "nobody"})
            return True
        return False

    def _write_rules(self) -> Path:
        rules = {"enabled": True, "default_policy": "deny", "tokens": {"master": self._secret}}
        file = self._folder / "rules.json"
        file.write_text(json.dumps({"primary_datacenter": "dc1", "acl": rules}))
        return file


_STATUS = {True: "passing", False: "critical"}


@contextlib.contextmanager
def running_consul(folder: Path, secret: str | None = None) -> Iterator[ConsulProcess]:
    """A Consul that is ended at the end."""
    consul = ConsulProcess(folder, secret)
    try:
        consul.start()
        yield consul
    finally:
        consul.kill()
