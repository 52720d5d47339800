"""File systems of fresh Debian and Ubuntu releases, from their package mirrors. Making one takes a minute or more: they
are kept in the cache."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PACKAGES = ("systemd", "systemd-sysv", "dbus", "python3", "openssh-server", "iproute2", "curl", "ca-certificates")


def debian_root(release: str) -> Path:
    """The root folder of bookworm (Python 3.11), trixie (3.13) or Ubuntu's jammy (3.10), to be read only. Skips the
    test where root, debootstrap or its default mirror is missing."""
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpudeck" / release
    if kept.is_dir():
        return kept
    if os.geteuid() or shutil.which("debootstrap") is None:
        pytest.skip("needs root and debootstrap")
    fresh = kept.with_name(f"{release}.{os.getpid()}")
    asked = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", release, str(fresh)]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=1200, check=False)
    if done.returncode != 0:
        shutil.rmtree(fresh, ignore_errors=True)
        pytest.skip(f"no package mirror with {release}: {done.stdout.strip().splitlines()[-1]}")
    shutil.rmtree(fresh / "var/cache/apt/archives", ignore_errors=True)
    (fresh / "var/cache/apt/archives/partial").mkdir(parents=True)
    if kept.is_dir():  # another test was faster
        shutil.rmtree(fresh)
    else:
        fresh.rename(kept)
    return kept
