"""The API server of Kubernetes, as a pod with a service account asks it: the names of this node's pods, and what the
devices of its resource claims (DRA) are, and whether it is cordoned. Only `list` on pods and resource slices and `get`
on nodes is needed."""

import os
import re
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec
import urllib3
from msgspec import Struct, field

from gpudeck.collectors.kubelet import DynamicDevice
from gpudeck.collectors.kubernetes import DeviceNames, PodDetails, PodName
from gpudeck.collectors.redaction import clean
from gpudeck.http_client import TRANSPORT_ERRORS, explain, open_pool
from gpudeck.model.errors import Refused, Temporary, UsageError
from gpudeck.model.report import MAX_LABELS

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HAMI: Final = "hami.io/vgpu-devices-allocated"
OVER: Final = frozenset(("Succeeded", "Failed"))
"""Phases of a pod that has given its devices back, although the kubelet may still list them (kubernetes#119423)."""
_SLICES: Final = ("v1", "v1beta2", "v1beta1")
_MAX_SECONDS: Final = 5.0
_MAX_BYTES: Final = 64 * 2**20
_WORD_LENGTH: Final = 256
_SHORT_ID_LENGTH: Final = 12
_HAMI_DEVICE: Final = re.compile(r"(?:^|[:;])((?:GPU|MIG)-[^,:;\[]+)(\[[^,:;]*\])?,")


class _Owner(Struct):
    kind: str
    name: str
    controller: bool = False


class _Metadata(Struct):
    name: str
    namespace: str = "default"
    uid: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    owners: list[_Owner] = field(default_factory=list, name="ownerReferences")


class _ContainerStatus(Struct):
    name: str
    id: str = field(default="", name="containerID")


class _Status(Struct):
    phase: str = ""
    started: datetime | None = field(default=None, name="startTime")
    containers: list[_ContainerStatus] = field(default_factory=list, name="containerStatuses")
    first: list[_ContainerStatus] = field(default_factory=list, name="initContainerStatuses")


class _Pod(Struct):
    metadata: _Metadata
    status: _Status = field(default_factory=_Status)


class _PodList(Struct):
    items: list[_Pod]


class _Basic(Struct):
    attributes: dict[str, dict[str, Any]] = field(default_factory=dict)


class _SliceDevice(_Basic):
    name: str = ""
    basic: _Basic = field(default_factory=_Basic)


class _DevicePool(Struct):
    name: str


class _SliceSpec(Struct):
    driver: str
    pool: _DevicePool
    devices: list[_SliceDevice] | None = None


class _Slice(Struct):
    spec: _SliceSpec


class _SliceList(Struct):
    items: list[_Slice]


class _NodeSpec(Struct):
    unschedulable: bool = False


class _ApiNode(Struct):
    spec: _NodeSpec = field(default_factory=_NodeSpec)


_Answer = TypeVar("_Answer", _PodList, _SliceList, _ApiNode)


