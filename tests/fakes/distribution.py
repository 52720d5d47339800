"""gpudeck as it is handed out: a source distribution, the wheel that is made of it, and all that this needs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUIET = ("--quiet", "--disable-pip-version-check")


def build(folder: Path) -> tuple[Path, Path]:
    """The source distribution and the wheel, as `make dist` makes them."""
    _hatchling(ROOT, "sdist", folder)
    (source,) = folder.glob("gpudeck-*.tar.gz")
    unpacked = folder / "unpacked"
    shutil.unpack_archive(source, unpacked, filter="data")
    (inside,) = unpacked.iterdir()
    _hatchling(inside, "wheel", folder)
    (wheel,) = folder.glob("gpudeck-*.whl")
    return source, wheel


def _hatchling(root: Path, target: str, folder: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=root, check=True, timeout=300, capture_output=True)


def fill_wheelhouse(folder: Path, wheel: Path) -> None:
    """All that a hub needs, as `make wheelhouse` fetches it. Skips the test where no package index answers."""
    wanted = ("--require-hashes", "--only-binary", ":all:", "-r", str(ROOT / "requirements" / "hub.txt"))
    command = [sys.executable, "-m", "pip", "download", *QUIET, *wanted, "-d", str(folder)]
    fetched = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if fetched.returncode != 0:
        pytest.skip(f"no package index to fill a wheelhouse from: {fetched.stderr.strip().splitlines()[-1]}")
    shutil.copy(wheel, folder)


def install(python: str, environment: Path, wheelhouse: Path, package: str) -> None:
    """Into a fresh environment, with no index, no compiler and no node within reach."""
    bare = {"PATH": "/nonexistent", "HOME": str(environment), "PIP_CONFIG_FILE": os.devnull}
    subprocess.run([python, "-m", "venv", environment], check=True, timeout=300, env=bare)
    asked = ("--no-index", "--find-links", str(wheelhouse), package)
    subprocess.run(
        [environment / "bin" / "python", "-m", "pip", "install", *QUIET, *asked], check=True, timeout=600, env=bare
    )
