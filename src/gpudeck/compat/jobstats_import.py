"""Imports Jobstats' summaries of jobs, as `sacct -P` prints them: a header, and | between the columns."""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from gpudeck.compat.importing import ImportContext, ImportPlan, ImportTarget, Outcome
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.job import MAX_IMPORTED, PREFIX, ImportedJob, JobImport, read_summary
from gpudeck.model.text import clean
from gpudeck.model.times import parse_time

_COLUMNS: Final = "JobID,Start,User,Account,Partition,QOS,State,AdminComment,JobName"
_LOOK: Final = f"Such as: sacct -P -X -a -S 2026-01-01 -o {_COLUMNS}"
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
    """Raises UsageError for a file without a header."""
    plan, jobs, without = ImportPlan(), list[ImportedJob](), 0
    try:
        with sys.stdin if str(file) == "-" else file.open(encoding="utf-8", errors="replace") as lines:
            header = lines.readline().rstrip("\n").split("|")
            if not {"JobID", "AdminComment"} <= set(header):
                message = f"{file} does not begin with a header that has the columns JobID and AdminComment"
                raise UsageError(f"{message}, separated by |.", _LOOK)
            for number, line in enumerate(lines, 2):
                # A job's name may have a | in it: then it has to be the last column.
                place, words = f"line {number}", line.rstrip("\n").split("|", len(header) - 1)
                if number > _MAX_LINES:
                    plan.leave(place, f"only the first {_MAX_LINES:,} lines are read: split the file")
                    break
                if words == header or not line.strip():
                    continue
                row = dict(zip(header, words, strict=False))
                if len(words) < len(header):
                    plan.leave(place, f"it is cut off: it has {len(words)} of {len(header)} columns")
                elif PREFIX not in row["AdminComment"]:
                    without += 1
                else:
                    _read_row(place, row, here, plan, jobs)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {(error.strerror or str(error)).lower()}.") from error
    if without:
        plan.notes.append(f"{without} line{'s' * (without != 1)} without a summary of Jobstats.")
    plan.steps += [
        JobStep(here.scheduler, jobs[start : start + MAX_IMPORTED]) for start in range(0, len(jobs), MAX_IMPORTED)
    ]
    return plan


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
        plan.skip(place, f"job {job[:40]}: Jobstats has no figures of GPUs")
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
    """Some jobs at once. `done` is the hub's answer."""

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

    def run(self, hub: ImportTarget, *, apply: bool) -> str | None:
        """A dry run asks nothing: the hub skips the jobs that it has."""
        if not apply:
            return None
        new = {"scheduler": self.scheduler, "jobs": msgspec.to_builtins(self.jobs)}
        self.done = done = hub.client.read(hub.client.post("/api/v1/jobs/import", new), JobImport)
        if done.refused:
            listed = "; ".join(f"job {each.job}: {each.reason}" for each in done.refused[:5])
            more = f"; and {len(done.refused) - 5} more" if len(done.refused) > 5 else ""
            hint = "Add the column Start to sacct -o." if any(each.start is None for each in done.refused) else ""
            raise GpudeckError(f"{len(done.imported)} imported, {len(done.refused)} not: {listed}{more}.", hint)
        return None if done.imported else "all are there already"
