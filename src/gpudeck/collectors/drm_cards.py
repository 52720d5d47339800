"""Finds AMD and Intel GPUs in /sys/class/drm, and reads their files.

What counts as a GPU here:

- AMD and Intel only, bound to amdgpu, i915 or xe. NVIDIA's cards belong to the NVML collector; the display adapters
  of servers and virtual machines (ast, mgag200, virtio) have other vendors.
- Not what is part of the CPU: a laptop's graphics is no GPU of a fleet. amdgpu shows the sensor `vddnb` on such chips
  alone, except for the MI300A, which is one to list (amdgpu_pm.c); one that was given 16 GiB or more (Strix Halo) is
  listed too. i915 and xe register sensors only for cards with memory of their own (i915_hwmon.c, xe_hwmon.c); cards
  without sensors (kernels before 6.2, virtual functions) are identified via their PCI id.
- A board once. The partitions of an MI300X are cards without a PCI device of their own and are not listed.

Two tables below name the file behind every metric; what is in neither is unknown with the reason that is given there.
Three figures of Intel cards have no file: `drm` makes them from those of the processes and from two readings of the
energy. `gpu_metrics` of amdgpu is a binary table, whose layout changes with card and kernel (kgd_pp_interface.h):
version 1.3 is that of Radeon cards and the MI200, 1.4 and 1.5 of the MI300. Never read: `pcie_bw`, which takes a
second to answer.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from struct import calcsize, unpack_from
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec import Struct

from gpudeck.collectors.base import NO_VALUE, Measured
from gpudeck.collectors.proc import (
    UNSUPPORTED,
    explain,
    list_names,
    read_bytes,
    read_link,
    read_number,
    read_text,
    read_word,
)
from gpudeck.model.catalog import GPU_METRICS

_HEADER: Final = "<HBB"
_TABLE_BYTES: Final = 4096
_JOULES: Final = 2.0**-16
NOT_IN_TABLE: Final = "the driver does not report it for this generation"
# Bits of the throttle status that all generations share: limits of power and current, temperatures, and signals by
# which regulators and chips ask for a slowdown.
_THROTTLING: Final = {
    "throttled_power": 0xFF00FF,
    "throttled_thermal": 0xFFF << 32,
    "throttled_hardware": 0xF << 44,
}
TABLE_METRICS: Final = frozenset({"energy_joules", *_THROTTLING})
"""Metrics that amdgpu has in its table only."""


class _Layout(NamedTuple):
    """The size of a table, and where in it the counter of energy and the throttle status are."""

    size: int
    energy: int | None = None
    throttling: int | None = None


_LAYOUTS: Final = {
    (1, 3): _Layout(120, throttling=112),
    (1, 4): _Layout(288, energy=24),
    (1, 5): _Layout(360, energy=88),
}


def read_table(device: str) -> Measured:
    """Each of TABLE_METRICS, known or unknown, of the card with this folder. Nothing is raised."""
    try:
        return parse_table(read_bytes(f"{device}/gpu_metrics", _TABLE_BYTES))
    except (OSError, ValueError) as error:
        return Measured({}, dict.fromkeys(TABLE_METRICS, explain(error)))


def parse_table(table: bytes) -> Measured:
    """Raises ValueError for a table that is not whole."""
    if len(table) < calcsize(_HEADER):
        raise ValueError("the driver's table of metrics is cut off")
    size, *version = unpack_from(_HEADER, table)
    measured = Measured({}, dict.fromkeys(TABLE_METRICS, NOT_IN_TABLE))
    layout = _LAYOUTS.get((version[0], version[1]))
    if layout is None:
        return measured
    if size != layout.size or len(table) < size:
        raise ValueError(f"the driver's table of metrics has {min(size, len(table))} bytes instead of {layout.size}")
    if layout.energy is not None:
        counted = _unpack(table, layout.energy)  # 0 was never counted
        measured.take("energy_joules", counted * _JOULES if counted else None)
    if layout.throttling is not None:
        status = _unpack(table, layout.throttling)
        for name, bits in _THROTTLING.items():
            measured.take(name, None if status is None else int(bool(status & bits)))
    return measured


def _unpack(table: bytes, offset: int) -> int | None:
    """A field of ones is unknown."""
    (value,) = unpack_from("<Q", table, offset)
    return None if value == 2**64 - 1 else int(value)


_VENDORS: dict[str, Literal["amd", "intel"]] = {"0x1002": "amd", "0x8086": "intel"}
_DRIVERS = {"amdgpu", "i915", "xe"}
_CARD = re.compile(r"card[0-9]+")
_NODE = re.compile(r"card[0-9]+|renderD[0-9]+")
_CHANNEL = re.compile(r"((?:temp|energy|freq)[0-9]+)_input")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_MAX_INTEGRATED_BYTES = 16 * 2**30 - 1


_MODELS = {
    "1002:738c": "AMD Instinct MI100",
    "1002:7408": "AMD Instinct MI250X",
    "1002:740c": "AMD Instinct MI250X / MI250",
    "1002:740f": "AMD Instinct MI210",
    "1002:744c": "AMD Radeon RX 7900 series",
    "1002:7448": "AMD Radeon Pro W7900",
    "1002:74a0": "AMD Instinct MI300A",
    "1002:74a1": "AMD Instinct MI300X",
    "1002:74a5": "AMD Instinct MI325X",
    "1002:74b5": "AMD Instinct MI300X VF",
    "1002:75a0": "AMD Instinct MI350X",
    "1002:75a3": "AMD Instinct MI355X",
    "8086:0bd5": "Intel Data Center GPU Max 1550",
    "8086:0bda": "Intel Data Center GPU Max 1100",
    "8086:56a0": "Intel Arc A770",
    "8086:56a1": "Intel Arc A750",
    "8086:56a2": "Intel Arc A580",
    "8086:56a5": "Intel Arc A380",
    "8086:56a6": "Intel Arc A310",
    "8086:56c0": "Intel Data Center GPU Flex 170",
    "8086:56c1": "Intel Data Center GPU Flex 140",
    "8086:e20b": "Intel Arc B580",
    "8086:e20c": "Intel Arc B570",
}


class Card(Struct, frozen=True):
    """A GPU in sysfs. `folder` is that of its card, `device` that of its PCI device, `sensors` that of its hwmon.
    `channels` are its sensors' files by kind and label (`temp:edge`) or number (`temp1`). `memory_bytes` is known here
    only where no file has it later."""

    uuid: str
    name: str
    vendor: Literal["amd", "intel"]
    driver: str
    address: str
    folder: str
    device: str
    sensors: str | None
    channels: dict[str, str]
    nodes: tuple[str, ...] = ()
    is_known_model: bool = False
    memory_bytes: int | None = None


def find_cards(root: Path, machine: str) -> list[Card]:
    """The cards to be listed, by PCI address. `machine` makes the UUIDs of cards without one unique."""
    folder = f"{root}/sys/class/drm"
    names = [name for name in list_names(folder) if _CARD.fullmatch(name)]
    found = [_find_card(root, f"{folder}/{name}", machine) for name in names]
    cards = sorted((card for card in found if card and not _is_integrated(card)), key=lambda card: card.address)
    return list(_make_unique(cards))


def _make_unique(cards: Iterable[Card]) -> Iterator[Card]:
    """Two chips of one board may have the same number; each card is listed once, whatever it links to."""
    uuids: set[str] = set()
    addresses: set[str] = set()
    for card in cards:
        if card.address in addresses:
            continue
        uuid = f"{card.uuid}-{card.address}" if card.uuid in uuids else card.uuid
        uuids.add(uuid)
        addresses.add(card.address)
        yield msgspec.structs.replace(card, uuid=uuid)


def _find_card(root: Path, folder: str, machine: str) -> Card | None:
    device = f"{folder}/device"
    vendor = _VENDORS.get(read_word(f"{device}/vendor"))
    driver, address = _link_name(f"{device}/driver"), _find_address(device)
    if vendor is None or driver not in _DRIVERS or address is None:
        return None
    pci_id = f"{read_word(f'{device}/vendor')}:{read_word(f'{device}/device')}".replace("0x", "")
    sensors = _find_sensors(device, driver)
    return Card(
        uuid=_find_uuid(device, address, machine),
        name=_find_name(device, vendor, pci_id),
        vendor=vendor,
        driver=driver,
        address=address,
        folder=folder,
        device=device,
        sensors=sensors,
        channels=_find_channels(sensors) if sensors else {},
        nodes=tuple(name for name in list_names(f"{device}/drm") if _NODE.fullmatch(name)),
        is_known_model=pci_id in _MODELS,
        memory_bytes=_find_memory(root, folder, address) if vendor == "intel" else None,
    )


def _is_integrated(card: Card) -> bool:
    if card.vendor == "intel":
        return card.sensors is None and not card.is_known_model
    if card.sensors is None or read_word(f"{card.sensors}/in1_label") != "vddnb":
        return False
    try:
        return read_number(f"{card.device}/mem_info_vram_total") <= _MAX_INTEGRATED_BYTES
    except (OSError, ValueError):
        return True


def _find_address(device: str) -> str | None:
    """The PCI address from the name of the device's folder, which /sys/class/drm links to; else as `uevent` says."""
    name = _link_name(device)
    if not _ADDRESS.fullmatch(name):
        name = read_word(f"{device}/uevent").partition("PCI_SLOT_NAME=")[2][:16].split(" ")[0]
    return name if _ADDRESS.fullmatch(name) else None


