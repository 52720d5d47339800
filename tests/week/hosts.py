"""Twelve hosts and what happens to them in a week. All of it follows from the time: a host that is asked twice about
one moment says the same.

Hours are those of the week, which begins on a Monday at midnight UTC. Each host has a clock of its own (`ahead_at`).
"""

import math
import random
from collections.abc import Callable

from msgspec import Struct, field

from fakes.reports import GIB, HOST, IDLE
from gpudeck.collectors.base import WHOLE_BOARD
from gpudeck.collectors.simulated.gpus import AMD_UNKNOWN
from gpudeck.model.report import Disk, GpuEvent, GpuReading, Number, Process, Report
from gpudeck.wire import Envelope

HOUR = 3600.0
START = 1_789_948_800.0
"""A Monday."""
DAYS = 7
USERS = ("alice", "bob", "carol", "dave", "erin", "frank")
A100, MI300, ARC = "NVIDIA A100-SXM4-80GB", "AMD Instinct MI300X", "Intel Arc A770"

Span = tuple[float, float]
"""From hour until hour."""


class Job(Struct, frozen=True):
    """`works_until`: from then on its memory is held, and no work is done. Hours."""

    pid: int
    user: str | None
    start: float
    end: float
    works_until: float
    gib: int


class Card(Struct):
    """A GPU or an instance. `trouble` changes its metrics by the hour; `faults` are XIDs by hour."""

    uuid: str
    index: int
    model: str = A100
    vendor: str = "nvidia"
    parent: str | None = None
    instance: int | None = None
    jobs: list[Job] = field(default_factory=list)
    faults: list[tuple[float, int, int | None]] = field(default_factory=list)
    missing: list[Span] = field(default_factory=list)
    trouble: Callable[[float], dict[str, Number | None]] = lambda _: {}
    has_display: bool = False
    tells_processes: bool = True
    tells_idle: bool = True


def plan_jobs(uuid: str, share: float = 0.6) -> list[Job]:
    """Users come and go: a few hours of work, sometimes with memory that is held after it, then a pause."""
    chance = random.Random(f"week {uuid}")
    jobs: list[Job] = []
    at = chance.uniform(0.0, 6.0)
    while at < DAYS * 24:
        length = chance.uniform(0.5, 9.0)
        works = length if chance.random() < 0.7 else length * chance.uniform(0.2, 0.6)
        user = chance.choice(USERS)
        jobs.append(Job(1000 + len(jobs), user, at, at + length, at + works, chance.randrange(4, 60)))
        at += length + length * (1 - share) / share * chance.uniform(0.2, 1.8)
    return jobs


class Machine(Struct):
    """One host. `away`: nothing of it reaches the hub; with `keeps` its reports of that time come afterwards."""

    name: str
    cards: Callable[[float], list[Card] | None]
    interval: float = 60.0
    via: str = "push"
    machine_id: str = ""
    away: list[Span] = field(default_factory=list)
    keeps: bool = True
    boots: list[float] = field(default_factory=list)
    ahead: list[tuple[float, float, float]] = field(default_factory=list)
    renamed: tuple[float, str] | None = None
    versions: list[tuple[float, str, str]] = field(default_factory=lambda: [(0.0, "1.0.0", "570.1")])
    own: Callable[[float], dict[str, Number]] = lambda _: {}
    no_gpus: str | None = None
    problems: Callable[[float], list[str]] = lambda _: []
    fails: list[Span] = field(default_factory=list)
    sequence: int = 0

    def is_away(self, hour: float) -> bool:
        return is_in(self.away, hour)

    def ahead_at(self, hour: float) -> float:
        """Seconds by which its clock is ahead of the true time."""
        return next((seconds for start, end, seconds in self.ahead if start <= hour < end), 0.0)

    def report(self, at: float, interval: float) -> Envelope:
        hour = (at - START) / HOUR
        ahead = self.ahead_at(hour)
        self.sequence += 1
        boot = sum(hour >= one for one in self.boots)
        _, agent, driver = max(version for version in self.versions if version[0] <= hour)
        cards = self.cards(hour)
        report = Report(
            gpus=None if cards is None else [read_card(card, hour, ahead) for card in cards],
            gpus_reason=self.no_gpus,
            metrics={
                **HOST,
                "cpu_percent": wave(self.name, hour, 5, 80),
                "uptime_seconds": hour * HOUR,
                **self.own(hour),
            },
            driver_version=None if cards is None else driver,
            os="Debian GNU/Linux 12 (bookworm)",
            labels={"rack": self.name[-1]},
            disks=[Disk("/data", int(500 * GIB + hour * GIB), 1000 * GIB)] if self.via == "push" else [],
            problems=self.problems(hour),
        )
        name = self.name if self.renamed is None or hour < self.renamed[0] else self.renamed[1]
        return Envelope(
            version=1,
            host=name,
            host_id=self.machine_id,
            boot_id=f"boot-{boot}",
            run_id=f"run-{boot}",
            sequence=self.sequence,
            collected_at=at + ahead,
            interval_seconds=interval,
            agent_version=agent if self.via == "push" else "",
            report=report,
        )


