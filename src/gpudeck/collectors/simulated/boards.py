"""What a GPU is like whatever runs on it: the values that stay, those it cannot tell, and how its memory wears."""

from gpudeck.collectors.simulated import reasons
from gpudeck.collectors.simulated.inventory import Slot
from gpudeck.model.report import Number

_MIB = 1 << 20
_DAY = 86_400
_PCIE = ("pcie_receive_bytes_per_second", "pcie_transmit_bytes_per_second")
_ERRORS = ("ecc_corrected_count", "ecc_uncorrected_count")
_ROWS = ("remapped_rows_count", "remapped_rows_pending")
_LINKS = ("nvlink_active_count", "nvlink_inactive_count")
_OF_INSTANCE = ("memory_used_bytes", "memory_total_bytes")
_OF_BOARD = ("encoder_percent", "decoder_percent", "power_watts", "power_limit_watts", "energy_joules")


def settled(slot: Slot) -> dict[str, Number]:
    """The metrics that never change, or only where its memory wears. A MIG instance has the board's flags."""
    features = slot.model.features
    values: dict[str, Number] = {"memory_total_bytes": slot.memory_mib * _MIB}
    if slot.parent is not None:
        return values | dict.fromkeys(("throttled_thermal", "throttled_hardware", "remapped_rows_pending"), 0)
    values["power_limit_watts"] = slot.model.limit_watts
    if features.has_ecc:
        values |= dict.fromkeys(_ERRORS, 0)
    if features.remaps_rows:
        values |= dict(zip(_ROWS, _remapped_rows(slot), strict=True))
    if features.links:
        down = int(slot.fault == "unlinked")
        values |= dict(zip(_LINKS, (features.links - down, down), strict=True))
    return values


def unknowns(slot: Slot) -> dict[str, str]:
    """The metrics that this GPU or MIG instance never tells, with the reasons."""
    if slot.model.vendor == "amd":
        return reasons.AMD.copy()
    features = slot.model.features
    lacking = {
        ("fan_percent",): not features.fan,
        ("memory_temperature_celsius",): features.memory_warmth is None,
        _ERRORS: not features.has_ecc,
        _ROWS: not features.remaps_rows,
        _LINKS: not features.links,
        ("utilization_percent", "memory_utilization_percent"): slot.parent is not None,
    }
    unknown = {name: reasons.UNSUPPORTED for names, is_lacking in lacking.items() if is_lacking for name in names}
    if slot.parent is not None:
        unknown |= dict.fromkeys((*_OF_BOARD, *_ERRORS, _ROWS[0], *_LINKS), reasons.WHOLE_BOARD)
    return unknown | dict.fromkeys(_PCIE, reasons.NOT_ASKED_FOR)


def wears(slot: Slot) -> bool:
    """Whether its memory makes errors now and then."""
    return slot.model.features.has_ecc and slot.parent is None and (slot.fault == "worn" or slot.salt % 13 == 0)


def errors(slot: Slot, uptime_s: float) -> dict[str, Number]:
    """How many errors of its memory were counted since the host booted."""
    days = uptime_s / _DAY
    counts = (5 + 31 * days, 1 + days / 9) if slot.fault == "worn" else (0.4 * days, 0)
    return dict(zip(_ERRORS, map(int, counts), strict=True))


def _remapped_rows(slot: Slot) -> tuple[int, int]:
    """Rows replaced in its whole life, and whether one more waits for a reset."""
    if slot.fault == "worn":
        return 3 + slot.salt % 4, 1
    return int(slot.salt % 29 == 0), 0
