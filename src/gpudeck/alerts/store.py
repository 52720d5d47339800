"""Alerts and silences in the database, those of each fleet by themselves: a simulated one is not mixed with the real
one."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Struct
from sqlalchemy import ColumnElement, delete, or_, select
from sqlalchemy.dialects import postgresql, sqlite

from gpudeck.alerts.life import Life
from gpudeck.alerts.rules.registry import RULES_BY_NAME
from gpudeck.database.engine import Database, delete_old
from gpudeck.database.schema import REAL, alert_silences, alerts
from gpudeck.model.alert import Alert, Silence
from gpudeck.model.printable import clean

MOST_LISTED: Final = 1000
KEEP: Final = 90 * 86_400.0
"""How long what is over stays; the events of its life stay longer."""
HOUR: Final = 3600.0
_AT_ONCE: Final = 200
_life = msgspec.json.Decoder(Life, strict=False)
_silence = msgspec.json.Decoder(Silence)


class AlertAsk(Struct, frozen=True, kw_only=True):
    """Which alerts are wanted of those that are over: the newest first."""

    severities: tuple[str, ...] = ()
    host: str | None = None
    rule: str | None = None
    limit: int = 100


class AlertStore:
    """One fleet's alerts. All of it raises Temporary where the database does not answer."""

    def __init__(self, database: Database, fleet: str = REAL) -> None:
        self._database = database
        self._fleet = fleet

    async def load(self, now: float) -> list[Life]:
        """All that is not over, or whose end was not told, and what ended within the last hour. A row that cannot be
        read, as one of a newer gpudeck, is left out."""
        wanted = select(alerts.c.body).where(
            alerts.c.fleet == self._fleet, or_(alerts.c.is_open == 1, alerts.c.resolved_at > now - HOUR)
        )
        async with self._database.begin() as connection:
            rows = (await connection.execute(wanted)).scalars().all()
        return [life for row in rows if (life := _read(row)) is not None]

    async def write(self, lives: Iterable[Life]) -> None:
        """Keep them as they are by the time each is written: no earlier than the call."""
        waiting = iter(list(lives))
        insert = sqlite.insert if self._database.kind == "sqlite" else postgresql.insert
        while rows := [_row(self._fleet, life) for life in islice(waiting, _AT_ONCE)]:
            made = insert(alerts)
            names = ("severity", "state", "is_open", "resolved_at", "body")
            upsert = made.on_conflict_do_update(
                index_elements=["fleet", "id"], set_={name: made.excluded[name] for name in names}
            )
            async with self._database.begin() as connection:
                await connection.execute(upsert, rows)

    async def find_resolved(self, ask: AlertAsk) -> list[Alert]:
        conditions: list[ColumnElement[bool]] = [alerts.c.fleet == self._fleet, alerts.c.state == "resolved"]
        if ask.severities:
            conditions.append(alerts.c.severity.in_(ask.severities))
        if ask.host is not None:
            name = clean(ask.host)
            conditions.append(or_(alerts.c.host == name, alerts.c.host_id == name))
        if ask.rule is not None:
            conditions.append(alerts.c.rule == clean(ask.rule))
        wanted = select(alerts.c.body).where(*conditions).order_by(alerts.c.resolved_at.desc())
        async with self._database.begin() as connection:
            rows = (await connection.execute(wanted.limit(max(1, min(ask.limit, MOST_LISTED))))).scalars().all()
        return [life.show() for row in rows if (life := _read(row)) is not None]

    async def trim(self, now: float) -> None:
        """Delete what has been over for long, of every fleet."""
        over, ended = alerts.c.resolved_at, alert_silences.c.end
        await delete_old(self._database, alerts, over, over < now - KEEP)
        await delete_old(self._database, alert_silences, ended, ended < now - KEEP)

    async def load_silences(self, now: float) -> list[Silence]:
        """Those that are not over."""
        wanted = select(alert_silences.c.body).where(alert_silences.c.fleet == self._fleet, alert_silences.c.end > now)
        async with self._database.begin() as connection:
            rows: Sequence[str] = (await connection.execute(wanted)).scalars().all()
        return [_silence.decode(row) for row in rows]

    async def write_silence(self, silence: Silence) -> None:
        row = {
            "fleet": self._fleet,
            "id": silence.id,
            "end": silence.end,
            "body": msgspec.json.encode(silence).decode(),
        }
        async with self._database.begin() as connection:
            await connection.execute(alert_silences.insert().values(row))

    async def delete_silence(self, silence_id: str) -> None:
        one = (alert_silences.c.fleet == self._fleet) & (alert_silences.c.id == silence_id)
        async with self._database.begin() as connection:
            await connection.execute(delete(alert_silences).where(one))


def _read(row: str) -> Life | None:
    try:
        return _life.decode(row)
    except msgspec.DecodeError:
        return None


def _encode(life: Life) -> str:
    """Names come from outside: a character 0, which PostgreSQL refuses, is other letters in JSON, but half a character
    cannot be written at all."""
    try:
        return msgspec.json.encode(life).decode()
    except UnicodeEncodeError:
        return msgspec.json.encode(_clean(msgspec.to_builtins(life))).decode()


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(name): _clean(inner) for name, inner in value.items()}
    return [_clean(inner) for inner in value] if isinstance(value, list | tuple) else value


def _row(fleet: str, life: Life) -> dict[str, Any]:
    is_end_open = life.is_told and life.end_told_at is None and RULES_BY_NAME[life.rule].tells_end
    return {
        "fleet": fleet,
        "id": life.id,
        "rule": life.rule,
        "severity": life.severity,
        "state": life.state,
        "host": None if life.host is None else clean(life.host)[:256],
        "host_id": clean(life.host_id)[:384],
        "is_open": int(life.state != "resolved" or is_end_open),
        "fired_at": life.fired_at or life.since,
        "resolved_at": life.resolved_at,
        "body": _encode(life),
    }
