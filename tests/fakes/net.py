"""Machines of their own on this one: Linux namespaces, wired together, with wires that are slow, lossy or mute.

A machine lives as long as the process that holds its namespaces, and that ends with the tests however they end: nothing
is left behind, and nothing of this machine's own network is touched.
"""

import contextlib
import ctypes
import functools
import heapq
import os
import random
import secrets
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from fakes import sshd
from fakes.hubs import environment
from fakes.nvml.driver import FakeDriver
from fakes.waiting import wait_until

WHY_NOT = "needs root, and a kernel that allows namespaces of network and mounts (iproute2, util-linux)"
HUB_ADDRESS = "198.18.0.1"
"""Of the range that is kept for such tests (RFC 2544): no real network has it."""
_NEW_NETWORK = 0x40000000
_PACKET = 263
_PACKET_VNET_HDR = 15
_OUTGOING = 4
_NETWORK_HERE = Path("/proc/thread-self/ns/net")
_libc = ctypes.CDLL(None, use_errno=True)


@functools.cache
def can_make_machines() -> bool:
    """Tried, as no other way tells what a kernel and a container allow."""
    if os.geteuid() or not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        return False
    tried = "ip link add near type veth peer name far && ip link add switch type bridge && mount --bind /tmp /mnt"
    command = ["unshare", "--net", "--mount", "--uts", "sh", "-c", tried]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


