"""Part of a fleet, with totals of its own: some of its hosts, or the GPUs that fit a search.

A search is words that all have to fit a GPU: what the page's search box takes, for curl and the command line.

    free busy held booked unknown   its availability; several of them mean any of them
    up late down never              the status of its host; several mean any
    warning critical                its health; several mean any
    >40G  >=80G  <24G  =16G         its memory; G is 10^9 bytes, GiB is 2^30
    user:ann host:gpu07 model:h200  text in that place only
    -word                           none of it, also -free, -down, -critical
    anything else                   text in host, label, model, user or UUID, or a GPU's own label: 0.5

web/src/state/query.ts is the same on the page. tests/captures/filter-cases.json is tried on both.
"""

import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gpudeck.model.availability import AVAILABILITIES
from gpudeck.model.view import Fleet, Gpu, Host, HostStatus, Totals

_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("availability", AVAILABILITIES),
    ("status", ("up", "late", "down", "never")),
    ("health", ("warning", "critical")),
)
KEYWORDS = tuple(word for _, words in _KINDS for word in words)
"""The words that are more than text."""
_KIND_OF = {word: kind for kind, words in _KINDS for word in words}
_PLACES = ("host", "model", "user")
_MEMORY = re.compile(r"(>=|<=|>|<|=)([0-9]+(?:\.[0-9]+)?)([kmgt]i?)?b?")
_BYTES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}
_TOKEN = re.compile(r'-?(?:[a-z0-9_]+:)?"[^"]*"|\S+')
_PREFIX = re.compile(r"-?(?:[A-Za-z0-9_]+:)?")
Fits = Callable[[Host, Gpu], bool]


class _Bound(NamedTuple):
    """What the memory has to be."""

    sign: str
    amount: float
    unit: str


class _Word(NamedTuple):
    """Text that has to be, or must not be, in a place: host, model, user or any."""

    text: str
    place: str
    is_wanted: bool


class Query(Struct, frozen=True):
    """What was understood. `unclear` is what looks like more than text but cannot be read, as `>lots`: nothing fits
    a query with such a word. `kinds` and `without` hold the keywords, by what they are about."""

    kinds: dict[str, frozenset[str]]
    without: dict[str, frozenset[str]]
    memory: tuple[_Bound, ...]
    words: tuple[_Word, ...]
    unclear: tuple[str, ...]


def parse_query(text: str) -> Query:
    """Never fails: see `Query.unclear`."""
    return read_tokens(split(text))


def read_tokens(tokens: Iterable[str]) -> Query:
    """As `parse_query`, of words that `split` gave."""
    wanted: list[str] = []
    without: list[str] = []
    memory: list[_Bound] = []
    words: list[_Word] = []
    unclear: list[str] = []
    for token in tokens:
        if found := _MEMORY.fullmatch(token):
            memory.append(_Bound(found[1], float(found[2]), found[3] or "g"))
        elif token in KEYWORDS:
            wanted.append(token)
        elif token[:1] == "-" and token[1:] in KEYWORDS:
            without.append(token[1:])
        elif _is_unclear(token):
            unclear.append(token)
        else:
            words.append(_read_word(token))
    return Query(_by_kind(wanted), _by_kind(without), tuple(memory), tuple(words), tuple(unclear))


def split(text: str) -> list[str]:
    """Lower-case words; quotes keep a phrase together, and `> 40 G` is one word as `>40G` is."""
    joined = re.sub(r"([<>=]) +(?=[0-9])", r"\1", text.lower())
    joined = re.sub(r"([<>=][0-9][0-9.]*) +(?=[kmgt]i?b?(?: |$))", r"\1", joined)
    tokens = (token.replace('"', "") for token in _TOKEN.findall(joined))
    return [token for token in tokens if token]


def join(arguments: Iterable[str]) -> str:
    """Words that a shell has split already as one text: those with spaces in them are phrases."""
    return " ".join(_quote(argument) for argument in arguments)


