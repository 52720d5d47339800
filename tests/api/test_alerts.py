"""Alerts and mutes over HTTP: what is listed, who acknowledged what, and what is refused in which words."""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from alerts.watched import Watched
from fakes.api_app import ADMIN_TOKEN, make_alerts, make_app, make_auth
from fakes.reports import make_gpu
from gpudeck.alerts.settings import AlertSettings, RuleChange

AT_ONCE = AlertSettings(rules={"gpu_hot": RuleChange(wait=0.0), "disk_full": RuleChange(wait=0.0)})  # type: ignore[dict-item]


class Site:
    """A hub with two hosts: gpu01 is hot, gpu02 is hot and nearly full."""

    def __init__(self, folder: Path) -> None:
        self.auth = make_auth(folder)
        self.alerts = make_alerts(self.auth.database, AT_ONCE)
        self.watched = Watched(AT_ONCE, now=time.time())
        self.watched.engine = self.alerts.engine
        self.watched.report("gpu01", make_gpu(uuid="A", metrics={"temperature_celsius": 90}))
        self.watched.report(
            "gpu02",
            make_gpu(uuid="B", metrics={"temperature_celsius": 91}),
            metrics={"disk_used_bytes": 999, "disk_total_bytes": 1000},
        )
        self.watched.step()
        self.app: Any = make_app(self.watched.hub, auth=self.auth, folder=folder, alerts=self.alerts)

    def ask(self, method: str, path: str, token: str | None = ADMIN_TOKEN, **others: Any) -> httpx.Response:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}

        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, client=("192.0.2.7", 40000))
            async with httpx.AsyncClient(transport=transport, base_url="http://hub.example") as http:
                return await http.request(method, path, headers=headers, **others)

        return asyncio.run(call())

    def list(self, query: str = "") -> list[dict[str, Any]]:
        answer = self.ask("GET", f"/api/v1/alerts{query}", None)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["alerts"])


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_worst_is_listed_first_with_all_that_is_known(site: Site) -> None:
    first, *others = site.list()
    assert (first["rule"], first["severity"], first["host"], first["title"]) == (
        "disk_full",
        "critical",
        "gpu02",
        "/ of gpu02 is 100 % full",
    )
    assert {(alert["gpu"], alert["label"], alert["state"]) for alert in others} == {
        ("A", "0", "firing"),
        ("B", "0", "firing"),
    }


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("?host=gpu02", 2),
        ("?severity=critical", 1),
        ("?severity=info,warning&host=gpu01", 1),
        ("?rule=gpu_hot", 2),
        ("?state=acknowledged", 0),
        ("?state=pending", 0),
        ("?limit=1", 1),
        ("?host=nobody", 0),
    ],
)
def test_list_is_what_was_asked_for(site: Site, query: str, count: int) -> None:
    assert len(site.list(query)) == count


