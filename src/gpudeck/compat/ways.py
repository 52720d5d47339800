"""How hosts of the monitors that came before are read, and where they are found. What one needs is imported only where
hosts use it."""

from collections.abc import Callable

from gpudeck.compat.gpu_cluster_status.nodes import Nodes
from gpudeck.compat.gpu_cluster_status.settings import GpuClusterStatusSettings
from gpudeck.compat.gpu_monitor.settings import GpuMonitorSettings
from gpudeck.compat.gpumonitor.settings import GpumonitorSettings
from gpudeck.compat.settings import NO_NODE_WORD, CompatSettings
from gpudeck.discovery.base import Provider
from gpudeck.model.errors import UsageError
from gpudeck.model.target import Target
from gpudeck.sources.base import Source
from gpudeck.sources.poller import Way


def make_ways(settings: CompatSettings, nodes: Nodes | None = None) -> dict[str, Way]:
    """A host that is named `via` one of them is the decision to read it: a tool that has no settings has its usual
    ones. What nodes of GPU Cluster Status Monitor tell of themselves is put into `nodes`."""
    node = settings.gpumonitor or GpumonitorSettings()
    files = settings.gpu_monitor or GpuMonitorSettings()
    status = settings.gpu_cluster_status or GpuClusterStatusSettings(password="")
    return {
        "gpu-cluster-status": Way(
            _gpu_cluster_status(settings.gpu_cluster_status, {} if nodes is None else nodes),
            status.interval,
            status.deadline,
        ),
        "gpumonitor": Way(_gpumonitor(node), node.interval, node.deadline),
        "gpu-monitor": Way(_gpu_monitor(files, "ServedSource"), files.interval, files.deadline),
        "gpu-monitor-files": Way(_gpu_monitor(files, "FolderSource"), files.interval, files.deadline),
    }


def make_providers(settings: CompatSettings) -> list[Provider]:
    """The lists of hosts that these monitors keep. Opens nothing."""
    if settings.gpu_monitor is None:
        return []
    from gpudeck.compat.gpu_monitor.discovery import make_providers as make  # noqa: PLC0415 - see above

    return make(settings.gpu_monitor)


def find_ports(settings: CompatSettings) -> dict[str, int]:
    """Where a host of each way listens, where it does not say so itself; one that is read out of files does nowhere."""
    node = settings.gpumonitor or GpumonitorSettings()
    files = settings.gpu_monitor or GpuMonitorSettings()
    status = settings.gpu_cluster_status or GpuClusterStatusSettings(password="")
    return {"gpu-cluster-status": status.port, "gpumonitor": node.port, "gpu-monitor": files.port}


def names_hosts(settings: CompatSettings) -> bool:
    """Whether hosts are found there."""
    files = settings.gpu_monitor
    return files is not None and (files.folder is not None or files.consul is not None)


def _gpu_cluster_status(settings: GpuClusterStatusSettings | None, nodes: Nodes) -> Callable[[Target], Source]:
    def make(target: Target) -> Source:
        from gpudeck.compat.gpu_cluster_status.poll import NodeSource  # noqa: PLC0415 - see above

        if settings is None:
            raise UsageError(f"{NO_NODE_WORD}.")
        return NodeSource(target, settings, nodes)

    return make


def _gpumonitor(settings: GpumonitorSettings) -> Callable[[Target], Source]:
    def make(target: Target) -> Source:
        from gpudeck.compat.gpumonitor.source import GpumonitorSource  # noqa: PLC0415 - see above

        return GpumonitorSource(target, settings)

    return make


def _gpu_monitor(settings: GpuMonitorSettings, kind: str) -> Callable[[Target], Source]:
    def make(target: Target) -> Source:
        from gpudeck.compat.gpu_monitor import source  # noqa: PLC0415 - see above

        made: Source = getattr(source, kind)(target, settings)
        return made

    return make
