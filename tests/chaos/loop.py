"""Exporters with huge pages beside good hosts: what one host sends must not hold up the others."""

import contextlib
import http.server
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from alerts.notifiers.sinks import running_webhook
from chaos.compare import compare_samples
from chaos.figures import Figure, Outcome, at_most, holds
from chaos.hosts import reporting
from chaos.hub import chaos_hub
from fakes.waiting import wait_until

_SERIES = 60_000
_BIG = 5


def run(folder: Path, *, seed: int, short: bool, kills: int) -> Outcome:
    del seed, kills
    outcome = Outcome(f"{_BIG} exporters with 4.4 MB each")
    with running_webhook() as hook, _exporter() as port:
        big = "\n".join(
            f"  - {{name: big{number}, via: scrape, address: 127.0.0.1, port: {port}}}" for number in range(_BIG)
        )
        more = f"hosts:\n{big}\nscrape: {{interval: 2s, deadline: 20s}}"
        with chaos_hub(folder, more=more, webhook=hook.url) as hub:
            hub.start()
            with reporting(hub.port, hub.token, 4) as fleet:
                wait_until(lambda: fleet.seconds() > 2, "reports", 60)
                waits = _knock(hub.url, 8 if short else 30)
                fleet.stop(deliver=30)
            shown = {host["name"]: host for host in hub.get("/api/v1/fleet")["hosts"]}
            alerts = [alert for alert in hub.alerts() if not alert["host"].startswith("big")]
            hub.stop()
            rows = hub.samples(fleet.epoch - 60, time.time() + 60)
            found = compare_samples([row for row in rows if row["host"].startswith("gpu")], fleet)
    gaps = [
        later - earlier
        for host in fleet.hosts
        for earlier, later in zip(list(host.taken.values()), list(host.taken.values())[1:], strict=False)
    ]
    big_shown = [name for name in shown if name.startswith("big")]
    outcome.figures = [
        *found.figures(),
        at_most("false alerts (good hosts)", len(alerts), 0),
        holds("each of them is shown, with its GPUs or a reason", all(map(_is_explained, map(shown.get, big_shown)))),
        at_most("the hub is blocked: longest wait for /healthz", max(waits) * 1e3, 50, "ms", is_time=True),
        Figure("wait for /healthz, 99th percentile", f"{sorted(waits)[len(waits) * 99 // 100] * 1e3:.0f} ms"),
        Figure("longest time between two reports of a good host (one a second)", f"{max(gaps):.1f} s"),
    ]
    outcome.notes = found.notes + [f"alert: {alert['title']}" for alert in alerts[:3]]
    return outcome


def _is_explained(host: Any) -> bool:
    return bool(host and (host["gpus"] or host["problems"] or host["reasons"]))


def _knock(url: str, seconds: float) -> list[float]:
    waits, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        begun = time.monotonic()
        urllib.request.urlopen(f"{url}/healthz", timeout=60).close()
        waits.append(time.monotonic() - begun)
        time.sleep(0.02)
    return waits


@contextlib.contextmanager
def _exporter() -> Iterator[int]:
    """dcgm-exporter's page, as one that gathers far too many GPUs would show it; its port."""
    names = ("GPU_UTIL", "FB_USED", "FB_FREE", "GPU_TEMP", "POWER_USAGE")
    lines = [
        f'DCGM_FI_DEV_{name}{{gpu="{gpu}",UUID="GPU-{gpu:08}",modelName="NVIDIA H200"}} {gpu % 90}'
        for name in names
        for gpu in range(_SERIES // len(names))
    ]
    body = ("\n".join(lines) + "\n").encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    serving.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        serving.join(20)
        server.server_close()
