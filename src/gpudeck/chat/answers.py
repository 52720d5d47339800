"""What the bot says about the fleet and its use, for a phone: a line each, and a snippet for what is too long. Pure.

Takes the fleet without what the asker may not see. What is unknown is a dash, never a zero. Everything that comes from
outside is escaped.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC
from typing import Final

from msgspec.structs import replace

from gpudeck import __version__
from gpudeck.chat.blocks import ChatAnswer, attach, escape, say, show_time, tell
from gpudeck.chat.commands import Asked, near_commands
from gpudeck.model.availability import Availability
from gpudeck.model.printable import clean
from gpudeck.model.quantity import show_gib, show_span
from gpudeck.model.usage import Usage, UsageRow
from gpudeck.model.view import Fleet, Gpu, Host, HostStatus, ShownProcess
from gpudeck.model.wanted import OfferedGpu, choose, fits, is_usable, offer_all, rank
from gpudeck.views.filter import choose_hosts, choose_user, choose_words, join, near_hosts, parse_query
from gpudeck.views.lists import render_free
from gpudeck.views.people import Person, rank_people, render_people
from gpudeck.views.text import for_everybody, name_problem, render_alert, render_fleet, render_hosts, show_number
from gpudeck.views.usage import name_of, render_usage

SIGNS: Final[dict[Availability, str]] = {"free": "🟢", "busy": "🔴", "held": "🟡", "booked": "🔵", "unknown": "⚪"}
_STATUS: Final[dict[HostStatus, str]] = {"up": "🟢", "late": "🟡", "down": "🔴", "never": "⚪"}
_MOST_USERS: Final = 6
_MOST_PROCESSES: Final = 20
_DEMO: Final = "DEMO DATA, simulated"
_WIDTH: Final = 160
"""Columns of a snippet: people turn their phones for those."""
_HELP = (
    "*What I answer* (in a direct message, to a mention, to `/gpu`)",
    "• `free`  what can be used now · `free h100`  · `free 2 40G same-host`",
    "• `gpu07`  one host · `gpu07 detail` · `hosts`  all hosts · `all`  all GPUs · `all down`  those that fit",
    "• `who gpu07` or `who gpu07:3`  who is on it · `where ada`  where somebody is · `users`  everybody",
    "• `alerts`  what is wrong · `alerts gpu07` · `where`  the hub itself",
    "• `all_cmd`  all GPUs as a table · `all_detail`  everything, as curl shows it",
    "• `book gpu07:0,1 for 4h` · `book 2 h100 for 1d from tomorrow 9:00 note a paper`",
    "• `bookings`, `bookings mine` · `release 12`",
    "• `watch 2 h100 40G`  tells you when they are free · `watches` · `unwatch 3`",
    "• `report`  who used how much · `report host 7d`",
    "Words mean what they mean in the page's search: `free`, `busy`, `held`, `&gt;40G`, `user:ada`, `-down` …",
)


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


def answer_free(fleet: Fleet, asked: Asked, names: Collection[str], kept: Collection[str]) -> ChatAnswer:
    """What whoever has these `names` could use now; `kept` are the GPUs that wait for others."""
    part, query = choose_words(fleet, join(asked.words))
    if query.unclear:
        return say(f"“{escape(query.unclear[0])}” is not understood. `help` tells the words.")
    offered = offer_all(part.hosts)
    usable = [gpu for gpu in offered if is_usable(gpu, names) and gpu.uuid not in kept]
    fitting = [gpu for gpu in usable if fits(gpu, asked.wanted)]
    if asked.is_counted:
        return _answer_counted(fleet, asked, usable, fitting)
    found = rank(fitting)
    total = fleet.totals.gpus
    title = f"{len(found)} of {count(total, 'GPU')} can be used now"
    if not found:
        return say(f"*{title}.*", "`watch` tells you when there is one.", *notes(fleet))
    return tell(title, free_lines(found), lambda: render_free(found, width=_WIDTH), "free", notes(fleet))


def _answer_counted(fleet: Fleet, asked: Asked, usable: list[OfferedGpu], fitting: list[OfferedGpu]) -> ChatAnswer:
    found = choose(asked.wanted, usable)
    wanted = escape(asked.wanted.describe())
    if found is None:
        return say(f"*Not free now: {wanted}.* {len(fitting)} such are.", "`watch` tells you when there are enough.")
    return tell(f"Free: {wanted}", free_lines(found), lambda: render_free(found, width=_WIDTH), "free", notes(fleet))


def answer_hosts(fleet: Fleet, words: Sequence[str] = ()) -> ChatAnswer:
    """All hosts, or those with a GPU that fits the words, with what fits of them."""
    part = _choose(fleet, words)
    if isinstance(part, ChatAnswer):
        return part
    hosts, totals = part.hosts, part.totals
    title = f"{totals.hosts_up} of {count(len(hosts), 'host')} up, {totals.free} of {totals.gpus} GPUs free"
    small = [*notes(fleet), *trouble(part)]
    return tell(title, [host_line(host) for host in hosts], lambda: render_hosts(hosts, _WIDTH), "hosts", small)


def answer_fleet(fleet: Fleet, words: Sequence[str], *, detail: bool = False, table: bool = False) -> ChatAnswer:
    """All GPUs, or those that fit the words: one line each, as the `table` that curl shows, or that with `detail`."""
    part = _choose(fleet, words)
    if isinstance(part, ChatAnswer):
        return part
    totals = part.totals
    title = f"{count(totals.gpus, 'GPU')} on {count(totals.hosts, 'host')}: {count_states(totals.by_availability)}"
    if detail or table:
        # They are drawn in letters of one width, however few there are.
        return attach(
            title, render_fleet(part, detail=detail, width=_WIDTH), "detail" if detail else "all", notes(part)
        )
    lines = [line for host in part.hosts for line in gpu_lines(host)]
    return tell(title, lines, lambda: render_fleet(part, width=_WIDTH), "all", [*notes(part), *trouble(part)])


def _choose(fleet: Fleet, words: Sequence[str]) -> Fleet | ChatAnswer:
    """What fits the words; an answer where they are not understood, or nothing does."""
    part, query = choose_words(fleet, join(words))
    if query.unclear:
        return say(f"“{escape(query.unclear[0])}” is not understood. `help` tells the words.")
    if not part.hosts:
        return say("Nothing fits." if fleet.hosts else "No host has reported yet.")
    return part


def answer_alerts(fleet: Fleet, words: Sequence[str] = ()) -> ChatAnswer:
    """What is wrong, with the hosts that fit the words or with all, and with the hub."""
    part = _choose(fleet, words) if words else fleet
    if isinstance(part, ChatAnswer):
        return part
    wrong = list_wrong(part)
    if not wrong:
        return say("Nothing is wrong that I know of.", *notes(fleet))
    lines = [escape(line, 400) for line in wrong]
    return tell("What is wrong", lines, lambda: "".join(f"{clean(line)}\n" for line in wrong), "alerts", notes(fleet))


def answer_host(fleet: Fleet, name: str) -> ChatAnswer | None:
    """The GPUs of a host and who is on them; None where there is no such host."""
    part = _find_host(fleet, name)
    if part is None:
        return None
    host = part.hosts[0]
    problems = [escape(name_problem(host.name, problem), 300) for problem in host.problems[:5]]
    # Of the host alone: the hub's own are told by `alerts`.
    alerts = list_wrong(replace(part, problems=[], alerts=[one for one in part.alerts if one.host_id]))
    title, small = title_of(host, fleet.time), [*notes(fleet), *problems, *(escape(one, 300) for one in alerts[:4])]
    return tell(title, gpu_lines(host), lambda: render_fleet(part, width=_WIDTH), "host", small)


def answer_who(fleet: Fleet, place: str, *, with_address: bool = False) -> ChatAnswer:
    """Who is on a host or on one GPU: HOST, HOST:GPU or a UUID; where the host is, too, if that was asked."""
    host_name, _, labels = place.partition(":")
    part = _find_host(fleet, host_name) or _find_gpu(fleet, place)
    if part is None:
        return no_such_host(fleet, place)
    host = part.hosts[0]
    wanted = {label.strip() for label in labels.split(",") if label.strip()}
    gpus = [gpu for gpu in host.gpus if not wanted or gpu.label in wanted or str(gpu.index) in wanted]
    if not gpus:
        return say(f"{escape(host.name)} has no GPU {escape(labels) or 'at all'}.")
    lines = [place_line(host, fleet.time)] if with_address else []
    lines += [line for gpu in gpus for line in who_lines(gpu, fleet.time)]
    return tell(title_of(host, fleet.time), lines, lambda: render_fleet(part, width=_WIDTH), "who", notes(fleet))


def answer_where(fleet: Fleet, name: str, logins: Collection[str]) -> ChatAnswer:
    """The GPUs that somebody is on, under any of these logins, in whatever case they were typed."""
    wanted = {login.lower() for login in logins}
    seen = {user for host in fleet.hosts for gpu in host.gpus for user in gpu.users}
    part = choose_user(fleet, *(user for user in seen if user.lower() in wanted))
    lines = [gpu_line(host, gpu) for host in part.hosts for gpu in host.gpus]
    if not lines:
        return say(f"{escape(name)} is on no GPU that can be seen.")
    title = f"{escape(name)} is on {count(len(lines), 'GPU')}"
    return tell(title, lines, lambda: render_fleet(part, width=_WIDTH), "where", notes(fleet))


def answer_hub(fleet: Fleet, address: str) -> ChatAnswer:
    """The hub itself: where it is, and how much it watches."""
    totals = fleet.totals
    watched = f"{count(totals.hosts, 'host')}, {totals.hosts_up} of them up, {count(totals.gpus, 'GPU')}"
    return say(f"*gpudeck {__version__}*  {escape(address)}", watched, *notes(fleet))


def answer_everybody(fleet: Fleet, words: Sequence[str] = ()) -> ChatAnswer:
    """Who is where, the most memory first: one line a person; on the GPUs that fit the words, or on all."""
    part = _choose(fleet, words)
    if isinstance(part, ChatAnswer):
        return part
    people = rank_people(part)
    if not people:
        return say("Nobody is seen on any GPU.", *notes(fleet))
    title = f"{count(len(people), 'person', 'people')} on GPUs"
    lines = [person_line(person) for person in people]
    return tell(title, lines, lambda: render_people(part, width=_WIDTH), "where", notes(fleet))


def no_such_host(fleet: Fleet, name: str) -> ChatAnswer:
    near = near_hosts(fleet, name.partition(":")[0])
    hint = f" Did you mean {' or '.join(map(escape, near))}?" if near else " `hosts` lists them."
    return say(f"No host or GPU is called “{escape(name)}”.{hint}")


def no_such_command(fleet: Fleet, name: str) -> str:
    near = [*near_commands(name), *near_hosts(fleet, name)][:3]
    hint = f" Did you mean {' or '.join(map(escape, near))}?" if near else ""
    return f"I do not understand “{escape(name)}”.{hint}"


def is_search(fleet: Fleet, words: Sequence[str]) -> bool:
    """Whether they begin with more than text: a word of the page's search, or a host's name and something after it."""
    query = parse_query(join(words[:1]))
    kinds = any((*query.kinds.values(), *query.without.values()))
    is_word = kinds or bool(query.memory) or any(one.place != "any" for one in query.words)
    return is_word or (len(words) > 1 and find_name(fleet, words[0]) is not None)


def find_name(fleet: Fleet, name: str) -> str | None:
    """A host's name as it is written, from one in any case; None where there is none."""
    part = _find_host(fleet, name)
    return None if part is None else part.hosts[0].name


