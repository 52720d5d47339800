"""From one hub with SQLite and its own history to a real PostgreSQL and a real store, also interrupted."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import delete, insert, select

from fakes.clock import FakeClock
from fakes.commands import gpudeck_here
from fakes.hubs import HubProcess, environment, running_hub
from fakes.ports import free_port
from fakes.postgres import PostgresServer
from fakes.prometheus import Kind, StoreProcess, running_store
from fakes.waiting import wait_until
from gpudeck.collectors.simulated import SimulatedFleet
from gpudeck.database.engine import open_database
from gpudeck.database.schema import (
    accounts,
    alerts,
    audit,
    events,
    metadata,
    reservation_gpus,
    reservations,
    sessions,
    tokens,
)
from gpudeck.demo.past import Slice, sample_span
from gpudeck.history.base import SeriesQuery
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.remote.store import RemoteStore
from gpudeck.history.settings import HistorySettings

NOW = time.time()
BEGIN = NOW // 3600 * 3600 - 4 * 3600.0
HOSTS = 2
ROWS: list[tuple[Any, dict[str, object]]] = [
    (
        accounts,
        {"id": 3, "name": "alice", "role": "admin", "password_hash": "$argon2id$v=19$m=1,t=2$a", "created_at": 1.5},
    ),
    (accounts, {"id": 7, "name": "bob", "role": "user", "created_at": 1_790_000_000.12345}),
    (accounts, {"id": 11, "name": "gone", "role": "user", "created_at": 1.0}),
    (sessions, {"hash": "ab" * 32, "account_id": 3, "created_at": 1.0, "seen_at": NOW, "user_agent": 'a "browser", 1'}),
    (
        tokens,
        {"id": 4, "hash": "cd" * 32, "name": "", "role": "agent", "created_at": 1.0, "account_id": 7, "hosts": "gpu*"},
    ),
    (audit, {"id": 9, "at": NOW - 60, "who": "alice", "action": "add host", "details": "two\nlines, é; \\N"}),
    (
        events,
        {
            "fleet": "real",
            "id": "1a0",
            "at": NOW - 60,
            "kind": "xid",
            "severity": "info",
            "title": "a\0, b",
            "user": "b",
        },
    ),
    (
        reservations,
        {"id": 5, "fleet": "real", "kind": "reservation", "user": "bob", "start": NOW, "end": NOW + 9e4, "version": 1}
        | {"created_at": NOW, "created_by": "bob", "changed_at": NOW, "note": "training"},
    ),
    (reservation_gpus, {"reservation_id": 5, "uuid": "GPU-1", "host": "gpu01", "label": "0"}),
    (
        alerts,
        {"fleet": "real", "id": "a1", "rule": "host_down", "severity": "critical", "state": "resolved", "body": "{}"}
        | {"host_id": "h", "is_open": 0, "fired_at": NOW - 900, "resolved_at": NOW - 60},
    ),
]


@pytest.fixture(scope="module")
def victoria() -> Iterator[StoreProcess]:
    """For tests that write nothing to it, or to a tenant of their own."""
    with running_store("victoria-metrics") as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The data folder of a hub with SQLite that has run for three hours and a bit."""
    asyncio.run(fill(tmp_path))
    keep_samples(tmp_path, HOSTS)
    return tmp_path


async def fill(data_dir: Path) -> None:
    database = await open_database(None, data_dir)
    async with database.begin() as connection:
        for table, row in ROWS:
            await connection.execute(insert(table).values(**row))
        await connection.execute(delete(accounts).where(accounts.c.id == 11))
    await database.close()


def keep_samples(folder: Path, hosts: int, seconds: float = 3.2 * 3600, step: float = 30.0) -> None:
    """Fed hour by hour, as a hub does it: whole hours are sealed, the last one is not."""
    fleet, clock = SimulatedFleet(hosts, seed=1), FakeClock(BEGIN)
    with contextlib.closing(EmbeddedStore(folder / "history.db", HistorySettings(), clock)) as store:
        for begin in np.arange(BEGIN, BEGIN + seconds, 3600.0).tolist():
            span = Slice(begin, min(begin + 3600.0, BEGIN + seconds), step)
            samples = [sample for host in range(hosts) for sample in sample_span(fleet, host, span)]
            clock.advance(3600.0)
            store.take(sorted(samples, key=lambda one: one.at))
            assert store.flush()
        wait_until(lambda: seconds < 7200 or store.stats().parts["chunks"], "sealed hours")


async def read(address: str | None, data_dir: Path) -> dict[str, list[object]]:
    database = await open_database(address, data_dir)
    async with database.begin() as connection:
        found = {name: (await connection.execute(select(table))).all() for name, table in metadata.tables.items()}
    await database.close()
    return {name: sorted(map(tuple, rows), key=repr) for name, rows in found.items()}


