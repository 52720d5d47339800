"""How many GPUs are free, for other sites: a badge (SVG), and a small page for a frame (HTML). Pure. Both are
self-contained and run no script. All text from hosts is escaped."""

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone
from html import escape
from typing import Final

from msgspec import Struct

from gpudeck.model.text import clean, show_count
from gpudeck.model.view import Fleet

MAX_LABEL_LENGTH: Final = 40
_COLOURS: Final = {"free": "#157a3c", "none": "#656972", "problem": "#8a5a00"}
_LETTER: Final = 6.6
"""The average width of an 11 px letter; `textLength` makes the text exact."""
_STATES: Final = ("free", "busy", "idle", "allocated", "reserved", "drained", "unknown")
_MAX_MODELS: Final = 12
_WIDTH, _HEIGHT = 600.0, 80.0
_STYLE: Final = """\
:root{color-scheme:light dark;--free:light-dark(#157a3c,#4fd07a);--busy:light-dark(#2563c9,#6ea8ff);\
--idle:light-dark(#8a5a00,#e3ac3f);--reserved:light-dark(#7439bd,#c59bff);--allocated:var(--busy);\
--unknown:light-dark(#656972,#969aa2);--ink:light-dark(#1c1d20,#e7e7e4);--soft:light-dark(#5a5e66,#9ea2aa);\
--paper:light-dark(#fff,#121315)}
body{margin:12px;background:var(--paper);color:var(--ink);font:14px/1.4 system-ui,sans-serif;\
font-variant-numeric:tabular-nums}
p{margin:0 0 8px}a{color:inherit}small{color:var(--soft)}
b.large{font-size:32px;line-height:1;color:var(--free)}
svg{display:block;width:100%;height:auto}
.free{fill:var(--free);color:var(--free)}.busy{fill:var(--busy);color:var(--busy)}.idle{fill:var(--idle);color:var(--idle)}
.allocated{fill:var(--allocated);color:var(--busy)}.reserved{fill:var(--reserved);color:var(--reserved)}
.unknown,.drained{fill:var(--unknown);color:var(--unknown)}
span{white-space:nowrap;margin-right:10px}td,th{padding:0 16px 0 0;text-align:left;font-weight:400}td{text-align:right}
"""
EMBED_POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors *"
)
"""For the only page that other sites may frame: it has no script, no form, and no effect on a click."""

Curve = Sequence[tuple[float, float | None]]
"""The start of each step and the number of free GPUs in it; None: unknown."""


class FleetCount(Struct, frozen=True):
    """GPUs by state, and by model the number of free and of all. The GPUs of silent hosts are unknown."""

    demo: bool
    time: float
    hosts: int
    states: dict[str, int]
    models: list[tuple[str, int, int]]

    @property
    def gpus(self) -> int:
        return sum(self.states.values())


def count_gpus(fleet: Fleet) -> FleetCount:
    states, models, free = Counter[str](), Counter[str](), Counter[str]()
    for host in fleet.hosts:
        for gpu in host.gpus:
            states[gpu.availability] += 1
            models[gpu.display_name] += 1
            free[gpu.display_name] += gpu.availability == "free"
    ranked = sorted(models, key=lambda model: (-models[model], model))
    return FleetCount(
        fleet.demo,
        fleet.time,
        len(fleet.hosts),
        dict(states),
        [(model, free[model], models[model]) for model in ranked],
    )


def render_badge(label: str, count: FleetCount) -> bytes:
    """`free GPUs | 24 of 135`. If no GPU is known, the badge says so: that differs from none being free."""
    if not count.gpus:
        return draw_badge(label, "no GPU known", "problem")
    free, unknown = count.states.get("free", 0), count.states.get("unknown", 0)
    note = f", {unknown} unknown" if unknown else ""
    return draw_badge(label, f"{free} of {count.gpus}{note}", "free" if free else "none")


