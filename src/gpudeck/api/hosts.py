"""/api/v1/hosts (GET, POST, DELETE), /api/v1/hosts/{host} (GET, DELETE), /api/v1/host-origins (GET) and
/api/v1/hosts/{host}/health (GET): whether jobs may start on a host's GPUs. That one reads no database: prologs wait."""

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Collection, Iterable
from itertools import chain
from typing import Annotated, Literal

from litestar import Response, delete, get, post
from litestar.di import NamedDependency
from litestar.exceptions import (
    HTTPException,
    InternalServerException,
    NotFoundException,
    ValidationException,
)
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta, Struct, field

from gpudeck.alerts.service import AlertManager
from gpudeck.api.access import TheCaller, TheVisibility, access
from gpudeck.api.alerts import TheAlerts
from gpudeck.api.answers import HubRequest, RequestRefused, TheHub, answer_in_parts, answer_json
from gpudeck.api.install import Installer
from gpudeck.api.login import TheAuth
from gpudeck.api.parameters import HostPath, Limit, Offset, page_of
from gpudeck.auth.caller import NAME_LENGTH, is_for
from gpudeck.auth.tokens import Tokens
from gpudeck.discovery.managed import ORIGIN, ManagedHosts
from gpudeck.discovery.static import HostEntry
from gpudeck.fleet.host import HostState
from gpudeck.fleet.host_memory import HostMemory
from gpudeck.fleet.hub import Hub
from gpudeck.model import clock
from gpudeck.model.cpu_budget import LoopBudget
from gpudeck.model.errors import GpudeckError, Temporary, UsageError
from gpudeck.model.gpu_state import HostHealth, judge_host
from gpudeck.model.report import Word
from gpudeck.model.target import AddedHosts, RemovedHosts, Target, Via
from gpudeck.model.view import Host, HostList, HostStatus

_LongText = Annotated[str, Meta(min_length=1, max_length=1024)]
log = logging.getLogger(__name__)

_GONE_SECONDS = 5.0
"""Discovery looks at these hosts twice before it believes that none is left."""
_ADDRESS = re.compile(r"\w(?:[\w.-]*\w)?\.?|[0-9a-fA-F]*:[0-9a-fA-F]*:[0-9a-fA-F:.]*(?:%[\w.-]+)?")
"""A name, or an address of IPv4 or IPv6. Names of other scripts are left to the name service."""
_USER = re.compile(r"[\w.@\\][\w.@$\\-]*")
_MAX_NAMED = 20
NOT_KEPT = {"Cache-Control": "no-store"}


class NewHost(Struct, frozen=True, forbid_unknown_fields=True):
    """A host to be watched, or a range such as gpu[01-16]. Only what its source needs has to be given.

    No file of the hub's machine can be named here: keys, passwords and tokens are the configuration file's.
    """

    name: Annotated[str, Meta(min_length=1, max_length=253)]
    via: Via = "push"
    address: Annotated[str, Meta(min_length=1, max_length=253)] | None = None
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    user: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    jump: _LongText | None = None
    scheme: Literal["http", "https"] = "http"
    path: Annotated[str, Meta(max_length=1024, pattern="^/")] | None = None
    labels: Annotated[dict[Word, Annotated[str, Meta(max_length=256)]], Meta(max_length=64)] = field(
        default_factory=dict
    )


class HostOrigin(Struct, frozen=True):
    """Who named a host: a file, a provider of discovery, an option, or an account that added it (`is_added`). `origin`
    is None for a host that nothing names: it reports by itself. One that is named elsewhere cannot be removed here."""

    id: str
    name: str
    origin: str | None
    is_added: bool


class HostOrigins(Struct, frozen=True):
    hosts: list[HostOrigin]


