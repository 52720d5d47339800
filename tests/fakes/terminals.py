"""A real terminal (a pty) with a command in it, seen from the outside."""

import contextlib
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from fakes.hubs import environment


class Terminal:
    """What a command wrote so far, and a keyboard."""

    def __init__(self, command: Sequence[str], home: Path, columns: int, variables: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self.seen = b""
        os.set_blocking(self._ours, False)
        kept = {name: value for name, value in environment(home).items() if name not in {"COLUMNS", "LINES"}}
        self.process = subprocess.Popen(
            # With a terminal of its own: that is where Ctrl-C is pressed, and a password asked for.
            ["setsid", "--ctty", "sh", "-c", f'stty rows 24 cols {columns}; exec "$@"', "sh", *command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=kept | {"TERM": "xterm-256color", "SSH_AUTH_SOCK": "", "PYTHONUTF8": "1"} | variables,
            cwd=home,
        )
        os.close(theirs)

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def read_until(self, words: str, seconds: float = 30.0) -> str:
        """What came since the last call, up to and with these words; the rest is for the next."""
        deadline = time.monotonic() + seconds
        while (at := self.seen.find(words.encode())) < 0:
            assert time.monotonic() < deadline, self.seen.decode(errors="replace")
            self._read()
        end = at + len(words.encode())
        said, self.seen = self.seen[:end], self.seen[end:]
        return said.decode(errors="replace")

    def wait(self, seconds: float = 30.0) -> tuple[int, str]:
        """The exit code, and all that was not read yet."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.seen.decode(errors="replace")
            self._read()
        self._read()
        return self.process.returncode, self.seen.decode(errors="replace")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def _read(self) -> None:
        # EIO is what a terminal says when the last program in it has gone.
        with contextlib.suppress(BlockingIOError, OSError):
            while chunk := os.read(self._ours, 65_536):
                self.seen += chunk
        time.sleep(0.02)


@contextlib.contextmanager
def in_a_terminal(home: Path, *command: str, columns: int = 120, **variables: str) -> Iterator[Terminal]:
    """A command, or `gpudeck` where it begins with that word, ended at the end."""
    program = [sys.executable, "-m", *command] if command[0] == "gpudeck" else list(command)
    terminal = Terminal(program, home, columns, variables)
    try:
        yield terminal
    finally:
        terminal.close()
