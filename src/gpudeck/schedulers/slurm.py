"""Reads Slurm from its controller, as text of `squeue` and `scontrol`, which is the same across versions.

`scontrol show job` is run only when a job has started, `sacct` every few minutes. The columns of `squeue` contain no
text that users choose. `scontrol show job` does: a job's name may contain lines that look like another job, so it is
believed only about jobs that `squeue` lists and that it describes once.
"""

import asyncio
import logging
import math
import re
import secrets
import subprocess
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from gpudeck.child_process import ChildFailed, run
from gpudeck.discovery.host_names import expand
from gpudeck.model.allocation import Allocation
from gpudeck.model.cpu_budget import parse_in_thread
from gpudeck.model.errors import PluginError, Temporary, Wrong
from gpudeck.model.settings import Duration, Text
from gpudeck.model.text import clean
from gpudeck.schedulers.base import EndedJob, NodeReservation, SchedulerNode, SchedulerState

log = logging.getLogger(__name__)

MAX_BYTES: Final = 128 * 2**20
MAX_WORD: Final = 256
_HOLDING: Final = frozenset(
    ("RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED")
)
"""States of jobs that hold their GPUs."""
_CLOSED: Final = {
    "DRAIN": "drained",
    "DRAINED": "drained",
    "DRAINING": "drained",
    "DOWN": "down",
    "ERROR": "down",
    "FAIL": "failing",
    "FAILING": "failing",
    "INVAL": "down",
    "INVALID_REG": "down",
    "BLOCKED": "blocked",
    "FUTURE": "down",
    "POWER_DOWN": "powered down",
    "POWERED_DOWN": "powered down",
    "POWERING_DOWN": "powered down",
    "REBOOT": "about to restart",
    "REBOOT_REQUESTED": "about to restart",
    "REBOOT_ISSUED": "restarting",
    "NOT_RESPONDING": "not responding",
    "MAINT": "in maintenance",
    "MAINTENANCE": "in maintenance",
}
"""Words of a node's state with which no job starts on it; the first match counts. `RESERVED` is not listed:
reservations are read themselves, and Slurm adds the word late."""
_NOTHING: Final = frozenset(("", "(null)", "N/A", "None", "NONE", "Unknown", "UNKNOWN"))
_JOBS_FORMAT: Final = "%A|%i|%u|%a|%P|%q|%T|%S|%e|%N"
_SETUP: Final = (
    'export LC_ALL=C SLURM_TIME_FORMAT=%s; limit="$(command -v timeout)" && limit="$limit -k 1 {}"; echo; echo "{} 0"'
)
"""`timeout` ends a hanging command on a login node, where killing the local process would not."""
_OVERVIEW: Final = {
    "scontrol show node": "$limit scontrol -o -d show node",
    "squeue": f"$limit squeue -h -a -o '{_JOBS_FORMAT}'",
    "scontrol show reservation": "$limit scontrol -o show reservation",
}
_DETAILS: Final = {"scontrol show job": "$limit scontrol -o -d show job"}
_ENDED: Final = (
    "if $limit scontrol show config | grep -q '^AccountingStorageType .*slurmdbd'; then $limit sacct -n -P -X -a "
    "-S now-{}seconds -E now -s BF,CA,CD,DL,F,NF,OOM,PR,TO -o JobID,Start,End,State | head -n 20000; fi"
)
_ENDED_EVERY: Final = 300.0
_ENDED_WINDOW: Final = 900
"""Longer than the pause, so that no job is missed."""
_ENDED_BEFORE: Final = 86_400
"""At the first reading, for jobs that ended while the hub was away."""

