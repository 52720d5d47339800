"""Alerts and mutes in the database, separate for each fleet: a simulated one is not mixed with the real one."""

import contextlib
import json
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Struct
from sqlalchemy import ColumnElement, delete, or_, select

from gpudeck.alerts.record import AlertRecord
from gpudeck.alerts.rules import RULES_BY_NAME
from gpudeck.database.engine import FleetStore, delete_old
from gpudeck.database.schema import alert_mutes, alerts
from gpudeck.model.alert import Alert, Mute
from gpudeck.model.text import clean

MAX_LISTED: Final = 1000
MAX_FIRING: Final = 10_000
KEEP: Final = 90 * 86_400.0
"""How long resolved alerts stay; the events of its record stay longer."""
HOUR: Final = 3600.0
_AT_ONCE: Final = 200
_decoder = msgspec.json.Decoder(AlertRecord, strict=False)


class AlertQuery(Struct, frozen=True, kw_only=True):
    """A query for resolved alerts; the newest come first."""

    severities: tuple[str, ...] = ()
    host: str | None = None
    rule: str | None = None
    limit: int = 100


class AlertStore(FleetStore):
    """One fleet's alerts. All of it raises Temporary where the database does not answer."""

    async def load(self, now: float) -> list[AlertRecord]:
        """Alerts that are not resolved, or whose end was not sent, and those that ended within the last hour."""
        return await self._read(or_(alerts.c.is_open == 1, alerts.c.resolved_at > now - HOUR))

    async def write(self, records: Iterable[AlertRecord]) -> None:
        """Keep them as they are by the time each is written: no earlier than the call."""
        waiting = iter(list(records))
        while rows := [_row(self._fleet, record) for record in islice(waiting, _AT_ONCE)]:
            made = self._database.insert(alerts)
            names = ("severity", "state", "is_open", "resolved_at", "body")
            upsert = made.on_conflict_do_update(
                index_elements=["fleet", "id"], set_={name: made.excluded[name] for name in names}
            )
            await self._database.execute(upsert, rows)

    async def find_resolved(self, query: AlertQuery) -> list[Alert]:
        conditions: list[ColumnElement[bool]] = [alerts.c.state == "resolved"]
        if query.severities:
            conditions.append(alerts.c.severity.in_(query.severities))
        if query.host is not None:
            name = clean(query.host)
            conditions.append(or_(alerts.c.host == name, alerts.c.host_id == name))
        if query.rule is not None:
            conditions.append(alerts.c.rule == clean(query.rule))
        limit = max(1, min(query.limit, MAX_LISTED))
        return [record.show() for record in await self._read(*conditions, limit=limit)]

    async def find_firing(self, at: float) -> list[AlertRecord]:
        """Alerts that fired at that moment."""
        found = await self._read(alerts.c.fired_at <= at, _is_open_after(at), limit=MAX_FIRING)
        return [record for record in found if record.fired_at is not None and record.fired_at <= at]

    async def find_between(self, rules: Sequence[str], start: float, end: float) -> list[AlertRecord]:
        """Alerts of these rules that fired at some time from `start` until before `end`."""
        conditions = (alerts.c.rule.in_(rules), alerts.c.fired_at < end, _is_open_after(start))
        return [one for one in await self._read(*conditions, limit=MAX_FIRING) if one.fired_at is not None]

    async def _read(self, *conditions: ColumnElement[bool], limit: int | None = None) -> list[AlertRecord]:
        """The newest end first. A row that cannot be read, as one of a newer gpudeck, is left out."""
        wanted = select(alerts.c.body).where(alerts.c.fleet == self._fleet, *conditions)
        wanted = wanted.order_by(alerts.c.resolved_at.desc()).limit(limit)
        found = []
        for row in (await self._database.execute(wanted)).scalars():
            with contextlib.suppress(msgspec.DecodeError):
                found.append(_decoder.decode(row))
        return found

    async def trim(self, now: float) -> None:
        """Delete alerts that were resolved long ago, of every fleet."""
        resolved, ended = alerts.c.resolved_at, alert_mutes.c.end
        await delete_old(self._database, alerts, resolved, resolved < now - KEEP)
        await delete_old(self._database, alert_mutes, ended, ended < now - KEEP)

    async def load_mutes(self, now: float) -> list[Mute]:
        """Mutes that have not ended."""
        wanted = select(alert_mutes.c.body).where(alert_mutes.c.fleet == self._fleet, alert_mutes.c.end > now)
        rows: Sequence[str] = (await self._database.execute(wanted)).scalars().all()
        return [msgspec.json.decode(row, type=Mute) for row in rows]

    async def write_mute(self, mute: Mute) -> None:
        body = msgspec.json.encode(mute).decode()
        row = {"fleet": self._fleet, "id": mute.id, "end": mute.end, "body": body}
        await self._database.execute(alert_mutes.insert().values(row))

    async def delete_mute(self, mute_id: str) -> None:
        one = (alert_mutes.c.fleet == self._fleet) & (alert_mutes.c.id == mute_id)
        await self._database.execute(delete(alert_mutes).where(one))


def _is_open_after(at: float) -> ColumnElement[bool]:
    return or_(alerts.c.resolved_at.is_(None), alerts.c.resolved_at > at)


def _encode(record: AlertRecord) -> str:
    """Names come from outside: a character 0, which PostgreSQL refuses, is other letters in JSON, but half a character
    cannot be written at all."""
    try:
        return msgspec.json.encode(record).decode()
    except UnicodeEncodeError:
        return clean(json.dumps(msgspec.to_builtins(record), ensure_ascii=False))


def _row(fleet: str, record: AlertRecord) -> dict[str, Any]:
    rule = RULES_BY_NAME.get(record.rule)
    is_end_open = record.is_told and record.end_told_at is None and (rule is None or rule.notifies_end)
    return {
        "fleet": fleet,
        "id": record.id,
        "rule": record.rule,
        "severity": record.severity,
        "state": record.state,
        "host": None if record.host is None else clean(record.host)[:256],
        "host_id": clean(record.host_id)[:384],
        "is_open": int(record.state != "resolved" or is_end_open),
        "fired_at": record.fired_at or record.since,
        "resolved_at": record.resolved_at,
        "body": _encode(record),
    }
