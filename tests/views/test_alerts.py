"""Alerts below the table: those of the hosts that are shown, the worst first, and never more than a few."""

from typing import Any

import msgspec
from msgspec.structs import replace

from fakes.fleets import fleet_of, make
from fakes.reports import make_gpu
from gpudeck.model.alert import Alert
from gpudeck.model.view import Fleet
from gpudeck.views.filter import choose_hosts
from gpudeck.views.text import render_fleet


def alert(host: str | None = None, **others: Any) -> Alert:
    facts = {"severity": "warning", "state": "firing", "title": f"{host} is hot", "host": host}
    return make(Alert, **(facts | others))


def shown(*alerts: Alert, hosts: list[str] | None = None) -> list[str]:
    fleet = fleet_of(("gpu01", [make_gpu()]), ("gpu02", [make_gpu(uuid="B")]))
    ids = {host.name: host.id for host in fleet.hosts}
    fleet.alerts = [replace(one, since=fleet.time - 60, host_id=ids.get(one.host or "")) for one in alerts]
    part = choose_hosts(fleet, hosts) if hosts else fleet
    return [
        line for line in render_fleet(part).splitlines() if line.startswith(("▲", "✗", "·")) or "more alerts" in line
    ]


def test_each_has_a_line() -> None:
    assert shown(alert("gpu01", severity="critical"), alert("gpu02", acknowledged_by="ada")) == [
        "✗ gpu01 is hot, for 1m",
        "▲ gpu02 is hot, for 1m, ada acknowledged it",
    ]


def test_silenced_ones_and_those_of_one_person_are_not_repeated_to_everybody() -> None:
    assert shown(alert("gpu01", muted_by="s1"), alert("gpu02", severity="info")) == []


def test_alerts_of_other_hosts_are_left_out_and_those_of_the_hub_are_not() -> None:
    alerts = (alert("gpu01"), alert("gpu02"), alert(None, title="The history is not kept"))
    assert shown(*alerts, hosts=["gpu02"]) == ["▲ gpu02 is hot, for 1m", "▲ The history is not kept, for 1m"]


def test_many_are_cut_and_the_rest_is_counted() -> None:
    lines = shown(*(alert("gpu01") for _ in range(30)))
    assert len(lines) == 11
    assert lines[-1] == "20 more alerts: gpudeck alerts"


def test_hub_of_before_alerts_is_shown_all_the_same() -> None:
    told = msgspec.to_builtins(fleet_of(("gpu01", [make_gpu()])))
    del told["alerts"]
    assert "gpu01" in render_fleet(msgspec.convert(told, Fleet))
