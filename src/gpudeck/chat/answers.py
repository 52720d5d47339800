"""Answers of the bot about the fleet, its usage and reservations: one line each for phones, and a snippet for long
lists. Pure.

Takes the fleet without what the user may not see. Unknown values are a dash, never a zero. Everything that comes from
outside is escaped.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC
from typing import Final

from msgspec.structs import replace

from gpudeck import __version__
from gpudeck.chat.blocks import ChatAnswer, attach, escape, list_answer, show_time, text_answer
from gpudeck.chat.commands import ParsedRequest, near_commands
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.gpu_request import CandidateGpu, candidates, choose, is_usable, matches, rank
from gpudeck.model.gpu_state import Availability
from gpudeck.model.job import RATING_WORDS, Rating, Run
from gpudeck.model.reservation import Reservation, ReservedGpu, ShownReservation
from gpudeck.model.text import clean, show_age, show_gib, show_length, show_span
from gpudeck.model.usage import Usage, UsageRow
from gpudeck.model.view import Fleet, Gpu, Host, HostStatus
from gpudeck.reservations.conflicts import Conflict
from gpudeck.views.filter import choose_hosts, choose_user, choose_words, explain_unclear, join, near_hosts, parse_query
from gpudeck.views.lists import render_free, render_reservations
from gpudeck.views.text import (
    allocation_note,
    for_everybody,
    join_places,
    name_problem,
    render_alert,
    render_fleet,
    render_hosts,
    show_number,
    show_status,
)
from gpudeck.views.usage import describe_coverage, name_of, render_usage
from gpudeck.views.users import UserActivity, rank_users, render_users

SIGNS: Final[dict[Availability, str]] = {
    "free": "🟢",
    "busy": "🔴",
    "idle": "🟡",
    "allocated": "🟣",
    "reserved": "🔵",
    "drained": "🚧",
    "unknown": "⚪",
}
_STATUS: Final[dict[HostStatus, str]] = {"up": "🟢", "late": "🟡", "down": "🔴", "never_seen": "⚪"}
_RATING_SIGNS: Final[dict[Rating, str]] = {"good": "🟢", "could_be_better": "🟡", "poor": "🔴", "unknown": "⚪"}
_MAX_USERS: Final = 6
MAX_RUNS: Final = 10
_MAX_PROCESSES: Final = 20
_WIDTH: Final = 160
"""Columns of a snippet, as a phone shows them in landscape."""
_HELP = (
    "*What I answer* (in a direct message, to a mention, to `/gpu`)",
    "• `free`  what can be used now · `free h100`  · `free 2 40G same-host`",
    "• `gpu07`  one host · `gpu07 detail` · `hosts`  all hosts · `all`  all GPUs · `all down`  those that fit",
    "• `who gpu07` or `who gpu07:3`  who is on it · `where ada`  where a user is · `users`  all users",
    "• `alerts`  what is wrong · `alerts gpu07` · `where`  the hub itself",
    "• `all_cmd`  all GPUs as a table · `all_detail`  everything, as curl shows it",
    "• `reserve gpu07:0,1 for 4h` · `reserve 2 h100 for 1d from tomorrow 9:00 note a paper`",
    "• `reservations`, `reservations mine` · `release 12`",
    "• `watch 2 h100 40G`  notifies you when they are free · `watches` · `unwatch 3`",
    "• `report`  who used how much · `report host 7d` · `my runs`  your runs, with a suggestion each",
    "Words mean what they mean in the page's search: `free`, `busy`, `idle`, `&gt;40G`, `user:ada`, `-down` …",
)


def free_lines(found: Sequence[CandidateGpu]) -> list[str]:
    """A line a host and model, in the order in which they fit."""
    groups: dict[tuple[str, str, str], list[CandidateGpu]] = defaultdict(list)
    for gpu in found:
        groups[gpu.host, gpu.display_name, show_gib(gpu.memory_total_bytes, 0)].append(gpu)
    return [
        f"{SIGNS['free']} *{escape(host)}:{escape(','.join(gpu.label for gpu in gpus))}*  {escape(model)}, {memory} GiB"
        for (host, model, memory), gpus in groups.items()
    ]


def host_line(host: Host) -> str:
    name = f"{_STATUS[host.status]} *{escape(host.name)}*  {show_status(host)}"
    if host.status == "never_seen" or not host.gpus:
        reason = host.problems[0] if host.problems else host.reasons.get("gpus", "no GPUs")
        return f"{name}: {escape(reason)}"
    states = Counter(gpu.availability for gpu in host.gpus)
    return f"{name}, {count_states(states)}"


def title_of(host: Host, now: float) -> str:
    seen = host.last_report_at
    age = "" if host.status == "up" or seen is None else f", last report {show_span(now - seen)} ago"
    states = count_states(Counter(gpu.availability for gpu in host.gpus))
    return f"{escape(host.name)} is {show_status(host)}{age}: {states}"


def gpu_lines(host: Host) -> list[str]:
    return [gpu_line(host, gpu) for gpu in host.gpus] or [host_line(host)]


def gpu_line(host: Host, gpu: Gpu) -> str:
    """Unknown values are a dash, never a zero."""
    state = gpu.availability
    figures = [
        f"{state}",
        escape(gpu.display_name),
        show_number(gpu.utilization_percent, " %"),
        f"{show_gib(gpu.memory_used_bytes, 0)}/{show_gib(gpu.memory_total_bytes, 0)} GiB",
        show_number(gpu.temperature_celsius, " °C"),
    ]
    whose = _users(gpu.users) or _reserved_by(gpu)
    health = f"  ⚠ {escape(gpu.health_reason)}" if gpu.health_reason else ""
    return f"{SIGNS[state]} *{escape(host.name)}:{escape(gpu.label)}*  {' · '.join(figures)}{whose}{health}"


def who_lines(gpu: Gpu, now: float) -> list[str]:
    since = show_age(gpu.since, now)
    head = f"{SIGNS[gpu.availability]} *{escape(gpu.label)}*  {gpu.availability} for {since}{_reserved_by(gpu)}"
    if gpu.availability == "unknown":
        return [f"{head}: {escape(gpu.availability_reason or 'not known')}"]
    processes = gpu.processes
    if processes is None:
        return [f"{head}: {escape(gpu.reasons.get('processes', 'its processes are not known'))}"]
    lines = [head]
    for process in processes[:_MAX_PROCESSES]:
        user = "unknown user" if process.user is None else escape(process.user)
        age = "" if process.started_at is None else f", {show_span(now - process.started_at)}"
        lines.append(f"      *{user}*  {show_gib(process.memory_used_bytes)} GiB, pid {process.pid}{age}")
    return lines


def user_line(activity: UserActivity) -> str:
    """A user with memory, processes and places; a partly unknown sum is marked with ≥."""
    name = "unknown user" if activity.user is None else escape(activity.user)
    least = "≥ " if activity.memory is not None and activity.is_memory_part else ""
    processes = "" if activity.processes is None else f" in {count(activity.processes, 'process', 'processes')}"
    where = " ".join(join_places((use.host.name, use.gpu.label) for use in activity.uses))
    return f"*{name}*  {escape(where, 400)}  {least}{show_gib(activity.memory)} GiB{processes}"


def _users(users: Sequence[str]) -> str:
    more = f" and {len(users) - _MAX_USERS} more" if len(users) > _MAX_USERS else ""
    return f"  *{', '.join(map(escape, users[:_MAX_USERS]))}*{more}" if users else ""


def _reserved_by(gpu: Gpu) -> str:
    found, drained, job = gpu.reservation, gpu.maintenance, gpu.allocation
    why = "" if drained is None else f"  in maintenance: {escape(drained.reason)}"
    why += "" if job is None else f"  {escape(allocation_note(job))}"
    return why if found is None else f"{why}  reserved by {escape(found.user)}"


def count_states(counts: Mapping[Availability, int]) -> str:
    told = [f"{sign} {counts[state]} {state}" for state, sign in SIGNS.items() if counts[state]]
    return " ".join(told) or "no GPUs"


def notes(fleet: Fleet) -> list[str]:
    """The footer of every answer about the fleet. `trouble` lists problems."""
    return ["DEMO DATA, simulated"] if fleet.demo else []


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


def answer_free(fleet: Fleet, asked: ParsedRequest, names: Collection[str], claimed: Collection[str]) -> ChatAnswer:
    """The GPUs that a user with these `names` could use now; `claimed` are the GPUs claimed for others."""
    offered = candidates(_search(fleet, asked.words).hosts)
    usable = [gpu for gpu in offered if is_usable(gpu, names) and gpu.uuid not in claimed]
    fitting = [gpu for gpu in usable if matches(gpu, asked.wanted)]
    if asked.is_counted:
        found, wanted = choose(asked.wanted, usable), escape(asked.wanted.describe())
        title = f"Free: {wanted}"
        if found is None:
            few = f"*Not free now: {wanted}.* {len(fitting)} such are."
            return text_answer(few, "`watch` notifies you when there are enough.")
    else:
        found = rank(fitting)
        title = f"{len(found)} of {count(fleet.totals.gpus, 'GPU')} can be used now"
        if not found:
            return text_answer(f"*{title}.*", "`watch` notifies you when there is one.", *notes(fleet))
    return list_answer(title, free_lines(found), lambda: render_free(found, width=_WIDTH), "free", notes(fleet))


def answer_hosts(fleet: Fleet, words: Sequence[str] = ()) -> ChatAnswer:
    """All hosts, or those with a GPU that fits the words, with what fits of them."""
    part = _choose(fleet, words)
    hosts, totals = part.hosts, part.totals
    title = f"{totals.hosts_up} of {count(len(hosts), 'host')} up, {totals.free} of {totals.gpus} GPUs free"
    small = [*notes(fleet), *trouble(part)]
    return list_answer(title, [host_line(host) for host in hosts], lambda: render_hosts(hosts, _WIDTH), "hosts", small)


def answer_fleet(fleet: Fleet, words: Sequence[str], *, detail: bool = False, table: bool = False) -> ChatAnswer:
    """All GPUs, or those that fit the words: one line each, as the `table` that curl shows, or that with `detail`."""
    part = _choose(fleet, words)
    totals = part.totals
    title = f"{count(totals.gpus, 'GPU')} on {count(totals.hosts, 'host')}: {count_states(totals.by_availability)}"
    if detail or table:
        # They are drawn in letters of one width, however few there are.
        return attach(
            title, render_fleet(part, detail=detail, width=_WIDTH), "detail" if detail else "all", notes(part)
        )
    lines = [line for host in part.hosts for line in gpu_lines(host)]
    return list_answer(title, lines, lambda: render_fleet(part, width=_WIDTH), "all", [*notes(part), *trouble(part)])


def _choose(fleet: Fleet, words: Sequence[str]) -> Fleet:
    """The part of the fleet that fits the words. Raises UsageError where they are unclear, or nothing fits."""
    part = _search(fleet, words)
    if not part.hosts:
        raise UsageError("Nothing matches." if fleet.hosts else "No host has reported yet.")
    return part


def _search(fleet: Fleet, words: Sequence[str]) -> Fleet:
    part, query = choose_words(fleet, join(words))
    if query.unclear:
        raise UsageError(f"{explain_unclear(query.unclear[0])}.", "`help` lists the words.")
    return part


def answer_alerts(fleet: Fleet, words: Sequence[str] = ()) -> ChatAnswer:
    """Alerts and problems of the hosts that fit the words, or of all, and of the hub."""
    part = _choose(fleet, words) if words else fleet
    wrong = list_wrong(part)
    if not wrong:
        return text_answer("Nothing is wrong that I know of.", *notes(fleet))
    lines = [escape(line, 400) for line in wrong]
    return list_answer(
        "What is wrong", lines, lambda: "".join(f"{clean(line)}\n" for line in wrong), "alerts", notes(fleet)
    )


def answer_host(fleet: Fleet, name: str) -> ChatAnswer | None:
    """The GPUs of a host and who is on them; None where there is no such host."""
    part = _find_host(fleet, name)
    if part is None:
        return None
    host = part.hosts[0]
    problems = [escape(name_problem(host.name, problem), 300) for problem in host.problems[:5]]
    # Of the host alone: `alerts` has the hub's own.
    alerts = list_wrong(replace(part, problems=[], alerts=[one for one in part.alerts if one.host_id]))
    title, small = title_of(host, fleet.time), [*notes(fleet), *problems, *(escape(one, 300) for one in alerts[:4])]
    return list_answer(title, gpu_lines(host), lambda: render_fleet(part, width=_WIDTH), "host", small)


def answer_who(fleet: Fleet, words: Sequence[str]) -> ChatAnswer:
    if len(words) > 1:
        return text_answer("Such as `who gpu07` or `who gpu07:3`.")
    return answer_place(fleet, words[0]) if words else answer_everybody(fleet)


def answer_other(fleet: Fleet, words: Sequence[str]) -> ChatAnswer:
    """The name of a host, a GPU, a host with words, or the words of a search alone."""
    name, *more = words
    host = None if more else answer_host(fleet, name)
    if host is not None:
        return host
    if more and more[-1].lower() in {"detail", "details"} and find_name(fleet, name) is not None:
        return answer_fleet(fleet, words[:-1], detail=True)
    if is_search(fleet, words):
        return answer_fleet(fleet, words)
    if not more and (":" in name or name.upper().startswith(("GPU-", "MIG-"))):
        return answer_place(fleet, name)
    return no_such_command(fleet, name)


def answer_place(fleet: Fleet, place: str, *, with_address: bool = False) -> ChatAnswer:
    """The users of a host or a GPU: HOST, HOST:GPU or a UUID; `with_address`: also the address of the host."""
    host_name, _, labels = place.partition(":")
    part = _find_host(fleet, host_name) or _find_gpu(fleet, place)
    if part is None:
        return no_such_host(fleet, place)
    host = part.hosts[0]
    wanted = {label.strip() for label in labels.split(",") if label.strip()}
    gpus = [gpu for gpu in host.gpus if not wanted or gpu.label in wanted or str(gpu.index) in wanted]
    if not gpus:
        return text_answer(f"{escape(host.name)} has no GPU {escape(labels) or 'at all'}.")
    lines = []
    if with_address:
        seen, addresses = host.last_report_at, escape(", ".join(host.addresses)) or "address not known"
        age = "no report yet" if seen is None else f"last report {show_span(fleet.time - seen)} ago"
        lines.append(f"{addresses}, {age}")
    lines += [line for gpu in gpus for line in who_lines(gpu, fleet.time)]
    return list_answer(title_of(host, fleet.time), lines, lambda: render_fleet(part, width=_WIDTH), "who", notes(fleet))


def answer_where(fleet: Fleet, name: str, logins: Collection[str]) -> ChatAnswer:
    """The GPUs that a user is on, under any of these logins, in any case."""
    wanted = {login.lower() for login in logins}
    seen = {user for host in fleet.hosts for gpu in host.gpus for user in gpu.users}
    part = choose_user(fleet, *(user for user in seen if user.lower() in wanted))
    lines = [gpu_line(host, gpu) for host in part.hosts for gpu in host.gpus]
    if not lines:
        return text_answer(f"{escape(name)} is on no GPU that can be seen.")
    title = f"{escape(name)} is on {count(len(lines), 'GPU')}"
    return list_answer(title, lines, lambda: render_fleet(part, width=_WIDTH), "where", notes(fleet))


def answer_hub(fleet: Fleet, address: str) -> ChatAnswer:
    """The hub itself: where it is, and how much it watches."""
    totals = fleet.totals
    watched = f"{count(totals.hosts, 'host')}, {totals.hosts_up} of them up, {count(totals.gpus, 'GPU')}"
    return text_answer(f"*gpudeck {__version__}*  {escape(address)}", watched, *notes(fleet))


def answer_everybody(fleet: Fleet, words: Sequence[str] = ()) -> ChatAnswer:
    """The users of all GPUs, or of those that fit the words: one line each, the most memory first."""
    part = _choose(fleet, words)
    users = rank_users(part)
    if not users:
        return text_answer("Nobody is seen on any GPU.", *notes(fleet))
    title = f"{count(len(users), 'user')} on GPUs"
    lines = [user_line(activity) for activity in users]
    return list_answer(title, lines, lambda: render_users(part, width=_WIDTH), "where", notes(fleet))


def no_such_host(fleet: Fleet, name: str) -> ChatAnswer:
    near = near_hosts(fleet, name.partition(":")[0])
    hint = f" Did you mean {' or '.join(map(escape, near))}?" if near else " `hosts` lists them."
    return text_answer(f"No host or GPU is called “{escape(name)}”.{hint}")


def no_such_command(fleet: Fleet, name: str) -> ChatAnswer:
    near = [*near_commands(name), *near_hosts(fleet, name)][:3]
    hint = f" Did you mean {' or '.join(map(escape, near))}?" if near else ""
    return text_answer(f"I do not understand “{escape(name)}”.{hint}", *_HELP)


def is_search(fleet: Fleet, words: Sequence[str]) -> bool:
    """Whether they begin with more than text: a word of the page's search, or a host's name and something after it."""
    query = parse_query(join(words[:1]))
    kinds = any((*query.kinds.values(), *query.without.values()))
    is_word = kinds or bool(query.memory) or any(one.place != "any" for one in query.words)
    return is_word or (len(words) > 1 and find_name(fleet, words[0]) is not None)


def find_name(fleet: Fleet, name: str) -> str | None:
    """The exact name of a host, from a name in any case; None without such a host."""
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


def answer_help() -> ChatAnswer:
    return text_answer(*_HELP)


def answer_report(usage: Usage) -> ChatAnswer:
    """Unknown values are a dash."""
    days = (usage.end - usage.start) / 86_400
    title = (
        f"Usage by {usage.by}, last {days:.0f} days" if days >= 2 else f"Usage by {usage.by}, last {days * 24:.0f} h"
    )
    if not usage.rows:
        nobody = [] if usage.coverage is None else ["Nobody used a GPU."]
        return text_answer(f"*{title}*", *nobody, describe_coverage(usage, show_time))
    lines = [_usage_line(row, name_of(usage, row)) for row in usage.rows] + [_usage_line(usage.total, "all together")]
    return list_answer(
        title, lines, lambda: render_usage(usage, UTC, width=120), "report", [describe_coverage(usage, show_time)]
    )


def _usage_line(row: UsageRow, name: str) -> str:
    active, idle = row.active_hours, row.idle_hours
    parts = [f"{_hours(row.gpu_hours)} GPU-hours", f"{_hours(active)} active", f"{_hours(idle)} idle"]
    return f"*{escape(name)}*  {', '.join(parts)}"


def _hours(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"


def answer_reserved(made: Reservation) -> ChatAnswer:
    return text_answer(
        f"Reserved: *{_gpus(made.gpus)}* for {escape(made.user)}, {show_time(made.start)} until {show_time(made.end)} "
        f"({show_length(made.end - made.start)}). It is reservation {made.id}; `release {made.id}` gives it back."
    )


def answer_conflict(refusal: Conflict) -> ChatAnswer:
    """With the next time at which it would be possible."""
    lines = [f"*Not reserved:* {explain(refusal)}"]
    lines += [f"That one ends {show_time(one.end)}." for one in refusal.conflicts[:1]]
    slot = refusal.next_free
    if slot is not None:
        lines.append(f"Next free: *{_gpus(slot.gpus)}*, {show_time(slot.start)} until {show_time(slot.end)}.")
    return text_answer(*lines)


def answer_released(after: ShownReservation) -> ChatAnswer:
    word = "cancelled" if after.state == "cancelled" else "released"
    return text_answer(f"Reservation {after.id} of *{_gpus(after.gpus)}* is {word}.")


def answer_reservations(found: Sequence[ShownReservation], now: float) -> ChatAnswer:
    if not found:
        return text_answer("Nothing is reserved.", "`reserve gpu07:0 for 4h` reserves.")
    title = count(len(found), "reservation")
    return list_answer(
        title,
        [_line(one) for one in found],
        lambda: render_reservations(found, now, UTC, width=160) + "\nTimes are UTC.\n",
        "reservations",
    )


def explain(error: GpudeckError) -> str:
    """An error in Slack's markup. Commands stand in quotes there: a backtick of a name must not begin code."""
    return escape(str(error).replace("`", "'"), 500)


