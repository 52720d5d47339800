"""Real load balancers in front of several hubs: they run deploy/cluster with the hubs' addresses."""

import contextlib
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fakes.ports import free_port
from fakes.waiting import wait_until

_DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "cluster"
_FILES = {"haproxy": "haproxy.cfg", "nginx": "nginx.conf"}


@contextlib.contextmanager
def running_load_balancer(kind: str, hubs: Sequence[str], folder: Path) -> Iterator[str]:
    """Its URL, when it answers. `hubs` are the addresses of three hubs; skips the test where the program is missing."""
    program = shutil.which(kind) or shutil.which(kind, path="/usr/sbin")
    if program is None:
        pytest.skip(f"there is no {kind} on this machine: run tests/system-packages.sh")
    port = free_port()
    text = (_DEPLOY / _FILES[kind]).read_text()
    for number, hub in enumerate(hubs, 1):
        text = text.replace(f"hub{number}.example:8042", hub)
    text = text.replace("bind :8080", f"bind 127.0.0.1:{port}").replace("listen 8080", f"listen 127.0.0.1:{port}")
    file = folder / "proxy.conf"
    if kind == "nginx":
        text = f"daemon off; pid {folder}/pid; error_log stderr;\nevents {{}}\nhttp {{ access_log off;\n{text}\n}}\n"
    file.write_text(text)
    command = [program, "-db", "-f", str(file)] if kind == "haproxy" else [program, "-c", str(file), "-p", str(folder)]
    with (folder / "proxy.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: _is_answering(url), f"the start of {kind}: {(folder / 'proxy.log').read_text()}", 30)
        yield url
    finally:
        process.terminate()
        process.wait(20)


def _is_answering(url: str) -> bool:
    with contextlib.suppress(OSError):
        urllib.request.urlopen(f"{url}/readyz", timeout=20).close()
        return True
    return False
