"""A real hub in a process of its own, started as a person would start it."""

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from fakes.forked import ForkedProcess


def environment(data_dir: Path) -> dict[str, str]:
    """The environment of a command under test: no configuration of the person who runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GPUDECK", "XDG", "NO_COLOR"))}
    # Making a demo's past keeps a processor busy for half a minute: a test that looks at it asks for it.
    own = {"GPUDECK_DATA_DIR": str(data_dir), "GPUDECK_DEMO_DAYS": "0", "GPUDECK_LOCK_DIR": f"{data_dir}/locks"}
    return kept | own | {"HOME": str(data_dir), "COLUMNS": "200"}


def gpudeck(data_dir: Path, *arguments: str, **others: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end: forked, unless a variable is for the interpreter."""
    command, variables = [sys.executable, "-m", "gpudeck", *arguments], environment(data_dir) | others
    if any(name.startswith("PYTHON") for name in others):
        return subprocess.run(
            command, capture_output=True, text=True, env=variables, cwd=data_dir, timeout=60, check=False
        )
    with tempfile.TemporaryFile("w+") as errors:
        process = ForkedProcess(arguments, variables, data_dir, errors)
        said, _ = process.communicate(60)
        errors.seek(0)
        return subprocess.CompletedProcess(command, process.wait(), said, errors.read())


def gpudeck_without_reader(data_dir: Path, *arguments: str, **others: str) -> tuple[int, str]:
    """Run a command whose output nobody reads any more, as before `| head -1`: its exit code, and its complaints."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "gpudeck", *arguments],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(data_dir) | others,
            cwd=data_dir,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
    return ended.returncode, ended.stderr


def start(data_dir: Path, log: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a command that goes on; what it logs is added to a file in its folder."""
    with (data_dir / log).open("a") as opened:
        return subprocess.Popen(
            [sys.executable, "-u", "-m", "gpudeck", *arguments],
            stdout=subprocess.PIPE,
            stderr=opened,
            text=True,
            env=environment(data_dir),
            cwd=data_dir,
            # A process group of its own, as a shell gives to what it starts: Ctrl-C reaches all of it and only it.
            start_new_session=True,
        )


class RunningHub:
    """A hub, whoever started it."""

    def __init__(self, data_dir: Path, url: str) -> None:
        self.data_dir = data_dir
        self.url = url

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return bytes(answer.read())

    @property
    def token_file(self) -> Path:
        return self.data_dir / "agent.token"


class HubProcess(RunningHub):
    """`gpudeck up`, running. `url` is what it printed. With `is_forked` false it is started as a user does it, and in
    the namespaces of the calling thread."""

    def __init__(self, data_dir: Path, arguments: Sequence[str], *, is_forked: bool = True) -> None:
        self.process: ForkedProcess | subprocess.Popen[str]
        if is_forked:
            with (data_dir / "log").open("a") as log:
                self.process = ForkedProcess(["up", *arguments], environment(data_dir), data_dir, log)
        else:
            self.process = start(data_dir, "log", "up", *arguments)
        self.greeting = self.read_greeting()
        found = re.search(r"page +(https?://\S+?)/?\n", self.greeting)
        if found is None:
            self.process.kill()
            self.process.communicate()
            raise AssertionError(f"no address in {self.greeting!r}; log: {(data_dir / 'log').read_text()}")
        super().__init__(data_dir, found[1])

    def read_greeting(self) -> str:
        """The next one: a hub greets again where its demo has ended."""
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if line.startswith("Ctrl-C"):
                break
        return "".join(lines)

    def press_ctrl_c(self) -> int:
        """End it as a terminal would and return its exit code."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.stop(0)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it and return its exit code."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        try:
            return self.process.wait(40)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()


@contextlib.contextmanager
def running_hub(data_dir: Path, *arguments: str) -> Iterator[HubProcess]:
    """A hub on a port of its own, ended at the end."""
    hub = HubProcess(data_dir, arguments if "--listen" in arguments else ["--listen", "127.0.0.1:0", *arguments])
    try:
        yield hub
    finally:
        hub.stop()


@contextlib.contextmanager
def shared_hub(data_dir: Path, *arguments: str) -> Iterator[RunningHub]:
    """One for all processes that name this folder: the first starts it, and the last ends it."""
    with (data_dir / "users").open("a") as users, (data_dir / "turn").open("a") as turn:
        note, output = data_dir / "hub", contextlib.ExitStack()
        fcntl.flock(turn, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_SH)
        if not note.exists():
            started = HubProcess(data_dir, ["--listen", "127.0.0.1:0", *arguments])
            note.write_text(f"{started.process.pid} {started.url}")
            assert started.process.stdout is not None
            output.enter_context(started.process.stdout)
        pid, url = note.read_text().split()
        fcntl.flock(turn, fcntl.LOCK_UN)
        try:
            yield RunningHub(data_dir, url)
        finally:
            fcntl.flock(turn, fcntl.LOCK_EX)
            with output, contextlib.suppress(BlockingIOError, ProcessLookupError):
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                note.unlink()
                os.kill(int(pid), signal.SIGTERM)