def is_in(spans: list[Span], hour: float) -> bool:
    return any(start <= hour < end for start, end in spans)


def wave(name: str, hour: float, low: float, high: float) -> float:
    """Something that goes up and down, with a little noise; no two names alike."""
    seed = sum(name.encode()) % 97
    swing = 0.5 + 0.5 * math.sin(hour * (0.7 + seed / 100) + seed)
    noise = (int(hour * 60) * 7919 + seed * 104_729) % 11 / 10 - 0.5
    return round(min(high, max(low, low + (high - low) * swing + noise)), 1)


def read_card(card: Card, hour: float, ahead: float) -> GpuReading:
    place = {"uuid": card.uuid, "index": card.index, "name": card.model, "vendor": card.vendor}
    place |= {"parent": card.parent, "instance": card.instance}
    events = [
        GpuEvent(at=START + at * HOUR + ahead, code=code, process=pid)
        for at, code, pid in card.faults
        if at <= hour < at + 24
    ]
    if is_in(card.missing, hour):
        return GpuReading(**place, missing="the GPU has fallen off the bus", events=events)
    there = [job for job in card.jobs if job.start <= hour < job.end]
    works = any(hour < job.works_until for job in there)
    percent = wave(card.uuid, hour, 60, 99) if works else 0
    metrics: dict[str, Number | None] = {
        **IDLE,
        "utilization_percent": percent,
        "memory_used_bytes": sum(job.gib for job in there) * GIB + 300 * 2**20 * card.has_display,
        "temperature_celsius": round(30 + percent * 0.45),
        "power_watts": round(60 + percent * 3.1, 1),
        "energy_joules": round(hour * 700_000),
        **card.trouble(hour),
    }
    unknown = {}
    if card.vendor == "amd":
        unknown = AMD_UNKNOWN
    elif card.parent is not None:
        unknown = dict.fromkeys(("utilization_percent", "power_watts", "temperature_celsius"), WHOLE_BOARD)
    elif card.vendor == "intel":
        unknown = dict.fromkeys(("ecc_corrected_count", "ecc_uncorrected_count", "fan_percent"), "not supported")
    return GpuReading(
        **place,
        metrics={name: value for name, value in metrics.items() if value is not None and name not in unknown},
        unknown=unknown,
        processes=read_processes(card, there, ahead) if card.tells_processes else None,
        processes_reason=None if card.tells_processes else "the exporter tells no processes",
        idle_seconds=None if not card.tells_idle or "utilization_percent" in unknown else idle_seconds(card, hour),
        events=events,
    )


def read_processes(card: Card, there: list[Job], ahead: float) -> list[Process]:
    found = [
        Process(
            pid=job.pid,
            user=job.user,
            command="python train.py",
            memory_used_bytes=job.gib * GIB,
            started_at=round(START + job.start * HOUR + ahead, 2),
        )
        for job in there
        if job.pid
    ]
    if card.has_display:
        found.append(Process(pid=77, user="root", command="Xorg", memory_used_bytes=300 * 2**20, display=True))
    return found


