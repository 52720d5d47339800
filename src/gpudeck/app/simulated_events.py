"""What a hub would have told of the simulated fleet, had it been running all the time.

The simulator knows at which moments something may happen to a host. A real fleet gets its reports from just before and
after each of them, and the same code as in a running hub says what happened.
"""

from gpudeck import __version__
from gpudeck.collectors.simulated import SimulatedFleet
from gpudeck.hub.event_detector import EventDetector
from gpudeck.hub.fleet import Fleet
from gpudeck.model.event import Event
from gpudeck.model.fleet_settings import RETURN_SECONDS, FleetSettings
from gpudeck.wire import VERSION, Envelope

_BEAT = 2.0
_SILENT = 65.0
"""Seconds after which a hub calls a host down that has stopped reporting."""


def past_events(simulated: SimulatedFleet, host: int, start: float, end: float, *, is_new: bool) -> list[Event]:
    """What happened to one host, the oldest first. `is_new`: it is seen for the first time when the span begins."""
    return _Onlooker(simulated, host, start, is_new=is_new).watch(start, end)


class _Onlooker:
    def __init__(self, simulated: SimulatedFleet, host: int, start: float, *, is_new: bool) -> None:
        self._simulated = simulated
        self._host = host
        self._events: list[Event] = []
        detector = EventDetector(self._events.append, start - RETURN_SECONDS, {} if is_new else None)
        self._fleet = Fleet(FleetSettings())
        self._fleet.observers.add(detector)
        self._sequence = 0

    def watch(self, start: float, end: float) -> list[Event]:
        self._look(start)
        for turn in self._simulated.turns(self._host, start, end):
            for moment in (turn - _BEAT, turn + _BEAT, turn + _SILENT):
                if start < moment < end:
                    self._look(moment)
        return self._events

    def _look(self, now: float) -> None:
        report = self._simulated.report(self._host, now)
        if report is None:
            for state in self._fleet.hosts.values():
                if state.age(now):
                    self._fleet.observers.on_news(state, now)
            return
        self._sequence += 1
        envelope = Envelope(
            version=VERSION,
            host=self._simulated.names[self._host],
            boot_id=self._simulated.boot_id(self._host, now),
            sequence=self._sequence,
            collected_at=now,
            interval_seconds=_BEAT,
            report=report,
            host_id=self._simulated.host_id(self._host),
            agent_version=__version__,
            simulated=True,
        )
        self._fleet.apply(envelope, via="simulated", now=now)
