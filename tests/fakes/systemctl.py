#!/usr/bin/python3
"""Stands in for systemctl on a machine of the tests, where no systemd can run: a namespace is no virtual machine.

It reads the same units, starts what their ExecStart= says as their User= with their Environment= and their folders,
waits for READY=1 where a unit is of Type=notify, runs ExecReload=, and starts what is enabled when its machine starts
(`systemctl default`). It does not confine a program, and does not start again one that has died.

Needs nothing but Python: it is copied to the machine.
"""

import os
import pwd
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

UNITS = (Path("/etc/systemd/system"), Path("/lib/systemd/system"), Path("/usr/lib/systemd/system"))
WANTED = Path("/etc/systemd/system/tests.target.wants")
"""Apart from what is enabled on the machine whose files these machines share."""
RUNNING = Path("/run/shim")


class Unit:
    def __init__(self, name: str) -> None:
        self.name = name if name.endswith(".service") else f"{name}.service"
        self.file = next((folder / self.name for folder in UNITS if (folder / self.name).is_file()), None)
        self.values: dict[str, list[str]] = {}
        for line in self.file.read_text().splitlines() if self.file else ():
            key, equals, value = line.partition("=")
            if equals and not line.startswith(("#", ";", " ")):
                self.values.setdefault(key.strip(), []).append(value.strip())

    def last(self, key: str, default: str = "") -> str:
        return self.values.get(key, [default])[-1]

    @property
    def pid(self) -> int:
        file = Path(self.last("PIDFile") or RUNNING / self.name)
        try:
            pid = int(file.read_text())
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (OSError, ValueError):
            return 0
        return 0 if stat.rpartition(")")[2].split()[0] == "Z" else pid

    @property
    def is_enabled(self) -> bool:
        return (WANTED / self.name).is_symlink()

    def show(self) -> str:
        state = "active" if self.pid else "inactive"
        found = {
            "Id": self.name,
            "LoadState": "loaded" if self.file else "not-found",
            "ActiveState": state,
            "SubState": "running" if self.pid else "dead",
            "UnitFileState": "enabled" if self.is_enabled else "disabled",
            "MainPID": str(self.pid),
        }
        return "\n".join(f"{key}={value}" for key, value in found.items())

    def start(self) -> None:
        if self.pid:
            return
        if self.file is None:
            sys.exit(f"Unit {self.name} not found.")
        if self.last("Type") == "forking":
            subprocess.run(self._words(self.last("ExecStart")), check=True, timeout=60)
            return
        RUNNING.mkdir(exist_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
            place = RUNNING / f"{self.name}.notify"
            place.unlink(missing_ok=True)
            ear.bind(str(place))
            place.chmod(0o777)
            ear.settimeout(90)
            process = self._spawn({"NOTIFY_SOCKET": str(place)} if self.last("Type") == "notify" else {})
            (RUNNING / self.name).write_text(str(process.pid))
            while self.last("Type") == "notify" and "READY=1" not in ear.recv(4096).decode():
                pass

    def _spawn(self, told: dict[str, str]) -> "subprocess.Popen[bytes]":
        user = pwd.getpwnam(self.last("User", "root"))
        for kind, root in (("StateDirectory", "/var/lib"), ("ConfigurationDirectory", "/etc")):
            if self.last(kind):
                folder = Path(root) / self.last(kind)
                folder.mkdir(exist_ok=True)
                if kind == "StateDirectory":
                    os.chown(folder, user.pw_uid, user.pw_gid)
                    folder.chmod(0o700)
        given = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": user.pw_dir, "USER": user.pw_name, "LANG": "C.UTF-8"}
        for line in self.values.get("Environment", ()):
            given.update(word.replace("%S", "/var/lib").split("=", 1) for word in shlex.split(line))
        with Path(f"/var/log/{self.name}.log").open("ab") as log:
            return subprocess.Popen(
                [*self._become(user), *self._words(self.last("ExecStart"))],
                cwd="/",
                env=given | told,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _become(self, user: pwd.struct_passwd) -> list[str]:
        """The user with the capabilities that the unit gives them, and no others."""
        given = self.last("AmbientCapabilities").lower().replace("cap_", "+").split()
        added = [f"--inh-caps={','.join(given)}", f"--ambient-caps={','.join(given)}"] if given else []
        return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", *added, "--"]

    def stop(self) -> None:
        pid = self.pid
        if not pid:
            return
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 20
        while self.pid:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def reload(self) -> None:
        for command in self.values.get("ExecReload", ()):
            words = [word.replace("$MAINPID", str(self.pid)) for word in self._words(command)]
            subprocess.run(words, check=True, timeout=60)

    def enable(self) -> None:
        WANTED.mkdir(parents=True, exist_ok=True)
        if not self.is_enabled:
            (WANTED / self.name).symlink_to(self.file or "/dev/null")

    def _words(self, command: str) -> list[str]:
        return shlex.split(command.lstrip("-+!@"))


def main() -> int:
    options = [word for word in sys.argv[1:] if word.startswith("-")]
    verb, *names = [word for word in sys.argv[1:] if not word.startswith("-")] or ["status"]
    units = [Unit(name.strip("'")) for name in names]
    if verb == "show":
        print("\n\n".join(unit.show() for unit in units))
    elif verb == "is-enabled":
        print("\n".join("enabled" if unit.is_enabled else "disabled" for unit in units))
        return 0 if all(unit.is_enabled for unit in units) else 1
    elif verb == "is-active":
        return 0 if all(unit.pid for unit in units) else 3
    elif verb == "default":
        for link in sorted(WANTED.iterdir()) if WANTED.is_dir() else ():
            Unit(link.name).start()
    elif verb in {"enable", "disable", "start", "stop", "restart", "reload"}:
        for unit in units:
            if verb == "enable":
                unit.enable()
            if verb == "disable":
                (WANTED / unit.name).unlink(missing_ok=True)
            if verb in {"stop", "restart"}:
                unit.stop()
            if verb in {"start", "restart"} or (verb == "enable" and "--now" in options):
                unit.start()
            if verb == "reload":
                unit.reload()
    elif verb not in {"daemon-reload", "list-unit-files", "list-units", "status"}:
        sys.exit(f"systemctl of the tests does not know {verb}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