def idle_seconds(card: Card, hour: float) -> float:
    worked = [min(job.works_until, hour) for job in card.jobs if job.start <= hour]
    return round((hour - max(worked, default=0.0)) * HOUR, 1)


amd = [Card(f"AMD-{number}", number, MI300, "amd", jobs=plan_jobs(f"amd {number}")) for number in range(2)]
intel = [Card("INTEL-0", 0, ARC, "intel", jobs=plan_jobs("intel"))]
desk = [Card("GPU-desk", 0, "NVIDIA GeForce RTX 4090", has_display=True, jobs=plan_jobs("desk", 0.3))]
by_ssh = [Card(f"GPU-ssh-{number}", number, tells_idle=False, jobs=plan_jobs(f"ssh {number}")) for number in range(2)]
scraped = [Card("GPU-scr", 0, tells_processes=False, tells_idle=False, jobs=plan_jobs("scr"))]
_board = "GPU-mig-board"
_thirds = [
    Card(f"MIG-{n}", 0, A100 + " MIG 2g.20gb", parent=_board, instance=n, jobs=plan_jobs(f"m{n}")) for n in range(3)
]
_halves = [
    Card(f"MIG-h{n}", 0, A100 + " MIG 3g.40gb", parent=_board, instance=n, jobs=plan_jobs(f"h{n}")) for n in (1, 2)
]
_whole = [Card(_board, 0, jobs=plan_jobs("board"))]
_GAPS = [(122 + number / 10, 122.055 + number / 10) for number in range(12)]
_UPDATES = [(0.0, "0.9.0", "6.8"), (58.0, "1.0.0", "6.9")]


def _cut(hour: float) -> list[Card]:
    """The board in thirds until Monday evening, whole until Wednesday noon, then in halves."""
    return _thirds if hour < 18 else _whole if hour < 60 else _halves


def _is_stuck(hour: float) -> bool:
    """Its driver does not answer for half an hour on Tuesday evening."""
    return 44 <= hour < 44.5


def _heat(hour: float) -> dict[str, Number | None]:
    """From 10:00 to 12:30 on Monday, and every 20 minutes on Friday from 10:00 to 13:00: a fan that sticks."""
    if 10 <= hour < 12.5:
        celsius = 90 if hour < 11.5 else 96
    elif 106 <= hour < 109:
        celsius = 89 if int(hour * 60) % 20 < 12 else 70
    else:
        return {}
    return {"temperature_celsius": celsius, "throttled_thermal": int(celsius > 80), "clock_sm_mhz": 900}


def _brake(hour: float) -> dict[str, Number | None]:
    """On Monday evening it is slowed down though it is cool: first by its driver, then by its power supply."""
    if not 19 <= hour < 19.5:
        return {}
    return {"throttled_thermal": int(hour < 19.25), "throttled_hardware": int(hour >= 19.25)}


def _wear(hour: float) -> dict[str, Number | None]:
    """From Tuesday on errors that are corrected, on Wednesday one that is not, until the host is booted."""
    if not 30 <= hour < 80:
        return {}
    failed = int(hour >= 55)
    return {
        "ecc_corrected_count": int((hour - 30) * 3),
        "ecc_uncorrected_count": failed,
        "remapped_rows_pending": failed,
        "power_limit_watts": 300 if hour >= 40 else 400,
    }


def _ram(hour: float) -> dict[str, Number]:
    """Full for half an hour on Monday afternoon, and of a sensor that fails now and then."""
    full = {"memory_used_bytes": 500 * GIB} if 15 <= hour < 15.5 else {}
    return full | ({"load_1m": -3.0} if int(hour * 60) % 97 == 0 else {})


def _disk(hour: float) -> dict[str, Number]:
    """Fills up on Monday, and is cleared on Tuesday at 09:00."""
    return {"disk_used_bytes": int(min(1995, 1850 + 10 * hour) * GIB)} if hour < 33 else {}


