"""The hub's alerts in real Alertmanagers: what is there while they fire, what is routed, and what failures do."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from alerts.notifiers.sinks import running_webhook
from alerts.watched import Watched
from fakes.alertmanager import Alertmanager, needs_alertmanager, running_alertmanager
from fakes.hubs import running_hub
from fakes.reports import GIB, make_gpu
from fakes.waiting import until, wait_until
from gpudeck.alerts.notifiers.alertmanager import AlertmanagerNotifier
from gpudeck.alerts.notifiers.settings import AlertmanagerSettings
from gpudeck.alerts.settings import AlertSettings, RuleChange
from gpudeck.config import ConfigMistakes, load
from gpudeck.model.alert import Mute
from gpudeck.model.event import Event
from gpudeck.model.target import Target
from gpudeck.settings import Settings

pytestmark = needs_alertmanager
RULES = {
    "hot": RuleChange(expr="temperature_celsius > 80", severity="critical", labels={"team": "ml"}, clear_after=0.0),
    "full": RuleChange(expr="memory_used_bytes > 10GiB", severity="info", clear_after=0.0),
}


class Lab(Watched):
    """A fleet whose alerts are sent. The clock of Alertmanagers is that of this machine."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(AlertSettings(rules=RULES), now=time.time() - 30)
        self.told: list[Event] = []
        self.has_duty = True
        self.notifier = AlertmanagerNotifier(
            AlertmanagerSettings(**({"resend": 1.0} | settings)),
            self.hub.fleet,
            _Events(self.told),  # type: ignore[arg-type]
            lambda: self.engine if self.has_duty else None,
            page="https://gpus.example/",
            now=time.time,
        )

    def problems(self) -> list[str]:
        return self.hub.fleet.problems_of("alertmanager")

    def hot(self, celsius: float | None, **others: Any) -> None:
        self.report("gpu01", make_gpu(3, metrics={"temperature_celsius": celsius, **others}))
        self.run(2, 1.0)
        self.notifier.on_second()


class _Events:
    def __init__(self, told: list[Event]) -> None:
        self.add = told.append


@asynccontextmanager
async def sending(lab: Lab) -> AsyncIterator[Lab]:
    lab.notifier.start()
    try:
        yield lab
    finally:
        await lab.notifier.close()


def test_an_alert_fires_there_with_its_labels_and_is_resolved(tmp_path: Path) -> None:
    async def live(first: Alertmanager, second: Alertmanager, taken: list[tuple[str, Any]]) -> None:
        lab = Lab(urls=[first.url, second.url], labels={"cluster": "north"})
        lab.hub.fleet.expect([Target(name="gpu01", origin="test", labels={"rack": "r1"})])
        async with sending(lab):
            lab.hot(91.0)
            await until(lambda: first.names() == ["hot"] and second.names() == ["hot"])
            (alert,) = first.alerts()
            assert alert["labels"] == {
                "alertname": "hot",
                "severity": "critical",
                "host": "gpu01",
                "gpu": "3",
                "uuid": "GPU-3",
                "model": "NVIDIA A100-SXM4-80GB",
                "team": "ml",
                "rack": "r1",
                "cluster": "north",
            }
            assert alert["annotations"] == {"summary": "GPU 3 of gpu01: temperature 91 °C"}
            assert alert["generatorURL"] == "https://gpus.example/#/gpu/GPU-3"
            lab.hot(50.0)
            await until(lambda: not first.names() and not second.names())
            await until(lambda: [body["status"] for _, body in taken] == ["firing", "resolved"])

    with (
        running_webhook() as hook,
        running_alertmanager(tmp_path / "a", f"{hook.url}/hook") as first,
        running_alertmanager(tmp_path / "b") as second,
    ):
        asyncio.run(live(first, second, hook.taken))


def test_an_alert_goes_on_past_its_end_and_ends_when_the_hub_is_gone(tmp_path: Path) -> None:
    async def live(there: Alertmanager) -> None:
        lab = Lab(urls=[there.url])
        async with sending(lab):
            lab.hot(91.0)
            await until(there.names)
            first = there.alerts()[0]["endsAt"]
            # Sent again and again: the end moves on.
            await until(lambda: there.alerts()[0]["endsAt"] > first)
            assert there.names() == ["hot"]
        await until(lambda: not there.names())

    with running_alertmanager(tmp_path / "a") as there:
        asyncio.run(live(there))


