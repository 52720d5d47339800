"""Usage and jobs as tables for people with a terminal, a single job in full. What is unknown is a dash, never a
zero."""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, tzinfo

from gpudeck.model.job import JobAmounts, JobGpu, JobNode, JobReport, JobReports, JobSummary
from gpudeck.model.text import clean, show_gib, show_span, without_maker
from gpudeck.model.times import show_moment
from gpudeck.model.usage import Usage, UsageBy, UsageRow, Waste
from gpudeck.views.runs import show_verdict
from gpudeck.views.table import Cell, Column, render, wrap

_NOBODY = "Nobody used a GPU."


def render_usage(usage: Usage, zone: tzinfo, *, width: int | None = None, colour: bool = False) -> str:
    """The period, a line a row, their total, each day where there are days, and how much of the period was observed.
    Ends in a newline; times are those of the zone."""

    def show(at: float) -> str:
        return f"{datetime.fromtimestamp(at, zone):%Y-%m-%d %H:%M}"

    lines = wrap(f"Usage by {usage.by}, {show(usage.start)} to {show(usage.end)} ({zone})", width)
    if usage.rows:
        columns = _columns(usage)
        rows = [_row(row, name_of(usage, row)) for row in usage.rows] + [_row(usage.total, "total", "bold")]
        if usage.total.allocated_hours is None:
            rows = [[row[0], *row[4:]] for row in rows]
        lines += ["", *render(columns, [row[: len(columns)] for row in rows], width, colour)]
        lines += _days(usage, width, colour)
    elif usage.coverage is not None:
        lines += ["", _NOBODY if usage.by in {"user", "group", "host", "model"} else "No job had a GPU."]
    lines += [line for note in _notes(usage, show) for line in ("", *wrap(note, width))]
    lines += ["", *wrap(describe_coverage(usage, show), width)]
    return "\n".join(lines) + "\n"


def _notes(usage: Usage, show_time: Callable[[float], str]) -> list[str]:
    """What the figures of allocated time leave out."""
    notes, total = [], usage.total
    if usage.allocated_since is not None:
        told = f"Jobs are recorded since {show_time(usage.allocated_since)}."
        notes.append(f"{told} Of the time before, only imported jobs are counted.")
    if (total.unmonitored_hours or 0.0) >= 0.05:
        notes.append(f"{total.unmonitored_hours:,.1f} of the allocated hours were not monitored: their use is unknown.")
    if (total.shared_hours or 0.0) >= 0.05:
        told = "were on GPUs that others had or used too. They count for the job or pod that started first."
        notes.append(f"{total.shared_hours:,.1f} of the allocated hours {told}")
    return notes


def _columns(usage: Usage) -> list[Column]:
    """Costs have a column where there are any, allocated time where schedulers give GPUs to jobs."""
    is_allocated = usage.total.allocated_hours is not None
    allocated = [
        Column("ALLOCATED", keep=97, align="right", widest=12),
        Column("UNUSED", keep=96, align="right", widest=12),
        Column("NEVER USED", keep=88, align="right", widest=12),
    ]
    columns = [
        Column(usage.by.upper(), keep=100, widest=40),
        *(allocated if is_allocated else []),
        Column("GPU-HOURS", keep=99, align="right", widest=12),
        Column("ACTIVE", keep=90, align="right", widest=12),
        Column("IDLE", keep=95, align="right", widest=12),
        Column("SHARE", keep=80, align="right", widest=8),
        Column("PEAK GiB", keep=60, align="right", widest=10),
        Column("kWh", keep=70, align="right", widest=12),
    ]
    if usage.total.cost is None:
        return columns
    return [*columns, Column(clean(f"COST {usage.currency}".rstrip()), keep=85, align="right", widest=16)]


def _row(row: UsageRow, name: str, colour: str = "") -> list[Cell]:
    """The cost stands last: a table without costs is without that column."""
    share = row.share
    cells = [
        name,
        _number(row.allocated_hours),
        _number(row.unused_hours),
        _number(row.never_used_hours),
        _number(row.gpu_hours),
        _number(row.active_hours),
        _number(row.idle_hours),
        "–" if share is None else f"{100 * share:.1f} %",
        show_gib(row.peak_memory_bytes),
        _number(row.energy_kwh),
        _number(row.cost, 2),
    ]
    return [(cell, colour) for cell in cells]


