"""A hub under attack: 200 clients that mean no good beside 200 honest ones, on one machine.

Honest are 120 agents and 60 readers of /api/v1/fleet, each every 2 s, and 20 live views, each at an address of its own.
The same is measured in quiet and under attack, in turns, each several times with a new hub; and once under the same
attack with limits so wide that nobody meets them.

A p99 is of a few answers only, and whatever else runs on the machine makes it. So each figure is the median of the
rounds, and the table tells how long the hub was kept from a processor, and the machine from its host.
"""

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, field

from bench.processes import HubUnderTest, cpu_seconds, rss_mib, stolen_seconds, waiting_seconds
from bench.reports import make_rounds
from bench.tables import print_table

AGENTS, READERS, VIEWERS = 120, 60, 20
INTERVAL = 2.0
SECONDS = 16.0
ROUNDS = 3
_WIDE = (
    "limits: {requests_per_second: 1000000, requests_burst: 1000000, reports_per_second: 1000000, "
    "reports_burst: 1000000, connections_per_address: 100000, connections: 100000}\n"
)


class Honest(Struct):
    """What honest clients have seen: seconds of each answer, and everything that was not as it should be."""

    reports: list[float] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)
    events: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def answers(self) -> list[float]:
        return [*self.reports, *self.reads]


class Phase(Struct):
    """`busy` and `waiting` are seconds of the hub: on a processor, and ready while others had them. `stolen` are those
    in which the processors were taken from this machine."""

    honest: Honest
    attack: Counter[str]
    memory: float
    busy: float
    waiting: float
    stolen: float


Phases = Sequence[Phase]
"""The same, measured several times."""


def main() -> None:
    _go_first()
    rounds = make_rounds(AGENTS, int(SECONDS / INTERVAL) * 2 + 6)
    quiet, attacked = zip(*(measure("", rounds) for _ in range(ROUNDS)), strict=True)
    _, wide = measure(_WIDE, rounds)
    base = _typical(quiet, "reads"), _typical(quiet, "reports")
    cores = len(os.sched_getaffinity(0))
    print_table(
        f"A hub under attack by 200 clients, with 200 honest ones; {cores} cores for all of them",
        f"the same in quiet, p99 of {base[0] * 1e3:.1f} ms a reading and {base[1] * 1e3:.1f} ms a report",
        [
            *_rows("in quiet", quiet, quiet, False),
            *_rows("under attack", attacked, quiet, True),
            *_rows("under attack, limits out of reach", [wide], quiet, False),
            *_attack_rows(sum((phase.attack for phase in attacked), Counter())),
        ],
    )
    for kind, number in sorted(sum((phase.honest.errors for phase in attacked), Counter()).items()):
        print(f"  honest error: {kind}: {number}")


