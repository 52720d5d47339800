"""Filters a fleet by hosts or by search words, with totals of the result.

A search is words that all have to fit a GPU: what the page's search box takes, for curl and the command line.

    free busy idle allocated reserved drained unknown   its availability; several of them mean any of them
    up late down never_seen         the status of its host; several mean any
    warning critical                its health; several mean any
    80G  >40G  >=80G  <24G          its memory, in GiB as it is shown
    nobody                          nobody is using it: free, allocated, reserved or drained
    user:ann host:gpu07 model:h200  text in that place only; command:train and rack:r01 (any label) too
    gpu05:3                         GPU 3 of the host gpu05
    xid  xid79  xid 79  xid:79      a fault that the driver reported in the last day, or the reason why it is unknown
    -word                           none of it, also -free, -down, -critical
    anything else                   text in host, its note, label, model, user or UUID, the beginning of a word of a
                                    command or of what is wrong (fell off), a vendor, an address, or a GPU's own
                                    label: 0.5

Words that together are the value of a label are one: hall A.
web/src/fleet/query.ts is the same on the page. tests/captures/filter-cases.json is tried on both.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gpudeck.model.gpu_request import MemoryBound, has_model
from gpudeck.model.gpu_state import AVAILABILITIES, UNUSED
from gpudeck.model.text import parse_memory
from gpudeck.model.view import Fleet, Gpu, Host, HostStatus, Totals

_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("availability", AVAILABILITIES),
    ("status", ("up", "late", "down", "never_seen")),
    ("health", ("warning", "critical")),
)
KEYWORDS = (*(word for _, words in _KINDS for word in words), "nobody", "xid")
"""The words with a meaning of their own."""
_KIND_OF = {word: kind for kind, words in _KINDS for word in words}
_NOBODY = "nobody"
_PLACES = ("host", "model", "user", "command", "xid")
_XID = re.compile(r"xid-?([0-9]*)")
_NAMED_XID = re.compile(r"\bxid ([0-9]+)", re.IGNORECASE)
_SHORTEST_OF_COMMAND = 3
"""Shorter text is the beginning of a word in nearly every command."""
_MIN_VENDOR = 3
"""amd"""
_MEMORY = re.compile(r"(>=|<=|>|<|=)([0-9]+(?:\.[0-9]+)?[kmgt]i?b?)")
_AMOUNT = re.compile(r"[0-9]+(?:\.[0-9]+)?[kmgt]i?b?")
_NO_UNIT = re.compile(r"(>=|<=|>|<|=)([0-9]+(?:\.[0-9]+)?)")
_TOKEN = re.compile(r'-?(?:[a-z0-9_]+[:=])?"[^"]*"|\S+')
_PREFIX = re.compile(r"-?(?:[A-Za-z0-9_]+:)?")
Fits = Callable[[Host, Gpu], bool]


class _Word(NamedTuple):
    """Text that must, or must not, be in a place: one of `_PLACES`, or any. For `xid`, empty text means any fault."""

    text: str
    place: str
    is_wanted: bool


class Query(Struct, frozen=True):
    """A parsed search. `unclear` are tokens that look like more than text but cannot be parsed, such as `>lots`:
    nothing matches a query with one. `kinds` and `without` are the keywords by kind."""

    kinds: dict[str, frozenset[str]]
    without: dict[str, frozenset[str]]
    memory: tuple[MemoryBound, ...]
    words: tuple[_Word, ...]
    unclear: tuple[str, ...]


def phrases_of(hosts: Iterable[Host]) -> list[str]:
    """The values of labels with more than one word, in lower case, the longest first."""
    values = {value.lower() for host in hosts for value in host.labels.values() if " " in value}
    return sorted(values, key=len, reverse=True)


def parse_query(text: str, phrases: Iterable[str] = ()) -> Query:
    """Never fails: see `Query.unclear`. `phrases` are words that belong together without quotes, too."""
    return read_tokens(split(text, phrases))


def read_tokens(tokens: Iterable[str]) -> Query:
    """`parse_query` for the words of `split`."""
    wanted: list[str] = []
    without: list[str] = []
    memory: list[MemoryBound] = []
    words: list[_Word] = []
    unclear: list[str] = []
    for token in tokens:
        if found := _MEMORY.fullmatch(token):
            memory.append(MemoryBound(found[1], parse_memory(found[2])))
        elif token.removeprefix("-") == _NOBODY:
            (without if token[:1] == "-" else wanted).extend(sorted(UNUSED))
        elif token in _KIND_OF:
            wanted.append(token)
        elif token[:1] == "-" and token[1:] in _KIND_OF:
            without.append(token[1:])
        elif _is_unclear(token):
            unclear.append(token)
        else:
            words.append(_read_word(token))
    return Query(_by_kind(wanted), _by_kind(without), tuple(memory), tuple(words), tuple(unclear))


def split(text: str, phrases: Iterable[str] = ()) -> list[str]:
    """Lower-case words. Quotes keep a phrase together; `> 40 G` is one word like `>40G`, and `xid 79` like `xid79`."""
    joined = re.sub(r"([<>=]) +(?=[0-9])", r"\1", _quote_phrases(text.lower(), phrases))
    joined = re.sub(r"([<>=][0-9][0-9.]*) +(?=[kmgt]i?b?(?: |$))", r"\1", joined)
    joined = re.sub(r"(^|[ -])xid +(?=[0-9]+(?: |$))", r"\1xid", joined)
    tokens = (token.replace('"', "") for token in _TOKEN.findall(joined))
    return [token for token in tokens if token]


def _quote_phrases(text: str, phrases: Iterable[str]) -> str:
    """Adds quotes to known phrases: `room:hall a` becomes `room:"hall a"`."""
    if " " not in text or '"' in text:
        return text
    for phrase in phrases:
        at = text.find(phrase)
        before, after = text[max(0, at - 1) : max(0, at)], text[at + len(phrase) :]
        if at >= 0 and before in {"", " ", "-", ":", "="} and after[:1] in {"", " "}:
            return f'{text[:at]}"{phrase}"{after}'
    return text


def join(arguments: Iterable[str]) -> str:
    """Words that a shell has split as one text: those with spaces are phrases."""
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
    """An invalid amount, a place without text, or a lone minus."""
    bare = token.removeprefix("-")
    return not bare or bare[0] in "<>=" or (bare.endswith(":") and bare[:-1] in _PLACES)


def explain_unclear(token: str) -> str:
    """The mistake in a word of `Query.unclear`, as a sentence without its full stop."""
    if found := _NO_UNIT.fullmatch(token):
        return f"{found[2]} what? Write {found[0]}G"
    return f"{token!r} is not understood"


def _read_word(token: str) -> _Word:
    is_wanted = not token.startswith("-")
    bare = token.removeprefix("-")
    place, colon, text = bare.partition(":")
    if fault := _XID.fullmatch(bare):
        return _Word(fault[1], "xid", is_wanted)
    return _Word(text, place, is_wanted) if colon and place in _PLACES else _Word(bare, "any", is_wanted)


def fits_gpu(query: Query, host: Host, gpu: Gpu) -> bool:
    """Whether a GPU of this host matches."""
    states = {"availability": gpu.availability, "status": host.status, "health": gpu.health}
    return (
        not query.unclear
        and not any(states[kind] in words for kind, words in query.without.items())
        and all(states[kind] in words for kind, words in query.kinds.items() if words)
        and all(bound.fits(gpu.memory_total_bytes) for bound in query.memory)
        and all(_is_in(word, host, gpu) == word.is_wanted for word in query.words)
    )


def fits_bare_host(query: Query, host: Host) -> bool:
    """Whether a host without readable GPUs matches: only conditions on the host count."""
    if query.unclear or query.memory or query.kinds["availability"] or query.kinds["health"]:
        return False
    status, wanted = host.status, query.kinds["status"]
    if status in query.without["status"] or (wanted and status not in wanted):
        return False
    return all(_is_in(word, host, None) == word.is_wanted for word in query.words)


def _is_in(word: _Word, host: Host, gpu: Gpu | None) -> bool:
    text, place = word.text, word.place
    if place == "host":
        return _is_in_host(text, host)
    if place == "model":
        return gpu is not None and has_model(text, gpu.name, gpu.display_name)
    if place == "user":
        return gpu is not None and _is_in_users(text, gpu)
    if place == "command":
        return gpu is not None and _is_in_commands(text, gpu)
    if place == "xid":
        return gpu is not None and any(text in {"", code} for code in _xids(gpu))
    is_in_host = _is_in_host(text, host) or (host.note is not None and text in host.note.text.lower())
    return is_in_host or (gpu is not None and (_is_in_gpu(text, gpu) or _is_place(text, host, gpu)))


def _xids(gpu: Gpu) -> list[str]:
    """The faults of the last day, and the one in the reason of its state."""
    return [str(event.code) for event in gpu.events] + _NAMED_XID.findall(gpu.availability_reason or "")


def _is_in_gpu(text: str, gpu: Gpu) -> bool:
    # A state that is still being typed matches: "fre".
    return (
        gpu.label == text
        or (_is_amount(text, gpu) if _AMOUNT.fullmatch(text) else has_model(text, gpu.name, gpu.display_name))
        or _is_in_users(text, gpu)
        or gpu.availability.startswith(text)
        or (len(text) >= _SHORTEST_OF_COMMAND and (_is_in_commands(text, gpu) or _is_in_reasons(text, gpu)))
        or (len(text) >= _MIN_VENDOR and gpu.vendor.startswith(text))
        # Short text occurs in many UUIDs by chance: "4090" is a model.
        or (len(text) >= 8 and text in gpu.uuid.lower())
    )


def _is_amount(text: str, gpu: Gpu) -> bool:
    """Whether its memory as shown, or its model name, is this amount. A MIG instance also has the name of its board,
    whose memory it does not have: A100-SXM4-80GB MIG 1g.10gb."""
    names = (name.rpartition(" MIG ")[2] for name in (gpu.name, gpu.display_name))
    return MemoryBound("=", parse_memory(text)).fits(gpu.memory_total_bytes) or has_model(text, *names)


def _is_in_host(text: str, host: Host) -> bool:
    if text in host.name.lower() or text in host.display_name.lower():
        return True
    if any(_is_address(text, address.lower()) for address in host.addresses):
        return True
    if len(text) >= _SHORTEST_OF_COMMAND and any(_begins_word(text, problem.lower()) for problem in host.problems):
        return True
    return any(_is_label(text, key.lower(), value.lower()) for key, value in host.labels.items())


def _is_label(text: str, key: str, value: str) -> bool:
    """`rack=r01` is the whole value, `rack:r0` a part of it."""
    return text in value or f"{key}={value}" == text or (text.startswith(f"{key}:") and text[len(key) + 1 :] in value)


def _is_address(text: str, address: str) -> bool:
    """The whole address, or its beginning: `10.0.3`. A shorter text is the beginning of many, and may be a GPU's label:
    `0.5`."""
    return text == address or (address.startswith(text) and sum(mark in ".:" for mark in text) > 1)


def _is_place(text: str, host: Host, gpu: Gpu) -> bool:
    """`gpu05:3`; the first part of a host's full name is enough."""
    name, colon, label = text.rpartition(":")
    known = host.name.lower()
    return bool(colon) and gpu.label == label and name in {known, known.partition(".")[0], host.display_name.lower()}