def _line(one: Reservation) -> str:
    note = f"  _{escape(one.note)}_" if one.note else ""
    what = f"claim {one.id}" if one.kind == "claim" else escape(one.title)
    times = f"{show_time(one.start)} until {show_time(one.end)}"
    return f"{what}: *{escape(one.user)}*  {_gpus(one.gpus)}  {times}{note}"


def _gpus(gpus: Sequence[ReservedGpu]) -> str:
    return escape(" ".join(join_places((gpu.host, gpu.label) for gpu in gpus)), 300)


def answer_runs(runs: Sequence[Run], now: float) -> ChatAnswer:
    """The newest first. Only the user who asked sees it."""
    lines = [line for run in runs[:MAX_RUNS] for line in _run_lines(run, now)]
    title = "*Your newest runs*" if lines else "You had no runs in the last seven days."
    return text_answer(title, *lines, is_private=True)


def _run_lines(run: Run, now: float) -> list[str]:
    start, verdict = run.started_at or run.seen_at, run.verdict
    rating: Rating = "unknown" if verdict is None else verdict.rating
    lasted = show_span((now if run.ended_at is None else run.ended_at) - start)
    running = ", running" if run.ended_at is None else ""
    place = f"*{escape(run.host_name)}:{escape(','.join(run.labels))}*"
    told = [f"{_RATING_SIGNS[rating]} {place}  {show_time(start)}, {lasted}{running}: {RATING_WORDS[rating]}"]
    if verdict is not None and verdict.suggestions:
        one = verdict.suggestions[0]
        told.append(f"      {escape(one.text)}: {escape(one.evidence, 400)}. {escape(one.fix)}")
    return told
