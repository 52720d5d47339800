"""A dashboard for Grafana, made from the catalog: a new metric has its panel by itself."""

import json
from typing import Any

from generated_rules import HUB
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Kind, Metric, Rollup
from gpudeck.model.exposition import UNITS, expose

Panel = dict[str, Any]
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_WIDTH, _HEIGHT = 24, 7
_UNITS = {
    "bytes_per_second": "Bps",
    "bytes": "bytes",
    "seconds": "s",
    "ratio": "percentunit",
    "celsius": "celsius",
    "watts": "watt",
    "joules": "joule",
    "hertz": "hertz",
}
_FOLDS = {Rollup.MEAN: "avg", Rollup.SUM: "sum", Rollup.MAX: "max", Rollup.LAST: "max"}
_COLOURS = {
    "free": "green",
    "busy": "red",
    "idle": "orange",
    "reserved": "blue",
    "allocated": "light-blue",
    "drained": "purple",
    "unknown": "text",
}
_GPUS = f'{HUB},host=~"$host",model=~"$model"'
_HOSTS = f'{HUB},host=~"$host"'


def dashboard() -> str:
    """As JSON that Grafana imports."""
    panels = _lay_out(
        [
            ("Fleet", _fleet()),
            ("GPUs, by host", [_over_time(metric, _GPUS) for metric in GPU_METRICS.values() if _moves(metric)]),
            ("Hosts", [_over_time(metric, _HOSTS) for metric in HOST_METRICS.values() if _moves(metric)]),
            ("The hub", _hub()),
        ]
    )
    document = {
        "uid": "gpudeck",
        "title": "gpudeck",
        "tags": ["gpu", "gpudeck"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "panels": panels,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _variables() -> list[Panel]:
    return [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus", "hide": 0},
        _variable("host", f"label_values(gpudeck_host_up{{{HUB}}}, host)"),
        _variable("model", f"label_values(gpudeck_gpu_state{{{HUB}}}, model)"),
    ]


def _variable(name: str, query: str) -> Panel:
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _fleet() -> list[Panel]:
    states = [
        {"matcher": {"id": "byName", "options": word}, "properties": [_colour(colour)]}
        for word, colour in _COLOURS.items()
    ]
    return [
        _panel("GPUs now", "stat", "short", [(f"gpudeck_gpus{{{HUB}}}", "{{availability}}")], overrides=states),
        _panel("Hosts now", "stat", "short", [(f"gpudeck_hosts{{{HUB}}}", "{{status}}")]),
        _panel("Alerts that fire", "stat", "short", [(f"gpudeck_alerts_firing{{{HUB}}}", "{{rule}}")]),
        _panel(
            "What GPUs are doing",
            "timeseries",
            "short",
            [(f"sum by (state) (gpudeck_gpu_state{{{_GPUS}}})", "{{state}}")],
            overrides=states,
            stacked=True,
        ),
        _panel(
            "GPUs by user",
            "timeseries",
            "short",
            [(f"count by (user) (gpudeck_gpu_users{{{_GPUS}}})", "{{user}}")],
            stacked=True,
        ),
        _panel(
            "Free GPUs by model",
            "timeseries",
            "short",
            [(f'count by (model) (gpudeck_gpu_state{{{_GPUS},state="free"}})', "{{model}}")],
        ),
    ]


def _hub() -> list[Panel]:
    return [
        _panel(
            "Reports a second",
            "timeseries",
            "short",
            [
                (f"rate(gpudeck_reports_taken_total{{{HUB}}}[$__rate_interval])", "taken"),
                (f"sum(rate(gpudeck_reports_refused_total{{{HUB}}}[$__rate_interval]))", "refused"),
            ],
        ),
        _panel("Live views", "timeseries", "short", [(f"gpudeck_viewers{{{HUB}}}", "open")]),
        _panel(
            "Time since a host's last report",
            "timeseries",
            "s",
            [(f"gpudeck_host_report_age_seconds{{{_HOSTS}}}", "{{host}}")],
        ),
    ]


def _moves(metric: Metric) -> bool:
    return metric.kind is not Kind.CONSTANT


def _over_time(metric: Metric, labels: str) -> Panel:
    exposed, fold = expose(metric), _FOLDS[metric.rollup]
    asked = f"{exposed.name}{{{labels}}}"
    unit = next((_UNITS[unit] for unit in UNITS if exposed.name.removesuffix("_total").endswith(f"_{unit}")), "short")
    title = metric.label
    if exposed.kind == "counter":
        asked, title = f"increase({asked}[1h])", f"{metric.label}: in the last hour"
    return _panel(title, "timeseries", unit, [(f"{fold} by (host) ({asked})", "{{host}}")])


def _panel(
    title: str,
    kind: str,
    unit: str,
    asked: list[tuple[str, str]],
    *,
    overrides: list[Panel] | None = None,
    stacked: bool = False,
) -> Panel:
    custom: Panel = {"fillOpacity": 60, "stacking": {"mode": "normal"}} if stacked else {}
    return {
        "title": title,
        "type": kind,
        "datasource": _SOURCE,
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
            for number, (expression, legend) in enumerate(asked)
        ],
        # A gap stays a gap: what nobody told is not drawn.
        "fieldConfig": {
            "defaults": {"unit": unit, "custom": {"spanNulls": False, **custom}},
            "overrides": overrides or [],
        },
    }


def _colour(name: str) -> Panel:
    return {"id": "color", "value": {"mode": "fixed", "fixedColor": name}}


def _lay_out(rows: list[tuple[str, list[Panel]]], across: int = 3) -> list[Panel]:
    """Panels with their places, so many beside each other below a head."""
    placed: list[Panel] = []
    top, width = 0, _WIDTH // across
    for title, panels in rows:
        placed.append({"type": "row", "title": title, "gridPos": {"x": 0, "y": top, "w": _WIDTH, "h": 1}, "panels": []})
        for number, panel in enumerate(panels):
            row, column = divmod(number, across)
            place = {"x": column * width, "y": top + 1 + row * _HEIGHT, "w": width, "h": _HEIGHT}
            placed.append({**panel, "gridPos": place})
        top += 1 + -(-len(panels) // across) * _HEIGHT
    return [{"id": number, **panel} for number, panel in enumerate(placed, 1)]
