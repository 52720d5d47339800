"""A real terminal (a pty) with a command in it, seen from the outside."""

import contextlib
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fakes.hubs import environment
from fakes.waiting import wait_until


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

    def read_until(self, words: str) -> str:
        """What came since the last call, up to and with these words; the rest is for the next."""
        wanted = words.encode()
        self._wait_until(lambda: wanted in self.seen, repr(words))
        end = self.seen.index(wanted) + len(wanted)
        said, self.seen = self.seen[:end], self.seen[end:]
        return said.decode(errors="replace")

    def wait(self) -> tuple[int, str]:
        """The exit code, and all that was not read yet."""
        self._wait_until(lambda: self.process.poll() is not None, "the end of the command")
        self._read()
        return self.process.returncode, self.seen.decode(errors="replace")

    def _wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Goes on reading: a command whose terminal is full would wait for us."""

        def reading() -> bool:
            self._read()
            return condition()

        try:
            wait_until(reading, what, 40)
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{self.seen.decode(errors='replace')}") from error

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def _read(self) -> None:
        # EIO is what a terminal says when the last program in it has gone.
        with contextlib.suppress(BlockingIOError, OSError):
            while chunk := os.read(self._ours, 65_536):
                self.seen += chunk


@contextlib.contextmanager
def in_a_terminal(home: Path, *command: str, columns: int = 120, **variables: str) -> Iterator[Terminal]:
    """A command, or `gpudeck` where it begins with that word, ended at the end."""
    program = [sys.executable, "-m", *command] if command[0] == "gpudeck" else list(command)
    terminal = Terminal(program, home, columns, variables)
    try:
        yield terminal
    finally:
        terminal.close()