class ApiServer:
    """Asks about one node. The token is read anew each time: it is replaced about once an hour."""

    def __init__(self, address: str, node: str, folder: Path = ACCOUNT, user_label: str | None = None) -> None:
        self._address = address
        self._node = quote(node)
        self._folder = folder
        self._user_label = user_label
        self._pool: urllib3.PoolManager | None = None

    def read_pods(self) -> dict[PodName, PodDetails]:
        """The pods of the node. Raises Temporary, Refused."""
        # From the server's cache: a look into its store for each node would be dear.
        path = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self._node}&resourceVersion=0"
        answer = self._ask(path, _PodList)
        pods = [] if answer is None else answer.items
        return {(_word(pod.metadata.namespace), _word(pod.metadata.name)): self._describe(pod) for pod in pods}

    def read_is_cordoned(self) -> bool:
        """False where the account may not ask. Raises Temporary."""
        try:
            node = self._ask(f"/api/v1/nodes/{self._node}?resourceVersion=0", _ApiNode)
        except Refused:
            return False
        return node is not None and node.spec.unschedulable

    def read_devices(self) -> dict[DynamicDevice, DeviceNames]:
        paths = (
            f"/apis/resource.k8s.io/{version}/resourceslices?fieldSelector=spec.nodeName%3D{self._node}"
            for version in _SLICES
        )
        answer = next(filter(None, (self._ask(path, _SliceList) for path in paths)), None)
        return {
            DynamicDevice(one.spec.driver, one.spec.pool.name, device.name): _name(device)
            for one in ([] if answer is None else answer.items)
            for device in one.spec.devices or ()
        }

    def _ask(self, path: str, kind: type[_Answer]) -> _Answer | None:
        """None where the server does not know the path."""
        ends_at, body = time.monotonic() + _MAX_SECONDS, bytearray()
        try:
            self._pool = self._pool or self._open_pool()
            token = (self._folder / "token").read_text(errors="replace").strip()
            headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": "gzip"}
            response = self._pool.request(
                "GET", self._address + path, headers=headers, redirect=False, timeout=3.0, preload_content=False
            )
            try:
                while chunk := response.read(65536, decode_content=True):
                    body += chunk
                    if len(body) > _MAX_BYTES or time.monotonic() > ends_at:
                        raise Temporary("the API server takes too long, or its answer is too large.")
            finally:
                response.close()
        except (*TRANSPORT_ERRORS, UsageError) as error:
            why = error.message if isinstance(error, UsageError) else explain(error)
            raise Temporary(f"the API server cannot be asked: {why}") from error
        if response.status == 404:
            return None
        if response.status in {401, 403}:
            raise Refused(f"the API server answers {response.status}: the service account may not list this.")
        if response.status != 200:
            raise Temporary(f"the API server answers {response.status}.")
        try:
            return msgspec.json.decode(bytes(body), type=kind)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise Temporary(f"the API server's answer is not understood: {error}.") from error

    def _open_pool(self) -> urllib3.PoolManager:
        """Raises UsageError where the authority's certificate cannot be read."""
        is_https = self._address.startswith("https:")
        return open_pool(self._address, str(self._folder / "ca.crt") if is_https else None)

    def _describe(self, pod: _Pod) -> PodDetails:
        about, status = pod.metadata, pod.status
        user = None if self._user_label is None else (about.labels | about.annotations).get(self._user_label)
        hami = about.annotations.get(HAMI, "")[:65536]
        running = [*status.first, *status.containers]
        return PodDetails(
            uid=_word(about.uid),
            is_over=status.phase in OVER,
            labels=_choose_labels(about.labels),
            owner=_find_owner(about),
            user=_word(user) or None if user is not None else None,
            since=None if status.started is None else status.started.timestamp(),
            containers={one.id.rpartition("/")[2][:_SHORT_ID_LENGTH]: _word(one.name) for one in running if one.id},
            hami=tuple(f"{uuid}{'[]' if part else ''}" for uuid, part in _HAMI_DEVICE.findall(hami)),
        )


def find_api_server(
    user_label: str | None, environment: Mapping[str, str] = os.environ, folder: Path = ACCOUNT
) -> ApiServer | None:
    """None where this is not a pod with a service account that knows the name of its node (NODE_NAME)."""
    host, node = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("NODE_NAME")
    if not host or not node or not (folder / "token").exists():
        return None
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    return ApiServer(f"https://{f'[{host}]' if ':' in host else host}:{port}", node, folder, user_label)


def _choose_labels(labels: Mapping[str, str]) -> dict[str, str]:
    fitting = {
        key: _word(value) for key, value in sorted(labels.items()) if key.isprintable() and 0 < len(key) <= _WORD_LENGTH
    }
    return dict(list(fitting.items())[:MAX_LABELS])


def _find_owner(about: _Metadata) -> str | None:
    """`Deployment/web`: a ReplicaSet that is named after its pods' template belongs to a Deployment."""
    owner = next((one for one in about.owners if one.controller), None)
    if owner is None:
        return None
    template = f"-{about.labels.get('pod-template-hash', '')}"
    if owner.kind == "ReplicaSet" and len(template) > 1 and owner.name.endswith(template):
        return _word(f"Deployment/{owner.name.removesuffix(template)}")
    return _word(f"{owner.kind}/{owner.name}")


def _name(device: _SliceDevice) -> DeviceNames:
    """Attributes are named with or without the domain of their driver."""
    found = {
        name.rpartition("/")[2]: text
        for name, value in (device.basic.attributes | device.attributes).items()
        if isinstance(text := value.get("string"), str) and text
    }
    address = found.get("pciBusID") or found.get("pciAddr") or found.get("pciAddress")
    return DeviceNames(found.get("uuid"), found.get("parentUUID"), address)


def _word(text: str) -> str:
    return clean(text)[:_WORD_LENGTH]
