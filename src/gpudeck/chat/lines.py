"""The lines of which the bot's answers are made: a GPU, a host, a process each, in Slack's markup. Pure.

What is unknown is a dash, never a zero. Everything that comes from outside is escaped.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gpudeck.chat.escape import escape
from gpudeck.model.availability import Availability
from gpudeck.model.quantity import show_gib, show_span
from gpudeck.model.view import Fleet, Gpu, Host, HostStatus, ShownProcess
from gpudeck.model.wanted import OfferedGpu
from gpudeck.views.people import Person
from gpudeck.views.text import for_everybody, render_alert, show_number

SIGNS: Final[dict[Availability, str]] = {"free": "🟢", "busy": "🔴", "held": "🟡", "booked": "🔵", "unknown": "⚪"}
_STATUS: Final[dict[HostStatus, str]] = {"up": "🟢", "late": "🟡", "down": "🔴", "never": "⚪"}
_MOST_USERS: Final = 6
_MOST_PROCESSES: Final = 20
_DEMO: Final = "DEMO DATA, simulated"


def free_lines(found: Sequence[OfferedGpu]) -> list[str]:
    """A line a host and model, in the order in which they fit."""
    groups: dict[tuple[str, str, str], list[OfferedGpu]] = defaultdict(list)
    for gpu in found:
        groups[gpu.host, gpu.display_name, show_gib(gpu.memory_total_bytes, 0)].append(gpu)
    return [
        f"{SIGNS['free']} *{escape(host)}:{join_labels(gpu.label for gpu in gpus)}*  {escape(model)}, {memory} GiB"
        for (host, model, memory), gpus in groups.items()
    ]


def host_line(host: Host) -> str:
    name = f"{_STATUS[host.status]} *{escape(host.name)}*  {host.status}"
    if host.status == "never" or not host.gpus:
        reason = host.problems[0] if host.problems else host.reasons.get("gpus", "no GPUs")
        return f"{name}: {escape(reason)}"
    states = Counter(gpu.availability for gpu in host.gpus)
    return f"{name}, {count_states(states)}"


def title_of(host: Host, now: float) -> str:
    seen = host.last_report_at
    age = "" if host.status == "up" or seen is None else f", last report {show_span(now - seen)} ago"
    states = count_states(Counter(gpu.availability for gpu in host.gpus))
    return f"{escape(host.name)} is {host.status if host.status != 'never' else 'awaited'}{age}: {states}"


def place_line(host: Host, now: float) -> str:
    """Its addresses, and when it last reported."""
    seen, addresses = host.last_report_at, escape(", ".join(host.addresses)) or "address not known"
    return f"{addresses}, {'no report yet' if seen is None else f'last report {show_span(now - seen)} ago'}"


def gpu_lines(host: Host) -> list[str]:
    return [gpu_line(host, gpu) for gpu in host.gpus] or [host_line(host)]


def gpu_line(host: Host, gpu: Gpu) -> str:
    """What is unknown is a dash, never a zero."""
    state = gpu.availability
    figures = [
        f"{state}",
        escape(gpu.display_name),
        show_number(gpu.utilization_percent, " %"),
        f"{show_gib(gpu.memory_used_bytes, 0)}/{show_gib(gpu.memory_total_bytes, 0)} GiB",
        show_number(gpu.temperature_celsius, " °C"),
    ]
    whose = _users(gpu.users) or _booked_by(gpu)
    health = f"  ⚠ {escape(gpu.health_reason)}" if gpu.health_reason else ""
    return f"{SIGNS[state]} *{escape(host.name)}:{escape(gpu.label)}*  {' · '.join(figures)}{whose}{health}"


def who_lines(gpu: Gpu, now: float) -> list[str]:
    since = show_span(now - gpu.since)
    head = f"{SIGNS[gpu.availability]} *{escape(gpu.label)}*  {gpu.availability} for {since}{_booked_by(gpu)}"
    if gpu.availability == "unknown":
        return [f"{head}: {escape(gpu.availability_reason or 'not known')}"]
    processes = gpu.processes
    if processes is None:
        return [f"{head}: {escape(gpu.reasons.get('processes', 'its processes are not known'))}"]
    return [head, *(f"      {_process(process, now)}" for process in processes[:_MOST_PROCESSES])]


def _process(process: ShownProcess, now: float) -> str:
    started = process.started_at
    age = "" if started is None else f", {show_span(now - started)}"
    return f"*{_user(process)}*  {show_gib(process.memory_used_bytes)} GiB, pid {process.pid}{age}"


def person_line(person: Person) -> str:
    """Somebody with the memory, the processes and the places that they have; a sum of which a part is not known is at
    least so much."""
    name = "somebody" if person.user is None else escape(person.user)
    least = "≥ " if person.memory is not None and person.is_memory_part else ""
    processes = "" if person.processes is None else f" in {count(person.processes, 'process', 'processes')}"
    places: dict[str, list[str]] = defaultdict(list)
    for holding in person.holdings:
        places[holding.host.name].append(holding.gpu.label)
    where = " ".join(f"{host}:{','.join(labels)}" for host, labels in places.items())
    return f"*{name}*  {escape(where, 400)}  {least}{show_gib(person.memory)} GiB{processes}"


def _user(process: ShownProcess) -> str:
    return escape(process.user) if process.user is not None else "somebody"


def _users(users: Sequence[str]) -> str:
    more = f" and {len(users) - _MOST_USERS} more" if len(users) > _MOST_USERS else ""
    return f"  *{', '.join(map(escape, users[:_MOST_USERS]))}*{more}" if users else ""


def _booked_by(gpu: Gpu) -> str:
    found = gpu.reservation
    return "" if found is None else f"  booked by {escape(found.user)}"


def count_states(counts: Mapping[Availability, int]) -> str:
    told = [f"{sign} {counts[state]} {state}" for state, sign in SIGNS.items() if counts[state]]
    return " ".join(told) or "no GPUs"


def join_labels(labels: Iterable[str]) -> str:
    return escape(",".join(labels))


def notes(fleet: Fleet) -> list[str]:
    """What stands below every answer about the fleet. What is wrong is told by who asks for it: see `trouble`."""
    return [_DEMO] if fleet.demo else []


def trouble(fleet: Fleet) -> list[str]:
    """One line below what is about the whole fleet, where something is wrong with it or with the hub."""
    counts = (
        (len(for_everybody(fleet)), "alert", "alerts"),
        (len(fleet.problems), "problem of the hub", "problems of the hub"),
    )
    told = [count(number, one, many) for number, one, many in counts if number]
    return [f"⚠ {' and '.join(told)}: `alerts`"] if told else []


def list_wrong(fleet: Fleet) -> list[str]:
    """One line each, as plain text: the hub's own problems first, then the alerts, the worst first."""
    problems = [f"⚠ {problem}" for problem in fleet.problems]
    return [*problems, *(render_alert(alert, fleet.time, colour=False) for alert in for_everybody(fleet))]


def count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or f'{one}s'}"
