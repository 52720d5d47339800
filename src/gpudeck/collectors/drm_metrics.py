"""What the files of one AMD or Intel card say: its metrics, or why they are unknown.

Two tables name the file behind every metric; what is in neither is unknown with the reason that is given here. Three
figures of Intel cards have no file: `drm` makes them from those of the processes and from two readings of the energy.

Never read: `pcie_bw` of amdgpu, which takes a second to answer, and `gpu_metrics`, whose binary layout changes with
the generation.
"""

from collections.abc import Callable

from gpudeck.collectors.base import NO_VALUE, Measured
from gpudeck.collectors.drm_cards import Card
from gpudeck.collectors.sysfs import UNSUPPORTED, explain, read_number, read_text, read_word
from gpudeck.model.catalog import GPU_METRICS

ASLEEP = "the GPU is asleep, and reading it would wake it"
_NO_LIMIT = "no power limit is set"
_NVIDIA_ONLY = "there are no NVLinks on this GPU"
_IN_TABLE = "amdgpu reports it only in a binary table whose layout differs between its generations"
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
    "nvlink_active_count": _NVIDIA_ONLY,
    "nvlink_inactive_count": _NVIDIA_ONLY,
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
        "energy_joules": _IN_TABLE,
        "throttled_power": _IN_TABLE,
        "throttled_thermal": _IN_TABLE,
        "throttled_hardware": _IN_TABLE,
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
