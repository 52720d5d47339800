"""How commands reach a hub or its database: the fleet, reservations, the token of this machine's hub."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import tzinfo
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from gpudeck.cli.search import FleetDocument
from gpudeck.client import Client, NotLoggedIn, ReservationTaken
from gpudeck.client.answers import Identity, read_answer
from gpudeck.client.client import this_user
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.plugins import need_hub_python, pip_command
from gpudeck.model.reservation import ReservedGpu
from gpudeck.model.text import clean
from gpudeck.model.times import show_moment
from gpudeck.model.view import Fleet, PastFleet
from gpudeck.views.text import join_places

MAX_HOSTS = 1500
T = TypeVar("T")


def connect(hub: str, timeout: float = 10.0) -> Client:
    """A client with $GPUDECK_TOKEN, the saved login's token, or that of this machine's hub if it requires one."""

    def find_token() -> str | None:
        # It reads the configuration, which most hubs do not need.
        from gpudeck.settings import find_own_token  # noqa: PLC0415

        return find_own_token(hub)

    return Client(hub, timeout, retries=0, find_token=find_token)


def ask(hub: str, question: Callable[[Client], T], timeout: float = 10.0) -> T:
    """The hub's answer, see `connect`. Raises Unreachable if no hub answers, and Forbidden if it refuses."""
    with connect(hub, timeout) as client:
        return question(client)


def fetch(
    hub: str,
    kind: type[T],
    path: str,
    query: Mapping[str, str | None] = MappingProxyType({}),
    *,
    timeout: float = 10.0,
    mine: bool = False,
) -> tuple[T, bytes]:
    """The hub's data at that path, decoded and as sent; with `mine` only the caller's. See `ask`, and `Client.get`."""
    given = {name: value for name, value in query.items() if value is not None}
    if mine and "user" in given:
        raise UsageError("--mine and --user exclude each other.")

    def search(client: Client) -> bytes:
        return client.get(path, given | ({"user": find_name(client)} if mine else {}))

    body = ask(hub, search, timeout)
    return read_answer(body, kind, hub), body


def ask_fleet(hub: str, at: float | None = None) -> FleetDocument:
    """The fleet, now or as recorded at that time, and its document as the hub sent it. Raises Unreachable if no hub
    answers."""
    if at is None:
        return FleetDocument(*fetch(hub, Fleet, "/api/v1/fleet"))
    return FleetDocument(*fetch(hub, PastFleet, "/api/v1/fleet", {"at": f"{at:.3f}"}))


def ask_table(hub: str, words: tuple[str, ...] = ()) -> FleetDocument:
    """The fleet without processes and driver faults, a fraction of the time for a large one. With them if `words`
    search in them; words that may be anywhere do so in fleets of up to `MAX_HOSTS`, as on the page."""
    from gpudeck.client.answers import read_columns  # noqa: PLC0415 - not every command shows the fleet
    from gpudeck.views.filter import join, parse_query  # noqa: PLC0415 - the same

    places = {word.place for word in parse_query(join(words)).words}
    if places & {"command", "xid"}:
        return ask_fleet(hub)
    table = FleetDocument(read_columns(ask(hub, lambda client: client.get("/api/v1/fleet", {"shape": "columns"})), hub))
    return ask_fleet(hub) if "any" in places and len(table.fleet.hosts) <= MAX_HOSTS else table


def open_client(hub: str, config: Path | None = None, timeout: float = 10.0) -> Client:
    """For admins' actions: with $GPUDECK_TOKEN, the admin token of this machine's hub, or the saved login's."""
    from gpudeck.settings import find_own_token  # noqa: PLC0415 - see above

    return Client(hub, timeout, token=find_own_token(hub, config), retries=0)


def find_owner(client: Client, named: str | None) -> str | None:
    """The owner of a reservation if the hub does not know the caller by name: on its machine, or with its token, the
    caller is an admin without a name, and reserves as their login here. None: as known to the hub."""
    if named is not None:
        return named
    me = _find_me(client)
    is_nameless = me.kind == "local" or me.name.startswith("token ")
    return this_user() if is_nameless and me.may_administer else None


def _find_me(client: Client) -> Identity:
    """If everyone may read, the hub requires no token."""
    me = client.me()
    return client.me() if me.kind == "nobody" and client.learn_token() else me


def find_name(client: Client) -> str:
    """The name of my reservations. Raises Forbidden if the hub does not know the caller."""
    me = _find_me(client)
    if me.kind == "nobody":
        raise NotLoggedIn("the hub does not know who asks.", "Log in with `gpudeck login`, or set $GPUDECK_TOKEN.")
    return find_owner(client, None) or me.name


def machine_zone() -> tzinfo:
    """The zone of this machine, or of $TZ."""
    from gpudeck.cli.period import local_zone  # noqa: PLC0415 - the help needs none
    from gpudeck.history.time_range import load_zone  # noqa: PLC0415 - the same

    return load_zone(local_zone())


def name_gpus(gpus: Sequence[ReservedGpu]) -> str:
    """gpu07:0,1 gpu08:3, as users type it."""
    return " ".join(join_places((clean(gpu.host), gpu.label) for gpu in gpus))


def explain_refusal(error: ReservationTaken, now: float, zone: tzinfo) -> GpudeckError:
    """A conflict with the time from which it would be possible, on the clock of this machine."""
    slot, conflicts = error.next_free, error.conflicts
    until = f" It ends {show_moment(conflicts[0].end, zone, now)}." if conflicts else ""
    if slot is None:
        return GpudeckError(f"{clean(error.message)}{until}", error.hint)
    free = f"{show_moment(slot.start, zone, now)} to {show_moment(slot.end, zone, now)}"
    return GpudeckError(f"{clean(error.message)}{until}", f"Next free: {free}, {name_gpus(slot.gpus)}.")


@contextlib.contextmanager
def need_hub(reason: str = "") -> Iterator[None]:
    """For imports of the hub's parts. Raises UsageError if they are not installed; `reason` says why they are
    needed."""
    need_hub_python("the hub")
    try:
        yield
    except ImportError as error:
        raise UsageError(
            f"the hub is not installed here ({error.name} is missing){reason and f', and {reason}'}.",
            f"Install gpudeck with its hub extra: {pip_command('hub')}",
        ) from error
