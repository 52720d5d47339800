"""Jobstats' summaries of jobs, as `sacct` prints them: with a header and | between the columns (`sacct -P`), or a job's
number and its summary on each line."""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from msgspec import Struct

from gpudeck.compat.importing import ImportContext, ImportPlan, ImportTarget, Outcome, SkippedEntry
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.job import MOST_IMPORTED, ImportedJob, JobImport
from gpudeck.model.jobstats import PREFIX, read_summary
from gpudeck.model.text import clean
from gpudeck.model.times import parse_time

_COLUMNS: Final = "JobID,Start,User,Account,Partition,QOS,State,AdminComment,JobName"
_LOOK: Final = f"Such as: sacct -P -X -a -S 2026-01-01 -o {_COLUMNS}"
_JOB: Final = re.compile(r"\d+(_\d+|\+\d+)?")
_SLURM_BEGAN: Final = 946_684_800.0
"""The year 2000."""
_LONGEST: Final = 366 * 86_400
_MOST_LINES: Final = 2_000_000
_NAMES: Final = {"user": "User", "account": "Account", "partition": "Partition", "qos": "QOS", "name": "JobName"}


def read(file: Path, here: ImportContext) -> ImportPlan:
    plan = ImportPlan()
    jobs: list[ImportedJob] = []
    count = 0
    try:
        with sys.stdin if str(file) == "-" else file.open(encoding="utf-8", errors="replace") as lines:
            for count, (place, row) in enumerate(_read_rows(lines), 1):  # noqa: B007 - how many there were
                _read_row(place, row, here, plan, jobs)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {(error.strerror or str(error)).lower()}.") from error
    if not count:
        raise UsageError(f"{file} has no summaries of Jobstats ({PREFIX}…).", _LOOK)
    rest = iter(jobs)
    while some := list(islice(rest, MOST_IMPORTED)):
        plan.steps.append(JobStep(here.scheduler, some))
    return plan


def _read_rows(lines: Iterable[str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The lines with a summary, by the names of their columns."""
    header: list[str] | None = None
    for number, line in enumerate(islice(lines, _MOST_LINES), 1):
        words = line.rstrip("\n").split("|")
        if "AdminComment" in words:
            header = words
        elif PREFIX not in line:
            continue
        elif header is not None:
            # A job's name may have a | in it: then it has to be the last column.
            last = "|".join(words[len(header) - 1 :])
            yield f"line {number}", dict(zip(header, [*words[: len(header) - 1], last], strict=False))
        else:
            parts = line.replace("|", " ").split()
            yield f"line {number}", {"JobID": parts[0], "AdminComment": parts[-1]}


def _read_row(
    place: str, row: Mapping[str, str], here: ImportContext, plan: ImportPlan, jobs: list[ImportedJob]
) -> None:
    job, packed = clean(row.get("JobID", ""))[:512], row.get("AdminComment", "")
    if not _JOB.fullmatch(job):
        plan.leave(place, f"{job[:40]!r} is not the id of a job" if job else "no job is named")
        return
    try:
        summary = read_summary(packed[packed.index(PREFIX) :])
        begun = row.get("Start", "")
        start = None if begun in {"", "None", "Unknown"} else parse_time(begun, here.now, here.zone)
    except ValueError as error:
        plan.leave(place, f"job {job[:40]}: {error}")
        return
    if start is not None and not _SLURM_BEGAN <= start <= here.now:
        plan.leave(place, f"job {job[:40]}: it cannot have started at {begun[:40]}")
        return
    if summary is not None and (summary.total_time or 0) > _LONGEST:
        plan.leave(place, f"job {job[:40]}: it cannot have run for more than a year")
        return
    if summary is None or not summary.total_time or not (gpus := summary.list_gpus()):
        plan.over.append(SkippedEntry(place, f"job {job[:40]}: Jobstats has no figures of GPUs"))
        return
    names = {name: clean(row[column])[:256] or None for name, column in _NAMES.items() if column in row}
    outcome = row.get("State", "").partition(" ")[0][:64] or None
    nodes, seconds = summary.list_nodes(), summary.total_time
    jobs.append(ImportedJob(job=job, start=start, seconds=seconds, gpus=gpus, nodes=nodes, outcome=outcome, **names))


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
        self.done = done = hub.client.import_jobs(self.scheduler, self.jobs)
        if done.refused:
            listed = "; ".join(f"job {job}: {why}" for job, why in list(done.refused.items())[:5])
            count = f"{len(done.imported)} imported, {len(done.refused)} not: "
            raise GpudeckError(f"{count}{listed}.", "Add the column Start to sacct -o.")
        return None if done.imported else "all are there already"
