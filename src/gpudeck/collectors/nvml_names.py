"""What NVIDIA's driver calls a device: its UUID, its name, its PCI slot.

A sick board may give no text, an empty one, or bytes that are none. That is no reason to lose the board, let alone its
neighbours: only without a UUID nothing can be said of it.
"""

from collections.abc import Callable
from typing import Any

from gpudeck.collectors.nvml_errors import FATAL, NO_DATA
from gpudeck.collectors.redaction import clean

_LENGTH = 128
_UNNAMED = "NVIDIA GPU"


def _read_text(read: Callable[[], str]) -> str:
    """What `read` gives, fit for a screen; empty where it is no text. Raises what NVML raises."""
    try:
        return clean(read() or "").strip()[:_LENGTH]
    except UnicodeDecodeError:
        return ""


def read_driver_version(nvml: Any) -> str | None:
    """None where it is not told. Raises NVMLError where nothing can be read at all."""
    return _read_if_told(nvml, nvml.nvmlSystemGetDriverVersion) or None


def read_uuid(nvml: Any, handle: Any) -> str:
    """Raises NVMLError also where the driver gives something that is no UUID."""
    uuid = _read_text(lambda: nvml.nvmlDeviceGetUUID(handle))
    if not uuid:
        raise nvml.NVMLError(NO_DATA)
    return uuid


def read_name(nvml: Any, handle: Any) -> str:
    """The model, or some word for it. Raises NVMLError where nothing of the device can be read."""
    return _read_if_told(nvml, lambda: nvml.nvmlDeviceGetName(handle)) or _UNNAMED


def read_pci_address(nvml: Any, handle: Any) -> str | None:
    """As the kernel writes it (0000:18:00.0): NVML gives the domain eight digits. Raises as `read_name` does."""
    written = _read_if_told(nvml, lambda: nvml.nvmlDeviceGetPciInfo(handle).busId).lower()
    return (written[4:] if len(written) == len("00000000:18:00.0") else written) or None


def _read_if_told(nvml: Any, read: Callable[[], str]) -> str:
    try:
        return _read_text(read)
    except nvml.NVMLError as error:
        if error.value in FATAL:
            raise
        return ""
