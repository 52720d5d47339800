"""The fleet as text for a terminal: one line per GPU, one box per host, or one line per host, with problems below. The
same for curl and for `gpudeck show`. Unknown values are a dash, never zero."""

import functools
import textwrap
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from gpudeck.model.alert import Alert
from gpudeck.model.allocation import Allocation
from gpudeck.model.gpu_state import RARE, Availability
from gpudeck.model.reservation import Maintenance
from gpudeck.model.text import clean, show_age, show_count, show_gib, show_length, show_span
from gpudeck.model.times import show_utc
from gpudeck.model.view import Fleet, Gpu, Host, PastFleet, ShownEvent, ShownProcess, Totals
from gpudeck.views.table import (
    SEVERITY_COLOURS,
    SEVERITY_SIGNS,
    Cell,
    CellColumn,
    Column,
    draw_share,
    end_lines,
    lay_out,
    paint,
    render,
    shorten,
    tabulate,
    width_of,
)

_SIGNS: dict[Availability, tuple[str, str]] = {
    "free": ("●", "green"),
    "busy": ("■", "cyan"),
    "idle": ("◐", "yellow"),
    "allocated": ("◇", "blue"),
    "reserved": ("◆", "magenta"),
    "drained": ("⊖", "grey"),
    "unknown": ("?", "grey"),
}
SYMBOLS = {state: symbol for state, (symbol, _) in _SIGNS.items()}
COLOURS = {state: colour for state, (_, colour) in _SIGNS.items()}
HOST_COLUMN = Column("HOST", keep=100, widest=32)
GPU_COLUMNS = (
    Column("GPU", keep=98, align="right", widest=8),
    Column("MODEL", keep=45, widest=24, least=10),
    Column("STATE", keep=99, widest=11),
    Column("UTIL", keep=90, align="right", widest=6),
    Column("MEMORY", keep=55, widest=8),
    Column("GiB", keep=80, align="right", widest=15),
    Column("TEMP", keep=47, align="right", widest=6),
    Column("POWER", keep=30, align="right", widest=7),
    Column("USERS", keep=95, widest=32, least=10),
    Column("SINCE", keep=50, align="right", widest=8),
    Column("NOTE", keep=20, widest=60, least=12),
)
_STATES: dict[Availability, Cell] = {word: (f"{symbol} {word}", COLOURS[word]) for word, symbol in SYMBOLS.items()}
_BAR = 8
_UNKNOWN: Cell = ("–", "grey")
_MAX_PROBLEMS = 20
"""Problems of hosts below the table. A site whose switch fails has hundreds with one cause."""
NO_HOST = "No host has reported yet. On a GPU server: gpudeck agent --hub URL --token-file FILE"
MAX_BELOW_A_TABLE: Final = 10
_PROCESS_COLUMNS = (
    Column("GPU", keep=99, align="right", widest=8),
    Column("PID", keep=98, align="right", widest=10),
    Column("USER", keep=97, widest=24),
    Column("GiB", keep=90, align="right", widest=10),
    Column("UTIL", keep=80, align="right", widest=6),
    Column("FOR", keep=70, align="right", widest=8),
    Column("WHERE", keep=50, widest=28),
    Column("COMMAND", keep=96, widest=160, least=20),
)
_ACTIVITY_COLUMNS = tuple(
    Column(title, keep=99 - place, align="right", widest=10)
    for place, title in enumerate(
        (
            *("GPU", "SM", "OCCUPANCY", "TENSOR", "MEMORY", "FP64", "FP32", "FP16"),
            *("NVLINK IN", "OUT", "PCIE IN", "OUT"),
        )
    )
)
_EVENT_COLUMNS = (
    Column("GPU", keep=99, align="right", widest=8),
    Column("AGO", keep=97, align="right", widest=8),
    Column("XID", keep=98, align="right", widest=10),
    Column("PID", keep=60, align="right", widest=10),
    Column("USER", keep=70, widest=24),
    Column("FAULT", keep=96, widest=160, least=20),
)
_STATUS_COLOURS = {"up": "green", "late": "yellow", "down": "red", "never_seen": "grey"}
_FRAME = 4
"""The columns of a box's frame."""
Rows = list[list[Cell]]
Part = tuple[str, list[str], int]
"""The name of a section of a box, its lines, and their width."""
_NO_HOST_YET = "No host yet. `gpudeck hosts add NAME` adds one.\n"