def _quote(argument: str) -> str:
    if not re.search(r"\s", argument) or re.match(r"-?[<>=]", argument):
        return argument
    prefix = _PREFIX.match(argument)
    length = prefix.end() if prefix else 0
    return f'{argument[:length]}"{argument[length:].replace(chr(34), "")}"'


def _by_kind(words: list[str]) -> dict[str, frozenset[str]]:
    return {kind: frozenset(word for word in words if _KIND_OF[word] == kind) for kind, _ in _KINDS}


def _is_unclear(token: str) -> bool:
    """An amount that is none, a place without text, a lone minus."""
    bare = token.removeprefix("-")
    return not bare or bare[0] in "<>=" or (bare.endswith(":") and bare[:-1] in _PLACES)


def _read_word(token: str) -> _Word:
    is_wanted = not token.startswith("-")
    bare = token.removeprefix("-")
    place, colon, text = bare.partition(":")
    return _Word(text, place, is_wanted) if colon and place in _PLACES else _Word(bare, "any", is_wanted)


def fits_gpu(query: Query, host: Host, gpu: Gpu) -> bool:
    """Whether a GPU of this host belongs to the answer."""
    states = {"availability": gpu.availability, "status": host.status, "health": gpu.health}
    return (
        not query.unclear
        and not any(states[kind] in words for kind, words in query.without.items())
        and all(states[kind] in words for kind, words in query.kinds.items() if words)
        and all(_fits_memory(bound, gpu.memory_total_bytes) for bound in query.memory)
        and all(_is_in(word, host, gpu) == word.is_wanted for word in query.words)
    )


def fits_bare_host(query: Query, host: Host) -> bool:
    """Whether a host without any readable GPU belongs to the answer: only what is said about the host counts."""
    if query.unclear or query.memory or query.kinds["availability"] or query.kinds["health"]:
        return False
    status, wanted = host.status, query.kinds["status"]
    if status in query.without["status"] or (wanted and status not in wanted):
        return False
    return all(_is_in(word, host, None) == word.is_wanted for word in query.words)


def _fits_memory(bound: _Bound, memory_bytes: float | None) -> bool:
    """No card holds a round number of bytes: equal is what reads the same, in units of 1000 or, as on the cards, of
    1024. What is unknown fits nothing."""
    if memory_bytes is None:
        return False
    if bound.sign != "=":
        return _COMPARE[bound.sign](memory_bytes, bound.amount * _BYTES[bound.unit])
    units = (bound.unit, f"{bound.unit[0]}i")
    return any(math.floor(memory_bytes / _BYTES[unit] + 0.5) == bound.amount for unit in units)


def _is_in(word: _Word, host: Host, gpu: Gpu | None) -> bool:
    text, place = word.text, word.place
    if place == "host":
        return _is_in_host(text, host)
    if place == "model":
        return gpu is not None and _is_in_model(text, gpu)
    if place == "user":
        return gpu is not None and _is_in_users(text, gpu)
    return _is_in_host(text, host) or (gpu is not None and _is_in_gpu(text, gpu))


def _is_in_gpu(text: str, gpu: Gpu) -> bool:
    # A state that is still being typed fits already: "fre".
    return (
        gpu.label == text
        or _is_in_model(text, gpu)
        or _is_in_users(text, gpu)
        or gpu.availability.startswith(text)
        # Short text stands in many a UUID by chance: "4090" is a model.
        or (len(text) >= 8 and text in gpu.uuid.lower())
    )


def _is_in_host(text: str, host: Host) -> bool:
    if text in host.name.lower() or text in host.display_name.lower():
        return True
    return any(text in value.lower() or f"{key}={value}".lower() == text for key, value in host.labels.items())


def _is_in_model(text: str, gpu: Gpu) -> bool:
    return text in gpu.name.lower() or text in gpu.display_name.lower()


def _is_in_users(text: str, gpu: Gpu) -> bool:
    return any(text in user.lower() for user in gpu.users)


def choose_hosts(fleet: Fleet, names: Sequence[str]) -> Fleet:
    """The fleet with the hosts of these names or ids alone, and their totals; all of it when none is named."""
    if not names:
        return fleet
    return _with_hosts(fleet, [host for host in fleet.hosts if host.name in names or host.id in names])


