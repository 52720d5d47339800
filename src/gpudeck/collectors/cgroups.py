"""CPU time and memory of the jobs and pods that have processes on GPUs, from their cgroups (v1, v2 and both). The group
of the whole job counts: it also has the CPU time of processes that have ended. Read every half minute, and when another
job appears."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec.structs import replace

from gpudeck.collectors.base import is_due
from gpudeck.collectors.containers import find_job_group
from gpudeck.collectors.proc import read_number, read_text
from gpudeck.model.report import MAX_CGROUPS, JobCgroup, Report

PAUSE_SECONDS = 30.0
_NO_LIMIT = 2**60
"""Where cgroup v1 has no limit, it writes a number just below 2^63."""
_CONTROLLERS = ("memory", "cpuacct", "cpu", "cpuset")
_POD_UID = re.compile(r"pod([0-9a-f_-]{32,36})")
_PLACES = ("/host/sys/fs/cgroup", "/sys/fs/cgroup")
"""Where cgroups are mounted. The first is that of a container to which the host's are given (deploy/kubernetes)."""
Groups = Mapping[str, tuple[str, bool]]
"""The folder of a job's group for each controller, and whether it is one of cgroup v2."""


class CgroupWatch:
    """Adds `job_cgroups` to reports. `root` is where /proc and /sys are found."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = str(root).rstrip("/")
        self._read_at: float | None = None
        self._jobs: set[str] = set()
        self._found: list[JobCgroup] = []

    def add_to(self, report: Report, now: float) -> Report:
        """The report with the cgroups of its jobs, the same list until they are read again. Never raises."""
        pids: dict[str, int] = {}
        for gpu in report.gpus or ():
            for process in gpu.processes or ():
                if process.job is not None and process.pid and len(pids) < MAX_CGROUPS:
                    pids.setdefault(process.job, process.pid)
        if pids.keys() - self._jobs or is_due(self._read_at, PAUSE_SECONDS, now):
            self._read_at, self._jobs = now, set(pids)
            read = (self._read(job, pid, now) for job, pid in pids.items())
            self._found = [one for one in read if one is not None]
        return replace(report, job_cgroups=self._found) if self._found else report

    def _read(self, job: str, pid: int, now: float) -> JobCgroup | None:
        """None of a process that has just ended."""
        try:
            text = read_text(f"{self._root}/proc/{pid}/cgroup")
        except OSError:
            return None
        groups = self._find_groups(text)
        values: dict[str, float | None] = {}
        reasons: dict[str, str] = {}
        for name, controller, reader in _READINGS:
            if controller not in groups:
                reasons[name] = f"its process {pid} is in no group of a job or pod that has {controller}"
                continue
            try:
                values[name] = reader(*groups[controller])
            except (OSError, ValueError, KeyError) as error:
                why = error.strerror if isinstance(error, OSError) else f"{type(error).__name__} {error}"
                reasons[name] = f"{groups[controller][0]}: {why}"[:1000]
        allotted = [cores for name in ("quota", "cpus") if (cores := values.get(name)) is not None]
        memory, limit = values.get("memory_used_bytes"), values.get("memory_limit_bytes")
        return JobCgroup(
            job=job,
            read_at=now,
            cpu_seconds=values.get("cpu_seconds"),
            memory_used_bytes=None if memory is None else int(memory),
            cpu_limit_cores=min(allotted) if allotted else None,
            memory_limit_bytes=None if limit is None else int(limit),
            reasons={name: why for name, why in reasons.items() if name in {"cpu_seconds", "memory_used_bytes"}},
        )

    def _find_groups(self, text: str) -> Groups:
        """`text` is a /proc/<pid>/cgroup."""
        found: dict[str, tuple[str, bool]] = {}
        for line in text.splitlines():
            _, controllers, path = (*line.split(":", 2), "", "")[:3]
            group = find_job_group(path)
            for name in controllers.split(",") if group is not None else ():
                folder = self._find_folder(name, group or "")
                if folder is None:
                    continue
                # On a machine with both, what v1 has v2 does not.
                for controller in [name] if name else [one for one in _CONTROLLERS if one not in found]:
                    found[controller] = folder, not name
        return found

    def _find_folder(self, controller: str, group: str) -> str | None:
        """`controller` is empty for v2."""
        names = (controller,) if controller else ("", "unified")
        mounts = [f"{self._root}{place}/{name}".rstrip("/") for place in _PLACES for name in names]
        for mount in mounts:
            if os.path.isdir(mount + group):  # noqa: PTH112 - as in sysfs
                return mount + group
        # From within a container of Kubernetes the path of another pod is not whole.
        if uid := _POD_UID.search(group):
            for mount in mounts:
                for pattern in ("kubepods*/", "kubepods*/*/"):
                    if folder := next(Path(mount).glob(f"{pattern}*pod{uid[1]}*"), None):
                        return str(folder)
        return None


def _read_cpu(folder: str, is_v2: bool) -> float:
    return (
        _read_stat(f"{folder}/cpu.stat")["usage_usec"] / 1e6 if is_v2 else read_number(f"{folder}/cpuacct.usage") / 1e9
    )


def _read_memory(folder: str, is_v2: bool) -> float:
    """Without files that were read and can be dropped: the kernel counts them as the job's."""
    stat = _read_stat(f"{folder}/memory.stat")
    used = read_number(f"{folder}/{'memory.current' if is_v2 else 'memory.usage_in_bytes'}")
    return max(0, used - stat["inactive_file" if is_v2 else "total_inactive_file"])


def _read_memory_limit(folder: str, is_v2: bool) -> float | None:
    if not is_v2:
        limit = _read_stat(f"{folder}/memory.stat")["hierarchical_memory_limit"]
        return limit if limit < _NO_LIMIT else None
    text = read_text(f"{folder}/memory.max")
    return None if text == "max" else int(text)


def _read_quota(folder: str, is_v2: bool) -> float | None:
    if is_v2:
        quota, period = read_text(f"{folder}/cpu.max").split()
    else:
        quota, period = (read_text(f"{folder}/cpu.cfs_{name}_us") for name in ("quota", "period"))
    return None if quota in {"max", "-1"} else int(quota) / int(period)


def _count_cpus(folder: str, is_v2: bool) -> float:
    """`0-3,8` are five."""
    text = read_text(f"{folder}/{'cpuset.cpus.effective' if is_v2 else 'cpuset.cpus'}")
    ends = [part.partition("-") for part in text.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)


def _read_stat(path: str) -> dict[str, int]:
    lines = (line.split() for line in read_text(path).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdigit()}


_READINGS: tuple[tuple[str, str, Callable[[str, bool], float | None]], ...] = (
    ("cpu_seconds", "cpuacct", _read_cpu),
    ("memory_used_bytes", "memory", _read_memory),
    ("memory_limit_bytes", "memory", _read_memory_limit),
    ("quota", "cpu", _read_quota),
    ("cpus", "cpuset", _count_cpus),
)
