"""What the database knows of a past moment: reservations, alerts and driver errors, and what is not known of them."""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from fakes.api_app import make_alerts, make_app, make_auth
from fakes.store import FakeStore
from gpudeck.alerts.record import AlertRecord
from gpudeck.alerts.store import AlertStore
from gpudeck.database.engine import Database
from gpudeck.events.service import EventLog
from gpudeck.events.settings import EventSettings
from gpudeck.events.store import EventQuery
from gpudeck.fleet.hub import Hub
from gpudeck.model.errors import Temporary
from gpudeck.model.event import Event, make_event
from gpudeck.model.reservation import ReservedGpu
from gpudeck.reservations.store import ReservationStore

AT = time.time() // 1 - 10 * 86_400
HOUR = 3600.0


def past(folder: Path, at: float = AT, events: type[EventLog] = EventLog) -> dict[str, Any]:
    auth = make_auth(folder)

    async def ask() -> httpx.Response:
        await fill(auth.database)
        log = events(auth.database, EventSettings())
        log.keep(xid(AT - HOUR, 79))
        log.keep(xid(AT + HOUR, 31))
        alerts = make_alerts(auth.database)
        app = make_app(Hub(), auth=auth, history=FakeStore(), events=log, alerts=alerts)
        transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://hub.example") as client:
            return await client.get(f"/api/v1/fleet?at={at}")

    answer: dict[str, Any] = asyncio.run(ask()).json()
    return answer


def xid(at: float, code: int) -> Event:
    detail = "GPU has fallen off the bus, process 42. Restart the host."
    title = f"XID {code} on GPU 0: whatever"
    return make_event(at, "xid", title, severity="critical", host="gpu01", gpu="GPU-100", user="alice", detail=detail)


async def fill(database: Database) -> None:
    for start, end, user in ((AT - HOUR, AT + HOUR, "carol"), (AT - 9 * HOUR, AT, "dan"), (AT + 1, AT + HOUR, "eve")):
        async with ReservationStore(database).write_transaction() as transaction:
            row: dict[str, Any] = {"kind": "reservation", "user": user, "start": start, "end": end, "note": ""}
            row |= {"created_at": start, "created_by": user, "changed_at": start}
            await transaction.add(row, [ReservedGpu("GPU-100", "gpu01", "0")])
    times = {
        "then": (AT - HOUR, AT + HOUR, AT + 60),
        "seen": (AT - HOUR, None, AT - 60),
        "before": (AT - HOUR, AT - 60, None),
        "later": (AT + 1, None, None),
        "pending": (None, None, None),
    }
    await AlertStore(database).write(
        AlertRecord(
            id=name,
            rule="gpu_lost",
            severity="critical" if name == "seen" else "warning",
            state="resolved" if end else "pending" if begin is None else "acknowledged" if noticed else "firing",
            title=name,
            action="",
            host="gpu01",
            host_id="id-1",
            gpu="GPU-100",
            part=name,
            label="0",
            model=None,
            since=AT - 2 * HOUR,
            fired_at=begin,
            acknowledged_at=noticed,
            acknowledged_by="bob" if noticed else None,
            resolved_at=end,
        )
        for name, (begin, end, noticed) in times.items()
    )


def test_reservations_alerts_and_driver_errors_are_those_of_the_moment(tmp_path: Path) -> None:
    found = past(tmp_path)
    (gpu,) = found["hosts"][0]["gpus"]
    assert (gpu["reservation"]["user"], gpu["reservation"]["until"]) == ("carol", AT + HOUR)
    assert [(one["code"], one["user"], one["at"]) for one in gpu["events"]] == [(79, "alice", AT - HOUR)]
    assert gpu["events"][0]["message"].startswith("GPU has fallen off the bus")
    assert (gpu["health"], "XID 79" in gpu["health_reason"]) == ("critical", True)
    assert [(one["id"], one["state"], one["acknowledged_by"], one["resolved_at"]) for one in found["alerts"]] == [
        ("seen", "acknowledged", "bob", None),
        ("then", "firing", None, None),
    ]
    assert found["alert_counts"] == {"total": 2, "needs_attention": 1, "critical": 0}
    assert found["problems"] == []


def test_what_is_no_longer_kept_is_said(tmp_path: Path) -> None:
    found = past(tmp_path, at=AT - 900 * 86_400)
    assert found["alerts"] == []
    assert any("no longer kept" in one and "Alerts" in one for one in found["problems"])
    assert any("no longer kept" in one and "Driver errors" in one for one in found["problems"])


class DeafLog(EventLog):
    async def find(self, ask: EventQuery) -> list[Event]:
        raise Temporary("the disk is away")


@pytest.mark.filterwarnings("ignore")
def test_a_part_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    found = past(tmp_path, events=DeafLog)
    (gpu,) = found["hosts"][0]["gpus"]
    assert gpu["reservation"]["user"] == "carol"
    assert len(found["alerts"]) == 2
    assert found["problems"] == [
        "The driver errors of that moment cannot be read now: the hub's database does not answer."
    ]
