"""Notes on hosts: one short text each, written by admins, kept in the database and shown with the host."""

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import delete, select

from gpudeck.database.engine import FleetStore
from gpudeck.database.schema import host_notes as table
from gpudeck.fleet.state import FleetState
from gpudeck.model import clock
from gpudeck.model.text import clean
from gpudeck.model.view import HostNote

MOST_NOTE: Final = 1000


class HostNotes(FleetStore):
    """`load` once; all that asks the database raises Temporary. `show` is called after each change."""

    def __init__(
        self, database: Any, fleet: str, state: FleetState, now: clock.Clock = clock.wall, *, show: Callable[[], None]
    ) -> None:
        super().__init__(database, fleet)
        self._state = state
        self._now = now
        self._show = show
        self.all: dict[tuple[str, str], HostNote] = {}
        """By the id and the name of their hosts."""

    async def load(self) -> None:
        rows = await self._database.execute(select(table).where(table.c.fleet == self._fleet))
        self.all = {
            (row["host_id"], row["host"]): HostNote(row["note"], row["written_by"], row["written_at"])
            for row in rows.mappings()
        }
        self._show()

    def by_host(self) -> dict[str, HostNote]:
        """By the id of the host. A host that was installed anew has another id: where none has that of a note, the one
        with its name is meant."""
        found: dict[str, HostNote] = {}
        for (host_id, name), note in self.all.items():
            if host_id in self._state.hosts:
                found[host_id] = note
            else:
                found |= {host.id: note for host in self._state.called(name) if host.id not in found}
        return found

    async def write(self, host_id: str, name: str, text: str, by: str) -> HostNote | None:
        """None where the text is empty: there is no note any more."""
        text = clean(" ".join(text.split()))[:MOST_NOTE]
        note = HostNote(text, by, round(self._now(), 3)) if text else None
        old = {key for key in self.all if host_id == key[0] or (name == key[1] and key[0] not in self._state.hosts)}
        async with self._database.begin() as connection:
            ids = [key[0] for key in old]
            await connection.execute(delete(table).where(table.c.fleet == self._fleet, table.c.host_id.in_(ids)))
            if note is not None:
                row = {"note": text, "written_at": note.at, "written_by": by}
                await connection.execute(
                    table.insert().values(row | {"fleet": self._fleet, "host_id": host_id, "host": name})
                )
        kept = {key: value for key, value in self.all.items() if key not in old}
        self.all = kept if note is None else kept | {(host_id, name): note}
        self._show()
        return note