def _find_uuid(device: str, address: str, machine: str) -> str:
    """`GPU-` and the chip's own number, as ROCm writes it; else one that is stable while the card stays in its slot."""
    number = read_word(f"{device}/unique_id").lower()
    if re.fullmatch(r"[0-9a-f]{1,16}", number) and int(number, 16):
        return f"GPU-{number:0>16}"
    return "-".join(part for part in ("PCI", machine[:12], address) if part)


def _find_name(device: str, vendor: str, pci_id: str) -> str:
    name = read_word(f"{device}/product_name")[:200]
    if name:
        return name if name.upper().startswith("AMD") else f"AMD {name}"
    return _MODELS.get(pci_id) or f"{'AMD' if vendor == 'amd' else 'Intel'} GPU {pci_id}"


def _find_sensors(device: str, driver: str) -> str | None:
    for name in list_names(f"{device}/hwmon"):
        # xe and i915 have a second hwmon for each graphics tile (`i915_gt0`), which holds energy alone.
        if read_word(f"{device}/hwmon/{name}/name") == driver:
            return f"{device}/hwmon/{name}"
    return None


def _find_channels(sensors: str) -> dict[str, str]:
    channels: dict[str, str] = {}
    for name in list_names(sensors):
        if channel := _CHANNEL.fullmatch(name):
            label = read_word(f"{sensors}/{channel[1]}_label")
            channels[f"{channel[1].rstrip('0123456789')}:{label}" if label else channel[1]] = f"{sensors}/{name}"
    return channels


