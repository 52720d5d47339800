"""Alerts of hosts that somebody removed."""

from alerts.watched import Watched
from gpudeck.alerts.rule import FleetContext
from gpudeck.model.cpu_budget import finish
from gpudeck.model.target import Target


def test_removed_hosts_are_one_message_that_does_not_say_that_they_report_again() -> None:
    watched = Watched()
    for number in range(150):
        watched.report(f"gpu{number:03}")
    watched.run(20)
    watched.hush(*list(watched.reports))
    watched.run(90)
    assert len(watched.firing()) == 150
    ids = list(watched.hub.fleet.hosts)
    for host_id in ids:
        watched.hub.fleet.remove(host_id)
    watched.events.clear()
    assert watched.engine.remove_hosts(ids, watched.clock.now) == 150
    watched.run(20)
    assert [event.kind for event in watched.events] == ["alert_resolved"] * 150
    assert watched.titles()[-1].startswith(
        "Resolved: 150 hosts have stopped reporting (the host was removed): gpu000, gpu001"
    )


def test_many_hosts_that_leave_a_list_end_their_alerts_and_others_have_their_turn_meanwhile() -> None:
    watched = Watched()
    watched.hub.fleet.expect([Target(name=f"gpu{number:03}", via="ssh") for number in range(150)])
    watched.run(620)
    assert len(watched.firing()) == 150
    watched.hub.fleet.expect([])
    watched.events.clear()
    engine, now = watched.engine, watched.clock.now
    engine.begin(FleetContext(now=now))
    steps = engine.finish_in_steps()
    next(steps)
    assert len(watched.firing()) == 149
    assert engine.remove_hosts(["gpu140", "gpu141"], now) == 2
    finish(steps)
    assert watched.firing() == []
    assert [event.kind for event in watched.events] == ["alert_resolved"] * 150
