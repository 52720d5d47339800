"""Maps GPUs to pods of Kubernetes: the kubelet's device list, pod names from the API server, and the GPU of each device
id.

A thread reads every few seconds, so that a kubelet that hangs delays no report. Where it cannot be read, empty GPUs may
be allocated: the hub calls them unknown.
"""

import logging
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from gpudeck.collectors.base import KubernetesSettings
from gpudeck.collectors.kubelet import ContainerDevices, DynamicDevice, list_containers
from gpudeck.model.errors import PluginError, Wrong
from gpudeck.model.report import GpuReading, PodGpus, Process, Report

if TYPE_CHECKING:
    # An agent imports it only where it reads a kubelet, and in the thread: its children are forked before.
    from gpudeck.collectors.kubernetes_api import ApiServer

log = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 5.0
KEPT_SECONDS: Final = 25.0
"""How long the last answer of a kubelet counts that can no longer be read."""
_FIRST_SECONDS: Final = 1.0
_NAMES_SECONDS: Final = 60.0
_NAMES_PAUSE_SECONDS: Final = 10.0
_MAX_PODS: Final = 1024
_MAX_PODS_OF_GPU: Final = 64
_MAX_PROBLEMS: Final = 64

_GPU_RESOURCE: Final = re.compile(r"nvidia\.com/(?:gpu|mig-)|amd\.com/gpu|gpu\.intel\.com/(?:i915|xe)")
_REPLICA: Final = re.compile(r"(?:::\d+|/vgpu\d+)$")
_UUID: Final = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{27}(?:/\d+/\d+)?", re.IGNORECASE)
_INSTANCE_OF: Final = re.compile(r"MIG-(GPU-[0-9a-f-]{36})/\d+/\d+|(nvidia\d+)/gi\d+", re.IGNORECASE)
"""Ids of drivers before 470 and of Google's device plugin: only the board is known."""
_HAMI_SLOT: Final = re.compile(r"GPU-[0-9a-f-]{36}-\d+", re.IGNORECASE)
_NOT_READ_YET: Final = "the kubelet has not been read yet"


class PodDetails(Struct, frozen=True):
    """A pod as the API server describes it. `containers` are the names by the short ids that its processes show; `hami`
    are the GPUs of HAMi's annotation, the boards among them that are divided with a trailing `[]`."""

    uid: str
    is_over: bool = False
    labels: dict[str, str] = field(default_factory=dict)
    owner: str | None = None
    user: str | None = None
    since: float | None = None
    containers: dict[str, str] = field(default_factory=dict)
    hami: tuple[str, ...] = ()


class DeviceNames(Struct, frozen=True):
    """The names of a device in its resource slice: its UUID, that of its board, its PCI address. None is unknown."""

    uuid: str | None = None
    board: str | None = None
    pci_address: str | None = None


PodName = tuple[str, str]


class FoundGpus(NamedTuple):
    """The GPUs that a device id means, by UUID. `why` is set where it means one of them, and which is not known."""

    gpus: Sequence[str] = ()
    why: str | None = None


