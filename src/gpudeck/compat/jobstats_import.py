"""Jobstats' summaries of jobs, as `sacct` prints them: with a header and | between the columns (`sacct -P`), or a job's
number and its summary on each line."""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from gpudeck.compat.importing import ImportContext, ImportPlan, ImportTarget, Outcome, SkippedEntry
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.job import MAX_IMPORTED, PREFIX, ImportedJob, JobImport, read_summary
from gpudeck.model.text import clean
from gpudeck.model.times import parse_time

_COLUMNS: Final = "JobID,Start,User,Account,Partition,QOS,State,AdminComment,JobName"
_LOOK: Final = f"Such as: sacct -P -X -a -S 2026-01-01 -o {_COLUMNS}"
_HEADER: Final = frozenset(("JobID", "AdminComment"))
_JOB: Final = re.compile(r"\d+(_\d+|\+\d+)?")
_SLURM_BEGAN: Final = 946_684_800.0
"""The year 2000."""
_LONGEST: Final = 366 * 86_400
_MAX_LINES: Final = 2_000_000
_NOT_OVER: Final = frozenset(
    ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT")
)
"""States of a job whose summary is not its last. REQUEUED is the end of one start."""
_NAMES: Final = {"user": "User", "account": "Account", "partition": "Partition", "qos": "QOS", "name": "JobName"}


def read(file: Path, here: ImportContext) -> ImportPlan:
    plan = ImportPlan()
    jobs: list[ImportedJob] = []
    counts = Counter[str]()
    try:
        with sys.stdin if str(file) == "-" else file.open(encoding="utf-8", errors="replace") as lines:
            for place, row in _read_rows(lines, plan, counts):
                _read_row(place, row, here, plan, jobs)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {(error.strerror or str(error)).lower()}.") from error
    if not counts["summaries"] and not plan.left:
        raise UsageError(f"{file} has no summaries of Jobstats ({PREFIX}…).", _LOOK)
    if without := counts["without"]:
        plan.notes.append(f"{without} line{'s' * (without != 1)} without a summary of Jobstats.")
    rest = iter(jobs)
    while some := list(islice(rest, MAX_IMPORTED)):
        plan.steps.append(JobStep(here.scheduler, some))
    return plan


