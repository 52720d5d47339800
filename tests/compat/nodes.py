"""Nodes of the monitors that came before, as small servers of their own: they know nothing of gpudeck."""

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from xmlrpc.server import SimpleXMLRPCServer

CAPTURES = Path(__file__).parents[1] / "captures" / "predecessors"
GPU_STATS = (CAPTURES / "gpumonitor.gpu_stats.response.xml").read_bytes()


@contextlib.contextmanager
def xmlrpc_node(gpu_stats: Callable[[], Any]) -> Iterator[int]:
    """A node as gpumonitor's is made: Python's own XML-RPC server with one method. Yields its port."""
    server = SimpleXMLRPCServer(("127.0.0.1", 0), logRequests=False, allow_none=True)
    server.register_function(gpu_stats, "gpu_stats")
    with _serving(server):
        yield server.server_address[1]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextlib.contextmanager
def file_node(folder: Path, port: int = 0) -> Iterator[int]:
    """A host that serves a folder, as `python3 -m http.server` does. Yields its port."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), partial(_Quiet, directory=str(folder)))
    with _serving(server):
        yield server.server_address[1]


@contextlib.contextmanager
def _serving(server: Any) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
