"""The fleet as reservations see it: which GPUs there are, and who is on them."""

from collections.abc import Set

from gpudeck.hub.fleet import Fleet
from gpudeck.hub.gpu import GpuState
from gpudeck.reservations.requests import ObservedGpu, Occupant


def observe(fleet: Fleet, uuids: Set[str] | None = None) -> dict[str, ObservedGpu]:
    """The GPUs with these UUIDs, or all, by host and number. Of a host that is silent nobody is known to be on any."""
    fleet.settle()
    if uuids is None:
        return {uuid: _look_at(host.name, gpu) for host in fleet.ordered() for uuid, gpu in host.gpus.items()}
    # Few are reserved: walking over all of a large fleet once a second would cost more than all the rest.
    return {
        uuid: _look_at(host.name, host.gpus[uuid]) for host in fleet.hosts.values() for uuid in uuids & host.gpus.keys()
    }


def _look_at(host: str, gpu: GpuState) -> ObservedGpu:
    availability = gpu.availability
    processes = None if availability == "unknown" else gpu.processes
    return ObservedGpu(
        uuid=gpu.uuid,
        host=host,
        label=gpu.label,
        index=gpu.index,
        model=f"{gpu.name}\n{gpu.display_name}",
        memory_total_bytes=gpu.value("memory_total_bytes"),
        availability=availability,
        occupants=None
        if processes is None
        else tuple(Occupant(process.user, process.started_at) for process in processes if not process.display),
    )