_NAME: Final = re.compile(
    r"(?:ArrayJobId=\d+ ArrayTaskId=\S+ (?:ArrayTaskThrottle=\d+ )?)?(?:HetJobId=\d+ HetJobOffset=\d+ )?"
    r"JobName=(.*?) (?:SLUID=\S+ )?(?:HetJobIdSet=\S+ )?UserId=",
    re.DOTALL,
)
_GPUS_BEGIN: Final = " ReqB:S:C:T="
_GPUS_END: Final = " MinCPUsNode="
"""Text that users choose stands before the first (the job's name) and after the second (comment, folder, command
line), and may look like GPUs. A record that contains one of these words twice is not believed."""
_USED_BY_JOB: Final = re.compile(r" Nodes=(\S+) CPU_IDs=\S* Mem=\S+ GRES=(\S*)")
_REASON: Final = re.compile(r" Reason=(.*?)(?: \[[^\[\]]*\])?(?: (?:Comment|Extra)=.*)?$", re.DOTALL)
_GRES: Final = re.compile(r"gpu(?::[^:,()]+)?:(\d+)(?:\(([^()]*)\))?(?=,|$)")
_INDEXES: Final = re.compile(r"IDX:([\d,-]+)")
_SHARDS: Final = re.compile(r"shard(?::[^:,()]+)?:\d+\((?:IDX:([\d,-]+)|([\d/,]+))\)")


class SlurmSettings(Struct, frozen=True):
    """A Slurm cluster. The hub only reads it."""

    name: Text = "slurm"
    """Its name, if there are several."""
    command: list[Text] = field(default_factory=list)
    """The command before `sh` that runs it where Slurm's commands are: `[ssh, -oBatchMode=yes, gpudeck@login1]`.
    Empty: the hub's machine."""
    interval: Annotated[Duration, Meta(ge=1)] = 30.0
    """Time between two readings."""
    timeout: Annotated[Duration, Meta(ge=1, le=600)] = 20.0
    """Time limit of one reading."""

    def __post_init__(self) -> None:
        for word in (self.name, *self.command):
            if not word.isprintable():
                raise ValueError(f"slurm has {word!r}, with a character that cannot be printed")


class Job(NamedTuple):
    """A job that holds resources, from `squeue`. `started` distinguishes the runs of a requeued job."""

    id: str
    started: str
    nodes: frozenset[str]
    allocation: Allocation


class JobDetails(NamedTuple):
    """From `scontrol show job`: the job's name, and its GPUs by node, including GPUs of which it has shards. None if
    it cannot be believed."""

    name: str | None = None
    gpus: Mapping[str, frozenset[int]] | None = None


class Slurm:
    """Reads one cluster, one reading at a time."""

    def __init__(self, settings: SlurmSettings) -> None:
        self.origin = f"Slurm ({settings.name})"
        self.name = settings.name
        self.pause = settings.interval
        self._command = settings.command
        self._timeout = settings.timeout
        self._details: dict[tuple[str, str], JobDetails] = {}
        self._ended_at = -math.inf
        self._can_tell_ends = True

    async def read(self) -> SchedulerState:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._timeout
        nodes, queue, reservations = await self._run(_OVERVIEW, self._timeout)
        jobs = await parse_in_thread(read_jobs, queue, self.name)
        if any((job.id, job.started) not in self._details for job in jobs):
            (text,) = await self._run(_DETAILS, max(1.0, ends_at - loop.time()))
            found = await parse_in_thread(read_details, text)
            self._details = {(job.id, job.started): found.get(job.id, JobDetails()) for job in jobs}
        state = await parse_in_thread(join, nodes, jobs, self._details, reservations, self.name)
        return replace(state, ended=await self._read_ended(max(1.0, ends_at - loop.time()), loop.time()))

    async def _read_ended(self, seconds: float, now: float) -> tuple[EndedJob, ...]:
        """Failures are logged only: allocations do not depend on it."""
        if now - self._ended_at < _ENDED_EVERY:
            return ()
        window = _ENDED_BEFORE if self._ended_at < 0 else _ENDED_WINDOW
        self._ended_at = now
        try:
            (text,) = await self._run({"sacct": _ENDED.format(window)}, seconds)
            found = await parse_in_thread(read_ended, text)
        except PluginError as error:
            if self._can_tell_ends:
                log.warning("%s: the accounting cannot be read: %s", self.origin, error.message)
            self._can_tell_ends = False
            return ()
        self._can_tell_ends = True
        return found

    async def _run(self, commands: Mapping[str, str], seconds: float) -> list[str]:
        """The output of each command; the keys name them in messages. Stops at the first failure: with a controller
        that is away, each command would wait. Raises Temporary."""
        mark = f"gpudeck-{secrets.token_hex(8)}"
        after = f'code=$?; echo; echo "{mark} $code"; [ $code = 0 ] || exit'
        lines = [f"{text} 2>&1\n{after}" for text in commands.values()]
        script = "\n".join([_SETUP.format(math.ceil(seconds), mark), *lines, ""]).encode()
        program = [*self._command, "sh", "-s"]
        mute = f"did not answer within {seconds:.0f} s."
        try:
            finished = await asyncio.to_thread(
                run, program, seconds=seconds, bytes_at_most=MAX_BYTES, body=script, stderr=subprocess.STDOUT
            )
        except ChildFailed as error:
            begun = error.output.count(f"\n{mark} ".encode())
            if error.why != "time" or not begun:
                raise
            raise Temporary(f"{[*commands, 'sh'][begun - 1]} {mute}") from error
        banner, *parts = finished.output.decode(errors="replace").split(f"\n{mark} ")
        if not parts:
            why = f"failed with exit code {finished.code}" if finished.code else "printed nothing that is understood"
            raise Temporary(f"{Path(program[0]).name} {why}: {_shorten(banner)}.")
        return _split(commands, parts, mute)