def _is_in_commands(text: str, gpu: Gpu) -> bool:
    """Whether a word of a command begins with the text."""
    commands = (process.command for process in gpu.processes or () if process.command)
    return any(_begins_word(text, command.lower()) for command in commands)


def _is_in_reasons(text: str, gpu: Gpu) -> bool:
    """Whether a word of its problems begins with the text."""
    reasons = (reason for reason in (gpu.availability_reason, gpu.health_reason) if reason)
    return any(_begins_word(text, reason.lower()) for reason in reasons)


def _begins_word(text: str, command: str) -> bool:
    at = command.find(text)
    while at > 0 and command[at - 1].isalnum():
        at = command.find(text, at + 1)
    return at >= 0


def _is_in_users(text: str, gpu: Gpu) -> bool:
    return any(text in user.lower() for user in gpu.users)


def choose_hosts(fleet: Fleet, names: Sequence[str]) -> Fleet:
    """The fleet with only the hosts of these names or ids, and their totals; all of it without names."""
    if not names:
        return fleet
    return _with_hosts(fleet, [host for host in fleet.hosts if host.name in names or host.id in names])


def choose_user(fleet: Fleet, *users: str) -> Fleet:
    return _with_gpus(fleet, lambda _, gpu: any(user in gpu.users for user in users), lambda _: False)


