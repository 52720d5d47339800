"""From what changes to what happened: a host before and after a report, or a silence, becomes events.

The fleet calls `on_news` only where a host has news (see `HostState.has_news`), which is rare: a report that brings
none costs nothing here. A hub that has just started knows nothing of before, and so tells no old news.

While late reports of a host come in, what is new of the live host waits: what happened before it is told first, each at
its own time.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from msgspec import Struct, field, structs

from gpudeck.hub.damper import Damper
from gpudeck.hub.gpu import GpuState
from gpudeck.hub.host import HostState
from gpudeck.hub.news import News, in_words
from gpudeck.hub.observers import FleetObserver
from gpudeck.hub.portrait import GpuPortrait, Portrait
from gpudeck.model.event import Event, make_event
from gpudeck.model.fleet_settings import RETURN_SECONDS, STUCK_SECONDS

_OVERDUE_EVERY: Final = 60.0
_MOST_PLACES: Final = 100_000
_MOST_AN_HOUR: Final = 200
_MOST_HELD: Final = 100
_HOUR: Final = 3600.0

Take = Callable[[Event], None]


class _Held(Struct):
    """What a live host was before, and what it became while late reports of it came in, with each one's time."""

    before: Portrait | None
    portraits: list[tuple[float, Portrait]] = field(default_factory=list)

    def note(self, at: float, after: Portrait) -> None:
        """Only what differs is kept: each old report of a backlog brings one. Of too many the last one counts."""
        if self.portraits and _is_same(self.portraits[-1][1], after):
            return
        del self.portraits[_MOST_HELD - 1 :]
        self.portraits.append((at, after))


