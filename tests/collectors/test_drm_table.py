"""amdgpu's binary table, made here field by field as kgd_pp_interface.h lays it out."""

import struct
from pathlib import Path

import pytest

from fakes.drm_tree import lay_out, put
from gpudeck.collectors.base import NO_VALUE
from gpudeck.collectors.drm import DrmCollector
from gpudeck.collectors.drm_cards import NOT_IN_TABLE, TABLE_METRICS, parse_table, read_table
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.report import GpuReading

RX, DEVICE = "rx7900xtx-amdgpu-6.9", "sys/devices/pci0000:00/0000:03:00.0"
NONE16, NONE64 = 0xFFFF, 2**64 - 1
CLOCKS, TEMPERATURES = [500, 400, 96, 0, 0, 0, 0], [47, 55, 60, 0, 0, 0]
TEMPERATURE_LIMIT, POWER_LIMIT, PROCHOT = 1 << 36, 1 << 0, 1 << 47


def a_table(version: int, *, throttling: int = 0) -> bytes:
    """Version 1.1, 1.2 or 1.3: those of Radeon, MI100 and MI200."""
    fields = [("6H", TEMPERATURES), ("3H", [97, 41, 0]), ("H", [310]), ("2Q", [NONE64, 12345])]
    fields += [("7H", CLOCKS), ("7H", [2400, 1200, 1249, 0, 0, 0, 0]), ("I", [0]), ("4H", [1500, 16, 160, 0])]
    fields += [("2I", [0, 0]), ("4H", [NONE16] * 4)]
    fields += [("Q", [0])] * (version >= 2) + [("4H", [0] * 4), ("Q", [throttling])] * (version >= 3)
    return pack(version, fields)


def a_mi300_table(version: int, *, energy: int = 3 << 16) -> bytes:
    """Version 1.4 or 1.5."""
    fields = [("4H", [62, 48, 40, 611]), ("2H", [97, 41]), ("4H", [0] * 4)]
    fields += [("32H", [NONE16] * 32)] * (version >= 5)
    fields += [("2Q", [energy, 12345]), ("2I", [0, 0]), ("4H", [16, 320, 16, 32]), ("2I", [0, 0]), ("5Q", [7] * 5)]
    fields += [("2I", [0, 0])] * (version >= 5)
    fields += [("16Q", [9] * 16), ("Q", [0]), ("8H", [2100] * 8), ("12H", [900] * 12), ("2H", [1300, 0]), ("4x", [])]
    return pack(version, fields)


def pack(version: int, fields: list[tuple[str, list[int]]]) -> bytes:
    body = b"".join(struct.pack(f"<{form}", *values) for form, values in fields)
    return struct.pack("<HBB", 4 + len(body), 1, version) + body


@pytest.mark.parametrize("version", [1, 2])
def test_table_of_an_older_radeon_has_neither_energy_nor_throttling(version: int) -> None:
    assert parse_table(a_table(version)) == ({}, dict.fromkeys(TABLE_METRICS, NOT_IN_TABLE))


@pytest.mark.parametrize("version", [4, 5])
def test_table_of_an_mi300_has_its_energy_and_no_throttling(version: int) -> None:
    metrics, unknown = parse_table(a_mi300_table(version))
    assert metrics == {"energy_joules": 3}
    assert unknown == dict.fromkeys(TABLE_METRICS - {"energy_joules"}, NOT_IN_TABLE)


@pytest.mark.parametrize("energy", [0, NONE64])
def test_energy_that_was_never_counted_is_unknown(energy: int) -> None:
    assert parse_table(a_mi300_table(4, energy=energy)).unknown["energy_joules"] == NO_VALUE


@pytest.mark.parametrize(
    ("status", "flags"),
    [
        (0, (0, 0, 0)),
        (POWER_LIMIT, (1, 0, 0)),
        (1 << 22, (1, 0, 0)),
        (TEMPERATURE_LIMIT, (0, 1, 0)),
        (PROCHOT | POWER_LIMIT, (1, 0, 1)),
        (1 << 56, (0, 0, 0)),
        (NONE64, (None, None, None)),
    ],
)
def test_throttling_of_version_3(status: int, flags: tuple[int | None, ...]) -> None:
    metrics = parse_table(a_table(3, throttling=status)).metrics
    assert tuple(metrics.get(f"throttled_{kind}") for kind in ("power", "thermal", "hardware")) == flags


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (b"", "cut off"),
        (a_table(3)[:60], "60 bytes instead of 120"),
        (struct.pack("<HBB", 96, 1, 3) + bytes(200), "96 bytes instead of 120"),
        (struct.pack("<HBB", 264, 1, 8) + bytes(260), NOT_IN_TABLE),
        (struct.pack("<HBB", 120, 2, 3) + bytes(116), NOT_IN_TABLE),
        (b"\xff" * 200, NOT_IN_TABLE),
    ],
)
def test_table_that_is_not_known_by_its_structure_is_not_read(tmp_path: Path, table: bytes, why: str) -> None:
    (tmp_path / "gpu_metrics").write_bytes(table)
    metrics, unknown = read_table(str(tmp_path))
    assert metrics == {}
    assert unknown.keys() == TABLE_METRICS
    assert all(why in reason for reason in unknown.values())


def a_card(root: Path, table: bytes) -> DrmCollector:
    lay_out(RX, root)
    (root / DEVICE / "gpu_metrics").write_bytes(table)
    return DrmCollector(root)


def read(collector: DrmCollector, now: float) -> GpuReading:
    (gpu, *_) = collector.collect(now).gpus or ()
    assert gpu.metrics.keys() | gpu.unknown.keys() == GPU_METRICS.keys()
    assert not gpu.metrics.keys() & gpu.unknown.keys()
    return gpu


def test_table_adds_what_no_file_has(tmp_path: Path) -> None:
    metrics = read(a_card(tmp_path, a_table(3, throttling=TEMPERATURE_LIMIT)), 1000.0).metrics
    assert (metrics["throttled_thermal"], metrics["throttled_power"]) == (1, 0)


def test_table_is_read_every_ten_seconds(tmp_path: Path) -> None:
    collector = a_card(tmp_path, a_table(3))
    assert read(collector, 1000.0).metrics["throttled_power"] == 0
    (tmp_path / DEVICE / "gpu_metrics").write_bytes(a_table(3, throttling=POWER_LIMIT))
    assert [read(collector, now).metrics["throttled_power"] for now in (1005.0, 1010.0)] == [0, 1]


def test_table_that_vanishes_or_is_odd_takes_only_its_own_values(tmp_path: Path) -> None:
    collector = a_card(tmp_path, a_table(3))
    before = read(collector, 1000.0)
    (tmp_path / DEVICE / "gpu_metrics").write_bytes(b"\x00\x01")
    after = read(collector, 1010.0)
    assert "cut off" in after.unknown["throttled_power"]
    assert before.metrics.keys() - after.metrics.keys() == TABLE_METRICS - {"energy_joules"}


def test_card_that_sleeps_is_not_woken_for_it(tmp_path: Path) -> None:
    collector = a_card(tmp_path, a_table(3))
    put(tmp_path / DEVICE / "power/runtime_status", "suspended")
    assert read(collector, 1000.0).metrics == {}
