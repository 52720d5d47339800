"""Sends the hub's alerts to Alertmanagers (API v2), so that a site keeps its routing.

Not messages but the state is sent, as Prometheus does it: all alerts that fire, as soon as one is another and again
every `resend`, each with an end that lies four times as far ahead. So nothing is queued: what an Alertmanager missed it
gets with the next turn, and alerts of a hub that is gone end by themselves. Those that are resolved are sent with their
end for a quarter of an hour. Of several hubs only the one that evaluates alerts sends.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from gpudeck.alerts.engine import AlertEngine
from gpudeck.alerts.grouping import link_of
from gpudeck.alerts.notifiers.settings import AlertmanagerSettings
from gpudeck.alerts.record import AlertRecord
from gpudeck.events.log import EventLog
from gpudeck.fetch import Fetcher, trust_from
from gpudeck.fleet.observers import Service
from gpudeck.fleet.state import FleetState
from gpudeck.model.address import show_url
from gpudeck.model.clock import Clock, pause_after
from gpudeck.model.cpu_budget import cancel_tasks
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.event import SEVERITIES, make_event
from gpudeck.model.exposition import name_host_labels
from gpudeck.model.text import clean

log = logging.getLogger(__name__)

AHEAD: Final = 4.0
"""The end of an alert that fires lies so many turns ahead."""
RESOLVED_SECONDS: Final = 900.0
"""For so long one that is resolved is sent with its end."""
PATH: Final = "/api/v2/alerts"
_AT_ONCE: Final = 256
_DEADLINE: Final = 10.0
_FIRST_PAUSE: Final = 1.0
_TOLD_AFTER: Final = 2

_Key = tuple[tuple[str, str], ...]
"""The labels of an alert, which identify it there."""


class PostedAlert(Struct, rename="camel"):
    """As the API takes it. `ends_at` is a Unix time until it is sent, None while it fires."""

    labels: dict[str, str]
    annotations: dict[str, str]
    starts_at: str
    ends_at: str = ""
    generator_url: str = field(default="", name="generatorURL")


class _Kept(Struct):
    alert: PostedAlert
    resolved_at: float | None = None


class AlertmanagerNotifier(Service):
    """`find_engine` gives the engine that evaluates alerts on this hub; None while another hub does."""

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
        """`page` is the address of our page, `prefix` stands before the summaries of a demo."""
        self._settings = settings
        self._fleet = fleet
        self._find_engine = find_engine
        self._page = page
        self._prefix = prefix
        self._now = now
        self._kept: dict[_Key, _Kept] = {}
        self._engine: AlertEngine | None = None
        self._version = -1
        self._targets = [_Alertmanager(url, settings, self._alerts, events, now) for url in settings.urls]

    def start(self) -> None:
        for target in self._targets:
            target.start()

    async def close(self) -> None:
        """The alerts go on there until they end by themselves: the next hub, or this one, sends them again."""
        for target in self._targets:
            await target.close()

    def on_second(self) -> None:
        self._fleet.set_problems(self.name, [target.problem for target in self._targets if target.problem])
        engine, now = self._find_engine(), self._now()
        if engine is None:
            self._kept, self._engine = {}, None
            return
        if engine is self._engine and engine.version == self._version:
            return
        self._engine, self._version = engine, engine.version
        if self._update(engine, now):
            for target in self._targets:
                target.wake()

    def _update(self, engine: AlertEngine, now: float) -> bool:
        """Whether an alert began or ended."""
        firing = {}
        for record in engine.firing():
            if not record.is_personal and SEVERITIES.index(record.severity) >= SEVERITIES.index(
                self._settings.severity
            ):
                alert = self._describe(record)
                key = tuple(sorted(alert.labels.items()))
                known = self._kept.get(key)
                # One that is there already goes on when it is muted here: it is not resolved.
                if (known is not None and known.resolved_at is None) or not engine.is_muted(record, now):
                    firing[key] = alert
        is_other = any((known := self._kept.get(key)) is None or known.resolved_at is not None for key in firing)
        for key, alert in firing.items():
            self._kept[key] = _Kept(alert)
        for key, known in list(self._kept.items()):
            if key in firing:
                continue
            if known.resolved_at is None:
                known.resolved_at, is_other = now, True
            elif not 0 <= now - known.resolved_at < RESOLVED_SECONDS:
                del self._kept[key]
        return is_other

    def _alerts(self) -> list[PostedAlert]:
        """All that is to be sent now."""
        now = self._now()
        until = now + AHEAD * self._settings.resend
        return [
            replace(one.alert, ends_at=_write_time(until if one.resolved_at is None else one.resolved_at))
            for one in self._kept.values()
            if one.resolved_at is None or 0 <= now - one.resolved_at < RESOLVED_SECONDS
        ]

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


class _Alertmanager:
    """One of them, with a task of its own: one that hangs keeps no other from its alerts."""

    def __init__(
        self,
        url: str,
        settings: AlertmanagerSettings,
        alerts: Callable[[], Sequence[PostedAlert]],
        events: EventLog,
        now: Clock,
    ) -> None:
        self._url = f"{url.rstrip('/')}{PATH}"
        self._shown = show_url(url)
        self._settings = settings
        self._alerts = alerts
        self._events = events
        self._now = now
        self._changed = asyncio.Event()
        self._failures = 0
        self._trouble = ""
        self._task: asyncio.Task[None] | None = None

    @property
    def problem(self) -> str:
        """For everybody who may look at the hub; "" where alerts arrive."""
        if self._failures < _TOLD_AFTER:
            return ""
        return f"the Alertmanager {self._shown} does not take alerts: {self._trouble}"

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def wake(self) -> None:
        self._changed.set()

    async def close(self) -> None:
        await cancel_tasks(self._task)

    async def _run(self) -> None:
        fetcher: Fetcher | None = None
        try:
            while True:
                self._changed.clear()
                try:
                    fetcher = fetcher or await self._connect()
                    await self._send(fetcher)
                except GpudeckError as error:
                    self._note_failure(error)
                except Exception:
                    log.exception("alerts could not be sent to %s", self._shown)
                else:
                    self._note_success()
                await self._wait()
        finally:
            if fetcher is not None:
                await fetcher.close()

    async def _connect(self) -> Fetcher:
        """Raises UsageError."""
        file = self._settings.ca_file
        return Fetcher(deadline=_DEADLINE, trust=None if file is None else await asyncio.to_thread(trust_from, file))

    async def _send(self, fetcher: Fetcher) -> None:
        """Raises Temporary, Refused or UsageError."""
        alerts = self._alerts()
        headers = {"Content-Type": "application/json"}
        if self._settings.token_file is not None:
            headers["Authorization"] = f"Bearer {await asyncio.to_thread(_read_token, self._settings.token_file)}"
        for start in range(0, len(alerts), _AT_ONCE):
            await fetcher.post(self._url, msgspec.json.encode(alerts[start : start + _AT_ONCE]), headers)

    async def _wait(self) -> None:
        """Until an alert is another, or it is time; after a failure for longer each time."""
        if self._failures:
            await asyncio.sleep(pause_after(self._failures, _FIRST_PAUSE, self._settings.resend))
            return
        try:
            await asyncio.wait_for(self._changed.wait(), self._settings.resend)
        except TimeoutError:
            return

    def _note_failure(self, error: GpudeckError) -> None:
        self._failures += 1
        self._trouble = error.message
        if self._failures == _TOLD_AFTER:
            log.warning("the Alertmanager %s does not take alerts: %s", self._shown, error)
            title = f"The Alertmanager {self._shown} does not take alerts"
            self._events.add(make_event(self._now(), "message_failed", title, severity="warning", detail=error.message))

    def _note_success(self) -> None:
        if self._failures >= _TOLD_AFTER:
            log.info("the Alertmanager %s takes alerts again", self._shown)
        self._failures = 0


def _known(texts: dict[str, str]) -> dict[str, str]:
    """Without what is empty, which is no label there."""
    return {name: clean(text) for name, text in texts.items() if text}


def _write_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


def _read_token(file: str) -> str:
    """Raises UsageError."""
    try:
        lines = Path(file).expanduser().read_text(encoding="ascii").split()
    except (OSError, UnicodeError, RuntimeError) as error:
        raise UsageError("its token_file cannot be read.") from error
    if len(lines) != 1:
        raise UsageError("its token_file does not hold one token.")
    return lines[0]
