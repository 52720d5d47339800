"""The example for Prometheus, its rules and Grafana's dashboard: what ships is what is tried, by Prometheus itself."""

import contextlib
import itertools
import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.documents import ROOT
from fakes.hubs import HubProcess, running_hub, start
from fakes.ports import free_port
from fakes.prometheus import find_store
from fakes.waiting import wait_until
from generated_dashboard import dashboard
from generated_rules import ASKED, HUB, RECORDED
from gpudeck.alerts.rules import RULES
from gpudeck.alerts.settings import DEFAULTS
from gpudeck.model.catalog import CATALOG, Kind
from gpudeck.model.exposition import expose

FOLDER = ROOT / "deploy" / "prometheus"
SERIES = re.compile(r"\bgpudeck_\w+(?=\{)")
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool: run tests/system-packages.sh"
)


def promtool(*arguments: str, folder: Path) -> str:
    run = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    return run.stdout + run.stderr if run.returncode else "fine"


def write_example(folder: Path, hub: str, token: Path) -> Path:
    """The example with this test's hub and token in place of those that it names."""
    for file in FOLDER.iterdir():
        shutil.copy(file, folder)
    example = folder / "prometheus.yml"
    text = example.read_text()
    shown = "    # authorization:\n    #   credentials_file: /etc/prometheus/gpudeck-agent.token\n"
    assert shown in text
    text = text.replace(shown, f"    authorization:\n      credentials_file: {token}\n")
    text = text.replace("# - gpudeck.dcgm.yml", "- gpudeck.dcgm.yml")
    example.write_text(text.replace("127.0.0.1:8042", hub).replace("15s", "1s").replace("1m", "1s"))
    return example


@needs_promtool
def test_promtool_takes_the_example_as_it_is_shipped() -> None:
    assert promtool("check", "config", "prometheus.yml", folder=FOLDER) == "fine"
    assert promtool("check", "rules", *sorted(file.name for file in FOLDER.glob("*.*.yml")), folder=FOLDER) == "fine"


@needs_promtool
def test_promtool_takes_the_example_with_a_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    write_example(tmp_path, "hub.example:8042", token)
    assert promtool("check", "config", "prometheus.yml", folder=tmp_path) == "fine"


