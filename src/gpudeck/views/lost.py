"""What is left of a fleet when its hub is out of reach: the last values, and no claim about now."""

from gpudeck.views.choice import count
from gpudeck.views.filter import Json


def forget_states(fleet: Json, reason: str) -> Json:
    """The fleet with every GPU unknown for this reason: stale is never free. Hosts that were up are late."""
    hosts = [_host(host, reason) for host in fleet["hosts"]]
    return {**fleet, "hosts": hosts, "totals": count(hosts)}


def _host(host: Json, reason: str) -> Json:
    status = "late" if host["status"] == "up" else host["status"]
    return {**host, "status": status, "gpus": [_gpu(gpu, reason) for gpu in host["gpus"]]}


def _gpu(gpu: Json, reason: str) -> Json:
    state = gpu["availability"]
    last = gpu["last_seen"] if state == "unknown" else state
    return {**gpu, "availability": "unknown", "availability_reason": reason, "last_seen": last}
