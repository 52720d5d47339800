"""The audit log: who did what, when and from where. Rows are added and, when old, deleted: never changed."""

import logging
from collections import Counter
from collections.abc import Mapping
from time import monotonic

from msgspec import Struct
from sqlalchemy import Executable, insert, select
from sqlalchemy.exc import SQLAlchemyError

from gpudeck.auth.caller import Caller
from gpudeck.auth.tokens import Token
from gpudeck.database.engine import Database, delete_old
from gpudeck.database.schema import audit as table
from gpudeck.model.clock import Clock, wall
from gpudeck.model.errors import Temporary
from gpudeck.model.text import clean
from gpudeck.server.rate_limits import RateLimiter

log = logging.getLogger(__name__)

MAX_DETAILS = 2000
"""Characters. Longer text is cut, as in every other column: names that users type may have any length."""
MAX_ENTRIES = 1000
REFUSAL_BURST = 50
REFUSAL_SECONDS = 10.0
"""Each refused login of one account, or of no account, gets an entry, up to the burst; then one entry per interval."""
_TEXTS = ("who", "action", "subject", "outcome", "address", "details")
_LENGTHS = {name: getattr(table.c[name].type, "length", None) or MAX_DETAILS for name in _TEXTS}


class AuditEntry(Struct, frozen=True):
    """`at` is in Unix seconds. `who` is an account's name, "ada (token 7)" for a token of that account, "token NAME"
    for one that belongs to none, or "nobody" for an unknown caller."""

    id: int
    at: float
    who: str
    action: str
    subject: str
    outcome: str
    address: str
    details: str


class Audit:
    """The log in the database."""

    def __init__(self, database: Database, now: Clock = wall) -> None:
        self._database = database
        self._now = now
        self._refusals = RateLimiter("entries about refused logins", 1 / REFUSAL_SECONDS, REFUSAL_BURST)
        self._omitted: Counter[str] = Counter()

    async def record(
        self, caller: Caller, action: str, subject: str = "", *, outcome: str = "done", details: str = ""
    ) -> None:
        """Add an entry. If the database cannot store it, it is written to the hub's own log, without an exception."""
        await self._add([_fit_all(caller, action, subject, outcome, details)])

    async def refuse_login(self, caller: Caller, action: str, subject: str, details: str, line: str = "") -> None:
        """Add an entry about a refused login, unless `subject` is empty, and `line` to the hub's own log. In a flood
        most are counted only, in the next entry about that subject: a flood must not fill the logs."""
        if self._refusals.take(subject, monotonic()):
            self._omitted[subject] += 1
            return
        omitted = self._omitted.pop(subject, 0)
        more = f"{omitted} more were refused since the entry before" if omitted else ""
        if line:
            log.warning("%s%s", line, f" ({more})" if more else "")
        if subject:
            details = "; ".join(filter(None, (details, more)))
            await self.record(caller, action, subject, outcome="refused", details=details)

    async def record_all(self, caller: Caller, action: str, subjects: Mapping[str, str]) -> None:
        """Add an entry for each subject, with its details, in one step."""
        await self._add([_fit_all(caller, action, subject, "done", details) for subject, details in subjects.items()])

    async def _add(self, rows: list[dict[str, str]]) -> None:
        if not rows:
            return
        now, written = self._now(), "; ".join(map(_write, rows))
        try:
            await self._database.execute(insert(table), [{"at": now, **row} for row in rows])
        except Temporary as error:
            log.warning("not in the audit log: %s; because %s", written, error)
        except SQLAlchemyError:
            log.exception("not in the audit log: %s", written)

    def entry(self, caller: Caller, action: str, subject: str = "", *, details: str = "") -> Executable:
        """The INSERT statement of an entry, to run in the same transaction as the change."""
        return insert(table).values(at=self._now(), **_fit_all(caller, action, subject, "done", details))

    def token_entry(self, caller: Caller, action: str, token: Token, details: str = "") -> Executable:
        return self.entry(caller, action, f"{token.id} {token.name}", details=details)

    async def list(self, limit: int = 100, before_id: int | None = None) -> list[AuditEntry]:
        """The newest entries first. `before_id`: only entries older than this one (paging). Raises Temporary."""
        wanted = select(table).order_by(table.c.id.desc()).limit(max(0, min(limit, MAX_ENTRIES)))
        if before_id is not None:
            wanted = wanted.where(table.c.id < before_id)
        return [AuditEntry(**row) for row in (await self._database.execute(wanted)).mappings()]

    async def trim(self, before: float) -> int:
        """Delete the entries from before that time; returns their number. Raises Temporary."""
        return await delete_old(self._database, table, table.c.at, table.c.at < before)


def _name(caller: Caller) -> str:
    """With the token and its account, so that it can be found and revoked."""
    if caller.kind == "token" and caller.account_id is not None:
        return f"{caller.name} (token {caller.token_id})"
    return caller.name or "nobody"


def _fit_all(caller: Caller, action: str, subject: str, outcome: str, details: str) -> dict[str, str]:
    texts = (_name(caller), action, subject, outcome, caller.address, details)
    return {name: _fit(name, text) for name, text in zip(_TEXTS, texts, strict=True)}


def _fit(column: str, text: str) -> str:
    """PostgreSQL refuses what is too long, and the character 0."""
    most = _LENGTHS[column]
    kept = clean(text[: most + 1])
    return kept if len(kept) <= most else f"{kept[: most - 1]}…"


def _write(row: dict[str, str]) -> str:
    return ", ".join(f"{name}: {text}" for name, text in row.items() if text)
