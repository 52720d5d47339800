"""Sends the hub's alerts to Alertmanagers (API v2), so that a site keeps its routing.

As Prometheus does, it sends the state: all firing alerts, when one begins or ends and again every `resend`, each with
an end four times as far ahead. Nothing is queued: an Alertmanager that missed a change gets it with the next turn, and
alerts of a hub that is gone end by themselves. Resolved alerts are sent with their end for a quarter of an hour. Of
several hubs only the one that evaluates alerts sends.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from gpudeck.alerts.engine import AlertEngine
from gpudeck.alerts.grouping import link_of
from gpudeck.alerts.notifiers.settings import AlertmanagerSettings
from gpudeck.alerts.record import AlertRecord
from gpudeck.events.service import EventLog
from gpudeck.fetch import Fetcher, trust_from
from gpudeck.fleet.observers import Service
from gpudeck.fleet.state import FleetState
from gpudeck.model.address import show_url
from gpudeck.model.backoff import pause_after
from gpudeck.model.clock import Clock
from gpudeck.model.cpu_budget import cancel_tasks
from gpudeck.model.errors import GpudeckError
from gpudeck.model.event import SEVERITIES, make_event
from gpudeck.model.exposition import name_host_labels
from gpudeck.model.text import clean

log = logging.getLogger(__name__)

AHEAD: Final = 4.0
"""How many turns ahead the end of a firing alert is."""
RESOLVED_SECONDS: Final = 900.0
"""How long a resolved alert is sent with its end."""
PATH: Final = "/api/v2/alerts"
_AT_ONCE: Final = 256
_DEADLINE: Final = 10.0
_FIRST_PAUSE: Final = 1.0
_SHOWN_AFTER: Final = 2
"""A problem is shown after so many failures in a row."""

_Key = tuple[tuple[str, str], ...]
"""The labels of an alert, which identify it in an Alertmanager."""


class PostedAlert(Struct, rename="camel"):
    """An alert of the API. `ends_at` is set when it is sent."""

    labels: dict[str, str]
    annotations: dict[str, str]
    starts_at: str
    ends_at: str = ""
    generator_url: str = field(default="", name="generatorURL")


class AlertmanagerNotifier(Service):
    """`find_engine` returns the engine that evaluates alerts on this hub; None while another hub does."""

    name = "alertmanager"

    def __init__(
        self,
        settings: AlertmanagerSettings,
        fleet: FleetState,
        events: EventLog,
        find_engine: Callable[[], AlertEngine | None],
        *,
        page: str | None = None,
        prefix: str = "",
        now: Clock,
    ) -> None:
        """`page` is the address of the hub's page, `prefix` stands before the summaries of a demo."""
        self._settings = settings
        self._fleet = fleet
        self._events = events
        self._find_engine = find_engine
        self._page = page
        self._prefix = prefix
        self._now = now
        self._seen: tuple[AlertEngine | None, int] = None, -1
        self._firing: dict[_Key, PostedAlert] = {}
        self._resolved: dict[_Key, tuple[PostedAlert, float]] = {}
        self._changed = asyncio.Event()
        """Set at the next change, and then replaced."""
        self._problems: dict[str, str] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Each Alertmanager has its own task: one that hangs does not delay the others."""
        self._tasks = [asyncio.create_task(self._run(url)) for url in self._settings.urls]

    async def close(self) -> None:
        """The alerts continue there until they end by themselves, or the next hub sends them again."""
        await cancel_tasks(*self._tasks)

    def on_second(self) -> None:
        self._fleet.set_problems(self.name, list(self._problems.values()))
        engine = self._find_engine()
        seen, self._seen = self._seen, (engine, -1 if engine is None else engine.version)
        if engine is None:
            self._firing, self._resolved = {}, {}
        elif seen != self._seen:
            self._update(engine, self._now())

    def _update(self, engine: AlertEngine, now: float) -> None:
        firing: dict[_Key, PostedAlert] = {}
        lowest = SEVERITIES.index(self._settings.severity)
        for record in engine.firing():
            if not record.is_personal and SEVERITIES.index(record.severity) >= lowest:
                alert = self._describe(record)
                key = tuple(sorted(alert.labels.items()))
                # An alert that was sent before is still sent while it is muted: it is not resolved.
                if key in self._firing or not engine.is_muted(record, now):
                    firing[key] = alert
        self._resolved |= {key: (alert, now) for key, alert in self._firing.items() if key not in firing}
        self._resolved = {
            key: one for key, one in self._resolved.items() if key not in firing and _is_shown(one[1], now)
        }
        if firing.keys() != self._firing.keys():
            self._changed.set()
            self._changed = asyncio.Event()
        self._firing = firing

    async def _run(self, url: str) -> None:
        shown, failures, resend = show_url(url), 0, self._settings.resend
        while True:
            changed = self._changed
            try:
                await self._send(f"{url.rstrip('/')}{PATH}")
            except GpudeckError as error:
                failures += 1
                if failures >= _SHOWN_AFTER:
                    self._note_failure(shown, error)
                await asyncio.sleep(pause_after(failures, _FIRST_PAUSE, resend))
                continue
            except Exception:
                log.exception("alerts could not be sent to %s", shown)
            if self._problems.pop(shown, None) is not None:
                log.info("the Alertmanager %s takes alerts again", shown)
            failures = 0
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), resend)

    def _note_failure(self, shown: str, error: GpudeckError) -> None:
        if shown not in self._problems:
            title = f"The Alertmanager {shown} does not take alerts"
            log.warning("%s: %s", title, error)
            self._events.add(make_event(self._now(), "message_failed", title, severity="warning", detail=error.message))
        self._problems[shown] = f"the Alertmanager {shown} does not take alerts: {error.message}"

    async def _send(self, url: str) -> None:
        """Raises Temporary, Refused or UsageError."""
        settings, now = self._settings, self._now()
        ends = [(alert, now + AHEAD * settings.resend) for alert in self._firing.values()]
        ends += [one for one in self._resolved.values() if _is_shown(one[1], now)]
        alerts = [replace(alert, ends_at=_write_time(end)) for alert, end in ends]
        headers = {"Content-Type": "application/json"}
        trust = None if settings.ca_file is None else await asyncio.to_thread(trust_from, settings.ca_file)
        fetcher = Fetcher(deadline=_DEADLINE, trust=trust)
        try:
            for start in range(0, len(alerts), _AT_ONCE):
                await fetcher.post(url, msgspec.json.encode(alerts[start : start + _AT_ONCE]), headers)
        finally:
            await fetcher.close()

    def _describe(self, record: AlertRecord) -> PostedAlert:
        own = {
            "alertname": record.rule,
            "severity": record.severity,
            "host": record.host or "",
            "gpu": record.label or "",
            "uuid": record.gpu,
            "model": record.model or "",
            "part": record.part,
        }
        labels = {**self._settings.labels, **name_host_labels(record.labels), **own}
        annotations = {
            "summary": f"{self._prefix}{record.title}",
            "action": record.action,
            "description": record.note or "",
            "users": ", ".join(record.users),
        }
        link = f"{self._page.rstrip('/')}/{link_of([record])}" if self._page else ""
        started = _write_time(record.fired_at or record.since)
        return PostedAlert(_known(labels), _known(annotations), started, generator_url=link)


def _is_shown(resolved_at: float, now: float) -> bool:
    return 0 <= now - resolved_at < RESOLVED_SECONDS


def _known(texts: dict[str, str]) -> dict[str, str]:
    """Without empty texts, which are no labels in an Alertmanager."""
    return {name: clean(text) for name, text in texts.items() if text}


def _write_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()
