"""Alerts below the table: those of the hosts that are shown, the worst first, and never more than a few."""

from typing import Any

from fakes.fleets import fleet_of
from fakes.reports import make_gpu
from gpudeck.views.choice import choose_hosts
from gpudeck.views.text import render_fleet


def alert(host: str | None = None, **others: Any) -> dict[str, Any]:
    facts = {"severity": "warning", "state": "firing", "title": f"{host} is hot", "host_id": host, "since": 0.0}
    return facts | {"silenced_by": None, "acknowledged_by": None, "resolved_at": None} | others


def shown(*alerts: dict[str, Any], hosts: list[str] | None = None) -> list[str]:
    fleet = fleet_of(("gpu01", [make_gpu()]), ("gpu02", [make_gpu(uuid="B")]))
    ids = {host["name"]: host["id"] for host in fleet["hosts"]}
    fleet["alerts"] = [one | {"since": fleet["time"] - 60, "host_id": ids.get(one["host_id"])} for one in alerts]
    part = choose_hosts(fleet, hosts) if hosts else fleet
    return [
        line for line in render_fleet(part).splitlines() if line.startswith(("▲", "■", "·")) or "more alerts" in line
    ]


def test_each_has_a_line() -> None:
    assert shown(alert("gpu01", severity="critical"), alert("gpu02", acknowledged_by="ada")) == [
        "■ gpu01 is hot, for 1m",
        "▲ gpu02 is hot, for 1m, ada looks after it",
    ]


def test_silenced_ones_and_those_of_one_person_are_not_repeated_to_everybody() -> None:
    assert shown(alert("gpu01", silenced_by="s1"), alert("gpu02", severity="info")) == []


def test_alerts_of_other_hosts_are_left_out_and_those_of_the_hub_are_not() -> None:
    alerts = (alert("gpu01"), alert("gpu02"), alert(None, title="The history is not kept"))
    assert shown(*alerts, hosts=["gpu02"]) == ["▲ gpu02 is hot, for 1m", "▲ The history is not kept, for 1m"]


def test_many_are_cut_and_the_rest_is_counted() -> None:
    lines = shown(*(alert("gpu01") for _ in range(30)))
    assert len(lines) == 11
    assert lines[-1] == "20 more alerts: gpudeck alerts"


def test_hub_of_before_alerts_is_shown_all_the_same() -> None:
    fleet = fleet_of(("gpu01", [make_gpu()]))
    del fleet["alerts"]
    assert "gpu01" in render_fleet(fleet)