def _find_memory(root: Path, folder: str, address: str) -> int | None:
    """Intel's own i915 has `lmem_total_bytes`, xe of Linux 6.14 `dmem.capacity`. Others have no file with the size."""
    try:
        return read_number(f"{folder}/lmem_total_bytes")
    except (OSError, ValueError):
        return _read_capacity(f"{root}/sys/fs/cgroup/dmem.capacity", address)


def _read_capacity(path: str, address: str) -> int | None:
    """The sum of a card's regions; lines are `drm/0000:03:00.0/vram0 12216958976`."""
    try:
        lines = [line.split() for line in read_text(path).splitlines()]
        return sum(int(size) for region, size in lines if region.startswith(f"drm/{address}/vram")) or None
    except (OSError, ValueError):
        return None


def _link_name(path: str) -> str:
    return read_link(path).rpartition("/")[2]


ASLEEP = "the GPU is asleep, and reading it would wake it"
_NO_LIMIT = "no power limit is set"
_NO_NVLINK = "there are no NVLinks on this GPU"
_NO_LINK = "the PCIe link is read of NVIDIA GPUs only"
_NO_MARGIN = "the distance to the slowdown temperature is read of NVIDIA GPUs only"
_PERCENT_OF_PWM = 100 / 255

Read = Callable[[Card], float]


