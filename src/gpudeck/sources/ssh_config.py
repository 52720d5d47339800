"""~/.ssh/config, cut down to what can matter for one host.

The library reads the whole file for every host, and takes 100 ms for one that lists a thousand hosts by name, as
generated ones do. Blocks of other hosts are left out before it sees them.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncssh
from msgspec import Struct

_WILD = frozenset("*?!")


class _Block(Struct, frozen=True):
    """Lines up to the next Host or Match. `names` are the hosts they are for; None where that is not so simple."""

    lines: tuple[str, ...]
    names: frozenset[str] | None


class ConfigFile:
    """A configuration of SSH, read again after it changed. A file that is not there has no lines, if it need not be."""

    def __init__(self, path: Path, *, must_exist: bool) -> None:
        self._path = path
        self._must_exist = must_exist
        self._read_at: object = None
        self._blocks: list[_Block] = []

    def refresh(self) -> object:
        """Look at the file; returns what is another value after each change. Raises OSError."""
        try:
            state = self._path.stat()
        except FileNotFoundError:
            if self._must_exist:
                raise
            signature = None
        else:
            signature = (state.st_ino, state.st_mtime_ns, state.st_size)
        if signature != self._read_at:
            self._blocks = list(_split(self._path.read_text(errors="replace"))) if signature else []
            self._read_at = signature
        return signature

    @contextmanager
    def for_host(self, host: str) -> Iterator[str]:
        """The path of a file for this host alone, gone afterwards. Mistakes are told with their line in the whole."""
        with tempfile.NamedTemporaryFile("w", prefix="gpudeck-ssh-", suffix=".config") as reduced:
            for block in self._blocks:
                is_meant = block.names is None or host in block.names
                reduced.write("".join(block.lines) if is_meant else "\n" * len(block.lines))
            reduced.flush()
            try:
                yield reduced.name
            except asyncssh.ConfigParseError as error:
                raise asyncssh.ConfigParseError(str(error).replace(reduced.name, str(self._path))) from error


def _split(text: str) -> Iterator[_Block]:
    lines: list[str] = []
    names: frozenset[str] | None = None
    for line in text.splitlines():
        words = line.replace("=", " ").split()
        if words and words[0].lower() in {"host", "match"}:
            yield _Block(tuple(lines), names)
            lines, names = [], _names_of(words)
        lines.append(f"{line}\n")
    yield _Block(tuple(lines), names)


def _names_of(words: list[str]) -> frozenset[str] | None:
    if words[0].lower() == "match" or any(_WILD & set(word) or '"' in word for word in words[1:]):
        return None
    return frozenset(words[1:])
