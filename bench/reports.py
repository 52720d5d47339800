"""A fleet of eight-GPU servers in which everything changes in every report: the hardest case for the hub."""

import random
import time
from functools import partial

from msgspec.structs import replace

from gpudeck.model.report import GpuReading, Process, Report
from gpudeck.wire import SHORT_VERSION, Envelope, Head, ShortReport, describe, encode, pack_numbers

GIB = 2**30
HOST_METRICS: dict[str, int | float] = {
    "cpu_percent": 12.5,
    "cpu_count": 128,
    "load_1m": 12.3,
    "memory_used_bytes": 300 * GIB,
    "memory_total_bytes": 2000 * GIB,
    "disk_used_bytes": 10_000 * GIB,
    "disk_total_bytes": 20_000 * GIB,
    "swap_used_bytes": 0,
    "swap_total_bytes": 8 * GIB,
    "network_receive_bytes_per_second": 12_000,
    "network_transmit_bytes_per_second": 34_000,
    "uptime_seconds": 86_400,
}


# As an H200 with driver 580 answers.
UNKNOWN = {
    "fan_percent": "not supported by this GPU",
    "nvlink_active_count": "not supported by this GPU",
    "nvlink_inactive_count": "not supported by this GPU",
    "pcie_receive_bytes_per_second": "read only when asked for: it takes 40 ms a GPU",
    "pcie_transmit_bytes_per_second": "read only when asked for: it takes 40 ms a GPU",
}


def make_reading(host: int, index: int, rng: random.Random) -> GpuReading:
    """Utilization, memory, temperature and power are drawn anew; a process sits on every GPU."""
    process = Process(
        pid=1000 + index,
        user=f"user{host % 30}",
        command="python train.py --config configs/large.yaml --resume",
        memory_used_bytes=100 * GIB,
        started_at=1.79e9,
        utilization_percent=50.0,
        evidence="uid 1000 of /proc/1000",
    )
    metrics: dict[str, int | float] = {
        "utilization_percent": rng.randrange(5, 101),
        "memory_utilization_percent": rng.randrange(60),
        "memory_used_bytes": rng.randrange(140_000) << 20,
        "memory_total_bytes": 143_771 << 20,
        "temperature_celsius": rng.randrange(30, 80),
        "power_watts": round(rng.uniform(70, 700), 1),
        "power_limit_watts": 700,
        "clock_sm_mhz": 1980,
        "clock_memory_mhz": 3201,
        "encoder_percent": 0,
        "decoder_percent": 0,
        "memory_temperature_celsius": rng.randrange(30, 80),
        "performance_state": 0,
        "throttled_power": 1,
        "throttled_thermal": 0,
        "throttled_hardware": 0,
        "ecc_corrected_count": 0,
        "ecc_uncorrected_count": 0,
        "remapped_rows_count": 0,
        "remapped_rows_pending": 0,
        "energy_joules": rng.randrange(10**9),
    }
    return GpuReading(
        uuid=f"GPU-{host:08x}-{index:04x}-4b7e-9a61-2d3c4b5a6978",
        index=index,
        name="NVIDIA H200",
        vendor="nvidia",
        metrics=metrics,
        unknown=UNKNOWN,
        processes=[process],
        idle_seconds=0.0,
    )


def make_envelope(host: int, sequence: int, rng: random.Random) -> Envelope:
    gpus = [make_reading(host, index, rng) for index in range(8)]
    report = Report(gpus=gpus, metrics=HOST_METRICS, driver_version="580.159.04", os="Debian GNU/Linux 12 (bookworm)")
    return Envelope(
        version=1,
        host=f"gpu{host:05d}",
        host_id=f"machine-{host:05d}",
        boot_id="0f4c3c6e-5b0f-4d39-9c0a-6a0e1d2c3b4a",
        run_id="5f1e8a300c5d4b7e",
        sequence=sequence,
        # Ahead of the clock, so that a report made before the measurement does not count as one that waited.
        collected_at=time.time() + 3600,
        interval_seconds=2.0,
        agent_version="0.1.0",
        report=report,
    )


def make_rounds(hosts: int, rounds: int, *, short: bool = False) -> list[list[bytes]]:
    """For each round one encoded report of every host. `short`: after the first round short ones, as agents send them
    while nothing but numbers changes."""
    make = partial(make_envelope, rng=random.Random(1))
    pack = _shorten if short else encode
    return [[pack(make(host, sequence)) for host in range(hosts)] for sequence in range(1, rounds + 1)]


def _shorten(envelope: Envelope) -> bytes:
    description, numbers = describe(envelope.report), pack_numbers(envelope.report)
    if envelope.sequence == 1 or numbers is None:
        return encode(replace(envelope, description=description))
    head = {name: getattr(envelope, name) for name in Head.__struct_fields__ if name != "version"}
    return encode(ShortReport(version=SHORT_VERSION, description=description, numbers=numbers, **head))