def _read_rows(lines: Iterable[str], plan: ImportPlan, counts: Counter[str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The lines with a summary, by the names of their columns. Lines that are cut off are left, the others counted."""
    header: list[str] | None = None
    for number, line in enumerate(lines, 1):
        place, words = f"line {number}", line.rstrip("\n").split("|")
        if number > _MAX_LINES:
            plan.leave(place, f"only the first {_MAX_LINES:,} lines are read: split the file")
            return
        is_first = header is None and PREFIX not in line and not _HEADER.isdisjoint(re.split(r"[|,\s]+", line))
        if is_first or words == header or set(words) >= _HEADER:
            header = _read_header(line, words)
        elif not line.strip():
            continue
        elif header is not None and len(words) < len(header):
            plan.leave(place, f"it is cut off: it has {len(words)} of {len(header)} columns")
        elif header is not None:
            # A job's name may have a | in it: then it has to be the last column.
            last = "|".join(words[len(header) - 1 :])
            row = dict(zip(header, [*words[: len(header) - 1], last], strict=True))
            # "JS" is what is left of a summary.
            if row["AdminComment"] and PREFIX.startswith(row["AdminComment"]):
                plan.leave(place, f"job {clean(row['JobID'])[:40]}: it is cut off")
            elif PREFIX in row["AdminComment"]:
                counts["summaries"] += 1
                yield place, row
            else:
                counts["without"] += 1
        elif PREFIX in line:
            counts["summaries"] += 1
            parts = line.replace("|", " ").split()
            yield place, {"JobID": parts[0], "AdminComment": parts[-1]}
        else:
            counts["without"] += 1


def _read_header(line: str, words: list[str]) -> list[str] | None:
    """None for aligned columns, of which there may be these two only. Raises UsageError."""
    if len(words) == 1 and line.split() == ["JobID", "AdminComment"]:
        return None
    if len(words) == 1 and len(re.split(r"[,\s]+", line.strip())) > 1:
        raise UsageError("The columns are not separated by |: sacct needs the option -P.", _LOOK)
    if missing := ", ".join(sorted(_HEADER - set(words))):
        raise UsageError(f"The header has no column {missing}.", _LOOK)
    return words


def _read_row(
    place: str, row: Mapping[str, str], here: ImportContext, plan: ImportPlan, jobs: list[ImportedJob]
) -> None:
    job, packed = clean(row.get("JobID", ""))[:512], row.get("AdminComment", "")
    if not _JOB.fullmatch(job):
        plan.leave(place, f"{job[:40]!r} is not the id of a job" if job else "no job is named")
        return
    state, begun = row.get("State", "").partition(" ")[0], row.get("Start", "")
    try:
        summary = read_summary(packed[packed.index(PREFIX) :])
        start = None if begun in {"", "None", "Unknown"} else parse_time(begun, here.now, here.zone)
        _check(state, begun, start, 0.0 if summary is None else summary.total_time, here.now)
    except ValueError as error:
        plan.leave(place, f"job {job[:40]}: {error}")
        return
    if summary is None or not summary.total_time or not (gpus := summary.list_gpus()):
        plan.over.append(SkippedEntry(place, f"job {job[:40]}: Jobstats has no figures of GPUs"))
        return
    names = {name: clean(row[column])[:256] or None for name, column in _NAMES.items() if column in row}
    outcome = state[:64] or None
    nodes, seconds = summary.list_nodes(), summary.total_time
    jobs.append(ImportedJob(job=job, start=start, seconds=seconds, gpus=gpus, nodes=nodes, outcome=outcome, **names))


def _check(state: str, begun: str, start: float | None, seconds: float, now: float) -> None:
    """Raises ValueError for a job that has not ended, or cannot have been."""
    if state in _NOT_OVER:
        raise ValueError(f"it has not ended ({state})")
    if start is not None and not _SLURM_BEGAN <= start <= now:
        raise ValueError(f"it cannot have started at {begun[:40]}")
    if seconds > _LONGEST:
        raise ValueError("it cannot have run for more than a year")
    if start is not None and start + seconds > now:
        raise ValueError(f"it would end in the future, {seconds:.0f} s after {begun[:40]}")


class JobStep(Struct):
    """Some jobs at once. `done` is what the hub made of them."""

    scheduler: str
    jobs: Sequence[ImportedJob]
    done: JobImport | None = None

    kind = "job"

    @property
    def what(self) -> str:
        first, last = self.jobs[0].job, self.jobs[-1].job
        return f"job {first}" if len(self.jobs) == 1 else f"{len(self.jobs)} jobs, {first} to {last}"

    @property
    def counts(self) -> dict[Outcome, int]:
        if self.done is None:
            return {"new": len(self.jobs)}
        return {"new": len(self.done.imported), "there": len(self.done.there), "failed": len(self.done.refused)}

    def find(self, hub: ImportTarget) -> str | None:
        """Nothing is asked: the hub skips what it has."""

    def apply(self, hub: ImportTarget) -> str | None:
        new = {"scheduler": self.scheduler, "jobs": msgspec.to_builtins(self.jobs)}
        self.done = done = hub.client.read(hub.client.post("/api/v1/jobs/import", new), JobImport)
        if done.refused:
            listed = "; ".join(f"job {one.job}: {one.reason}" for one in done.refused[:5])
            more = f"; and {len(done.refused) - 5} more" if len(done.refused) > 5 else ""
            hint = "Add the column Start to sacct -o." if any(one.start is None for one in done.refused) else ""
            raise GpudeckError(f"{len(done.imported)} imported, {len(done.refused)} not: {listed}{more}.", hint)
        return None if done.imported else "all are there already"
