"""Whether jobs may start on a host, over HTTP: what drains, what is unknown, and what is asked about some GPUs only."""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from alerts.watched import Watched
from fakes.api_app import make_alerts, make_app, make_auth
from fakes.reports import make_gpu
from gpudeck.alerts.settings import AlertSettings, RuleChange
from gpudeck.model.report import GpuEvent
from gpudeck.model.reservation import MaintenanceWindow

CRITICAL_ECC = AlertSettings(rules={"ecc": RuleChange(severity="critical", wait=0.0)})  # type: ignore[dict-item]


class Fleet:
    """gpu01 with three GPUs, of which the second can be changed by a test."""

    def __init__(self, folder: Path, settings: AlertSettings | None = None) -> None:
        auth = make_auth(folder)
        alerts = make_alerts(auth.database, settings)
        self.watched = Watched(settings, now=time.time())
        self.watched.engine = alerts.engine
        self.report()
        self.app: Any = make_app(self.watched.hub, auth=auth, folder=folder, alerts=alerts)

    def report(self, *, metrics: dict[str, Any] | None = None, **others: Any) -> None:
        middle = make_gpu(1, metrics=metrics, **others)
        self.watched.report("gpu01", make_gpu(0), middle, make_gpu(2))
        self.watched.run(20)

    def get(self, path: str) -> httpx.Response:
        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, client=("192.0.2.7", 40000))
            async with httpx.AsyncClient(transport=transport, base_url="http://hub.example") as http:
                return await http.get(path)

        return asyncio.run(call())

    def ask(self, query: str = "") -> dict[str, Any]:
        answer = self.get(f"/api/v1/hosts/gpu01/health{query}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def verdicts(self, query: str = "") -> tuple[str, dict[str, str]]:
        found = self.ask(query)
        return found["verdict"], {gpu["label"]: gpu["verdict"] for gpu in found["gpus"]}


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def test_healthy_gpus_are_ok_and_a_warning_is_no_reason_to_drain(fleet: Fleet) -> None:
    assert fleet.verdicts() == ("ok", {"0": "ok", "1": "ok", "2": "ok"})
    fleet.report(metrics={"remapped_rows_pending": 1})
    found = fleet.ask()
    assert (found["verdict"], found["gpus"][1]["reasons"]) == ("ok", ["row remap pending"])


def test_a_critical_fault_drains_its_host_and_names_the_gpu(fleet: Fleet) -> None:
    fleet.report(events=[GpuEvent(at=fleet.watched.clock.now - 60, code=79)])
    found = fleet.ask()
    assert found["verdict"] == "drain"
    assert "XID 79" in found["gpus"][1]["reasons"][0]
    assert fleet.verdicts("?gpu=0&gpu=2") == ("ok", {"0": "ok", "2": "ok"})
    assert fleet.verdicts("?gpu=GPU-1") == ("drain", {"1": "drain"})


def test_an_alert_that_the_operator_made_critical_drains_also_when_it_is_acknowledged(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, CRITICAL_ECC)
    fleet.report(metrics={"ecc_uncorrected_count": 3})
    record = fleet.watched.record("ecc")
    fleet.watched.engine.acknowledge_all([record], "ada", fleet.watched.clock.now)
    assert fleet.ask()["gpus"][1]["reasons"] == ["GPU 1 of gpu01 has had 3 uncorrected memory errors"]
    assert fleet.verdicts()[0] == "drain"


def test_a_gpu_that_is_gone_drains_although_it_is_in_no_report(fleet: Fleet) -> None:
    fleet.watched.report("gpu01", make_gpu(0), make_gpu(2))
    fleet.watched.run(120)
    assert fleet.verdicts() == ("drain", {"0": "ok", "2": "ok", "1": "drain"})
    assert fleet.verdicts("?gpu=1") == ("drain", {"1": "drain"})
    assert fleet.verdicts("?gpu=0") == ("ok", {"0": "ok"})


def test_a_silent_host_is_unknown_and_what_was_bad_before_stays_so(fleet: Fleet) -> None:
    fleet.watched.hush("gpu01")
    fleet.watched.run(600)
    found = fleet.ask()
    assert (found["verdict"], found["reasons"]) == ("unknown", ["the host is down"])
    assert {gpu["verdict"] for gpu in found["gpus"]} == {"unknown"}
    fleet.report(events=[GpuEvent(at=fleet.watched.clock.now - 60, code=79)])
    fleet.watched.hush("gpu01")
    fleet.watched.run(600)
    assert fleet.verdicts() == ("drain", {"0": "unknown", "1": "drain", "2": "unknown"})


def test_a_gpu_that_cannot_be_judged_is_unknown_and_hides_no_other(fleet: Fleet) -> None:
    fleet.report(metrics={"temperature_celsius": None}, unknown={"temperature_celsius": "not permitted to read it"})
    assert fleet.verdicts() == ("unknown", {"0": "ok", "1": "unknown", "2": "ok"})
    assert "not permitted" in fleet.ask()["gpus"][1]["reasons"][0]


def test_a_host_that_reports_no_gpu_is_unknown(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    report = replace(fleet.watched.reports["gpu01"][0], gpus=[])
    fleet.watched.report("cpu01", report=report)
    fleet.watched.run(20)
    found = fleet.get("/api/v1/hosts/cpu01/health").json()
    assert (found["verdict"], found["gpus"]) == ("unknown", [])


def test_maintenance_drains(fleet: Fleet) -> None:
    (host,) = fleet.watched.hub.fleet.hosts.values()
    now = fleet.watched.clock.now
    window = MaintenanceWindow(
        id=1,
        host="gpu01",
        host_id=host.id,
        gpu=None,
        label=None,
        start=now,
        end=None,
        reason="new fans",
        created_at=now,
        created_by="ada",
    )
    fleet.watched.hub.fleet.drain([window], now)
    assert fleet.ask()["reasons"] == ["in maintenance: new fans (ada)"]
    assert fleet.verdicts()[0] == "drain"


def test_a_gpu_that_is_not_there_is_unknown_and_a_board_stands_for_its_instances(fleet: Fleet) -> None:
    assert fleet.verdicts("?gpu=9") == ("unknown", {"9": "unknown"})
    fleet.watched.report("gpu01", make_gpu(0), make_gpu(1, uuid="MIG-1", parent="GPU-1", instance=0))
    fleet.watched.run(20)
    assert fleet.verdicts("?gpu=1") == ("ok", {"1.0": "ok"})


def test_a_host_that_nobody_knows_is_not_found(fleet: Fleet) -> None:
    answer = fleet.get("/api/v1/hosts/nosuch/health")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_host")
