"""Rules about bookings: somebody else is there, nobody comes, somebody stays."""

from collections.abc import Sequence

from gpudeck.alerts.finding import FleetColumns, Rule, RuleFinding, find_at
from gpudeck.alerts.limits import Limits
from gpudeck.alerts.rules.holders import why_no_processes
from gpudeck.alerts.snapshot import Around, SeenHost
from gpudeck.fleet.columns import Flags
from gpudeck.model.quantity import show_span
from gpudeck.model.view import Gpu


def find_conflicts(host: SeenHost, gpus: Sequence[Gpu], _: Limits, __: Around) -> Sequence[RuleFinding]:
    """Both are told: whose it is, and who is on it."""
    return [
        _describe(host, gpu, (gpu.reservation.user,))
        for gpu in gpus
        if gpu.reservation_conflict is not None and gpu.reservation is not None
    ]


def find_overruns(host: SeenHost, gpus: Sequence[Gpu], _: Limits, __: Around) -> Sequence[RuleFinding]:
    marked = [gpu for gpu in gpus if gpu.reservation_conflict is not None and gpu.reservation is None]
    return [_describe(host, gpu, ()) for gpu in marked] if marked else ()


def preselect_conflicts(fleet: FleetColumns, _: Limits, __: Around) -> Flags:
    return fleet.gpus.has_conflict[: fleet.gpus.end] & fleet.gpus.is_reserved[: fleet.gpus.end]


def preselect_overruns(fleet: FleetColumns, _: Limits, __: Around) -> Flags:
    return fleet.gpus.has_conflict[: fleet.gpus.end] & ~fleet.gpus.is_reserved[: fleet.gpus.end]


def _describe(host: SeenHost, gpu: Gpu, owners: tuple[str, ...]) -> RuleFinding:
    title = f"GPU {gpu.label} of {host.name}: {gpu.reservation_conflict}"
    return find_at(gpu, title, users=tuple(gpu.users), accounts=owners)


def find_no_shows(_: SeenHost, __: Sequence[Gpu], ___: Limits, around: Around) -> Sequence[RuleFinding]:
    return [
        RuleFinding(
            title=f"Nobody uses {one.user}'s booking of {one.gpus}: it is released in "
            f"{show_span(one.deadline - around.now)}",
            part=str(one.id),
            accounts=(one.user,),
            is_personal=True,
        )
        for one in around.late_bookings
    ]


BOOKING_RULES = (
    Rule(
        name="booking_conflict",
        scope="gpu",
        find=find_conflicts,
        preselect=preselect_conflicts,
        action="Settle it between you: gpudeck ends nobody's process.",
        many="Somebody is on {count} GPUs that others have booked",
        over="{place} is its owner's again",
        over_many="{count} GPUs are their owners' again",
        why_unknown=why_no_processes,
        kind="booking",
    ),
    Rule(
        name="booking_no_show",
        scope="hub",
        find=find_no_shows,
        action="Start what you booked it for, or give it back (gpudeck release).",
        many="Nobody uses {count} bookings",
        tells_end=False,
        kind="booking",
    ),
    Rule(
        name="booking_overrun",
        scope="gpu",
        find=find_overruns,
        preselect=preselect_overruns,
        action="End your process, or book the GPU for longer (gpudeck reserve).",
        many="Somebody stayed on {count} GPUs after the end of their booking",
        over="{place} was left",
        over_many="{count} GPUs were left",
        why_unknown=why_no_processes,
        kind="booking",
    ),
)
