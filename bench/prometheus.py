"""A real Prometheus that scrapes what the hosts of bench/scale.py report, so that the cost of a sample can be compared.

Each host is a target with an address and a connection of its own, served by one process for all of them. Pages are as
dcgm-exporter writes them (plain text: it has no compression), with values that change as those of the reports to the
hub; a host's own metrics stand on the same page. Prometheus has its defaults, no rules, and nobody asks it anything.
"""

import asyncio
import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvloop
from msgspec import Struct

from bench.processes import all_cpu_seconds, disk_bytes, rss_mib
from bench.scale_senders import INTERVAL, LabHost

PROGRAM = "prometheus"
MAX_HOSTS = 2000
"""More take more memory than a usual machine has: 180 series each."""
_PATIENCE = 120.0
_SERIES = (
    *(
        "GPU_UTIL",
        "MEM_COPY_UTIL",
        "FB_USED",
        "FB_TOTAL",
        "GPU_TEMP",
        "POWER_USAGE",
        "ENFORCED_POWER_LIMIT",
        "SM_CLOCK",
    ),
    *("MEM_CLOCK", "ENC_UTIL", "DEC_UTIL", "MEMORY_TEMP", "PSTATE", "POWER_VIOLATION", "THERMAL_VIOLATION"),
    *("BOARD_LIMIT_VIOLATION", "ECC_SBE_VOL_TOTAL", "ECC_DBE_VOL_TOTAL", "CORRECTABLE_REMAPPED_ROWS"),
    *("ROW_REMAP_PENDING", "TOTAL_ENERGY_CONSUMPTION"),
)
"""What DCGM calls the metrics of bench/reports.py, in their order. Memory is in MiB there, energy in millijoules."""
_FACTORS = {"FB_USED": 2**-20, "FB_TOTAL": 2**-20, "TOTAL_ENERGY_CONSUMPTION": 1000}


class Cost(Struct):
    """Seconds, MiB of memory, bytes, and counts. `samples` are those of the pages."""

    hosts: int
    seconds: float
    samples: float
    failed: float
    cpu: float
    memory: float
    disk: float
    page: float


def measure(hosts: int, seconds: float, warm_up: float) -> Cost:
    """`warm_up` begins when every host has been scraped once."""
    with tempfile.TemporaryDirectory() as name, _exporters(hosts) as targets:
        folder, config = Path(name), Path(name) / "prometheus.yml"
        scrape = {"job_name": "dcgm", "scrape_interval": f"{INTERVAL:.0f}s", "scrape_timeout": f"{INTERVAL:.0f}s"}
        config.write_text(json.dumps({"scrape_configs": [scrape | {"static_configs": [{"targets": targets}]}]}))
        with _running(folder, config) as (pid, url):
            until = time.monotonic() + _PATIENCE
            while _ask(url, "count(up == 1)") < hosts:
                assert time.monotonic() < until, f"Prometheus did not scrape all {hosts:,} hosts in {_PATIENCE:.0f} s"
                time.sleep(1.0)
            time.sleep(warm_up)
            began, cpu, disk = time.time(), all_cpu_seconds(pid), disk_bytes(folder / "data")
            time.sleep(seconds)
            spent, cpu, disk = time.time() - began, all_cpu_seconds(pid) - cpu, disk_bytes(folder / "data") - disk
            memory, span = rss_mib(pid), f"[{spent * 1e3:.0f}ms]"
            samples = _ask(url, f"sum(sum_over_time(scrape_samples_scraped{span}))")
            failed = _ask(url, f"sum(count_over_time(up{span}) - sum_over_time(up{span}))")
        with urllib.request.urlopen(f"http://{targets[0]}/metrics", timeout=20) as answer:
            page = len(answer.read())
    return Cost(hosts, spent, samples, failed, cpu, memory, disk, page)


@contextlib.contextmanager
def _running(folder: Path, config: Path) -> Iterator[tuple[int, str]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([cast(str, shutil.which(PROGRAM)), *options], stdout=log, stderr=log)
    try:
        until = time.monotonic() + _PATIENCE
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/-/ready", timeout=5):
                break
            failed = process.poll() is not None or time.monotonic() > until
            assert not failed, "Prometheus did not start: " + (folder / "log").read_text()[-2000:]
            time.sleep(0.1)
        yield process.pid, f"http://{address}"
    finally:
        process.kill()
        process.wait()


def _ask(url: str, query: str) -> float:
    """The value of an expression without labels, 0 where it has none."""
    with urllib.request.urlopen(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}", timeout=60) as answer:
        found = json.load(answer)["data"]["result"]
    return float(found[0]["value"][1]) if found else 0.0


@contextlib.contextmanager
def _exporters(hosts: int) -> Iterator[list[str]]:
    """Their addresses with ports."""
    command = [sys.executable, "-m", "bench.prometheus", str(hosts)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield cast(Any, process.stdout).readline().split()
    finally:
        process.kill()
        process.communicate()


class _Exporter(asyncio.Protocol):
    """A connection to a host's exporter."""

    def __init__(self, number: int, host: LabHost) -> None:
        self._number, self._host, self._asked = number, host, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._asked += data
        if self._asked.endswith(b"\r\n\r\n"):
            self._asked, page = b"", self._write().encode()
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: %d\r\n\r\n"
            self._transport.write(head % len(page) + page)

    def _write(self) -> str:
        report, host = self._host.collect(0.0), f"gpu{self._number:05}"
        gpus = report.gpus or []
        labels = [
            f'{{gpu="{gpu.index}",UUID="{gpu.uuid}",pci_bus_id="00000000:{gpu.index + 1}8:00.0",'
            f'device="nvidia{gpu.index}",modelName="{gpu.name}",Hostname="{host}",'
            f'DCGM_FI_DRIVER_VERSION="{report.driver_version}"}}'
            for gpu in gpus
        ]
        lines = []
        columns = zip(*(gpu.metrics.values() for gpu in gpus), strict=True)
        for series, metric, values in zip(_SERIES, gpus[0].metrics, columns, strict=True):
            name, factor = f"DCGM_FI_DEV_{series}", _FACTORS.get(series)
            lines.append(f"# HELP {name} {metric}\n# TYPE {name} gauge\n")
            shown = [int(value * factor) for value in values] if factor else values
            lines += [f"{name}{told} {value}\n" for told, value in zip(labels, shown, strict=True)]
        for metric, value in report.metrics.items():
            lines.append(f"# HELP node_{metric} {metric}\n# TYPE node_{metric} gauge\nnode_{metric} {value}\n")
        return "".join(lines)


async def _serve(hosts: int) -> None:
    port, addresses = 0, []
    for number in range(hosts):
        server = socket.create_server((f"127.4.{number // 250}.{number % 250 + 1}", port))
        address, port = server.getsockname()
        await asyncio.get_running_loop().create_server(partial(_Exporter, number, LabHost(number)), sock=server)
        addresses.append(f"{address}:{port}")
    print(*addresses, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
