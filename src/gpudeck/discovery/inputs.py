"""The interface of discovery providers, and their inputs: watched files and servers.

Importing this loads no asyncio or HTTP client: every machine's configuration imports the providers.
"""

import stat
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

from msgspec import Meta

from gpudeck.model.errors import Refused, Temporary, UsageError
from gpudeck.model.report import Word
from gpudeck.model.target import Target

if TYPE_CHECKING:
    from gpudeck.fetch import Fetcher

T = TypeVar("T")
MAX_HOSTS = 20_000
"""More hosts than this are not watched."""

MAX_PROBLEMS = 100
MAX_LABELS = 64
MAX_CHARACTERS = 256

Labels = Annotated[dict[Word, Annotated[str, Meta(max_length=MAX_CHARACTERS)]], Meta(max_length=MAX_LABELS)]


class Provider(Protocol):
    """Finds hosts. `origin` is its name for users ("hosts.txt", "consul gpu-nodes").

    `find` returns all hosts that it knows now. It may wait for a change (`pause` is then 0) and may be cancelled. It
    raises Temporary when it cannot answer now, Refused for credentials, and never returns part of a list. An
    invalid entry is left out; `problems` then names it and its place.
    """

    origin: str
    pause: float

    @property
    def problems(self) -> Sequence[str]:
        return ()

    async def find(self) -> list[Target]: ...

    async def close(self) -> None:
        return


class HostFindings:
    """Targets and problems as a provider gathers them, both bounded."""

    def __init__(self) -> None:
        self.targets: list[Target] = []
        self.problems: list[str] = []
        self._uncounted = 0

    def add(self, targets: Sequence[Target], place: str) -> bool:
        room = MAX_HOSTS - len(self.targets)
        self.targets += targets[:room]
        if len(targets) > room:
            self.add_problem(f"{place}: from here on hosts are left out, as there are more than {MAX_HOSTS}.")
        return len(targets) <= room

    def read(self, entries: Iterable[T], read: Callable[[T], Sequence[Target]], place: str) -> "HostFindings":
        """Add the targets of each entry. A ValueError of `read` becomes a problem with the number of the entry."""
        for number, entry in enumerate(entries, 1):
            try:
                targets = read(entry)
            except (ValueError, RecursionError) as error:
                self.add_problem(f"{place} {number}: {error}.")
                continue
            if not self.add(targets, f"{place} {number}"):
                break
        return self

    def add_problem(self, problem: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)
            return
        self._uncounted += 1
        self.problems[-1] = f"{self._uncounted + 1} more problems are not shown."


def bound_labels(labels: Mapping[Any, object]) -> dict[str, str]:
    """The labels that are texts of allowed length, at most MAX_LABELS of them."""
    texts = (
        (name, value)
        for name, value in labels.items()
        if isinstance(name, str) and isinstance(value, str) and 0 < len(name) <= MAX_CHARACTERS >= len(value)
    )
    return dict(islice(texts, MAX_LABELS))


MAX_FILE_BYTES = 2 * 1024 * 1024
"""20,000 hosts take 1.2 MB in YAML."""
LOOK_TIMEOUT = 5.0

DEADLINE = 10.0
"""For one question that the server is to answer at once, in seconds."""
MAX_BYTES = 48 * 1024 * 1024
"""Consul sends some 2 kB about each host."""


class FileThread:
    """Reads files in a thread, one read at a time: a read that was given up goes on there while the files hang."""

    def __init__(self) -> None:
        self._is_looking = threading.Lock()

    async def run(self, work: Callable[[], T]) -> T:
        """Raises Temporary when the look before this one has still not come back."""
        from asyncio import to_thread  # noqa: PLC0415 - see the module

        return await to_thread(self._run, work)

    def _run(self, work: Callable[[], T]) -> T:
        if not self._is_looking.acquire(timeout=LOOK_TIMEOUT):
            raise Temporary("the files do not answer.", "Is their file system there?")
        try:
            return work()
        finally:
            self._is_looking.release()


