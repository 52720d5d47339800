"""The kubelet's PodResources API and the API server: a real gRPC server on a Unix socket and a real HTTP server, that
say what a test tells them. No kubelet and no API server of Kubernetes runs here."""

import ssl
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import msgspec

MESSAGES = grpc.protos("fakes/podresources.proto")


def container(pod: str, devices: Mapping[str, list[str]] | None = None, *, name: str = "main", **others: Any) -> Any:
    """A pod (`namespace/name`) with one container, its devices by resource, and `claimed` (driver, pool, device)."""
    namespace, _, pod_name = pod.rpartition("/")
    claimed = [
        MESSAGES.ClaimResource(
            driver_name=driver, pool_name=pool, device_name=device, cdi_devices=[MESSAGES.CDIDevice(name="k8s/x=1")]
        )
        for driver, pool, device in others.pop("claimed", ())
    ]
    return MESSAGES.PodResources(
        name=pod_name,
        namespace=namespace,
        cpu_ids=[3, 300],
        containers=[
            MESSAGES.ContainerResources(
                name=name,
                cpu_ids=[1, 2, 70000],
                memory=[MESSAGES.ContainerMemory(memory_type="memory", size=2**40)],
                devices=[
                    MESSAGES.ContainerDevices(
                        resource_name=resource,
                        device_ids=ids,
                        topology=MESSAGES.TopologyInfo(nodes=[MESSAGES.NUMANode(ID=1)]),
                    )
                    for resource, ids in (devices or {}).items()
                ],
                dynamic_resources=[
                    MESSAGES.DynamicResource(claim_name="c", claim_namespace="n", claim_resources=claimed)
                ]
                if claimed
                else [],
            )
        ],
    )


class FakeKubelet:
    """`pods` are listed; `raw` is answered instead; `failure` is a gRPC error. Where `gate` is clear, nothing is."""

    def __init__(self) -> None:
        self.pods: list[Any] = []
        self.raw: bytes | None = None
        self.failure: tuple[grpc.StatusCode, str] | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.calls = 0

    def answer(self, _: bytes, context: grpc.ServicerContext) -> bytes:
        self.calls += 1
        self.gate.wait(30)
        if self.failure is not None:
            context.abort(*self.failure)
        if self.raw is not None:
            return self.raw
        listed: bytes = MESSAGES.ListPodResourcesResponse(pod_resources=self.pods).SerializeToString()
        return listed


@contextmanager
def serve_kubelet(path: Path) -> Iterator[FakeKubelet]:
    kubelet = FakeKubelet()
    handler = grpc.method_handlers_generic_handler(
        "v1.PodResourcesLister", {"List": grpc.unary_unary_rpc_method_handler(kubelet.answer)}
    )
    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers((handler,))
    assert server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield kubelet
    finally:
        kubelet.gate.set()
        server.stop(0).wait()


def pod(name: str, uid: str = "", phase: str = "Running", **others: Any) -> dict[str, Any]:
    """A pod as the API server writes it, with much that nobody here reads left out."""
    namespace, _, pod_name = name.rpartition("/")
    metadata = {"name": pod_name, "namespace": namespace, "uid": uid, **others.pop("metadata", {})}
    status = {"phase": phase, "startTime": "2026-11-18T04:00:00Z", "hostIP": "10.0.0.7", **others.pop("status", {})}
    return {"metadata": metadata, "spec": {"nodeName": "gpu01"}, "status": status}


class FakeApi:
    """`answers` by the beginning of a path: a document, bytes, or a status. `asked` are the paths, and the tokens."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, str]] = []
        self.address = ""

    @property
    def pods(self) -> list[Any]:
        found: list[Any] = self.answers.setdefault("/api/v1/pods", {"kind": "PodList", "items": []})["items"]
        return found

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.asked.append((request.path, request.headers["Authorization"]))
        found = next((self.answers[path] for path in self.answers if request.path.startswith(path)), 404)
        status = found if isinstance(found, int) else 200
        body = found if isinstance(found, bytes) else msgspec.json.encode(found)
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)


@contextmanager
def serve_api(context: ssl.SSLContext | None = None) -> Iterator[FakeApi]:
    """With TLS where `context` has a certificate."""
    api = FakeApi()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            api.answer(self)

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        api.address = f"{'http' if context is None else 'https'}://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield api
        finally:
            server.shutdown()
            thread.join()