def _days(usage: Usage, width: int | None, colour: bool) -> list[str]:
    """One line a day and row, by day; a day without use has none."""
    found = [(day, row) for row in usage.rows for day in row.days]
    if not found:
        return []
    found.sort(key=lambda pair: (pair[0].time, -pair[0].gpu_hours))
    wanted = {usage.by.upper(), "GPU-HOURS", "ACTIVE"}
    columns = [Column("DAY", keep=98, widest=10), *(one for one in _columns(usage) if one.title in wanted)]
    figures = [(day.day, name_of(usage, row), day.gpu_hours, day.active_hours) for day, row in found]
    rows = [
        [(clean(day), ""), (name, ""), (_number(used), ""), (_number(active), "")]
        for day, name, used, active in figures
    ]
    return ["", *render(columns, rows, width, colour)]


def name_of(usage: Usage, row: UsageRow) -> str:
    """What a row stands for, in words for a terminal."""
    return show_name(usage.by, row.name_by(usage.by), unknown=row.unknown)


def show_name(by: UsageBy, name: str | None, *, unknown: bool) -> str:
    """The name of a row, in words for a terminal."""
    if name is None or unknown:
        return "(unknown)" if unknown else f"no {by}"
    return clean(without_maker(name) if by == "model" else name)


def _number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def describe_coverage(usage: Usage | Waste, show_time: Callable[[float], str]) -> str:
    """Rounded down: a period that was not monitored in full is never called 100 %."""
    since = usage.known_since
    if usage.coverage is None:
        return (
            f"No GPU was monitored in this period{'' if since is None else f': the records begin {show_time(since)}'}."
        )
    span = "" if since is None else f" since {show_time(since)}"
    return f"Coverage {math.floor(1000 * usage.coverage + 1e-9) / 10:.1f} %{span}."


_COLOURS = {"running": "green", "suspended": "yellow", "unknown": "yellow"}


def render_job(found: JobReports, zone: tzinfo, now: float, *, width: int | None = None, colour: bool = False) -> str:
    """The newest start in full, and a line for each earlier one; of an array a line for each task. Ends in a newline;
    times are those of the zone."""
    job, *others = found.jobs
    older = ["", f"Older ones are not shown: these are the newest {len(found.jobs)}."] if found.has_more else []
    if any(one.job != job.job for one in others):
        tasks = [*_array(found.jobs, width), "", *_list(found.jobs, zone, now, width, colour), *older]
        return "\n".join([*tasks, *_others(found, width)]) + "\n"
    state = job.state if job.outcome is None else f"{job.state}, {job.outcome}"
    lines = wrap(_title(f"Job {job.job}", job, state), width)
    lines += [line for text in _facts(job, zone, now) for line in wrap(text, width)]
    rows = [_gpu_row(gpu) for gpu in job.gpus]
    if len(rows) > 1:
        rows.append([(text, "bold") for text in ("total", "", *_figures(job))])
    lines += ["", *render(_GPU_COLUMNS, rows, width, colour)] if rows else []
    known = [node for node in job.nodes if node.cpu_seconds is not None or node.memory_peak_bytes is not None]
    lines += ["", *render(_NODE_COLUMNS, [_node_row(node) for node in known], width, colour)] if known else []
    lines += [line for text in _job_notes(job) for line in ("", *wrap(text, width))]
    lines += ["", *show_verdict(job.verdict, width)] if job.verdict is not None else []
    if others:
        lines += ["", "Earlier starts:", *_list(others, zone, now, width, colour), *older]
    lines += _others(found, width)
    return "\n".join(lines) + "\n"


def _others(found: JobReports, width: int | None) -> list[str]:
    named = " or ".join(f"--scheduler {clean(name)}" for name in found.other_schedulers)
    return ["", *wrap(f"Another job has this id: {named}.", width)] if named else []