def _find_host(fleet: Fleet, name: str) -> Fleet | None:
    exact = choose_hosts(fleet, [name])
    if exact.hosts:
        return exact
    wanted = name.lower()
    found = [host.id for host in fleet.hosts if wanted in {host.name.lower(), host.display_name.lower()}]
    return choose_hosts(fleet, found[:1]) if found else None


def _find_gpu(fleet: Fleet, uuid: str) -> Fleet | None:
    for host in fleet.hosts:
        gpus = [gpu for gpu in host.gpus if gpu.uuid.lower() == uuid.lower()]
        if gpus:
            return replace(fleet, hosts=[replace(host, gpus=gpus)])
    return None


def answer_help(hint: str = "") -> ChatAnswer:
    """`hint` stands above it, escaped already."""
    return say(*([hint] if hint else []), *_HELP)


def answer_report(usage: Usage) -> ChatAnswer:
    """What is unknown is a dash."""
    days = (usage.end - usage.start) / 86_400
    title = f"Use by {usage.by}, last {days:.0f} days" if days >= 2 else f"Use by {usage.by}, last {days * 24:.0f} h"
    if not usage.rows:
        return say(f"*{title}*", "Nobody was seen on any GPU.", _coverage(usage))
    lines = [_usage_line(row, name_of(usage, row)) for row in usage.rows] + [_usage_line(usage.total, "all together")]
    return tell(title, lines, lambda: render_usage(usage, UTC, width=120), "report", [_coverage(usage)])


def _usage_line(row: UsageRow, name: str) -> str:
    worked, idle = row.worked_hours, row.idle_held_hours
    parts = [f"{_hours(row.gpu_hours)} GPU-hours", f"{_hours(worked)} worked", f"{_hours(idle)} held idle"]
    return f"*{escape(name)}*  {', '.join(parts)}"


def _coverage(usage: Usage) -> str:
    """Rounded down: what was not observed in full is never called 100 %."""
    since = usage.known_since
    if usage.coverage is None:
        return f"No GPU was known in the period{'' if since is None else f': the records begin {show_time(since)}'}."
    span = "the period" if since is None else f"the time since {show_time(since)}"
    return f"Observed {math.floor(1000 * usage.coverage + 1e-9) / 10:.1f} % of {span}."


def _hours(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"
