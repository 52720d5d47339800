"""A snapshot of the fleet as one HTML file: to be mailed, printed, or published. It is self-contained: no font, no
picture, no URL.

A host is one line with a symbol, the load and the memory of each GPU; details are shown on hover, and below it once the
host is expanded. A mail program that drops the style still shows the same words as plain text. The one script shows the
page's age and reloads it, so an open page is never mistaken for the present.
"""

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone
from html import escape
from typing import Final

from gpudeck.model.gpu_state import RARE, UNUSED
from gpudeck.model.text import clean, show_count, show_gib, show_span
from gpudeck.model.view import Fleet, Gpu, Host
from gpudeck.views.text import NO_HOST, SYMBOLS, count_hosts_and_gpus, name_problem, show_number

_MAX_NAME_LENGTH: Final = 64
_MAX_TEXT_LENGTH: Final = 300
_MAX_PEOPLE: Final = 6
_MAX_PROBLEMS: Final = 50
_STYLE: Final = """\
:root{color-scheme:light dark;--free:light-dark(#157a3c,#4fd07a);--busy:light-dark(#2563c9,#6ea8ff);\
--idle:light-dark(#8a5a00,#e3ac3f);--reserved:light-dark(#7439bd,#c59bff);--unknown:light-dark(#656972,#969aa2);\
--ink:light-dark(#1c1d20,#e7e7e4);--soft:light-dark(#5a5e66,#9ea2aa);--rule:light-dark(#dedfdb,#303237);\
--paper:light-dark(#fafaf8,#121315);--critical:light-dark(#c4231c,#ff7069)}
body{margin:16px;background:var(--paper);color:var(--ink);font:13px/1.5 system-ui,sans-serif;\
font-variant-numeric:tabular-nums}
h1{margin:0;font-size:16px}
p{margin:4px 0 12px}
small,.w,.s{color:var(--soft)}
.demo{padding:0 6px;background:var(--ink);color:var(--paper)}
.n{white-space:nowrap;margin-right:14px}
details{border-top:1px solid var(--rule);padding:3px 0}
summary{display:flex;flex-wrap:wrap;gap:0 10px;cursor:pointer}
summary:before{content:'▸';color:var(--soft)}[open] summary:before{content:'▾'}
summary>b{min-width:12ch;overflow-wrap:anywhere}
i{position:relative;display:inline-block;min-width:11ch;font-style:normal;white-space:nowrap}
i>b{margin-left:4px;font-weight:normal;color:var(--soft)}
.old{font-weight:bold;color:var(--critical)}
i>u{display:none;text-decoration:none;color:var(--ink)}
.free{color:var(--free)}.busy,.allocated{color:var(--busy)}.idle{color:var(--idle)}\
.reserved{color:var(--reserved)}.unknown,.drained{color:var(--unknown)}
.q{flex:3;min-width:128px}
.w{flex:1;min-width:min(36ch,100%);overflow-wrap:anywhere}
i:hover>u{display:block;position:absolute;z-index:1;top:1.5em;left:0;width:max-content;max-width:60vw;\
white-space:normal;padding:3px 8px;border:1px solid var(--rule);background:var(--paper);text-align:left}
[open] .q{order:1;flex-basis:100%;padding-left:20px}
[open] i{display:block;white-space:normal}[open] i>b{display:none}
[open] i>u{display:inline;position:static;padding:0 0 0 6px;border:0;overflow-wrap:anywhere}
@media(max-width:639px){details:not([open]) i:hover>u{position:fixed;top:auto;right:8px;bottom:8px;left:8px;\
width:auto;max-width:none}}
table{margin:12px 0}th,td{padding:0 16px 0 0;text-align:left}
@page{margin:12mm}
@media print{:root{color-scheme:light;--ink:#000;--soft:#333;--paper:#fff}body{margin:0;font-size:10px}
details{break-inside:avoid}summary:before{display:none}.hint{display:none}
summary>.q{display:grid;order:1;flex-basis:100%;grid-template-columns:1fr 1fr;padding:0}
i{white-space:normal;print-color-adjust:exact}i>b,#age{display:none}i>u{display:inline;padding-left:4px;overflow-wrap:anywhere}}
"""
_OLD_AFTER: Final = 300
"""Seconds after which the age is red: cron writes the page every minute."""
_SCRIPT: Final = f"""\
(function tell(){{var age=document.getElementById('age'),\
old=Math.round((Date.now()-Date.parse(document.querySelector('time').dateTime))/1000);\
age.textContent=old<0?'':old<120?old+' s old':old<7200?Math.round(old/60)+' min old':Math.round(old/3600)+' h old';\
age.className=old>{_OLD_AFTER}?'old':'';setTimeout(tell,5000)}})()"""
_HASH: Final = f"'sha256-{base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}'"
POLICY: Final = f"default-src 'none';style-src 'unsafe-inline';script-src {_HASH}"
"""Only its own style and that script."""
Rows = Sequence[Sequence[str]]


