"""Rows that are older than they are kept for are deleted here, and the log says which."""

import logging
from typing import Any

from sqlalchemy import ColumnElement, Table, delete, func, select

from gpudeck.database.engine import Database
from gpudeck.model.times import show_utc

log = logging.getLogger(__name__)


async def delete_old(database: Database, table: Table, column: ColumnElement[Any], old: ColumnElement[bool]) -> int:
    """Delete the rows that are `old` by `column`, a time; how many there were. Raises Temporary.

    Whoever calls takes the time for it from a `RetentionClock`.
    """
    async with database.begin() as connection:
        found = select(func.count(), func.min(column), func.max(column)).select_from(table).where(old)
        count, first, last = (await connection.execute(found)).one()
        if count:
            await connection.execute(delete(table).where(old))
            log.info(
                "retention deleted %d rows of %s, from %s until %s", count, table.name, show_utc(first), show_utc(last)
            )
    return int(count)
