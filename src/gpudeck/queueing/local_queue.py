"""The queue of one machine without a hub: files with locks that the kernel releases when a process ends.

    line             locked briefly for every read and change
    ticket-NUMBER    a waiting request; locked by its process
    gpu-UUID         a granted GPU; locked by its process while the command runs

Each waiting process applies the rules of the hub and takes only its own grant. A ticket without a lock belongs to a
dead process and is ignored, as is one whose process has not polled for a minute (stopped with Ctrl-Z).
"""

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gpudeck.agent.lock_files import find_places, look_at, make_locked
from gpudeck.model.errors import GpudeckError
from gpudeck.model.gpu_request import CandidateGpu, GpuRequest, Granted, QueuePosition
from gpudeck.queueing.scheduler import PositionFinder, Request, Schedule, grant_of, schedule
from gpudeck.queueing.settings import QueueSettings

_TICKET: Final = re.compile(r"ticket-([0-9]{1,18})")


class Ticket(Struct, frozen=True):
    """The content of a ticket. `created_at` is by this machine's clock."""

    user: str
    created_at: float
    wanted: GpuRequest


class ClaimFile(Struct, frozen=True):
    """The content of a GPU's file: until when it is claimed for a command that gpudeck does not run."""

    user: str
    until: float


def taken_here(uuids: Iterable[str]) -> frozenset[str]:
    """The GPUs among these that the queue of this machine has granted. Makes no folder."""
    now = time.time()
    places = find_places()
    return frozenset(uuid for uuid in uuids if any(_is_taken(_gpu_file(place, uuid), now) for place in places))


class LocalQueue:
    """A request in the queue of this machine. `poll` until it is granted, and `close` when its command has ended.

    `read` returns the GPUs of this machine and may block for seconds.
    """

    def __init__(
        self,
        folder: Path,
        read: Callable[[], list[CandidateGpu]],
        user: str,
        wanted: GpuRequest,
        settings: QueueSettings | None = None,
    ) -> None:
        self._folder = folder
        self._read = read
        self._settings = settings or QueueSettings()
        self._places = PositionFinder()
        self._ticket = Ticket(user, time.time(), wanted)
        self._number = 0
        self._file: Path | None = None
        self._open: list[int] = []
        self._given: list[int] = []

    def join(self) -> None:
        """Join at the end of the queue. Raises OSError."""
        with self._alone():
            numbers = [number for number, _ in self._tickets()]
            # A dead ticket of another user cannot be removed: its number is not available.
            self._number = 1 + max([*numbers, *map(_number_of, self._folder.glob("ticket-*"))], default=0)
            self._file = self._folder / f"ticket-{self._number:018}"
            self._open.append(make_locked(self._file, msgspec.json.encode(self._ticket)))

    def poll(self) -> QueuePosition:
        """The position now, and whether it was granted. Granted GPUs are locked until `close`."""
        gpus = self._read()
        now = time.time()
        with self._alone():
            if self._file is not None:
                os.utime(self._open[0])
            offered = [
                replace(gpu, state="taken")
                if gpu.state == "usable" and _is_taken(_gpu_file(self._folder, gpu.uuid), now)
                else gpu
                for gpu in gpus
            ]
            requests = _in_line(self._tickets(now))
            found = schedule(requests, offered, now, patience=self._settings.patience)
            granted = self._take(found, now)
        self._places.settle(requests, found, gpus)
        return self._places.show(replace(_request(self._number, self._ticket), granted=granted))

    def keep(self, seconds: float) -> None:
        """Keep the granted GPUs claimed when this process ends, for a command that gpudeck does not run."""
        kept = msgspec.json.encode(ClaimFile(self._ticket.user, time.time() + seconds))
        for descriptor in self._given:
            os.pwrite(descriptor, kept, 0)

    def close(self) -> None:
        """Leave the queue, or release the granted GPUs."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink()
        for descriptor in self._open:
            os.close(descriptor)
        self._open, self._given, self._file = [], [], None

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        descriptor = _open_shared(self._folder / "line")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _tickets(self, now: float | None = None) -> list[tuple[int, Ticket]]:
        """The tickets of processes that live and poll, the oldest first."""
        found = []
        for file in sorted(self._folder.glob("ticket-*"), key=_number_of):
            ticket = self._ticket if file == self._file else _read_ticket(file, now, self._settings.forget)
            if ticket is not None and _TICKET.fullmatch(file.name):
                found.append((_number_of(file), ticket))
        return found

    def _take(self, found: Schedule, now: float) -> Granted | None:
        mine = next((grant for grant in found.grants if grant.request == self._number), None)
        if mine is None:
            return None
        descriptors = _lock_all(_gpu_file(self._folder, gpu.uuid) for gpu in mine.gpus)
        if descriptors is None:
            return None
        self._open += descriptors
        self._given = descriptors
        if self._file is not None:
            self._file.unlink()
            self._file = None
        return Granted([grant_of(gpu) for gpu in mine.gpus], now, now + self._settings.claim)


def _in_line(tickets: Iterable[tuple[int, Ticket]]) -> list[Request]:
    """In the order of their numbers: users can write any time into a ticket."""
    latest = 0.0
    found = []
    for number, ticket in tickets:
        latest = max(latest, ticket.created_at)
        found.append(replace(_request(number, ticket), created_at=latest))
    return found


def _request(number: int, ticket: Ticket) -> Request:
    return Request(
        id=number,
        key=str(number),
        user=ticket.user,
        account=None,
        wanted=ticket.wanted,
        created_at=ticket.created_at,
        last_seen_at=ticket.created_at,
    )


def _number_of(file: Path) -> int:
    found = _TICKET.fullmatch(file.name)
    return int(found[1]) if found else 0


def _gpu_file(folder: Path, uuid: str) -> Path:
    return folder / f"gpu-{re.sub(r'[^A-Za-z0-9.-]', '_', uuid)[:200]}"


def _open_shared(file: Path) -> int:
    """A file that all users may lock. Created and opened in two steps: in sticky folders the kernel refuses O_CREAT for
    a file of another user (fs.protected_regular)."""
    for _ in range(10):
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                made = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
                # Regardless of the umask.
                os.fchmod(made, 0o666)
                return made
            continue
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise GpudeckError(f"{file} is no ordinary file.", "Remove it.")
    raise GpudeckError(f"{file} can neither be opened nor made.")


def _lock_all(files: Iterable[Path]) -> list[int] | None:
    """All of them, or none: another process may hold a lock for a moment."""
    descriptors: list[int] = []
    try:
        for file in files:
            descriptors.append(_open_shared(file))
            fcntl.flock(descriptors[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptors[-1], 0)
    except BlockingIOError:
        for descriptor in descriptors:
            os.close(descriptor)
        return None
    return descriptors


def _is_taken(file: Path, now: float) -> bool:
    """Whether a live process has it locked, or it is still claimed."""
    text, is_locked = look_at(file)
    if is_locked or not text:
        return is_locked
    try:
        kept = msgspec.json.decode(text, type=ClaimFile)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    # No claim lasts longer than an hour.
    return now < kept.until <= now + 3600


def _read_ticket(file: Path, now: float | None, forget: float) -> Ticket | None:
    """None if no live process has it locked; it is removed then, if possible."""
    text, is_locked = look_at(file)
    if not is_locked:
        with contextlib.suppress(OSError):
            file.unlink()
        return None
    try:
        if now is not None and now - file.stat().st_mtime > forget:
            return None
        return msgspec.json.decode(text, type=Ticket)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
