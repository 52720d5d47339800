"""Alerts in the database: what is written before anything is sent, what a restart finds, a database that is away."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from alerts.watched import NOW, Watched
from fakes.api_app import make_auth
from fakes.reports import make_gpu
from gpudeck.alerts.notifiers.rendering import Message
from gpudeck.alerts.record import describe
from gpudeck.alerts.service import AlertManager
from gpudeck.alerts.settings import AlertSettings, RuleChange
from gpudeck.alerts.store import AlertQuery, AlertStore
from gpudeck.database.schema import alerts
from gpudeck.model.alert import Mute
from gpudeck.model.errors import Temporary

AT_ONCE = AlertSettings(rules={"gpu_hot": RuleChange(wait=0.0)}, group_wait=0.0)
HOT = make_gpu(metrics={"temperature_celsius": 91})


class Site:
    """A fleet of one hot GPU, with alerts that are kept. `restart` is what a kill and a start leave."""

    def __init__(self, folder: Path, fleet: str = "real") -> None:
        self.watched = Watched(AT_ONCE)
        self.watched.post = lambda: None  # type: ignore[method-assign]
        self.database = make_auth(folder).database
        self.store = AlertStore(self.database, fleet)
        self.sent: list[Message] = []
        self.watched.report("gpu01", HOT)
        self.alerts = self.make()

    def make(self) -> AlertManager:
        self.watched.engine = self.watched.make_engine()
        return AlertManager(
            self.watched.engine, self.store, self.watched.events.append, self.sent.append, now=self.watched.clock
        )

    async def restart(self) -> None:
        self.alerts = self.make()
        await self.alerts.load()

    async def run(self, seconds: float) -> None:
        self.watched.run(seconds)
        await self.alerts.flush()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_restart_finds_what_fires_and_sends_nothing_twice(site: Site) -> None:
    async def live() -> None:
        await site.run(60)
        await site.restart()
        assert site.watched.rules() == ["gpu_hot"]
        await site.run(600)
        site.watched.report("gpu01", make_gpu())
        await site.run(600)
        await site.restart()
        await site.run(600)

    asyncio.run(live())
    assert [message.title for message in site.sent] == [
        "GPU 0 of gpu01 is at 91 °C",
        "Resolved: GPU 0 of gpu01 is at 91 °C",
    ]


def test_what_was_kept_takes_the_place_of_what_was_found_before_it_could_be_read(site: Site) -> None:
    async def live() -> list[str]:
        await site.run(60)
        (before,) = site.alerts.active(["firing"])
        site.alerts = site.make()
        site.watched.run(60)
        assert [alert.id for alert in site.alerts.active(["firing"])] != [before.id]
        site.watched.engine.outgoing.clear()  # as its outbox is away with the database
        await site.alerts.load()
        await site.run(600)
        return [before.id, *(alert.id for alert in site.alerts.active(["firing"]))]

    kept, found = asyncio.run(live())
    assert kept == found
    assert len(site.sent) == 1


def test_state_is_written_before_its_message_is_sent(site: Site) -> None:
    order: list[str] = []
    write = site.store.write

    async def note(records: Any) -> None:
        records = list(records)
        order.extend(
            f"write {record.state} {record.message is not None} {record.told_at is not None}" for record in records
        )
        await write(records)

    site.store.write = note  # type: ignore[method-assign]
    site.alerts.send = lambda message: order.append("send")
    asyncio.run(site.run(30))
    assert order == ["write firing True False", "send", "write firing True True"]


def test_kill_between_sending_and_noting_it_sends_under_the_same_key(site: Site) -> None:
    async def die() -> None:
        raise Temporary("killed")

    async def live() -> None:
        site.alerts.settle = die
        with pytest.raises(Temporary):
            await site.run(30)
        await site.restart()
        await site.run(30)

    asyncio.run(live())
    assert len(site.sent) == 2
    assert len({message.key for message in site.sent}) == 1


def test_database_that_is_away_keeps_no_message_back_and_is_written_later(site: Site) -> None:
    write = site.store.write

    async def refuse(_: Any) -> None:
        raise Temporary("the database does not answer.")

    async def live() -> None:
        site.store.write = refuse  # type: ignore[method-assign]
        with pytest.raises(Temporary):
            await site.run(30)
        assert len(site.sent) == 1
        site.store.write = write  # type: ignore[method-assign]
        await site.run(30)
        await site.restart()

    asyncio.run(live())
    assert site.watched.record("gpu_hot").told_at is not None
    assert len(site.sent) == 1


def test_acknowledgement_and_mute_outlive_a_restart(site: Site) -> None:
    mute = Mute(id="", start=NOW, end=NOW + 9e3, created_at=0, created_by="root", reason="fans", host="gpu*")

    async def live() -> None:
        await site.run(30)
        (record,) = site.watched.engine.firing()
        assert await site.alerts.acknowledge_all([record.id], "ada")
        await site.alerts.mute(mute)
        await site.restart()

    asyncio.run(live())
    assert [(alert.state, alert.acknowledged_by) for alert in site.alerts.active(["acknowledged"])] == [
        ("acknowledged", "ada")
    ]
    assert [(one.host, one.reason, one.created_by) for one in site.alerts.mutes()] == [("gpu*", "fans", "root")]
    assert "alert_muted" in site.watched.kinds()


def test_fleets_are_kept_apart(tmp_path: Path) -> None:
    demo, real = Site(tmp_path, "demo-8"), Site(tmp_path, "real")

    async def live() -> None:
        await demo.run(30)
        await real.alerts.load()

    asyncio.run(live())
    assert real.watched.firing() == []


def test_names_that_no_database_takes_are_kept_all_the_same(site: Site) -> None:
    async def live() -> None:
        await site.run(30)
        (record,) = site.watched.engine.firing()
        record.title, record.labels = "half a \ud83d and a \0", {"a\0": "\udfff"}
        site.watched.engine.changed[record.id] = record
        await site.alerts.flush()
        await site.restart()

    asyncio.run(live())
    assert site.watched.rules() == ["gpu_hot"]


def test_row_that_cannot_be_read_does_not_hide_the_others(site: Site) -> None:
    async def live() -> None:
        await site.run(30)
        async with site.database.begin() as connection:
            row = {"fleet": "real", "id": "x", "rule": "of tomorrow", "severity": "info", "state": "firing"}
            row |= {"host_id": "", "is_open": 1, "fired_at": NOW, "body": '{"id": 7}'}  # type: ignore[dict-item]
            await connection.execute(alerts.insert().values(row))
        await site.restart()

    asyncio.run(live())
    assert site.watched.rules() == ["gpu_hot"]


def test_old_alerts_are_deleted_and_those_that_fire_are_not(site: Site) -> None:
    async def live() -> tuple[int, int]:
        await site.run(30)
        site.watched.report("gpu01", make_gpu())
        await site.run(600)
        before = len(await site.alerts.store.find_resolved(AlertQuery()))
        site.watched.report("gpu01", HOT)
        await site.run(30)
        await site.store.trim(site.watched.clock.now + 91 * 86_400)
        await site.restart()
        return before, len(await site.alerts.store.find_resolved(AlertQuery()))

    assert asyncio.run(live()) == (1, 0)
    assert site.watched.rules() == ["gpu_hot"]


def test_writer_goes_on_by_itself_and_says_when_the_database_is_away(site: Site) -> None:
    written = asyncio.Event()
    problem: list[str | None] = []

    async def live() -> None:
        async def refuse(_: Any) -> None:
            written.set()
            raise Temporary("the database does not answer.")

        site.store.write = refuse  # type: ignore[method-assign]
        site.alerts.start()
        site.watched.run(30)
        site.alerts.wake()
        await asyncio.wait_for(written.wait(), 10)
        # The writer says it as soon as it has its turn again.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        problem.append(site.alerts.problem)
        await site.alerts.stop()

    asyncio.run(asyncio.wait_for(live(), 20))
    assert problem[0] == "alerts are not kept: the hub's database does not take them now."


@pytest.mark.parametrize(
    ("fits", "text"),
    [
        ({"rule": "disk_full", "hosts": ["gpu08"]}, "disk_full, host gpu08"),
        ({"rule": "gpu_hot"}, "gpu_hot"),
        ({"rule": "gpu_*", "host": "gpu-1*", "labels": {"rack": "4"}}, "gpu_*, host gpu-1*, rack=4"),
    ],
)
def test_mute_is_described(fits: dict[str, Any], text: str) -> None:
    mute = Mute(id="m", start=0.0, end=1.0, created_at=0.0, created_by="ada", reason="fans", **fits)
    assert describe(mute) == text