def configure(folder: Path, database: str, store: StoreProcess | None, **others: object) -> None:
    settings: dict[str, object] = {"demo": "never", "local": "never", "database": database, **others}
    if store is not None:
        settings["history"] = {"kind": "prometheus", "write_url": store.write_url, "read_url": store.read_url}
    (folder / "gpudeck.yaml").write_text(json.dumps(settings))


def charts(store: EmbeddedStore | RemoteStore) -> list[Any]:
    """Of the fleet, of a host and of a GPU, and by user: the points, without low and high where those are rounded."""
    end = BEGIN + 3.2 * 3600
    fleet = SimulatedFleet(HOSTS, seed=1)
    gpu = next(iter(sample_span(fleet, 0, Slice(BEGIN, BEGIN + 30, 30.0)))).gpus[0].uuid
    queries = [
        SeriesQuery("utilization_percent", BEGIN, end, 40, fleet=True),
        SeriesQuery("gpus_busy", BEGIN, end, 40, fleet=True),
        SeriesQuery("memory_used_bytes", BEGIN, end, 200, gpu=gpu),
        SeriesQuery("power_watts", BEGIN, end, 40, host=fleet.names[1], by="gpu"),
        SeriesQuery("cpu_percent", BEGIN, end, 40, host=fleet.names[1]),
        SeriesQuery("memory_used_bytes", BEGIN, end, 40, gpu=gpu, by="user"),
    ]
    found = []
    for query in queries:
        series = sorted(store.series(query).series, key=lambda one: (one.gpu or "", one.user or ""))
        found += [(one.gpu, one.user, [(at, mean) for at, mean, *_ in one.points]) for one in series]
    return found


def assert_same(before: list[Any], after: list[Any]) -> None:
    assert [one[:2] for one in after] == [one[:2] for one in before]
    for (_, _, old), (_, _, new) in zip(before, after, strict=True):
        assert [at for at, _ in new] == [at for at, _ in old]
        assert [mean for _, mean in new] == pytest.approx([mean for _, mean in old], rel=1e-6, nan_ok=True)


def charts_of_file(folder: Path) -> list[Any]:
    with contextlib.closing(EmbeddedStore(folder / "history.db", HistorySettings(), lambda: NOW)) as local:
        return charts(local)


def charts_of_store(folder: Path, server: StoreProcess) -> list[Any]:
    settings = HistorySettings(kind="prometheus", write_url=server.write_url, read_url=server.read_url)
    local = EmbeddedStore(folder / "history.db", settings, lambda: NOW, keep_samples=False)
    with contextlib.closing(RemoteStore(settings, folder, local, lambda: NOW)) as remote:
        return charts(remote)


@pytest.mark.parametrize("kind", ["victoria-metrics", pytest.param("prometheus", marks=pytest.mark.slow)])
def test_tables_and_samples_are_the_same_afterwards_and_the_old_ones_are_kept(
    kind: Kind, folder: Path, postgres: PostgresServer
) -> None:
    address = postgres.make_database()
    before, drawn = asyncio.run(read(None, folder)), charts_of_file(folder)
    with running_store(kind) as store:
        configure(folder, address, store)
        planned = gpudeck_here(folder, "cluster", "migrate", "--dry-run")
        assert (planned.returncode, "would be copied" in planned.stdout) == (0, True), planned.stderr
        assert not (folder / "cluster-migration.json").exists()
        done = gpudeck_here(folder, "cluster", "migrate")
        assert (done.returncode, "Verified" in done.stdout) == (0, True), done.stderr
        again = gpudeck_here(folder, "cluster", "migrate")
        assert (again.returncode, again.stdout.count("already")) == (0, 2), again.stderr
        assert_same(drawn, charts_of_store(folder, store))
    after = asyncio.run(read(address, folder))
    # PostgreSQL has no null in texts.
    assert after.pop("events")[0][-2] == "a, b"  # type: ignore[index]
    assert after == {name: rows for name, rows in before.items() if name != "events"}
    assert asyncio.run(read(None, folder)) == before
    assert asyncio.run(add_account(address, folder)) == 12


async def add_account(address: str, data_dir: Path) -> int:
    """The id that it gets: none that was ever used."""
    database = await open_database(address, data_dir)
    async with database.begin() as connection:
        added = await connection.execute(insert(accounts).values(name="carol", role="user", created_at=1.0))
    await database.close()
    return int((added.inserted_primary_key or (0,))[0])


