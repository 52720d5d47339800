"""The fleet as top holds it: the hub's own objects, changed in place by the events of its stream."""

from typing import Any

from gpudeck.views.filter import Json
from gpudeck.views.people import natural


class LiveFleet:
    """`hosts` stand in the order of their names, gpu2 before gpu10. Empty until the first snapshot."""

    def __init__(self) -> None:
        self.demo = False
        self.time = 0.0
        self.totals: Json = {}
        self.problems: list[str] = []
        self.hosts: list[Json] = []
        self._by_id: dict[str, dict[str, Any]] = {}
        self._gpus: dict[str, dict[str, dict[str, Any]]] = {}

    def load(self, snapshot: Json) -> None:
        """Take a snapshot, which replaces everything."""
        self._by_id, self._gpus = {}, {}
        for host in snapshot["hosts"]:
            self._put(host)
        self.demo, self.problems = snapshot["demo"], snapshot["problems"]
        self._rank()
        self._beat(snapshot)

    def apply(self, delta: Json) -> None:
        """Take what changed. It holds values, not differences: taken twice it does no harm."""
        for host_id in delta.get("removed", ()):
            self._by_id.pop(host_id, None)
        for host in delta.get("hosts", ()):
            self._put(host)
        for change in delta.get("changes", ()):
            self._change(change)
        if "hosts" in delta or "removed" in delta:
            self._rank()
        self.problems = delta.get("problems", self.problems)
        self._beat(delta)

    def view(self) -> dict[str, Any]:
        """As the views want it (see model.view.Fleet); its hosts are the live ones."""
        return {
            "demo": self.demo,
            "time": self.time,
            "totals": self.totals,
            "problems": self.problems,
            "hosts": self.hosts,
        }

    def _put(self, host: dict[str, Any]) -> None:
        self._by_id[host["id"]] = host
        self._gpus[host["id"]] = {gpu["uuid"]: gpu for gpu in host["gpus"]}

    def _change(self, change: dict[str, Any]) -> None:
        host = self._by_id.get(change["id"])
        if host is None:
            return
        own = self._gpus[change["id"]]
        for gpu_change in change.pop("gpus", ()):
            gpu = own.get(gpu_change["uuid"])
            if gpu is not None:
                gpu.update(gpu_change)
        host.update(change)

    def _rank(self) -> None:
        self.hosts = sorted(self._by_id.values(), key=lambda host: natural(host["display_name"]))

    def _beat(self, event: Json) -> None:
        self.time, self.totals = event["time"], event["totals"]
