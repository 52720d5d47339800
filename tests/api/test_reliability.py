"""The flakiest GPUs and hosts: what counts, for how long it lasted, and what stands behind it."""

import asyncio
import time

import httpx
import msgspec
import pytest

from fakes.api_app import make_alerts, make_app
from fakes.reports import make_envelope
from gpudeck.alerts.record import AlertRecord
from gpudeck.alerts.store import AlertStore
from gpudeck.api.events import ReliabilityRanking
from gpudeck.database.engine import Database
from gpudeck.events.service import EventLog
from gpudeck.events.settings import EventSettings
from gpudeck.events.store import FaultCount
from gpudeck.fleet.hub import Hub
from gpudeck.model.event import Event, Reliability, ReliabilityRow, Severity, make_event

NOW = time.time() // 1
HOUR, DAY = 3600.0, 86_400.0


def event(
    ago: float, kind: str, host: str, gpu: str | None = None, severity: Severity = "critical", *, title: str = ""
) -> Event:
    label, title = None if gpu is None else gpu[-1], title or kind
    return make_event(NOW - ago, kind, title, severity=severity, host=host, host_id=f"id-{host}", gpu=gpu, label=label)


HAPPENED = [
    event(2 * DAY, "xid", "a", "GPU-1", title="XID 79 on GPU 1: fallen off the bus"),
    event(3 * DAY, "xid", "a", "GPU-1", title="XID 79 on GPU 1: fallen off the bus"),
    event(1 * DAY, "gpu_lost", "a", "GPU-1"),
    event(1 * DAY - 2 * HOUR, "gpu_found", "a", "GPU-1", "info"),
    # A program's fault is shown, and not counted.
    *(
        event(hours * HOUR, "xid", "b", "GPU-2", "info", title="XID 31 on GPU 2: illegal memory access")
        for hours in (1, 2, 3)
    ),
    event(4 * HOUR, "health_raised", "b", "GPU-2", "warning"),
    # Lost before the period, and until today.
    event(40 * DAY, "gpu_lost", "c", "GPU-3"),
    event(5 * HOUR, "host_down", "b"),
    event(4 * HOUR, "host_up", "b", None, "info"),
    event(50 * DAY, "xid", "d", "GPU-4", title="XID 48 on GPU 4: double bit ECC error"),
]


async def fill(database: Database) -> EventLog:
    log = EventLog(database, EventSettings())
    for one in HAPPENED:
        log.keep(one)
    await AlertStore(database).write(
        AlertRecord(
            id=f"a{number}",
            rule=rule,
            severity="warning",
            state="resolved" if end is not None else "firing",
            title=rule,
            action="",
            host="e",
            host_id="id-e",
            gpu="GPU-5",
            part="",
            label="5",
            model=None,
            since=NOW - ago,
            fired_at=NOW - ago,
            resolved_at=None if end is None else NOW - end,
        )
        for number, (rule, ago, end) in enumerate(
            (("gpu_throttled", 40 * DAY, 29 * DAY), ("gpu_throttled", HOUR, None), ("gpu_hot", HOUR, None))
        )
    )
    return log


def ask(database: Database, query: str) -> httpx.Response:
    async def get() -> httpx.Response:
        log = await fill(database)
        app = make_app(Hub(), events=log, alerts=make_alerts(database))
        transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://hub.example") as client:
            return await client.get(f"/api/v1/reliability?{query}")

    return asyncio.run(get())


def rank(database: Database, query: str) -> Reliability:
    return msgspec.json.decode(ask(database, query).content, type=Reliability)


def figures(row: ReliabilityRow) -> tuple[str, int, float, float]:
    return row.gpu or row.host, row.incidents, round(row.lost_seconds / HOUR), round(row.throttled_seconds / HOUR)


