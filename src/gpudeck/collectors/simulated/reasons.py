"""Why a simulated value is unknown: word for word what the collectors of real machines say."""

UNSUPPORTED = "not supported by this GPU"
WHOLE_BOARD = "measured on the whole board, not by MIG instance"
UNDER_MIG = "not measured by process on a GPU in MIG mode"
NOT_ASKED_FOR = "read only when asked for: it takes 40 ms a GPU"

_IN_TABLE = "amdgpu tells it only in a binary table whose layout differs between its generations"
_NO_ROWS = "the driver replaces no memory rows"
_NO_LINKS = "there are no NVLinks on this GPU"
_ONE_ENGINE = "amdgpu does not tell encoding from decoding"
_SLOW = "amdgpu needs a second to measure it"

AMD: dict[str, str] = {
    "fan_percent": "not supported by this GPU or its driver",
    "encoder_percent": _ONE_ENGINE,
    "decoder_percent": _ONE_ENGINE,
    "performance_state": "the driver knows no performance states",
    "throttled_power": _IN_TABLE,
    "throttled_thermal": _IN_TABLE,
    "throttled_hardware": _IN_TABLE,
    "remapped_rows_count": _NO_ROWS,
    "remapped_rows_pending": _NO_ROWS,
    "nvlink_active_count": _NO_LINKS,
    "nvlink_inactive_count": _NO_LINKS,
    "energy_joules": _IN_TABLE,
    "pcie_receive_bytes_per_second": _SLOW,
    "pcie_transmit_bytes_per_second": _SLOW,
}
"""What no file of amdgpu tells of a board for servers."""
