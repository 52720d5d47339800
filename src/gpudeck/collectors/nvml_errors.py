"""NVML's return codes, and what they mean to whoever looks at a GPU."""

from typing import Any

# Return codes of nvml.h, which never change their meaning.
SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 0, 1, 2, 3, 4, 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED = 9, 12, 13, 15, 16
LIB_RM_VERSION_MISMATCH, NO_DATA, ARGUMENT_VERSION_MISMATCH, NOT_READY, GPU_NOT_FOUND = 18, 21, 25, 27, 28

RELOADED = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH})
"""Nothing can be read before the driver is opened again."""
FATAL = RELOADED | {GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND}
"""Nothing can be read of the device that said so."""
NO_SUCH_INSTANCE = frozenset({NOT_FOUND, INVALID_ARGUMENT})
"""Of a MIG instance: there is none, or none any more."""

UNSUPPORTED = "not supported by this GPU"
TOO_OLD = "the driver is too old to tell"
NO_VALUE = "the driver gives no value"
LASTING = frozenset({UNSUPPORTED, TOO_OLD})
"""Reasons that another question a second later does not change."""
_REASONS = {
    NOT_SUPPORTED: UNSUPPORTED,
    NO_DATA: NO_VALUE,
    NOT_READY: NO_VALUE,
    NO_PERMISSION: "not permitted to read it",
    FUNCTION_NOT_FOUND: TOO_OLD,
    GPU_IS_LOST: "the GPU is lost: it fell off the bus or stopped answering",
    GPU_NOT_FOUND: "the driver no longer finds the GPU",
    RESET_REQUIRED: "the GPU needs a reset",
}


def explain(error: Any) -> str:
    """Why NVML gave nothing, in words."""
    return _REASONS.get(error.value) or f"NVML says: {error}"


def call_newest(nvml: Any, names: tuple[str, ...], handle: Any) -> Any:
    """What the first of these functions says that the driver has; raises what it raises."""
    for name in names[:-1]:
        try:
            return getattr(nvml, name)(handle)
        except nvml.NVMLError as error:
            if error.value != FUNCTION_NOT_FOUND:
                raise
    return getattr(nvml, names[-1])(handle)
