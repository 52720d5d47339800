"""GPUs that somebody wants to use now, and which of those that are there fit best. Pure: the same for `gpudeck free`,
the queue on the hub, and the queue of one machine.

Best is the least memory that is enough; of equals the host on which the fewest are left, so that whole hosts stay whole
for those who need one; then the host's name and the GPU's number.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from gpudeck.model.availability import Availability
from gpudeck.model.catalog import HostIdentity
from gpudeck.model.health import HealthLevel
from gpudeck.model.quantity import show_amount
from gpudeck.model.reservation import GpuReservation
from gpudeck.model.view import Gpu, Host

MOST_GPUS = 1024
# PostgreSQL keeps no character 0, and no name has any other that a terminal acts upon.
_Name = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]


class Wanted(Struct, frozen=True, kw_only=True):
    """So many GPUs with at least `memory_bytes`, whose model contains `model`; `host` is a name or an id.

    `near` is the id of a host whose GPUs are taken first, though others fit as well: that on which somebody waits.
    """

    gpus: Annotated[int, Meta(ge=1, le=MOST_GPUS)] = 1
    memory_bytes: Annotated[int, Meta(ge=0, lt=2**60)] | None = None
    model: _Name | None = None
    same_host: bool = False
    host: _Name | None = None
    near: _Name | None = None

    @property
    def kind(self) -> "Wanted":
        """Any one GPU of the same kind: who wants the same kind wants the same GPUs."""
        return Wanted(memory_bytes=self.memory_bytes, model=self.model, host=self.host)

    def describe(self) -> str:
        """In words: `2 GPUs with 40 GB on one host`."""
        count = "1 GPU" if self.gpus == 1 else f"{self.gpus} GPUs"
        model = f" called {self.model}" if self.model else ""
        memory = f" with {show_amount(self.memory_bytes)}" if self.memory_bytes else ""
        place = f" on {self.host}" if self.host else " on one host" if self.same_host and self.gpus > 1 else ""
        return f"{count}{model}{memory}{place}"


State = Literal["usable", "taken", "lost"]
"""Somebody can have it now; later, when who is on it has gone; or nobody knows."""


class OfferedGpu(Struct, frozen=True, kw_only=True):
    """A GPU of the fleet as far as whoever looks for one has to know it. `booked_by` is who has it booked now: it is
    usable for them alone. `users` are on it now."""

    uuid: str
    host: str
    host_id: str
    label: str
    index: int
    name: str
    display_name: str
    vendor: str
    memory_total_bytes: float | None
    state: State
    booked_by: str | None = None
    users: frozenset[str] = frozenset()

    @property
    def order(self) -> tuple[str, str, int, int, str]:
        """By host, then by number, that of a MIG instance within its board's."""
        instance = self.label.partition(".")[2]
        return self.host, self.host_id, self.index, int(instance) if instance.isdecimal() else -1, self.uuid


def offer(host: HostIdentity, gpu: Gpu) -> OfferedGpu:
    """A GPU of this host."""
    found = gpu.reservation
    return OfferedGpu(
        uuid=gpu.uuid,
        host=host.name,
        host_id=host.id,
        label=gpu.label,
        index=gpu.index,
        name=gpu.name,
        display_name=gpu.display_name,
        vendor=gpu.vendor,
        memory_total_bytes=gpu.memory_total_bytes,
        state=_judge(gpu.availability, gpu.health, found),
        booked_by=found.user if found is not None and gpu.availability == "booked" else None,
        users=frozenset(gpu.users),
    )


def offer_all(hosts: Iterable[Host]) -> list[OfferedGpu]:
    """Every GPU of these hosts, whoever is on it."""
    return [offer(host, gpu) for host in hosts for gpu in host.gpus]


def _judge(availability: Availability, health: HealthLevel, found: GpuReservation | None) -> State:
    if availability == "unknown" or health == "critical":
        return "lost"
    # A hold is for one start alone: not even its owner can have it twice.
    return (
        "usable"
        if availability == "free" or (availability == "booked" and found is not None and found.kind == "booking")
        else "taken"
    )


def is_usable(gpu: OfferedGpu, names: Collection[str]) -> bool:
    """Whether somebody with one of these names could start on it now."""
    return gpu.state == "usable" and (gpu.booked_by is None or gpu.booked_by in names)


def fits(gpu: OfferedGpu, wanted: Wanted) -> bool:
    """Whether it is of the kind that is wanted, whoever is on it. Memory that is not known fits nothing."""
    if wanted.memory_bytes and (gpu.memory_total_bytes is None or gpu.memory_total_bytes < wanted.memory_bytes):
        return False
    if wanted.model is not None and wanted.model.lower() not in f"{gpu.name}\n{gpu.display_name}".lower():
        return False
    return wanted.host is None or wanted.host in {gpu.host, gpu.host_id}


def rank(gpus: Iterable[OfferedGpu], near: str | None = None) -> list[OfferedGpu]:
    """Best first; see above. Unknown memory comes last."""
    ordered = sorted(gpus, key=lambda gpu: gpu.order)
    left: dict[str, int] = defaultdict(int)
    for gpu in ordered:
        left[gpu.host_id] += 1
    return sorted(ordered, key=lambda gpu: (gpu.host_id != near, _memory(gpu), left[gpu.host_id], gpu.order))


def choose(wanted: Wanted, gpus: Iterable[OfferedGpu]) -> list[OfferedGpu] | None:
    """The best of these GPUs, as many as are wanted; None where there are not enough, or not on one host.

    All on one host where that needs no larger ones, also if nobody asked for it: most programs run on one.
    """
    ranked = rank((gpu for gpu in gpus if fits(gpu, wanted)), wanted.near)
    if len(ranked) < wanted.gpus:
        return None
    spread = ranked[: wanted.gpus]
    together = _choose_host(wanted, ranked)
    if wanted.same_host or (together is not None and _cost(together, wanted) <= _cost(spread, wanted)):
        return together
    return spread


def by_host(gpus: Iterable[OfferedGpu]) -> dict[str, list[OfferedGpu]]:
    """By the host's id, in the order in which they come."""
    hosts: dict[str, list[OfferedGpu]] = defaultdict(list)
    for gpu in gpus:
        hosts[gpu.host_id].append(gpu)
    return hosts


def _choose_host(wanted: Wanted, ranked: Sequence[OfferedGpu]) -> list[OfferedGpu] | None:
    hosts = [found for found in by_host(ranked).values() if len(found) >= wanted.gpus]
    best = min(hosts, key=lambda found: (_cost(found[: wanted.gpus], wanted), len(found), found[0].order), default=None)
    return None if best is None else best[: wanted.gpus]


def _cost(gpus: Sequence[OfferedGpu], wanted: Wanted) -> tuple[bool, float]:
    return any(gpu.host_id != wanted.near for gpu in gpus), max(map(_memory, gpus))


def _memory(gpu: OfferedGpu) -> float:
    return float("inf") if gpu.memory_total_bytes is None else gpu.memory_total_bytes