class EventDetector(FleetObserver):
    """`take` gets each event as it happens. `known` are the hosts that were seen before this start, by id: since when
    one is down, as far as that was told, or None. Without it no host is new, until `learn` says which were known: then
    those that came meanwhile are judged again, where `learns` says that it will be called. One event loop owns it."""

    name = "events"

    def __init__(
        self,
        take: Take,
        started_at: float,
        known: Mapping[str, float | None] | None = None,
        *,
        learns: bool = False,
    ) -> None:
        self._take = take
        self._unjudged: list[tuple[HostState, Portrait, float]] | None = [] if learns else None
        self._known: dict[str, float | None] = dict(known or {})
        self._knows_all = known is None
        self._starting_until = self._returning_until = started_at + RETURN_SECONDS
        self._passed_at: float | None = None
        self._looked_overdue_at = started_at
        self._waiting: dict[int, HostState] = {}
        self._held: dict[HostState, _Held] = {}
        self._damper = Damper()
        self._places: dict[str, tuple[str, str]] = {}
        self._quotas: dict[str, tuple[float, int]] = {}

    def learn(self, known: Mapping[str, float | None]) -> None:
        """What `known` would have been at the start, as soon as it can be read."""
        unjudged, self._unjudged = self._unjudged or [], None
        self._known, self._knows_all = dict(known), False
        for host, portrait, at in unjudged:
            self._welcome(host, portrait, at)

    def on_time(self, now: float) -> None:
        """Where a second took much longer, it was the hub that was away, not them."""
        if self._passed_at is not None and not 0 <= now - self._passed_at < STUCK_SECONDS:
            self._returning_until = now + RETURN_SECONDS
        self._passed_at = now
        if self._waiting and now >= self._returning_until:
            waiting, self._waiting = self._waiting, {}
            for host in waiting.values():
                self.on_news(host, now)
        if not 0 <= now - self._looked_overdue_at < _OVERDUE_EVERY:
            self._looked_overdue_at = now
            for event in self._damper.overdue(now):
                self._tell(event)

    def on_news(self, host: HostState, now: float) -> None:
        """Tell what is new of that host since the last look: whether it is heard of at once, and what changed on it as
        of its newest report."""
        if host.status == "never":
            return
        before, after = host.portrait, portray(host, host.portrait)
        if before is not None and not before.is_down and after.is_down and self._may_return(host, now):
            after = structs.replace(after, is_down=False)
            self._waiting[id(host)] = host
        host.portrait = after
        held = self._held.get(host)
        at = now if after.is_down else min(now, host.observed_at)
        if before is None:
            self._welcome(host, after, now)
        else:
            news = News(host.id, before, after, now, self._damper)
            is_muted = self._tell_all(news.tell_status())
            if held is None:
                self._tell_changes(host, before, after, at, is_muted=is_muted)
        if held is not None:
            held.note(at, after)
        self._note_places(host, before, after, now)

    def on_backlog_start(self, host: HostState) -> None:
        """What changes on the live host waits for `on_backlog_end`."""
        if host not in self._held:
            self._held[host] = _Held(host.portrait)

    def on_late_news(self, replay: HostState, observed_at: float) -> None:
        """Tell what a late report brings, at its own time."""
        before = replay.portrait
        after = replay.portrait = portray(replay, before)
        if before is not None:
            self._tell_all(News(replay.id, before, after, observed_at, self._damper).tell_changes())

    def on_backlog_end(self, host: HostState, replay: HostState | None) -> None:
        """Tell what changed on the live host since the last late report; where none came, since it was held."""
        held = self._held.pop(host, None)
        if held is None:
            return
        before = None if replay is None else replay.portrait
        if before is not None and held.portraits:
            # Which hosts cannot be told apart is not the agent's to say.
            before = structs.replace(before, twins=(held.before or held.portraits[0][1]).twins)
        before = before or held.before
        for at, after in held.portraits:
            if before is not None:
                self._tell_changes(host, before, after, at)
            before = after

    def _may_return(self, host: HostState, now: float) -> bool:
        """Whether it is too early to say that the host is gone: the hub was away, and has not heard of it since."""
        return now < self._returning_until and host.silent_since <= self._returning_until - RETURN_SECONDS

    def _tell_changes(
        self, host: HostState, before: Portrait, after: Portrait, at: float, *, is_muted: bool = False
    ) -> None:
        news = News(host.id, before, after, at, self._damper)
        self._tell_all(news.tell_changes(is_muted=is_muted, at_start=at < self._starting_until))

    def _tell_all(self, events: Iterator[Event]) -> bool:
        """Returns what the generator does, where it returns anything."""
        while True:
            try:
                self._tell(next(events))
            except StopIteration as end:
                return bool(end.value)

    def _welcome(self, host: HostState, portrait: Portrait, now: float) -> None:
        if self._unjudged is not None:
            self._unjudged.append((host, portrait, now))
            return
        is_known = self._knows_all or host.id in self._known
        down_since = self._known.pop(host.id, None)
        self._known[host.id] = None
        tell = partial(make_event, now, host=portrait.name, host_id=host.id)
        if portrait.is_down:
            # Known from before this start, and it did not come back.
            if down_since is None:
                silent = f"Nothing has come from it for {in_words(now - portrait.silent_since)}."
                title = f"{portrait.name} has stopped reporting"
                self._take(tell("host_down", title, severity="critical", detail=silent))
        elif not is_known:
            count = len(portrait.gpus)
            detail = f"{count} GPU{'s' if count != 1 else ''}, by way of {portrait.via}."
            self._take(tell("host_seen", f"{portrait.name} reports for the first time", detail=detail))
        elif down_since is not None:
            # Also right after a start: whoever was told that it is down waits for this.
            self._take(tell("host_up", f"{portrait.name} reports again"))

    def _note_places(self, host: HostState, before: Portrait | None, after: Portrait, now: float) -> None:
        for uuid, gpu in after.gpus.items():
            if before is not None and uuid in before.gpus:
                continue
            place = self._places.pop(uuid, None)
            self._places[uuid] = (host.id, after.name)
            if place is not None and place[0] != host.id and place[1] != after.name and now >= self._starting_until:
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


def _is_same(one: Portrait, other: Portrait) -> bool:
    """Whether they tell the same, whenever something was last heard."""
    return structs.replace(one, silent_since=other.silent_since, skew=other.skew) == other


def portray(host: HostState, before: Portrait | None) -> Portrait:
    """The host as it is now. What could not be read this time is as it was."""
    facts = host.facts
    return Portrait(
        name=host.name,
        via=host.via,
        is_down=host.status == "down",
        silent_since=host.silent_since,
        boot_id=host.boot_id,
        driver_version=facts.driver_version or (before.driver_version if before else None),
        agent_version=facts.agent_version or (before.agent_version if before else ""),
        twins=host.twins(),
        gpus=dict(_portray_gpus(host.gpus, before.gpus if before else {})),
        skew=facts.clock_skew_seconds or 0.0,
    )


def _portray_gpus(gpus: Mapping[str, GpuState], before: Mapping[str, GpuPortrait]) -> Iterator[tuple[str, GpuPortrait]]:
    for uuid, gpu in gpus.items():
        health, last = gpu.health, before.get(uuid)
        level, reason, action = health.level, health.reason, health.action
        if level == "unknown" and last is not None:
            level, reason, action = last.health, last.reason, last.action
        yield (
            uuid,
            GpuPortrait(gpu.label, gpu.display_name, gpu.parent, gpu.missing, level, reason, action, gpu.faults),
        )
