"""Rules about reservations (used by others, unused, used after their end), the history, and the fleet as a whole."""

from collections.abc import Iterator, Sequence
from typing import Final

from gpudeck.alerts.rule import FleetContext, HostSnapshot, RuleFinding, find_at, rule
from gpudeck.alerts.rules.gpus import why_no_processes
from gpudeck.alerts.settings import Limits
from gpudeck.model.text import show_span
from gpudeck.model.view import Gpu
from gpudeck.reservations.requests import name_gpus

_MIN_GPUS: Final = 8
"""The rule is off in smaller fleets: there, no free GPU is nothing unusual."""


def _conflict_of(host: HostSnapshot, gpu: Gpu, owners: tuple[str, ...]) -> RuleFinding:
    title = f"GPU {gpu.label} of {host.name}: {gpu.reservation_conflict}"
    return find_at(gpu, title, users=tuple(gpu.users), accounts=owners)


@rule(
    "gpu",
    preselect=lambda fleet, *_: (fleet.gpus.has_conflict & fleet.gpus.is_reserved)[: fleet.gpus.end],
    action="Please contact each other; gpudeck does not stop processes.",
    many="{count} GPUs are in use that other users have reserved",
    why_unknown=why_no_processes,
    kind="reservation",
)
def reservation_conflict(host: HostSnapshot, gpus: Sequence[Gpu], _: Limits, __: FleetContext) -> Iterator[RuleFinding]:
    """The owner of the reservation and the user are both notified."""
    for gpu in gpus:
        if gpu.reservation_conflict is not None and gpu.reservation is not None:
            yield _conflict_of(host, gpu, (gpu.reservation.user,))


@rule(
    "hub",
    action="Start your program, or release the reservation (gpudeck release).",
    many="Nobody uses {count} reservations",
    notifies_end=False,
    kind="reservation",
)
def reservation_no_show(
    _: HostSnapshot, __: Sequence[Gpu], ___: Limits, context: FleetContext
) -> Iterator[RuleFinding]:
    for one, released_at in context.late_reservations:
        left = show_span(released_at - context.now)
        title = f"Nobody uses {one.user}'s reservation of {name_gpus(one.gpus)}: it is released in {left}"
        yield RuleFinding(title=title, part=str(one.id), accounts=(one.user,), is_personal=True)


@rule(
    "gpu",
    preselect=lambda fleet, *_: (fleet.gpus.has_conflict & ~fleet.gpus.is_reserved)[: fleet.gpus.end],
    action="End your process, or reserve the GPU for longer (gpudeck reserve).",
    many="{count} GPUs are still in use after their reservation has ended",
    why_unknown=why_no_processes,
    kind="reservation",
)
def reservation_overrun(host: HostSnapshot, gpus: Sequence[Gpu], _: Limits, __: FleetContext) -> Iterator[RuleFinding]:
    for gpu in gpus:
        if gpu.reservation_conflict is not None and gpu.reservation is None:
            yield _conflict_of(host, gpu, ())


@rule(
    "hub",
    action="Look at the problems of the hub on its page, and at its log.",
    many="The history is late or not kept",
)
def history_failing(_: HostSnapshot, __: Sequence[Gpu], ___: Limits, context: FleetContext) -> Iterator[RuleFinding]:
    # Without its detail, which may name a path: every viewer sees this.
    if context.history is not None:
        yield RuleFinding(title=context.history.title, severity=context.history.severity)


@rule(
    "hub",
    action="Look for idle GPUs: gpudeck show idle.",
    many="Hardly a GPU is free",
    notifies_end=False,
)
def fleet_nearly_full(
    _: HostSnapshot, __: Sequence[Gpu], limits: Limits, context: FleetContext
) -> Iterator[RuleFinding]:
    """GPUs whose state is unknown are not counted."""
    if context.known >= _MIN_GPUS and (taken := 100.0 * (1.0 - context.free / context.known)) >= limits.end:
        title = f"{context.free} of {context.known} GPUs are free"
        yield RuleFinding(title=title, is_bad=taken >= limits.begin)