def choose_words(fleet: Fleet, text: str) -> tuple[Fleet, Query]:
    """The part that matches a search, and the parsed search.

    Words that are exactly names of hosts select these hosts and no others: gpu1 is not gpu10, and of several names each
    counts. All other words mean the same as on the page.
    """
    tokens = split(text, phrases_of(fleet.hosts))
    known = {host.name.lower(): host.name for host in fleet.hosts}
    named = [known[token] for token in tokens if token in known]
    query = read_tokens(token for token in tokens if token not in known)
    part = choose_hosts(fleet, named)
    if len(named) == len(tokens):
        return part, query
    return _with_gpus(part, partial(fits_gpu, query), partial(fits_bare_host, query)), query


def choose_json(document: bytes, part: Fleet) -> bytes:
    """A fleet's document reduced to `part`, with every value as the hub sent it."""
    told = msgspec.json.decode(document)
    kept = {host.id: {gpu.uuid for gpu in host.gpus} for host in part.hosts}
    told["hosts"] = [host for host in told["hosts"] if host["id"] in kept]
    for host in told["hosts"]:
        host["gpus"] = [gpu for gpu in host["gpus"] if gpu["uuid"] in kept[host["id"]]]
    return msgspec.json.encode(told | {"totals": part.totals})


def near_hosts(fleet: Fleet, name: str, most: int = 3) -> list[str]:
    import difflib  # noqa: PLC0415 - needed by mistakes alone

    names = {host.name.lower(): host.name for host in fleet.hosts}
    return [names[found] for found in difflib.get_close_matches(name.lower(), names, most)]


