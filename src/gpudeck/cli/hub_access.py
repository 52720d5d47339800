"""What commands share to reach a hub or its database: the fleet, reservations, the token of this machine's hub."""

import contextlib
import getpass
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gpudeck.cli.words import Reading
from gpudeck.client import Client, Forbidden
from gpudeck.client.answers import read_answer
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.printable import clean
from gpudeck.model.reservation import BookedGpu
from gpudeck.model.view import Fleet

if TYPE_CHECKING:
    from gpudeck.client import Client, Taken
    from gpudeck.database.engine import Database

T = TypeVar("T")
_T = TypeVar("_T")


def ask_fleet(hub: str) -> Reading:
    """The fleet, and its document as the hub sent it. Raises Unreachable where no hub answers."""
    try:
        body = Client(hub, token=os.environ.get("GPUDECK_TOKEN")).fleet()
    except Forbidden:
        # What finds the token of this machine's hub reads the configuration first, which most hubs do not need.
        from gpudeck.settings import find_own_token  # noqa: PLC0415

        body = Client(hub, token=find_own_token(hub)).fleet()
    return Reading(read_answer(body, Fleet, hub), body)


def ask(hub: str, question: "Callable[[Client], T]") -> T:
    """What the hub answers, asked with $GPUDECK_TOKEN, or with the token of this machine's hub where it wants one."""
    from gpudeck.client import Client, Forbidden  # noqa: PLC0415 - the help needs none

    client = Client(hub, token=os.environ.get("GPUDECK_TOKEN"))
    try:
        return question(client)
    except Forbidden:
        # What finds the token of this machine's hub reads the configuration first, which most hubs do not need.
        from gpudeck.settings import find_own_token  # noqa: PLC0415

        token = find_own_token(hub)
        if token is None or os.environ.get("GPUDECK_TOKEN"):
            raise
        return question(client.with_token(token))


def find_owner(client: "Client", named: str | None) -> str | None:
    """Whose a booking is to be where the hub would not know it: whoever sits at its machine, or has its token, is an
    admin without a name, and books as the login that they have here. None: as the hub knows them."""
    if named is not None:
        return named
    me = client.me()
    is_nameless = me.kind == "local" or me.name.startswith("token ")
    return _login() if is_nameless and me.may_administer else None


def find_name(client: "Client") -> str:
    """Whose bookings are mine. Raises Forbidden where the hub does not know who asks: it shows others' to anybody."""
    from gpudeck.client import Forbidden  # noqa: PLC0415 - by now it is loaded

    me = client.me()
    if me.kind == "nobody":
        raise Forbidden("the hub does not know who asks.", "Set $GPUDECK_TOKEN.")
    return find_owner(client, None) or me.name


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def machine_zone() -> tzinfo:
    """The zone of this machine, or of $TZ."""
    from gpudeck.cli.span import local_zone  # noqa: PLC0415 - the help needs none
    from gpudeck.history.time_range import load_zone  # noqa: PLC0415 - the same

    return load_zone(local_zone())


def name_gpus(gpus: Sequence[BookedGpu]) -> str:
    """gpu07:0,1 gpu08:3, as it is typed."""
    hosts: dict[str, list[str]] = {}
    for gpu in gpus:
        hosts.setdefault(gpu.host, []).append(gpu.label)
    return " ".join(f"{clean(host)}:{','.join(labels)}" for host, labels in hosts.items())


def explain_refusal(error: "Taken", now: float, zone: tzinfo) -> GpudeckError:
    """A conflict with the time at which it would be possible, on the clock of this machine."""
    from gpudeck.model.moments import show_moment  # noqa: PLC0415 - few are refused

    slot, conflicts = error.next_free, error.conflicts
    until = f" It ends {show_moment(conflicts[0].end, zone, now)}." if conflicts else ""
    if slot is None:
        return GpudeckError(f"{clean(error.message)}{until}", error.hint)
    free = f"{show_moment(slot.start, zone, now)} to {show_moment(slot.end, zone, now)}"
    return GpudeckError(f"{clean(error.message)}{until}", f"Next free: {free}, {name_gpus(slot.gpus)}.")


@contextlib.contextmanager
def need_hub(what: str) -> Iterator[None]:
    """For imports of the hub's parts. Raises UsageError where they are not installed: `what` are made where it runs."""
    try:
        yield
    except ImportError as error:
        raise UsageError(
            f"the hub's parts are not installed ({error.name}), and {what} are made where the hub runs.",
            "Install gpudeck with its hub extra: pip install '<where gpudeck came from>[hub]'.",
        ) from error


def use_database(config: Path | None, what: str, work: "Callable[[Database], Awaitable[_T]]") -> _T:
    """Do something with it. Raises UsageError where the hub is not installed: `what` are made where it runs."""
    with need_hub(what):
        from gpudeck.ops import own_database  # noqa: PLC0415 - the hub may not be installed
    return own_database.use_database(config, work)
