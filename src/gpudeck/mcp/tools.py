"""The tools: what a model may ask a hub, and what it may change with a user's token.

Each answer has its time, the routes of the hub that it comes from, and its unknowns.
"""

import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Annotated, Any, Final, Literal, Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import asdict

from gpudeck.client.answers import read_columns
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.gpu_request import (
    GpuRequest,
    candidates,
    choose,
    explain_impossible,
    is_usable,
    matches,
    rank,
    read_memory,
)
from gpudeck.model.usage import UsageBy
from gpudeck.model.view import Fleet

_MAX_NAMED: Final = 40
"""Things in a list of what is unknown."""
Name = Annotated[str, Meta(min_length=1, max_length=256)]
Time = Annotated[
    str, Meta(min_length=1, max_length=64, description="A time: -24h, 2026-10-01T08:00Z, now, or Unix seconds")
]
_Amount = Annotated[str, Meta(min_length=1, max_length=16)]
_Uuids = Annotated[list[Name], Meta(min_length=1, max_length=64)]
_Indexes = Annotated[list[int], Meta(min_length=1, max_length=64)]
A = TypeVar("A", bound=Struct)


class HubRoutes(Protocol):
    """A hub, asked as one caller. `has_token`: it came with a token, not only from a trusted machine."""

    has_token: bool

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        """The body of the answer. Raises GpudeckError where the hub refuses."""
        ...


class ToolAnswer(Struct):
    """`found` is what the hub knows; `evidence` are the questions that it was asked. A list of `unknown` that is empty
    means that nothing is known to be missing."""

    found: Any
    unknown: list[str] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    time: str = ""


class Asker:
    """Asks for one call of a tool, and notes what it asked."""

    def __init__(self, routes: HubRoutes) -> None:
        self._routes = routes
        self.evidence: list[str] = []

    async def get(self, path: str, **query: Any) -> Any:
        return msgspec.json.decode(await self.get_bytes(path, **query))

    async def get_bytes(self, path: str, **query: Any) -> bytes:
        """Values that are None are left out, lists are given several times."""
        wanted = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in query.items()
            if value is not None
        }
        text = urlencode(wanted, doseq=True, errors="replace")
        return await self.send("GET", f"{path}?{text}" if text else path)

    async def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        self.evidence.append(f"{method} {path}")
        return await self._routes.ask(method, path, body)


class HubTool(Struct, frozen=True):
    """`run` answers a call with arguments of the kind `arguments`. `changes`: it needs a user's token."""

    name: str
    title: str
    description: str
    arguments: type[Struct]
    run: Callable[[Asker, Any], Awaitable[ToolAnswer]]
    changes: bool = False


TOOLS: Final[dict[str, HubTool]] = {}


async def call_tool(name: str, arguments: Mapping[str, Any], routes: HubRoutes) -> ToolAnswer:
    """Raises GpudeckError for a tool or an argument that does not exist, and what the hub refuses."""
    tool = TOOLS.get(name)
    if tool is None:
        raise UsageError(f"there is no tool {name[:64]!r}.", f"There are {', '.join(TOOLS)}.")
    if tool.changes and not routes.has_token:
        raise GpudeckError(
            f"{name} changes something, which needs your own token.",
            "Log in with `gpudeck login`, or set $GPUDECK_TOKEN; over HTTP send it as Authorization: Bearer.",
        )
    try:
        wanted = msgspec.convert(arguments, tool.arguments)
    except msgspec.ValidationError as error:
        raise UsageError(f"{name}: {error}.") from error
    asker = Asker(routes)
    answer = await tool.run(asker, wanted)
    answer.evidence = asker.evidence
    answer.time = datetime.fromtimestamp(time.time(), timezone.utc).isoformat(timespec="seconds")
    return answer


def schema_of(arguments: type[Struct]) -> dict[str, Any]:
    """As JSON Schema, an object at its root."""
    _, parts = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    found: dict[str, Any] = dict(parts.pop(arguments.__name__))
    return found | ({"$defs": parts} if parts else {})


