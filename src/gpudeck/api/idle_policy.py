"""/api/v1/idle-policy (GET), its dry run, and /api/v1/keeps (GET, POST, DELETE): owners keep idle GPUs, for a time and
with a reason."""

from typing import Annotated

import msgspec
from litestar import Response, delete, get, post
from litestar.exceptions import ValidationException
from litestar.params import JSONBody, PathParameter
from msgspec import Meta, Struct, field

from gpudeck.api.access import TheCaller, access
from gpudeck.api.answers import HubRequest, RequestRefused, answer_json
from gpudeck.api.history import TheHistory
from gpudeck.api.login import TheAuth, TheJobs
from gpudeck.api.parameters import Length, Time, read_length, read_past
from gpudeck.api.services import ApiServices, TheServices, find_gpu
from gpudeck.history.base import IdleQuery, Store, UsageQuery
from gpudeck.history.time_range import check_range
from gpudeck.history.usage import price_of
from gpudeck.idle_policy.ladder import find_longest
from gpudeck.idle_policy.report import JobSpan, PastFacts, simulate, sum_up
from gpudeck.idle_policy.service import IdlePolicyService, find_owners
from gpudeck.idle_policy.store import check_length
from gpudeck.model import clock
from gpudeck.model.idle_policy import MAX_REASON, IdlePolicyState, Keep, KeepList, PolicyReport
from gpudeck.model.reservation import Reservation
from gpudeck.model.text import clean, show_length
from gpudeck.reservations.store import ReservationQuery
from gpudeck.schedulers.job_report import JobReporter
from gpudeck.schedulers.job_store import JobQuery

_MAX_JOBS = 100_000
_LONGEST_BACK = 31 * 86_400.0
_Number = Annotated[int, PathParameter(ge=1, le=2**63 - 1, description="Its id")]