def measure(card: Card) -> Measured:
    """Every metric of the catalog, known or unknown. One file that fails leaves the others alone; nothing is raised."""
    measured = Measured({}, dict.fromkeys(GPU_METRICS, UNSUPPORTED) | _REASONS | _VENDOR_REASONS[card.vendor])
    if read_word(f"{card.device}/power/runtime_status") == "suspended":
        measured.unknown.update(dict.fromkeys(GPU_METRICS, ASLEEP))
        return measured
    for name, read in (_AMD if card.vendor == "amd" else _INTEL).items():
        try:
            measured.take(name, read(card))
        except (OSError, ValueError) as error:
            measured.unknown[name] = explain(error)
    return measured


def _file(name: str) -> Read:
    return lambda card: read_number(f"{card.device}/{name}")


def _channel(*names: str, scale: float) -> Read:
    """The first of the sensors that the card has; amdgpu names some that a generation lacks."""

    def read(card: Card) -> float:
        path = next((card.channels[name] for name in names if name in card.channels), None)
        if path is None:
            raise ValueError(UNSUPPORTED)
        return read_number(path) * scale

    return read


def _sensor(*names: str, scale: float) -> Read:
    """The first of the files that can be read. Zero counts as no answer, so no figure that may be zero is read so."""

    def read(card: Card) -> float:
        failure: Exception = ValueError(UNSUPPORTED)
        for name in names if card.sensors else ():
            try:
                if value := read_number(f"{card.sensors}/{name}"):
                    return value * scale
                failure = ValueError(_NO_LIMIT if "max" in name or "cap" in name else NO_VALUE)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                failure = error
        raise failure

    return read


def _read_total(card: Card) -> float:
    total = read_number(f"{card.device}/mem_info_vram_total")
    if not total:
        raise ValueError(NO_VALUE)
    return total


def _read_fan(card: Card) -> float:
    if card.sensors is None:
        raise ValueError(UNSUPPORTED)
    return read_number(f"{card.sensors}/pwm1") * _PERCENT_OF_PWM


def _error_count(kind: str) -> Read:
    """Errors of the memory controller since the driver was loaded; lines are `ue: 0` and `ce: 0`."""

    def read(card: Card) -> float:
        lines = (line.partition(":") for line in read_text(f"{card.device}/ras/umc_err_count").splitlines())
        counts = {name.strip(): count.strip() for name, _, count in lines}
        if not counts.get(kind, "").isdecimal():
            raise ValueError(NO_VALUE)
        return int(counts[kind])

    return read


def _read_intel_total(card: Card) -> float:
    if card.memory_bytes is None:
        raise ValueError(f"{card.driver} reports the size of the memory in no file")
    return card.memory_bytes


def _read_intel_clock(card: Card) -> float:
    path = f"{card.device}/tile0/gt0/freq0/act_freq" if card.driver == "xe" else f"{card.folder}/gt_act_freq_mhz"
    return read_number(path)


def _slowed_by(*causes: str) -> Read:
    """1 where any of the causes holds. A cause that the card does not know has no file."""

    def read(card: Card) -> float:
        xe, i915 = f"{card.device}/tile0/gt0/freq0/throttle/reason_", f"{card.folder}/gt/gt0/throttle_reason_"
        flags = []
        for cause in causes:
            try:
                flags.append(read_number(f"{xe if card.driver == 'xe' else i915}{cause}"))
            except FileNotFoundError:
                continue
        if not flags:
            raise ValueError(UNSUPPORTED)
        return float(any(flags))

    return read