GPU = 'job="gpudeck",host="gpu01",gpu="0",uuid="GPU-0",model="H200"'
CASES: list[tuple[str, dict[str, str], str, str, int]] = [
    # The alert, series with their values once a minute, at what minute it is looked at, and how many fire.
    ("gpu_hot", {f"gpudeck_gpu_temperature_celsius{{{GPU}}}": "88x20"}, "4m", "just begun", 0),
    ("gpu_hot", {f"gpudeck_gpu_temperature_celsius{{{GPU}}}": "88x20"}, "6m", "for long enough", 1),
    ("gpu_hot", {f"gpudeck_gpu_temperature_celsius{{{GPU}}}": "86x20"}, "20m", "warm", 0),
    ("gpu_hot", {'gpudeck_gpu_temperature_celsius{job="gpudeck-agents"}': "99x20"}, "20m", "told by an agent too", 0),
    ("host_down", {f'gpudeck_host_report_age_seconds{{{HUB},host="gpu01"}}': "61x3"}, "1m", "silent", 1),
    ("host_down", {f'gpudeck_host_report_age_seconds{{{HUB},host="gpu01"}}': "59x3"}, "1m", "late only", 0),
    ("host_unreadable", {f'gpudeck_host_up{{{HUB},host="gpu01"}}': "0x12"}, "11m", "never seen", 1),
    ("host_unreadable", {f'gpudeck_host_up{{{HUB},host="gpu01"}}': "0x9 1x3"}, "11m", "freshly added", 0),
    (
        "host_unreadable",
        {
            f'gpudeck_host_up{{{HUB},host="gpu01"}}': "0x12",
            f'gpudeck_host_report_age_seconds{{{HUB},host="gpu01"}}': "61x12",
        },
        "11m",
        "down",
        0,
    ),
    ("host_late", {f'gpudeck_host_up{{{HUB},host="gpu01"}}': "1 0 " * 8}, "15m", "late", 1),
    ("gpu_throttled", {f"gpudeck_gpu_throttled_hardware{{{GPU}}}": "1x9"}, "6m", "throttled", 1),
    ("ecc", {f"gpudeck_gpu_remapped_rows_pending{{{GPU}}}": "1x9"}, "2m", "row remap", 1),
    ("ecc", {f"gpudeck_gpu_ecc_uncorrected_total{{{GPU}}}": "0x9"}, "9m", "none", 0),
    ("gpu_idle", {f'gpudeck_gpu_state{{{GPU},state="idle"}}': "1x130"}, "125m", "idle", 1),
    ("gpu_idle", {f'gpudeck_gpu_state{{{GPU},state="busy"}}': "1x130"}, "125m", "at work", 0),
    (
        "power_capped",
        {
            f'gpudeck_gpu_power_limit_watts{{{HUB},gpu="{n}",model="H200"}}': f"{watts}x20"
            for n, watts in enumerate((700, 700, 500))
        },
        "15m",
        "one of three",
        1,
    ),
    (
        "disk_full",
        {f"gpudeck_host_disk_used_bytes{{{HUB}}}": "96x9", f"gpudeck_host_disk_total_bytes{{{HUB}}}": "100x9"},
        "2m",
        "nearly full",
        1,
    ),
    (
        "ram_full",
        {f"gpudeck_host_memory_used_bytes{{{HUB}}}": "94x20", f"gpudeck_host_memory_total_bytes{{{HUB}}}": "100x20"},
        "15m",
        "room left",
        0,
    ),
    (
        "fleet_nearly_full",
        {
            f'gpudeck_gpus{{{HUB},availability="free"}}': "1x70",
            f'gpudeck_gpus{{{HUB},availability="busy"}}': "39x70",
            f'gpudeck_gpus{{{HUB},availability="unknown"}}': "900x70",
        },
        "65m",
        "of those that are known",
        1,
    ),
    ("fleet_nearly_full", {f'gpudeck_gpus{{{HUB},availability="busy"}}': "4x70"}, "65m", "a small one", 0),
    ("gpu_lost", {f'gpudeck_alerts_firing{{{HUB},rule="gpu_lost",severity="critical"}}': "2x9"}, "0m", "by the hub", 1),
    ("xid", {f'gpudeck_alerts_firing{{{HUB},rule="gpu_lost",severity="critical"}}': "2x9"}, "5m", "another", 0),
    ("hub_away", {f'up{{{HUB},instance="hub"}}': "0x9"}, "3m", "gone", 1),
    ("hub_degraded", {f'gpudeck_hub_part_up{{{HUB},part="database"}}': "0x9"}, "6m", "no database", 1),
    ("hub_degraded", {f'gpudeck_hub_part_up{{{HUB},part="database"}}': "1x9"}, "6m", "all is well", 0),
]


@needs_promtool
def test_series_of_dcgm_exporter_are_in_its_units(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "gpudeck.dcgm.yml", tmp_path)
    series = {
        f"gpudeck_gpu_utilization_ratio{{{GPU}}}": "0.25x5",
        f"gpudeck_gpu_memory_used_bytes{{{GPU}}}": f"{3 * 2**20}x5",
        f"gpudeck_gpu_memory_total_bytes{{{GPU}}}": f"{10 * 2**20}x5",
        f"gpudeck_gpu_clock_sm_hertz{{{GPU}}}": "1980000000x5",
        f"gpudeck_gpu_energy_joules_total{{{GPU}}}": "7x5",
    }
    told = {"GPU_UTIL": 25, "FB_USED": 3, "FB_FREE": 7, "SM_CLOCK": 1980, "TOTAL_ENERGY_CONSUMPTION": 7000}
    labels = '{Hostname="gpu01",UUID="GPU-0",gpu="0",host="gpu01",instance="gpu01",modelName="H200"}'
    asked = [
        {
            "expr": f"sum by (Hostname, UUID, gpu, host, instance, modelName) (DCGM_FI_DEV_{name})",
            "eval_time": "2m",
            "exp_samples": [{"labels": labels, "value": value}],
        }
        for name, value in told.items()
    ]
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": asked,
    }
    rules = {"rule_files": ["gpudeck.dcgm.yml"], "evaluation_interval": "1m", "tests": [case]}
    (tmp_path / "test.yml").write_text(json.dumps(rules))
    assert promtool("test", "rules", "test.yml", folder=tmp_path) == "fine"


