"""How a program is told which GPUs are its own: by UUID, since a number means another GPU to each library."""

from collections.abc import Sequence
from typing import Protocol

from gpudeck.model.errors import UsageError

_VARIABLES = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "ROCR_VISIBLE_DEVICES"}
_NAMED = ("GPU-", "MIG-")


class Device(Protocol):
    """A GPU with its UUID, its maker, and where it is."""

    @property
    def uuid(self) -> str: ...
    @property
    def vendor(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def label(self) -> str: ...


def visible_devices(gpus: Sequence[Device]) -> tuple[str, str]:
    """The environment variable and its value. Raises UsageError for GPUs that no variable can name by UUID."""
    vendors = {gpu.vendor for gpu in gpus}
    if len(vendors) > 1:
        raise UsageError(
            f"these GPUs are of several makers ({', '.join(sorted(vendors))}): no variable names them all."
        )
    for gpu in gpus:
        if gpu.vendor not in _VARIABLES or not gpu.uuid.startswith(_NAMED):
            raise UsageError(f"GPU {gpu.label} of {gpu.host} has no UUID that a program can be given.")
    return _VARIABLES[gpus[0].vendor], ",".join(gpu.uuid for gpu in gpus)
