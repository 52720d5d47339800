"""The host's figures and identity, from what the command of `smi_command.py` printed of /proc and df.

The figures are those of `host.py`, whose reasons hold here too: in a container the disk and the machine id are not the
host's. Rates need two answers of one boot.
"""

import hashlib
import re
from collections.abc import Callable

from msgspec import Struct, field

from gpudeck.collectors.redaction import clean
from gpudeck.collectors.smi_answer import Answer, read_number, read_whole
from gpudeck.model.catalog import HOST_METRICS
from gpudeck.model.report import Number

NEEDS_TWO = "needs two readings"
_RATES = ("network_receive_bytes_per_second", "network_transmit_bytes_per_second")
# Numbers that the kernel gives its own namespaces (PROC_PID_INIT_INO; MNT_NS_INIT_INO, from Linux 6.18 on).
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
_FIRST_MOUNT_NAMESPACE = "mnt:[4026531832]"
_CONTAINER_KINDS = {"/.dockerenv": "docker", "/run/.containerenv": "podman"}
_MACHINE_ID = re.compile(r"[0-9a-f]{32}")
_WHOLE_AT_MOST = 2**63
_CLOCK = re.compile(r"([0-9]{1,10})(\.[0-9]{9})?")

Values = dict[str, float]


class Identity(Struct, frozen=True):
    """Who answered. `machine_id` is derived as `host.py` does, and empty where there is none to trust."""

    host: str
    boot_id: str
    machine_id: str = ""


class Counters(Struct, frozen=True):
    """What only the difference to the next answer makes useful."""

    boot_id: str = ""
    uptime_seconds: float | None = None
    cpu: tuple[int, int] | None = None
    """Ticks spent working, and ticks altogether."""
    network: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Bytes received and sent, by interface, for those with a device behind them."""


class Host(Struct, frozen=True):
    """The host as one answer shows it."""

    identity: Identity
    counters: Counters
    booted_at: int | None
    ticks_per_second: int
    os: str | None
    container: str | None
    metrics: dict[str, Number] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)


def read_host(answer: Answer, before: Counters | None) -> Host:
    """Never raises: what cannot be read is unknown. `before` are the counters of the answer before, if any."""
    container = _find_container(answer)
    booted_at = _find_figures(answer, "btime")
    host = Host(
        identity=_identify(answer, booted_at, container),
        counters=_count(answer),
        booted_at=booted_at[0] if booted_at else None,
        ticks_per_second=read_whole(answer.first("ticks"), 100_000) or 100,
        os=_os_name(answer),
        container=container,
    )
    is_same_boot = before is not None and before.boot_id == host.counters.boot_id
    for names, read in _readings(answer, host, before if is_same_boot else None):
        _take(host, names, read)
    return host


def read_clock(answer: Answer) -> float | None:
    """The machine's own clock when it answered, or None where the answer has none.

    Without `%N`, which not every `date` knows, the middle of the second is taken: at most half a second wrong.
    """
    found = _CLOCK.match(answer.first("clock"))
    if found is None:
        return None
    return float(found[0]) if found[2] else float(found[1]) + 0.5


def _readings(
    answer: Answer, host: Host, before: Counters | None
) -> tuple[tuple[tuple[str, ...], Callable[[], Values]], ...]:
    counters = host.counters
    return (
        (("cpu_percent",), lambda: {"cpu_percent": _cpu_percent(before, counters)}),
        (("cpu_count",), lambda: {"cpu_count": _number(answer.first("threads"), "/proc/stat")}),
        (("load_1m",), lambda: {"load_1m": _number(answer.first("load").partition(" ")[0], "/proc/loadavg")}),
        (("memory_used_bytes", "memory_total_bytes"), lambda: _memory(answer, "memory", "MemTotal", "MemAvailable")),
        (("swap_used_bytes", "swap_total_bytes"), lambda: _memory(answer, "swap", "SwapTotal", "SwapFree")),
        (("disk_used_bytes", "disk_total_bytes"), lambda: _disk(answer, host.container)),
        (_RATES, lambda: _network_rates(before, counters)),
        (("uptime_seconds",), lambda: {"uptime_seconds": _known(counters.uptime_seconds, "/proc/uptime")}),
    )


def _take(host: Host, names: tuple[str, ...], read: Callable[[], Values]) -> None:
    try:
        values = read()
    except ValueError as error:
        host.unknown.update(dict.fromkeys(names, str(error)))
        return
    for name, value in values.items():
        metric = HOST_METRICS[name]
        if metric.low <= value <= metric.high:
            host.metrics[name] = metric.round(value)
        else:
            host.unknown[name] = "the machine gives no sensible value"


def _identify(answer: Answer, booted_at: list[int] | None, container: str | None) -> Identity:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", answer.first("name"))[:253].strip("._-")
    boot_id = clean(answer.first("boot"))[:64] or (f"booted-{booted_at[0]}" if booted_at else "unknown")
    written = answer.first("machine")
    machine_id = ""
    if _MACHINE_ID.fullmatch(written) and container is None:
        machine_id = hashlib.blake2b(b"gpudeck", key=written.encode(), digest_size=16).hexdigest()
    return Identity(name or "unnamed", boot_id, machine_id)


def _count(answer: Answer) -> Counters:
    ticks = _find_figures(answer, "cpu")
    cpu = None
    if ticks and len(ticks) >= 5:
        # Guest time, from the ninth on, is counted as user time already; idle and waiting are the fourth and fifth.
        cpu = (sum(ticks[:8]) - ticks[3] - ticks[4], sum(ticks[:8]))
    uptime = read_number(answer.first("uptime").partition(" ")[0])
    return Counters(answer.first("boot"), uptime, cpu, _count_network(answer))


def _find_figures(answer: Answer, name: str) -> list[int] | None:
    """The numbers behind a name of /proc/stat, or None where the line is not there or not whole."""
    for line in answer.lines("cpu"):
        if line.startswith(f"{name} "):
            figures = [read_whole(word, _WHOLE_AT_MOST) for word in line.split()[1:]]
            known = [figure for figure in figures if figure is not None]
            return known if known and len(known) == len(figures) else None
    return None


def _count_network(answer: Answer) -> dict[str, tuple[int, int]]:
    cards = {line.strip().removesuffix("/device").rpartition("/")[2] for line in answer.lines("cards")}
    totals = {}
    for line in answer.lines("network"):
        name, _, figures = line.rpartition(":")
        words = figures.split()
        if name.strip() in cards and len(words) >= 9:
            received, sent = read_whole(words[0], _WHOLE_AT_MOST), read_whole(words[8], _WHOLE_AT_MOST)
            if received is not None and sent is not None:
                totals[name.strip()] = (received, sent)
    return totals


def _cpu_percent(before: Counters | None, after: Counters) -> float:
    if after.cpu is None:
        raise ValueError("/proc/stat was not read")
    if before is None or before.cpu is None or after.cpu[1] <= before.cpu[1]:
        raise ValueError(NEEDS_TWO)
    return min(100.0, max(0.0, 100.0 * (after.cpu[0] - before.cpu[0]) / (after.cpu[1] - before.cpu[1])))


def _network_rates(before: Counters | None, after: Counters) -> Values:
    """The machine's own uptime is the clock: how long an answer was on its way does not matter."""
    if not after.network:
        raise ValueError("no physical network interface is seen")
    if before is None or before.uptime_seconds is None or after.uptime_seconds is None:
        raise ValueError(NEEDS_TWO)
    seconds = after.uptime_seconds - before.uptime_seconds
    # An interface that has just come up has no earlier reading: it counts from the next one on.
    pairs = [(before.network[name], totals) for name, totals in after.network.items() if name in before.network]
    if seconds <= 0 or not pairs:
        raise ValueError(NEEDS_TWO)
    grown = [[now[way] - then[way] for then, now in pairs] for way in (0, 1)]
    if min(map(min, grown)) < 0:
        raise ValueError("a network interface counts from zero again")
    return {name: sum(growth) / seconds for name, growth in zip(_RATES, grown, strict=True)}


