"""A configured host that cannot be read raises one alert, with its reason."""

import pytest

from alerts.watched import Watched
from fakes.reports import make_envelope
from gpudeck.model.target import Target

REFUSED = "gpu01 (10.0.0.7:22) refuses connections."


def expecting(via: str = "ssh", reason: str | None = REFUSED) -> Watched:
    watched = Watched()
    watched.hub.fleet.expect([Target(name="gpu01", via=via)])  # type: ignore[arg-type]
    if reason is not None:
        watched.hub.fleet.note_failure("gpu01", reason)
    return watched


@pytest.mark.parametrize(
    ("via", "reason", "title"),
    [
        ("ssh", REFUSED, "gpu01 cannot be read: gpu01 (10.0.0.7:22) refuses connections"),
        ("scrape", None, "gpu01 has never reported"),
        ("push", None, "gpu01 has never reported"),
    ],
)
def test_host_that_was_never_read_is_told_after_a_while_and_when_it_reports(
    via: str, reason: str | None, title: str
) -> None:
    watched = expecting(via, reason)
    watched.run(590)
    assert watched.firing() == []
    watched.run(30)
    assert watched.firing() == [("host_unreadable", title)]
    watched.report("gpu01", via=via)
    watched.run(30)
    assert (watched.firing(), watched.titles()) == ([], [title, f"Resolved: {title}"])


def test_host_that_tells_its_machine_id_ends_the_alert_of_its_name() -> None:
    watched = expecting()
    watched.run(620)
    assert watched.rules() == ["host_unreadable"]
    now = watched.clock.now
    watched.hub.fleet.apply(
        make_envelope(host_id="machine-1", interval_seconds=10.0, collected_at=now), via="ssh", now=now, target="gpu01"
    )
    watched.evaluate()
    watched.run(20)
    assert watched.titles()[-1] == "Resolved: gpu01 cannot be read: gpu01 (10.0.0.7:22) refuses connections"
    assert "host_unreadable" not in watched.rules()


def test_reason_is_told_as_it_is_now() -> None:
    watched = expecting()
    watched.run(620)
    watched.hub.fleet.note_failure("gpu01", "the host key of gpu01 has changed.")
    watched.run(20)
    assert watched.firing() == [("host_unreadable", "gpu01 cannot be read: the host key of gpu01 has changed")]
    assert len(watched.sent) == 1


def test_host_that_is_down_because_it_cannot_be_read_has_one_alert_with_the_reason() -> None:
    watched = expecting(reason=None)
    watched.report("gpu01", via="ssh")
    watched.run(20)
    watched.hush("gpu01")
    watched.hub.fleet.note_failure("gpu01", REFUSED)
    watched.run(3600)
    assert watched.firing() == [("host_down", "gpu01 cannot be read: gpu01 (10.0.0.7:22) refuses connections")]
    assert len(watched.sent) == 1


def test_alert_goes_on_over_a_restart_before_anybody_tried_to_read_the_host() -> None:
    watched = expecting()
    watched.run(620)
    records = watched.engine.firing()
    watched.engine = watched.make_engine()
    watched.engine.load(records, watched.clock.now)
    watched.hub.fleet.note_failure("gpu01", None)
    watched.run(60)
    assert (watched.rules(), watched.kinds()) == (["host_unreadable"], ["alert_fired"])


def test_host_that_is_down_is_not_said_to_report_again_before_a_restarted_hub_has_read_its_hosts() -> None:
    before = expecting(reason=None)
    before.report("gpu01", via="ssh")
    before.run(20)
    before.hush("gpu01")
    before.run(600)
    assert before.rules() == ["host_down"]
    after = expecting()
    after.clock.now = before.clock.now
    after.engine.load(before.engine.firing(), after.clock.now)
    after.run(300)
    assert (after.rules(), after.titles()) == (["host_down"], [])
    after.report("gpu01", via="ssh")
    after.run(30)
    assert (after.rules(), after.titles()) == ([], ["Resolved: gpu01 has stopped reporting"])


def test_host_that_is_no_longer_configured_ends_its_alert() -> None:
    watched = expecting()
    watched.run(620)
    watched.hub.fleet.expect([])
    watched.run(20)
    assert watched.firing() == []
    assert watched.titles()[-1].endswith("(the host is no longer in the fleet)")
