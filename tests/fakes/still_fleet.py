"""A fleet in which nothing happens: 24 hosts that reported once and are not missed within the day."""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

from fakes.hubs import HubProcess, running_hub
from fakes.pushed import send
from fakes.reports import GIB, IDLE, make_busy_gpu, make_envelope, make_gpu
from fakes.waiting import wait_until
from gpudeck.model.report import GpuEvent, GpuReading
from gpudeck.wire import Envelope

HOSTS = 24


@contextlib.contextmanager
def running_still_hub(folder: Path) -> Iterator[HubProcess]:
    """A hub with that fleet, for tests that only look at it. Its idle policy is a dry run."""
    # Tests look far more often than people do, and all from one address.
    rules = "idle_policy: {rules: [{name: all, notify_after: 1h, warn_after: 2h}]}"
    (folder / "gpudeck.yaml").write_text(f"demo: never\nlocal: never\nlimits: {{unlimited: [127.0.0.1]}}\n{rules}\n")
    with running_hub(folder) as hub:
        for envelope in still_reports():
            send(hub, envelope)
        wait_until(lambda: json.loads(hub.get("/api/v1/totals"))["hosts_up"] == HOSTS, "all hosts")
        yield hub


def still_reports() -> list[Envelope]:
    """gpu01 has a GPU of each state: 0 free, 1 busy (alice), 2 idle (bob), 3 unknown. gpu02 is an AMD server: 0 free,
    1 busy (carol). All GPUs of gpu03 are busy (dan). Of the others every second has a free GPU, and the last GPU of
    gpu24 had a fault (XID 31) a minute ago."""
    now = time.time()
    hosts = [_each_state(), _amd(), [_busy("gpu03", index, "dan") for index in range(8)]]
    hosts += [_usual(f"gpu{number:02}", number % 2) for number in range(4, HOSTS)]
    fault = GpuEvent(now - 60, 31, 4711, "MMU Fault")
    hosts += [[*(_busy("gpu24", index, "eve") for index in range(3)), _busy("gpu24", 3, "eve", events=[fault])]]
    return [
        make_envelope(f"gpu{number:02}", gpus=gpus, collected_at=now, interval_seconds=86_400.0)
        for number, gpus in enumerate(hosts, start=1)
    ]


def _each_state() -> list[GpuReading]:
    idle = _busy("gpu01", 2, "bob", idle_seconds=7200.0, metrics={"utilization_percent": 0})
    unread = make_gpu(3, uuid="GPU-gpu01-3", metrics=dict.fromkeys(IDLE), processes=None)
    return [_free("gpu01", 0), _busy("gpu01", 1, "alice"), idle, unread]


def _amd() -> list[GpuReading]:
    mi300x = {"name": "AMD Instinct MI300X", "vendor": "amd"}
    memory = {"memory_total_bytes": 192 * GIB}
    return [
        make_gpu(0, uuid="amd-0", metrics=memory, **mi300x),
        make_busy_gpu(1, "carol", uuid="amd-1", metrics=memory, **mi300x),
    ]


def _usual(host: str, free: int) -> list[GpuReading]:
    return [*(_free(host, index) for index in range(free)), *(_busy(host, index, "eve") for index in range(free, 4))]


def _free(host: str, index: int) -> GpuReading:
    return make_gpu(index, uuid=f"GPU-{host}-{index}")


def _busy(host: str, index: int, user: str, **others: object) -> GpuReading:
    return make_busy_gpu(index, user, uuid=f"GPU-{host}-{index}", **others)
