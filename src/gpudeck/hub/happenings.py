"""From what changes to what happened: a host before and after a report, or a silence, becomes events.

The fleet calls `look` only where a host has news (see `HostState.has_news`), which is rare: a report that brings none
costs nothing here. A hub that has just started knows nothing of before, and so tells no old news.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from gpudeck.hub.damper import Damper
from gpudeck.hub.gpu import GpuState
from gpudeck.hub.host import HostState
from gpudeck.hub.news import News
from gpudeck.hub.portrait import GpuPortrait, Portrait
from gpudeck.model.event import Event, make_event

QUIET: Final = 60.0
"""Seconds after a start, and after a hub that was stuck goes on, in which hosts come back one after the other."""
STUCK: Final = 20.0
_OVERDUE_EVERY: Final = 60.0
_MOST_PLACES: Final = 100_000
_MOST_AN_HOUR: Final = 200
_HOUR: Final = 3600.0

Take = Callable[[Event], None]


class Happenings:
    """`take` gets each event as it happens. `known` are the hosts that were seen before this start, by id: since when
    one is down, as far as that was told, or None. Without it no host is new. One event loop owns it."""

    def __init__(self, take: Take, started_at: float, known: Mapping[str, float | None] | None = None) -> None:
        self._take = take
        self._known: dict[str, float | None] = dict(known or {})
        self._knows_all = known is None
        self._quiet_until = started_at + QUIET
        self._stuck_until = 0.0
        self._passed_at: float | None = None
        self._looked_overdue_at = started_at
        self._waiting: dict[int, HostState] = {}
        self._damper = Damper()
        self._places: dict[str, tuple[str, str]] = {}
        self._quotas: dict[str, tuple[float, int]] = {}

    def pass_time(self, now: float) -> None:
        """Once a second, before hosts age. Where a second took much longer, it was the hub that was away, not them."""
        if self._passed_at is not None and not 0 <= now - self._passed_at < STUCK:
            self._stuck_until = now + QUIET
        self._passed_at = now
        if self._waiting and now >= self._stuck_until:
            waiting, self._waiting = self._waiting, {}
            for host in waiting.values():
                self.look(host, now)
        if not 0 <= now - self._looked_overdue_at < _OVERDUE_EVERY:
            self._looked_overdue_at = now
            for event in self._damper.overdue(now):
                self._tell(event)

    def look(self, host: HostState, now: float) -> None:
        """Tell what is new of that host since the last look."""
        before = host.portrait
        if before is not None and now < self._stuck_until:
            self._waiting[id(host)] = host
            return
        host.has_news = False
        if host.status == "never":
            return
        after = host.portrait = portray(host, before)
        if before is None:
            self._welcome(host, after, now)
        elif now >= self._quiet_until:
            for event in News(host.id, before, after, now, self._damper).tell():
                self._tell(event)
        self._note_places(host, before, after, now)

    def _welcome(self, host: HostState, portrait: Portrait, now: float) -> None:
        is_known = self._knows_all or host.id in self._known
        down_since = self._known.pop(host.id, None)
        self._known[host.id] = None
        tell = partial(make_event, now, host=portrait.name, host_id=host.id)
        if not is_known:
            count = len(portrait.gpus)
            detail = f"{count} GPU{'s' if count != 1 else ''}, by way of {portrait.via}."
            self._take(tell("host_seen", f"{portrait.name} reports for the first time", detail=detail))
        elif down_since is not None and not portrait.is_down:
            # Also in the first minute: whoever was told that it is down waits for this.
            self._take(tell("host_up", f"{portrait.name} reports again"))

    def _note_places(self, host: HostState, before: Portrait | None, after: Portrait, now: float) -> None:
        for uuid, gpu in after.gpus.items():
            if before is not None and uuid in before.gpus:
                continue
            place = self._places.pop(uuid, None)
            self._places[uuid] = (host.id, after.name)
            if place is not None and place[0] != host.id and place[1] != after.name and now >= self._quiet_until:
                title = f"{gpu.model}, once in {place[1]}, is now GPU {gpu.label} of {after.name}"
                where = {"host": after.name, "host_id": host.id, "gpu": uuid, "label": gpu.label}
                self._tell(make_event(now, "gpu_moved", title, **where))  # type: ignore[arg-type]
        while len(self._places) > _MOST_PLACES:
            del self._places[next(iter(self._places))]

    def _tell(self, event: Event) -> None:
        """A host that has something to tell all the time must not fill the list: the rest of its hour is left out."""
        start, count = self._quotas.get(event.host_id or "", (event.at, 0))
        if not 0 <= event.at - start < _HOUR:
            start, count = event.at, 0
        self._quotas[event.host_id or ""] = (start, count + 1)
        if count < _MOST_AN_HOUR:
            self._take(event)
        elif count == _MOST_AN_HOUR:
            title = f"{event.host} has more than {_MOST_AN_HOUR} events an hour: the rest is left out"
            self._take(
                make_event(event.at, "flapping", title, severity="warning", host=event.host, host_id=event.host_id)
            )


def portray(host: HostState, before: Portrait | None) -> Portrait:
    """The host as it is now. What could not be read this time is as it was."""
    view = host.view
    return Portrait(
        name=host.name,
        via=host.via,
        is_down=host.status == "down",
        silent_since=host.observed_at,
        boot_id=host.boot_id,
        driver_version=view["driver_version"] or (before.driver_version if before else None),
        agent_version=view["agent_version"] or (before.agent_version if before else ""),
        twins=host.twins(),
        gpus=dict(_portray_gpus(host.gpus, before.gpus if before else {})),
    )


def _portray_gpus(gpus: Mapping[str, GpuState], before: Mapping[str, GpuPortrait]) -> Iterator[tuple[str, GpuPortrait]]:
    for uuid, gpu in gpus.items():
        view, last = gpu.view, before.get(uuid)
        health, reason, action = view["health"], view["health_reason"], view["health_action"]
        if health == "unknown" and last is not None:
            health, reason, action = last.health, last.reason, last.action
        yield (
            uuid,
            GpuPortrait(
                view["label"], view["display_name"], view["parent"], gpu.missing, health, reason, action, gpu.faults
            ),
        )
