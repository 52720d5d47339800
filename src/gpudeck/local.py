"""This machine without a hub: which of its GPUs can be used now."""

import os

from msgspec import Struct

from gpudeck.collectors.base import CollectorSettings
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.gpu_request import (
    CandidateGpu,
    GpuRequest,
    candidates,
    choose,
    explain_impossible,
    is_usable,
    rank,
    read_memory,
    visible_devices,
)
from gpudeck.model.text import show_count, show_gib
from gpudeck.model.view import Host
from gpudeck.queueing.local_queue import taken_here
from gpudeck.views.this_machine import read_this_machine


class NotFree(GpudeckError):
    """There are not enough suitable free GPUs."""


class ThisMachine(Struct, frozen=True):
    """`host` is this machine with all its GPUs and processes; `usable` are the GPUs that can be used now, best first:
    the least memory first."""

    host: Host
    usable: list[CandidateGpu]

    def take(self, gpus: int = 1, *, memory: int | str | None = None, model: str | None = None) -> list[CandidateGpu]:
        """Choose the best of the usable GPUs and set the variable of their vendor (CUDA_VISIBLE_DEVICES,
        ROCR_VISIBLE_DEVICES) for this process; call it before a library initialises the GPUs. It claims nothing: if
        others do the same, use `gpudeck wait` or `Client.wait`. Raises NotFree."""
        if gpus < 1:
            raise UsageError(f"gpus={gpus}: take at least one GPU.")
        wanted = GpuRequest(gpus=gpus, memory_bytes=read_memory(memory), model=model)
        chosen = choose(wanted, self.usable)
        if chosen is None:
            why = self.host.reasons.get("gpus") or explain_impossible(wanted, candidates([self.host]))
            if why:
                raise NotFree(f"{why.rstrip('.')}.")
            raise NotFree(f"not free now on this machine: {wanted.describe()}.", "`gpudeck wait` waits.")
        name, value = visible_devices(chosen)
        os.environ[name] = value
        return chosen

    def __repr__(self) -> str:
        gpus = self.host.gpus
        if self.host.reasons.get("gpus"):
            return f"{self.host.name}: {self.host.reasons['gpus']}"
        free = {gpu.uuid for gpu in self.usable}
        lines = [f"{self.host.name}: {len(free)} of {show_count(len(gpus), 'GPU')} free"]
        for gpu in gpus:
            size = "memory unknown" if gpu.memory_total_bytes is None else f"{show_gib(gpu.memory_total_bytes, 0)} GiB"
            users = f" ({', '.join(gpu.users)})" if gpu.users else ""
            state = gpu.availability if gpu.uuid in free or gpu.availability != "free" else "claimed"
            lines.append(f"  {gpu.label:>4}  {state:<9} {gpu.display_name}, {size}{users}")
        return "\n".join(lines)


def here(settings: CollectorSettings | None = None) -> ThisMachine:
    """The GPUs of this machine that can be used now, read from its drivers, without a hub. Takes about a second."""
    (host,) = read_this_machine(settings or CollectorSettings()).hosts
    return ThisMachine(host, rank(find_usable(candidates([host]))))


def find_usable(gpus: list[CandidateGpu]) -> list[CandidateGpu]:
    """The usable GPUs of this machine, without those that its local queue has granted to others."""
    usable = [gpu for gpu in gpus if is_usable(gpu, ())]
    taken = taken_here(gpu.uuid for gpu in usable)
    return [gpu for gpu in usable if gpu.uuid not in taken]
