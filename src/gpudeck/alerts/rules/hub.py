"""Rules about reservations (used by others, unused, used after their end), the hub, and the fleet as a whole."""

from collections.abc import Sequence
from typing import Final

from gpudeck.alerts.rule import FleetContext, HostSnapshot, Rule, RuleFinding, find_at
from gpudeck.alerts.rules.gpus import why_no_processes
from gpudeck.alerts.settings import Limits
from gpudeck.model.text import show_span
from gpudeck.model.view import Gpu


def find_conflicts(host: HostSnapshot, gpus: Sequence[Gpu], _: Limits, __: FleetContext) -> Sequence[RuleFinding]:
    """Both are notified: the owner and the user."""
    return [
        _describe(host, gpu, (gpu.reservation.user,))
        for gpu in gpus
        if gpu.reservation_conflict is not None and gpu.reservation is not None
    ]


def find_overruns(host: HostSnapshot, gpus: Sequence[Gpu], _: Limits, __: FleetContext) -> Sequence[RuleFinding]:
    marked = [gpu for gpu in gpus if gpu.reservation_conflict is not None and gpu.reservation is None]
    return [_describe(host, gpu, ()) for gpu in marked]


def _describe(host: HostSnapshot, gpu: Gpu, owners: tuple[str, ...]) -> RuleFinding:
    title = f"GPU {gpu.label} of {host.name}: {gpu.reservation_conflict}"
    return find_at(gpu, title, users=tuple(gpu.users), accounts=owners)


def find_no_shows(_: HostSnapshot, __: Sequence[Gpu], ___: Limits, context: FleetContext) -> Sequence[RuleFinding]:
    return [
        RuleFinding(
            title=f"Nobody uses {one.user}'s reservation of {one.gpus}: it is released in "
            f"{show_span(one.deadline - context.now)}",
            part=str(one.id),
            accounts=(one.user,),
            is_personal=True,
        )
        for one in context.late_reservations
    ]


RESERVATION_RULES = (
    Rule(
        name="reservation_conflict",
        scope="gpu",
        find=find_conflicts,
        preselect=lambda fleet, *_: (fleet.gpus.has_conflict & fleet.gpus.is_reserved)[: fleet.gpus.end],
        action="Please contact each other; gpudeck does not stop processes.",
        many="{count} GPUs are in use that other users have reserved",
        why_unknown=why_no_processes,
        kind="reservation",
    ),
    Rule(
        name="reservation_no_show",
        scope="hub",
        find=find_no_shows,
        action="Start your program, or release the reservation (gpudeck release).",
        many="Nobody uses {count} reservations",
        notifies_end=False,
        kind="reservation",
    ),
    Rule(
        name="reservation_overrun",
        scope="gpu",
        find=find_overruns,
        preselect=lambda fleet, *_: (fleet.gpus.has_conflict & ~fleet.gpus.is_reserved)[: fleet.gpus.end],
        action="End your process, or reserve the GPU for longer (gpudeck reserve).",
        many="{count} GPUs are still in use after their reservation has ended",
        why_unknown=why_no_processes,
        kind="reservation",
    ),
)


_FEWEST: Final = 8
"""A fleet of fewer GPUs is full every other day."""


def find_failing_history(
    _: HostSnapshot, __: Sequence[Gpu], ___: Limits, context: FleetContext
) -> Sequence[RuleFinding]:
    # Its detail may name a place, and this goes to everybody who may look.
    trouble = context.history
    return () if trouble is None else (RuleFinding(title=trouble.title, severity=trouble.severity),)


def find_full_fleet(_: HostSnapshot, __: Sequence[Gpu], limits: Limits, context: FleetContext) -> Sequence[RuleFinding]:
    """By the GPUs of which it is known what they do."""
    if context.known < _FEWEST:
        return ()
    taken = 100.0 * (1.0 - context.free / context.known)
    if taken < limits.end:
        return ()
    title = f"{context.free} of {context.known} GPUs are free"
    return (RuleFinding(title=title, is_bad=taken >= limits.begin),)


HUB_RULES = (
    Rule(
        name="history_failing",
        scope="hub",
        find=find_failing_history,
        action="Look at the problems of the hub on its page, and at its log.",
        many="The history is late or not kept",
    ),
    Rule(
        name="fleet_nearly_full",
        scope="hub",
        find=find_full_fleet,
        action="Look for idle GPUs: gpudeck show idle.",
        many="Hardly a GPU is free",
        notifies_end=False,
    ),
)
