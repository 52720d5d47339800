"""The hub as Prometheus reads it: what is known and of now, as its own parser sees it."""

import asyncio
import random
from collections import Counter
from typing import Any

import httpx
import pytest
from litestar import Litestar
from litestar.di import Provide
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from fakes.clock import FakeClock
from fakes.reports import HOST, IDLE, make_busy_gpu, make_envelope, make_gpu, make_process
from gpudeck.api.metrics import MetricsPage, read_metrics
from gpudeck.collectors.simulated import SimulatedFleet
from gpudeck.fleet.hub import Hub
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS
from gpudeck.model.errors import ReportRefused
from gpudeck.model.exposition import expose
from gpudeck.model.target import Target
from gpudeck.model.text import escape
from gpudeck.server.admission import KINDS

Samples = dict[str, list[tuple[dict[str, str], float]]]


async def read(page: MetricsPage, **form: bool) -> bytes:
    return b"".join(await page.open(**form))


class Page:
    """The metrics of a hub on a clock of its own."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.hub = Hub(now=self.clock)
        self.hits: Counter[str] = Counter()
        self.page = MetricsPage(self.hub, self.hits)

    def report(self, host: str = "gpu01", sequence: int = 1, **others: Any) -> None:
        envelope = make_envelope(host, sequence, host_id=f"id-{host}", **others)
        self.hub.fleet.apply(envelope, via="push", now=self.clock())

    def text(self) -> str:
        self.clock.advance(0.001)
        self.hub.stream.tick()
        return asyncio.run(read(self.page)).decode()

    def samples(self) -> Samples:
        found: Samples = {}
        for family in text_string_to_metric_families(self.text()):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found

    def of_gpu(self, name: str) -> dict[str, float]:
        return {labels["uuid"]: value for labels, value in self.samples().get(f"gpudeck_gpu_{name}", [])}


@pytest.fixture
def page() -> Page:
    return Page()


def by(samples: Samples, name: str, label: str) -> dict[str, float]:
    return {labels[label]: value for labels, value in samples[name]}


def test_every_metric_of_the_catalog_is_told_with_its_labels(page: Page) -> None:
    page.report(gpus=[make_gpu(3)])
    samples = page.samples()
    labels = {"host": "gpu01", "gpu": "3", "uuid": "GPU-3", "model": "NVIDIA A100-SXM4-80GB"}
    for values, metrics, own in ((IDLE, GPU_METRICS, labels), (HOST, HOST_METRICS, {"host": "gpu01"})):
        told = {name: expose(metrics[name]) for name in values}
        assert {name: samples[told[name].name] for name in values} == {
            name: [(own, told[name].scale(value))] for name, value in values.items()
        }


def test_what_a_gpu_is_doing_is_one_series_of_its_state(page: Page) -> None:
    page.report(gpus=[make_gpu(0), make_busy_gpu(1)])
    states = [(labels["uuid"], labels["state"], value) for labels, value in page.samples()["gpudeck_gpu_state"]]
    assert states == [("GPU-0", "free", 1), ("GPU-1", "busy", 1)]


def test_what_is_unknown_is_left_out_and_not_zero(page: Page) -> None:
    page.report(gpus=[make_gpu(0, metrics={"fan_percent": None}), make_gpu(1, metrics={"fan_percent": 30})])
    assert page.of_gpu("fan_ratio") == {"GPU-1": 0.3}
    page.report(sequence=2, gpus=[make_gpu(0, metrics={"fan_percent": None})])
    assert "gpudeck_gpu_fan_ratio" not in page.text()


def test_a_silent_host_has_no_values_but_is_told_of(page: Page) -> None:
    page.report("gpu01", gpus=[make_busy_gpu(0)])
    page.clock.advance(30)
    page.report("gpu02", gpus=[make_gpu(1)])
    samples = page.samples()
    assert by(samples, "gpudeck_host_up", "host") == {"gpu01": 0, "gpu02": 1}
    assert by(samples, "gpudeck_host_report_age_seconds", "host") == {"gpu01": 30.001, "gpu02": 0.001}
    assert by(samples, "gpudeck_host_cpu_ratio", "host") == {"gpu02": 0.125}
    assert by(samples, "gpudeck_gpu_power_watts", "uuid") == {"GPU-1": 60.5}
    assert "gpudeck_gpu_users" not in samples


def test_gpus_that_could_not_be_read_this_time_have_no_values(page: Page) -> None:
    page.report(gpus=[make_gpu(0)])
    unread = make_envelope(sequence=2).report.__class__(gpus=None, gpus_reason="the driver hangs", metrics=dict(HOST))
    page.report(sequence=2, report=unread)
    assert page.of_gpu("power_watts") == {}
    assert by(page.samples(), "gpudeck_gpus", "availability")["unknown"] == 1


def test_totals_are_told_and_none_is_missing(page: Page) -> None:
    page.report(gpus=[make_gpu(0), make_busy_gpu(1), make_gpu(2)])
    page.hub.fleet.expect([Target(name="gpu09", origin="test")])
    samples = page.samples()
    assert by(samples, "gpudeck_gpus", "availability") == {
        "free": 2,
        "busy": 1,
        "idle": 0,
        "reserved": 0,
        "allocated": 0,
        "drained": 0,
        "unknown": 0,
    }
    assert by(samples, "gpudeck_hosts", "status") == {"up": 1, "late": 0, "down": 0, "never_seen": 1}


def test_users_are_told_and_processes_are_not(page: Page) -> None:
    own = make_process(11, "alice", container="trainer", job="7")
    processes = [own, make_process(12, "bob"), make_process(13, None)]
    page.report(gpus=[make_busy_gpu(0), make_gpu(1, processes=processes, metrics={"memory_used_bytes": 2**34})])
    samples = page.samples()["gpudeck_gpu_users"]
    assert [(labels["uuid"], labels["user"], value) for labels, value in samples] == [
        ("GPU-0", "alice", 1),
        ("GPU-1", "alice", 1),
        ("GPU-1", "bob", 1),
    ]
    assert not any(word in page.text() for word in ("train", "4711", "pid", "job"))


def test_the_hubs_own_counters_are_told(page: Page) -> None:
    page.report()
    page.hub.ingest.count(ReportRefused(401, "unauthorized", "no"))
    page.hub.ingest.count(ReportRefused(401, "unauthorized", "no"))
    page.hub.ingest.count(ReportRefused(413, "too_large", "no"))
    page.hits["requests"] += 7
    viewer = page.hub.stream.watch()
    samples = page.samples()
    page.hub.stream.unwatch(viewer)
    assert samples["gpudeck_reports_taken_total"] == [({}, 1)]
    assert by(samples, "gpudeck_reports_refused_total", "code") == {"unauthorized": 2, "too_large": 1}
    assert by(samples, "gpudeck_limit_hits_total", "limit") == dict.fromkeys(KINDS, 0) | {"requests": 7}
    assert samples["gpudeck_viewers"] == [({}, 1)]
    assert samples["gpudeck_tick_age_seconds"] == [({}, 0)]
    assert samples["gpudeck_poll_failures_total"] == [({}, 0)]


HOSTILE = 'a"} 1\nevil{x="\\ \r\t\x1b[31m\u2028 é'


def test_hostile_names_stay_within_their_labels(page: Page) -> None:
    gpu = make_gpu(0, uuid=HOSTILE, name=HOSTILE, processes=[make_process(user=HOSTILE)])
    page.report(gpus=[gpu])
    samples = page.samples()
    labels = samples["gpudeck_gpu_power_watts"][0][0]
    assert (labels["uuid"], labels["model"]) == (escape(HOSTILE), escape(HOSTILE))
    assert samples["gpudeck_gpu_users"][0][0]["user"] == escape(HOSTILE)
    assert not any(name.startswith("evil") for name in samples)


def test_no_series_is_told_twice_where_two_hosts_have_one_name(page: Page) -> None:
    for number in (1, 2):
        envelope = make_envelope("same", host_id=f"id-{number}", boot_id=f"boot-{number}", run_id=f"run-{number}")
        page.hub.fleet.apply(envelope, via="push", now=page.clock())
    assert len(page.hub.fleet.hosts) == 2
    lines = [line.rpartition(" ")[0] for line in page.text().splitlines()]
    assert len(lines) == len(set(lines))


def write_slowly(hub: Hub) -> Samples:
    """What is told of hosts and GPUs, one value at a time."""
    found: Samples = {}
    for host in hub.fleet.ordered():
        own = {"host": host.name, **host.facts.labels}
        found.setdefault("gpudeck_host_up", []).append((own, int(host.status == "up")))
        for metric in HOST_METRICS.values():
            if host.status == "up" and (value := host.value(metric.name)) is not None:
                found.setdefault(expose(metric).name, []).append((own, expose(metric).scale(value)))
        for gpu in host.current_gpus() if host.status == "up" else ():
            labels = {**own, "gpu": gpu.label, "uuid": gpu.uuid, "model": gpu.name}
            for metric in GPU_METRICS.values():
                if (value := gpu.value(metric.name)) is not None:
                    found.setdefault(expose(metric).name, []).append((labels, expose(metric).scale(value)))
            found.setdefault("gpudeck_gpu_state", []).append(({**labels, "state": gpu.availability}, 1))
            info = {"vendor": gpu.vendor} | ({"pci_address": gpu.pci_address} if gpu.pci_address else {})
            found.setdefault("gpudeck_gpu_info", []).append(({**labels, **info}, 1))
            for user in gpu.users:
                found.setdefault("gpudeck_gpu_users", []).append(({**labels, "user": user}, 1))
    return found


def test_columns_tell_what_one_value_at_a_time_tells(page: Page) -> None:
    """A lab with boards cut into instances, unknown values, hosts that fall silent, leave and come back."""
    lab, chance = SimulatedFleet(hosts=40), random.Random(1)
    for sequence in range(1, 13):
        page.clock.advance(3)
        for host in range(40):
            report = lab.report(host, page.clock()) if chance.random() < 0.8 else None
            if report is not None:
                page.report(lab.names[host], sequence, collected_at=page.clock(), interval_seconds=1.0, report=report)
        page.hub.fleet.remove(chance.choice(list(page.hub.fleet.hosts)))
        samples = page.samples()
        expected = write_slowly(page.hub)
        assert {name: samples[name] for name in expected} == expected
        assert not {name for name in samples.keys() - expected if name.startswith("gpudeck_gpu_")}
    assert {host.status for host in page.hub.fleet.hosts.values()} >= {"up", "late"}


def test_labels_follow_a_gpu_that_is_called_otherwise(page: Page) -> None:
    page.report(gpus=[make_gpu(0)])
    page.text()
    page.report(sequence=2, gpus=[make_gpu(5, uuid="GPU-0", name="NVIDIA H200")])
    labels, _ = page.samples()["gpudeck_gpu_power_watts"][0]
    assert (labels["gpu"], labels["model"]) == ("5", "NVIDIA H200")


def test_labels_of_a_host_are_labels_of_its_series_and_follow_it(page: Page) -> None:
    page.report(gpus=[make_gpu(0)])
    target = Target(
        name="gpu01", origin="test", labels={"rack": "r1", "data-center": "north", "model": "own", "no": ""}
    )
    page.hub.fleet.expect([target])
    samples = page.samples()
    host = {"host": "gpu01", "rack": "r1", "data_center": "north", "label_model": "own"}
    gpu = {"gpu": "0", "uuid": "GPU-0", "model": "NVIDIA A100-SXM4-80GB"}
    assert samples["gpudeck_host_up"] == [(host, 1)]
    assert samples["gpudeck_host_cpu_ratio"] == [(host, 0.125)]
    assert samples["gpudeck_gpu_power_watts"] == [(host | gpu, 60.5)]
    assert samples["gpudeck_gpu_info"] == [(host | gpu | {"vendor": "nvidia"}, 1)]
    page.hub.fleet.expect([Target(name="gpu01", origin="test", labels={"rack": "r2"})])
    page.report(sequence=2, gpus=[make_gpu(0)])
    assert page.samples()["gpudeck_gpu_power_watts"] == [({"host": "gpu01", "rack": "r2"} | gpu, 60.5)]


def test_a_gpu_is_found_by_its_uuid_with_a_join(page: Page) -> None:
    """Also a MIG instance, whose number is the index of its board and its own."""
    page.report(gpus=[make_gpu(2, uuid="MIG-1", instance=3, parent="GPU-2"), make_gpu(1)])
    found = {labels["uuid"]: (labels["host"], labels["gpu"]) for labels, _ in page.samples()["gpudeck_gpu_info"]}
    assert found == {"MIG-1": ("gpu01", "2.3"), "GPU-1": ("gpu01", "1")}


def test_hosts_that_leave_while_the_fleet_is_read_or_written_mix_with_no_others(page: Page) -> None:
    for number in range(300):
        page.report(f"gpu{number:03}", gpus=[make_gpu(number)])
    page.hub.stream.tick()

    async def read_and_remove() -> list[str]:
        opening = asyncio.create_task(page.page.open())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        page.hub.fleet.remove("id-gpu299")
        parts = await opening
        for number in range(100):
            page.hub.fleet.remove(f"id-gpu{number:03}")
        page.hub.stream.tick()
        page.report("other", gpus=[make_gpu(number) for number in range(900, 1000)])
        return b"".join(parts).decode().splitlines()

    lines = asyncio.run(read_and_remove())
    watts = [line for line in lines if line.startswith("gpudeck_gpu_power_watts")]
    assert [line.split('"')[1] for line in watts] == [f"gpu{number:03}" for number in range(299)]
    assert all(line.endswith("} 60.5") for line in watts)


def test_an_empty_hub_has_metrics_of_its_own(page: Page) -> None:
    samples = page.samples()
    assert sum(value for _, value in samples["gpudeck_gpus"]) == 0
    assert "gpudeck_host_up" not in samples


def ask(page: Page, *, is_published: bool = True, **headers: str) -> httpx.Response:
    if is_published:
        page.report()
        page.hub.stream.tick()
    app = Litestar(
        [read_metrics],
        dependencies={"metrics": Provide(lambda: page.page, sync_to_thread=False)},
        signature_types=[MetricsPage],
        openapi_config=None,
        logging_config=None,
    )

    async def get() -> httpx.Response:
        transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://hub") as client:
            return await client.get(
                "/metrics", headers={name.replace("_", "-"): value for name, value in headers.items()}
            )

    return asyncio.run(get())


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_over_http_it_is_text_for_prometheus(page: Page, encoding: str) -> None:
    answer = ask(page, Accept_Encoding=encoding)
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.headers.get("content-encoding", "identity") == encoding
    assert 'gpudeck_gpus{availability="free"} 1\n' in answer.text


def test_it_is_made_once_for_all_who_ask_within_a_second(page: Page) -> None:
    first = ask(page).text
    page.hub.fleet.remove("id-gpu01")
    assert ask(page, is_published=False).text == first
    assert 'host="gpu01"' in first
    page.hub.stream.tick()
    assert 'host="gpu01"' not in ask(page, is_published=False).text


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_who_asks_for_openmetrics_gets_it(page: Page, encoding: str) -> None:
    answer = ask(page, Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5", Accept_Encoding=encoding)
    assert answer.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert answer.headers["vary"] == "Accept, Accept-Encoding"
    families = {family.name: family for family in openmetrics_families(answer.text)}
    assert families["gpudeck_gpu_utilization_ratio"].unit == "ratio"
    assert families["gpudeck_reports_taken"].type == "counter"
