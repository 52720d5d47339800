"""A scheduler: who was given which GPUs, from a JSON file that a site's own scheduler writes.

{"gpu01": {"count": 8, "jobs": [{"id": "17", "user": "anna", "gpus": [0, 1], "start": 1790000000}]}}

schedulers:
  plugins: [{plugin: allocations, options: {file: /run/scheduler/allocations.json}}]
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gpudeck.model.allocation import Allocation
from gpudeck.model.errors import Temporary, UsageError
from gpudeck.schedulers.base import SchedulerNode, SchedulerState


class Job(msgspec.Struct):
    id: str
    user: str
    gpus: list[int]
    start: float | None = None


class Node(msgspec.Struct):
    count: int
    jobs: list[Job] = []
    closed: str | None = None


class AllocationFile:
    pause = 5.0

    def __init__(self, options: Mapping[str, str]) -> None:
        if "file" not in options:
            raise UsageError("the option `file` is needed.")
        self._file = Path(options["file"])
        self.name = options.get("name", "allocations")
        self.origin = f"the scheduler of {self._file.name}"

    async def read(self) -> SchedulerState:
        return await asyncio.to_thread(self._read)

    def _read(self) -> SchedulerState:
        try:
            nodes = msgspec.json.decode(self._file.read_bytes(), type=dict[str, Node])
        except (OSError, msgspec.DecodeError) as error:
            # Then empty GPUs of its nodes are unknown: they may be allocated.
            raise Temporary(f"{self._file} cannot be read: {error}.") from error
        return SchedulerState({name: self._show(name, node) for name, node in nodes.items()})

    def _show(self, name: str, node: Node) -> SchedulerNode:
        gpus = {
            index: Allocation(self.name, job.id, user=job.user, since=job.start)
            for job in node.jobs
            for index in job.gpus
        }
        return SchedulerNode((name,), node.count, gpus, closed=node.closed)


make = AllocationFile
