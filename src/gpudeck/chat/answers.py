"""What the bot says about the fleet, for a phone: one line a thing, and a snippet where that is too much. Pure.

Takes the fleet without what the asker may not see.
"""

from collections.abc import Collection, Sequence
from typing import Final

from msgspec.structs import replace

from gpudeck import __version__
from gpudeck.chat.blocks import Answer, attach, say, tell
from gpudeck.chat.commands import near_commands
from gpudeck.chat.escape import escape
from gpudeck.chat.lines import (
    count,
    count_states,
    free_lines,
    gpu_line,
    gpu_lines,
    host_line,
    list_wrong,
    notes,
    person_line,
    place_line,
    title_of,
    trouble,
    who_lines,
)
from gpudeck.chat.wants import Asked
from gpudeck.model.printable import clean
from gpudeck.model.view import Fleet
from gpudeck.model.wanted import OfferedGpu, choose, fits, is_usable, offer_all, rank
from gpudeck.views.filter import choose_hosts, choose_user, choose_words, join, near_hosts, parse_query
from gpudeck.views.lists import render_free
from gpudeck.views.people import rank_people, render_people
from gpudeck.views.text import name_problem, render_fleet, render_hosts

_WIDTH: Final = 160
"""Columns of a snippet: people turn their phones for those."""


def answer_free(fleet: Fleet, asked: Asked, names: Collection[str], kept: Collection[str]) -> Answer:
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


def _answer_counted(fleet: Fleet, asked: Asked, usable: list[OfferedGpu], fitting: list[OfferedGpu]) -> Answer:
    found = choose(asked.wanted, usable)
    wanted = escape(asked.wanted.describe())
    if found is None:
        return say(f"*Not free now: {wanted}.* {len(fitting)} such are.", "`watch` tells you when there are enough.")
    return tell(f"Free: {wanted}", free_lines(found), lambda: render_free(found, width=_WIDTH), "free", notes(fleet))


def answer_hosts(fleet: Fleet, words: Sequence[str] = ()) -> Answer:
    """All hosts, or those with a GPU that fits the words, with what fits of them."""
    part = _choose(fleet, words)
    if isinstance(part, Answer):
        return part
    hosts, totals = part.hosts, part.totals
    title = f"{totals.hosts_up} of {count(len(hosts), 'host')} up, {totals.free} of {totals.gpus} GPUs free"
    small = [*notes(fleet), *trouble(part)]
    return tell(title, [host_line(host) for host in hosts], lambda: render_hosts(hosts, _WIDTH), "hosts", small)


def answer_fleet(fleet: Fleet, words: Sequence[str], *, detail: bool = False, table: bool = False) -> Answer:
    """All GPUs, or those that fit the words: one line each, as the `table` that curl shows, or that with `detail`."""
    part = _choose(fleet, words)
    if isinstance(part, Answer):
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


def _choose(fleet: Fleet, words: Sequence[str]) -> Fleet | Answer:
    """What fits the words; an answer where they are not understood, or nothing does."""
    part, query = choose_words(fleet, join(words))
    if query.unclear:
        return say(f"“{escape(query.unclear[0])}” is not understood. `help` tells the words.")
    if not part.hosts:
        return say("Nothing fits." if fleet.hosts else "No host has reported yet.")
    return part


def answer_alerts(fleet: Fleet, words: Sequence[str] = ()) -> Answer:
    """What is wrong, with the hosts that fit the words or with all, and with the hub."""
    part = _choose(fleet, words) if words else fleet
    if isinstance(part, Answer):
        return part
    wrong = list_wrong(part)
    if not wrong:
        return say("Nothing is wrong that I know of.", *notes(fleet))
    lines = [escape(line, 400) for line in wrong]
    return tell("What is wrong", lines, lambda: "".join(f"{clean(line)}\n" for line in wrong), "alerts", notes(fleet))


def answer_host(fleet: Fleet, name: str) -> Answer | None:
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


def answer_who(fleet: Fleet, place: str, *, with_address: bool = False) -> Answer:
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


def answer_where(fleet: Fleet, name: str, logins: Collection[str]) -> Answer:
    """The GPUs that somebody is on, under any of these logins, in whatever case they were typed."""
    wanted = {login.lower() for login in logins}
    seen = {user for host in fleet.hosts for gpu in host.gpus for user in gpu.users}
    part = choose_user(fleet, *(user for user in seen if user.lower() in wanted))
    lines = [gpu_line(host, gpu) for host in part.hosts for gpu in host.gpus]
    if not lines:
        return say(f"{escape(name)} is on no GPU that can be seen.")
    title = f"{escape(name)} is on {count(len(lines), 'GPU')}"
    return tell(title, lines, lambda: render_fleet(part, width=_WIDTH), "where", notes(fleet))


def answer_hub(fleet: Fleet, address: str) -> Answer:
    """The hub itself: where it is, and how much it watches."""
    totals = fleet.totals
    watched = f"{count(totals.hosts, 'host')}, {totals.hosts_up} of them up, {count(totals.gpus, 'GPU')}"
    return say(f"*gpudeck {__version__}*  {escape(address)}", watched, *notes(fleet))


def answer_everybody(fleet: Fleet, words: Sequence[str] = ()) -> Answer:
    """Who is where, the most memory first: one line a person; on the GPUs that fit the words, or on all."""
    part = _choose(fleet, words)
    if isinstance(part, Answer):
        return part
    people = rank_people(part)
    if not people:
        return say("Nobody is seen on any GPU.", *notes(fleet))
    title = f"{count(len(people), 'person', 'people')} on GPUs"
    lines = [person_line(person) for person in people]
    return tell(title, lines, lambda: render_people(part, width=_WIDTH), "where", notes(fleet))


def no_such_host(fleet: Fleet, name: str) -> Answer:
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
