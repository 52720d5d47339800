"""Names, units and both text formats, as Prometheus' own parsers and linter see them."""

import shutil
import subprocess

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from gpudeck.model.catalog import CATALOG, GPU_METRICS, HOST_METRICS
from gpudeck.model.exposition import UNITS, expose, to_openmetrics, wants_openmetrics, write_family
from gpudeck.model.text import escape

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
HOSTILE = 'a"} 1\n# HELP evil x\n# TYPE evil gauge\nevil 1 \x1b[31m\x9b\x00\u202e\u2028\u200f'


def write_page() -> bytes:
    lines = [
        line
        for metric in CATALOG
        for line in write_family(expose(metric).name, expose(metric).kind, metric.label, [({"host": HOSTILE}, 1)])
    ]
    return ("\n".join(lines) + "\n").encode()


@pytest.mark.parametrize(
    ("metric", "name", "value", "told"),
    [
        (GPU_METRICS["utilization_percent"], "gpudeck_gpu_utilization_ratio", 97, 0.97),
        (GPU_METRICS["clock_sm_mhz"], "gpudeck_gpu_clock_sm_hertz", 1980, 1.98e9),
        (GPU_METRICS["energy_joules"], "gpudeck_gpu_energy_joules_total", 5, 5),
        (GPU_METRICS["ecc_corrected_count"], "gpudeck_gpu_ecc_corrected_total", 5, 5),
        (GPU_METRICS["nvlink_active_count"], "gpudeck_gpu_nvlinks_active", 18, 18),
        (GPU_METRICS["memory_used_bytes"], "gpudeck_gpu_memory_used_bytes", 2**30, 2**30),
        (HOST_METRICS["cpu_percent"], "gpudeck_host_cpu_ratio", 12.5, 0.125),
        (HOST_METRICS["uptime_seconds"], "gpudeck_host_uptime_seconds", 60, 60),
    ],
    ids=lambda part: getattr(part, "name", ""),
)
def test_names_and_values_are_in_base_units(metric, name, value, told) -> None:  # type: ignore[no-untyped-def]
    exposed = expose(metric)
    assert (exposed.name, exposed.scale(value)) == (name, told)


def test_names_are_what_dashboards_have() -> None:
    """Whoever changes one breaks the dashboards and rules of every site: add, never rename."""
    assert sorted(expose(metric).name for metric in CATALOG) == sorted(STABLE)


def test_no_two_metrics_have_one_name() -> None:
    assert len({expose(metric).name for metric in CATALOG}) == len(CATALOG)


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        (PROMETHEUS, True),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;q=0.1, text/plain", False),
        ("application/openmetrics-text;q=much", False),
        ("text/html,application/xhtml+xml", False),
    ],
)
def test_openmetrics_is_for_those_who_prefer_it(accept: str, wanted: bool) -> None:
    assert wants_openmetrics(accept) is wanted


def test_both_formats_say_the_same() -> None:
    page = write_page()
    old = [sample for family in text_families(page.decode()) for sample in family.samples]
    new = [sample for family in openmetrics_families(to_openmetrics(page).decode()) for sample in family.samples]
    assert [(one.name, one.labels, one.value) for one in new] == [(one.name, one.labels, one.value) for one in old]
    assert {one.labels["host"] for one in new} == {escape(HOSTILE)}


def test_a_terminal_that_shows_the_page_obeys_nothing_in_it() -> None:
    page = write_page()
    assert all(line.isprintable() for line in (page + to_openmetrics(page)).decode().split("\n"))


def test_units_are_told_and_are_the_ends_of_names() -> None:
    families = list(openmetrics_families(to_openmetrics(write_page()).decode()))
    assert {family.unit for family in families} == {*UNITS, ""}
    assert all(family.name.endswith(family.unit) for family in families)


def test_a_page_without_families_is_only_an_end() -> None:
    assert to_openmetrics(b"") == b"# EOF\n"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool: run tests/system-packages.sh")
def test_promtool_finds_nothing_to_say() -> None:
    run = subprocess.run(["promtool", "check", "metrics"], input=write_page(), capture_output=True, check=False)
    assert (run.returncode, run.stdout + run.stderr) == (0, b"")


STABLE = [
    "gpudeck_gpu_utilization_ratio",
    "gpudeck_gpu_memory_utilization_ratio",
    "gpudeck_gpu_memory_used_bytes",
    "gpudeck_gpu_memory_total_bytes",
    "gpudeck_gpu_temperature_celsius",
    "gpudeck_gpu_power_watts",
    "gpudeck_gpu_power_limit_watts",
    "gpudeck_gpu_fan_ratio",
    "gpudeck_gpu_clock_sm_hertz",
    "gpudeck_gpu_clock_memory_hertz",
    "gpudeck_gpu_encoder_ratio",
    "gpudeck_gpu_decoder_ratio",
    "gpudeck_gpu_memory_temperature_celsius",
    "gpudeck_gpu_performance_state",
    "gpudeck_gpu_throttled_power",
    "gpudeck_gpu_throttled_thermal",
    "gpudeck_gpu_throttled_hardware",
    "gpudeck_gpu_ecc_corrected_total",
    "gpudeck_gpu_ecc_uncorrected_total",
    "gpudeck_gpu_remapped_rows_total",
    "gpudeck_gpu_remapped_rows_pending",
    "gpudeck_gpu_nvlinks_active",
    "gpudeck_gpu_nvlinks_inactive",
    "gpudeck_gpu_nvlink_error_total",
    "gpudeck_gpu_nvlink_error_link",
    "gpudeck_gpu_pcie_generation",
    "gpudeck_gpu_pcie_generation_max",
    "gpudeck_gpu_pcie_width",
    "gpudeck_gpu_pcie_width_max",
    "gpudeck_gpu_temperature_margin_celsius",
    "gpudeck_gpu_energy_joules_total",
    "gpudeck_gpu_pcie_receive_bytes_per_second",
    "gpudeck_gpu_pcie_transmit_bytes_per_second",
    "gpudeck_gpu_sm_activity_ratio",
    "gpudeck_gpu_sm_occupancy_ratio",
    "gpudeck_gpu_tensor_activity_ratio",
    "gpudeck_gpu_dram_activity_ratio",
    "gpudeck_gpu_fp64_activity_ratio",
    "gpudeck_gpu_fp32_activity_ratio",
    "gpudeck_gpu_fp16_activity_ratio",
    "gpudeck_gpu_nvlink_receive_bytes_per_second",
    "gpudeck_gpu_nvlink_transmit_bytes_per_second",
    "gpudeck_host_cpu_ratio",
    "gpudeck_host_cpus",
    "gpudeck_host_load_1m",
    "gpudeck_host_memory_used_bytes",
    "gpudeck_host_memory_total_bytes",
    "gpudeck_host_disk_used_bytes",
    "gpudeck_host_disk_total_bytes",
    "gpudeck_host_swap_used_bytes",
    "gpudeck_host_swap_total_bytes",
    "gpudeck_host_network_receive_bytes_per_second",
    "gpudeck_host_network_transmit_bytes_per_second",
    "gpudeck_host_uptime_seconds",
]
