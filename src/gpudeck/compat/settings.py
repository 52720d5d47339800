"""What an operator decides about the monitors that came before. All of it is off until it is named here."""

from msgspec import Struct

from gpudeck.compat.gpu_cluster_status.settings import GpuClusterStatusSettings
from gpudeck.compat.gpu_monitor.settings import GpuMonitorSettings
from gpudeck.compat.gpumonitor.settings import GpumonitorSettings
from gpudeck.compat.vesta.settings import VestaSettings


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