class HostAdmin:
    """Adds and removes hosts while the hub runs. A removed host leaves the list of added hosts, the live fleet, the
    hub's memory, and its alerts; one that still reports comes back, unless its token was revoked.

    `configured` finds the target of a name among all that discovery knows, and raises UsageError on a hub that watches
    nothing. `installer` has the line that a new host runs; `note` is what to know about the address in it.
    `notify_removed` is called with the ids of removed hosts, where several hubs have them.
    """

    def __init__(
        self,
        hub: Hub,
        managed: ManagedHosts,
        tokens: Tokens,
        configured: Callable[[str], Target | None],
        installer: Installer,
        *,
        alerts: AlertManager,
        memory: HostMemory | None = None,
        note: str | None = None,
        notify_removed: Callable[[list[str]], None] = lambda _: None,
    ) -> None:
        self.installer = installer
        self._hub = hub
        self._managed = managed
        self._tokens = tokens
        self._configured = configured
        self._alerts = alerts
        self._memory = memory
        self._note = note
        self._notify_removed = notify_removed

    async def add(self, new: NewHost, created_by: str) -> AddedHosts:
        try:
            entry = HostEntry(**{name: getattr(new, name) for name in NewHost.__struct_fields__})
            targets = entry.targets(ORIGIN)
            _check_place(new)
        except ValueError as error:
            raise ValidationException(str(error)) from error
        for target in targets:
            self._check_free(target.name)
        names = [target.name for target in targets]
        if new.via == "push":
            # The first time the agent is packed, which takes seconds: before the host is there and ends a demo, and
            # with that this hub.
            with contextlib.suppress(GpudeckError):
                await self.installer.script()
        try:
            self._managed.add(entry)
            try:
                tokens = {name: await self._make_token(name, created_by) for name in names if new.via == "push"}
            except BaseException:
                self._managed.remove(names)
                raise
        except OSError as error:
            raise _cannot_write(error) from error
        if not tokens:
            return AddedHosts(names, new.via)
        token = tokens[names[0]] if len(names) == 1 else None
        note = self._note
        try:
            command = await self.installer.command(tokens)
        except GpudeckError as error:
            note, command = str(error), None
        return AddedHosts(names, new.via, token, command, note)

    async def remove(self, name: str) -> str | None:
        """Remove the host of that name or id; returns its name, or None where nothing was known of it. Its tokens are
        revoked all the same: it may have had some before it was ever seen."""
        found = self._hub.fleet.find(name)
        listed = name if found is None else found.target or found.name
        target = self._find(listed)
        if target is not None and target.origin != ORIGIN:
            raise RequestRefused(409, "conflict", f"{listed} is named by {target.origin}: take it out there")
        was_listed = await self._take_off_list({listed})
        # An alert may be all that is left of a host.
        ids = self._alerts.engine.hosts_called(name) - self._hub.fleet.hosts.keys()
        ids |= set() if found is None else {found.id}
        await self._forget(ids)
        return (name if found is None else found.name) if ids or was_listed else None

    async def find(self, name: str | None, token: str | None, *, down: bool) -> tuple[list[HostState], int]:
        """The hosts that fit all that is given, by name, and how many more do that only a configuration file, or
        discovery, can remove. `name` is a pattern, `token` a token's name or id. Raises Temporary."""
        tokens = [] if token is None else await self._tokens.list()
        ids = {one.id for one in tokens if token in {one.name, str(one.id)}}
        fitting = [
            host
            for host in self._hub.fleet.ordered()
            if is_for(name, host.name) and (token is None or host.token in ids) and (not down or host.status == "down")
        ]
        ours = [host for host in fitting if self.origin_of(host.target or host.name) in {None, ORIGIN}]
        return ours, len(fitting) - len(ours)

    async def remove_all(self, hosts: Collection[HostState]) -> None:
        """Raises HTTPException, and then none is removed."""
        await self._take_off_list({host.target or host.name for host in hosts})
        await self._forget({host.id for host in hosts})

    async def _take_off_list(self, names: Collection[str]) -> bool:
        """Returns whether any of them was in the list of added hosts."""
        await self._tokens.revoke_of_hosts(names)
        try:
            was_there = self._managed.remove(names)
        except OSError as error:
            raise _cannot_write(error) from error
        if was_there:
            # So that adding the host again at once is not refused.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GONE_SECONDS):
                    # Discovery takes lists in a task of its own and does not signal when it has.
                    while any(self.origin_of(name) == ORIGIN for name in names):  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
        return was_there

    async def _forget(self, host_ids: Collection[str]) -> None:
        """Remove hosts, or what is left of them, that are in no list any more."""
        if not host_ids:
            return
        budget = LoopBudget()
        self._notify_removed(list(host_ids))
        for host_id in host_ids:
            if host_id in self._hub.fleet.hosts:
                self._hub.fleet.remove(host_id)
            await budget.checkpoint()
        # Where the database does not answer, alerts and memory themselves try again.
        with contextlib.suppress(Temporary):
            if self._alerts.remove_hosts(host_ids):
                await self._alerts.flush()
        with contextlib.suppress(Temporary):
            if self._memory is not None:
                await self._memory.flush()

    async def _make_token(self, host: str, created_by: str) -> str:
        """In place of the one it had."""
        # A host's name may be longer than a token's.
        name = host[:NAME_LENGTH]
        _, secret = await self._tokens.create(name, "agent", hosts=host, created_by=created_by, is_only=True)
        return secret

    def origin_of(self, name: str) -> str | None:
        """The list that names the host; None for a host that reports by itself."""
        with contextlib.suppress(UsageError):
            target = self._configured(name)
            return target.origin if target is not None else None
        return None

    def _check_free(self, name: str) -> None:
        target = self._find(name) or next((one for one in self._managed.targets() if one.name == name), None)
        if target is not None:
            if target.origin == ORIGIN:
                raise RequestRefused(
                    409, "conflict", f"{name} is there already. To add it again, first run: gpudeck hosts remove {name}"
                )
            raise RequestRefused(409, "conflict", f"{name} is there already, by {target.origin}: change it there")

    def _find(self, name: str) -> Target | None:
        try:
            return self._configured(name)
        except UsageError as error:
            raise RequestRefused(409, "conflict", str(error)) from error