def gpu_rows(host: Host, now: float) -> list[list[Cell]]:
    """One row per GPU, for HOST_COLUMN and GPU_COLUMNS, or one row with the reason why there is none."""
    name: Cell = (clean(host.display_name), "grey" if host.status != "up" else "")
    note = _host_note(host, now)
    if not host.gpus:
        reason = _obstacle(host) or host.reasons.get("gpus", "no GPUs")
        return [[name, *[_UNKNOWN] * (len(GPU_COLUMNS) - 1), (clean(note or reason), "grey")]]
    return [[name, *gpu_cells(gpu, note, now)] for gpu in host.gpus]


def _obstacle(host: Host) -> str:
    """Why a host does not report, if known; else empty."""
    return host.problems[0] if host.status == "never_seen" and host.problems and not host.gpus else ""


def gpu_cells(gpu: Gpu, note: str, now: float) -> list[Cell]:
    """The cells of GPU_COLUMNS. `note` is about its host and comes before the GPU's own."""
    state = gpu.availability
    dim = "grey" if state == "unknown" else ""
    note = note or gpu_note(gpu, now)
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    return [
        (gpu.label, dim),
        (clean(gpu.display_name), dim),
        _STATES[state],
        (show_number(gpu.utilization_percent, "%"), dim),
        (draw_bar(used, total), dim),
        (f"{show_gib(used)}/{show_gib(total, 0)}", dim),
        (show_number(gpu.temperature_celsius, "°C"), dim),
        (show_number(gpu.power_watts, " W"), dim),
        (clean(", ".join(gpu.users)) or "–", dim),
        (show_age(gpu.since, now), dim),
        (clean(note), dim or "yellow"),
    ]


def gpu_note(gpu: Gpu, now: float) -> str:
    """Its problem, why it is idle, unknown or drained, whose job has it, and who has reserved it."""
    reason = gpu.availability_reason if gpu.availability in {"idle", "unknown", "drained"} else None
    wrong = gpu.health_reason or reason or ""
    # Most GPUs have neither reservation nor maintenance, and a fleet has thousands.
    reserved = reservation_note(gpu, now) if gpu.reservation or gpu.reservation_conflict else ""
    drained = "" if gpu.maintenance is None else maintenance_note(gpu.maintenance, now)
    allocated = "" if gpu.allocation is None else allocation_note(gpu.allocation, now)
    return " · ".join(part for part in (wrong, allocated, drained, reserved) if part)


def allocation_note(found: Allocation, now: float | None = None) -> str:
    """The job that has it, its user, and for how long if the time is given."""
    if not found.job:
        return f"allocated by {found.scheduler}: {found.unknown}"
    name = f" ({found.name or found.owner})" if found.name or found.owner else ""
    whose = f" of {found.user}" if found.user else ""
    left = "" if found.until is None or now is None else f", {show_length(found.until - now)} left"
    others = f" and {len(found.shared_with)} more" if found.shared_with else ""
    kind = "job" if found.pod is None else "pod"
    conflict = f"; {found.conflict}" if found.conflict else ""
    return f"{kind} {found.job}{name}{whose}{others}{', suspended' if found.is_suspended else ''}{left}{conflict}"


def maintenance_note(found: Maintenance, now: float) -> str:
    """Why a host or GPU is drained, and until when."""
    left = "" if found.until is None else f", {show_length(found.until - now)} left"
    return f"in maintenance{left}: {found.reason}"


