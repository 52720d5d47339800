"""Rules for Prometheus, made from the hub's own: the same names, severities, limits and times.

What can be said of the metrics on the hub's page is asked of them, so that an alert names its host or GPU and goes on
while the hub's own engine is off. Whatever needs more than they tell (a reservation, an XID, a clock) is taken from
`gpudeck_alerts_firing`: there the hub itself has decided, and waited.
"""

import json
import tomllib
from functools import reduce
from pathlib import Path

from gpudeck import sources
from gpudeck.alerts.rules import RULES, RULES_BY_NAME
from gpudeck.alerts.settings import DEFAULTS, Limits
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.exposition import expose
from gpudeck.model.gpu_state import FleetSettings

HUB = 'job="gpudeck"'
_HEAD = "# Made from gpudeck's own rules by `make generated`: what is changed here is lost. See docs/prometheus.md.\n"
_GPU = "GPU {{ $labels.gpu }} of {{ $labels.host }}"

RECORDED = {
    "gpudeck:gpus:sum": f"sum(gpudeck_gpus{{{HUB}}})",
    "gpudeck:gpus_known:sum": f'sum(gpudeck_gpus{{{HUB},availability!="unknown"}})',
    "gpudeck:gpus_taken:ratio": (
        f'1 - sum(gpudeck_gpus{{{HUB},availability="free"}}) / (sum(gpudeck_gpus{{{HUB},availability!="unknown"}}) > 0)'
    ),
    "gpudeck:host_gpu_utilization:ratio": f"avg by (host) (gpudeck_gpu_utilization_ratio{{{HUB}}})",
    "gpudeck:host_gpu_memory:ratio": (
        f"sum by (host) (gpudeck_gpu_memory_used_bytes{{{HUB}}})"
        f" / sum by (host) (gpudeck_gpu_memory_total_bytes{{{HUB}}})"
    ),
    "gpudeck:model_gpus:count": f"count by (model, state) (gpudeck_gpu_state{{{HUB}}})",
    "gpudeck:user_gpus:count": f"count by (user) (gpudeck_gpu_users{{{HUB}}})",
    "gpudeck:gpu_power_watts:sum": f"sum(gpudeck_gpu_power_watts{{{HUB}}})",
}
"""What dashboards of a large fleet ask for again and again."""


def _share(used: str, total: str, limits: Limits) -> str:
    return f"{used}{{{HUB}}} / {total}{{{HUB}}} >= {(limits.above or 0.0) / 100:g}"


def _ask() -> dict[str, tuple[str, str]]:
    """What is asked of the metrics, and the sentence that tells of it."""
    of = DEFAULTS
    limit = f"gpudeck_gpu_power_limit_watts{{{HUB}}}"
    capped = 1 - (of["power_capped"].above or 0.0) / 100
    full = (of["fleet_nearly_full"].above or 0.0) / 100
    return {
        # As a warning the hub tells it by itself: samples wait, and nothing is lost.
        "history_failing": (
            f'sum(gpudeck_alerts_firing{{{HUB},rule="history_failing",severity="critical"}}) > 0',
            "The history is not kept, or samples of it are lost",
        ),
        "host_down": (
            f"gpudeck_host_report_age_seconds{{{HUB}}} > {FleetSettings().down_after:g}",
            "{{ $labels.host }} has stopped reporting",
        ),
        "host_unreadable": (
            # Of a host that was never seen there is no age of its last report.
            f"gpudeck_host_up{{{HUB}}} == 0 unless on (instance, host) gpudeck_host_report_age_seconds{{{HUB}}}",
            "{{ $labels.host }} is configured, and has never been read",
        ),
        "host_late": (
            f"changes(gpudeck_host_up{{{HUB}}}[1h]) >= {2 * (of['host_late'].above or 0.0):g}",
            "{{ $labels.host }} often reports late",
        ),
        "gpu_hot": (
            f"gpudeck_gpu_temperature_celsius{{{HUB}}} >= {of['gpu_hot'].above:g}",
            f"{_GPU} is at {{{{ $value }}}} °C",
        ),
        "gpu_throttled": (
            f"gpudeck_gpu_throttled_thermal{{{HUB}}} == 1 or gpudeck_gpu_throttled_hardware{{{HUB}}} == 1",
            f"{_GPU} is throttled",
        ),
        "ecc": (
            f"gpudeck_gpu_ecc_uncorrected_total{{{HUB}}} >= {of['ecc'].above:g}"
            f" or gpudeck_gpu_remapped_rows_pending{{{HUB}}} == 1",
            f"The memory of {_GPU} fails",
        ),
        "gpu_idle": (f'gpudeck_gpu_state{{{HUB},state="idle"}} == 1', f"{_GPU} is idle"),
        "power_capped": (
            f"{limit} <= on (model) group_left () ({capped:g} * quantile by (model) (0.5, {limit}))",
            f"{_GPU} is limited to {{{{ $value }}}} W, less than others of its model",
        ),
        "disk_full": (
            _share("gpudeck_host_disk_used_bytes", "gpudeck_host_disk_total_bytes", of["disk_full"]),
            "The disk of {{ $labels.host }} is {{ $value | humanizePercentage }} full",
        ),
        "ram_full": (
            _share("gpudeck_host_memory_used_bytes", "gpudeck_host_memory_total_bytes", of["ram_full"]),
            "{{ $value | humanizePercentage }} of the RAM of {{ $labels.host }} is in use",
        ),
        "fleet_nearly_full": (
            f"gpudeck:gpus_taken:ratio >= {full:g} and gpudeck:gpus_known:sum >= 8",
            "{{ $value | humanizePercentage }} of the GPUs are taken",
        ),
    }