def _check_place(new: NewHost) -> None:
    """What is asked of the hub over the network names a place and no more: no login, no path, nothing that a terminal
    obeys. Raises ValueError."""
    if new.address is not None and not _ADDRESS.fullmatch(new.address):
        raise ValueError(f"address: {new.address[:100]!r} is neither a name nor an address of a host")
    if new.user is not None and not _USER.fullmatch(new.user):
        raise ValueError(f"user: {new.user[:100]!r} is no login")
    for name in ("jump", "path"):
        if not _is_one_word(getattr(new, name) or ""):
            raise ValueError(f"{name} has blanks, or characters that cannot be shown")
    if not all(text.isprintable() for label in new.labels.items() for text in label):
        raise ValueError("labels have characters that cannot be shown")


def _is_one_word(text: str) -> bool:
    return text.isprintable() and not any(character.isspace() for character in text)


def _cannot_write(error: OSError) -> HTTPException:
    return InternalServerException(f"the hub's data folder cannot be written: {error.strerror or error}")


TheHostAdmin = NamedDependency[HostAdmin]


class RemovedHost(Struct, frozen=True):
    """A removed host."""

    name: str


@get("/api/v1/hosts", opt=access("read"))
async def list_hosts(
    *,
    hub: TheHub,
    visibility: TheVisibility,
    request: HubRequest,
    status: Annotated[
        list[HostStatus] | None, QueryParameter(description="Only these; may be given several times")
    ] = None,
    limit: Limit = None,
    offset: Offset = 0,
) -> Response[HostList]:
    """Hosts with their GPUs and processes, ordered by name."""

    async def make() -> Iterable[bytes]:
        found = [host for host in hub.fleet.ordered() if not status or host.status in status]
        hosts = hub.fleet.encode_hosts_in_parts(found[page_of(limit, offset)], visibility)
        return chain((b'{"total":%d,"hosts":[' % len(found),), hosts, (b"]}",))

    return await answer_in_parts(request, make, {})


@get("/api/v1/hosts/{host:str}", opt=access("read"))
async def read_host(
    hub: TheHub,
    visibility: TheVisibility,
    request: HubRequest,
    host: HostPath,
) -> Response[Host]:
    """One host with its GPUs and processes."""
    found = hub.fleet.find(host)
    if found is None:
        raise RequestRefused(404, "unknown_host", explain_missing(host))
    return await answer_json(request, found.encoded(visibility))