@needs_promtool
@pytest.mark.parametrize(("alert", "series", "at", "_", "count"), CASES, ids=[f"{c[0]}, {c[3]}" for c in CASES])
def test_an_alert_fires_when_its_rule_says(
    alert: str, series: dict[str, str], at: str, _: str, count: int, tmp_path: Path
) -> None:
    for file in FOLDER.glob("gpudeck.*.yml"):
        shutil.copy(file, tmp_path)
    asked = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)'
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values.strip()} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": asked, "eval_time": at, "exp_samples": [{"labels": "{}", "value": count}]},
        ],
    }
    rules = {"rule_files": ["gpudeck.rules.yml", "gpudeck.alerts.yml"], "evaluation_interval": "1m", "tests": [case]}
    (tmp_path / "test.yml").write_text(json.dumps(rules))
    assert promtool("test", "rules", "test.yml", folder=tmp_path) == "fine"


def test_alerts_have_the_names_and_severities_of_the_hubs_own() -> None:
    text = (FOLDER / "gpudeck.alerts.yml").read_text()
    found = re.findall(r"alert: (\w+)\n(?:.*\n)*?\s+labels: \{severity: (\w+)\}", text)
    assert dict(found) == {"hub_away": "critical", "hub_degraded": "warning"} | {
        rule.name: DEFAULTS[rule.name].severity for rule in RULES
    }


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(dashboard())["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def test_every_metric_that_moves_has_a_panel() -> None:
    shown = {name for expression in expressions() for name in SERIES.findall(expression)}
    assert {expose(metric).name for metric in CATALOG if metric.kind is not Kind.CONSTANT} <= shown


def test_panels_do_not_cover_each_other() -> None:
    taken = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in json.loads(dashboard())["panels"]
        for x, y in itertools.product(range(panel["gridPos"]["w"]), range(panel["gridPos"]["h"]))
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) == 23


