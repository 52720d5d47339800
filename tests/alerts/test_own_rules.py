"""The operator's own rules on a real fleet: when they fire, what their alerts say, and what changes them."""

import random

import pytest

from alerts.watched import Watched
from fakes.reports import GIB, make_busy_gpu, make_gpu
from gpudeck.alerts.record import AlertRecord
from gpudeck.alerts.rules.own import TableValues, ViewValues, make_own_rules
from gpudeck.alerts.settings import AlertSettings, Override, RuleChange
from gpudeck.model.report import GpuReading

IDLE = "utilization_percent < 5 and memory_used_bytes > 10GiB for 10m"


def watched(**rules: RuleChange) -> Watched:
    return Watched(AlertSettings(rules=rules, group_wait=0.0))


def holding(utilization: float | None = 3, gib: float = 20, number: int = 0) -> GpuReading:
    return make_gpu(number, metrics={"utilization_percent": utilization, "memory_used_bytes": gib * GIB})


def test_an_own_rule_fires_after_its_time_and_says_what_it_compared() -> None:
    lab = watched(idle_memory=RuleChange(expr=IDLE, severity="info", action="Ask the user."))
    lab.report("gpu01", holding(), holding(50, number=1))
    lab.run(590)
    assert "idle_memory" not in lab.rules()
    lab.run(30)
    record = lab.record("idle_memory")
    assert record.title == "GPU 0 of gpu01: utilization 3 %, memory used 20 GiB"
    assert (record.severity, record.action, record.gpu) == ("info", "Ask the user.", "GPU-0")
    lab.report("gpu01", holding(40), holding(50, number=1))
    lab.run(120, 10)
    assert "idle_memory" not in lab.rules()
    assert "Resolved: GPU 0 of gpu01: utilization 3 %, memory used 20 GiB" in lab.titles()


def test_text_labels_and_limits_of_an_override() -> None:
    rule = RuleChange(
        expr="power_watts > 100",
        text="{gpu} of {host}: {power_watts}, {users}, {host.cpu_percent}",
        labels={"team": "ml"},
    )
    overrides = [Override(hosts="lab*", rules={"hungry": RuleChange(enabled=False)})]
    lab = Watched(AlertSettings(rules={"hungry": rule}, overrides=overrides, group_wait=0.0))
    for host in ("gpu01", "lab01"):
        lab.report(host, make_gpu(3, uuid=f"GPU-{host}", metrics={"power_watts": 250.4}))
    lab.run(20)
    record = lab.record("hungry")
    assert record.title == "3 of gpu01: 250 W, nobody, 12 %"
    assert record.labels["team"] == "ml"
    assert [message.labels.get("team") for message in lab.sent if message.rule == "hungry"] == ["ml"]


def test_a_rule_of_hosts_has_one_alert_a_host() -> None:
    lab = watched(cpu_full=RuleChange(expr="host.cpu_percent > 95"))
    lab.report("gpu01", make_gpu(0), make_gpu(1), metrics={"cpu_percent": 99.0})
    lab.report("gpu02", make_gpu(2), metrics={"cpu_percent": 50.0})
    lab.run(20)
    assert lab.firing() == [("cpu_full", "gpu01: CPU 99 %")]
    assert lab.record("cpu_full").gpu == ""


def test_a_rule_may_compare_a_gpu_with_its_host_and_with_its_state() -> None:
    lab = watched(starved=RuleChange(expr="availability == busy and host.cpu_percent > 95 and model like '*A100*'"))
    lab.report("gpu01", make_busy_gpu(0), make_gpu(1), metrics={"cpu_percent": 99.0})
    lab.run(20)
    assert [record.gpu for record in lab.engine.firing()] == ["GPU-0"]


def test_unknown_neither_fires_nor_resolves() -> None:
    lab = watched(idle=RuleChange(expr="not utilization_percent >= 5"))
    lab.report("gpu01", holding(None))
    lab.run(60)
    assert lab.rules() == []
    lab.report("gpu01", holding(1))
    lab.run(20)
    assert lab.rules() == ["idle"]
    lab.report("gpu01", holding(None))
    lab.run(300)
    assert lab.rules() == ["idle"]
    assert "utilization_percent cannot be read" in (lab.record("idle").note or "")
    lab.hush("gpu01")
    lab.run(600)
    assert "idle" in lab.rules()


def test_rules_change_while_the_hub_runs() -> None:
    lab = watched(a=RuleChange(expr="utilization_percent < 5"), b=RuleChange(expr="memory_used_bytes > 1GiB"))
    lab.report("gpu01", holding())
    lab.run(20)
    assert lab.rules() == ["a", "b"]
    changed = {"b": RuleChange(expr="memory_used_bytes > 50GiB"), "c": RuleChange(expr="power_watts > 1")}
    lab.engine.change(AlertSettings(rules=changed, group_wait=0.0))
    assert lab.rules() == ["b"]
    assert set(lab.engine.rule_names) >= {"b", "c", "gpu_hot"}
    lab.run(120)
    assert lab.rules() == ["c"]
    assert any(title.endswith("(the rule was removed)") for title in lab.titles())


def test_alerts_of_a_rule_that_was_removed_while_the_hub_was_away_end() -> None:
    lab = watched(a=RuleChange(expr="utilization_percent < 5"))
    lab.report("gpu01", holding())
    lab.run(20)
    kept: list[AlertRecord] = lab.engine.firing()
    later = watched()
    later.engine.load(kept, later.clock.now)
    assert later.rules() == []
    assert [record.end for record in later.engine.changed.values()] == ["the rule was removed"]
    later.run(20)
    assert later.titles() == [f"Resolved: {kept[0].title} (the rule was removed)"]


EXPRESSIONS = (
    IDLE,
    "availability == busy or health != ok",
    "model like '*h100*' and not throttled_thermal",
    "host.cpu_percent / 2 > utilization_percent",
    "memory_used_bytes / memory_total_bytes > 0.5 or temperature_celsius > 60",
)


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_columns_say_what_one_gpu_at_a_time_says(text: str) -> None:
    draw, lab = random.Random(5), watched()
    for host in range(12):
        gpus = [
            (make_busy_gpu if draw.random() < 0.5 else make_gpu)(
                number,
                uuid=f"GPU-{host}-{number}",
                name=draw.choice(("NVIDIA H100", "Tesla V100")),
                metrics={
                    "utilization_percent": draw.choice((None, 0, 3, 50, 99)),
                    "memory_used_bytes": draw.choice((None, 0, 20 * GIB)),
                    "throttled_thermal": draw.choice((None, 0, 1)),
                    "temperature_celsius": draw.choice((None, 40, 95)),
                },
            )
            for number in range(draw.randrange(4))
        ]
        lab.report(f"gpu{host}", *gpus, metrics={"cpu_percent": draw.choice((None, 0.0, 100.0))})
    lab.run(10)
    (rule,) = make_own_rules(AlertSettings(rules={"own": RuleChange(expr=text)}))
    expression = RuleChange(expr=text).expression
    assert expression is not None
    assert rule.preselect is not None
    table = lab.hub.fleet.table
    is_true, is_false = expression.evaluate(TableValues(table, of_hosts=False))
    seen = set()
    for host in lab.hub.fleet.hosts.values():
        for gpu in host.gpus.values():
            one = expression.evaluate(ViewValues(host.own_view(), gpu.view()))
            assert (bool(is_true[gpu.row]), bool(is_false[gpu.row])) == tuple(map(bool, one))
            seen.add(tuple(map(bool, one)))
    assert len(seen) > 1