class GpuFinder:
    """Finds the GPUs of a host by what device plugins and drivers call them."""

    def __init__(self, gpus: Sequence[GpuReading]) -> None:
        self._all = [gpu.uuid for gpu in gpus]
        self._named: dict[str, list[str]] = {}
        self._numbered: dict[str, list[str]] = {}
        for gpu in gpus:
            for uuid in {gpu.uuid, gpu.parent or gpu.uuid}:
                # dcgm-exporter#272: some list the UUID without its prefix.
                for name in {uuid, re.sub(r"^(?:GPU|MIG)-", "", uuid)}:
                    self._named.setdefault(name.lower(), []).append(gpu.uuid)
            if gpu.pci_address:
                self._named.setdefault(gpu.pci_address[-12:].lower(), []).append(gpu.uuid)
            self._named.setdefault(f"nvidia{gpu.index}", []).append(gpu.uuid)
            self._numbered.setdefault(str(gpu.index), []).append(gpu.uuid)
            if gpu.instance is not None:
                self._numbered[f"{gpu.index}:{gpu.instance}"] = [gpu.uuid]

    def find(self, resource: str, device: str) -> FoundGpus:
        device, is_gpu = _REPLICA.sub("", device), _GPU_RESOURCE.match(resource)
        if found := self._named.get(device.lower()) or (self._numbered.get(device) if is_gpu else None):
            return FoundGpus(found)
        if instance := _INSTANCE_OF.fullmatch(device):
            return self._one_of(instance[1] or instance[2])
        if _HAMI_SLOT.fullmatch(device):
            return FoundGpus(self._all, "only an annotation of the pod says which GPU that is (HAMi)")
        if not is_gpu or _UUID.fullmatch(device):
            return FoundGpus()
        return FoundGpus(self._all, "no GPU here is called that")

    def find_hami(self, device: str) -> FoundGpus:
        board = device.removesuffix("[]")
        return self._one_of(board) if board != device else FoundGpus(self._named.get(device.lower(), ()))

    def find_claimed(self, device: DynamicDevice, names: DeviceNames | None) -> FoundGpus:
        if names is None or not any((names.uuid, names.board, names.pci_address)):
            is_gpu = device.driver.startswith("gpu.")
            return FoundGpus(self._all if is_gpu else (), "its UUID, of its resource slice, is not known")
        for name in (names.uuid or "", (names.pci_address or "")[-12:]):
            if found := self._named.get(name.lower()):
                return FoundGpus(found)
        return self._one_of(names.board or "")

    def _one_of(self, board: str) -> FoundGpus:
        gpus = self._named.get(board.lower(), ())
        return FoundGpus(gpus, "which instance of this board that is, is not known" if len(gpus) > 1 else None)


class PodReading(Struct, frozen=True):
    """The devices and pods that were read at one time. `is_current`: the API server has just listed the pods, so that
    those it calls finished are. `problem` is why it could not be asked. `is_cordoned`: no new pod starts on the
    node."""

    containers: Sequence[ContainerDevices] = ()
    pods: Mapping[PodName, PodDetails] = field(default_factory=dict)
    devices: Mapping[DynamicDevice, DeviceNames] = field(default_factory=dict)
    is_current: bool = False
    is_cordoned: bool = False
    problem: str | None = None


def find_pods(reading: PodReading, gpus: Sequence[GpuReading]) -> tuple[list[PodGpus], dict[str, str]]:
    """Which containers have which of these GPUs, and why others of them may be allocated."""
    finder = GpuFinder(gpus)
    order = {gpu.uuid: at for at, gpu in enumerate(gpus)}
    given: dict[tuple[str, str, str], set[str]] = {}
    unknown: dict[str, str] = {}
    holders: dict[str, int] = {}

    def give(namespace: str, pod: str, container: str, device: str, found: FoundGpus) -> None:
        if found.why is not None:
            why = f"{namespace}/{pod} was given {device}: {found.why}"
            unknown.update((uuid, why) for uuid in found.gpus if uuid not in unknown)
            return
        for uuid in found.gpus:
            holders[uuid] = holders.get(uuid, 0) + 1
            if holders[uuid] <= _MAX_PODS_OF_GPU:
                given.setdefault((namespace, pod, container), set()).add(uuid)

    for (namespace, pod), about in sorted(reading.pods.items()):
        for device in () if about.is_over else about.hami:
            give(namespace, pod, "", device, finder.find_hami(device))
    for one in reading.containers:
        details = reading.pods.get((one.namespace, one.pod))
        if details is not None and (details.hami or (details.is_over and reading.is_current)):
            continue
        for resource, device in one.devices:
            give(one.namespace, one.pod, one.container, f"{resource} {device}", finder.find(resource, device))
        for claimed in one.claimed:
            found = finder.find_claimed(claimed, reading.devices.get(claimed))
            give(one.namespace, one.pod, one.container, "/".join(claimed), found)
    pods = [
        _describe(key, sorted(uuids, key=order.__getitem__), reading.pods.get(key[:2]))
        for key, uuids in sorted(given.items())
    ]
    known = {uuid for uuids in given.values() for uuid in uuids}
    return pods[:_MAX_PODS], {uuid: why[:1000] for uuid, why in unknown.items() if uuid not in known}


