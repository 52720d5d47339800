"""Summaries of Jobstats (Princeton): `JS1:` and what a job did on each node, as base64 of gzipped JSON. Sites have them
in Slurm's AdminComment. Pure."""

import base64
import binascii
import gzip
import zlib
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct, field

from gpudeck.model.job import ImportedGpu, ImportedNode, JobReport

PREFIX: Final = "JS1:"
_EMPTY: Final = frozenset(("Short", "None", ""))
_MOST_BYTES: Final = 16 * 2**20
_ByGpu = dict[str, Annotated[float, Meta(ge=0)]]


class JobstatsNode(Struct, omit_defaults=True):
    """What is missing is unknown. GPUs go by their minor numbers; memory is in bytes, of a GPU the most that was used,
    and its utilization is the mean in percent. `total_time` are CPU-seconds."""

    total_memory: float | None = None
    used_memory: float | None = None
    total_time: float | None = None
    cpus: float | None = None
    gpu_total_memory: _ByGpu = field(default_factory=dict)
    gpu_used_memory: _ByGpu = field(default_factory=dict)
    gpu_utilization: dict[str, Annotated[float, Meta(ge=0, le=100)]] = field(default_factory=dict)


class JobstatsSummary(Struct):
    """`total_time` is how long the job ran, in seconds."""

    nodes: dict[str, JobstatsNode]
    total_time: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    gpus: Annotated[int, Meta(ge=0, le=1024)] | None = None

    def list_gpus(self) -> list[ImportedGpu]:
        """Those with figures, and as many without as `gpus` counts beside them."""
        measured = [
            ImportedGpu(
                host=host,
                label=label,
                memory_total_bytes=node.gpu_total_memory.get(label),
                memory_peak_bytes=node.gpu_used_memory.get(label),
                utilization_percent=node.gpu_utilization.get(label),
            )
            for host, node in self.nodes.items()
            for label in sorted(node.gpu_total_memory | node.gpu_used_memory | node.gpu_utilization)
        ]
        return measured + make_unknown_gpus(list(self.nodes), (self.gpus or 0) - len(measured))

    def list_nodes(self) -> list[ImportedNode]:
        def known(value: float | None) -> float | None:
            return value if value is not None and 0 <= value < 2**53 else None

        return [
            ImportedNode(
                host=host,
                cpu_seconds=known(node.total_time),
                cpu_limit_cores=known(node.cpus),
                memory_peak_bytes=known(node.used_memory),
                memory_limit_bytes=known(node.total_memory),
            )
            for host, node in self.nodes.items()
            if node.gpu_total_memory or node.gpu_used_memory or node.gpu_utilization
        ]


def make_unknown_gpus(hosts: Sequence[str], count: int) -> list[ImportedGpu]:
    """GPUs of which nothing is known but that they were allocated, on one of these hosts."""
    host = hosts[0] if len(hosts) == 1 else "?"
    return [ImportedGpu(host=host, label=f"?{number}") for number in range(1, count + 1)]


def read_summary(text: str) -> JobstatsSummary | None:
    """None for a job that Jobstats has no figures of. Raises ValueError."""
    packed = text.strip().removeprefix(PREFIX)
    if packed in _EMPTY:
        return None
    try:
        opened = zlib.decompressobj(wbits=31)
        body = opened.decompress(base64.b64decode(packed, validate=True), _MOST_BYTES)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise ValueError(f"it is damaged ({error})") from error
    if not opened.eof:
        raise ValueError("it is cut off, or larger than 16 MiB")
    try:
        return msgspec.json.decode(body, type=JobstatsSummary)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"it is no summary of Jobstats ({error})") from error


def write_summary(report: JobReport) -> str:
    """The memory that a node used is the most of it."""
    if not report.gpus:
        return f"{PREFIX}None"
    nodes = {
        node.host: JobstatsNode(
            total_memory=node.memory_limit_bytes,
            used_memory=node.memory_peak_bytes,
            total_time=None if node.cpu_seconds is None else round(node.cpu_seconds, 1),
            cpus=node.cpu_limit_cores,
        )
        for node in report.nodes
    }
    for gpu in report.gpus:
        node = nodes.setdefault(gpu.host, JobstatsNode())
        for values, value in (
            (node.gpu_total_memory, gpu.memory_total_bytes),
            (node.gpu_used_memory, gpu.memory_peak_bytes),
            (node.gpu_utilization, gpu.utilization_percent),
        ):
            if value is not None:
                values[gpu.label] = round(value, 1)
    summary = JobstatsSummary(nodes, round(report.wall_seconds), len(report.gpus))
    return PREFIX + base64.b64encode(gzip.compress(msgspec.json.encode(summary), mtime=0)).decode()
