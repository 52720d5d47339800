"""Machines that have nothing of gpudeck, to be set up by Ansible: each with a file system, a network, processes, a
name, a systemd and an sshd of its own.

The file system is this machine's, or another one, under a layer that takes what is written; in place of the working
tree, /opt, /root, /home and the services that are enabled here each has folders of its own. systemd is the real one, as
the first process of a container: /proc/sys and /sys are read-only for it, and it has a part of the tree of cgroups to
itself.
"""

import contextlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fakes import sshd
from fakes.waiting import wait_until

ROOT = Path(__file__).parents[2]
WHY_NOT = "needs root, sshd, systemd, and a kernel that allows namespaces, overlays and cgroups of the second version"
INIT = next((path for path in ("/lib/systemd/systemd", "/usr/lib/systemd/systemd") if Path(path).is_file()), None)
NETWORK = "198.18.1"
"""Of the range that is kept for such tests (RFC 2544): no real network has it."""
_SCRIPT = Path(__file__).with_name("bare_machine.sh")
_NAMESPACES = ("--net", "--mount", "--pid", "--uts", "--ipc")
_SSHD = """
[Service]
ExecStart={sshd} -D -e -f /etc/ssh/bare_config
Restart=always
[Install]
WantedBy=multi-user.target
"""


def can_make_bare_machines(folder: Path) -> bool:
    """Tried, as no other way tells what a kernel and a container allow."""
    if os.geteuid() or not sshd.PROGRAM or not INIT or not all(map(shutil.which, ("unshare", "nsenter", "ip", "ss"))):
        return False
    for name in ("upper", "work", "root", "cgroup"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    tried = (
        f"mount -t overlay overlay -o lowerdir=/,upperdir={folder}/upper,workdir={folder}/work {folder}/root && "
        f"mount -t cgroup2 cgroup2 {folder}/cgroup && mkdir {folder}/cgroup/tried && rmdir {folder}/cgroup/tried && "
        "ip link add switch type bridge && ip link add near type veth peer name far"
    )
    command = ["unshare", *_NAMESPACES, "--fork", "sh", "-c", tried]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


class BareMachine:
    """One machine. `boot` starts it with the disk that it has, `power_off` ends all that runs there, at once."""

    def __init__(self, name: str, folder: Path, address: str, key: Path, root: Path = Path("/")) -> None:
        self.name = name
        self._root = root
        self.address = address
        self._folder = folder
        self._key = key
        self._holder: subprocess.Popen[str] | None = None
        for part in ("upper/etc/ssh", "own/etc/systemd/system/multi-user.target.wants", "work", "root"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / "upper/etc/machine-id").write_text(f"{secrets.token_hex(16)}\n")
        (folder / "upper/etc/hostname").write_text(f"{name}\n")
        units = folder / "own/etc/systemd/system"
        (units / "bare-sshd.service").write_text(_SSHD.format(sshd=sshd.PROGRAM))
        (units / "multi-user.target.wants/bare-sshd.service").symlink_to("../bare-sshd.service")
        sshd.make_key(folder / "upper/etc/ssh/bare_key")
        (folder / "upper/etc/ssh/bare_config").write_text(
            f"ListenAddress {address}\nPort 22\nHostKey /etc/ssh/bare_key\nPidFile none\nUsePAM no\n"
            "PermitRootLogin yes\nPasswordAuthentication no\nStrictModes no\nUseDNS no\nMaxStartups 100\n"
            "Subsystem sftp internal-sftp\nAcceptEnv LANG LC_*\n"
        )

    @property
    def host_key(self) -> str:
        """Its line for known_hosts."""
        kind, key, *_ = (self._folder / "upper/etc/ssh/bare_key.pub").read_text().split()
        return f"{self.address} {kind} {key}\n"

    def boot(self, switch: int) -> None:
        """`switch` is a process in whose network a bridge of that name is."""
        with (self._folder / "console").open("a") as console:
            self._holder = subprocess.Popen(
                ["unshare", *_NAMESPACES, "--fork", "--kill-child", "sh", str(_SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=console,
                text=True,
                env=self._parameters(),
            )
        assert self._holder.stdout is not None
        assert self._holder.stdin is not None
        assert self._holder.stdout.readline() == "ready\n", self.console()
        self._connect(switch)
        self._holder.stdin.write("go\n")
        self._holder.stdin.flush()
        wait_until(self._answers, f"sshd of {self.name}", 60)

    def power_off(self) -> None:
        """Nothing is told to end: it ends."""
        if self._holder is not None:
            self._holder.kill()
            self._put_away()

    def shut_down(self) -> None:
        """As an operator does it: systemd ends what runs, and then itself."""
        assert self._holder is not None
        self.run("systemctl", "--no-block", "poweroff")
        self._put_away()

    def run(self, *command: str) -> str:
        """What a command prints there. Raises CalledProcessError."""
        done = subprocess.run(self.inside(command), capture_output=True, text=True, check=True, timeout=120)
        return done.stdout

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command, as it is started from here to run there."""
        inside = ["nsenter", f"--target={self._inner()}", "--net", "--mount", "--pid", "--uts", "--cgroup"]
        return [*inside, "--root", "--wd", *command]

    def console(self) -> str:
        return (self._folder / "console").read_text()

    def _parameters(self) -> dict[str, str]:
        hidden = sorted({str(ROOT), "/opt", "/root", "/home", "/etc/systemd/system"})
        return dict(os.environ) | {
            "FOLDER": str(self._folder),
            "LOWER": str(self._root),
            "HIDDEN": " ".join(hidden),
            "GROUP": f"gpudeck-{os.getpid()}-{self.name}",
            "NAME": self.name,
            "KEY": str(self._key),
            "INIT": INIT or "",
        }

    def _put_away(self) -> None:
        assert self._holder is not None
        self._holder.communicate(timeout=60)
        self._holder = None
        gone = ["unshare", "--mount", "sh", str(_SCRIPT), "gone"]
        wait_until(
            lambda: subprocess.run(gone, env=self._parameters(), capture_output=True, check=False).returncode == 0,
            f"the end of all that ran on {self.name}",
            30,
        )

    def _connect(self, switch: int) -> None:
        assert self._holder is not None
        near = f"to-{self.name}"[:15]
        there = ["nsenter", f"--target={switch}", "--net", "ip"]
        # The kernel takes a network down some time after the last process in it: the end here may still be there.
        subprocess.run([*there, "link", "del", near], check=False, capture_output=True, timeout=20)
        for words in (
            [*there, "link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", str(self._inner())],
            [*there, "link", "set", near, "master", "switch", "up"],
            ["nsenter", f"--target={self._inner()}", "--net", "ip", "addr", "add", f"{self.address}/24", "dev", "eth0"],
            ["nsenter", f"--target={self._inner()}", "--net", "ip", "link", "set", "eth0", "up"],
        ):
            subprocess.run(words, check=True, capture_output=True, timeout=20)

    def _inner(self) -> int:
        """The first process of the machine: `unshare` itself stays outside of its processes."""
        assert self._holder is not None
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split()
        return int(children[0])

    def _answers(self) -> bool:
        with contextlib.suppress(subprocess.CalledProcessError):
            return f"{self.address}:22 " in self.run("ss", "--listening", "--tcp", "--numeric")
        return False


class BareNetwork:
    """Machines on one switch, and a seat beside it from which they are reached."""

    def __init__(self, folder: Path, names: Sequence[str], roots: Mapping[str, Path]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.key = sshd.make_key(folder / "key")
        self._switch = subprocess.Popen(
            [
                "unshare",
                "--net",
                "sh",
                "-c",
                "ip link add switch type bridge && ip link set lo up && "
                f"ip addr add {NETWORK}.1/24 dev switch && ip link set switch up && echo ready && exec cat",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._switch.stdout is not None
        assert self._switch.stdout.readline() == "ready\n"
        self.machines = {
            name: BareMachine(name, folder / name, f"{NETWORK}.{number}", self.key, roots.get(name, Path("/")))
            for number, name in enumerate(names, 10)
        }
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.write_text("".join(machine.host_key for machine in self.machines.values()))

    def boot(self) -> None:
        for machine in self.machines.values():
            machine.boot(self._switch.pid)

    def power_off(self) -> None:
        for machine in self.machines.values():
            machine.power_off()

    def shut_down(self) -> None:
        for machine in self.machines.values():
            machine.shut_down()

    def seat(self, command: Sequence[str]) -> list[str]:
        """The command, as somebody runs it who can reach the machines."""
        return ["nsenter", f"--target={self._switch.pid}", "--net", "--", *command]

    def close(self) -> None:
        self.power_off()
        self._switch.communicate(timeout=20)


@contextlib.contextmanager
def bare_network(folder: Path, names: Sequence[str], roots: Mapping[str, Path] | None = None) -> Iterator[BareNetwork]:
    """`roots` are file systems of machines that have not this one's."""
    made = BareNetwork(folder, names, roots or {})
    try:
        made.boot()
        yield made
    finally:
        made.close()
