"""Which hosts gpu-monitor watches: those that copy files into its folder, and those that its list in Consul names."""

import os
import re

import msgspec
from msgspec import Struct

from gpudeck.compat.gpu_monitor.settings import GpuMonitorSettings
from gpudeck.discovery.base import HostFindings, Provider
from gpudeck.discovery.host_names import is_host_name, quote
from gpudeck.discovery.inputs import Endpoint, FileThread, find_path
from gpudeck.fetch import show_url
from gpudeck.model.errors import Temporary
from gpudeck.model.target import Target

_SUFFIX = "_gpus.csv"
_ADDRESS = re.compile(r"[0-9.]+")


def make_providers(settings: GpuMonitorSettings | None) -> list[Provider]:
    """The lists that are configured. Opens nothing."""
    if settings is None:
        return []
    folder: list[Provider] = [FolderHosts(settings.folder)] if settings.folder else []
    return [*folder, *([ConsulNodes(settings.consul, settings.consul_interval)] if settings.consul else [])]


class FolderHosts:
    """Every host with a file of GPUs in the folder. Others write there: a name that is none is told, and not read."""

    pause = 5.0

    def __init__(self, folder: str) -> None:
        self.origin = folder
        self._findings = HostFindings()
        self._files_thread = FileThread()

    @property
    def problems(self) -> list[str]:
        return self._findings.problems

    async def find(self) -> list[Target]:
        self._findings = await self._files_thread.run(self._look)
        return self._findings.targets

    async def close(self) -> None:
        """Nothing is open."""

    def _look(self) -> HostFindings:
        findings = HostFindings()
        try:
            names = sorted(entry.name for entry in os.scandir(find_path(self.origin)) if entry.name.endswith(_SUFFIX))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise Temporary(f"{self.origin} cannot be read: {reason}.", "Mend compat.gpu_monitor.folder.") from error
        for name in names:
            if findings.is_full:
                findings.tell_full(self.origin)
                break
            host = name.removesuffix(_SUFFIX)
            if not is_host_name(host):
                findings.tell(f"{self.origin}: {quote(name)} is no file of a host.")
                continue
            findings.add([Target(name=host, via="gpu-monitor-files", origin=self.origin)], self.origin)
        return findings


class _GpuMonitorNode(Struct, rename="pascal"):
    """What Consul's catalog tells of an instance. Its health endpoint nests the same."""

    node: str | dict[str, object]


_decode = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_node = msgspec.json.Decoder(_GpuMonitorNode).decode


class ConsulNodes:
    """The nodes in a list that an address answers, as gpu-monitor asked Consul: only their names count. A host is known
    by its short name, as in its files and bookings, unless two nodes have the same one."""

    def __init__(self, url: str, interval: float) -> None:
        self._url = url
        self._shown = show_url(url)
        self.origin = f"consul {self._shown}"
        self.pause = interval
        self._endpoint = Endpoint(None, None, lambda token: {"X-Consul-Token": token})
        self._findings = HostFindings()

    @property
    def problems(self) -> list[str]:
        return self._findings.problems

    async def find(self) -> list[Target]:
        self._findings, _ = await self._endpoint.read(self._url, read_nodes, self.origin, self._shown)
        return self._findings.targets

    async def close(self) -> None:
        await self._endpoint.close()


def read_nodes(body: bytes, origin: str, url: str) -> HostFindings:
    """The nodes in an answer. Raises Temporary."""
    findings, seen, names = HostFindings(), set[str](), set[str]()
    try:
        entries = _decode(body)
    except (ValueError, RecursionError) as error:
        raise Temporary(f"{url} answers no list of nodes in JSON.", "Is that Consul's address?") from error
    for number, raw in enumerate(entries, 1):
        place = f"{origin}, entry {number}"
        if findings.is_full:
            findings.tell_full(place)
            break
        try:
            node = _read_name(raw)
        except (ValueError, RecursionError) as error:
            findings.tell(f"{place}: {error}.")
            continue
        if node in seen:
            continue
        short = node if _ADDRESS.fullmatch(node) else node.partition(".")[0]
        name = node if short in names else short
        seen.add(node)
        names.add(name)
        address = "" if name == node else node
        findings.add([Target(name=name, via="gpu-monitor", address=address, origin=origin)], place)
    return findings


def _read_name(raw: msgspec.Raw) -> str:
    """Raises ValueError."""
    node = _decode_node(raw).node
    name = node if isinstance(node, str) else node.get("Node")
    if not isinstance(name, str) or not is_host_name(name):
        raise ValueError(f"{quote(str(name))} is no name of a host")
    return name
