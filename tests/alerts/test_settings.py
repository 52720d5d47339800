"""The section `alerts` as an operator writes it: every mistake is found, with its place and what to write instead."""

import pytest

from gpudeck.alerts.settings import DEFAULTS, AlertSettings, Override, RuleChange, Thresholds, change_limits
from gpudeck.config import ConfigMistakes, load_bytes
from gpudeck.settings import Settings

GOOD = b"""
alerts:
  rules:
    gpu_hot: {above: 80, for: 10m}
    agent_outdated: {enabled: false}
  overrides:
    - hosts: gpu-1*
      rules: {host_down: {for: 10m, severity: warning}}
    - models: "*V100*"
      labels: {rack: "4"}
      rules: {gpu_hot: {above: 75, clear: 60}}
  group_wait: 30s
  repeat: off
"""


def read(text: bytes) -> AlertSettings:
    return load_bytes(text, "gpudeck.yaml", Settings).alerts


def mistakes(text: str) -> list[str]:
    with pytest.raises(ConfigMistakes) as caught:
        read(f"alerts:\n  {text}\n".encode())
    return str(caught.value).splitlines()


def test_good_settings_are_read() -> None:
    settings = read(GOOD)
    assert settings.rules == {
        "gpu_hot": RuleChange(above=80.0, wait=600.0),
        "agent_outdated": RuleChange(enabled=False),
    }
    assert settings.overrides[0] == Override(
        hosts="gpu-1*", rules={"host_down": RuleChange(wait=600.0, severity="warning")}
    )
    assert (settings.group_wait, settings.repeat) == (30.0, "off")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rules: {gpu_hott: {above: 80}}", "alerts.rules.gpu_hott: there is no rule gpu_hott; did you mean gpu_hot?"),
        ("rules: {Hot: {above: 80}}", "alerts.rules.Hot: found 'Hot', expected the name of a rule"),
        (
            "rules: {xid: {expr: power_watts > 5}}",
            "alerts.rules.xid: xid is a rule of the hub; give yours",
        ),
        ("rules: {a: {expr: power_wats > 5}}", "alerts.rules.a.expr: expr, character 1: there is no column power_wats"),
        ("rules: {a: {expr: power_wats > 5}}", "    power_wats > 5"),
        ("rules: {a: {expr: power_watts > }}", "                 ^"),
        ("rules: {a: {expr: power_watts > 5 for 2m, for: 1m}}", "alerts.rules.a.for: for is given twice"),
        (
            "rules: {a: {expr: power_watts > 5, above: 1}}",
            "alerts.rules.a.above: above and clear are those of the",
        ),
        ("rules: {a: {expr: power_watts > 5, text: '{hots}'}}", "text has no field hots; did you mean host?"),
        ("rules: {a: {expr: power_watts > 5, text: 'x {host'}}", "text has a brace without its partner"),
        ("rules: {gpu_hot: {text: hot}}", "text, action and labels belong to a rule of your own"),
        ("overrides: [{hosts: 'a*', rules: {mine: {for: 2m}}}]", "number 1: there is no rule mine"),
        ("rules: {gpu_hot: {abov: 80}}", "alerts.rules.gpu_hot.abov: unknown setting; did you mean above?"),
        ("rules: {gpu_hot: {above: hot}}", "alerts.rules.gpu_hot.above: found 'hot', expected a number"),
        ("rules: {gpu_hot: {severity: bad}}", "alerts.rules.gpu_hot.severity: found 'bad', expected"),
        (
            "rules: {gpu_hot: {for: 5 bananas}}",
            "alerts.rules.gpu_hot.for: found '5 bananas', expected a duration",
        ),
        ("rules: {gpu_hot: {above: 80, clear: 90}}", "alerts.rules.gpu_hot.clear: clear has to be at most above"),
        ("rules: {gpu_hot: {clear: 90}}", "`clear` of gpu_hot is higher than its `above`, which is 87"),
        ("rules: {host_down: {above: 3}}", "host_down compares no value, and has neither `above` nor `clear`"),
        ("overrides: [{rules: {gpu_hot: {above: 80}}}]", "give hosts, models or labels"),
        ("overrides: [{hosts: 'a*', rules: {xid: {clear: 3}}}]", "xid compares no value"),
        ("overrides: [{host: 'a*'}]", "alerts.overrides[0].host: unknown setting; did you mean hosts?"),
        ("group_wait: 2h", "alerts.group_wait: found '2h', expected"),
        ("repeat: 1s", "alerts.repeat: found '1s', expected"),
        ("messages_per_rule: 0", "alerts.messages_per_rule: found '0', expected"),
    ],
)
def test_mistake_is_found_with_its_place(text: str, words: str) -> None:
    assert any(words in line for line in mistakes(text)), mistakes(text)


def test_all_mistakes_are_told_at_once() -> None:
    told = mistakes("rules: {gpu_hott: {}, host_down: {for: x}, xid: {severity: y}}")
    assert len(told) == 3


def test_new_limit_takes_its_end_along() -> None:
    made = change_limits(DEFAULTS["gpu_hot"], RuleChange(above=70.0))
    assert (made.above, made.clear, made.wait) == (70.0, 65.0, 300.0)
    assert change_limits(DEFAULTS["gpu_hot"], RuleChange(above=70.0, clear=50.0)).clear == 50.0


def test_last_override_that_fits_counts_and_labels_may_change() -> None:
    thresholds = Thresholds(read(GOOD))
    assert thresholds.of("gpu-2", {})["gpu_hot"].above == 80.0
    assert thresholds.of("gpu-11", {})["host_down"].wait == 600.0
    assert thresholds.of("gpu-2", {"rack": "4"}, "Tesla V100-SXM2-32GB")["gpu_hot"].clear == 60.0
    assert thresholds.of("gpu-2", {"rack": "5"}, "Tesla V100-SXM2-32GB")["gpu_hot"].clear == 75.0
    assert not thresholds.of("gpu-2", {})["agent_outdated"].is_on
