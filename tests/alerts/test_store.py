"""Alerts and mutes in both databases: written, written again, found, ended."""

import asyncio

from gpudeck.alerts.record import AlertRecord
from gpudeck.alerts.store import AlertQuery, AlertStore
from gpudeck.database.engine import Database
from gpudeck.model.alert import Mute

NOW = 1_790_000_000.0


def record(number: int, **others: object) -> AlertRecord:
    facts = {"rule": "host_down", "severity": "critical", "state": "firing", "title": f"gpu{number} \0 down"}
    where = {"host": f"gpu{number}", "host_id": f"m{number}", "gpu": "", "part": "", "label": None, "model": None}
    return AlertRecord(**({"id": f"a{number}", "action": "", "since": NOW, "fired_at": NOW} | facts | where | others))  # type: ignore[arg-type]


def test_lives_are_kept_as_they_were_last(database: Database) -> None:
    store = AlertStore(database)

    async def live() -> tuple[list[AlertRecord], list[str]]:
        await store.write([record(number) for number in range(450)])
        over = [record(number, state="resolved", resolved_at=NOW + number) for number in range(3, 450)]
        await store.write(over)
        ask = AlertQuery(severities=("critical",), limit=2)
        found = [alert.id for alert in await store.find_resolved(ask)]
        found += [alert.id for alert in await store.find_resolved(AlertQuery(host="gpu7", rule="host_down"))]
        found += [alert.id for alert in await store.find_resolved(AlertQuery(host="gpu\x007"))]
        return await store.load(NOW + 2 * 3600), found

    loaded, found = asyncio.run(live())
    assert sorted(one.id for one in loaded) == ["a0", "a1", "a2"]
    assert loaded[0].title.endswith("\0 down")
    assert found == ["a449", "a448", "a7"]


def test_end_that_was_not_told_is_found_however_old(database: Database) -> None:
    store = AlertStore(database)

    async def live() -> list[str]:
        await store.write([record(1, state="resolved", resolved_at=NOW, is_told=True), record(2, state="resolved")])
        return [one.id for one in await store.load(NOW + 86_400)]

    assert asyncio.run(live()) == ["a1"]


def test_silences_are_kept_until_their_end(database: Database) -> None:
    store = AlertStore(database)
    facts = {"start": NOW, "created_at": NOW, "created_by": "root", "reason": "work", "labels": {"a": "\0"}}
    short, long = (Mute(id=name, end=NOW + span, **facts) for name, span in (("s", 60.0), ("l", 600.0)))  # type: ignore[arg-type]

    async def live() -> list[list[Mute]]:
        await store.write_mute(short)
        await store.write_mute(long)
        found = [await store.load_mutes(NOW), await store.load_mutes(NOW + 100)]
        await store.delete_mute("l")
        await store.delete_mute("nobody")
        return [*found, await store.load_mutes(NOW)]

    found = asyncio.run(live())
    assert [sorted(one.id for one in some) for some in found] == [["l", "s"], ["l"], ["s"]]
    assert found[1] == [long]
