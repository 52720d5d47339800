"""A hub's answers as structs, and the fleet that was asked for as columns. Hubs of other versions are understood as far
as they can be."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec
from msgspec import NODEFAULT, Struct, defstruct
from msgspec.structs import fields

from gpudeck import __version__
from gpudeck.model.address import mask_password
from gpudeck.model.allocation import Allocation
from gpudeck.model.errors import Unreachable
from gpudeck.model.reservation import GpuReservation, Maintenance
from gpudeck.model.view import Fleet, FleetColumns, Gpu, Host

T = TypeVar("T")


class Identity(Struct, frozen=True):
    """The caller as the hub identifies it."""

    kind: str
    name: str
    may_administer: bool
    role: str = ""
    can_log_in: bool = False


class PersonalToken(Struct, frozen=True):
    """A new token of `account`. Times are Unix seconds."""

    account: str
    secret: str
    expires_at: float


class DeviceAuthorization(Struct, frozen=True):
    """A login that waits for its confirmation on the page, for so many seconds. `device_code` is secret;
    `verification_uri` is the page's address, if the hub knows another one than that at which it was asked."""

    device_code: str
    user_code: str
    expires_in: float
    interval: float
    verification_uri: str | None = None


class _Versioned(Struct):
    version: str | None = None


def read_answer(body: bytes, kind: type[T], hub: str) -> T:
    """Fields unknown to this version are left out, missing ones get their default. `hub` is its address.
    Raises Unreachable where a value does not fit."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise explain_misfit(error, body, hub) from error


def explain_misfit(error: msgspec.DecodeError, body: bytes, hub: str) -> Unreachable:
    """Why an answer cannot be read, in one line, with both versions if the hub's is known."""
    try:
        version = msgspec.json.decode(body, type=_Versioned).version
    except msgspec.DecodeError:
        version = None
    versions = f"{'' if version is None else f'it is gpudeck {version}, and '}this is gpudeck {__version__}"
    return Unreachable(
        f"{mask_password(hub)} answers, but not as a hub of this version would: {error}; {versions}.",
        "Install the hub's version here, or this one on the hub.",
    )


# Made from values in their order, which takes a tenth of the time of names.
_make_gpu: Final[Any] = defstruct("Gpu", [(name, Any) for name in Gpu.__struct_fields__], gc=False)


def read_columns(body: bytes, hub: str) -> Fleet:
    """The fleet, its GPUs without processes and events. `hub` is its address. Raises Unreachable where the answer is
    not one of this version."""
    told = read_answer(body, FleetColumns, hub)
    hosts, gpus, reasons = told.hosts, told.gpus, told.reasons
    count, owners = len(hosts.get("id", ())), gpus.get("host", [])
    columns = [*hosts.values(), *gpus.values()]
    if {len(column) for column in hosts.values()} - {count} or {len(one) for one in gpus.values()} - {len(owners)}:
        raise Unreachable(f"{hub} answers with {len(columns)} columns of different lengths.", "Ask again.")
    for table in (hosts, gpus):
        table["reasons"] = [reasons[code] for code in table.get("reasons", ())]
    for name, kind in (("reservation", GpuReservation), ("maintenance", Maintenance), ("allocation", Allocation)):
        for at, one in enumerate(gpus.get(name, ())):
            if one is not None:
                gpus[name][at] = msgspec.convert(one, kind)
    rows = map(_make_gpu, *_arrange(gpus, len(owners)))
    counts = [0] * count
    for owner in owners:
        counts[owner] += 1
    names = [name for name in Host.__struct_fields__ if name in hosts]
    shown = [
        msgspec.convert(dict(zip(names, values, strict=True)) | {"gpus": []}, Host)
        for values in zip(*(hosts[name] for name in names), strict=True)
    ]
    for host, number in zip(shown, counts, strict=True):
        host.gpus = list(islice(rows, number))
    own = {name: getattr(told, name) for name in Fleet.__struct_fields__ if name != "hosts"}
    return Fleet(**own, hosts=shown)


def _arrange(gpus: dict[str, list[Any]], count: int) -> Iterator[list[Any]]:
    """In the order of a GPU's fields. Missing fields have their default, which nothing changes."""
    for one in fields(Gpu):
        if one.name in gpus:
            yield gpus[one.name]
        else:
            blank = one.default_factory() if one.default_factory is not NODEFAULT else one.default
            yield [None if blank is NODEFAULT else blank] * count