class Machine:
    """A host with a name, a machine id and, where wanted, a network of its own; the rest is shared with this one.

    Inside a container the id is not believed, and the machine has none.
    """

    def __init__(self, name: str, folder: Path, *, own_network: bool = False) -> None:
        self.name = name
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "machine-id").write_text(f"{secrets.token_hex(16)}\n")
        self._namespaces = ["--mount", "--uts", *(["--net"] if own_network else [])]
        script = (
            f"echo {name} > /proc/sys/kernel/hostname; touch /etc/machine-id; "
            'mount --bind "$0" /etc/machine-id && ip link set lo up && echo ready && exec cat'
        )
        self._holder = subprocess.Popen(
            ["unshare", *self._namespaces, "sh", "-c", script, str(folder / "machine-id")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n", f"{name} cannot be made"

    @property
    def pid(self) -> int:
        """Of the process that holds its namespaces: what `ip link set ... netns` wants."""
        return self._holder.pid

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command, as it is started there. It is then the process itself, and no child of another."""
        return ["nsenter", f"--target={self.pid}", *self._namespaces, "--", *command]

    def ip(self, *commands: str) -> None:
        """Commands of `ip`, one after the other."""
        batch = "".join(f"{command}\n" for command in commands).encode()
        subprocess.run(self.inside(["ip", "-batch", "-"]), input=batch, check=True, capture_output=True, timeout=20)

    @contextlib.contextmanager
    def network(self) -> Iterator[None]:
        """This thread is in its network meanwhile, with the sockets that it opens and the processes that it starts."""
        with _NETWORK_HERE.open("rb") as here, Path(f"/proc/{self.pid}/ns/net").open("rb") as there:
            _enter(there)
            try:
                yield
            finally:
                _enter(here)

    def close(self) -> None:
        """It vanishes with its network; what still runs there is left alone."""
        self._holder.communicate(timeout=20)


def _enter(namespace: IO[bytes]) -> None:
    if _libc.setns(namespace.fileno(), _NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "setns")


@contextlib.contextmanager
def machine(name: str, folder: Path, *, own_network: bool = False) -> Iterator[Machine]:
    made = Machine(name, folder, own_network=own_network)
    try:
        yield made
    finally:
        made.close()


class AgentOn:
    """`gpudeck agent` on a machine: started, killed, started again as it was."""

    def __init__(self, machine: Machine, *arguments: str, driver: FakeDriver | None = None) -> None:
        self.log = machine.folder / "agent.log"
        self._machine = machine
        self._arguments = arguments
        self._environment = environment(machine.folder) | (driver.environment if driver else {})
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "gpudeck", "agent", *self._arguments]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._machine.inside(command),
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self._machine.folder,
                start_new_session=True,
            )

    def stop(self) -> None:
        """As when its machine loses its power. What its collectors started ends with it by itself."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(20)
            self._process = None


class SshdOn(sshd.Sshd):
    """A real sshd on a machine, at `address` there."""

    def __init__(self, machine: Machine, address: str = "127.0.0.1", card: str = "h200-580.159.04") -> None:
        self._machine = machine
        super().__init__(machine.folder / "sshd", card)
        kind, key, *_ = (self.folder / "host.pub").read_text().split()
        self.known_hosts.write_text(f"[{address}]:{self.port} {kind} {key}\n")
        config = self.folder / "sshd_config"
        config.write_text(config.read_text().replace("ListenAddress 127.0.0.1", f"ListenAddress {address}"))

    def start(self) -> None:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self.log.touch()
        before = self.log.read_text().count("Server listening")
        command = [str(sshd.PROGRAM), "-D", "-f", str(self.folder / "sshd_config"), "-E", str(self.log)]
        self._process = subprocess.Popen(self._machine.inside(command), start_new_session=True)
        wait_until(lambda: self._has_started(before), f"sshd of {self._machine.name}")


class Wire:
    """Carries frames between two interfaces, `delay` seconds each, and loses a share of them without a word.

    A kernel need not have netem for it.
    """

    def __init__(self, ends: tuple[socket.socket, socket.socket]) -> None:
        self.delay = 0.0
        self.loss = 0.0
        self._ends = ends
        self._chance = random.Random(7)
        self._stopping, self._stop = os.pipe()
        self._waiting: list[tuple[float, int, socket.socket, bytes]] = []
        self._number = 0
        self._thread = threading.Thread(target=self._carry, name="wire", daemon=True)
        self._thread.start()

    def close(self) -> None:
        os.close(self._stop)
        self._thread.join(20)
        os.close(self._stopping)
        for end in self._ends:
            end.close()

    def _carry(self) -> None:
        sources: list[Any] = [*self._ends, self._stopping]
        others = {self._ends[0]: self._ends[1], self._ends[1]: self._ends[0]}
        while True:
            pause = max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else None
            ready = select.select(sources, (), (), pause)[0]
            if self._stopping in ready:
                return
            for end in self._ends:
                if end in ready:
                    self._take(end, others[end])
            self._deliver()

    def _take(self, end: socket.socket, other: socket.socket) -> None:
        frame, sender = end.recvfrom(1 << 17)
        if sender[2] == _OUTGOING or self._chance.random() < self.loss:
            return
        self._number += 1
        heapq.heappush(self._waiting, (time.monotonic() + self.delay, self._number, other, frame))

    def _deliver(self) -> None:
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            _, _, end, frame = heapq.heappop(self._waiting)
            # A link that is down takes nothing, as a cable that is out.
            with contextlib.suppress(OSError):
                end.send(frame)


class Network:
    """Machines around the one that the hub runs on. Each has an address; its link is called `to-NAME` at the hub."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parts = contextlib.ExitStack()
        self._count = 1
        self.wires: dict[str, Wire] = {}
        self.hub = self._parts.enter_context(machine("hub", folder / "hub", own_network=True))
        self.hub.ip("link add switch type bridge", f"addr add {HUB_ADDRESS}/24 dev switch", "link set switch up")

    def add(self, name: str, *, with_wire: bool = False) -> tuple[Machine, str]:
        """A machine and its address. With a wire in between, that is in `wires`."""
        made = self._parts.enter_context(machine(name, self._folder / name, own_network=True))
        self._count += 1
        address = f"198.18.0.{self._count}"
        near, far = (f"end-{name}", f"far-{name}") if with_wire else (f"to-{name}", f"to-{name}")
        self.hub.ip(f"link add {far} type veth peer name eth0 netns {made.pid}", f"link set {far} up")
        if with_wire:
            self.hub.ip(f"link add to-{name} type veth peer name {near}", f"link set {near} up")
            self.wires[name] = self._lay_wire(near, far)
        self.hub.ip(f"link set to-{name} master switch", f"link set to-{name} up")
        made.ip(f"addr add {address}/24 dev eth0", "link set eth0 up")
        return made, address

    def cut(self, name: str) -> None:
        """Its cable is out."""
        self.hub.ip(f"link set to-{name} down")

    def mend(self, name: str) -> None:
        self.hub.ip(f"link set to-{name} up")

    def close(self) -> None:
        self._parts.close()

    def _lay_wire(self, near: str, far: str) -> Wire:
        with self.hub.network():
            wire = Wire((_open_end(near), _open_end(far)))
        self._parts.callback(wire.close)
        return wire


def _open_end(interface: str) -> socket.socket:
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    # Frames keep the notes that the kernel has with them, such as that their checksum is still to be made.
    end.setsockopt(_PACKET, _PACKET_VNET_HDR, 1)
    end.bind((interface, 3))
    return end


@contextlib.contextmanager
def network(folder: Path) -> Iterator[Network]:
    made = Network(folder)
    try:
        yield made
    finally:
        made.close()
