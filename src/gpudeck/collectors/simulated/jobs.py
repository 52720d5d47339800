"""The jobs of each host, with their users, GPUs and times: a timeline that can be read at any time.

A host's time is cut into blocks. The jobs that cross an edge between two blocks are drawn from the edge alone; the jobs
inside a block fill what those leave free. So a block needs no history before it.
"""

from bisect import bisect
from functools import lru_cache
from random import Random

from msgspec import Struct

from gpudeck.collectors.simulated.chance import activity, draw, later, seeded_random
from gpudeck.collectors.simulated.inventory import GpuSlot, HostSpec, arrivals_of
from gpudeck.collectors.simulated.work import PROFILES, Kind, LabUsers, Work, draw_work, pick, pick_size, write_command

_PATIENCE_S = 1800.0


class SimulatedJob(Struct, frozen=True):
    """`gpus` are UUIDs, `slots` their places in the report, `pids` one for each of them. Times are whole Unix seconds;
    it was there from `start` until just before `end`. `guest` is a second job that shares one of its GPUs for some of
    the time."""

    user: str
    uid: int
    kind: Kind
    command: str
    gpus: tuple[str, ...]
    start: float
    end: float
    slots: tuple[int, ...]
    pids: tuple[int, ...]
    container: str | None
    job: str | None
    work: Work
    guest: "SimulatedJob | None" = None

    def describe_owner(self, pid: int) -> str:
        """The evidence for the owner of that process, in the words of `collectors.owners`."""
        if self.job is not None:
            return f"slurm job {self.job} of {self.user}"
        if self.container is not None:
            return f"root in container {self.container}, started by {self.user} (login uid {self.uid})"
        return f"uid {self.uid} of /proc/{pid}"


class Tenure(Struct, frozen=True):
    """A slot's time from `start` to `end`, in which `run` was on it. For an empty slot this holds from `known_from` on
    only."""

    start: float
    end: float
    run: SimulatedJob | None
    known_from: float


class _JobBlock(Struct, frozen=True):
    """Each slot's runs and their starts, in order."""

    runs: tuple[list[SimulatedJob], ...]
    starts: tuple[list[float], ...]


@lru_cache(256)
def _block(timeline: "Timeline", number: int) -> _JobBlock:
    """Keeps the blocks worked out last, over all hosts; older ones are worked out again when asked for."""
    return timeline.work_out(number)


