"""The links of one NVIDIA board through NVML: the state of its PCIe link, and the errors of its NVLinks.

Read with the slow readings. Their cost on a real card has not been measured; the errors of all NVLinks take one call.
"""

from collections import Counter
from typing import Any

from gpudeck.collectors.nvml_device import (
    ARGUMENT_VERSION_MISMATCH,
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    NvmlReading,
    Values,
    count_links,
    read_field,
)

_NO_MARGIN = frozenset({FUNCTION_NOT_FOUND, NOT_SUPPORTED, INVALID_ARGUMENT, ARGUMENT_VERSION_MISMATCH})
_UNSIGNED_INT = 1  # NVML_VALUE_TYPE_UNSIGNED_INT; what is not one is 64 bits wide


def _read_nvlink_errors(nvml: Any, gpu: Any) -> Values:
    """Replays and recoveries of all links, and the link with the most. From Blackwell on the driver counts recoveries
    only; before Hopper some count no single links."""
    kinds = (
        nvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
        nvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
        nvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS,
    )
    asked = [(kind, link) for link in range(count_links(nvml, gpu)) for kind in kinds]
    errors: Counter[int] = Counter()
    for answer in nvml.nvmlDeviceGetFieldValues(gpu, asked) if asked else ():
        if not answer.nvmlReturn:
            value = answer.value
            errors[answer.scopeId] += value.uiVal if answer.valueType == _UNSIGNED_INT else value.ullVal
    if not errors:
        totals = (nvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, nvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL)
        return sum(read_field(nvml, gpu, total) for total in totals), None
    ((worst, most),) = errors.most_common(1)
    return sum(errors.values()), worst if most else None


def _read_margin(nvml: Any, gpu: Any) -> Values:
    """Degrees until the driver slows the GPU down. Drivers and cards without it have the threshold."""
    try:
        return (nvml.nvmlDeviceGetMarginTemperature(gpu),)
    except nvml.NVMLError as error:
        if error.value not in _NO_MARGIN:
            raise
    limit = nvml.nvmlDeviceGetTemperatureThreshold(gpu, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
    return (limit - nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU) if limit else None,)


LINK_READINGS = (
    NvmlReading(("pcie_generation",), lambda nvml, gpu: (nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu),)),
    NvmlReading(("pcie_generation_max",), lambda nvml, gpu: (nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu),)),
    NvmlReading(("pcie_width",), lambda nvml, gpu: (nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu),)),
    NvmlReading(("pcie_width_max",), lambda nvml, gpu: (nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu),)),
    NvmlReading(("nvlink_error_count", "nvlink_error_link"), _read_nvlink_errors),
    NvmlReading(("temperature_margin_celsius",), _read_margin),
)
"""What shows a fault before it stops work. The best that NVML says of PCIe is that of card and slot together."""