read_energy = _channel("energy:card", "energy1", "energy:pkg", "energy2", scale=1e-6)
"""Joules that an Intel card took since its driver was loaded, finer than the metric is. Raises OSError, ValueError."""

_AMD: dict[str, Read] = {
    "utilization_percent": _file("gpu_busy_percent"),
    "memory_utilization_percent": _file("mem_busy_percent"),
    "memory_used_bytes": _file("mem_info_vram_used"),
    "memory_total_bytes": _read_total,
    # An MI300X has no edge sensor: its hottest spot is all it reports.
    "temperature_celsius": _channel("temp:edge", "temp:junction", scale=1e-3),
    "memory_temperature_celsius": _channel("temp:mem", scale=1e-3),
    # From Linux 6.4 on `input` is the power now; chips tell the average, the power now, or both (MI300X: now).
    "power_watts": _sensor("power1_average", "power1_input", scale=1e-6),
    "power_limit_watts": _sensor("power1_cap", scale=1e-6),
    "fan_percent": _read_fan,
    "clock_sm_mhz": _channel("freq:sclk", scale=1e-6),
    "clock_memory_mhz": _channel("freq:mclk", scale=1e-6),
    "ecc_corrected_count": _error_count("ce"),
    "ecc_uncorrected_count": _error_count("ue"),
}
_INTEL: dict[str, Read] = {
    "memory_total_bytes": _read_intel_total,
    # xe counts card (1), package (2), memory (3); i915 has the package alone, as 1, from Linux 6.13 on.
    "temperature_celsius": _channel("temp:pkg", "temp2", "temp1", scale=1e-3),
    "memory_temperature_celsius": _channel("temp:vram", "temp3", scale=1e-3),
    # `cap` is the limit for bursts here; what holds over seconds is `max`, of the card or else of the package.
    "power_limit_watts": _sensor("power1_max", "power2_max", "power1_rated_max", "power2_rated_max", scale=1e-6),
    "energy_joules": read_energy,
    "clock_sm_mhz": _read_intel_clock,
    "throttled_power": _slowed_by("pl1", "pl2"),
    "throttled_thermal": _slowed_by("thermal", "ratl"),
    "throttled_hardware": _slowed_by("pl4", "prochot", "vr_thermalert", "vr_tdc"),
}
_REASONS = {
    **dict.fromkeys(("nvlink_active_count", "nvlink_inactive_count"), _NO_NVLINK),
    **dict.fromkeys(("nvlink_error_count", "nvlink_error_link"), _NO_NVLINK),
    **dict.fromkeys(("pcie_generation", "pcie_generation_max", "pcie_width", "pcie_width_max"), _NO_LINK),
    "temperature_margin_celsius": _NO_MARGIN,
    "performance_state": "the driver knows no performance states",
    "remapped_rows_count": "the driver replaces no memory rows",
    "remapped_rows_pending": "the driver replaces no memory rows",
}
_VENDOR_REASONS: dict[str, dict[str, str]] = {
    "amd": {
        "pcie_receive_bytes_per_second": "amdgpu needs a second to measure it",
        "pcie_transmit_bytes_per_second": "amdgpu needs a second to measure it",
        "encoder_percent": "amdgpu does not distinguish encoding from decoding",
        "decoder_percent": "amdgpu does not distinguish encoding from decoding",
        **dict.fromkeys(TABLE_METRICS, NOT_IN_TABLE),
    },
    "intel": {
        "encoder_percent": "the driver does not distinguish encoding from decoding",
        "decoder_percent": "the driver does not distinguish encoding from decoding",
        "fan_percent": "the driver reports revolutions, not percent",
        "clock_memory_mhz": "the driver reports only the clock of the chip",
    },
}
AMD_REASONS = {name: UNSUPPORTED for name in GPU_METRICS if name not in _AMD} | _REASONS | _VENDOR_REASONS["amd"]
"""Why an AMD card has no value for these metrics."""