class Timeline:
    """The jobs of one host."""

    def __init__(self, seed: int, host: HostSpec, users: LabUsers) -> None:
        self._seed, self._host, self._users = seed, host, users
        self._life = host.life
        self._arrivals = arrivals_of(host.defect)
        self._presence = {kind: PROFILES[kind].presence for kind in self._arrivals.weights}

    def tenure(self, slot: int, t: float) -> Tenure:
        """The job on the slot at `t`, with its start and end. For an empty slot only the block before is searched."""
        number = self._life.number(t)
        block = _block(self, number)
        runs, starts = block.runs[slot], block.starts[slot]
        place = bisect(starts, t)
        if place and t < runs[place - 1].end:
            run = runs[place - 1]
            return Tenure(run.start, run.end, run, run.start)
        since = runs[place - 1].end if place else self._last_end(slot, number)
        until = starts[place] if place < len(starts) else self._life.opens(number + 1)
        return Tenure(since, until, None, max(since, self._life.opens(number)))

    def overlapping(self, start: float, end: float) -> list[SimulatedJob]:
        found: dict[tuple[float, int], SimulatedJob] = {}
        for number in range(self._life.number(start), self._life.number(end) + 1):
            for run in (run for runs in _block(self, number).runs for run in runs):
                found.update(((job.start, job.pids[0]), job) for job in (run, run.guest) if job)
        there = [run for run in found.values() if run.start < end and run.end > start]
        return sorted(there, key=lambda run: (run.start, run.pids))

    def _last_end(self, slot: int, number: int) -> float:
        if self._life.boots_at(number):
            return self._life.opens(number)
        runs = _block(self, number - 1).runs[slot]
        return runs[-1].end if runs else self._life.opens(number - 1)

    def work_out(self, number: int) -> _JobBlock:
        runs: tuple[list[SimulatedJob], ...] = tuple([] for _ in self._host.slots)
        crossing_in, crossing_out = self._crossing(number), self._crossing(number + 1)
        for run in (*crossing_in, *self._inside(number, crossing_in, crossing_out), *crossing_out):
            for slot in run.slots:
                runs[slot].append(run)
        return _JobBlock(runs, tuple([run.start for run in lane] for lane in runs))

    def _crossing(self, number: int) -> list[SimulatedJob]:
        if self._life.boots_at(number):
            return []
        rng = seeded_random(self._seed, "crossing", self._host.number, number)
        free = [slot for slot in self._host.slots if slot.takes_jobs]
        runs = []
        while free:
            if rng.random() > self._arrivals.filled:
                free.pop(0)
                continue
            kind = pick(rng, self._presence)
            slots = free[: pick_size(rng, kind, _mates(free))]
            del free[: len(slots)]
            runs.append(self._run(rng, kind, slots, *self._span_across(rng, kind, number)))
        return runs

    def _span_across(self, rng: Random, kind: Kind, number: int) -> tuple[float, float]:
        edge = self._life.opens(number)
        earliest, latest = self._watershed(number - 1) + 60, self._watershed(number) - 60
        length = PROFILES[kind].length_s(rng, met_midway=True)
        before = after = 0
        for _ in range(4):  # most jobs are started by day: ask again for those begun at night
            passed = rng.uniform(0.02, 0.98)
            before, after = round(length * passed), round(length * (1 - passed))
            if rng.random() < activity(edge - before):
                break
        return max(earliest, edge - max(60, before)), min(latest, edge + max(60, after))

    def _watershed(self, number: int) -> float:
        """Until when a block may belong to the jobs that crossed into it; from then on to those that cross out."""
        share = 0.25 + 0.5 * draw(self._host.salt, number)
        return float(round(self._life.opens(number) + share * self._life.block_s))

    def _inside(
        self, number: int, crossing_in: list[SimulatedJob], crossing_out: list[SimulatedJob]
    ) -> list[SimulatedJob]:
        """The jobs that begin and end between the crossing ones: whichever slot is free first gets the next job."""
        rng = seeded_random(self._seed, "inside", self._host.number, number)
        free_from = {slot.number: self._life.opens(number) for slot in self._host.slots if slot.takes_jobs}
        free_until = dict.fromkeys(free_from, self._life.closes(number))
        free_from.update((slot, run.end) for run in crossing_in for slot in run.slots)
        free_until.update((slot, run.start) for run in crossing_out for slot in run.slots)
        if not self._life.boots_at(number + 1):
            # What is empty at the edge is so in the middle of a wait, and who crosses it has waited before.
            free_until = {slot: t - rng.expovariate(1 / self._arrivals.gap_s) for slot, t in free_until.items()}
        runs = []
        while free_from:
            first = min(free_from, key=free_from.__getitem__)
            run = self._next_run(rng, first, free_from, free_until)
            if run is None:
                del free_from[first]
                continue
            runs.append(run)
            free_from.update(dict.fromkeys(run.slots, run.end))
        return runs

    def _next_run(
        self, rng: Random, first: int, free_from: dict[int, float], free_until: dict[int, float]
    ) -> SimulatedJob | None:
        arrivals, all_slots = self._arrivals, self._host.slots
        asked = later(free_from[first], rng.expovariate(1 / arrivals.gap_s))
        kind = pick(rng, arrivals.weights)
        length = max(arrivals.shortest_s, PROFILES[kind].length_s(rng) * arrivals.length_scale)
        near = [
            slot
            for slot in sorted(free_from, key=free_from.__getitem__)
            if slot != first and free_from[slot] <= asked + _PATIENCE_S and free_until[slot] > asked + length / 2
        ]
        candidates = [all_slots[first], *(all_slots[slot] for slot in near if all_slots[slot].parent is None)]
        slots = candidates[: pick_size(rng, kind, _mates(candidates))]
        start = float(round(max(asked, *(free_from[slot.number] for slot in slots))))
        end = float(round(min(start + length, *(free_until[slot.number] for slot in slots))))
        return self._run(rng, kind, slots, start, end) if end - start >= arrivals.shortest_s else None

    def _run(self, rng: Random, kind: Kind, slots: list[GpuSlot], start: float, end: float) -> SimulatedJob:
        work = draw_work(rng, kind, brisk=self._arrivals.length_scale < 1, gpus=len(slots))
        guest = self._guest(rng, work, rng.choice(slots), start, end)
        return self._signed(rng, work, sorted(slots, key=lambda slot: slot.number), start, end, guest=guest)

    def _guest(self, rng: Random, work: Work, slot: GpuSlot, start: float, end: float) -> SimulatedJob | None:
        has_room = work.memory_share < 0.7 and end - start > 3600 and slot.parent is None
        if work.kind not in {"training", "loader"} or not has_room or rng.random() > 0.18:
            return None
        begin = round(rng.uniform(start + 60, start + (end - start) / 2))
        until = round(rng.uniform(begin + 600, end - 60))
        second = draw_work(rng, rng.choice(("notebook", "inference")), brisk=False, room=0.9 - work.memory_share)
        return self._signed(rng, second, [slot], float(begin), float(until), as_guest=True)

    def _signed(
        self,
        rng: Random,
        work: Work,
        slots: list[GpuSlot],
        start: float,
        end: float,
        *,
        guest: SimulatedJob | None = None,
        as_guest: bool = False,
    ) -> SimulatedJob:
        user = self._users.pick(rng, self._host.group)
        project = rng.choice(user.projects)
        pids = _pids(start, slots, as_guest, one_program=work.kind == "holder" or rng.random() < 0.12)
        job = container = None
        if self._host.in_slurm:
            job = str(int(start) // 40 % 4_000_000 * 2 + rng.randint(0, 1))
        elif user.in_container:
            container = f"{user.name}-{project}"
        command = write_command(rng, work.kind, project, len(slots))
        gpus, numbers = tuple(slot.uuid for slot in slots), tuple(slot.number for slot in slots)
        return SimulatedJob(
            user.name, user.uid, work.kind, command, gpus, start, end, numbers, pids, container, job, work, guest
        )


def _mates(slots: list[GpuSlot]) -> int:
    """How many of the slots one job can have, beginning with the first: a MIG instance has no mates."""
    return 1 if slots[0].parent else len(slots)


def _pids(start: float, slots: list[GpuSlot], as_guest: bool, *, one_program: bool) -> tuple[int, ...]:
    """No two jobs that run together share a pid: it carries the slot, and whether it is the slot's guest."""
    base = 2000 + int(start) // 10 % 16_000 * 256 + as_guest
    return tuple(base + 2 * slots[0 if one_program else place].number for place in range(len(slots)))
