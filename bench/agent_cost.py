"""What watching costs the watched machine: our agent, gpustat and nvitop on the same fake NVIDIA driver, in one run.

Eight GPUs and sixteen processes that are really there (they sleep). The fake library answers at once, so what is
measured is the monitor and not the driver; docs/performance.md has a run on a real card.
"""

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.processes import cpu_seconds, rss_mib
from bench.tables import print_table
from gpudeck.agent.outbox import EncodedReport, Outbox, ReportTime, Spool

ROOT = Path(__file__).parent.parent
OTHERS = ROOT / "bench" / "out" / "others"
GPUS, PROCESSES = 8, 16
READINGS = 20
INTERVAL = 2
"""Seconds between two reports, as an agent has it unless told otherwise."""

# Each prints the median microseconds of a whole sample: every GPU, every process, every owner.
_TIMED = """
import statistics, time
{setup}
def once():
    start = time.perf_counter()
    {sample}
    return time.perf_counter() - start
for _ in range(5):
    once()
print(statistics.median(once() for _ in range({repeats})) * 1e6)
"""
SAMPLES = {
    "gpudeck": (
        "from gpudeck.collectors.nvml import NvmlCollector\ncollector = NvmlCollector()",
        "collector.collect(time.time())",
        400,
    ),
    "gpustat": ("import gpustat", "gpustat.new_query().jsonify()", 12),
    "nvitop": (
        "from nvitop import Device, GpuProcess, take_snapshots",
        "take_snapshots()",
        12,
    ),
}


def main() -> None:
    others = install_others()
    with tempfile.TemporaryDirectory() as folder, sleeping() as pids:
        environment = fake_machine(Path(folder), pids)
        times = {name: sample(name, environment, others) for name in SAMPLES if name == "gpudeck" or others}
        run_agent(Path(folder), environment, readings=1)  # compiles
        agent = run_agent(Path(folder), environment)
        alone = run_agent(Path(folder), environment, has_hub=False)
        outbox = measure_outbox(Path(folder), report_of(environment))
        local, local_cpu = measure_local(environment)
    ours = times["gpudeck"]
    rows = [
        (f"{name}, a whole sample", f"{value:,.0f} µs", "", f"{value / ours:,.1f} ×") for name, value in times.items()
    ]
    rows += [
        ("gpudeck, a whole sample for one GPU", f"{ours / GPUS:.0f} µs", "≤ 150 µs", ""),
        ("gpudeck agent at an interval of 1 s, CPU", f"{agent['cpu'] * 100:.2f} % of a core", "≤ 0.5 %", ""),
        ("  its memory, parent and child, PSS", f"{agent['pss']:.0f} MiB", "≤ 40 MiB", ""),
        ("  its memory, parent and child, RSS", f"{agent['rss']:.0f} MiB", "", ""),
        ("gpudeck show --local, from the shell", f"{local * 1e3:.0f} ms", "≤ 200 ms", ""),
        ("  its CPU time", f"{local_cpu * 1e3:.0f} ms", "≤ 200 ms", ""),
    ]
    print_outbox(agent, alone, outbox)
    print_table(
        f"The agent: {GPUS} GPUs and {PROCESSES} processes of a fake NVIDIA driver",
        f"our own sample, {ours:,.0f} µs; gpustat sleeps 100 ms of its time",
        rows,
    )


def install_others() -> Path | None:
    """An environment with gpustat and nvitop; None where no package index answers: ours is measured all the same."""
    python = OTHERS / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(OTHERS)], check=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "gpustat", "nvitop"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        print("gpustat and nvitop could not be installed: only our own figures follow")
        return None
    return python


@contextmanager
def sleeping() -> Iterator[list[int]]:
    """Processes that are really there."""
    processes = [subprocess.Popen(["sleep", "600"]) for _ in range(PROCESSES)]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def fake_machine(folder: Path, pids: list[int]) -> dict[str, str]:
    """The environment in which the fake driver is found. Its log of calls is left out: it would cost more than they."""
    sys.path.insert(0, str(ROOT / "tests"))
    from fakes.nvml.driver import (  # type: ignore[import-not-found]  # noqa: PLC0415 - the tests' fake, found only now
        FakeDriver,
        FakeGpu,
    )

    gpus = [FakeGpu(f"GPU-{number}", pci=f"00000000:{number:02x}:00.0") for number in range(GPUS)]
    for at, pid in enumerate(pids):
        gpus[at % GPUS].compute.append((pid, 2**30))
    found: dict[str, str] = FakeDriver(folder, gpus).environment
    del found["GPUDECK_FAKE_NVML_CALLS"]
    # As after an install: nothing is compiled by the processes that are measured, which would stay in their memory.
    found |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    return os.environ | found | {"PYTHONPATH": str(ROOT / "src"), "GPUDECK_DATA_DIR": str(folder)}