def test_one_that_does_not_answer_is_shown_and_keeps_no_other_from_its_alerts(tmp_path: Path) -> None:
    away = Alertmanager(tmp_path / "b")

    async def live(there: Alertmanager) -> None:
        lab = Lab(urls=[away.url, there.url])
        async with sending(lab):
            lab.hot(91.0)
            await until(there.names)

            def problem() -> list[str]:
                lab.notifier.on_second()
                return lab.problems()

            (shown,) = await until(problem)
            assert shown.startswith(f"the Alertmanager {away.url} does not take alerts: ")
            assert [event.kind for event in lab.told] == ["message_failed"]
            await asyncio.to_thread(away.start)
            await until(lambda: away.names() == ["hot"])
            await until(lambda: not problem())

    try:
        with running_alertmanager(tmp_path / "a") as there:
            asyncio.run(live(there))
    finally:
        away.stop()


def test_what_is_muted_personal_or_mild_is_not_sent(tmp_path: Path) -> None:
    async def live(there: Alertmanager) -> None:
        lab = Lab(urls=[there.url], severity="warning")
        async with sending(lab):
            lab.engine.mutes["m"] = Mute(
                id="m", rule="hot", host="gpu02", created_by="ada", created_at=0.0, start=0.0, end=1e12, reason="x"
            )
            lab.report("gpu02", make_gpu(0, uuid="GPU-muted", metrics={"temperature_celsius": 95.0}))
            lab.hot(91.0, memory_used_bytes=20 * GIB)
            await until(there.names)
            assert [alert["labels"]["uuid"] for alert in there.alerts()] == ["GPU-3"]
            assert sorted(lab.rules()) == ["full", "hot", "hot"]
            # What is there already goes on when it is muted: it has not ended.
            lab.engine.mutes["n"] = Mute(
                id="n", host="gpu01", created_by="ada", created_at=0.0, start=0.0, end=1e12, reason="x"
            )
            lab.engine.refresh_mutes(lab.clock.now)
            lab.notifier.on_second()
            first = there.alerts()[0]["endsAt"]
            await until(lambda: there.alerts()[0]["endsAt"] > first)

    with running_alertmanager(tmp_path / "a") as there:
        asyncio.run(live(there))


def test_a_hub_without_the_duty_sends_nothing_and_ends_nothing(tmp_path: Path) -> None:
    """The next one sends the same alert: there is one, whoever sends it."""

    async def live(there: Alertmanager) -> None:
        lab, other = Lab(urls=[there.url]), Lab(urls=[there.url])
        other.has_duty = False
        async with sending(lab), sending(other):
            other.hot(91.0)
            lab.hot(91.0)
            await until(there.names)
            lab.has_duty, other.has_duty = False, True
            lab.notifier.on_second()
            other.notifier.on_second()
            first = there.alerts()[0]["endsAt"]
            await until(lambda: there.alerts()[0]["endsAt"] > first)
            assert there.names() == ["hot"]

    with running_alertmanager(tmp_path / "a") as there:
        asyncio.run(live(there))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{urls: []}", "notify.alertmanager.urls: found 0 items"),
        ("{urls: [am:9093]}", "expected an address that begins with http:// or https://"),
        ("{urls: ['http://am:9093'], labels: {a-b: c}}", "expected the name of a label"),
        ("{}", "notify.alertmanager.urls: missing"),
    ],
)
def test_mistakes_in_the_settings_are_found(text: str, said: str) -> None:
    with pytest.raises(ConfigMistakes) as caught:
        load(f"notify:\n  alertmanager: {text}\n", "gpudeck.yaml", Settings)
    assert said in str(caught.value)


CONFIG = """
alerts:
  rules:
    working: {{expr: "utilization_percent > 0 and power_watts > 0", severity: info}}
notify:
  demo: true
  alertmanager: {{urls: ["{url}"], resend: 5s}}
"""


@pytest.mark.slow
def test_a_hub_sends_what_its_settings_say(tmp_path: Path) -> None:
    with running_alertmanager(tmp_path / "a") as there:
        (tmp_path / "gpudeck.yaml").write_text(CONFIG.format(url=there.url))
        config = str(tmp_path / "gpudeck.yaml")
        with running_hub(tmp_path, "--config", config, "--demo", "2", "--demo-days", "0") as hub:
            wait_until(lambda: "working" in there.names(), "an alert of the demo", 60)
            one = next(alert for alert in there.alerts() if alert["labels"]["alertname"] == "working")
            assert one["annotations"]["summary"].startswith("Demo: GPU ")
            assert 'gpudeck_hub_part_up{part="alertmanager"} 1' in hub.get("/metrics").decode()
            there.stop()
            down = 'gpudeck_hub_part_up{part="alertmanager"} 0'
            wait_until(lambda: down in hub.get("/metrics").decode(), "the problem on the hub's page", 60)
