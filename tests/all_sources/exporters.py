"""A real exporter, of prometheus-client, whose series are those of a recorded page or those that a test wants."""

from collections.abc import Iterable
from pathlib import Path
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from fakes.ports import free_port

CAPTURES = Path(__file__).parents[1] / "captures" / "exporters"


class _Series(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


class Exporter:
    """Listens on a port that it keeps when it is started again."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self.port = free_port()
        self._registry = CollectorRegistry()
        self._registry.register(_Series(families))
        self._running: tuple[WSGIServer, Thread] | None = None

    def start(self) -> None:
        self._running = start_http_server(self.port, "127.0.0.1", self._registry)

    def stop(self) -> None:
        if self._running is not None:
            server, thread = self._running
            server.shutdown()
            server.server_close()
            thread.join(20)
            self._running = None


def recorded(page: str) -> list[Metric]:
    """The series of a page in tests/captures/exporters."""
    return list(text_string_to_metric_families((CAPTURES / f"{page}.prom").read_text()))


def dcgm(uuid: str, **values: float) -> list[Metric]:
    """The series that dcgm-exporter has of one H200; `values` by the names of DCGM's fields."""
    labels = {"gpu": "0", "UUID": uuid, "modelName": "NVIDIA H200", "Hostname": "itself"}
    families: list[Metric] = []
    for name, value in values.items():
        family = GaugeMetricFamily(f"DCGM_FI_DEV_{name}", name, labels=list(labels))
        family.add_metric(list(labels.values()), value)
        families.append(family)
    return families
