"""What an operator decides about the monitors that came before. All of it is off until it is named here."""

from collections.abc import Collection

from msgspec import Struct

from gpudeck.compat.gpu_cluster_status.settings import GpuClusterStatusSettings
from gpudeck.compat.gpu_monitor.settings import GpuMonitorSettings
from gpudeck.compat.gpumonitor.settings import GpumonitorSettings
from gpudeck.compat.vesta.settings import VestaSettings

NO_NODE_WORD = (
    "hosts or discovery name nodes via gpu-cluster-status, and nothing says with which password; add the line "
    '`compat: {gpu_cluster_status: {password: "…"}}`'
)


class CompatSettings(Struct, frozen=True):
    """The monitors whose clients, nodes and files this hub takes. Nothing of one is served that is not named here."""

    vesta: VestaSettings | None = None
    """Senders and readers of vesta."""
    gpu_cluster_status: GpuClusterStatusSettings | None = None
    """Nodes and readers of GPU Cluster Status Monitor."""
    gpumonitor: GpumonitorSettings | None = None
    """Nodes of gpumonitor, which answer over XML-RPC."""
    gpu_monitor: GpuMonitorSettings | None = None
    """Files of gpu-monitor's scripts."""


def compat_problem(ways: Collection[str], settings: CompatSettings) -> str | None:
    """Why hosts that are named via these ways could not be read; None where they can."""
    return NO_NODE_WORD if "gpu-cluster-status" in ways and settings.gpu_cluster_status is None else None
