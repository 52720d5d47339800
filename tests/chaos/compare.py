"""What a hub has against what it was told: lost and doubled seconds, wrong values, runs and hours."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct, field

from chaos.figures import Figure, at_most
from chaos.hosts import FIRST_MIB, MIB, ChaosHost, Fleet, moment_of

_WRITTEN = 2.0
_LATEST = 5.0
"""Seconds by which a sample may be dated after its report was made: the report's way takes time under load."""


class Difference(Struct):
    """`lost` are seconds by host; `notes` the first examples of what is wrong."""

    hosts: int = 0
    expected: int = 0
    lost: dict[str, list[int]] = field(default_factory=dict)
    duplicates: int = 0
    wrong: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def lost_seconds(self) -> int:
        """Of the host that lost most."""
        return max((len(seconds) for seconds in self.lost.values()), default=0)

    @property
    def longest_loss(self) -> int:
        """Seconds in a row."""
        return max((_longest_row(seconds) for seconds in self.lost.values()), default=0)

    def unexplained(self, fleet: Fleet, kills: Sequence[float]) -> int:
        """Lost seconds that the hub had acknowledged, and not just before it was killed. A hub writes once a second."""
        taken = {host.name: host.taken for host in fleet.hosts}
        return sum(
            not any(0 <= died - taken[name].get(second, died) <= _WRITTEN for died in kills)
            for name, seconds in self.lost.items()
            for second in seconds
        )

    def note(self, sentence: str) -> None:
        if len(self.notes) < 8:
            self.notes.append(sentence)

    def figures(self, fleet: Fleet | None = None, kills: Sequence[float] = ()) -> list[Figure]:
        """With `kills`, what arrived just before one does not count."""
        lost = self.lost_seconds if fleet is None else self.unexplained(fleet, kills)
        return [
            at_most("lost seconds, those just before a kill aside" if kills else "lost seconds", lost, 0, "s"),
            at_most("duplicates", self.duplicates, 0),
            at_most("wrong values", self.wrong, 0),
        ]


class Seen(Struct):
    """Of one GPU: how often each second is there, and which seconds have a sample. A report that takes a second to
    arrive has the place of the next one, of which then nothing is missing."""

    counts: Counter[int] = field(default_factory=Counter)
    covered: set[int] = field(default_factory=set)


def compare_samples(
    rows: Iterable[dict[str, str]],
    fleet: Fleet,
    *,
    must: Callable[[int], bool] = lambda _: True,
    dated: Callable[[int], bool] = lambda _: True,
) -> Difference:
    """`must` says which seconds have to be there, of those in which hosts were read; `dated` which have to be at their
    time: a hub whose clock is wrong dates wrongly."""
    hosts = {host.name: host for host in fleet.hosts}
    seen = {name: [Seen() for _ in host.uuids] for name, host in hosts.items()}
    found = Difference(hosts=len(hosts))
    for row in rows:
        host = hosts.get(row["host"])
        if host is None or row["gpu"] not in host.uuids:
            found.wrong += 1
            found.note(f"an unknown host or GPU: {row['host']} {row['gpu']}")
        elif row["memory_used_bytes"]:
            _compare_row(row, host, seen[host.name], found, dated)
    for name, host in hosts.items():
        wanted = sorted(filter(must, host.read))
        found.expected += len(wanted)
        lost = [
            second
            for second in wanted
            if second not in host.slow and any(second not in one.covered for one in seen[name])
        ]
        if lost:
            found.lost[name] = lost
        found.duplicates += sum(count - 1 for one in seen[name] for count in one.counts.values() if count > 1)
    if found.lost:
        name, lost = max(found.lost.items(), key=lambda pair: len(pair[1]))
        found.note(f"{name} lost the seconds {_spans(lost)}")
    return found


def compare_runs(runs: Iterable[Any], fleet: Fleet, found: Difference, slack: float = 3.0) -> None:
    """Each process is one run, with its user. Its time is at least that of its seconds that were not lost, and at most
    that from its first second to its last, both to within `slack` seconds."""
    counts = Counter((run["host_name"], run["pid"]) for run in runs)
    by_key = {(run["host_name"], run["pid"]): run for run in runs}
    found.duplicates += sum(count - 1 for count in counts.values())
    for host in fleet.hosts:
        lost = set(found.lost.get(host.name, ()))
        seconds: dict[tuple[int, str], list[int]] = {}
        for second in sorted(host.read):
            for index in range(len(host.uuids)):
                moment = moment_of(host.number, index, second)
                seconds.setdefault((moment.pid, moment.user), []).append(second)
        for (pid, user), mine in seconds.items():
            least, most = len(set(mine) - lost) - slack, mine[-1] - mine[0] + 1 + slack
            run = by_key.get((host.name, pid), {"user": user, "gpu_seconds": 0.0})
            if run["user"] != user or not least <= run["gpu_seconds"] <= most:
                found.wrong += 1
                told = f"{run['user']} {run['gpu_seconds']:.1f} s"
                found.note(f"run {pid} on {host.name}: {told}, was {user} {least:.0f} to {most:.0f} s")


def _compare_row(
    row: dict[str, str], host: ChaosHost, seen: list[Seen], found: Difference, dated: Callable[[int], bool]
) -> None:
    index = host.uuids.index(row["gpu"])
    second = round(float(row["memory_used_bytes"]) / MIB) - FIRST_MIB
    truth = moment_of(host.number, index, second)
    late = float(row["unix_seconds"]) - (host.epoch + second)
    is_right = (
        second in host.read
        and row["utilization_percent"] != ""
        and round(float(row["utilization_percent"])) == truth.utilization
        and row.get("users", truth.user) == truth.user
        and (0 <= late <= _LATEST or not dated(second))
    )
    seen[index].counts[second] += 1
    seen[index].covered |= {second, second + int(late)} if 0 <= late <= _LATEST else {second}
    if not is_right:
        found.wrong += 1
        seen_here = f"{row['utilization_percent']} % of {row.get('users')}"
        wanted = f"{truth.utilization} % of {truth.user}"
        found.note(f"{host.name} GPU {index} second {second}: {seen_here} instead of {wanted}, {late:.2f} s late")


def _longest_row(seconds: Sequence[int]) -> int:
    longest = length = 0
    for number, second in enumerate(seconds):
        length = length + 1 if number and second == seconds[number - 1] + 1 else 1
        longest = max(longest, length)
    return longest


def _spans(seconds: Sequence[int]) -> str:
    shown = ", ".join(map(str, seconds[:20]))
    return f"{shown}, … ({len(seconds)})" if len(seconds) > 20 else shown