class Prometheus:
    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, expression: str) -> list[tuple[dict[str, str], float]]:
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{query}", timeout=10) as answer:
            found = json.load(answer)["data"]["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    def by(self, expression: str, label: str) -> dict[str, float]:
        return {labels[label]: value for labels, value in self.ask(expression)}


@contextlib.contextmanager
def running_prometheus(folder: Path, hub: str, token: Path) -> Iterator[Prometheus]:
    program, port = find_store("prometheus"), free_port()
    example = write_example(folder, hub, token)
    options = [
        f"--config.file={example}",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([program, *options], stdout=log, stderr=log, cwd=folder)
    try:
        prometheus = Prometheus(f"http://127.0.0.1:{port}")
        wait_until(lambda: is_scraped(prometheus, process, folder), "the first scrape of the hub", 60)
        yield prometheus
    finally:
        process.kill()
        process.wait(10)


def is_scraped(prometheus: Prometheus, process: subprocess.Popen[bytes], folder: Path) -> bool:
    assert process.poll() is None, (folder / "prometheus.log").read_text()[-2000:]
    with contextlib.suppress(OSError):
        is_up = prometheus.by(f"up{{{HUB}}}", "job") == {"gpudeck": 1}
        return is_up and bool(prometheus.ask(f"gpudeck_hosts{{{HUB}}}"))
    return False


AGENT = 'gpudeck_host_cpu_ratio{job="gpudeck-agents",instance="node7",rack="b3"}'
CONFIG = """
demo: never
pull: {{token_file: {token}}}
hosts:
  - {{name: node7, via: pull, address: 127.0.0.1, port: {port}, labels: {{rack: b3}}}}
"""


@pytest.mark.slow
def test_prometheus_shows_the_numbers_of_the_fleet(tmp_path: Path) -> None:
    """And each question of the dashboard and of the rules can be asked."""
    token = tmp_path / "listen.token"
    token.write_text("a-token-of-an-agent\n")
    folder = tmp_path / "prometheus"
    folder.mkdir()
    with (
        running_hub(tmp_path, "--demo", "3") as hub,
        running_prometheus(folder, hub.url.removeprefix("http://"), token) as prometheus,
    ):
        check_numbers(hub, prometheus)
        check_questions(prometheus)


@pytest.mark.slow
def test_prometheus_finds_the_agents_through_the_hub(tmp_path: Path) -> None:
    port = free_port()
    token = tmp_path / "listen.token"
    token.write_text("a-token-of-an-agent\n")
    (tmp_path / "gpudeck.yaml").write_text(CONFIG.format(port=port, token=token))
    folder = tmp_path / "prometheus"
    folder.mkdir()
    agent = start(
        tmp_path, "agent.log", "agent", "--listen", f"127.0.0.1:{port}", "--token-file", str(token), "--name", "other"
    )
    try:
        with (
            running_hub(tmp_path, "--config", str(tmp_path / "gpudeck.yaml")) as hub,
            running_prometheus(folder, hub.url.removeprefix("http://"), token) as prometheus,
        ):
            wait_until(lambda: prometheus.ask(AGENT), "the scrape of the agent", 60)
    finally:
        agent.kill()
        agent.communicate(timeout=10)


FIGURES = {
    "utilization_percent": ("gpudeck_gpu_utilization_ratio", 100),
    "memory_used_bytes": ("gpudeck_gpu_memory_used_bytes", 1),
    "power_watts": ("gpudeck_gpu_power_watts", 1),
    "temperature_celsius": ("gpudeck_gpu_temperature_celsius", 1),
    "clock_sm_mhz": ("gpudeck_gpu_clock_sm_hertz", 1e-6),
}


def check_numbers(hub: HubProcess, prometheus: Prometheus) -> None:
    """The fleet moves on between two questions: the same moment is found soon."""

    def is_same() -> bool:
        fleet = json.loads(hub.get("/api/v1/fleet"))
        gpus = [gpu for host in fleet["hosts"] for gpu in host["gpus"]]
        totals = prometheus.by(f"gpudeck_gpus{{{HUB}}}", "availability")
        return (
            len(gpus) > 10
            and all(fleet["totals"][word] == count for word, count in totals.items())
            and all(
                {gpu["uuid"]: round(gpu[name], 3) for gpu in gpus if gpu[name] is not None}
                == {
                    uuid: round(value * scale, 3) for uuid, value in prometheus.by(f"{series}{{{HUB}}}", "uuid").items()
                }
                for name, (series, scale) in FIGURES.items()
            )
        )

    wait_until(is_same, "the same figures in Prometheus as in the fleet", 90)


def check_questions(prometheus: Prometheus) -> None:
    names = {labels["__name__"] for labels, _ in prometheus.ask('{__name__=~"gpudeck_.*",job="gpudeck"}')}
    # These have series only once something fails, or is refused; traffic over PCIe is not simulated.
    quiet = {"gpudeck_alerts_firing", "gpudeck_reports_refused_total", "gpudeck_gpu_nvlink_error_link"}
    quiet |= {f"gpudeck_gpu_pcie_{way}_bytes_per_second" for way in ("receive", "transmit")}
    # Each of the exporter's names comes with the labels that its dashboards ask for.
    joined = 'gpudeck_gpu_power_watts{job="gpudeck"} * on (uuid) group_left (vendor) gpudeck_gpu_info{job="gpudeck"}'
    assert {labels["vendor"] for labels, _ in prometheus.ask(joined)} == {"nvidia"}
    wait_until(lambda: prometheus.ask("DCGM_FI_DEV_FB_USED"), "a series by its name in dcgm-exporter", 60)
    of_dcgm, _ = prometheus.ask("DCGM_FI_DEV_FB_USED")[0]
    assert of_dcgm["UUID"] == of_dcgm["uuid"]
    assert of_dcgm["Hostname"] == of_dcgm["instance"] == of_dcgm["host"]
    questions = [*expressions(), *RECORDED.values(), *(asked for asked, _ in ASKED.values())]
    assert {name for asked in questions for name in SERIES.findall(asked)} - names <= quiet
    for asked in questions:
        prometheus.ask(fill(asked))
    answered = [asked for asked in (*expressions(), *RECORDED.values()) if quiet.isdisjoint(SERIES.findall(asked))]
    wait_until(lambda: not [asked for asked in answered if not prometheus.ask(fill(asked))], "an answer to each", 60)


def fill(asked: str) -> str:
    """As Grafana does it, with all hosts and models chosen."""
    return asked.replace("$__rate_interval", "1m").replace('"$host"', '".*"').replace('"$model"', '".*"')