def _tool(
    arguments: type[A], title: str, *, changes: bool = False
) -> Callable[[Callable[[Asker, A], Awaitable[ToolAnswer]]], Callable[[Asker, A], Awaitable[ToolAnswer]]]:
    def add(run: Callable[[Asker, A], Awaitable[ToolAnswer]]) -> Callable[[Asker, A], Awaitable[ToolAnswer]]:
        name = run.__name__
        TOOLS[name] = HubTool(name, title, re.sub(r"\s+", " ", run.__doc__ or ""), arguments, run, changes)
        return run

    return add


class _Wanted(Struct, frozen=True, forbid_unknown_fields=True):
    """Which GPUs are wanted."""

    gpus: Annotated[int, Meta(ge=1, le=1024, description="How many GPUs")] = 1
    memory: Annotated[_Amount | None, Meta(description="At least this much memory each: 40G")] = None
    model: Annotated[Name | None, Meta(description="A part of the model's name: H200")] = None
    host: Annotated[Name | None, Meta(description="Only on this host")] = None
    same_host: Annotated[bool, Meta(description="All on one host")] = False

    def request(self) -> GpuRequest:
        memory = read_memory(self.memory)
        return GpuRequest(
            gpus=self.gpus, memory_bytes=memory, model=self.model, same_host=self.same_host, host=self.host
        )


class FreeGpus(_Wanted, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=200, description="At most so many of all that fit")] = 40


@_tool(FreeGpus, "Free GPUs")
async def free_gpus(asker: Asker, wanted: FreeGpus) -> ToolAnswer:
    """Which GPUs can be used right now: free, healthy, not reserved by others and not claimed for the queue. `choice`
    is the best set of `gpus` of them, null if there are not enough."""
    fleet = read_columns(await asker.get_bytes("/api/v1/fleet", shape="columns"), "the hub")
    claimed = (await asker.get("/api/v1/queue"))["claimed"]
    request, known = wanted.request(), candidates(fleet.hosts)
    usable = [gpu for gpu in known if is_usable(gpu, ()) and gpu.uuid not in claimed]
    fitting, chosen = rank(gpu for gpu in usable if matches(gpu, request)), choose(request, usable)
    found = {
        "enough": chosen is not None,
        "choice": None if chosen is None else [_show_gpu(gpu) for gpu in chosen],
        "fitting_count": len(fitting),
        "fitting": [_show_gpu(gpu) for gpu in fitting[: wanted.limit]],
        "impossible": None if chosen else explain_impossible(request, known),
        "simulated": fleet.demo,
    }
    return ToolAnswer(found, _unknown_in(fleet))


def _show_gpu(gpu: Any) -> dict[str, Any]:
    names = ("host", "index", "uuid", "display_name", "vendor", "memory_total_bytes")
    return {name: getattr(gpu, name) for name in names}


def _unknown_in(fleet: Fleet) -> list[str]:
    """Hosts that do not report, GPUs whose state is not known, and problems of the hub."""
    found = list(fleet.problems)
    for host in fleet.hosts:
        if host.status != "up":
            found.append(f"host {host.name} is {host.status.replace('_', ' ')}: its GPUs may be in use or free")
            continue
        found += [
            f"GPU {gpu.label} of {host.name}: {gpu.availability_reason or 'its state is not known'}"
            for gpu in host.gpus
            if gpu.availability == "unknown"
        ]
    return _shorten(found)


def _shorten(found: Sequence[str]) -> list[str]:
    more = len(found) - _MAX_NAMED
    return [*found[:_MAX_NAMED], *([f"and {more} more"] if more > 0 else [])]


class WhoIsWhere(Struct, frozen=True, forbid_unknown_fields=True):
    user: Annotated[Name | None, Meta(description="Only this user's GPUs, by login")] = None
    host: Annotated[Name | None, Meta(description="Only this host")] = None
    limit: Annotated[int, Meta(ge=1, le=500, description="At most so many GPUs")] = 100