def choose_user(fleet: Fleet, *users: str) -> Fleet:
    """The GPUs that any of these users is on."""
    return _with_gpus(fleet, lambda _, gpu: any(user in gpu.users for user in users), lambda _: False)


def choose_words(fleet: Fleet, text: str) -> tuple[Fleet, Query]:
    """The part that fits a search, and how the search was understood.

    Words that are exactly the names of hosts mean these hosts and no others: gpu1 is not gpu10, and of several names
    each counts. All other words mean what they mean on the page.
    """
    tokens = split(text)
    known = {host.name.lower(): host.name for host in fleet.hosts}
    named = [known[token] for token in tokens if token in known]
    query = read_tokens(token for token in tokens if token not in known)
    part = choose_hosts(fleet, named)
    if len(named) == len(tokens):
        return part, query
    return _with_gpus(part, partial(fits_gpu, query), partial(fits_bare_host, query)), query


def choose_json(document: bytes, part: Fleet) -> bytes:
    """A fleet's document with what is in `part` alone, every value as the hub sent it."""
    told = msgspec.json.decode(document)
    kept = {host.id: {gpu.uuid for gpu in host.gpus} for host in part.hosts}
    told["hosts"] = [host for host in told["hosts"] if host["id"] in kept]
    for host in told["hosts"]:
        host["gpus"] = [gpu for gpu in host["gpus"] if gpu["uuid"] in kept[host["id"]]]
    return msgspec.json.encode(told | {"totals": part.totals})


def near_hosts(fleet: Fleet, name: str, most: int = 3) -> list[str]:
    """The hosts whose names are most like this one."""
    import difflib  # noqa: PLC0415 - needed by mistakes alone

    names = {host.name.lower(): host.name for host in fleet.hosts}
    return [names[found] for found in difflib.get_close_matches(name.lower(), names, most)]


def _with_gpus(fleet: Fleet, fits: Fits, bare_fits: Callable[[Host], bool]) -> Fleet:
    """The hosts on which a GPU fits, with those GPUs alone; and bare hosts that do."""
    hosts: list[Host] = []
    for host in fleet.hosts:
        gpus = [gpu for gpu in host.gpus if fits(host, gpu)]
        if gpus or (not host.gpus and bare_fits(host)):
            hosts.append(host if len(gpus) == len(host.gpus) else replace(host, gpus=gpus))
    return _with_hosts(fleet, hosts)


def _with_hosts(fleet: Fleet, hosts: list[Host]) -> Fleet:
    return replace(fleet, hosts=hosts, totals=count(hosts))


def count(hosts: Sequence[Host]) -> Totals:
    """The totals as the hub counts: a GPU in an unknown state adds no power and no user."""
    gpus = [gpu for host in hosts for gpu in host.gpus]
    known = [gpu for gpu in gpus if gpu.availability != "unknown"]
    power = [gpu.power_watts for gpu in known if gpu.power_watts is not None]
    states = Counter(gpu.availability for gpu in gpus)
    return Totals(
        gpus=len(gpus),
        **{word: states[word] for word in AVAILABILITIES},
        hosts=len(hosts),
        hosts_up=sum(host.status == "up" for host in hosts),
        users=len({user for gpu in known for user in gpu.users}),
        power_watts=round(sum(power), 1) if power else None,
    )


def forget_states(fleet: Fleet, reason: str) -> Fleet:
    """The fleet with every GPU unknown for this reason: stale is never free. Hosts that were up are late."""
    hosts = [_forget_host(host, reason) for host in fleet.hosts]
    return replace(fleet, hosts=hosts, totals=count(hosts))


def _forget_host(host: Host, reason: str) -> Host:
    status: HostStatus = "late" if host.status == "up" else host.status
    return replace(host, status=status, gpus=[_forget_gpu(gpu, reason) for gpu in host.gpus])


def _forget_gpu(gpu: Gpu, reason: str) -> Gpu:
    state = gpu.availability
    last = gpu.last_seen if state == "unknown" else state
    return replace(gpu, availability="unknown", availability_reason=reason, last_seen=last)