def draw_badge(label: str, value: str, kind: str) -> bytes:
    """`kind` is one of `free`, `none` and `problem`."""
    left, right = clean(label[:MAX_LABEL_LENGTH]), clean(value)
    widths = [round(len(text) * _LETTER) + 12 for text in (left, right)]
    whole, spoken = sum(widths), escape(f"{left}: {right}")
    texts = "".join(
        f'<text x="{start + 6}" y="14" textLength="{width - 12}">{escape(text)}</text>'
        for text, start, width in ((left, 0, widths[0]), (right, widths[0], widths[1]))
        if text
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole}" height="20" role="img" aria-label="{spoken}">'
        f"<title>{spoken}</title>"
        f'<rect width="{whole}" height="20" rx="3" fill="#3b3e45"/>'
        f'<path d="M{widths[0]} 0h{widths[1] - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-{widths[1] - 3}z" '
        f'fill="{_COLOURS[kind]}"/>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">{texts}</g></svg>\n'
    ).encode()


def render_embed(title: str, count: FleetCount, curve: Curve | None) -> bytes:
    """The numbers, a bar of the states, the models, and the free GPUs of the last day if known."""
    moment = datetime.fromtimestamp(count.time, timezone.utc)
    states = [(state, count.states.get(state, 0)) for state in _STATES if count.states.get(state, 0)]
    told = "".join(f'<span class="{state}">{number} {state}</span>' for state, number in states)
    models = "".join(
        f"<tr><th>{escape(clean(model[:64]))}</th><td>{free} of {number} free</td></tr>"
        for model, free, number in count.models[:_MAX_MODELS]
    )
    more = len(count.models) - _MAX_MODELS
    free = count.states.get("free", 0)
    about = f" · {escape(clean(title))}" if title else ""
    rest = f"<p><small>and {show_count(more, 'more model')}</small></p>" if more > 0 else ""
    demo = "<b>demo data</b> · " if count.demo else ""
    return _write_page(
        f'<p><b class="large">{free}</b> of {show_count(count.gpus, "GPU")} free{about}</p>'
        f"{_draw_bar(states, count.gpus)}<p>{told}</p>"
        f"{'' if curve is None else _draw_curve(curve, count.gpus)}"
        f"<table>{models}</table>{rest}"
        f"<p><small>{demo}{show_count(count.hosts, 'host')} · "
        f'<time datetime="{moment:%Y-%m-%dT%H:%M:%SZ}">{moment:%H:%M:%S} UTC</time> · '
        '<a href="../" target="_blank" rel="noopener">gpudeck</a></small></p>'
    )


def render_refusal(message: str) -> bytes:
    """The content of the frame for a reader without access."""
    return _write_page(
        f'<p>{escape(clean(message))}</p><p><a href="../" target="_blank" rel="noopener">Open gpudeck</a></p>'
    )


def _write_page(body: str) -> bytes:
    head = f'<meta charset="utf-8"><title>GPUs</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'.encode()


def _draw_bar(states: Sequence[tuple[str, int]], gpus: int) -> str:
    parts, start = [], 0.0
    for state, number in states:
        width = _WIDTH * number / gpus
        parts.append(f'<rect class="{state}" x="{start:.1f}" width="{width:.1f}" height="10"/>')
        start += width
    return f'<svg viewBox="0 0 {_WIDTH:g} 12" aria-hidden="true" preserveAspectRatio="none">{"".join(parts)}</svg>'


def _draw_curve(curve: Curve, gpus: int) -> str:
    """Each run of known steps is an area: unknown time is a gap."""
    known = [at for at, _ in curve]
    if len(known) < 2:
        return ""
    first, length = known[0], known[-1] - known[0]
    most = max(gpus, *(value or 0.0 for _, value in curve), 1)
    areas: list[list[str]] = [[]]
    for at, value in curve:
        if value is None:
            areas.append([])
        else:
            areas[-1].append(f"{_WIDTH * (at - first) / length:.1f},{_HEIGHT - _HEIGHT * value / most:.1f}")
    drawn = "".join(
        f'<path class="free" fill-opacity=".5" d="M{area[0].split(",")[0]},{_HEIGHT:g}L{" ".join(area)} '
        f'{area[-1].split(",")[0]},{_HEIGHT:g}z"/>'
        for area in areas
        if area
    )
    return (
        f'<p><small>Free GPUs, last 24 hours</small></p><svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" '
        f'aria-label="Free GPUs in the last 24 hours">{drawn}</svg>'
    )
