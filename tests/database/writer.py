"""A process that writes rows for ever, one a transaction, and says each number once it is committed: to be killed."""

import asyncio
import itertools
import sys
from pathlib import Path

from sqlalchemy import func, insert, select

from gpudeck.database.engine import open_database
from gpudeck.database.schema import audit


async def write_forever(address: str | None, data_dir: Path) -> None:
    database = await open_database(address, data_dir)
    async with database.begin() as connection:
        first = (await connection.execute(select(func.count()).select_from(audit))).scalar_one()
    for number in itertools.count(first):
        async with database.begin() as connection:
            await connection.execute(insert(audit).values(at=float(number), who="writer", action="x" * 64))
            await connection.execute(insert(audit).values(at=float(number), who="its twin", action="x" * 64))
        print(number, flush=True)


asyncio.run(write_forever(sys.argv[2] if len(sys.argv) > 2 else None, Path(sys.argv[1])))