class _FindingsProvider(Provider):
    """Keeps what was found last."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self._findings = HostFindings()

    @property
    def problems(self) -> list[str]:
        return self._findings.problems


class FileProvider(_FindingsProvider):
    """A provider that reads files, in a thread. A subclass has `_find`, which returns all that they say, blocks, and
    raises Temporary."""

    pause = 1.0

    def __init__(self, origin: str) -> None:
        super().__init__(origin)
        self._files_thread = FileThread()

    async def find(self) -> list[Target]:
        return await self._files_thread.run(self._look)

    def _look(self) -> list[Target]:
        # In the thread: a question that is cancelled meanwhile has read the file all the same.
        self._findings = self._find()
        return self._findings.targets

    def _find(self) -> HostFindings:
        raise NotImplementedError


_Stamp = tuple[int, ...]
"""When a file was modified, its size, its inode and its device."""


class WatchedFile:
    """One file, read when its stamp has changed and is the same at two looks: it may be half written. `named` is how
    messages call it."""

    def __init__(self, path: Path, named: str = "") -> None:
        self.path = path
        self._named = named or str(path)
        self._read: _Stamp | None = None
        self._seen: _Stamp | None = None

    def read_if_changed(self) -> bytes | None:
        """Its content, if it is complete and was not read before; else None. Raises Temporary."""
        try:
            stamp = self._look()
            if stamp == self._read or not self._is_settled(stamp):
                return None
            with self.path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES)
        except OSError as error:
            self._read = None
            reason = (error.strerror or "unknown reason").lower()
            raise Temporary(f"{self._named} cannot be read: {reason}.") from error
        self._read = stamp
        return content

    def _is_settled(self, stamp: _Stamp) -> bool:
        seen, self._seen = self._seen, stamp
        return stamp == seen or self._read is None

    def _look(self) -> _Stamp:
        found = self.path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise Temporary(f"{self._named} cannot be read: it is no file.")
        if found.st_size > MAX_FILE_BYTES:
            raise Temporary(f"{self._named} cannot be read: it is larger than {MAX_FILE_BYTES // 2**20} MiB.")
        return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev


def find_path(named: str) -> Path:
    """The path that a setting means. Raises Temporary where `~` means nothing."""
    try:
        return Path(named).expanduser()
    except RuntimeError as error:
        raise Temporary(f"{named} cannot be read: this user has no home folder.", "Give the whole path.") from error


class ServerProvider(_FindingsProvider):
    """A provider that asks one server every `pause` seconds. Files are read when needed: a changed token counts from
    the next question on. `header` shows the token, behind `scheme`."""

    header = "Authorization"
    scheme = "Bearer "

    def __init__(self, origin: str, pause: float, token_file: str | None = None, ca_file: str | None = None) -> None:
        super().__init__(origin)
        self.pause = pause
        self._token_file = token_file
        self._ca_file = ca_file
        self._fetcher: Fetcher | None = None

    async def _fetch(
        self, url: str, read: Callable[..., HostFindings], *args: str, deadline: float = DEADLINE
    ) -> Mapping[str, str]:
        """Note what `read(body, *args)` makes of the answer; returns the answer's headers. Raises Temporary and Refused
        only."""
        from asyncio import to_thread  # noqa: PLC0415 - see the module

        from gpudeck.fetch import Fetcher, trust_from  # noqa: PLC0415 - see the module

        try:
            if self._fetcher is None:
                trust = await to_thread(trust_from, self._ca_file) if self._ca_file else None
                self._fetcher = Fetcher(deadline=DEADLINE, bytes_at_most=MAX_BYTES, trust=trust)
            answer = await self._fetcher.get(url, await to_thread(self._headers), deadline)
        except UsageError as error:
            raise Refused(error.message, error.hint) from error
        except Refused as error:
            hint = error.hint if self._token_file else "Set token_file, if it needs a token."
            raise Refused(error.message, hint) from error
        self._findings = await to_thread(read, answer.body, *args)
        return answer.headers

    async def close(self) -> None:
        if self._fetcher is not None:
            await self._fetcher.close()
            self._fetcher = None

    def _headers(self) -> Mapping[str, str]:
        if self._token_file is None:
            return {}
        from gpudeck.agent.push import read_token  # noqa: PLC0415 - see the module

        token = read_token(find_path(self._token_file), "Check token_file.")
        return {self.header: f"{self.scheme}{token}"}
