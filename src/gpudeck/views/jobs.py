"""Jobs and runs as tables for a terminal; a single job and a verdict in full. Unknown values are a dash, never zero."""

import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from datetime import tzinfo

from gpudeck.model.job import RATING_WORDS, JobGpu, JobNode, JobReport, JobReports, JobSummary, Rating, Run, RunVerdict
from gpudeck.model.text import clean, show_gib, show_span, without_maker
from gpudeck.model.times import show_moment
from gpudeck.views.table import Cell, CellColumn, end_lines, tabulate, wrap

RATING_SIGNS: dict[Rating, str] = {"good": "●", "could_be_better": "▲", "poor": "✗", "unknown": "?"}
_RATING_COLOURS: dict[Rating, str] = {"good": "green", "could_be_better": "yellow", "poor": "red", "unknown": ""}
_STATE_COLOURS = {"running": "green", "suspended": "yellow", "unknown": "yellow"}


def render_runs(
    runs: Sequence[Run], zone: tzinfo, now: float, *, width: int | None = None, colour: bool = False
) -> str:
    """One line per run, the newest first, with its first suggestion below it. Ends in a newline."""

    def start(run: Run) -> float:
        return run.started_at or run.seen_at

    columns: list[CellColumn[Run]] = [
        CellColumn("RUN", 90, "right", cell=lambda run: str(run.id)),
        CellColumn("GPUS", 100, widest=28, cell=lambda run: f"{run.host_name}:{','.join(run.labels)}"),
        CellColumn("MODEL", 40, widest=20, cell=lambda run: None if run.model is None else without_maker(run.model)),
        CellColumn("USER", 80, widest=16, cell=lambda run: run.user or None),
        CellColumn("START", 85, cell=lambda run: show_moment(start(run), zone, now)),
        CellColumn("TIME", 95, "right", cell=lambda run: show_span((run.ended_at or now) - start(run))),
        CellColumn("UTIL", 96, "right", cell=lambda run: _percent(run.mean_utilization_percent)),
        CellColumn("MEM GiB", 60, "right", cell=lambda run: show_gib(run.peak_memory_bytes)),
        CellColumn("VERDICT", 99, cell=_rating),
        CellColumn("COMMAND", 70, cell=lambda run: run.command or None),
    ]
    table = tabulate(columns, runs, width, colour)
    lines = table[: len(table) - len(runs)]
    for run, line in zip(runs, table[len(lines) :], strict=True):
        lines.append(line)
        for one in [] if run.verdict is None else run.verdict.suggestions[:1]:
            lines += _indent(f"{one.text}: {one.evidence}. {one.fix}", width, "    ")
    return end_lines(lines)


def _rating(run: Run) -> Cell | None:
    if run.verdict is None:
        return None
    rating = run.verdict.rating
    return f"{RATING_SIGNS[rating]} {RATING_WORDS[rating]}", _RATING_COLOURS[rating]


def show_verdict(verdict: RunVerdict, width: int | None) -> list[str]:
    """The verdict in full."""
    told = f"{RATING_SIGNS[verdict.rating]} Verdict: {RATING_WORDS[verdict.rating]}."
    lines = _indent(told if verdict.suggestions else f"{told} {verdict.text}", width, "")
    for one in verdict.suggestions:
        lines += _indent(f"- {one.text}: {one.evidence}. {one.fix} (From: {one.threshold}.)", width, "  ")
    return lines


def _indent(text: str, width: int | None, indent: str) -> list[str]:
    return textwrap.wrap(clean(text), width or 10_000, initial_indent=indent, subsequent_indent=indent + "  ")


def render_job(found: JobReports, zone: tzinfo, now: float, *, width: int | None = None, colour: bool = False) -> str:
    """The newest start in full, and one line for each earlier one; for an array one line per task. Ends in a newline;
    times are in `zone`."""
    job, *others = found.jobs
    older = ["", f"Older ones are not shown: these are the newest {len(found.jobs)}."] if found.has_more else []
    if any(one.job != job.job for one in others):
        tasks = [*_array(found.jobs, width), "", *_list(found.jobs, zone, now, width, colour), *older]
        return end_lines([*tasks, *_others(found, width)])
    state = job.state if job.outcome is None else f"{job.state}, {job.outcome}"
    lines = wrap(_title(f"Job {job.job}", job, state), width)
    lines += [line for text in _facts(job, zone, now) for line in wrap(text, width)]
    has_total = len(job.gpus) > 1
    amounts: list[JobGpu | JobReport] = [*job.gpus, *([job] if has_total else [])]
    lines += ["", *tabulate(_GPU_COLUMNS, amounts, width, colour, has_total=has_total)] if amounts else []
    known = [node for node in job.nodes if node.cpu_seconds is not None or node.memory_peak_bytes is not None]
    lines += ["", *tabulate(_NODE_COLUMNS, known, width, colour)] if known else []
    lines += [line for text in _job_notes(job) for line in ("", *wrap(text, width))]
    lines += ["", *show_verdict(job.verdict, width)] if job.verdict is not None else []
    if others:
        lines += ["", "Earlier starts:", *_list(others, zone, now, width, colour), *older]
    return end_lines([*lines, *_others(found, width)])