def render_page(fleet: Fleet, refresh: int = 60, tables: Sequence[Rows] = ()) -> str:
    """A complete document. All text in it is escaped and shortened. It reloads every `refresh` seconds, with 0 never.
    `tables` follow the hosts; the first row of each is its header."""
    now, totals = fleet.time, fleet.totals
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width,initial-scale=1">',
        f'<meta http-equiv=Content-Security-Policy content="{POLICY}">',
        "<meta name=referrer content=no-referrer>",
        *([f"<meta http-equiv=refresh content={refresh}>"] if refresh else []),
        f"<title>{totals.free} of {show_count(totals.gpus, 'GPU')} free</title><style>{_STYLE}</style>",
        _headline(fleet),
        *(_host(host, now) for host in fleet.hosts),
    ]
    if not fleet.hosts:
        parts.append(f"<p>{_text(NO_HOST, _MAX_TEXT_LENGTH)}")
    return "\n".join([*parts, *map(_table, tables), *_problems(fleet), f"<script>{_SCRIPT}</script>"]) + "\n"


def _headline(fleet: Fleet) -> str:
    totals, counts = fleet.totals, fleet.totals.by_availability
    moment = datetime.fromtimestamp(fleet.time, timezone.utc)
    demo = "<span class=demo>demo data</span> " if fleet.demo else ""
    states = "".join(
        f"<span class='n {word}'>{symbol} {counts[word]} {word}</span> "
        for word, symbol in SYMBOLS.items()
        if counts[word] or word not in RARE
    )
    return (
        f"<h1>{demo}GPUs on <time datetime={moment:%Y-%m-%dT%H:%M:%SZ}>{moment:%Y-%m-%d, %H:%M:%S} UTC</time> "
        "<small id=age></small></h1>"
        f"<p>{states}<small>{count_hosts_and_gpus(totals)}. "
        "<span class=hint>Point at a sign for who is on it, or open its host.</span></small>"
    )


def _host(host: Host, now: float) -> str:
    signs = "".join(_gpu(gpu, host, now) for gpu in host.gpus)
    models = Counter(gpu.display_name for gpu in host.gpus)
    inventory = " + ".join(f"{count}× {model}" for model, count in models.items())
    told = [_status(host, now), inventory, _people(host.gpus)]
    if not host.gpus:
        told.append(host.problems[0] if host.problems else host.reasons.get("gpus", "no GPUs"))
    words = " · ".join(_text(each, _MAX_TEXT_LENGTH) for each in told if each)
    return (
        f"<details><summary><b>{_text(host.display_name, _MAX_NAME_LENGTH)}</b> "
        f"<span class=q>{signs}</span><span class=w>{words}</span></summary></details>"
    )


