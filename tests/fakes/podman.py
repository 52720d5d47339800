"""Podman with a store of its own, with runc, and with this machine's network: so it also runs within a container."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_STORAGE = """
[storage]
driver="overlay"
graphroot="{folder}/graph"
runroot="{folder}/run"
"""
_ENGINE = """
[containers]
default_ulimits=["nofile=4096:4096", "nproc=4096:4096"]
[engine]
cgroup_manager="cgroupfs"
runtime="runc"
events_logger="file"
"""
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"


class Podman:
    """Skips the test where podman is missing. `close` removes every container and image of this store."""

    def __init__(self, folder: Path) -> None:
        if os.geteuid() or not all(map(shutil.which, ("podman", "runc"))):
            pytest.skip("needs root, podman and runc")
        (folder / "storage.conf").write_text(_STORAGE.format(folder=folder))
        (folder / "containers.conf").write_text(_ENGINE)
        self._folder = folder

    def __call__(self, *words: str, timeout: float = 1200) -> str:
        own = {
            "CONTAINERS_STORAGE_CONF": str(self._folder / "storage.conf"),
            "CONTAINERS_CONF": str(self._folder / "containers.conf"),
        }
        done = subprocess.run(
            ["podman", *words], env=os.environ | own, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert done.returncode == 0, f"podman {' '.join(words)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def build(self, context: Path, tag: str, *options: str) -> None:
        """With the certificates that this machine believes, as an index may be behind a proxy of its own."""
        places = ("--isolation=chroot", "--network=host", f"--volume={CERTIFICATES}:{CERTIFICATES}:ro")
        self("build", *places, "--tag", tag, *options, str(context))

    def close(self) -> None:
        self("rm", "--all", "--force", "--time=5")
        self("rmi", "--all", "--force")