def _describe(key: tuple[str, str, str], gpus: list[str], details: PodDetails | None) -> PodGpus:
    namespace, pod, container = key
    known = PodGpus(gpus, namespace or "?", pod or "?", container or None)
    if details is None:
        return known
    return replace(known, owner=details.owner, user=details.user, labels=details.labels, since=details.since)


class PodWatch:
    """Adds to reports what Kubernetes has given to pods. The thread starts with the first report, where the folder of
    the kubelet's socket exists. `api` makes the API server to ask, or None; `clock` is in seconds."""

    def __init__(
        self,
        settings: KubernetesSettings,
        *,
        api: "Callable[[str | None], ApiServer | None] | None" = None,
        pause: float = PAUSE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._make_api = api
        self._pause = pause
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._has_read = threading.Event()
        self._reading: PodReading | None = None
        self._read_at = 0.0
        self._asked_at: float | None = None
        self._problem = _NOT_READ_YET
        self._has_unknown_pods = False
        self._logged: set[str] = set()

    def add_to(self, report: Report) -> Report:
        """The report with pods. Blocks for a second at most, and only the first time. Never raises."""
        if not report.gpus or not self._is_running():
            return report
        try:
            return self._join(report, report.gpus)
        except Exception as error:
            why = f"the pods cannot be joined with the GPUs: {type(error).__name__}: {error}"[:1000]
            if why not in self._logged:
                log.exception("%s", why)
            self._logged = {why}
            return replace(report, allocation_unknown={gpu.uuid: why for gpu in report.gpus})

    def _join(self, report: Report, gpus: list[GpuReading]) -> Report:
        reading, problem = self._reading, None
        if reading is None or self._clock() - self._read_at > KEPT_SECONDS:
            problem = self._problem
        reading = reading or PodReading()
        pods, unknown = find_pods(reading, gpus)
        if problem is not None:
            used = {gpu.uuid for gpu in gpus if gpu.processes}
            kept = (replace(pod, gpus=[uuid for uuid in pod.gpus if uuid in used]) for pod in pods)
            pods = [pod for pod in kept if pod.gpus]
            unknown = {gpu.uuid: problem for gpu in gpus if gpu.uuid not in used}
        said = [f"{why[:1].upper()}{why[1:]}." for why in (problem, reading.problem) if why is not None]
        problems = [*report.problems, *said][:_MAX_PROBLEMS]
        named = self._name_processes(gpus, reading)
        closed = "cordoned in Kubernetes" if reading.is_cordoned else None
        return replace(report, gpus=named, pods=pods, allocation_unknown=unknown, problems=problems, closed=closed)

    def close(self) -> None:
        """The thread ends by itself, as soon as a reading under way is over."""
        self._stop.set()

    def _is_running(self) -> bool:
        if self._thread is not None:
            return True
        path = self._settings.socket
        if not path or not _may_exist(os.path.dirname(path)):  # noqa: PTH120 - on every report
            return False
        self._thread = threading.Thread(target=self._run, name="kubelet", daemon=True)
        self._thread.start()
        self._has_read.wait(_FIRST_SECONDS)
        return True

    def _run(self) -> None:
        from gpudeck.collectors.kubernetes_api import find_api_server  # noqa: PLC0415 - see above

        api, failing = (self._make_api or find_api_server)(self._settings.user_label), False
        while True:
            try:
                self._reading = self._read(api, self._clock())
            except Exception as error:
                known = error if isinstance(error, PluginError) else Wrong(f"{type(error).__name__}: {error}.")
                self._problem = f"the kubelet cannot be read: {str(known).rstrip('.')}"[:1000]
                if not failing:
                    log.warning("%s", self._problem, exc_info=known if isinstance(known, Wrong) else None)
                failing = True
            else:
                self._read_at, self._has_unknown_pods = self._clock(), False
                if failing:
                    log.info("the kubelet can be read again")
                failing = False
            self._has_read.set()
            if self._stop.wait(self._pause):
                return

    def _read(self, api: "ApiServer | None", now: float) -> PodReading:
        """Reads the kubelet each time, and the API server if `_is_due`. Raises PluginError if the kubelet cannot be
        read."""
        last = self._reading or PodReading()
        containers = tuple(one for one in list_containers(self._settings.socket) if one.devices or one.claimed)
        reading = replace(last, containers=containers, is_current=False)
        if api is None or not self._is_due(last, set(containers), now):
            return reading
        self._asked_at = now
        try:
            reading = replace(reading, pods=api.read_pods(), is_current=True, problem=None)
            reading = replace(reading, is_cordoned=api.read_is_cordoned())
            if any(one.claimed for one in containers):
                reading = replace(reading, devices=api.read_devices())
        except PluginError as error:
            why = str(error).rstrip(".")
            reading = replace(reading, problem=f"the pods' labels, owners and phases are not known: {why}")
        return reading

    def _is_due(self, last: PodReading, containers: set[ContainerDevices], now: float) -> bool:
        """When pods with GPUs have changed, once a minute, and each time while a finished one is listed: another pod of
        its name may follow."""
        if self._asked_at is None:
            return True
        if last.problem is not None or self._has_unknown_pods:
            return now - self._asked_at >= _NAMES_PAUSE_SECONDS
        listed = {(one.namespace, one.pod) for one in containers}
        has_finished = any(about.is_over for name, about in last.pods.items() if name in listed)
        return containers != set(last.containers) or has_finished or now - self._asked_at >= _NAMES_SECONDS

    def _name_processes(self, gpus: list[GpuReading], reading: PodReading) -> list[GpuReading]:
        """Processes know the UIDs of their pods: those that are known get the pod's name, and its user."""
        named = {about.uid: (name, about) for name, about in reading.pods.items()}

        def name(process: Process) -> Process:
            found = named.get(process.job or "")
            if found is None:
                self._has_unknown_pods |= _looks_like_uid(process.job)
                return process
            return name_process(process, *found)

        return [
            replace(gpu, processes=[name(process) for process in gpu.processes])
            if gpu.processes and any(process.job for process in gpu.processes)
            else gpu
            for gpu in gpus
        ]


def _may_exist(folder: str) -> bool:
    """True also without permission to look: opening the socket then shows the problem."""
    try:
        return stat.S_ISDIR(os.stat(folder).st_mode)  # noqa: PTH116 - as above
    except PermissionError:
        return True
    except OSError:
        return False


def name_process(process: Process, pod: PodName, about: PodDetails) -> Process:
    """The process with the names of its pod and container instead of ids, and with the user of the pod's label."""
    shown = "/".join(pod)[:256]
    container = about.containers.get(process.container or "", process.container)
    evidence = (process.evidence or "").replace(about.uid, shown)
    if container and process.container:
        evidence = evidence.replace(process.container, container)
    if about.user is None:
        return replace(process, job=shown, container=container, evidence=evidence[:1024] or None)
    reasons = {key: why for key, why in process.reasons.items() if key != "user"}
    evidence = f"{evidence}, user by the pod's label"[:1024]
    return replace(process, job=shown, container=container, evidence=evidence, user=about.user, reasons=reasons)


def _looks_like_uid(job: str | None) -> bool:
    return job is not None and len(job) == 36 and job.count("-") == 4