class NewKeep(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`host` is a name or an id, `gpu` a number there or a UUID. It is kept from now on, for a length."""

    host: Annotated[str, Meta(min_length=1, max_length=384, pattern=r"\S")]
    gpu: Annotated[str, Meta(min_length=1, max_length=256, pattern=r"\S")]
    length: Length = field(name="for")
    reason: Annotated[str, Meta(min_length=1, max_length=MAX_REASON, pattern=r"\S")]


def _policy(services: ApiServices) -> IdlePolicyService:
    if services.idle_policy is None:
        raise RequestRefused(404, "no_policy", "this hub has no idle policy.", "See docs/idle-policy.md.")
    return services.idle_policy


@get("/api/v1/idle-policy", opt=access("read"))
async def read_idle_policy(services: TheServices) -> IdlePolicyState:
    """The idle policy now: idle GPUs that it has rules for, what was done, what comes next, and what owners keep."""
    return _policy(services).show()


@get("/api/v1/idle-policy/dry-run", opt=access("read"))
async def dry_run_idle_policy(
    *,
    request: HubRequest,
    history: TheHistory,
    jobs: TheJobs,
    services: TheServices,
    start: Time = "-30d",
    end: Time = "now",
) -> Response[PolicyReport]:
    """What the rules as they are now would have done in the past, to whom, and what it would have saved. Nothing is
    sent. Without a range, the last 30 days. Ladders may have begun before it; only steps and hours in it count."""
    policy = _policy(services)
    history.check_kept()
    now = history.now()
    begin, until = read_past(start, end, now)
    check_range(begin, until)
    # The ladders of GPUs that idled already.
    back = max(0.0, begin - min(find_longest(policy.settings), _LONGEST_BACK))
    facts = await _read_facts(policy, services, jobs, back, until)

    def report(store: Store) -> bytes:
        episodes = store.idle(IdleQuery(back, until, policy.settings.with_allocated))
        steps, *idle = simulate(policy.settings, episodes, facts, begin)
        usage = store.usage(UsageQuery("model", begin, until))
        period = begin, until
        return msgspec.json.encode(sum_up(steps, (idle[0], idle[1]), period, usage.currency, usage.coverage))

    return await answer_json(request, await history.ask(report))


async def _read_facts(
    policy: IdlePolicyService, services: ApiServices, jobs: JobReporter, start: float, end: float
) -> PastFacts:
    keeps: dict[str, list[Keep]] = {}
    for keep in await policy.keeps.list_since(start):
        keeps.setdefault(keep.gpu, []).append(keep)
    reservations: dict[str, list[Reservation]] = {}
    for one in await services.reservations.search(ReservationQuery(start=start, end=end)):
        for gpu in one.gpus:
            reservations.setdefault(gpu.uuid, []).append(one)
    of_jobs: dict[str, list[JobSpan]] = {}
    if jobs.service.has_jobs:
        records = await jobs.service.store.find(JobQuery(since=start, before=end, limit=_MAX_JOBS))
        by_id = {one.id: one for one in records}
        for on in await jobs.service.store.gpus_of(list(by_id)):
            job = by_id[on.job_id]
            names = tuple(name for name in (job.job, job.number, job.name) if name)
            of_jobs.setdefault(on.uuid, []).append(JobSpan(job.id, job.start, job.ended_at or end, job.user, names))
    prices = jobs.settings.prices
    return PastFacts(
        {host.id: host.facts.labels | {"host": host.name} for host in services.hub.fleet.hosts.values()},
        of_jobs,
        keeps,
        reservations,
        policy.group_of,
        lambda model: price_of(model, prices),
    )


@get("/api/v1/keeps", opt=access("read"))
async def list_keeps(services: TheServices) -> KeepList:
    """The GPUs that their owners keep now although they are idle, until when, by whom and why."""
    policy, now = _policy(services), clock.wall()
    await policy.keeps.load(now)
    return KeepList(policy.keeps.open_at(now))


@post("/api/v1/keeps", opt=access("user"))
async def keep_gpu(caller: TheCaller, data: JSONBody[NewKeep], auth: TheAuth, services: TheServices) -> Keep:
    """Keep an idle GPU that you use: the idle policy does nothing to it for that time. Admins can keep any."""
    policy, now = _policy(services), clock.wall()
    is_admin = caller.is_at_least("admin")
    host, gpu = find_gpu(services, data.host, data.gpu)
    if not is_admin and auth.users.logins_of(caller.name).isdisjoint(find_owners(gpu)):
        told = f"GPU {gpu.label} of {host.name} is not in use by you."
        raise RequestRefused(
            403, "not_yours", told, "Only its users and admins can keep it; `gpudeck reserve` reserves."
        )
    seconds = read_length(data.length)
    if seconds is None:
        raise ValidationException("for: give a length, such as 8h")
    check_length(seconds, policy.settings.longest_keep, is_admin=is_admin)
    reason = clean(" ".join(data.reason.split()))
    keep = Keep(
        id=0,
        gpu=gpu.uuid,
        host=host.name,
        label=gpu.label,
        user=caller.name,
        start=now,
        end=now + seconds,
        reason=reason,
    )
    details = f"for {show_length(seconds)}: {reason}"
    entry = auth.audit.entry(caller, "keep gpu", f"{host.name}:{gpu.label}", details=details)
    return await policy.keeps.add(keep, now, None if is_admin else policy.settings.most_keeps, entry)


@delete("/api/v1/keeps/{number:int}", status_code=200, opt=access("user"))
async def end_keep(caller: TheCaller, number: _Number, auth: TheAuth, services: TheServices) -> Keep:
    """End a keep now: yours, or as an admin any."""
    policy, now = _policy(services), clock.wall()
    await policy.keeps.load(now)
    found = next((one for one in policy.keeps.open_at(now) if one.id == number), None)
    if found is None:
        raise RequestRefused(404, "unknown_keep", f"there is no keep {number}.", "/api/v1/keeps lists them.")
    if found.user != caller.name and not caller.is_at_least("admin"):
        raise RequestRefused(403, "not_yours", f"keep {number} is that of {clean(found.user)}.")
    await policy.keeps.end(found, now, auth.audit.entry(caller, "end keep", f"{found.host}:{found.label}"))
    return found
