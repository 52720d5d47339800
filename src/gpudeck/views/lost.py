"""What is left of a fleet when its hub is out of reach: the last values, and no claim about now."""

from msgspec.structs import replace

from gpudeck.model.view import Fleet, Gpu, Host, HostStatus
from gpudeck.views.choice import count


def forget_states(fleet: Fleet, reason: str) -> Fleet:
    """The fleet with every GPU unknown for this reason: stale is never free. Hosts that were up are late."""
    hosts = [_host(host, reason) for host in fleet.hosts]
    return replace(fleet, hosts=hosts, totals=count(hosts))


def _host(host: Host, reason: str) -> Host:
    status: HostStatus = "late" if host.status == "up" else host.status
    return replace(host, status=status, gpus=[_gpu(gpu, reason) for gpu in host.gpus])


def _gpu(gpu: Gpu, reason: str) -> Gpu:
    state = gpu.availability
    last = gpu.last_seen if state == "unknown" else state
    return replace(gpu, availability="unknown", availability_reason=reason, last_seen=last)
