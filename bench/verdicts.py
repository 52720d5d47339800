"""Verdicts: how often each rule is right about simulated runs with known causes, and what 1,000 verdicts cost.

Half of the runs are healthy, the others have one cause each. They are written to a real history and judged from there.
A suggestion is right if it is the cause or also true of that run. The reference for the rules is what a mean says: the
utilization is low, or the memory is. The reference for the cost is the hub's CPU to list the same runs without them.
"""

import argparse
import gc
import logging
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.run_causes import CARDS, GIB, STEP, Program, make_programs
from bench.tables import Row, print_table
from gpudeck.history.base import Fault, RunsQuery, VerdictQuery
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES, STATE_NUMBERS, GpuSample, HostSample, ProcessSample
from gpudeck.history.verdict_rules import RULES
from gpudeck.model.job import Run, RunVerdict

GPUS, HOUR = 8, 3600.0
START = 1_790_000_000 // 86_400 * 86_400.0
PROMISED_SECONDS = 1.0
NEEDS_ACTIVITY = {"small_batches", "no_tensor_cores", "pcie_bound"}
_AT_ONCE = 60


@dataclass
class Placed:
    """A program on GPUs of a host from one sample on. `pid` is of the run that is judged."""

    program: Program
    gpus: list[int]
    first: int
    pid: int

    @property
    def last(self) -> int:
        return self.first + self.program.samples