@pytest.mark.parametrize("query", ["?state=burning", "?severity=bad", "?limit=0", "?hots=gpu01", "?state="])
def test_question_that_makes_no_sense_is_refused(site: Site, query: str) -> None:
    answer = site.ask("GET", f"/api/v1/alerts{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_whoever_acknowledges_first_looks_after_it(site: Site) -> None:
    alert = site.list("?rule=disk_full")[0]["id"]
    first = site.ask("POST", f"/api/v1/alerts/{alert}/acknowledge", "user-token").json()
    assert (first["state"], first["acknowledged_by"]) == ("acknowledged", "token user")
    again = site.ask("POST", f"/api/v1/alerts/{alert}/acknowledge").json()
    assert again["acknowledged_by"] == "token user"
    assert [one["id"] for one in site.list("?state=acknowledged")] == [alert]


@pytest.mark.parametrize("alert", ["0", "ffffffffff", "%00", "x" * 16])
def test_alert_that_does_not_fire_cannot_be_acknowledged(site: Site, alert: str) -> None:
    answer = site.ask("POST", f"/api/v1/alerts/{alert}/acknowledge")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_alert")


def test_many_are_acknowledged_at_once_and_those_that_do_not_fire_are_named(site: Site) -> None:
    hot = [one["id"] for one in site.list("?rule=gpu_hot")]
    taken = site.list("?rule=disk_full")[0]["id"]
    site.ask("POST", f"/api/v1/alerts/{taken}/acknowledge", "user-token")
    body = {"ids": [*hot, "ffffffffff", taken, hot[0]]}
    answer = site.ask("POST", "/api/v1/alerts/acknowledge", json=body)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert [(one["id"], one["acknowledged_by"]) for one in told["acknowledged"]] == [
        *((alert, "token admin") for alert in hot),
        (taken, "token user"),
    ]
    assert told["failed"] == [
        {"id": "ffffffffff", "code": "unknown_alert", "message": "no alert with the id ffffffffff fires."}
    ]
    assert {one["state"] for one in site.list()} == {"acknowledged"}
    entries = [entry for entry in asyncio.run(site.auth.audit.list()) if entry.who == "token admin"]
    assert [(entry.action, entry.subject) for entry in entries] == [
        ("acknowledge alert", f"alert {alert}") for alert in (taken, *reversed(hot))
    ]


@pytest.mark.parametrize("body", [{"ids": []}, {"ids": ["x"]}, {"ids": ["a"] * 1001}, {"alerts": ["a"]}, {}])
def test_request_about_many_is_limited(site: Site, body: dict[str, Any]) -> None:
    answer = site.ask("POST", "/api/v1/alerts/acknowledge", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")


def test_own_acknowledgements_are_withdrawn_and_those_of_others_stay(site: Site) -> None:
    own, theirs = (site.list(f"?rule={rule}")[0]["id"] for rule in ("gpu_hot", "disk_full"))
    site.ask("POST", f"/api/v1/alerts/{theirs}/acknowledge", "user-token")
    site.ask("POST", f"/api/v1/alerts/{own}/acknowledge")
    answer = site.ask("POST", "/api/v1/alerts/unacknowledge", json={"ids": [own, theirs, "ffffffffff"]})
    assert answer.status_code == 200, answer.text
    told = [(one["id"], one["state"], one["acknowledged_by"]) for one in answer.json()["alerts"]]
    assert told == [(own, "firing", None)]
    assert [one["id"] for one in site.list("?state=acknowledged")] == [theirs]


def test_resolved_alerts_are_found_in_the_database(site: Site) -> None:
    site.watched.report("gpu01", make_gpu(uuid="A"))
    site.watched.post = lambda: None  # type: ignore[method-assign]
    site.watched.run(120)
    asyncio.run(site.alerts.flush())
    (over,) = site.list("?state=resolved")
    assert (over["state"], over["host"], over["rule"]) == ("resolved", "gpu01", "gpu_hot")
    assert over["resolved_at"] > over["fired_at"]
    assert len(site.list("?state=resolved,firing")) == 3
    assert site.list("?state=resolved&host=gpu02") == []


def test_mute_is_made_listed_and_ended(site: Site) -> None:
    wanted = {"host": "gpu0*", "rule": "gpu_hot", "labels": {"host": "gpu01"}, "for": "2h", "reason": " new fans "}
    made = site.ask("POST", "/api/v1/mutes", json=wanted)
    assert made.status_code == 201
    body = made.json()
    assert (body["reason"], body["created_by"], round(body["end"] - body["start"])) == ("new fans", "token admin", 7200)
    assert site.ask("GET", "/api/v1/mutes", None).json()["mutes"] == [body]
    assert {one["host"]: one["muted_by"] for one in site.list("?rule=gpu_hot")} == {
        "gpu01": body["id"],
        "gpu02": None,
    }
    ended = site.ask("DELETE", f"/api/v1/mutes/{body['id']}")
    assert ended.json() == body
    assert site.ask("GET", "/api/v1/mutes").json()["mutes"] == []
    assert site.ask("DELETE", f"/api/v1/mutes/{body['id']}").status_code == 404
    assert all(one["muted_by"] is None for one in site.list())


def test_mute_of_named_hosts_is_of_these_alone(site: Site) -> None:
    wanted = {"rule": "gpu_hot", "hosts": [" gpu03 ", "gpu02", "gpu03"], "for": "2h", "reason": "new fans"}
    made = site.ask("POST", "/api/v1/mutes", json=wanted).json()
    assert made["hosts"] == ["gpu02", "gpu03"]
    assert {(one["rule"], one["host"]): one["muted_by"] for one in site.list()} == {
        ("gpu_hot", "gpu01"): None,
        ("gpu_hot", "gpu02"): made["id"],
        ("disk_full", "gpu02"): None,
    }
    many = wanted | {"hosts": [f"gpu{number}" for number in range(1001)]}
    assert site.ask("POST", "/api/v1/mutes", json=many).status_code == 400


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"for": "2h", "reason": "x"}, "hides everything"),
        ({"host": "a", "for": "2h"}, "reason"),
        ({"host": "a", "for": "2h", "reason": "  "}, "reason"),
        ({"host": "a", "reason": "x"}, "such as 2h"),
        ({"host": "a", "reason": "x", "for": "2h", "end": 9e9}, "such as 2h"),
        ({"host": "a", "reason": "x", "for": "2 bananas"}, "for"),
        ({"host": "a", "reason": "x", "end": 1000}, "after it begins"),
        ({"host": "a", "reason": "x", "for": "9000d"}, "within a year"),
        ({"hots": "a", "reason": "x", "for": "2h"}, "hots"),
        ({"rule": "gpu_hto", "reason": "x", "for": "2h"}, "there is none that gpu_hto fits"),
        ({"rule": "gpus_*", "reason": "x", "for": "2h"}, "there is none that gpus_* fits"),
        ({"hosts": ["gpu0*"], "reason": "x", "for": "2h"}, "'gpu0*' is a pattern"),
        ({"hosts": ["gpu01"], "host": "gpu*", "reason": "x", "for": "2h"}, "not both"),
    ],
)
def test_mute_that_makes_no_sense_is_refused(site: Site, wanted: dict[str, Any], words: str) -> None:
    answer = site.ask("POST", "/api/v1/mutes", json=wanted)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


def test_metrics_count_what_fires_by_rule_and_severity(site: Site) -> None:
    metrics = site.ask("GET", "/metrics", None).text
    assert 'gpudeck_alerts_firing{rule="gpu_hot",severity="warning"} 2' in metrics
    assert 'gpudeck_alerts_firing{rule="disk_full",severity="critical"} 1' in metrics
