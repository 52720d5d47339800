"""What chunks and roll-ups have around them: a version, a checksum, and names that cost next to nothing.

byte 0       the version
bytes 1–4    CRC-32 of everything after them
the rest     what the version says
"""

import zlib
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec
import numpy as np

from gpudeck.history.codec import Damaged
from gpudeck.history.hour import Floats
from gpudeck.model.catalog import Metric

HOST: Final = "host_"
"""Stands before the name of a metric of the host itself wherever GPUs' metrics are named too."""

_MOST_NAMES: Final = 1 << 16
"""Bytes that a list of names may have."""
# What the deflater knows before it begins. Every file written so far needs it as it is: never change it. A metric that
# is not in it costs its name.
_WORDS: Final = msgspec.msgpack.encode(
    [
        "utilization_percent",
        "memory_utilization_percent",
        "memory_used_bytes",
        "memory_total_bytes",
        "temperature_celsius",
        "power_watts",
        "power_limit_watts",
        "fan_percent",
        "clock_sm_mhz",
        "clock_memory_mhz",
        "encoder_percent",
        "decoder_percent",
        "memory_temperature_celsius",
        "performance_state",
        "throttled_power",
        "throttled_thermal",
        "throttled_hardware",
        "ecc_corrected_count",
        "ecc_uncorrected_count",
        "remapped_rows_count",
        "remapped_rows_pending",
        "nvlink_active_count",
        "nvlink_inactive_count",
        "energy_joules",
        "pcie_receive_bytes_per_second",
        "pcie_transmit_bytes_per_second",
        "cpu_percent",
        "cpu_count",
        "load_1m",
        "memory_used_bytes",
        "memory_total_bytes",
        "disk_used_bytes",
        "disk_total_bytes",
        "swap_used_bytes",
        "swap_total_bytes",
        "network_receive_bytes_per_second",
        "network_transmit_bytes_per_second",
        "uptime_seconds",
    ]
)
_STEPS: Final = (1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5)
_SMALLEST: Final = 1e-6


def seal(version: int, content: bytes) -> bytes:
    return bytes([version]) + zlib.crc32(content).to_bytes(4, "big") + content


def unseal(version: int, body: bytes) -> memoryview:
    """The content. Raises Damaged if a single bit of it has changed."""
    if not isinstance(body, bytes):
        raise Damaged("they are no bytes any more")
    if len(body) < 5 or body[0] != version:
        raise Damaged(f"version {body[0] if body else None}; this release reads version {version}")
    content = memoryview(body)[5:]
    if zlib.crc32(content) != int.from_bytes(body[1:5], "big"):
        raise Damaged("the checksum does not fit: the bytes have changed since they were written")
    return content


@lru_cache(maxsize=64)
def pack_names(names: tuple[str, ...]) -> bytes:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15, 8, zlib.Z_DEFAULT_STRATEGY, _WORDS)
    return deflater.compress(msgspec.msgpack.encode(names)) + deflater.flush()


@lru_cache(maxsize=64)
def unpack_names(packed: bytes) -> tuple[str, ...]:
    """Raises Damaged for what `pack_names` did not make."""
    inflater = zlib.decompressobj(-15, _WORDS)
    try:
        plain = inflater.decompress(packed, _MOST_NAMES)
        return msgspec.msgpack.decode(plain, type=tuple[str, ...])
    except (msgspec.DecodeError, zlib.error) as error:
        raise Damaged(f"names cannot be read: {error}") from error


def split_wanted(wanted: Collection[str] | None, names: Sequence[str], prefix: str = "") -> list[int]:
    """The places of those `names` that are wanted under `prefix` and their name; None wants all."""
    if wanted is None:
        return list(range(len(names)))
    return [place for place, name in enumerate(names) if prefix + name in wanted]


def find_precision(catalog: Mapping[str, Metric], name: str, values: Floats) -> float:
    """The catalog's; of a metric that is not there, one that keeps what it is: somebody newer may have written it."""
    metric = catalog.get(name)
    if metric is not None:
        return metric.precision
    known = values[np.isfinite(values)]
    return next((step for step in _STEPS if _is_kept(known, round(1 / step))), _SMALLEST)


def _is_kept(known: Floats, parts: int) -> bool:
    return bool((np.rint(known * parts) / parts == known).all())