@_tool(WhoIsWhere, "Who is where")
async def who_is_where(asker: Asker, wanted: WhoIsWhere) -> ToolAnswer:
    """The current users of GPUs: each GPU in use or allocated with its processes, their user, container or job, and the
    evidence by which each was identified."""
    states = ["busy", "idle", "allocated", "reserved", "unknown"]
    answer = await asker.get(
        "/api/v1/gpus", availability=states, user=wanted.user, host=wanted.host, limit=wanted.limit
    )
    kept = (
        *("host", "label", "uuid", "display_name", "availability", "availability_reason", "since", "users"),
        *("utilization_percent", "memory_used_bytes", "memory_total_bytes", "processes", "reservation", "allocation"),
        "reasons",
    )
    gpus = [{name: gpu.get(name) for name in kept} for gpu in answer["gpus"]]
    unknown = [
        f"{_place(gpu)}: the users are not known ({(gpu['reasons'] or {}).get('processes', 'not reported')})"
        for gpu in gpus
        if gpu["processes"] is None
    ]
    unknown += [
        f"{_place(gpu)}: process {process['pid']} has no known user"
        for gpu in gpus
        for process in gpu["processes"] or ()
        if process.get("user") is None
    ]
    if answer["total"] > len(gpus):
        unknown.append(
            f"{answer['total'] - len(gpus)} more GPUs are not listed: narrow the question or raise the limit"
        )
    return ToolAnswer({"gpus": gpus, "total": answer["total"]}, _shorten(unknown))


def _place(gpu: Mapping[str, Any]) -> str:
    return f"GPU {gpu['label']} of {gpu['host']}"


class HistoryOf(Struct, frozen=True, forbid_unknown_fields=True):
    metric: Annotated[Name, Meta(description="Such as utilization_percent, power_watts, memory_used_bytes, gpus_free")]
    gpu: Annotated[Name | None, Meta(description="A GPU's UUID; give one of gpu, host, user, run or fleet")] = None
    host: Annotated[Name | None, Meta(description="A host's name")] = None
    user: Annotated[Name | None, Meta(description="A user's login: gpus_used, gpus_active, gpus_idle, power_watts")] = (
        None
    )
    run: Annotated[int | None, Meta(description="The id of a run")] = None
    fleet: Annotated[bool, Meta(description="All hosts together")] = False
    by: Annotated[Literal["gpu", "user"] | None, Meta(description="gpu splits a host or run; user one GPU")] = None
    start: Time = "-24h"
    end: Time = "now"
    points: Annotated[int, Meta(ge=1, le=500, description="About so many points")] = 60


@_tool(HistoryOf, "History of a metric")
async def history(asker: Asker, wanted: HistoryOf) -> ToolAnswer:
    """A metric over time. Each point is [time, mean, smallest, largest]; a time without a point was not observed."""
    found = await asker.get("/api/v1/history", **_given(wanted))
    span, step = found["end"] - found["start"], found["step"]
    empty = [one for one in found["series"] if len(one["points"]) * step < 0.95 * span - 2 * step]
    unknown = [
        f"{one.get('label') or one.get('host') or one.get('user') or 'the series'} was observed for "
        f"{len(one['points']) * step / span:.0%} of the time"
        for one in empty
    ]
    return ToolAnswer(found, _shorten(unknown if found["series"] else ["nothing was observed in this time"]))


def _given(wanted: Struct) -> dict[str, Any]:
    """Without what is left out."""
    return {name: value for name, value in asdict(wanted).items() if value is not None and value is not False}


class UsageOf(Struct, frozen=True, forbid_unknown_fields=True):
    by: Annotated[UsageBy, Meta(description="What a row stands for; account and the following are of jobs")] = "user"
    start: Time = "-30d"
    end: Time = "now"
    user: Name | None = None
    host: Name | None = None
    model: Name | None = None
    group: Name | None = None
    label: Annotated[Name | None, Meta(description="The label, with by=label")] = None


