"""Who is on which GPUs now, from the fleet.

Whom nobody could name is one person of their own. What a silent host last told is listed, but never counted.
"""

import re
from collections.abc import Sequence

from msgspec import Struct

from gpudeck.model.view import Gpu, Host, ShownProcess

_DIGITS = re.compile(r"(\d+)")


class Holding(Struct, frozen=True):
    """A GPU that somebody is on, and their processes there. `memory` is None where a part of it is not known."""

    host: Host
    gpu: Gpu
    processes: list[ShownProcess]
    memory: float | None


class Person(Struct, frozen=True):
    """`holdings` are on hosts that report, `past` on silent ones. Sums and means cover what is known."""

    user: str | None
    holdings: list[Holding]
    past: list[Holding]

    @property
    def memory(self) -> float | None:
        known = [holding.memory for holding in self.holdings if holding.memory is not None]
        return sum(known) if known else None

    @property
    def is_memory_part(self) -> bool:
        return any(holding.memory is None for holding in self.holdings)

    @property
    def utilization(self) -> float | None:
        values = [holding.gpu.utilization_percent for holding in self.holdings]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

    @property
    def processes(self) -> int | None:
        """One process on several GPUs is one; None where no list could be read."""
        if all(holding.gpu.processes is None for holding in self.holdings):
            return None
        return len({(holding.host.id, own.pid) for holding in self.holdings for own in holding.processes})

    @property
    def idle(self) -> list[Holding]:
        return [holding for holding in self.holdings if holding.gpu.availability == "held"]

    @property
    def since(self) -> float | None:
        started = [own.started_at for holding in self.holdings for own in holding.processes]
        return min((at for at in started if at is not None), default=None)


def find_people(hosts: Sequence[Host]) -> list[Person]:
    """By name; whom nobody could name last."""
    found: dict[str | None, tuple[list[Holding], list[Holding]]] = {}
    for host in hosts:
        is_past = host.status != "up"
        for gpu in host.gpus:
            for user, processes in _owners(host, gpu).items():
                holding = Holding(host, gpu, processes, _memory(gpu, processes))
                found.setdefault(user, ([], []))[is_past].append(holding)
    people = [Person(user, *held) for user, held in found.items()]
    return sorted(people, key=lambda person: (person.user is None, natural(person.user or "")))


def natural(name: str) -> list[tuple[bool, int, str]]:
    """What to sort names by, so that numbers in them count as numbers."""
    parts = (part for part in _DIGITS.split(name.lower()) if part)
    return [(False, int(part), "") if part.isdecimal() else (True, 0, part) for part in parts]


def _owners(host: Host, gpu: Gpu) -> dict[str | None, list[ShownProcess]]:
    """Who is on the GPU with which processes. A display server uses a GPU, but nobody works there."""
    owners: dict[str | None, list[ShownProcess]] = {}
    for process in gpu.processes or ():
        if not process.display:
            owners.setdefault(process.user, []).append(process)
    state = gpu.availability if host.status == "up" else gpu.last_seen
    if not owners and state in {"busy", "held"}:
        # Some ways in name the people without their processes.
        return {user: [] for user in gpu.users or (None,)}
    return owners


def _memory(gpu: Gpu, processes: list[ShownProcess]) -> float | None:
    """What their processes hold; all of the GPU's where they are alone on it and that is not told by process."""
    amounts = [process.memory_used_bytes for process in processes]
    known = [amount for amount in amounts if amount is not None]
    if processes and len(known) == len(amounts):
        return float(sum(known))
    is_alone = len(gpu.users) <= 1 and (gpu.processes is None or len(gpu.processes) == len(processes))
    return gpu.memory_used_bytes if is_alone else None
