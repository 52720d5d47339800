"""How hosts of the monitors that came before are read, and where they are found. A source's module is imported when the
first host needs it."""

from gpudeck.compat.readings import Nodes
from gpudeck.compat.settings import (
    NODES_NOT_READABLE,
    CompatSettings,
    GpuClusterStatusSettings,
    GpuMonitorSettings,
    GpumonitorSettings,
)
from gpudeck.discovery.inputs import Provider
from gpudeck.model.errors import UsageError
from gpudeck.model.target import Target
from gpudeck.sources.base import Source
from gpudeck.sources.poller import PollMethod
from gpudeck.sources.registry import imported


def make_poll_methods(settings: CompatSettings, nodes: Nodes | None = None) -> dict[str, PollMethod]:
    """A host that is named `via` one of them is read also where the monitor has no settings: with the defaults. What
    nodes of GPU Cluster Status Monitor say of themselves is put into `nodes`."""
    facts: Nodes = {} if nodes is None else nodes
    status = settings.gpu_cluster_status or GpuClusterStatusSettings(password="")
    node, files = settings.gpumonitor or GpumonitorSettings(), settings.gpu_monitor or GpuMonitorSettings()

    def make_gpu_cluster_status(target: Target) -> Source:
        if settings.gpu_cluster_status is None:
            raise UsageError(f"{NODES_NOT_READABLE}.")
        return imported("gpudeck.compat.gpu_cluster_status:NodeSource", status, facts)(target)

    served = imported("gpudeck.compat.gpu_monitor:ServedSource", files)
    folder = imported("gpudeck.compat.gpu_monitor:FolderSource", files)
    asked = imported("gpudeck.compat.gpumonitor:GpumonitorSource", node)
    return {
        "gpu-cluster-status": PollMethod(make_gpu_cluster_status, status.interval, status.deadline, status.port),
        "gpumonitor": PollMethod(asked, node.interval, node.deadline, node.port),
        "gpu-monitor": PollMethod(served, files.interval, files.deadline, files.port),
        "gpu-monitor-files": PollMethod(folder, files.interval, files.deadline),
    }


def make_providers(settings: CompatSettings) -> list[Provider]:
    """The lists of hosts that these monitors keep. Opens nothing."""
    if settings.gpu_monitor is None:
        return []
    from gpudeck.compat.gpu_monitor import make_providers as make  # noqa: PLC0415 - see above

    return make(settings.gpu_monitor)


def names_hosts(settings: CompatSettings) -> bool:
    files = settings.gpu_monitor
    return files is not None and (files.folder is not None or files.consul is not None)
