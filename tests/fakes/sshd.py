"""A real sshd of its own on 127.0.0.1, with its keys, its configuration and a stand-in for nvidia-smi."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil

from fakes.ports import free_port
from fakes.waiting import wait_until
from gpudeck.model.target import Target
from gpudeck.sources.base import SshSettings

CAPTURES = Path(__file__).parents[1] / "captures/nvidia-smi"
PROGRAM = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/sbin:/usr/local/sbin")
IS_HERE = PROGRAM is not None and shutil.which("ssh-keygen") is not None and os.geteuid() == 0
WHY_NOT = "needs openssh-server, and root to start it"


def make_key(path: Path, passphrase: str = "") -> Path:
    """A new key pair; returns the path of the private key."""
    for old in (path, path.with_name(f"{path.name}.pub")):
        old.unlink(missing_ok=True)
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", path.name, "-f", str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return path


class Sshd:
    """One sshd. Its folder holds everything: `key` opens it, `known_hosts` has its host key. `card` is the capture that
    its nvidia-smi prints from the next `configure` on."""

    def __init__(self, folder: Path, card: str = "h200-580.159.04", options: str = "") -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.user = pwd.getpwuid(os.geteuid()).pw_name
        self.key = make_key(folder / "client")
        self.known_hosts = folder / "known_hosts"
        (folder / "authorized_keys").write_text((folder / "client.pub").read_text())
        self.log = folder / "log"
        self.card = card
        self._process: subprocess.Popen[bytes] | None = None
        self.change_host_key()
        self.fake_nvidia_smi(f'exec "{CAPTURES}/nvidia-smi" "$@"')
        self.configure(options)

    def change_host_key(self) -> None:
        """Another host key, which nobody is told of but for the first."""
        public = make_key(self.folder / "host").with_name("host.pub").read_text()
        if not self.known_hosts.exists():
            kind, key, *_ = public.split()
            self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {kind} {key}\n")

    def fake_nvidia_smi(self, script: str) -> None:
        program = self.folder / "bin/nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        # In place of the old one at once: somebody may be starting it.
        new = program.with_name("new")
        new.write_text(f"#!/bin/sh\n{script}\n")
        new.chmod(0o755)
        new.rename(program)

    def configure(self, options: str) -> None:
        """Options of sshd_config; the first of two counts."""
        (self.folder / "sshd_config").write_text(
            f"{options}\n"
            f"ListenAddress 127.0.0.1\nPort {self.port}\nHostKey {self.folder}/host\nPidFile none\n"
            f"AuthorizedKeysFile {self.folder}/authorized_keys\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPrintMotd no\nUseDNS no\nLogLevel VERBOSE\n"
            # With this level bash takes itself for no login: it leaves out the .bashrc of whoever runs the tests.
            f"SetEnv SHLVL=3 PATH={self.folder}/bin:/usr/local/bin:/usr/bin:/bin CAPTURE={CAPTURES}/{self.card}\n"
        )

    def start(self) -> None:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        command = [str(PROGRAM), "-D", "-f", str(self.folder / "sshd_config"), "-E", str(self.log)]
        self.log.touch()
        before = self.log.read_text().count("Server listening")
        self._process = subprocess.Popen(command, start_new_session=True)
        # Not by connecting: a child of the sshd before may still hold its socket.
        wait_until(lambda: self._has_started(before), f"sshd on port {self.port}")

    def stop(self) -> None:
        """End the listener and every connection."""
        self.kill_connections()
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)
            self._process = None

    def restart(self, options: str | None = None) -> None:
        self.stop()
        if options is not None:
            self.configure(options)
        self.start()

    def kill_connections(self) -> None:
        """As when the host loses its power: every connection ends in the middle of whatever it does."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)

    def processes(self) -> list[psutil.Process]:
        """All that runs for its connections."""
        if self._process is None:
            return []
        return psutil.Process(self._process.pid).children(recursive=True)

    def logins(self) -> int:
        """How often somebody was let in."""
        return self.log.read_text().count("Accepted publickey for ")

    def target(self, name: str = "gpu01", **others: object) -> Target:
        return Target(name=name, **({"address": "127.0.0.1", "port": self.port} | others))  # type: ignore[arg-type]

    def settings(self, **others: object) -> SshSettings:
        """Those of somebody who has the key and knows the host key, and whose own ~/.ssh is left alone."""
        usual = {
            "known_hosts": [str(self.known_hosts)],
            "key_files": [str(self.key)],
            "config_file": "/dev/null",
            "agent": False,
        }
        return SshSettings(**(usual | others))  # type: ignore[arg-type]

    def _has_started(self, before: int) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()
        return self.log.read_text().count("Server listening") > before


@contextlib.contextmanager
def running_sshd(folder: Path, card: str = "h200-580.159.04", options: str = "") -> Iterator[Sshd]:
    server = Sshd(folder, card, options)
    try:
        server.start()
        yield server
    finally:
        server.stop()
