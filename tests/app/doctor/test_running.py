"""What a hub says of itself, judged."""

from pathlib import Path
from typing import Any

import pytest

from gpudeck.alerts.notifiers.settings import Channel, NotifySettings
from gpudeck.app.doctor.running import check_messages, judge_about, judge_hosts

FINE: dict[str, Any] = {
    "problems": [],
    "tick_age_seconds": 0.5,
    "database": {"problem": None, "reason": None},
    "history": {"kind": "embedded", "problem": None, "reason": None, "samples_dropped": 0},
}


def host(name: str, status: str = "up", *problems: str) -> dict[str, Any]:
    return {"name": name, "via": "ssh", "status": status, "problems": list(problems)}


def test_a_hub_that_is_well_has_nothing_to_tell() -> None:
    assert list(judge_about(FINE)) == []


@pytest.mark.parametrize(
    ("change", "name", "verdict"),
    [
        ({"problems": ["the list hosts.txt cannot be read."]}, "problem", "warn"),
        ({"tick_age_seconds": 60}, "running", "fail"),
        ({"database": {"problem": None, "reason": "the database does not answer"}}, "database", "fail"),
        ({"history": FINE["history"] | {"problem": "the disk is full"}}, "history", "fail"),
        ({"history": FINE["history"] | {"samples_dropped": 7}}, "history", "warn"),
    ],
)
def test_what_is_wrong_with_a_hub_is_told(change: dict[str, Any], name: str, verdict: str) -> None:
    (finding,) = judge_about(FINE | change)
    assert (finding.name, finding.verdict) == (name, verdict)
    assert finding.next_step


def test_each_host_with_trouble_is_told_with_its_last_error() -> None:
    hosts = [host("gpu01"), host("gpu02", "down", "connection refused"), host("gpu03", "up", "its clock is wrong")]
    findings = list(judge_hosts(hosts))
    assert [finding.verdict for finding in findings] == ["ok", "fail", "warn"]
    assert "connection refused" in findings[1].told
    assert "gpu02" in findings[1].next_step


def test_many_hosts_with_trouble_are_summed_up() -> None:
    findings = list(judge_hosts([host(f"gpu{number}", "down") for number in range(500)]))
    assert len(findings) == 22
    assert "480 more" in findings[-1].told


def test_a_hub_without_hosts_is_told() -> None:
    assert [finding.verdict for finding in judge_hosts([])] == ["warn"]


METRICS = """# HELP gpudeck_messages_failed_total x
gpudeck_messages_failed_total{channel="ops"} 3
gpudeck_messages_failed_total{channel="mail"} 0
gpudeck_messages_failed_total{channel="pager"} 9
gpudeck_messages_given_up_total{channel="pager"} 1
gpudeck_messages_waiting{channel="ops"} 2
"""


def test_channels_are_told_by_name_and_never_by_address(tmp_path: Path) -> None:
    channel = Channel(url="slack://T0HIDDEN/B0HIDDEN/XHIDDEN")
    names = {"ops": channel, "mail": channel, "pager": channel, "lost": Channel(url_file=str(tmp_path / "none"))}
    findings = list(check_messages(NotifySettings(channels=names), METRICS))
    assert [finding.verdict for finding in findings] == ["fail", "ok", "fail", "fail"]
    assert "HIDDEN" not in str(findings)


def test_a_hub_that_tells_nobody_says_so() -> None:
    assert [finding.verdict for finding in check_messages(NotifySettings(), "")] == ["skip"]