@_tool(UsageOf, "Usage")
async def usage(asker: Asker, wanted: UsageOf) -> ToolAnswer:
    """GPU-hours, active and idle hours, energy and cost of a period, by user, group, host or model; allocated hours
    where a scheduler allocates GPUs."""
    found = await asker.get("/api/v1/usage", **_given(wanted))
    unknown = []
    if found["coverage"] is None or found["coverage"] < 0.999:
        share = "none" if found["coverage"] is None else f"{found['coverage']:.1%}"
        unknown.append(f"{share} of the period was monitored; the other time is in no figure")
    if any(row.get("unknown") for row in found["rows"]):
        unknown.append("the row with `unknown` is of users who could not be identified")
    return ToolAnswer(found, unknown)


class RunsOf(Struct, frozen=True, forbid_unknown_fields=True):
    user: Name | None = None
    host: Name | None = None
    gpu: Annotated[Name | None, Meta(description="A GPU's UUID")] = None
    start: Time = "-7d"
    end: Time = "now"
    now: Annotated[bool, Meta(description="Only those that are running")] = False
    limit: Annotated[int, Meta(ge=1, le=100)] = 20


@_tool(RunsOf, "Runs and their verdicts")
async def runs(asker: Asker, wanted: RunsOf) -> ToolAnswer:
    """Programs that were on GPUs, newest first, each with a verdict: a rating, and suggestions with the evidence and
    the threshold of each."""
    found = await asker.get("/api/v1/runs", **_given(wanted), verdict=True)
    return ToolAnswer(found, _shorten([text for run in found["runs"] for text in _unknown_of_run(run)]))


class RunOf(Struct, frozen=True, forbid_unknown_fields=True):
    run: Annotated[int, Meta(ge=1, description="The id of a run, as `runs` lists it")]


@_tool(RunOf, "One run and its verdict")
async def run(asker: Asker, wanted: RunOf) -> ToolAnswer:
    """One program from its start to its end: GPUs, utilization, memory, energy, and the verdict with its evidence."""
    found = await asker.get(f"/api/v1/runs/{wanted.run}")
    return ToolAnswer(found, _unknown_of_run(found))


def _unknown_of_run(run: Mapping[str, Any]) -> list[str]:
    verdict = run.get("verdict") or {}
    found = [f"run {run['id']}: its user is not known"] if run["user"] is None else []
    if verdict.get("reason"):
        found.append(f"run {run['id']}: {verdict['reason']}")
    return found


class Events(Struct, frozen=True, forbid_unknown_fields=True):
    start: Time = "-24h"
    end: Time = "now"
    host: Name | None = None
    gpu: Annotated[Name | None, Meta(description="A GPU's UUID")] = None
    user: Name | None = None
    kind: Annotated[Name | None, Meta(description="Kinds with commas: host_down,xid,gpu_lost")] = None
    severity: Annotated[Name | None, Meta(description="info, warning, critical, with commas")] = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 50


@_tool(Events, "Events")
async def events(asker: Asker, wanted: Events) -> ToolAnswer:
    """Events, newest first: hosts down and up, lost GPUs, driver errors (XID), alerts, maintenance."""
    found = await asker.get("/api/v1/events", **_given(wanted))
    older = ["there are older events that are not listed: raise the limit or shorten the time"]
    return ToolAnswer(found, older if found["next"] else [])


class HealthOf(Struct, frozen=True, forbid_unknown_fields=True):
    host: Annotated[Name | None, Meta(description="Whether jobs may start there; without it the whole fleet")] = None