@get("/api/v1/host-origins", opt=access("admin"))
async def list_origins(hub: TheHub, host_admin: TheHostAdmin) -> HostOrigins:
    """Who named each host, and which were added by hand: those, and those that nobody named, can be removed."""
    origins = [(host, host_admin.origin_of(host.target or host.name)) for host in hub.fleet.ordered()]
    return HostOrigins([HostOrigin(host.id, host.name, origin, origin == ORIGIN) for host, origin in origins])


@post("/api/v1/hosts", opt=access("admin"))
async def add_host(
    caller: TheCaller, data: JSONBody[NewHost], host_admin: TheHostAdmin, auth: TheAuth
) -> Response[AddedHosts]:
    """Watch another host, or a range of them. For a host that will report by itself the answer has its token, which
    is shown only once, and the command to run there."""
    added = await host_admin.add(data, caller.name)
    await auth.audit.record(caller, "add host", data.name, details=f"via {data.via}")
    return Response(added, status_code=201, headers=NOT_KEPT)


@delete("/api/v1/hosts/{host:str}", opt=access("admin"), status_code=200)
async def remove_host(
    caller: TheCaller, host_admin: TheHostAdmin, auth: TheAuth, host: HostPath
) -> Response[RemovedHost]:
    """Stop watching a host that was added here, and forget it. One that still reports by itself with the token of all
    agents comes back with its next report."""
    removed = await host_admin.remove(host)
    if removed is None:
        await auth.audit.record(caller, "remove host", host, outcome="refused", details="no such host")
        raise NotFoundException(explain_missing(host))
    await auth.audit.record(caller, "remove host", host)
    return Response(RemovedHost(removed), headers=NOT_KEPT)


@delete("/api/v1/hosts", opt=access("admin"), status_code=200)
async def remove_hosts(
    caller: TheCaller,
    *,
    auth: TheAuth,
    host_admin: TheHostAdmin,
    name: Annotated[str | None, QueryParameter(max_length=253, description="A name, or a pattern such as gpu*")] = None,
    token: Annotated[
        str | None, QueryParameter(max_length=128, description="The agent token that reported them: its name or id")
    ] = None,
    down: Annotated[bool, QueryParameter(description="Only those that are down")] = False,
    dry_run: Annotated[bool, QueryParameter(description="Only say which they are")] = False,
) -> RemovedHosts:
    """Remove all hosts that fit everything given. One that still reports comes back, unless its token was revoked."""
    if not (name or token or down):
        raise ValidationException("say which hosts: give name, token or down")
    found, kept = await host_admin.find(name or None, token or None, down=down)
    if found and not dry_run:
        await host_admin.remove_all(found)
        selection = ", ".join(filter(None, (name, token and f"token {token}", "down" if down else "")))
        details = f"{len(found)} host{'s' * (len(found) != 1)}"
        await auth.audit.record(caller, "remove hosts", selection, details=details)
    return RemovedHosts(len(found), [host.name for host in found[:_MAX_NAMED]], kept)


def explain_missing(host: str) -> str:
    return f"no host is called {host[:100]!r}; /api/v1/hosts lists them"


MAX_GPUS = 256


@get("/api/v1/hosts/{host:str}/health", opt=access("read"))
async def read_host_health(
    request: HubRequest,
    hub: TheHub,
    alerts: TheAlerts,
    host: HostPath,
    gpu: Annotated[
        list[str] | None,
        QueryParameter(
            max_items=MAX_GPUS, description="Only these GPUs, by number or UUID; may be given several times"
        ),
    ] = None,
) -> Response[HostHealth]:
    """Whether jobs may start on a host's GPUs: `ok`, `drain` or `unknown`, with the reasons. For prologs."""
    fleet = hub.fleet
    found = fleet.find(host)
    if found is None:
        raise RequestRefused(404, "unknown_host", explain_missing(host))
    view = found.own_view()
    view.gpus = found.show(list(found.gpus.values()))
    # A hub of several that does not evaluate alerts knows what all viewers see: the critical ones first.
    firing = {alert.id: alert for alert in fleet.alerts if alert.host_id == found.id}
    firing |= {record.id: record.show() for record in alerts.engine.firing_of(found.id)}
    wanted = [name[:128] for name in gpu or ()]
    verdict = judge_host(view, firing.values(), wanted, clock.wall())
    return await answer_json(request, verdict)
