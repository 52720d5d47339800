"""Machines of a cluster, each in a network namespace of its own, and cables between them that can be cut.

All namespaces hang on a bridge in one more namespace: nothing of the machine's own network is touched. A cut is silent,
as when a switch fails: packets of both sides go to an address that nobody has. Only iproute2 and root are needed.
"""

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

_PREFIX = "gpudeck-chaos-"
_NOBODY = "02:00:00:00:00:01"
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def why_not() -> str:
    """Why there can be no namespaces here; empty where there can."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "network namespaces need root and iproute2"
    name = f"{_PREFIX}{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, timeout=30, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=30, check=False)
    return f"no network namespaces: {made.stderr.strip()}" if made.returncode else ""


class Network:
    """`inside(name)`: what this thread does there, and what it starts there, is on that machine."""

    def __init__(self, names: Sequence[str]) -> None:
        self._numbers = {name: number for number, name in enumerate(names, 2)}

    def address(self, name: str) -> str:
        return f"198.18.0.{self._numbers[name]}"

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[None]:
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        wanted = os.open(f"/run/netns/{_full(name)}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(wanted)
            yield
        finally:
            _enter(before)
            os.close(before)
            os.close(wanted)

    def cut(self, one: str, other: str) -> Callable[[], None]:
        """No packet passes between these two; call the result to end it."""
        pairs = ((one, other), (other, one))
        for here, there in pairs:
            _ip("-n", _full(here), "neigh", "replace", self.address(there), "lladdr", _NOBODY, "dev", "eth0")
        return lambda: (
            [_ip("-n", _full(here), "neigh", "del", self.address(there), "dev", "eth0") for here, there in pairs]
            and None
        )

    def make(self) -> None:
        switch = _full("switch")
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for name, number in self._numbers.items():
            space = _full(name)
            _ip("netns", "add", space)
            _ip("-n", switch, "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("-n", switch, "link", "set", f"port{number}", "master", "bridge", "up")
            _ip("-n", space, "address", "add", f"{self.address(name)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", space, "link", "set", device, "up")


@contextlib.contextmanager
def networked(names: Sequence[str]) -> Iterator[Network]:
    """Namespaces that are removed at the end; those of a run that was killed are removed first."""
    _remove(lambda pid: not Path(f"/proc/{pid}").exists())
    network = Network(names)
    try:
        network.make()
        yield network
    finally:
        _remove(lambda pid: pid == os.getpid())


def _remove(is_wanted: Callable[[int], bool]) -> None:
    for found in Path("/run/netns").glob(f"{_PREFIX}*"):
        pid = found.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and is_wanted(int(pid)):
            subprocess.run(["ip", "netns", "del", found.name], capture_output=True, timeout=30, check=False)


def _full(name: str) -> str:
    return f"{_PREFIX}{os.getpid()}-{name}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=30)


def _enter(space: int) -> None:
    if _libc.setns(space, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