def _split(commands: Collection[str], parts: Sequence[str], mute: str) -> list[str]:
    """The output of each command. Each part begins with the exit code of the command before it. Raises Temporary."""
    # A pattern over megabytes would stop the event loop for as long as it takes.
    codes, texts = zip(*(part.partition("\n")[::2] for part in parts), strict=True)
    for name, text, code in zip(commands, texts, codes[1:], strict=False):
        if code != "0":
            raise Temporary(f"{name} {mute}" if code == "124" else f"{name} failed: {_shorten(text)}.")
    if len(parts) <= len(commands):
        raise Temporary(f"the output ends too early: {_shorten(texts[-1]) or 'nothing was printed'}.")
    return list(texts[:-1])


def _shorten(text: str) -> str:
    lines = text.strip().splitlines()
    return clean(lines[-1].strip())[:200].rstrip(".") if lines else ""


def read_jobs(text: str, scheduler: str) -> list[Job]:
    """The jobs that hold resources. Raises Wrong for output of another form."""
    jobs = []
    for line in text.splitlines():
        words = line.split("|")
        if len(words) != _JOBS_FORMAT.count("|") + 1 or not words[0].isdigit():
            raise Wrong(f"squeue printed a line that is not understood: {_shorten(line)}.")
        number, label, user, account, partition, qos, state, start, end, nodes = words
        if state in _HOLDING and nodes:
            allocation = Allocation(
                scheduler=scheduler,
                job=label[:MAX_WORD],
                user=_word(user),
                account=_word(account),
                partition=_word(partition),
                qos=_word(qos),
                is_suspended=state in {"SUSPENDED", "STOPPED"},
                since=_time(start),
                until=_time(end),
                number=number[:MAX_WORD],
            )
            jobs.append(Job(number, start, frozenset(expand_nodes(nodes)), allocation))
    return jobs


def read_ended(text: str) -> tuple[EndedJob, ...]:
    """Raises Wrong for output of another form. A job that never started has no times."""
    ended = []
    for line in filter(None, text.splitlines()):
        words = line.split("|")
        if len(words) != 4:
            raise Wrong(f"sacct printed a line that is not understood: {_shorten(line)}.")
        start, end = _time(words[1]), _time(words[2])
        if start is not None and end is not None:
            # "CANCELLED by 1000"
            ended.append(EndedJob(words[0][:MAX_WORD], start, end, clean(words[3].partition(" ")[0])[:64]))
    return tuple(ended)


def read_details(text: str) -> dict[str, JobDetails]:
    """By job id. A job that is described twice has no details: one of the two is forged."""
    found = list(_records("JobId", text))
    counts = Counter(number for number, _ in found)
    return {number: _read_details(record) for number, record in found if counts[number] == 1}


