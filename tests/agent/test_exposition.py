"""A report as Prometheus reads it: what is known and nothing else, as its own parser sees it."""

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fakes.reports import GIB, HOST, IDLE, make_envelope, make_gpu, make_process
from gpudeck.agent.listen import write_metrics
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS
from gpudeck.model.exposition import expose
from gpudeck.model.report import Report
from gpudeck.wire import Envelope

NOW = 1_790_000_001.0


def samples_of(envelope: Envelope, now: float = NOW) -> dict[str, list[tuple[dict[str, str], float]]]:
    """By name, as Prometheus keeps it."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(write_metrics(envelope, now)):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_every_metric_of_the_catalog_is_told_with_its_labels() -> None:
    samples = samples_of(make_envelope(gpus=[make_gpu(3)]))
    labels = {"host": "gpu01", "gpu": "3", "uuid": "GPU-3", "model": "NVIDIA A100-SXM4-80GB"}
    for values, metrics, own in ((IDLE, GPU_METRICS, labels), (HOST, HOST_METRICS, {"host": "gpu01"})):
        told = {name: expose(metrics[name]) for name in values}
        assert {name: samples[told[name].name] for name in values} == {
            name: [(own, told[name].scale(value))] for name, value in values.items()
        }


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), -5, 500])
def test_what_is_unknown_or_cannot_be_is_left_out_and_not_zero(value: Any) -> None:
    gpus = [make_gpu(0, metrics={"fan_percent": value}), make_gpu(1, metrics={"fan_percent": 30})]
    samples = samples_of(make_envelope(gpus=gpus))
    assert [(labels["uuid"], fan) for labels, fan in samples["gpudeck_gpu_fan_ratio"]] == [("GPU-1", 0.3)]


def test_users_are_told_and_processes_are_not() -> None:
    processes = [
        make_process(11, "alice", 2, container="trainer", job="7"),
        make_process(12, "alice", 3),
        make_process(13, None, 4),
        make_process(14, "bob", 1),
    ]
    envelope = make_envelope(gpus=[make_gpu(processes=processes)])
    samples = samples_of(envelope)["gpudeck_gpu_user_memory_bytes"]
    assert [(labels["user"], size) for labels, size in samples] == [("alice", 5 * GIB), ("bob", GIB)]
    assert "train" not in write_metrics(envelope, NOW)
    assert {name for found in samples_of(envelope).values() for labels, _ in found for name in labels} == {
        *("host", "gpu", "uuid", "model", "vendor", "user", "version", "simulated"),
    }


def test_a_user_with_a_process_of_unknown_size_has_no_sum() -> None:
    unsized = make_process(12, "alice").__class__(pid=12, user="alice")
    samples = samples_of(make_envelope(gpus=[make_gpu(processes=[make_process(11, "alice"), unsized])]))
    assert "gpudeck_gpu_user_memory_bytes" not in samples


def test_a_missing_gpu_is_told_as_missing() -> None:
    gpus = [make_gpu(0), make_gpu(1, missing="fell off the bus", metrics=dict.fromkeys(IDLE))]
    samples = samples_of(make_envelope(gpus=gpus))
    assert [value for _, value in samples["gpudeck_gpu_missing"]] == [0, 1]
    assert [labels["uuid"] for labels, _ in samples["gpudeck_gpu_power_watts"]] == ["GPU-0"]


def test_what_was_read_long_ago_is_told_by_its_age_alone() -> None:
    fresh, stale = samples_of(make_envelope(), NOW + 8), samples_of(make_envelope(), NOW + 10)
    assert "gpudeck_gpu_power_watts" in fresh
    assert stale.keys() == {"gpudeck_agent_info", "gpudeck_report_age_seconds"}
    assert stale["gpudeck_report_age_seconds"] == [({"host": "gpu01"}, 11.0)]


def test_a_host_without_gpus_still_tells_about_itself() -> None:
    samples = samples_of(make_envelope(report=Report(gpus_reason="no driver", metrics=dict(HOST))))
    assert "gpudeck_host_cpu_ratio" in samples
    assert not [name for name in samples if name.startswith("gpudeck_gpu_")]


def test_names_that_would_break_the_format_are_escaped() -> None:
    name = 'A "GPU"\\\nof{many} kinds'
    samples = samples_of(make_envelope(gpus=[make_gpu(name=name)]))
    assert samples["gpudeck_gpu_power_watts"][0][0]["model"] == name.replace("\n", r"\n")
