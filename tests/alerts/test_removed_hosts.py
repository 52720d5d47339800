"""Alerts of hosts that somebody removed."""

from alerts.watched import Watched


def test_removed_hosts_are_one_message_that_does_not_say_that_they_report_again() -> None:
    watched = Watched()
    for number in range(150):
        watched.report(f"gpu{number:03}")
    watched.run(20)
    watched.hush(*list(watched._reports))
    watched.run(90)
    assert len(watched.firing()) == 150
    ids = list(watched.hub.fleet.hosts)
    for host_id in ids:
        watched.hub.fleet.remove(host_id)
    watched.events.clear()
    assert watched.engine.remove_hosts(ids, watched.clock.now) == 150
    watched.run(20)
    assert [event.title for event in watched.events] == ["Over: 150 alerts (their hosts were removed)"]
    assert watched.titles()[-1].startswith(
        "No longer watched: 150 hosts have stopped reporting (the host was removed): gpu000, gpu001"
    )
