"""A hub that scenarios start, kill and start again on the same port and data folder."""

import contextlib
import csv
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fakes.forked import ForkedProcess
from fakes.hubs import environment, gpudeck
from fakes.ports import free_port
from fakes.waiting import wait_until

_CLOCK = Path(__file__).with_name("clock.c")
NO_COMPILER = "" if shutil.which("cc") else "needs a C compiler, for a clock that can be set"
_START = 60.0
CONFIG = """\
local: never
demo: never
limits: {{unlimited: [127.0.0.0/8, 198.18.0.0/24]}}
fleet: {{down_after: {down_after}{fleet}}}
history: {{min_free: 0{history}}}
{more}
"""


class ChaosHub:
    """`gpudeck up` in `folder`. `prefix` is put before its command: a namespace, for one."""

    def __init__(
        self,
        folder: Path,
        *,
        history: str = ", every: 1s",
        more: str = "",
        down_after: str = "20s",
        fleet: str = "",
        webhook: str = "",
        data_dir: Path | None = None,
        prefix: Sequence[str] = (),
        host: str = "127.0.0.1",
    ) -> None:
        self.host = host
        self.folder = folder
        self.data_dir = data_dir or folder / "data"
        self.data_dir.mkdir(exist_ok=True)
        self.port = free_port()
        self.url = f"http://{host}:{self.port}"
        self.config = folder / "gpudeck.yaml"
        self.log = folder / "log"
        self._clock: Path | None = None
        if "alerts:" not in more:
            more += "\nalerts: {group_wait: 2s}\n"
        if webhook:
            more += f"\nnotify: {{channels: {{ops: '{webhook}'}}}}\n"
        self.config.write_text(CONFIG.format(down_after=down_after, fleet=fleet, history=history, more=more))
        self.prefix = tuple(prefix)
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        # The agents' token is there before the hub is: hosts may begin at once.
        self.token = "chaos-" + "0123456789abcdef" * 3
        self.token_file = folder / "agents.token"
        self.token_file.write_text(self.token + "\n")
        self.token_file.chmod(0o600)
        self.config.write_text(self.config.read_text() + f"token_file: {self.token_file}\n")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *, wait: bool = True) -> float:
        """Start it; how many seconds it took until /healthz answers."""
        arguments = ["up", "--listen", f"{self.host}:{self.port}", "--config", str(self.config)]
        variables = environment(self.data_dir) | self._clock_environment()
        begun = time.monotonic()
        with self.log.open("ab") as log:
            if self.prefix or self._clock:
                self._process = subprocess.Popen(
                    [*self.prefix, sys.executable, "-m", "gpudeck", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=variables,
                    cwd=self.folder,
                    start_new_session=True,
                )
            else:
                self._process = ForkedProcess(arguments, variables, self.folder, log, is_output_logged=True)
        if wait:
            self.wait_healthy()
        return time.monotonic() - begun

    def wait_healthy(self) -> None:
        wait_until(self._is_healthy_or_ended, "the hub's start", _START)
        assert self.is_running(), f"the hub ended: {self.read_log()[-1500:]}"

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait_ended(self, seconds: float) -> int | None:
        """Its exit code; None while it still runs after so long."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def set_clock(self, offset: float) -> None:
        """Its clock is so many seconds ahead from now on, also while it runs. Monotonic clocks are as they were."""
        if self._clock is None:
            self._clock = self.folder / "clock"
            library = self._clock.with_suffix(".so")
            compile_it = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(_CLOCK), "-ldl"]
            subprocess.run(compile_it, check=True, timeout=60)
        with self._clock.open("r+b" if self._clock.exists() else "wb") as opened:
            opened.write(struct.pack("=q", int(offset * 1e9)))

    def kill(self) -> None:
        """As when its machine loses its power: with the processes that it started, which are in its group."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(20)
            self._process = None

    def stop(self) -> None:
        """As its service would be stopped."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(30)
            self.kill()

    def get(self, path: str, timeout: float = 20) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=timeout) as answer:
            return msgspec.json.decode(answer.read())

    def readiness(self) -> tuple[int, str]:
        """The status of /readyz and the word for it; 0 while nothing answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=10) as answer:
                return answer.status, msgspec.json.decode(answer.read())["status"]
        except urllib.error.HTTPError as error:
            with error:
                return error.code, msgspec.json.decode(error.read()).get("status", "")
        except OSError:
            return 0, ""

    def statuses(self) -> dict[str, str]:
        """Of all hosts, by name."""
        return {host["name"]: host["status"] for host in self.get("/api/v1/fleet")["hosts"]}

    def alerts(self, state: str = "firing,acknowledged,resolved") -> list[Any]:
        found: list[Any] = self.get(f"/api/v1/alerts?state={state}")["alerts"]
        return found

    def has_noted_message(self) -> bool:
        """Whether it has written down that a message arrived. One that is killed while it sends may send it twice, as
        docs/reliability.md says: no scenario is about that moment."""
        local, own = self.data_dir / "local.db", self.data_dir / "gpudeck.db"
        with contextlib.closing(sqlite3.connect(f"file:{local if local.exists() else own}?mode=ro", uri=True)) as file:
            try:
                (count,) = file.execute("SELECT count(*) FROM outbox WHERE state = 'sent'").fetchone()
            except sqlite3.OperationalError:
                return False
        return bool(count)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another command of gpudeck for this hub, run to its end: forked, unless it needs a namespace."""
        if not self.prefix:
            return gpudeck(self.data_dir, *arguments, "--config", str(self.config))
        return subprocess.run(
            [*self.prefix, sys.executable, "-m", "gpudeck", *arguments, "--config", str(self.config)],
            capture_output=True,
            text=True,
            env=environment(self.data_dir),
            cwd=self.folder,
            timeout=120,
            check=False,
        )

    def samples(self, since: float, until: float) -> list[dict[str, str]]:
        """The history's samples, a dictionary for each GPU and moment, read from the file. Empty where it has none."""
        metrics = ("--metric", "utilization_percent", "--metric", "memory_used_bytes")
        span = ("--since", f"{since:.3f}", "--until", f"{until:.3f}")
        exported = self.command("history", "export", *span, *metrics)
        assert exported.returncode == 0, exported.stderr
        return list(csv.DictReader(exported.stdout.splitlines()))

    def read_log(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def _is_healthy_or_ended(self) -> bool:
        if not self.is_running():
            return True
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/healthz", timeout=5):
            return True
        return False

    def _clock_environment(self) -> dict[str, str]:
        if self._clock is None:
            return {}
        return {"LD_PRELOAD": str(self._clock.with_suffix(".so")), "CHAOS_CLOCK": str(self._clock)}


@contextlib.contextmanager
def chaos_hub(folder: Path, **options: Any) -> Iterator[ChaosHub]:
    """Not started yet; killed at the end."""
    hub = ChaosHub(folder, **options)
    try:
        yield hub
    finally:
        hub.kill()