def _array(jobs: Sequence[JobReport], width: int | None) -> list[str]:
    """What its tasks were given and used together."""
    newest = jobs[0]
    states = Counter(clean(one.outcome or one.state) for one in jobs)
    told = ", ".join(f"{count} {state}" for state, count in states.most_common(8))
    allocated, used = (sum(getattr(one, field) or 0.0 for one in jobs) for field in ("allocated_hours", "used_hours"))
    costs = [one.cost for one in jobs if one.cost is not None]
    cost = f", cost {sum(costs):,.2f} {clean(newest.currency)}".rstrip() if costs else ""
    array = f"{'Array' if '_' in newest.job else 'Job'} {re.split('[_+]', newest.job)[0]}"
    return [
        *wrap(_title(array, newest, told), width),
        *wrap(f"{_amount(allocated)} GPU-hours allocated, {_amount(used)} used{cost}", width),
    ]


def render_jobs(
    jobs: Sequence[JobSummary], zone: tzinfo, now: float, *, width: int | None = None, colour: bool = False
) -> str:
    """A line a job, the newest first. Ends in a newline."""
    return "\n".join(_list(jobs, zone, now, width, colour)) + "\n"


def _title(what: str, job: JobReport, state: str) -> str:
    name = f" ({job.name})" if job.name else ""
    return clean(f"{what}{name} of {job.user or '(unknown)'} on {job.scheduler}: {state}")


def _facts(job: JobReport, zone: tzinfo, now: float) -> list[str]:
    names = [(name, getattr(job, name)) for name in ("account", "partition", "qos", "namespace")]
    names += [(f"label {name}", value) for name, value in sorted(job.labels.items())[:8]]
    known = ", ".join(f"{clean(name)} {clean(value)}" for name, value in names if value)
    times = f"from {show_moment(job.start, zone, now)}"
    if job.ended_at is not None:
        times += f" to {show_moment(job.ended_at, zone, now)}"
    elif job.until is not None:
        times += f", until {show_moment(job.until, zone, now)} at the latest"
    hosts = ", ".join(map(clean, job.hosts[:16])) + (", …" if len(job.hosts) > 16 else "")
    gpus = f"{job.gpu_count} GPU{'s' * (job.gpu_count != 1)} on {hosts}" if job.hosts else "no GPUs"
    return [f"{gpus}, {show_span(job.wall_seconds)} ({times})", *([known] if known else [])]


_GPU_COLUMNS = [
    Column("GPU", keep=100, widest=40),
    Column("MODEL", keep=40, widest=24),
    Column("ALLOCATED h", keep=99, align="right"),
    Column("USED h", keep=98, align="right"),
    Column("IDLE h", keep=80, align="right"),
    Column("UTIL", keep=97, align="right"),
    Column("MAX", keep=60, align="right"),
    Column("MEM GiB", keep=70, align="right"),
    Column("PEAK", keep=90, align="right"),
    Column("kWh", keep=65, align="right"),
    Column("COST", keep=75, align="right"),
    Column("LONGEST IDLE", keep=50, align="right"),
]


_NODE_COLUMNS = [
    Column("HOST", keep=100, widest=40),
    Column("CORES", keep=99, align="right"),
    Column("MAX", keep=90, align="right"),
    Column("ALLOWED", keep=95, align="right"),
    Column("CPU h", keep=80, align="right"),
    Column("RAM GiB", keep=98, align="right"),
    Column("PEAK", keep=97, align="right"),
    Column("LIMIT", keep=94, align="right"),
]


def _node_row(node: JobNode) -> list[Cell]:
    hours = None if node.cpu_seconds is None else node.cpu_seconds / 3600
    cores = [_amount(value) for value in (node.cpu_mean_cores, node.cpu_peak_cores, node.cpu_limit_cores, hours)]
    memory = [show_gib(value) for value in (node.memory_mean_bytes, node.memory_peak_bytes, node.memory_limit_bytes)]
    return [(text, "") for text in (clean(node.host), *cores, *memory)]


def _gpu_row(gpu: JobGpu) -> list[Cell]:
    place = f"{clean(gpu.host)}:{clean(gpu.label)}"
    figures = _figures(gpu)
    if gpu.idle_stretches is not None:
        longest = max((end - begin for begin, end in gpu.idle_stretches), default=0.0)
        figures[-1] = show_span(longest) if longest else "none"
    else:
        figures[-1] = "–"
    return [(text, "") for text in (place, clean(without_maker(gpu.model)), *figures)]