def sample(name: str, environment: dict[str, str], others: Path | None) -> float:
    setup, call, repeats = SAMPLES[name]
    python = sys.executable if name == "gpudeck" else str(others)
    code = _TIMED.format(setup=setup, sample=call, repeats=repeats)
    done = subprocess.run(
        [python, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    return float(done.stdout.split()[-1])


def run_agent(
    folder: Path, environment: dict[str, str], *, has_hub: bool = True, readings: int = READINGS
) -> dict[str, float]:
    """The agent with its child, pushing to a server that only says yes, or to nobody."""
    (folder / "token").write_text("token\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    serving = ["-m", "bench.bare_server", str(port)] if has_hub else ["-c", "import time; time.sleep(600)"]
    hub = subprocess.Popen([sys.executable, *serving], cwd=ROOT)
    command = [sys.executable, "-m", "gpudeck", "agent", "--interval", "1s", "--token-file", str(folder / "token")]
    agent = subprocess.Popen(
        [*command, "--hub", f"http://127.0.0.1:{port}"], env=environment, stderr=subprocess.DEVNULL
    )
    try:
        time.sleep(6)
        pids = [agent.pid, *children_of(agent.pid)]
        before = sum(cpu_of(pid) for pid in pids)
        time.sleep(readings)
        spent = sum(cpu_of(pid) for pid in pids) - before
        memory = {"rss": sum(map(rss_mib, pids)), "pss": sum(map(pss_mib, pids))}
        return {"cpu": spent / readings, "written": written_bytes(agent.pid), **memory}
    finally:
        for process in (agent, hub):
            process.terminate()
            process.wait()


def report_of(environment: dict[str, str]) -> bytes:
    """One report of the fake machine, as it is sent."""
    code = """
import sys, time
from gpudeck.agent.run import Reporter
from gpudeck.agent.settings import AgentSettings
from gpudeck.collectors.machine import watch_this_machine
machine = watch_this_machine(AgentSettings())
machine.collect(time.time())
sys.stdout.buffer.write(Reporter("gpu01", "id", lambda _: "boot", machine).report(time.time(), 2.0).body)
machine.close()
"""
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True).stdout


def measure_outbox(folder: Path, body: bytes) -> dict[str, float]:
    """An outbox by itself, at the usual interval of 2 s, with a clock that runs faster: an hour in which the hub takes
    each report at once, an hour and a day in which it takes none, the start after that day, and its backlog."""
    hour, day = 3600 // INTERVAL, 86_400 // INTERVAL
    times = {"bytes": float(len(body))}
    for name, spool in (("memory", None), ("disk", Spool(folder / "present.db", "boot"))):
        outbox, timer = new_outbox(spool)
        times[f"present_{name}"] = cpu_time(partial(beat_on, outbox, timer, body, hour, takes=True)) / 3600
    for name, spool in (("memory", None), ("disk", Spool(folder / "absent.db", "boot"))):
        outbox, timer = new_outbox(spool)
        times[f"absent_{name}"] = cpu_time(partial(beat_on, outbox, timer, body, hour)) / 3600
    before = rss_mib(os.getpid())
    outbox, timer = new_outbox(Spool(folder / "day" / "gpu01.db", "boot"))
    for _ in range(day // 300):
        beat_on(outbox, timer, body, 300, tick=False)
        outbox.save()
    times["day_reports"], times["day_rss"] = float(len(outbox)), rss_mib(os.getpid()) - before
    outbox.close()
    times["day_disk"] = sum(file.stat().st_size for file in (folder / "day").iterdir()) / 2**20
    opened: list[Outbox] = []
    times["day_start"] = cpu_time(lambda: opened.append(new_outbox(Spool(folder / "day" / "gpu01.db", "boot"))[0]))
    times["day_send"] = cpu_time(partial(send_all, opened[0])) / times["day_reports"]
    return times


def new_outbox(spool: Spool | None) -> tuple[Outbox, list[float]]:
    timer = [100.0]
    return Outbox(None, 128 * 2**20, max_age=2e5, spool=spool, boottime=lambda: timer[0]), timer


def beat_on(
    outbox: Outbox, timer: list[float], body: bytes, readings: int, *, takes: bool = False, tick: bool = True
) -> None:
    for _ in range(readings):
        outbox.put(EncodedReport("gpu01", body, ReportTime(timer[0], timer[0])))
        if takes:
            send_all(outbox)
        for _ in range(INTERVAL):
            timer[0] += 1.0
            if tick:
                outbox.tick()  # what its thread does each second


def send_all(outbox: Outbox) -> None:
    while (parcel := outbox.wait(0)) is not None:
        outbox.done(parcel)
    outbox.save()


def cpu_time(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def print_outbox(agent: dict[str, float], alone: dict[str, float], outbox: dict[str, float]) -> None:
    def share(name: str) -> str:
        return f"{outbox[name] * 100:.4f} % of a core"

    def ratio(name: str) -> str:
        return f"{outbox[f'{name}_disk'] / outbox[f'{name}_memory']:.1f} ×"

    print_table(
        f"The outbox: reports of {outbox['bytes']:,.0f} bytes every {INTERVAL} s",
        "the same outbox in memory only",
        [
            ("hub present: in memory only", share("present_memory"), "", "1.0 ×"),
            ("hub present: on disk where needed", share("present_disk"), "≤ 0.1 %", ratio("present")),
            (f"  bytes that the agent wrote in {READINGS + 6} s", f"{agent['written']:,.0f}", "0", ""),
            ("hub absent: in memory only", share("absent_memory"), "", "1.0 ×"),
            ("hub absent: on disk, fsync every 4 s", share("absent_disk"), "≤ 0.1 %", ratio("absent")),
            (f"  bytes that the agent wrote in {READINGS + 6} s", f"{alone['written']:,.0f}", "", ""),
            ("  the whole agent at an interval of 1 s", f"{alone['cpu'] * 100:.2f} % of a core", "", ""),
            ("  the same with a hub", f"{agent['cpu'] * 100:.2f} % of a core", "≤ 0.5 %", ""),
            ("a day without a hub: reports", f"{outbox['day_reports']:,.0f}", "", ""),
            ("  memory for it", f"{outbox['day_rss']:.0f} MiB", "", ""),
            ("  disk for it", f"{outbox['day_disk']:.0f} MiB", "", ""),
            ("  a start with it", f"{outbox['day_start'] * 1e3:.0f} ms", "", ""),
            ("  a report of it, read and deleted", f"{outbox['day_send'] * 1e6:.0f} µs", "", ""),
        ],
    )


def written_bytes(pid: int) -> float:
    """What a process had the kernel write to a disk."""
    return float(next(line for line in Path(f"/proc/{pid}/io").read_text().splitlines() if "write_bytes" in line)[13:])


def measure_local(environment: dict[str, str]) -> tuple[float, float]:
    """The time and the CPU time of `gpudeck show --local`, the medians of ten."""
    rows = []
    for _ in range(11):
        before, start = os.times(), time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "gpudeck", "show", "--local"], env=environment, capture_output=True, check=True
        )
        after, seconds = os.times(), time.perf_counter() - start
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        rows.append((seconds, spent))
    walls, cpus = zip(*rows[1:], strict=True)  # the first one compiles
    return statistics.median(walls), statistics.median(cpus)


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    found = [int(child) for task in tasks for child in task.read_text().split()]
    # A collector that has nothing to read here has ended its child.
    return [child for child in found if Path(f"/proc/{child}/cmdline").read_bytes()]


def cpu_of(pid: int) -> float:
    """All threads of a process."""
    return sum(cpu_seconds(int(task.name)) for task in Path(f"/proc/{pid}/task").iterdir())


def pss_mib(pid: int) -> float:
    """Its own memory and its share of what it shares."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise ValueError("no Pss line")