def test_hub_with_the_new_configuration_shows_what_the_old_one_did(folder: Path, postgres: PostgresServer) -> None:
    paths = [
        "/api/v1/reservations",
        "/api/v1/events?kind=xid",
        f"/api/v1/history?fleet=1&metric=utilization_percent&start={BEGIN}&end={BEGIN + 10_800}&points=40",
        f"/api/v1/usage?by=user&start={BEGIN}&end={BEGIN + 10_800}",
    ]
    (folder / "gpudeck.yaml").write_text(json.dumps({"demo": "never", "local": "never"}))
    with running_hub(folder) as hub:
        before = [answer(hub, path) for path in paths]
        with running_store("victoria-metrics") as store:
            configure(folder, postgres.make_database(), store)
            refused = gpudeck_here(folder, "cluster", "migrate")
            assert (refused.returncode, "a hub runs on" in refused.stderr) == (2, True)
            hub.stop()
            done = gpudeck_here(folder, "cluster", "migrate")
            assert done.returncode == 0, done.stderr
            with running_hub(folder) as moved:
                after = [answer(moved, path) for path in paths]
    assert after == before


def answer(hub: HubProcess, path: str) -> Any:
    """Without what says when and how it was answered; numbers to six digits."""
    token = (hub.data_dir / "admin.token").read_text().strip()
    request = urllib.request.Request(hub.url + path, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as opened:
        # PostgreSQL has no null in texts.
        body = opened.read().replace(rb"\u0000", b"")
    found = json.loads(body, parse_float=lambda text: float(f"{float(text):.6g}"))
    return {name: value for name, value in found.items() if name not in {"time", "now", "resolution", "watermark"}}


def test_interrupted_migration_goes_on_and_sends_nothing_twice(folder: Path, postgres: PostgresServer) -> None:
    drawn = charts_of_file(folder)
    with running_store("victoria-metrics") as store:
        configure(folder, postgres.make_database(), store)
        note = folder / "cluster-migration.json"
        process = subprocess.Popen(
            [sys.executable, "-m", "gpudeck", "cluster", "migrate", "--rate", "20000"],
            cwd=folder,
            env=environment(folder),
            stdout=subprocess.DEVNULL,
        )
        wait_until(partial(is_sending, note), "some samples")
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        assert not json.loads(note.read_text())["is_complete"]
        done = gpudeck_here(folder, "cluster", "migrate")
        # It compares the number of samples of each hour: one that was sent twice would be found.
        assert (done.returncode, "Verified" in done.stdout) == (0, True), done.stderr
        assert_same(drawn, charts_of_store(folder, store))


def is_sending(note: Path) -> bool:
    return note.exists() and bool(json.loads(note.read_text())["sent"])


def test_targets_that_cannot_be_used_are_refused_and_nothing_is_changed(
    folder: Path, postgres: PostgresServer, victoria: StoreProcess
) -> None:
    (folder / "gpudeck.yaml").write_text("{}")
    nowhere = gpudeck_here(folder, "cluster", "migrate")
    assert (nowhere.returncode, "where the data goes" in nowhere.stderr) == (2, True)
    configure(folder, f"postgresql://gpudeck@127.0.0.1:{free_port()}/gpudeck", victoria)
    away = gpudeck_here(folder, "cluster", "migrate")
    assert (away.returncode != 0, "cannot be reached" in away.stderr) == (True, True), away.stderr
    other = postgres.make_database()
    asyncio.run(add_account(other, folder))
    configure(folder, other, victoria)
    taken = gpudeck_here(folder, "cluster", "migrate")
    assert (taken.returncode, "another hub: accounts (1)" in taken.stderr) == (2, True), taken.stderr
    assert not (folder / "cluster-migration.json").exists()


def test_store_that_is_away_or_has_another_fleet_is_refused_and_the_tables_can_be_moved_alone(
    folder: Path, postgres: PostgresServer, victoria: StoreProcess, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    asyncio.run(fill(other))
    keep_samples(other, 1, 600.0)
    configure(other, postgres.make_database(), victoria)
    assert gpudeck_here(other, "cluster", "migrate").returncode == 0
    configure(folder, postgres.make_database(), None)
    alone = gpudeck_here(folder, "cluster", "migrate")
    assert (alone.returncode, "the samples stay" in alone.stdout) == (0, True), alone.stderr
    (folder / "cluster-migration.json").unlink()
    configure(folder, postgres.make_database(), victoria)
    strange = gpudeck_here(folder, "cluster", "migrate")
    assert (strange.returncode, "has samples of" in strange.stderr) == (2, True), strange.stderr
    dead = StoreProcess("victoria-metrics", tmp_path_factory.mktemp("dead"))
    (folder / "cluster-migration.json").unlink()
    configure(folder, postgres.make_database(), dead)
    away = gpudeck_here(folder, "cluster", "migrate")
    assert (away.returncode, "the store cannot be used" in away.stderr) == (1, True), away.stderr