def _status(host: Host, now: float) -> str:
    if host.status == "up":
        return ""
    if host.last_report_at is None:
        return "has never reported"
    return f"{host.status}, silent for {show_span(now - host.last_report_at)}"


def _people(gpus: list[Gpu]) -> str:
    """The users, for print, where nothing can be hovered over."""
    names = list(dict.fromkeys(user for gpu in gpus for user in gpu.users))
    more = len(names) - _MAX_PEOPLE
    return ", ".join(names[:_MAX_PEOPLE]) + (f" and {more} more" if more > 0 else "")


def _gpu(gpu: Gpu, host: Host, now: float) -> str:
    """The symbol with load and memory, and the details behind it."""
    state = gpu.availability
    said = [f"{gpu.label} {state}", *_doing(gpu)]
    if host.status == "up" and gpu.since is not None:
        said.append(f"for {show_span(now - gpu.since)}")
    reason = gpu.availability_reason if state in {"idle", "unknown"} else None
    said += dict.fromkeys(each for each in (reason, gpu.health_reason) if each)
    return f"<i class={state}>{SYMBOLS[state]}{_load(gpu)}<u>{_text(', '.join(said), _MAX_TEXT_LENGTH)}</u></i>"


def _load(gpu: Gpu) -> str:
    """The load and the memory use of a GPU; empty if it is not known now."""
    if gpu.availability == "unknown":
        return ""
    return f"<b>{show_number(gpu.utilization_percent, '%')} {show_gib(gpu.memory_used_bytes, 0)}G</b>"


def _doing(gpu: Gpu) -> list[str]:
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    if gpu.availability in UNUSED:
        return [f"{show_gib(total, 0)} GiB"]
    people, is_unknown = " + ".join(_with_memory(gpu)), gpu.availability == "unknown"
    # For others the load is next to the symbol.
    load = {f"util {show_number(gpu.utilization_percent, ' %')}": gpu.utilization_percent} if is_unknown else {}
    figures = {
        f"{show_gib(used, 0)}/{show_gib(total, 0)} GiB": used,
        **load,
        f"{show_number(gpu.temperature_celsius, ' °C')}": gpu.temperature_celsius,
    }
    # If a GPU cannot be read, the reason is enough; for others a dash marks missing values.
    known = [text for text, value in figures.items() if value is not None or not is_unknown]
    return [*([f"last seen: {people}" if is_unknown else people] if people else []), *known]


def _with_memory(gpu: Gpu) -> list[str]:
    """Its users; several with the memory of each, if that is known for all processes."""
    users = gpu.users
    if len(users) <= 1:
        return users
    told = []
    for user in users:
        sizes = [process.memory_used_bytes for process in gpu.processes or () if process.user == user]
        known = [size for size in sizes if size is not None]
        told.append(f"{user} {show_gib(sum(known))} GiB" if known and len(known) == len(sizes) else user)
    return told


def _table(rows: Rows) -> str:
    head, *rest = ([_text(cell, _MAX_TEXT_LENGTH) for cell in row] for row in rows)
    lines = [f"<tr><th>{'<th>'.join(head)}", *(f"<tr><td>{'<td>'.join(row)}" for row in rest)]
    return "\n".join(["<table>", *lines, "</table>"]) if rest else ""


def _problems(fleet: Fleet) -> list[str]:
    told = fleet.problems + [name_problem(host.display_name, each) for host in fleet.hosts for each in host.problems]
    shown = [f"<p class=s>! {_text(problem, _MAX_TEXT_LENGTH)}" for problem in told[:_MAX_PROBLEMS]]
    more = len(told) - len(shown)
    return [*shown, *([f"<p class=s>! {more} more problems of hosts"] if more else [])]


def _text(text: str, longest: int) -> str:
    """Foreign text as HTML: it cannot open a tag, end a quotation, or reverse the text direction."""
    seen = clean(text)
    return escape(seen if len(seen) <= longest else f"{seen[: longest - 1]}…")