def _go_first() -> None:
    """Honest clients sit elsewhere in life: here they must not wait for a processor behind the attackers, which would
    count as the hub's time. Their children, hub and attackers, do not go first. Only root may."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def measure(limits: str, rounds: list[list[bytes]]) -> tuple[Phase, Phase]:
    """In quiet, then under attack, with one hub."""
    config = f"demo: never\nlocal: never\n{limits}"
    with tempfile.TemporaryDirectory() as folder, HubUnderTest(Path(folder), config) as hub:
        token = (Path(folder) / "agent.token").read_text().strip()
        waiting = iter(rounds)
        asyncio.run(be_honest(hub.port, token, [next(waiting), next(waiting)], 2 * INTERVAL))
        phases = []
        for is_attacked in (False, True):
            mine = [next(waiting) for _ in range(int(SECONDS / INTERVAL))]
            attack = _start_attack(hub.port, token) if is_attacked else None
            pid = hub.process.pid
            busy, waited, stolen = cpu_seconds(pid), waiting_seconds(pid), stolen_seconds()
            honest = asyncio.run(be_honest(hub.port, token, mine, SECONDS))
            busy, waited, memory = cpu_seconds(pid) - busy, waiting_seconds(pid) - waited, rss_mib(pid)
            stolen = stolen_seconds() - stolen
            phases.append(Phase(honest, _finish(attack), memory, busy, waited, stolen))
    return phases[0], phases[1]


def _start_attack(port: int, token: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.attackers", str(port), token, str(SECONDS + 2)]
    attack = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    # They have to make their bombs first, and to be refused once.
    time.sleep(2)
    return attack


def _finish(attack: subprocess.Popen[str] | None) -> Counter[str]:
    if attack is None:
        return Counter()
    told, _ = attack.communicate(timeout=60)
    return Counter(json.loads(told))


async def be_honest(port: int, token: str, rounds: Sequence[Sequence[bytes]], seconds: float) -> Honest:
    told = Honest()
    agents = [push(port, token, number, [bodies[number] for bodies in rounds], told) for number in range(AGENTS)]
    readers = [read(port, number, seconds, told) for number in range(READERS)]
    viewers = [view(port, number, seconds, told) for number in range(VIEWERS)]
    await asyncio.gather(*agents, *readers, *viewers)
    return told


async def push(port: int, token: str, number: int, bodies: Sequence[bytes], told: Honest) -> None:
    await asyncio.sleep(number / AGENTS * INTERVAL)
    client = Client(port, f"127.2.0.{1 + number}", told)
    for body in bodies:
        head = (
            f"POST /api/v1/reports HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nContent-Type: "
            f"application/msgpack\r\nContent-Encoding: zstd\r\nGpudeck-Sent-At: {time.time()}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        began = time.perf_counter()
        if await client.ask(head.encode() + body, b"202"):
            told.reports.append(time.perf_counter() - began)
        await asyncio.sleep(max(0.0, INTERVAL - (time.perf_counter() - began)))
    client.close()


async def read(port: int, number: int, seconds: float, told: Honest) -> None:
    await asyncio.sleep(number / READERS * INTERVAL)
    until = time.perf_counter() + seconds - INTERVAL
    client = Client(port, f"127.2.1.{1 + number}", told)
    while (began := time.perf_counter()) < until:
        if await client.ask(b"GET /api/v1/fleet HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"200"):
            told.reads.append(time.perf_counter() - began)
        await asyncio.sleep(max(0.0, INTERVAL - (time.perf_counter() - began)))
    client.close()


async def view(port: int, number: int, seconds: float, told: Honest) -> None:
    """An event has to come every second: one that does not within ten is an error."""
    until = time.perf_counter() + seconds
    try:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, local_addr=(f"127.2.2.{1 + number}", 0), limit=64 * 2**20
        )
        with contextlib.closing(writer):
            writer.write(b"GET /api/v1/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            while time.perf_counter() < until:
                line = await asyncio.wait_for(reader.readuntil(b"\n"), 10)
                told.events += line.startswith(b"event: ")
    except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
        told.errors[f"stream: {type(error).__name__}"] += 1


class Client:
    """A kept connection from an address of its own. What goes wrong is counted, and the next request connects again."""

    def __init__(self, port: int, source: str, told: Honest) -> None:
        self._port = port
        self._source = source
        self._told = told
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, sent: bytes, wanted: bytes) -> bool:
        try:
            async with asyncio.timeout(20):
                status = await self._exchange(sent)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            self.close()
            self._told.errors[type(error).__name__] += 1
            return False
        if status != wanted:
            self._told.errors[f"{status.decode()} instead of {wanted.decode()}"] += 1
        return status == wanted

    async def _exchange(self, sent: bytes) -> bytes:
        if self._streams is None:
            self._streams = await asyncio.open_connection(
                "127.0.0.1", self._port, local_addr=(self._source, 0), limit=64 * 2**20
            )
        reader, writer = self._streams
        writer.write(sent)
        head = await reader.readuntil(b"\r\n\r\n")
        if b"transfer-encoding: chunked" in head.lower():
            while (size := int(await reader.readline(), 16)) > 0:
                await reader.readexactly(size + 2)
            await reader.readline()
        else:
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        return head[9:12]

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def percentile(seconds: Sequence[float], percent: int) -> float:
    return statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1] if len(seconds) > 1 else float("nan")


def _typical(phases: Phases, kind: str, percent: int = 99) -> float:
    return statistics.median(percentile(getattr(phase.honest, kind), percent) for phase in phases)


def _rows(title: str, phases: Phases, quiet: Phases, is_promised: bool) -> list[tuple[str, str, str, str]]:
    errors = sum(phase.honest.errors.total() for phase in phases)
    asked = sum(len(phase.honest.answers) for phase in phases) + errors
    rows = [(f"{title}: honest errors", f"{errors} of {asked:,}", "0" if is_promised else "", "")]
    for word, kind in (
        ("any honest answer", "answers"),
        ("a reading of the fleet", "reads"),
        ("a report", "reports"),
    ):
        for percent in (50, 99):
            found, base = _typical(phases, kind, percent), _typical(quiet, kind, percent)
            promised = "≤ 3 ×" if is_promised and percent == 99 else ""
            rows.append((f"  {word}, p{percent}", f"{found * 1e3:.1f} ms", promised, f"{found / base:.2f} ×"))
        if len(phases) > 1:
            each = ", ".join(f"{percentile(getattr(phase.honest, kind), 99) * 1e3:.1f}" for phase in phases)
            rows.append((f"    {word}, p99 of each round", f"{each} ms", "", ""))
    for word, figure, unit in (
        ("events of live views", lambda phase: phase.honest.events, ""),
        ("the hub on a processor", lambda phase: phase.busy, f" s of {SECONDS:.0f}"),
        ("the hub waiting for one", lambda phase: phase.waiting, f" s of {SECONDS:.0f}"),
        ("processors taken away", lambda phase: phase.stolen, f" s of {SECONDS:.0f}"),
        ("memory of the hub", lambda phase: phase.memory, " MiB"),
    ):
        spent, base = (statistics.median(map(figure, some)) for some in (phases, quiet))
        rows.append((f"  {word}", f"{spent:.1f}{unit}", "", f"{spent / base:.2f} ×" if base else ""))
    return rows


def _attack_rows(told: Counter[str]) -> list[tuple[str, str, str, str]]:
    """What came of the attack, with limits as they are."""
    words = Counter[str]()
    for key, number in told.items():
        words[key.partition(" ")[2]] += number
    names = {"connections": "connections made", "cut off": "cut off", "429": "answered 429"}
    refused = [(f"  attackers: {names[word]}", f"{words[word]:,}", "", "") for word in names]
    others = {word: number for word, number in words.items() if word not in names}
    return [*refused, ("  attackers: answered otherwise", f"{sum(others.values()):,}", "", "")]