def test_gpus_are_ranked_by_their_score_and_each_point_has_its_evidence(database: Database) -> None:
    found = rank(database, f"start={NOW - 30 * DAY}&end={NOW}")
    assert [figures(row) for row in found.rows] == [
        ("GPU-1", 3, 2, 0),
        ("GPU-3", 0, 720, 0),
        ("GPU-5", 0, 0, 25),
        ("GPU-2", 1, 0, 0),
    ]
    assert [row.score for row in found.rows] == [38, 80, 94, 95]
    assert (found.total, found.by, found.problems) == (4, "gpu", [])
    evidence = [(one.kind, one.count, one.is_incident, one.seconds, one.points) for one in found.rows[0].evidence]
    assert evidence == [("xid", 2, True, None, 40), ("gpu_lost", 1, True, 2 * HOUR, 22)]
    assert [(one.kind, one.count, one.is_incident) for one in found.rows[3].evidence] == [
        ("health_raised", 1, True),
        ("xid", 3, False),
    ]
    assert [(one.kind, one.count) for one in found.rows[2].evidence] == [("gpu_throttled", 2)]
    assert (found.rows[0].host, found.rows[0].label) == ("a", "1")


def test_a_host_has_its_gpus_faults_and_its_own_time(database: Database) -> None:
    found = rank(database, f"by=host&start={NOW - 30 * DAY}&end={NOW}&limit=2")
    assert [figures(row) for row in found.rows] == [("a", 3, 0, 0), ("b", 2, 1, 0)]
    assert (found.total, found.rows[0].gpu, found.rows[0].label) == (3, None, None)


def test_what_is_no_longer_kept_is_said(database: Database) -> None:
    found = rank(database, f"start={NOW - 1000 * DAY}&end={NOW}")
    assert {row.gpu for row in found.rows} >= {"GPU-4"}
    assert len(found.problems) == 2


def test_a_range_that_ends_before_it_begins_is_empty_and_says_so(database: Database) -> None:
    found = rank(database, f"start={NOW}&end={NOW - DAY}")
    assert (found.rows, found.problems) == ([], ["The time range ends before it begins."])


@pytest.mark.parametrize("query", ["by=user", "start=soon", "limit=0"])
def test_a_question_that_makes_no_sense_is_refused(database: Database, query: str) -> None:
    assert ask(database, query).status_code == 400


def test_one_gpu_has_the_row_of_the_ranking_and_no_other(database: Database) -> None:
    ranked = rank(database, f"start={NOW - 30 * DAY}&end={NOW}")
    for row in ranked.rows:
        assert rank(database, f"start={NOW - 30 * DAY}&end={NOW}&gpu={row.gpu}").rows == [row]
    assert rank(database, f"start={NOW - 30 * DAY}&end={NOW}&gpu=GPU-nobody-knows").rows == []


def test_a_score_has_a_floor_and_each_kind_a_limit() -> None:
    rows = []
    for times in (1, 3, 1000):
        ranking = ReliabilityRanking("gpu", NOW - DAY, NOW)
        ranking.add_faults([FaultCount("a", "id-a", "GPU-1", "1", "xid", "critical", "XID 79", times, NOW)])
        rows += ranking.finish(Hub().fleet, 1, []).rows
    assert [row.score for row in rows] == [80, 40, 40]
    ranking.add_faults([FaultCount("a", "id-a", "GPU-1", "1", "gpu_lost", "critical", "", 1000, NOW)])
    assert ranking.finish(Hub().fleet, 1, []).rows[0].score == 0


def test_a_gpu_without_faults_has_100_where_it_is_in_the_fleet() -> None:
    hub = Hub()
    hub.fleet.apply(make_envelope("gpu01"), via="push", now=NOW)
    ranking = ReliabilityRanking("gpu", NOW - DAY, NOW, "GPU-0")
    ranking.add_known(hub.fleet, "GPU-0")
    (row,) = ranking.finish(hub.fleet, 1, []).rows
    assert (row.host, row.label, row.score, row.evidence) == ("gpu01", "0", 100, [])