def propose(fleet: Fleet, text: str) -> list[str]:
    """The most similar known word for each word that matches nothing on its own; `usr:ann` becomes `user:ann`."""
    found = []
    for word in split(text, phrases_of(fleet.hosts)):
        bare = word.removeprefix("-")
        if not _fits_anything(fleet, bare) and (near := _nearest(fleet, bare)) is not None:
            found.append(f"-{near}" if word[:1] == "-" else near)
    return list(dict.fromkeys(found))


def _fits_anything(fleet: Fleet, word: str) -> bool:
    if word in KEYWORDS or _MEMORY.fullmatch(word):
        return True
    query = read_tokens([word])
    return any(
        fits_bare_host(query, host) or any(fits_gpu(query, host, gpu) for gpu in host.gpus) for host in fleet.hosts
    )


def _nearest(fleet: Fleet, word: str) -> str | None:
    """Among keywords, users, hosts and labels; among the values of its key, if it has one."""
    names = [host.name.lower() for host in fleet.hosts]
    labels = [(key.lower(), value.lower()) for host in fleet.hosts for key, value in host.labels.items()]
    key, colon, text = word.partition(":")
    if colon and text:
        keys = [*_PLACES, *sorted({key for key, _ in labels}), *names]
        near = _closest(key, keys)
        return None if near is None or near == key else f"{near}:{text}"
    users = sorted({user.lower() for host in fleet.hosts for gpu in host.gpus for user in gpu.users})
    return _closest(word, [*KEYWORDS, *users, *names, *sorted({value for _, value in labels})])


def _closest(word: str, known: Iterable[str]) -> str | None:
    import difflib  # noqa: PLC0415 - needed by mistakes alone

    near = difflib.get_close_matches(word, list(dict.fromkeys(known)), 64, 0.66)

    def rank(one: str) -> tuple[bool, int, str]:
        """Transposed letters are the most likely typing error; then the fewest changes."""
        return sorted(one) != sorted(word), -sum(map(str.__eq__, one, word)), one

    return min(near, key=rank, default=None)


def _with_gpus(fleet: Fleet, fits: Fits, bare_fits: Callable[[Host], bool]) -> Fleet:
    """The hosts with a matching GPU, reduced to the matching GPUs; and matching hosts without GPUs."""
    hosts: list[Host] = []
    for host in fleet.hosts:
        gpus = [gpu for gpu in host.gpus if fits(host, gpu)]
        if gpus or (not host.gpus and bare_fits(host)):
            hosts.append(host if len(gpus) == len(host.gpus) else replace(host, gpus=gpus))
    return _with_hosts(fleet, hosts)


def _with_hosts(fleet: Fleet, hosts: list[Host]) -> Fleet:
    return replace(fleet, hosts=hosts, totals=count(hosts))


def count(hosts: Sequence[Host]) -> Totals:
    """The totals as the hub counts them: a GPU in an unknown state adds no power and no user."""
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
    hosts = []
    for host in fleet.hosts:
        status: HostStatus = "late" if host.status == "up" else host.status
        gpus = [
            replace(
                gpu,
                availability="unknown",
                availability_reason=reason,
                last_seen=gpu.last_seen if gpu.availability == "unknown" else gpu.availability,
            )
            for gpu in host.gpus
        ]
        hosts.append(replace(host, status=status, gpus=gpus))
    return _with_hosts(fleet, hosts)