def _memory(answer: Answer, what: str, total_name: str, free_name: str) -> Values:
    """Used is what programs could not get: caches that the kernel would give up do not count."""
    lines = (line.partition(":") for line in answer.lines("memory"))
    kib = {name.strip(): read_number(value.strip().removesuffix("kB")) for name, _, value in lines}
    total, free = _known(kib.get(total_name), "/proc/meminfo"), _known(kib.get(free_name), "/proc/meminfo")
    return {f"{what}_used_bytes": (total - free) * 1024, f"{what}_total_bytes": total * 1024}


def _disk(answer: Answer, container: str | None) -> Values:
    if container:
        raise ValueError("the root file system is the container's, not the host's")
    words = (answer.lines("disk") or [""])[-1].split()
    if len(words) < 6 or words[-1] != "/":
        raise ValueError("df did not tell")
    # A device's name may hold spaces: counted from the end.
    used, total = _number(words[-4], "df"), _number(words[-5], "df")
    return {"disk_used_bytes": used * 1024, "disk_total_bytes": total * 1024}


def _find_container(answer: Answer) -> str | None:
    """What kind of container answered, or None for a host; by the same signs as in `host.py`."""
    links = dict(line.split(" ", 1) for line in answer.lines("namespaces") if " " in line)
    mounts = links.get("self/ns/mnt", "")
    is_first = mounts in {_FIRST_MOUNT_NAMESPACE, links.get("1/ns/mnt") or "not permitted"}
    if is_first and links.get("self/ns/pid") == _FIRST_PID_NAMESPACE:
        return None
    mark = clean(answer.first("container"))[:64]
    return _CONTAINER_KINDS.get(mark, mark) or None


def _os_name(answer: Answer) -> str | None:
    return clean(answer.first("system").partition("=")[2].strip("\"'"))[:256] or None


def _number(text: str, source: str) -> float:
    return _known(read_number(text), source)


def _known(value: float | None, source: str) -> float:
    if value is None:
        raise ValueError(f"{source} was not read")
    return value
