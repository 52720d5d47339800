"""The hosts of the real fleet in the database, so that a hub that starts again knows them before they report."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct
from sqlalchemy import Table, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from gpudeck.database.engine import Database
from gpudeck.database.schema import host_facts, hosts
from gpudeck.model.text import clean

_AT_ONCE: Final = 200
_columns = hosts.c


class RememberedGpu(Struct, frozen=True, omit_defaults=True):
    """A GPU's identity, as in `model.report.GpuReading`."""

    uuid: str
    index: int
    name: str
    vendor: Literal["nvidia", "amd", "intel", "other"] = "other"
    parent: str | None = None
    instance: int | None = None
    pci_address: str | None = None
    memory_total_bytes: int | None = None


class RememberedHost(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What of a host seldom changes. `token` is the id of the agent token that reported it, None where none did;
    `target` is what it is configured as, where that is not its name."""

    id: str
    name: str
    via: str
    interval: float
    boot_id: str = ""
    agent_version: str = ""
    driver_version: str | None = None
    os: str | None = None
    labels: dict[str, str] = {}
    addresses: list[str] = []
    interfaces: dict[str, str] = {}
    token: int | None = None
    target: str = ""
    gpus: list[RememberedGpu] = []


class LastReport(Struct, frozen=True):
    """When a host last reported, by the hub's clock, and whether it was down when that was written."""

    at: float
    is_down: bool


_facts = msgspec.json.Decoder(RememberedHost)


class HostStore:
    """All of it raises Temporary where the database does not answer."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self) -> list[tuple[str, LastReport]]:
        """The facts of all hosts, to be read with `read_facts`, the host that reported last first."""
        wanted = select(host_facts.c.body, _columns.last_report_at, _columns.is_down).join_from(
            host_facts, hosts, host_facts.c.id == _columns.id
        )
        wanted = wanted.order_by(_columns.last_report_at.desc())
        async with self._database.begin() as connection:
            rows = (await connection.execute(wanted)).all()
        return [(body, LastReport(at, bool(is_down))) for body, at, is_down in rows]

    async def write_facts(self, known: Sequence[RememberedHost]) -> None:
        rows = ({"id": _key(host.id), "body": msgspec.json.encode(host).decode()} for host in known)
        await self._upsert(host_facts, rows, "body")

    async def write_reports(self, reports: Mapping[str, LastReport]) -> None:
        """By the id of the host."""
        rows = (
            {"id": _key(host_id), "last_report_at": report.at, "is_down": int(report.is_down)}
            for host_id, report in reports.items()
        )
        await self._upsert(hosts, rows, "last_report_at", "is_down")

    async def delete(self, host_ids: Iterable[str]) -> None:
        keys = [_key(host_id) for host_id in host_ids]
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            async with self._database.begin() as connection:
                await connection.execute(delete(hosts).where(_columns.id.in_(some)))
                await connection.execute(delete(host_facts).where(host_facts.c.id.in_(some)))

    async def _upsert(self, table: Table, rows: Iterator[dict[str, Any]], *names: str) -> None:
        """In several transactions: other writers have their turn between two."""
        insert = sqlite.insert if self._database.kind == "sqlite" else postgresql.insert
        made = insert(table)
        upsert = made.on_conflict_do_update(index_elements=["id"], set_={name: made.excluded[name] for name in names})
        while some := list(islice(rows, _AT_ONCE)):
            async with self._database.begin() as connection:
                await connection.execute(upsert, some)


def _key(host_id: str) -> str:
    """PostgreSQL takes no character 0, which an id from outside may hold. The id itself is in the facts."""
    return clean(host_id)[:384]


def read_facts(body: str) -> RememberedHost | None:
    """None for what cannot be read, such as a row of a newer gpudeck."""
    try:
        return _facts.decode(body)
    except msgspec.DecodeError:
        return None