def _figures(amounts: JobAmounts) -> list[str]:
    """From ALLOCATED to LONGEST IDLE."""
    return [
        _amount(amounts.allocated_hours),
        _amount(amounts.used_hours),
        _amount(amounts.idle_hours),
        _percent(amounts.utilization_percent),
        _percent(amounts.utilization_peak_percent),
        show_gib(amounts.memory_mean_bytes),
        show_gib(amounts.memory_peak_bytes),
        _amount(amounts.energy_kwh),
        "" if amounts.cost is None else _amount(amounts.cost),
        "",
    ]


def _job_notes(job: JobReport) -> list[str]:
    notes = []
    if job.cost is not None:
        notes.append(f"Cost {job.cost:,.2f} {clean(job.currency)}".rstrip() + ", of the allocated time.")
    if job.coverage is not None and job.coverage < 0.995:
        notes.append(f"Coverage {100 * job.coverage:.1f} %: the rest of the job's time was not monitored.")
    if job.unmonitored_hours >= 0.05 and job.coverage is not None:
        hours = f"{job.unmonitored_hours:,.1f} of the {job.allocated_hours:,.1f} allocated hours"
        notes.append(f"What the GPUs did in {hours} is not known.")
    if shared := [f"{gpu.host}:{gpu.label}" for gpu in job.gpus if gpu.is_shared]:
        places = ", ".join(shared[:8]) + (", …" if len(shared) > 8 else "")
        told = "What they did at the same time is included here, and counts for no other job."
        notes.append(clean(f"Others had or used {places} too. {told}"))
    unread: dict[str, list[str]] = {}
    for node in job.nodes:
        if node.reason is not None:
            unread.setdefault(node.reason, []).append(node.host)
    for reason, hosts in list(unread.items())[:4]:
        places = ", ".join(map(clean, hosts[:4])) + (", …" if len(hosts) > 4 else "")
        notes.append(f"CPU and RAM on {places}: not all is known ({clean(reason)}).")
    if job.state == "unknown":
        notes.append(f"Whether it runs is not known: {clean(job.state_reason or 'its scheduler cannot be read')}.")
    return notes


def _list(jobs: Sequence[JobSummary], zone: tzinfo, now: float, width: int | None, colour: bool) -> list[str]:
    columns = [
        Column("JOB", keep=100, widest=40),
        Column("USER", keep=95, widest=20),
        Column("STATE", keep=94, widest=20),
        Column("NAME", keep=60, widest=24),
        Column("ACCOUNT", keep=50, widest=20),
        Column("PARTITION", keep=45, widest=20),
        Column("START", keep=85),
        Column("TIME", keep=80, align="right"),
        Column("GPUS", keep=90, align="right"),
        Column("HOSTS", keep=55, widest=24),
        Column("USED", keep=92, align="right"),
        Column("UTIL", keep=91, align="right"),
    ]
    rows = [_job_row(job, zone, now) for job in jobs]
    return render(columns, rows, width, colour)


def _job_row(job: JobSummary, zone: tzinfo, now: float) -> list[Cell]:
    state = job.outcome if job.state == "ended" and job.outcome else job.state
    monitored = job.allocated_hours - job.unmonitored_hours
    used = 100 * job.used_hours / monitored if job.used_hours is not None and monitored > 0 else None
    cells = [
        clean(job.job),
        clean(job.user or "–"),
        clean(state),
        clean(job.name or ""),
        clean(job.account or ""),
        clean(job.partition or job.namespace or ""),
        show_moment(job.start, zone, now),
        show_span(job.wall_seconds),
        str(job.gpu_count),
        clean(",".join(job.hosts)),
        _percent(used),
        _percent(job.utilization_percent),
    ]
    return [(text, _COLOURS.get(job.state, "") if at == 2 else "") for at, text in enumerate(cells)]


def _amount(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}" if value >= 10 or not value else f"{value:,.2f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}%"