def _read_details(record: str) -> JobDetails:
    name = _NAME.match(record)
    _, *after = record.split(_GPUS_BEGIN)
    parts = after[0].split(_GPUS_END) if len(after) == 1 else []
    if name is None or len(parts) != 2:
        return JobDetails()
    gpus: dict[str, frozenset[int]] = {}
    for nodes, gres in _USED_BY_JOB.findall(parts[0]):
        found = read_gres(gres)
        indexes = found.indexes | found.shared
        gpus |= {node: gpus.get(node, frozenset()) | indexes for node in expand_nodes(nodes)}
    return JobDetails(_word(name[1]), gpus)


class Gres(NamedTuple):
    """GPUs of a `Gres=` or `GRES=`: their number, their indexes, and the indexes of those with shards in use."""

    number: int
    indexes: frozenset[int]
    shared: frozenset[int]


def read_gres(text: str) -> Gres:
    found = [(int(count), _INDEXES.match(inside or "")) for count, inside in _GRES.findall(text)]
    indexes = frozenset(number for _, match in found if match for number in _numbers(match[1]))
    shared: set[int] = set()
    # 22.05 prints `(IDX:0)`, newer versions the shards in use of each GPU: `(4/8,0/8)`.
    for listed, counts in _SHARDS.findall(text):
        shared.update(_numbers(listed) if listed else ())
        shared.update(place for place, part in enumerate(counts.split(",")) if counts and not part.startswith("0/"))
    return Gres(sum(count for count, _ in found), indexes, frozenset(shared))


def join(
    nodes: str, jobs: Sequence[Job], details: Mapping[tuple[str, str], JobDetails], reservations: str, scheduler: str
) -> SchedulerState:
    by_node: dict[str, list[tuple[Job, JobDetails]]] = {}
    for job in jobs:
        for node in job.nodes:
            by_node.setdefault(node, []).append((job, details[job.id, job.started]))
    lines = dict(_records("NodeName", nodes))
    if not lines:
        raise Wrong(f"scontrol lists no nodes: {_shorten(nodes) or 'it printed nothing'}.")
    found = tuple(_read_reservations(reservations, lines))
    reserved = {node for one in found for node in one.nodes}
    return SchedulerState(
        {
            name: _join_node(name, line, by_node.get(name, []), scheduler, has_reservation=name in reserved)
            for name, line in lines.items()
        },
        found,
    )


def _join_node(
    name: str, line: str, jobs: list[tuple[Job, JobDetails]], scheduler: str, *, has_reservation: bool
) -> SchedulerNode:
    total, used = read_gres(_value(line, "Gres")), read_gres(_value(line, "GresUsed"))
    gpus: dict[int, Allocation] = {}
    # One that runs counts before one that is suspended on the same GPU.
    for job, known in sorted(jobs, key=lambda one: not one[0].allocation.is_suspended):
        gpus |= dict.fromkeys((known.gpus or {}).get(name, ()), replace(job.allocation, name=known.name))
    undescribed = [job for job, known in jobs if known.gpus is None]
    if len(undescribed) == 1:
        # Whatever nobody else has is its.
        gpus |= dict.fromkeys(used.indexes - gpus.keys(), undescribed[0].allocation)
    hidden = "Slurm does not say which job: this account may not see it, or it is just ending"
    for index in used.indexes - gpus.keys():
        gpus[index] = Allocation(scheduler, unknown=hidden)
    for index in used.shared:
        sharing = [job.allocation.job for job, known in jobs if index in (known.gpus or {}).get(name, ())]
        told = f"jobs {', '.join(sharing[:8])}" if sharing else "jobs that Slurm does not name"
        if len(sharing) != 1:
            gpus[index] = Allocation(scheduler, unknown=f"shards of it are allocated to {told}")
    is_vague = used.number > len(used.indexes)
    is_cut = total.number > 0 and " GresUsed=" not in line
    words = (name, _value(line, "NodeHostName"), _value(line, "NodeAddr"))
    return SchedulerNode(
        tuple(dict.fromkeys(word for word in words if word not in _NOTHING)),
        total.number,
        gpus,
        f"{used.number} of its GPUs are allocated, and Slurm does not say which"
        if is_vague
        else "Slurm does not say which of its GPUs are allocated"
        if is_cut
        else None,
        _find_closed(line, has_reservation=has_reservation),
    )


