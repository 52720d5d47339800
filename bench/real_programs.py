"""Real programs on a real GPU: the verdict on each and how long it takes, and what an agent costs a training loop.

Leaves out: other GPUs than this one, several GPUs, MIG, servers, programs of others, and everything after two minutes.

A hub as `gpudeck up` starts it watches this machine. Four programs run one after the other, and the hub is asked for
its verdict every second. Beside the training loop runs an agent of its own at an interval of one second, with activity
(GPM). It is stopped and continued in turns (SIGSTOP, SIGCONT), in random order, and the steps of the loop are counted
in both, paired. What was due while it was stopped is done when it goes on, so that it has about twice as many slow
readings in its own time as otherwise: the effect comes out too large rather than too small. The hub's own readings go
on in both. Beside the copies run two agents, with and without activity, whose CPU is counted.

It needs PyTorch with CUDA, and ipykernel for the notebook. All results so far are in the file --output after each step.
"""

import argparse
import contextlib
import importlib
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bench.agent_cost import pss_mib
from bench.processes import HubUnderTest, all_cpu_seconds, bare_server
from bench.tables import Row, print_table
from gpudeck.model.job import Runs, RunVerdict

WORKLOADS = Path(__file__).with_name("gpu_workloads.py")
PROMISED_SECONDS = 120
_SETTLE_SECONDS = 0.15
"""Of each span with or without the agent, left out at its beginning."""
_CELL = """
import torch
held = torch.zeros(20 * 2**30, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
"""


def is_training(verdict: RunVerdict) -> bool:
    return verdict.rating == "good" and not verdict.suggestions and "memory bandwidth" not in verdict.text


def is_memory_bound(verdict: RunVerdict) -> bool:
    return verdict.rating == "good" and not verdict.suggestions and "limited by memory bandwidth" in verdict.text


def is_tiny(verdict: RunVerdict) -> bool:
    return [one.rule for one in verdict.suggestions[:1]] == ["small_batches"]


def is_idle_notebook(verdict: RunVerdict) -> bool:
    return [one.rule for one in verdict.suggestions] in (["idle_now"], ["idle_notebook"]) and "notebook" in verdict.text


@dataclass(frozen=True)
class RealProgram:
    name: str
    wanted: str
    is_right: Callable[[RunVerdict], bool]


TINY = RealProgram("tiny", "kernels too small (small_batches)", is_tiny)
NOTEBOOK = RealProgram("notebook", "an idle notebook (idle_now)", is_idle_notebook)
COPIES = RealProgram("copies", "good, limited by memory bandwidth", is_memory_bound)
TRAINING = RealProgram("training", "good", is_training)
PROGRAMS = (TINY, NOTEBOOK, COPIES, TRAINING)
"""In this order: the training goes on for as long as there is time, for the effect of the agent."""


@dataclass
class Log:
    """Results, printed and written at once. `until` is when everything has to end (time.monotonic)."""

    output: Path | None
    until: float
    found: dict[str, Any] = field(default_factory=dict)

    def note(self, name: str, value: object, shown: str | None = None) -> None:
        self.found[name] = value
        shown = json.dumps(value, default=str) if shown is None else shown
        print(f"[{time.strftime('%H:%M:%S')}] {name}: {shown}", flush=True)
        if self.output is not None:
            self.output.write_text(json.dumps(self.found, indent=1, default=str))

    @property
    def seconds_left(self) -> float:
        return self.until - time.monotonic()