class SimulatedHost:
    def __init__(self, number: int, card: int, rng: np.random.Generator) -> None:
        self.name, self.card = f"gpu{number:03d}", card
        self._number, self._rng = number, rng
        self._free = [0] * GPUS
        self.placed: list[Placed] = []
        self._short: list[tuple[Placed, int, int, int]] = []

    @property
    def begin(self) -> int:
        return min(self._free)

    def put(self, program: Program, pid: int) -> None:
        gpus = sorted(range(GPUS), key=lambda gpu: self._free[gpu])[: program.gpus]
        first = max(self._free[gpu] for gpu in gpus) + int(self._rng.integers(3, 30))
        before = [max(1, int(seconds / STEP)) for seconds in program.restarts]
        placed = Placed(program, sorted(gpus), first + sum(before), pid)
        at = first
        for number, (length, pause) in enumerate(zip(before[::2], before[1::2], strict=True), 1):
            self._short.append((placed, at, min(length, program.samples), pid + number))
            at += length + pause
        self.placed.append(placed)
        for gpu in gpus:
            self._free[gpu] = placed.last + 1

    def uuid(self, gpu: int) -> str:
        return f"GPU-{self._number:08x}-{gpu:04x}-4b7e-9a61-2d3c4b5a6978"

    def samples(self) -> Iterator[HostSample]:
        """In order of time, with gaps in which the host did not report."""
        count = max(one.last for one in self.placed) + 10
        names = [name for name in GPU_NAMES if any(name in one.program.tables for one in self.placed)]
        table = np.full((len(names), GPUS, count), np.nan)
        table[names.index("memory_total_bytes")] = CARDS[self.card][1] * GIB
        table[names.index("memory_used_bytes")] = 0.45 * GIB
        table[names.index("utilization_percent")] = 0.0
        cpu = np.zeros(count)
        starts: dict[int, list[tuple[int, int, Placed]]] = defaultdict(list)
        spans = [(one, one.first, one.program.samples, one.pid) for one in self.placed] + self._short
        for one, first, length, pid in spans:
            span = slice(first, first + length)
            for row, name in enumerate(names):
                if name in one.program.tables:
                    table[row, one.gpus, span] = one.program.tables[name][:, :length]
            cpu[span] = np.maximum(cpu[span], one.program.cpu[:length])
            starts[first].append((first + length, pid, one))
        yield from self._emit(names, table, np.maximum(cpu, 3.0), starts)

    def _emit(
        self, names: list[str], table: np.ndarray, cpu: np.ndarray, starts: dict[int, list[tuple[int, int, Placed]]]
    ) -> Iterator[HostSample]:
        count, places = table.shape[2], [GPU_NAMES.index(name) for name in names]
        away = np.zeros(count, np.bool_)
        for begin in self._rng.integers(0, count, count // 4000):
            away[begin : begin + int(self._rng.integers(10, 120))] = True
        away |= self._rng.random(count) < 0.003
        here: list[tuple[int, int, Placed]] = []
        free, busy = STATE_NUMBERS["free"], STATE_NUMBERS["busy"]
        for at in range(count):
            here = [one for one in here if one[0] > at] + starts.get(at, [])
            if away[at]:
                continue
            columns = table[:, :, at].T.tolist()
            gpus = []
            for gpu in range(GPUS):
                values: list[float | None] = [None] * len(GPU_NAMES)
                for place, value in zip(places, columns[gpu], strict=True):
                    values[place] = None if value != value else value
                processes = tuple(self._process(pid, one, gpu, at) for _, pid, one in here if gpu in one.gpus)
                state = busy if processes else free
                gpus.append(GpuSample(self.uuid(gpu), str(gpu), CARDS[self.card][0], state, tuple(values), processes))
            own = (round(float(cpu[at]), 1), *(None,) * (len(HOST_NAMES) - 1))
            yield HostSample(f"id-{self.name}", self.name, START + at * STEP, STEP, own, tuple(gpus))

    def _process(self, pid: int, one: Placed, gpu: int, at: int) -> ProcessSample:
        memory = one.program.tables["memory_used_bytes"][one.gpus.index(gpu)]
        place = min(max(0, at - one.first), len(memory) - 1) if pid == one.pid else 0
        known = int(memory[place]) if pid % 10 else None
        return ProcessSample(pid, None, "ada", one.program.command, None, None, known, None)


def place(programs: Sequence[Program], rng: np.random.Generator) -> list[SimulatedHost]:
    """Each host has cards of one model."""
    hosts: list[SimulatedHost] = []
    for number, program in enumerate(programs):
        fitting = [host for host in hosts if host.card == program.card and host.begin < 3 * 24 * HOUR / STEP]
        if not fitting:
            fitting = [SimulatedHost(len(hosts), program.card, rng)]
            hosts += fitting
        fitting[0].put(program, 1001 + 100 * number + (number % 10 != 0))
    return hosts


def write(store: EmbeddedStore, host: SimulatedHost, clock: list[float]) -> None:
    """A host after the other, as if their outboxes had waited."""
    some: list[HostSample] = []
    for sample in host.samples():
        some.append(sample)
        if len(some) == _AT_ONCE:
            clock[0] = max(clock[0], sample.at)
            store.take(some)
            store.flush()
            some = []
    store.take(some)
    store.flush()


def ask(store: EmbeddedStore) -> list[Run]:
    found: list[Run] = []
    before = None
    while True:
        page = store.runs(RunsQuery(limit=1000, before=before))
        found += page.runs
        if page.next is None:
            return found
        before = page.next


def query_of(run: Run, faults: tuple[Fault, ...]) -> VerdictQuery:
    return VerdictQuery(
        tuple(run.gpus), run.seen_at, run.ended_at or run.seen_at, run.id, True, run.command, None, faults
    )  # fmt: skip


def measure(count: int, seed: int) -> tuple[list[tuple[Placed, RunVerdict]], float, float]:
    """Verdicts, and the CPU seconds for 1,000 of them and for reading the runs alone."""
    programs = make_programs(count, seed)
    hosts = place(programs, np.random.default_rng(seed + 1))
    truths = {one.pid: one for host in hosts for one in host.placed}
    begins = {one.pid: START + one.first * STEP for one in truths.values()}
    with tempfile.TemporaryDirectory() as folder:
        clock = [START]
        store = EmbeddedStore(Path(folder) / "history.db", now=lambda: clock[0])
        for host in hosts:
            write(store, host, clock)
        clock[0] += 3 * HOUR
        while store.stats().parts["journal"]:
            clock[0] += 10
            store.flush()
        gc.collect()
        began = time.process_time()
        runs = ask(store)
        reading = time.process_time() - began
        judged = [run for run in runs if run.pid in truths]
        queries = []
        for run in judged:
            own = truths[run.pid].program.faults
            queries.append(query_of(run, tuple(Fault(begins[run.pid] + at, code) for at, code in own)))
        began = time.process_time()
        verdicts = store.verdicts(queries)
        seconds = time.process_time() - began
        store.close()
    pairs = [(truths[run.pid], verdict) for run, verdict in zip(judged, verdicts, strict=True)]
    return pairs, 1000 * seconds / len(judged), 1000 * reading / len(runs)


def judge_by_means(one: Program) -> set[str]:
    """The reference: what means of the same samples say."""
    level = float(one.tables["utilization_percent"].mean())
    memory = float((one.tables["memory_used_bytes"] / one.tables["memory_total_bytes"]).max())
    return ({"waiting_for_data"} if level < 50 else set()) | ({"small_memory"} if memory < 0.25 else set())


def print_rules(pairs: Sequence[tuple[Placed, RunVerdict]], details: bool) -> None:
    right, fired, there, found, judged = Counter[str](), Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    on_healthy = Counter[str]()
    by_kind: dict[str, Counter[str]] = defaultdict(Counter)
    for placed, verdict in pairs:
        one, rules = placed.program, {suggestion.rule for suggestion in verdict.suggestions}
        can = one.cause is not None and not (one.cause in NEEDS_ACTIVITY and not CARDS[one.card][4])
        by_kind[one.kind].update(rules or [verdict.rating])
        for name in rules:
            fired[name] += 1
            right[name] += name == one.cause or name in one.also
            on_healthy[name] += one.cause is None
        if one.cause is not None:
            there[one.cause] += 1
            judged[one.cause] += can
            found[one.cause] += one.cause in rules
    healthy = [(placed.program, verdict) for placed, verdict in pairs if placed.program.cause is None]
    wrong = sum(bool(verdict.suggestions) for _, verdict in healthy)
    told = f"{wrong} of these got a suggestion ({100 * wrong / len(healthy):.1f} %)"
    print(f"\n{len(pairs)} runs, {len(healthy)} of them healthy: {told}")
    columns = ("rule", "fired", "precision", "recall", "recall where known", "false positives on healthy runs")
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for rule in RULES:
        name = rule.name
        recall = _part(found[name], there[name]), _part(found[name], judged[name])
        share = f"{100 * on_healthy[name] / len(healthy):.1f} %"
        cells = f"`{name}`", str(fired[name]), _part(right[name], fired[name]), *recall, share
        print("| " + " | ".join(cells) + " |")
    hits, total = sum(found.values()), _part(sum(right.values()), sum(fired.values()))
    known = _part(hits, sum(judged.values()))
    print(f"all: precision {total}, recall {_part(hits, sum(there.values()))}, where known {known}")
    for name in ("waiting_for_data", "small_memory"):
        named = [placed.program for placed, _ in pairs if name in judge_by_means(placed.program)]
        good = _part(sum(name == one.cause or name in one.also for one in named), len(named))
        share = f"{100 * sum(one.cause is None for one in named) / len(healthy):.1f} %"
        print(f"reference, {name} by means alone: precision {good}, healthy runs {share}")
    for kind, got in sorted(by_kind.items()) if details else ():
        print(f"  {kind:16} {dict(got.most_common())}")


def _part(some: int, whole: int) -> str:
    return f"{100 * some / whole:.0f} % ({some} of {whole})" if whole else "–"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench verdicts")
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=7, help="that of the published figures; another one to tune rules")
    parser.add_argument("--details", action="store_true", help="also what each kind of run got")
    asked = parser.parse_known_args()[0]
    logging.getLogger("gpudeck").setLevel(logging.ERROR)
    pairs, seconds, reading = measure(asked.runs, asked.seed)
    print_rules(pairs, asked.details)
    promised, ratio = f"≤ {PROMISED_SECONDS:.0f} s", f"{seconds / reading:.0f} ×"
    rows: list[Row] = [("CPU for the verdicts of 1,000 finished runs", f"{seconds:.2f} s", promised, ratio)]
    print_table("Verdicts", f"to list 1,000 runs without verdicts: {1e3 * reading:.0f} ms", rows)


if __name__ == "__main__":
    main()