def _find_closed(line: str, *, has_reservation: bool) -> str | None:
    state = _value(line, "State")
    words = [*(word.rstrip("*~#!%$@^-") for word in state.split("+")), *(["NOT_RESPONDING"] if "*" in state else [])]
    closed = next((shown for word, shown in _CLOSED.items() if word in words), None)
    if closed is None:
        is_hidden = "RESERVED" in words and not has_reservation
        return "reserved in Slurm, for whom this account may not see" if is_hidden else None
    reason = _REASON.search(line)
    told = _word(reason[1].strip()) if reason else None
    return f"{closed} in Slurm: {told}" if told else f"{closed} in Slurm"


def _read_reservations(text: str, lines: Mapping[str, str]) -> Iterator[NodeReservation]:
    """Reservations of whole nodes or GPUs; a reservation of single cores takes no GPU away. `lines` describe the
    nodes."""
    for name, line in _records("ReservationName", text):
        start, end, listed = _time(_value(line, "StartTime")), _time(_value(line, "EndTime")), _value(line, "Nodes")
        if start is None or end is None or listed in _NOTHING:
            continue
        nodes = tuple(expand_nodes(listed))
        is_part = _number(line, "CoreCnt") < sum(_count_cores(lines.get(node, "")) for node in nodes)
        if is_part and "gres/gpu" not in _value(line, "TRES"):
            continue
        is_maintenance = "MAINT" in _value(line, "Flags").split(",")
        title = f"reservation {clean(name)[:MAX_WORD]}{' of some GPUs of each node' if is_part else ''}"
        note = f"{'in maintenance in Slurm: ' if is_maintenance else 'Slurm '}{title}"
        users = tuple(_read_users(line))
        yield NodeReservation(clean(name)[:MAX_WORD], nodes, start, end, users, is_maintenance, note)


def _count_cores(node: str) -> int:
    return _number(node, "Sockets") * _number(node, "CoresPerSocket")


def _read_users(line: str) -> Iterator[str]:
    for key, kind in (("Users", ""), ("Accounts", "account "), ("Groups", "group ")):
        yield from (f"{kind}{clean(who)[:64]}" for who in _value(line, key).split(",")[:16] if who not in _NOTHING)


def expand_nodes(text: str) -> list[str]:
    """Expand Slurm's list of nodes: `gpu[01-03,7],login1`. Raises Wrong."""
    try:
        return [name for word in re.findall(r"[^,\[\]]+(?:\[[^\]]*\][^,\[\]]*)*", text) for name in expand(word)]
    except ValueError as error:
        raise Wrong(f"Slurm printed a list of nodes that is not understood: {error}.") from error


def _records(key: str, text: str) -> Iterator[tuple[str, str]]:
    """The value of the key that each record begins with, and the rest of the record. Line by line: a pattern over
    megabytes would block the event loop."""
    record: list[str] = []
    for line in [*text.split("\n"), f"{key}="]:
        if line.startswith(f"{key}=") and record:
            value, _, rest = "\n".join(record).partition(" ")
            yield value[len(key) + 1 :], rest
            record = []
        if line.startswith(f"{key}=") or (record and line):
            record.append(line)


def _value(line: str, key: str) -> str:
    match = re.search(rf"(?:^| ){key}=(\S*)", line)
    return match[1] if match else ""


def _number(line: str, key: str) -> int:
    value = _value(line, key)
    return int(value) if value.isdigit() else 0


def _numbers(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), min(int(last or first), int(first) + 1023) + 1)


def _word(text: str) -> str | None:
    return None if text in _NOTHING else clean(text)[:MAX_WORD]


def _time(text: str) -> float | None:
    return float(text) if text.isdigit() and len(text) < 12 else None
