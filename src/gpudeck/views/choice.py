"""Part of a fleet: some of its hosts, or the GPUs that fit a search, with totals of their own."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from gpudeck.model.availability import AVAILABILITIES
from gpudeck.model.view import Fleet, Gpu, Host, Totals
from gpudeck.views.filter import Query, fits_bare_host, fits_gpu, read_tokens, split

Fits = Callable[[Host, Gpu], bool]


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
