"""SSH: what it costs the hub to read two hundred hosts without agents, and what a host that hangs does to the others.

One real sshd stands for all hosts, with a login and a kept connection for each. Two cores serve both sides here, so
the hosts do not run the command that is sent: they print a captured answer of an H200. The CPU counted is that of the
reading process alone. The reference is what scripts do: `ssh` for one host after the other.
"""

import asyncio
import contextlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from bench.processes import rss_mib
from bench.tables import print_table
from gpudeck.model.target import Target
from gpudeck.sources.base import FetchedReport, Source
from gpudeck.sources.poller import Poller, PollMethod
from gpudeck.sources.ssh import make

TESTS = Path(__file__).parents[1] / "tests"
sys.path.append(str(TESTS))

if TYPE_CHECKING:
    from fakes.sshd import Sshd  # type: ignore[import-not-found]

HOSTS = 200
SECONDS = 30.0
SERIAL_HOSTS = 20
ANSWER = TESTS / "captures/nvidia-smi/answers/h200-580.159.04-person.txt"
_MANY = "MaxStartups 1000\nMaxSessions 100\nLogLevel INFO\n"


class Watched:
    """A source whose readings are timed. `spent` is shared by all of them."""

    def __init__(self, source: Source, spent: list[float]) -> None:
        self._source = source
        self._spent = spent
        self.close = source.close

    async def read(self, now: float) -> FetchedReport:
        start = time.perf_counter()
        arrival = await self._source.read(now)
        self._spent.append(time.perf_counter() - start)
        return arrival


class Measured:
    """One run of the poller: its CPU as a share of a core, the CPU seconds of a reading, how long each took (sorted),
    the CPU seconds of a login, and the memory of a host in MiB."""

    share = reading = login = memory = 0.0
    spent: Sequence[float] = ()

    def within(self, share: float) -> float:
        return self.spent[int(share * (len(self.spent) - 1))]


def main() -> None:
    from fakes.sshd import IS_HERE, WHY_NOT  # noqa: PLC0415

    if not IS_HERE:
        print(f"\nSSH: not measured, it {WHY_NOT}")
        return
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with running(f"ForceCommand cat {ANSWER}") as good, running("ForceCommand exec sleep 60") as hanging:
        plain, beside = uvloop.run(measure_polling(good, hanging))
        seconds, cpu = measure_serial(good)
    report(plain, beside, seconds, cpu)


def report(plain: Measured, beside: Measured, seconds: float, cpu: float) -> None:
    at_once = plain.within(0.5)
    print_table(
        f"SSH: {HOSTS} hosts read every 5 s over kept connections by one process; they print a captured answer",
        f"`ssh` for one host after the other, measured for {SERIAL_HOSTS} and extrapolated to {HOSTS}",
        [
            ("CPU of the reading process, of one core", f"{plain.share:.0%}", "< 100 %", ""),
            ("CPU for one reading", f"{plain.reading * 1e3:.1f} ms", "", ""),
            ("CPU for one login", f"{plain.login * 1e3:.1f} ms", "", ""),
            ("memory for each host", f"{plain.memory * 1024:.0f} KiB", "", ""),
            ("answer, half of them within", f"{at_once * 1e3:.0f} ms", "", ""),
            ("answer, 99 % within", f"{plain.within(0.99) * 1e3:.0f} ms", "", ""),
            *(
                (
                    f"beside a host that hangs, {share:.0%} within",
                    f"{beside.within(share) * 1e3:.0f} ms",
                    "as without it",
                    f"{beside.within(share) / plain.within(share):.2f} ×",
                )
                for share in (0.5, 0.99)
            ),
            ("`ssh` serially, a round of all (extrapolated)", f"{seconds * HOSTS:.0f} s", "", ""),
            ("`ssh` serially, CPU of the client a reading", f"{cpu * 1e3:.0f} ms", "", f"{cpu / plain.reading:.1f} ×"),
        ],
    )


@contextlib.contextmanager
def running(options: str) -> Iterator["Sshd"]:
    from fakes.sshd import running_sshd  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder, running_sshd(Path(folder) / "sshd", options=_MANY + options) as sshd:
        yield sshd


async def measure_polling(sshd: "Sshd", hanging: "Sshd") -> tuple[Measured, Measured]:
    """Without and then with a host that hangs. The logins are counted apart from the readings that follow."""
    spent: list[float] = []
    settings = sshd.settings()
    make_good, make_bad = make(settings), make(hanging.settings())

    def make_source(target: Target) -> Source:
        return make_bad(target) if target.name == "hanging" else Watched(make_good(target), spent)

    ways = {"ssh": PollMethod(make_source, settings.interval, settings.deadline)}
    poller = Poller(ways, lambda *_: True, lambda *_: None)
    memory, cpu = rss_mib(_self()), time.process_time()
    targets = [sshd.target(f"gpu{number:03}") for number in range(HOSTS)]
    poller.watch(targets)
    async with asyncio.timeout(60.0):
        while len(spent) < HOSTS:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    login = (time.process_time() - cpu) / HOSTS
    plain = await measure_readings(spent, settings.interval)
    plain.login, plain.memory = login, (rss_mib(_self()) - memory) / HOSTS
    poller.watch([*targets, hanging.target("hanging")])
    beside = await measure_readings(spent, settings.interval)
    await poller.stop()
    return plain, beside


async def measure_readings(spent: list[float], settle: float) -> Measured:
    await asyncio.sleep(settle)
    spent.clear()
    measured, cpu, clock = Measured(), time.process_time(), time.perf_counter()
    await asyncio.sleep(SECONDS)
    cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
    measured.share, measured.reading, measured.spent = cpu / clock, cpu / len(spent), sorted(spent)
    return measured


def measure_serial(sshd: "Sshd") -> tuple[float, float]:
    """Seconds, and CPU seconds of the client, for a reading of one host with the command `ssh`."""
    options = ["-F", "none", "-i", str(sshd.key), "-o", f"UserKnownHostsFile={sshd.known_hosts}", "-p", str(sshd.port)]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    for _ in range(SERIAL_HOSTS):
        subprocess.run(["ssh", *options, "127.0.0.1", "true"], check=True, capture_output=True, timeout=60)
    after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds / SERIAL_HOSTS, cpu / SERIAL_HOSTS


def _self() -> int:
    return int(Path("/proc/self").readlink().name)