@_tool(HealthOf, "Health")
async def health(asker: Asker, wanted: HealthOf) -> ToolAnswer:
    """Whether a host is fit for jobs, with the reasons; or of the fleet its totals, unhealthy GPUs, hosts that do not
    report, and the alerts that fire."""
    if wanted.host is not None:
        found = await asker.get(f"/api/v1/hosts/{quote(wanted.host, safe='')}/health")
        return ToolAnswer(found, _unknown_health(found))
    fleet = read_columns(await asker.get_bytes("/api/v1/fleet", shape="columns"), "the hub")
    alerts = await asker.get("/api/v1/alerts")
    gpus = [
        {"host": host.name, "gpu": gpu.label, "uuid": gpu.uuid, "health": gpu.health, "reason": gpu.health_reason}
        for host in fleet.hosts
        for gpu in host.gpus
        if gpu.health != "ok"
    ]
    found = {
        "totals": fleet.totals,
        "hosts_not_up": [{"host": host.name, "status": host.status} for host in fleet.hosts if host.status != "up"],
        "unhealthy_gpus": gpus,
        "alerts": alerts["alerts"],
        "simulated": fleet.demo,
    }
    return ToolAnswer(found, _unknown_in(fleet))


def _unknown_health(found: Mapping[str, Any]) -> list[str]:
    parts = [(found["host"], found), *((f"GPU {gpu['label']}", gpu) for gpu in found["gpus"])]
    return [
        f"{name}: {'; '.join(part['reasons']) or 'not known'}" for name, part in parts if part["verdict"] == "unknown"
    ]


class JobOf(Struct, frozen=True, forbid_unknown_fields=True):
    job: Annotated[str, Meta(pattern=r"^(?!\.)[\w.+-]{1,256}(/(?!\.)[\w.-]{1,256})?$", description="4711, ml/train-0")]
    scheduler: Annotated[Name | None, Meta(description="If several have a job of that id")] = None


@_tool(JobOf, "Job report")
async def job_report(asker: Asker, wanted: JobOf) -> ToolAnswer:
    """The allocation and usage of a scheduler's job: utilization, memory, energy and cost of each GPU, idle
    stretches, and a verdict with suggestions."""
    found = await asker.get(f"/api/v1/jobs/{quote(wanted.job)}", scheduler=wanted.scheduler)
    reasons = [one["verdict"]["reason"] for one in found["jobs"] if (one.get("verdict") or {}).get("reason")]
    return ToolAnswer(found, reasons)


class Reserve(Struct, frozen=True, forbid_unknown_fields=True):
    length: Annotated[str, Meta(max_length=32, description="For how long: 4h, 2d")]
    gpus: Annotated[_Uuids | None, Meta(description="The UUIDs of GPUs; or give `host`")] = None
    host: Annotated[Name | None, Meta(description="A host: all of its GPUs, or those with `indexes`")] = None
    indexes: Annotated[_Indexes | None, Meta(description="GPU numbers on the host")] = None
    start: Annotated[Time | None, Meta(description="From when; without it from now")] = None
    note: Annotated[str, Meta(max_length=500)] = ""


@_tool(Reserve, "Reserve GPUs", changes=True)
async def reserve(asker: Asker, wanted: Reserve) -> ToolAnswer:
    """Reserve GPUs for the user of the token. Refused where others have reserved them; nobody's programs are
    stopped."""
    body = _given(wanted)
    body["for"] = body.pop("length")
    return ToolAnswer(msgspec.json.decode(await asker.send("POST", "/api/v1/reservations", body)))


class Release(Struct, frozen=True, forbid_unknown_fields=True):
    reservation: Annotated[int, Meta(ge=1, description="The number of a reservation of the user")]


@_tool(Release, "Release a reservation", changes=True)
async def release(asker: Asker, wanted: Release) -> ToolAnswer:
    """End a reservation of the user of the token now."""
    return ToolAnswer(msgspec.json.decode(await asker.send("DELETE", f"/api/v1/reservations/{wanted.reservation}")))


@_tool(_Wanted, "Watch for free GPUs", changes=True)
async def watch(asker: Asker, wanted: _Wanted) -> ToolAnswer:
    """Notify the user of the token once when such GPUs are free. This reserves nothing."""
    body = _given(wanted.request())
    made = msgspec.json.decode(await asker.send("POST", "/api/v1/watches", body))
    unknown = [] if made.get("is_sent") else ["the hub has no way to write to this user: it only lists an event"]
    return ToolAnswer(made, unknown)
