"""Who uses a GPU, and whose process caused a fault, from its list of processes."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from gpudeck.model.health import find_xid
from gpudeck.model.report import GpuEvent, Process
from gpudeck.model.view import ShownEvent

FAULT_SECONDS: Final = 24 * 3600.0
"""For how long a driver fault counts against a GPU's health."""


class Occupancy(Struct, frozen=True):
    """Who is on a GPU, as far as its state depends on them: display servers do not count.

    `workers` is None when the list could not be read, `display_bytes` when a display server's share could not,
    `oldest_start` (by the host's clock) when no start is known.
    """

    workers: int | None = None
    display_bytes: int | None = 0
    oldest_start: float | None = None


def look_at(processes: list[Process] | None) -> Occupancy:
    """Who is on a GPU."""
    workers = [process for process in processes or () if not process.display]
    displays = [process.memory_used_bytes for process in processes or () if process.display]
    return Occupancy(
        workers=None if processes is None else len(workers),
        display_bytes=None if None in displays else sum(share or 0 for share in displays),
        oldest_start=min((process.started_at for process in workers if process.started_at is not None), default=None),
    )


def users_of(processes: list[Process] | None) -> list[str]:
    """The distinct users on the GPU, most memory first; display servers do not count."""
    memory: dict[str, int] = {}
    for process in processes or ():
        if process.user is not None and not process.display:
            memory[process.user] = memory.get(process.user, 0) + (process.memory_used_bytes or 0)
    return sorted(memory, key=lambda user: (-memory[user], user))


def find_user(event: GpuEvent, there: Mapping[int, Process]) -> str | None:
    """Whose process a fault names. A process that was started later has only been given the same pid."""
    process = None if event.process is None else there.get(event.process)
    is_later = process is not None and process.started_at is not None and process.started_at > event.at + 1
    return None if process is None or is_later else process.user


def show_event(event: GpuEvent, user: str | None) -> ShownEvent:
    xid = find_xid(event.code)
    return ShownEvent(
        at=event.at,
        code=event.code,
        kind=xid.kind,
        text=xid.text,
        message=event.text,
        process=event.process,
        user=user,
    )