@contextlib.contextmanager
def running(*command: str, environment: dict[str, str] | None = None) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def notebook(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A Jupyter kernel that has run one cell."""
    jupyter: Any = importlib.import_module("jupyter_client")  # the other programs run without it
    connection = str(folder / "kernel.json")
    jupyter.write_connection_file(connection, ip="127.0.0.1")
    with running(sys.executable, "-m", "ipykernel_launcher", "-f", connection) as process:
        client = jupyter.BlockingKernelClient(connection_file=connection)
        client.load_connection_file()
        client.start_channels()
        client.wait_for_ready(timeout=40)
        reply = client.execute_interactive(_CELL, timeout=60)
        if reply["content"]["status"] != "ok":
            raise RuntimeError(f"the cell failed: {reply['content']}")
        try:
            yield process
        finally:
            client.stop_channels()


@contextlib.contextmanager
def start(program: RealProgram, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with contextlib.ExitStack() as stack:
        if program is NOTEBOOK:
            yield stack.enter_context(notebook(folder))
        else:
            yield stack.enter_context(running(sys.executable, str(WORKLOADS), program.name, str(steps_of(folder))))


def steps_of(folder: Path) -> Path:
    return folder / "steps"


def ask(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        body: bytes = answer.read()
        return body


def find_verdict(hub: str, pid: int) -> RunVerdict | None:
    runs = msgspec.json.decode(ask(f"{hub}/api/v1/runs?verdict=true&now=true&limit=50"), type=Runs).runs
    return next((run.verdict for run in runs if run.pid == pid), None)


def read_gpu(hub: str) -> dict[str, Any]:
    """What the page shows of the GPU now."""
    gpu = json.loads(ask(f"{hub}/api/v1/fleet"))["hosts"][0]["gpus"][0]
    return {name: value for name, value in gpu.items() if isinstance(value, int | float | str)}


def await_activity(hub: str) -> dict[str, Any]:
    """A hub that has just started knows the activity of its GPUs after ten seconds. Meanwhile PyTorch is read from the
    disk once, so that all programs start alike."""
    end, shown = time.monotonic() + 20, dict[str, Any]()
    with running(sys.executable, "-c", "import torch"):
        while "sm_activity_percent" not in shown and time.monotonic() < end:
            time.sleep(1)
            with contextlib.suppress(LookupError):  # no report yet
                shown = read_gpu(hub)
    return shown


def await_verdict(
    log: Log,
    hub: str,
    program: RealProgram,
    process: "subprocess.Popen[bytes]",
    began: float,
    seconds: float,
    work: Callable[[], None],
) -> None:
    """Asks until the verdict is right or the time is over, with some `work` between two questions."""
    result: dict[str, Any] = {"wanted": program.wanted, "seconds": None, "seen": []}
    end = min(began + seconds, log.until - 2)
    last = ""
    while time.monotonic() < end and process.poll() is None:
        verdict, now = find_verdict(hub, process.pid), time.monotonic() - began
        text = "not seen yet" if verdict is None else f"{verdict.rating}: {verdict.text}"
        if text != last:
            last = text
            result["seen"].append((round(now, 1), text))
            log.note(program.name, result, shown=f"after {now:.1f} s: {text}")
        if verdict is not None and program.is_right(verdict):
            result |= {"seconds": round(now, 1), "verdict": msgspec.to_builtins(verdict), "gpu": read_gpu(hub)}
            break
        work()
    if process.poll() is not None:
        result["ended_by_itself"] = process.returncode
    log.note(program.name, result)


class EffectOfAgent:
    """Stops and continues an agent, and counts the steps of a loop in both. To be closed."""

    def __init__(self, log: Log, steps: Path, agent: int, window: float) -> None:
        self._log, self._steps, self._agent, self._window = log, steps, agent, window
        self._spans: list[tuple[tuple[float, float], tuple[float, float]]] = []
        self._random = random.Random(1)

    def measure_pair(self) -> None:
        """One span with the agent and one without it, in random order."""
        order = [True, False]
        self._random.shuffle(order)
        spans = {is_on: self._watch(is_on) for is_on in order}
        self._spans.append((spans[True], spans[False]))
        if len(self._spans) % 10 == 0:
            self.note()

    def close(self) -> None:
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        for pid in family_of(self._agent):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _watch(self, is_on: bool) -> tuple[float, float]:
        self._send(signal.SIGCONT if is_on else signal.SIGSTOP)
        begin = time.monotonic()
        time.sleep(self._window)
        return begin + _SETTLE_SECONDS, time.monotonic()

    def note(self) -> None:
        moments = [float(line) for line in self._steps.read_text().splitlines()[:-1]]
        rates = [(count_rate(moments, *on), count_rate(moments, *off)) for on, off in self._spans]
        slower = [100 * (off - on) / off for on, off in rates if on and off]
        result: dict[str, Any] = {"pairs": len(slower), "window_seconds": self._window, "slower_percent": slower}
        if len(slower) > 2:
            # Student's distribution: 2.0 to 2.4 for 60 to 8 pairs.
            width = (1.96 + 2.8 / (len(slower) - 1)) * statistics.stdev(slower) / math.sqrt(len(slower))
            steps = statistics.mean(off for _, off in rates)
            result |= {"mean": statistics.mean(slower), "half_width_95": width, "steps_per_second": steps}
            result["median"] = statistics.median(slower)
        self._log.note(
            "effect", result, shown=", ".join(f"{k} {v}" for k, v in result.items() if k != "slower_percent")
        )


def count_rate(moments: list[float], begin: float, end: float) -> float:
    """Steps a second, from the first to the last that ended in that span."""
    inside = [moment for moment in moments if begin <= moment <= end]
    return (len(inside) - 1) / (inside[-1] - inside[0]) if len(inside) > 2 else 0.0


@contextlib.contextmanager
def agent(folder: Path, port: int, *, activity: bool) -> Iterator[list[int]]:
    """The pids of an agent at an interval of one second and of its child."""
    home = folder / f"agent-{activity}"
    home.mkdir()
    (home / "token").write_text("token\n")
    (home / "gpudeck.yaml").write_text(f"agent: {{activity: {str(activity).lower()}}}\n")
    options = ["--config", str(home / "gpudeck.yaml"), "--interval", "1s", "--token-file", str(home / "token")]
    command = [sys.executable, "-m", "gpudeck", "agent", "--hub", f"http://127.0.0.1:{port}", *options]
    with running(*command, environment=os.environ | {"GPUDECK_DATA_DIR": str(home)}) as process:
        time.sleep(4)
        yield family_of(process.pid)


def family_of(pid: int) -> list[int]:
    """A process and its children. Not every kernel lists them under /proc/PID/task."""
    found = [pid]
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found


class CostOfAgents:
    """The CPU of agents with and without activity, in the same time."""

    def __init__(self, log: Log, pids: dict[str, list[int]]) -> None:
        self._log, self._pids = log, pids
        self._began, self._before = time.monotonic(), self._read()

    def _read(self) -> dict[str, float]:
        return {name: sum(map(all_cpu_seconds, pids)) for name, pids in self._pids.items()}

    def note(self) -> None:
        seconds, now = time.monotonic() - self._began, self._read()
        shares = {name: 100 * (now[name] - self._before[name]) / seconds for name in now}
        result: dict[str, Any] = {"seconds": seconds, "cpu_percent_of_a_core": shares}
        self._log.note("agents", result)
        result["pss_mib"] = {name: sum(map(pss_mib, pids)) for name, pids in self._pids.items()}
        self._log.note("agents", result)


def judge_training(log: Log, hub: str, folder: Path, asked: argparse.Namespace) -> None:
    """The verdict, and the effect of an agent meanwhile and after it."""
    with contextlib.ExitStack() as stack:
        _, port = stack.enter_context(bare_server())
        began = time.monotonic()
        process = stack.enter_context(start(TRAINING, folder))
        pids = stack.enter_context(agent(folder, port, activity=True))
        effect = EffectOfAgent(log, steps_of(folder), pids[0], asked.window)
        stack.callback(effect.close)

        def work() -> None:
            if steps_of(folder).exists() and steps_of(folder).stat().st_size > 2000:
                effect.measure_pair()
            else:
                time.sleep(0.5)

        await_verdict(log, hub, TRAINING, process, began, asked.seconds, work)
        while time.monotonic() < min(began + asked.effect_seconds, log.until - 2) and process.poll() is None:
            effect.measure_pair()
        effect.note()


def judge_copies(log: Log, hub: str, folder: Path, asked: argparse.Namespace) -> None:
    with contextlib.ExitStack() as stack:
        _, port = stack.enter_context(bare_server())
        began = time.monotonic()
        process = stack.enter_context(start(COPIES, folder))
        agents = {
            name: stack.enter_context(agent(folder / "cost", port, activity=name == "with activity"))
            for name in ("with activity", "without activity")
        }
        time.sleep(3)
        cost = CostOfAgents(log, agents)
        await_verdict(log, hub, COPIES, process, began, asked.seconds, lambda: time.sleep(1))
        cost.note()


def judge(log: Log, hub: str, program: RealProgram, folder: Path, asked: argparse.Namespace) -> None:
    (folder / "cost").mkdir(exist_ok=True)
    if program is TRAINING:
        judge_training(log, hub, folder, asked)
    elif program is COPIES:
        judge_copies(log, hub, folder, asked)
    else:
        began = time.monotonic()
        with start(program, folder) as process:
            await_verdict(log, hub, program, process, began, asked.seconds, lambda: time.sleep(1))


def read_driver() -> str | None:
    """The table of nvidia-smi, None without one."""
    try:
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,power.limit", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def print_results(found: dict[str, Any]) -> None:
    rows: list[Row] = []
    for program in PROGRAMS:
        if program.name in found:
            seconds = found[program.name]["seconds"]
            shown = "no" if seconds is None else f"{seconds:.0f} s"
            rows.append((f"{program.name}: {program.wanted}", shown, f"≤ {PROMISED_SECONDS} s", ""))
    if "mean" in (effect := found.get("effect", {})):
        value = f"{effect['mean']:.2f} % ± {effect['half_width_95']:.2f} %"
        rows.append((f"an agent with activity slows training, {effect['pairs']} pairs", value, "", ""))
    for name, share in found.get("agents", {}).get("cpu_percent_of_a_core", {}).items():
        rows.append((f"agent {name}, interval of 1 s, CPU", f"{share:.2f} % of a core", "≤ 0.5 %", ""))
    print_table(f"Real programs: {found.get('driver')}", "seconds from the program's start to the right verdict", rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench real_programs")
    parser.add_argument("--output", type=Path, help="a JSON file")
    parser.add_argument("--only", default="tiny,notebook,copies,training")
    parser.add_argument("--seconds", type=float, default=115, help="how long each verdict is waited for")
    parser.add_argument("--effect-seconds", type=float, default=150, help="how long the training runs at least")
    parser.add_argument("--window", type=float, default=1.75, help="seconds with or without the agent")
    parser.add_argument("--deadline", type=float, default=1200, help="seconds after which the rest is left out")
    asked = parser.parse_args(sys.argv[2:] if sys.argv[1:2] == ["real_programs"] else None)
    print(__doc__.splitlines()[2])
    log = Log(asked.output, time.monotonic() + asked.deadline)
    driver = read_driver()
    if driver is None:
        print("there is no nvidia-smi here: nothing can be measured")
        return
    log.note("driver", driver)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with HubUnderTest(folder, "") as hub:
            log.note("hub_ready_seconds", round(hub.ready_after, 2))
            log.note("gpu_before", await_activity(hub.url))
            for program in PROGRAMS:
                if program.name in asked.only.split(",") and log.seconds_left > 20:
                    began = time.monotonic()
                    try:
                        judge(log, hub.url, program, folder, asked)
                    except Exception as error:  # the other programs run all the same
                        log.note(f"{program.name}_error", repr(error))
                    log.note(f"{program.name}_took", round(time.monotonic() - began, 1))
            print_results(log.found)


if __name__ == "__main__":
    main()