ASKED = _ask()


def _dcgm_series() -> dict[str, str]:
    """The names of dcgm-exporter, and what is asked for each: the table with which the hub reads that exporter, the
    other way round. What one name alone does not say, and a share of time that is of another kind, is left out."""
    with (Path(sources.__file__).parent / "exporters" / "dcgm-exporter.toml").open("rb") as file:
        table = tomllib.load(file)["gpu"]
    memory = [f"gpudeck_gpu_memory_{what}_bytes{{{HUB}}}" for what in ("total", "used")]
    found = {"DCGM_FI_DEV_FB_FREE": f"({' - '.join(memory)}) / {2**20}"}
    for entry in table:
        series, name = entry["series"], entry["to"]
        if len(series) == 1 and "bits" not in entry and (name != "utilization_percent" or not entry.get("by_instance")):
            exposed = expose(GPU_METRICS[name])
            times, per = exposed.per, exposed.times * entry.get("factor", 1)
            scale = f" * {times / per:g}" if times > per else f" / {per / times:.10g}" if per > times else ""
            found[series[0]] = f"{exposed.name}{{{HUB}}}{scale}"
    return found


DCGM = _dcgm_series()


def dcgm_rules() -> str:
    """For dashboards of dcgm-exporter, as they are."""
    names = (("uuid", "UUID"), ("model", "modelName"), ("host", "Hostname"), ("host", "instance"))
    rules = ""
    for name, asked in sorted(DCGM.items()):
        named = reduce(lambda inner, one: f'label_replace({inner}, "{one[1]}", "$1", "{one[0]}", "(.*)")', names, asked)
        rules += f"      - record: {name}\n        expr: {json.dumps(named)}\n"
    return f"{_HEAD}groups:\n  - name: gpudeck-dcgm\n    rules:\n{rules}"


def recording_rules() -> str:
    rules = [f"      - record: {name}\n        expr: {json.dumps(asked)}\n" for name, asked in RECORDED.items()]
    return f"{_HEAD}groups:\n  - name: gpudeck\n    rules:\n" + "".join(rules)


def alert_rules() -> str:
    away = _write(
        "hub_away",
        f"up{{{HUB}}} == 0",
        120,
        "critical",
        "The hub {{ $labels.instance }} does not answer",
        "Look whether it runs, and at its log: nothing is watched, and no alert of its own is sent.",
    )
    degraded = _write(
        "hub_degraded",
        f"gpudeck_hub_part_up{{{HUB}}} == 0",
        300,
        "warning",
        "The hub {{ $labels.instance }} goes on without a part: {{ $labels.part }}",
        "Its /readyz says what is wrong and what works meanwhile.",
    )
    own = "".join(_write_own(rule.name) for rule in RULES)
    return f"{_HEAD}groups:\n  - name: gpudeck-alerts\n    rules:\n{away}{degraded}{own}"


def _write_own(name: str) -> str:
    limits, rule = DEFAULTS[name], RULES_BY_NAME[name]
    if name in ASKED:
        expression, summary = ASKED[name]
        return _write(name, expression, limits.wait, limits.severity, summary, rule.action)
    firing = f'sum(gpudeck_alerts_firing{{{HUB},rule="{name}"}}) > 0'
    return _write(name, firing, 0, limits.severity, rule.many.format(count="{{ $value }}"), rule.action)


def _write(name: str, expression: str, wait: float, severity: str, summary: str, action: str) -> str:
    lines = [
        f"- alert: {name}",
        f"  expr: {json.dumps(expression)}",
        *([f"  for: {wait:g}s"] if wait else []),
        f"  labels: {{severity: {severity}}}",
        "  annotations:",
        f"    summary: {json.dumps(summary, ensure_ascii=False)}",
        f"    action: {json.dumps(action, ensure_ascii=False)}",
    ]
    return "".join(f"      {line}\n" for line in lines)