def machines() -> list[Machine]:
    """The twelve hosts: read from top to bottom, this is the week."""
    hot = Card("GPU-a01-1", 1, trouble=_heat, jobs=plan_jobs("GPU-a01-1"))
    idle = Card("GPU-a01-2", 2, jobs=[Job(50, "alice", 13.0, 18.0, 13.4, 40)])
    reserved = Card("GPU-a01-3", 3, jobs=[Job(60, "dave", 8.5, 10.0, 10.0, 20), Job(61, "frank", 18.0, 23.0, 23.0, 30)])
    a01 = [Card("GPU-a01-0", 0, jobs=plan_jobs("GPU-a01-0")), hot, idle, reserved]
    lost = Card("GPU-a02-2", 2, missing=[(14.0, 17.0)], faults=[(13.99, 79, None)], jobs=plan_jobs("GPU-a02-2"))
    failing = Card(
        "GPU-a02-3", 3, jobs=[Job(70, "bob", 8.0, 11.0, 11.0, 24)], faults=[(9.25, 31, 70), (30.5, 63, None)]
    )
    worn = Card("GPU-a02-1", 1, trouble=_wear, jobs=plan_jobs("GPU-a02-1"))
    a02 = [Card("GPU-a02-0", 0, trouble=_brake), worn, lost, failing]
    moved = Card("GPU-moved", 1, jobs=[Job(80, "erin", 2.0, 9.0, 9.0, 12), Job(81, "erin", 20.0, 44.0, 40.0, 12)])
    spare, old = Card("GPU-spare-0", 0, jobs=plan_jobs("spare")), Card("GPU-old-0", 0, jobs=plan_jobs("old"))
    # Alice works while the hub hears nothing of her host, and just stops when it does again.
    absent = Job(52, "alice", 2.5, 8.0, 5.95, 10)
    orphan = Card("GPU-far-1", 1, jobs=[absent, Job(0, None, 21.0, 22.5, 21.0, 33)])
    far = [Card("GPU-far-0", 0, jobs=plan_jobs("far")), orphan]
    return [
        Machine("a01", lambda _: a01, machine_id="m-a01", own=_ram),
        # Booted on Thursday, which ends the trouble with its memory.
        Machine("a02", lambda _: a02, 120.0, machine_id="m-a02", away=[(80.0, 80.2)], keeps=False, boots=[80.0]),
        Machine("mig01", _cut, 120.0, machine_id="m-mig"),
        Machine(
            "amd01",
            lambda hour: None if _is_stuck(hour) else amd,
            120.0,
            machine_id="m-amd",
            versions=_UPDATES,
            no_gpus="amdgpu does not answer",
            problems=lambda hour: ["amdgpu does not answer"] if _is_stuck(hour) else [],
        ),
        Machine("intel01", lambda _: intel, 300.0, machine_id="m-intel"),
        Machine("desk01", lambda _: desk, 300.0, machine_id="m-desk", ahead=[(26.0, 31.0, 45.0)]),
        Machine("ssh01", lambda _: by_ssh, 120.0, via="ssh", fails=[(20.0, 21.0), (101.0, 101.1)]),
        Machine("scr01", lambda _: scraped, 300.0, via="scrape"),
        # Its network fails: what it reported meanwhile comes later. On Saturday it loses a few minutes again and again.
        Machine("far01", lambda _: far, 60.0, machine_id="m-far", away=[(3.0, 6.0), (97.5, 106.0), *_GAPS]),
        # The card is moved while both are off.
        Machine(
            "old01",
            lambda hour: [old] if hour < 16 else [old, moved],
            120.0,
            machine_id="m-old",
            away=[(15.5, 16.0), (34.9, 35.0)],
            keeps=False,
            boots=[16.0, 35.0],
            renamed=(35.0, "new01"),
        ),
        Machine(
            "spare01",
            lambda hour: [spare, moved] if hour < 16 else [spare],
            300.0,
            machine_id="m-spare",
            # On Saturday it is switched off for good.
            away=[(15.5, 16.0), (130.0, 999.0)],
            keeps=False,
            boots=[16.0],
        ),
        Machine("cpu01", lambda _: None, 300.0, machine_id="m-cpu", no_gpus="no GPU driver was found", own=_disk),
    ]