def reservation_note(gpu: Gpu, now: float) -> str:
    """Who has reserved it, until when and why; or who uses it without the reservation."""
    found = gpu.reservation
    if conflict := gpu.reservation_conflict:
        return conflict
    if found is None:
        return ""
    if found.kind == "claim":
        # A claim no longer protects a GPU once a process has started.
        return f"taken by {found.user}, starting" if gpu.availability == "reserved" else ""
    why = f": {found.note}" if found.note else ""
    return f"reserved by {found.user}, {show_length(found.until - now)} left{why}"


def draw_bar(used: float | None, total: float | None) -> str:
    """A bar for a share of something."""
    return draw_share(None if used is None or not total else used / total, _BAR)


@functools.lru_cache(maxsize=4096)
def show_number(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{value:.0f}{unit}"


def show_status(host: Host) -> str:
    """Its status as shown: `never seen`."""
    return host.status.replace("_", " ")


def staleness_note(host: Host, now: float) -> str:
    """How long ago a silent host last reported; empty for all others."""
    if host.status in {"up", "never_seen"} or host.last_report_at is None:
        return ""
    return f"{host.status}: last report {show_span(now - host.last_report_at)} ago"


def _host_note(host: Host, now: float) -> str:
    note = staleness_note(host, now)
    # A host that was restored after a restart of the hub has none.
    has_values = any(gpu.memory_used_bytes is not None for gpu in host.gpus)
    note = f"{note}, values are from then" if note and has_values else note
    return f"{note} · {maintenance_note(host.maintenance, now)}" if note and host.maintenance is not None else note


def render_fleet(
    fleet: Fleet, *, detail: bool = False, width: int | None = None, colour: bool = False, empty: str = NO_HOST
) -> str:
    """The fleet as text, ending in a newline. `detail` draws one box per host, with processes and the faults of the
    last day. `empty` is shown if there is no host. No line is wider than `width` (at least LEAST), except problems:
    many end in a command to copy."""
    hosts, now = fleet.hosts, fleet.time
    lines = [_headline(fleet, width, colour)]
    if not hosts:
        lines += ["", *textwrap.wrap(clean(empty), width or len(empty))]
    elif detail:
        lines += draw_boxes(hosts, now, width, colour)
    else:
        rows = [row for host in hosts for row in gpu_rows(host, now)]
        lines += ["", *render((HOST_COLUMN, *GPU_COLUMNS), rows, width, colour)]
    # Notes in rows are not repeated below the table.
    noted = _find_noted(hosts, now) if not detail and any(" NOTE" in line for line in lines[1:3]) else frozenset()
    problems = [*fleet.problems, *([] if detail else _host_problems(hosts, noted, is_uncut=width is None))]
    if problems:
        lines += ["", *(paint(f"! {clean(problem)}", "yellow", colour) for problem in problems)]
    if fleet.alerts:
        lines += ["", *told] if (told := below_table(fleet, colour, noted)) else []
    if isinstance(fleet, PastFleet):
        lines.insert(0, shorten(_describe_moment(fleet), width) if width else _describe_moment(fleet))
    return end_lines(lines)


def _describe_moment(fleet: PastFleet) -> str:
    covered = "" if fleet.coverage is None else f", coverage {100 * fleet.coverage:.0f} %"
    means = ", means of a quarter hour" if fleet.resolution == "quarter_hour" else ""
    return f"As of {show_utc(fleet.as_of)}{covered}{means}"


def _find_noted(hosts: Sequence[Host], now: float) -> frozenset[str]:
    """The ids of the hosts and the UUIDs of the GPUs whose rows show their problems."""
    silent = {host.id for host in hosts if staleness_note(host, now)}
    wrong = {gpu.uuid for host in hosts for gpu in host.gpus if gpu.health_reason or gpu.availability == "unknown"}
    return frozenset(silent | wrong)


def _host_problems(hosts: Sequence[Host], noted: Collection[str], *, is_uncut: bool) -> list[str]:
    """`is_uncut`: the rows above show their notes in full."""
    told = [
        name_problem(host.display_name, problem)
        for host in hosts
        for problem in host.problems
        if not any(gpu.uuid in noted and problem == f"GPU {gpu.label} {gpu_note(gpu, 0.0)}" for gpu in host.gpus)
        and not (is_uncut and problem == _obstacle(host))
    ]
    if len(told) <= _MAX_PROBLEMS:
        return told
    kept = told[: _MAX_PROBLEMS - 1]
    return [*kept, f"{len(told) - len(kept)} more problems of hosts: gpudeck hosts list"]


def join_places(places: Iterable[tuple[str, str]], sign: str = ":") -> list[str]:
    """Hosts and labels of GPUs, by host: `gpu07:0,1`."""
    hosts: dict[str, list[str]] = {}
    for host, label in places:
        hosts.setdefault(host, []).append(label)
    return [f"{host}{sign}{','.join(labels)}" for host, labels in hosts.items()]


def name_problem(name: str, problem: str) -> str:
    """The problem with the name of its host, unless it begins with that already."""
    return problem if problem.startswith(name) else f"{name}: {problem}"


def count_hosts_and_gpus(totals: Totals) -> str:
    """2 of 3 hosts up, 16 GPUs."""
    return f"{totals.hosts_up} of {show_count(totals.hosts, 'host')} up, {show_count(totals.gpus, 'GPU')}"


def count_states(totals: Totals) -> tuple[list[Cell], list[Cell]]:
    """How many GPUs are in each state; and the same without the states in which none is, unless that is free."""
    counts = totals.by_availability
    words = [word for word in SYMBOLS if counts[word] or word not in RARE]
    cells = {word: (f"{SYMBOLS[word]} {counts[word]} {word}", COLOURS[word]) for word in words}
    return list(cells.values()), [cell for word, cell in cells.items() if counts[word] or word == "free"]


def _headline(fleet: Fleet, width: int | None, colour: bool) -> str:
    """Hosts and states in one line. Where that is too wide it says less: first about hosts, then about empty states."""
    hosts: Cell = (f"{count_hosts_and_gpus(fleet.totals)}:", "")
    states, told = count_states(fleet.totals)
    demo: list[Cell] = [("DEMO DATA, simulated", "reverse")] if fleet.demo else []
    short_demo: list[Cell] = [("DEMO", "reverse")] if fleet.demo else []
    for cells in ([*demo, hosts, *states], [*short_demo, *states], [*short_demo, *told]):
        plain = "  ".join(text for text, _ in cells)
        if width is None or width_of(plain) <= width:
            return "  ".join(paint(text, name, colour) for text, name in cells)
    return shorten(plain, width)


def draw_boxes(hosts: Sequence[Host], now: float, width: int | None, colour: bool) -> list[str]:
    """The lines of all boxes, none wider than `width`. What is wrong with a host stands below its box, in full."""
    inner = None if width is None else width - _FRAME
    parts = _lay_out_parts(hosts, now, inner, colour)
    titles = [_title(host, now, inner) for host in hosts]
    # Next to a title there is a rule, and the longest name of a part has room too.
    widest = max(12, *(width_of(title) + 2 for title, _ in titles), *(part[2] for own in parts for part in own))
    lines: list[str] = []
    for host, title, own in zip(hosts, titles, parts, strict=True):
        lines += ["", *_draw(title, own, widest, colour)]
        lines += [paint(f"! {clean(problem)}", "yellow", colour) for problem in host.problems]
    return lines


def _lay_out_parts(hosts: Sequence[Host], now: float, width: int | None, colour: bool) -> list[list[Part]]:
    """A host's sections, beginning with its GPUs. Each kind is one table over all hosts, so that columns are
    aligned."""
    kinds = [
        ("", GPU_COLUMNS, [[row[1:] for row in gpu_rows(host, now)] for host in hosts]),
        (
            "activity",
            _ACTIVITY_COLUMNS,
            [[_activity_cells(gpu) for gpu in host.gpus if gpu.sm_activity_percent is not None] for host in hosts],
        ),
        ("processes", _PROCESS_COLUMNS, [_process_rows(host, now) for host in hosts]),
        (
            "faults",
            _EVENT_COLUMNS,
            [[_event_cells(gpu, event, now) for gpu in host.gpus for event in reversed(gpu.events)] for host in hosts],
        ),
    ]
    found: list[list[Part]] = [[] for _ in hosts]
    for name, columns, groups in kinds:
        lines, wide = lay_out(columns, [row for group in groups for row in group], width, colour)
        at = 1
        for own, group in zip(found, groups, strict=True):
            if group:
                own.append((name, [lines[0], *lines[at : at + len(group)]], wide))
            at += len(group)
    return found


def _title(host: Host, now: float, width: int | None) -> Cell:
    said = [clean(host.display_name), f"{show_status(host)} via {clean(host.via)}"]
    if host.status != "up" and host.last_report_at is not None:
        said.append(f"last report {show_span(now - host.last_report_at)} ago")
    used, total = host.memory_used_bytes, host.memory_total_bytes
    said += [f"CPU {show_number(host.cpu_percent, '%')}", f"RAM {show_gib(used, 0)}/{show_gib(total, 0)} GiB"]
    said += [f"driver {clean(host.driver_version)}"] if host.driver_version else []
    while len(said) > 1 and width is not None and width_of(" · ".join(said)) > width - 2:
        said.pop()
    return shorten(" · ".join(said), None if width is None else max(1, width - 2)), _STATUS_COLOURS[host.status]


def _draw(title: Cell, parts: Sequence[Part], width: int, colour: bool) -> list[str]:
    lines = [_rule("╭", title, "╮", width, colour)]
    for at, (name, own, wide) in enumerate(parts):
        lines += [_rule("├", (name, "bold"), "┤", width, colour)] if at else []
        lines += [f"│ {line}{' ' * (width - wide)} │" for line in own]
    return [*lines, f"╰{'─' * (width + 2)}╯"]


def _rule(left: str, word: Cell, right: str, width: int, colour: bool) -> str:
    return f"{left}─ {paint(*word, colour)} {'─' * (width - 1 - width_of(word[0]))}{right}"


def _activity_cells(gpu: Gpu) -> list[Cell]:
    shares = (
        *(gpu.sm_activity_percent, gpu.sm_occupancy_percent, gpu.tensor_activity_percent, gpu.dram_activity_percent),
        *(gpu.fp64_activity_percent, gpu.fp32_activity_percent, gpu.fp16_activity_percent),
    )
    rates = (
        *(gpu.nvlink_receive_bytes_per_second, gpu.nvlink_transmit_bytes_per_second),
        *(gpu.pcie_receive_bytes_per_second, gpu.pcie_transmit_bytes_per_second),
    )
    told = [show_number(share, "%") for share in shares]
    told += ["–" if rate is None else f"{rate / 1e9:.1f} GB/s" for rate in rates]
    return [(gpu.label, ""), *((text, "") for text in told)]


def _process_rows(host: Host, now: float) -> Rows:
    """One row per process, or a row with the reason if the processes of a GPU are unknown."""
    processes = [(gpu, one) for gpu in host.gpus for one in ([None] if gpu.processes is None else gpu.processes)]
    return [process_cells(gpu, process, now) for gpu, process in processes]


def process_cells(gpu: Gpu, process: ShownProcess | None, now: float, dim: str = "") -> list[Cell]:
    """The cells of the process columns; `process` is None if those of the GPU are unknown. `dim` is the colour of most
    cells."""
    if process is None:
        reason = gpu.reasons.get("processes", "unknown")
        return [(gpu.label, dim), *[_UNKNOWN] * 6, (clean(f"not known: {reason}"), "grey")]
    started = process.started_at
    where = [part for part in (process.container, process.job) if part]
    return [
        (gpu.label, dim),
        (str(process.pid), dim),
        (clean(process.user or "–"), dim),
        (show_gib(process.memory_used_bytes), dim),
        (show_number(process.utilization_percent, "%"), dim),
        (show_age(started, now), dim),
        (clean(", ".join(where)) or "–", dim),
        (clean(process.command or "–"), "grey"),
    ]


def _event_cells(gpu: Gpu, event: ShownEvent, now: float) -> list[Cell]:
    process = event.process
    return [
        (gpu.label, ""),
        (show_span(now - event.at), ""),
        (str(event.code), SEVERITY_COLOURS.get(event.kind, "")),
        ("–" if process is None else str(process), ""),
        (clean(event.user or "–"), ""),
        (clean(": ".join(filter(None, [event.text, event.message]))), "grey"),
    ]


def render_hosts(hosts: Sequence[Host], width: int | None = None) -> str:
    """One line per host, with problems below, ending in a newline. Problems are never cut: many end in a command to
    copy."""
    if not hosts:
        return _NO_HOST_YET
    columns: list[CellColumn[Host]] = [
        CellColumn("HOST", 100, cell=lambda host: host.name),
        CellColumn("VIA", 90, widest=18, cell=lambda host: host.via),
        CellColumn("STATUS", 99, widest=8, cell=show_status),
        CellColumn("GPUS", 80, "right", 6, cell=lambda host: _count(host, len(host.gpus))),
        CellColumn(
            "FREE", 70, "right", 6, cell=lambda host: _count(host, sum(gpu.availability == "free" for gpu in host.gpus))
        ),
        CellColumn(
            "LABELS", 40, cell=lambda host: " ".join(f"{key}={value}" for key, value in sorted(host.labels.items()))
        ),
    ]
    lines = tabulate(columns, hosts, width)
    problems = [name_problem(host.name, problem) for host in hosts for problem in host.problems]
    if problems:
        lines += ["", *(f"! {clean(problem)}" for problem in problems)]
    return end_lines(lines)


def _count(host: Host, number: int) -> str:
    return "-" if host.status == "never_seen" else str(number)


def render_alert(alert: Alert, now: float, *, colour: bool) -> str:
    """One line: severity, title, duration, and who acknowledged it."""
    sign, painted = SEVERITY_SIGNS.get(alert.severity, "·"), SEVERITY_COLOURS.get(alert.severity, "")
    said = paint(f"{sign} {clean(alert.title)}", painted, colour)
    return f"{said}{_alert_aside(alert, now)}"


def render_alerts(alerts: Sequence[Alert], now: float, *, colour: bool) -> str:
    """Two lines per alert, the second with its id, its rule and the next step; ending in a newline."""
    lines = []
    for alert in alerts:
        lines.append(render_alert(alert, now, colour=colour))
        said = f"{alert.id}  {clean(alert.rule)}  {clean(alert.note or alert.action)}"
        lines.append(f"  {paint(said, 'grey', colour)}")
    return end_lines(lines)


def for_everybody(fleet: Fleet) -> list[Alert]:
    """The alerts of the hub and of the shown hosts that need attention: neither muted nor for one user only."""
    hosts = {host.id for host in fleet.hosts}
    return [
        alert
        for alert in fleet.alerts
        if alert.severity != "info" and alert.muted_by is None and (alert.host_id is None or alert.host_id in hosts)
    ]


def below_table(fleet: Fleet, colour: bool, noted: Collection[str] = ()) -> list[str]:
    """A line for each alert of `for_everybody`, up to a limit. `noted` are hosts and GPUs whose rows show them
    already."""
    told = [alert for alert in for_everybody(fleet) if (alert.gpu or alert.host_id) not in noted]
    lines = [render_alert(alert, fleet.time, colour=colour) for alert in told[:MAX_BELOW_A_TABLE]]
    more = len(told) - len(lines)
    return [*lines, f"{more} more alerts: gpudeck alerts"] if more else lines


def _alert_aside(alert: Alert, now: float) -> str:
    if alert.state == "resolved" and alert.resolved_at is not None:
        return f", over for {show_span(now - alert.resolved_at)}"
    parts = [f"for {show_span(now - alert.since)}"]
    if alert.acknowledged_by is not None:
        parts.append(f"{clean(alert.acknowledged_by)} acknowledged it")
    if alert.muted_by is not None:
        parts.append("muted")
    if alert.state == "pending":
        parts.append("pending")
    return f", {', '.join(parts)}"