def _others(found: JobReports, width: int | None) -> list[str]:
    named = " or ".join(f"--scheduler {clean(name)}" for name in found.other_schedulers)
    return ["", *wrap(f"Another job has this id: {named}.", width)] if named else []


def _array(jobs: Sequence[JobReport], width: int | None) -> list[str]:
    """The totals of an array's tasks."""
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
    """One line per job, the newest first. Ends in a newline."""
    return end_lines(_list(jobs, zone, now, width, colour))


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


def _longest_idle(one: JobGpu | JobReport) -> str | None:
    if not isinstance(one, JobGpu):
        return ""
    if one.idle_stretches is None:
        return None
    longest = max((end - begin for begin, end in one.idle_stretches), default=0.0)
    return show_span(longest) if longest else "none"


_GPU_COLUMNS: list[CellColumn[JobGpu | JobReport]] = [
    CellColumn("GPU", 100, cell=lambda one: f"{one.host}:{one.label}" if isinstance(one, JobGpu) else "total"),
    CellColumn("MODEL", 40, widest=24, cell=lambda one: without_maker(one.model) if isinstance(one, JobGpu) else ""),
    CellColumn("ALLOCATED h", 99, "right", cell=lambda one: _amount(one.allocated_hours)),
    CellColumn("USED h", 98, "right", cell=lambda one: _amount(one.used_hours)),
    CellColumn("IDLE h", 80, "right", cell=lambda one: _amount(one.idle_hours)),
    CellColumn("UTIL", 97, "right", cell=lambda one: _percent(one.utilization_percent)),
    CellColumn("MAX", 60, "right", cell=lambda one: _percent(one.utilization_peak_percent)),
    CellColumn("MEM GiB", 70, "right", cell=lambda one: show_gib(one.memory_mean_bytes)),
    CellColumn("PEAK", 90, "right", cell=lambda one: show_gib(one.memory_peak_bytes)),
    CellColumn("kWh", 65, "right", cell=lambda one: _amount(one.energy_kwh)),
    CellColumn("COST", 75, "right", cell=lambda one: "" if one.cost is None else _amount(one.cost)),
    CellColumn("LONGEST IDLE", 50, "right", cell=_longest_idle),
]
_NODE_COLUMNS: list[CellColumn[JobNode]] = [
    CellColumn("HOST", 100, cell=lambda node: node.host),
    CellColumn("CORES", 99, "right", cell=lambda node: _amount(node.cpu_mean_cores)),
    CellColumn("MAX", 90, "right", cell=lambda node: _amount(node.cpu_peak_cores)),
    CellColumn("ALLOWED", 95, "right", cell=lambda node: _amount(node.cpu_limit_cores)),
    CellColumn(
        "CPU h", 80, "right", cell=lambda node: None if node.cpu_seconds is None else _amount(node.cpu_seconds / 3600)
    ),
    CellColumn("RAM GiB", 98, "right", cell=lambda node: show_gib(node.memory_mean_bytes)),
    CellColumn("PEAK", 97, "right", cell=lambda node: show_gib(node.memory_peak_bytes)),
    CellColumn("LIMIT", 94, "right", cell=lambda node: show_gib(node.memory_limit_bytes)),
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
    columns: list[CellColumn[JobSummary]] = [
        CellColumn("JOB", 100, cell=lambda job: job.job),
        CellColumn("USER", 95, widest=20, cell=lambda job: job.user or None),
        CellColumn("STATE", 94, widest=20, cell=_state),
        CellColumn("NAME", 60, widest=24, cell=lambda job: job.name or ""),
        CellColumn("ACCOUNT", 50, widest=20, cell=lambda job: job.account or ""),
        CellColumn("PARTITION", 45, widest=20, cell=lambda job: job.partition or job.namespace or ""),
        CellColumn("START", 85, cell=lambda job: show_moment(job.start, zone, now)),
        CellColumn("TIME", 80, "right", cell=lambda job: show_span(job.wall_seconds)),
        CellColumn("GPUS", 90, "right", cell=lambda job: str(job.gpu_count)),
        CellColumn("HOSTS", 55, widest=24, cell=lambda job: ",".join(job.hosts)),
        CellColumn("USED", 92, "right", cell=_used),
        CellColumn("UTIL", 91, "right", cell=lambda job: _percent(job.utilization_percent)),
    ]
    return tabulate(columns, jobs, width, colour)


def _state(job: JobSummary) -> Cell:
    state = job.outcome if job.state == "ended" and job.outcome else job.state
    return state, _STATE_COLOURS.get(job.state, "")


def _used(job: JobSummary) -> str | None:
    monitored = job.allocated_hours - job.unmonitored_hours
    return _percent(100 * job.used_hours / monitored if job.used_hours is not None and monitored > 0 else None)


def _amount(value: float | None) -> str | None:
    return None if value is None else f"{value:,.1f}" if value >= 10 or not value else f"{value:,.2f}"


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.0f}%"
