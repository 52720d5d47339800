"""Alerts over a real fleet: when they fire, when they end, what is told and what is not."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alerts.watched import NOW, Watched
from fakes.reports import GIB, make_busy_gpu, make_envelope, make_gpu, make_process
from gpudeck.alerts.record import AlertRecord
from gpudeck.alerts.settings import AlertSettings, Override, RuleChange
from gpudeck.model.alert import Mute
from gpudeck.model.gpu_state import RETURN_SECONDS
from gpudeck.model.report import GpuEvent, Report

HOT = make_gpu(metrics={"temperature_celsius": 91})
WARM = make_gpu(metrics={"temperature_celsius": 84})
UNREAD = make_gpu(metrics={"temperature_celsius": None}, unknown={"temperature_celsius": "the driver refused"})


def heated(seconds: float = 330, gpu: object = HOT) -> Watched:
    watched = Watched()
    watched.report("gpu01", gpu)  # type: ignore[arg-type]
    watched.run(seconds)
    return watched


def test_healthy_fleet_is_quiet_for_a_day() -> None:
    watched = Watched()
    for number in range(4):
        watched.report(f"gpu0{number}", make_gpu(0, uuid=f"A{number}"), make_busy_gpu(1, uuid=f"B{number}"))
    watched.run(86_400, step=25)
    assert (watched.firing(), watched.sent, watched.events) == ([], [], [])


def test_alert_waits_as_long_as_its_rule_says_then_fires_once() -> None:
    watched = heated(300)
    assert (watched.firing(), [record.rule for record in watched.engine.pending()]) == ([], ["gpu_hot"])
    watched.run(600)
    assert watched.firing() == [("gpu_hot", "GPU 0 of gpu01 is at 91 °C")]
    assert watched.titles() == ["GPU 0 of gpu01 is at 91 °C"]
    assert watched.kinds() == ["alert_fired"]


def test_value_between_the_thresholds_neither_starts_nor_ends_an_alert() -> None:
    assert heated(3600, WARM).firing() == []
    watched = heated()
    watched.report("gpu01", WARM)
    watched.run(3600)
    assert watched.rules() == ["gpu_hot"]


def test_end_is_told_when_it_has_lasted() -> None:
    watched = heated()
    watched.report("gpu01", make_gpu())
    watched.run(60)
    assert watched.rules() == ["gpu_hot"]
    watched.run(60)
    assert watched.firing() == []
    assert watched.titles() == ["GPU 0 of gpu01 is at 91 °C", "Resolved: GPU 0 of gpu01 is at 91 °C"]
    assert [message.kind for message in watched.sent] == ["alert", "resolved"]
    assert watched.kinds() == ["alert_fired", "alert_resolved"]


def test_unknown_does_not_fire() -> None:
    watched = heated(200)
    watched.report("gpu01", UNREAD)
    watched.run(3600)
    assert (watched.firing(), watched.engine.pending()) == ([], [])


def test_unknown_does_not_resolve_and_says_so() -> None:
    watched = heated()
    watched.report("gpu01", UNREAD)
    watched.run(7200)
    assert watched.record("gpu_hot").note == "Whether it is still so is not known: the driver refused."
    assert watched.titles() == ["GPU 0 of gpu01 is at 91 °C"]
    watched.report("gpu01", HOT)
    watched.run(60)
    assert watched.record("gpu_hot").note is None


def test_silent_host_neither_ends_its_gpus_alerts_nor_tells_of_them() -> None:
    watched = heated()
    watched.hush("gpu01")
    watched.run(600)
    assert watched.rules() == ["gpu_hot", "host_down"]
    assert watched.record("gpu_hot").note == "Whether it is still so is not known: the host is down."
    assert watched.titles() == ["GPU 0 of gpu01 is at 91 °C", "gpu01 has stopped reporting"]


def test_gpu_alert_of_a_host_that_went_down_before_it_was_told_waits_for_the_host() -> None:
    watched = Watched(AlertSettings(group_wait=600.0))
    watched.report("gpu01", HOT)
    watched.run(310)
    assert watched.rules() == ["gpu_hot"]
    watched.hush("gpu01")
    watched.run(1500)
    assert watched.titles() == ["gpu01 has stopped reporting"]
    watched.report("gpu01", HOT)
    watched.run(1500)
    assert watched.titles()[1:] == ["GPU 0 of gpu01 is at 91 °C", "Resolved: gpu01 has stopped reporting"]


def test_switch_failure_of_forty_hosts_is_one_message_and_so_is_its_end() -> None:
    watched = Watched()
    hosts = [f"gpu-{number:02}" for number in range(40)]
    for number, host in enumerate(hosts):
        watched.report(host, make_gpu(uuid=f"GPU-{number}"))
    watched.run(60)
    # Each was heard at another second.
    reports = dict(watched.reports)
    for host in hosts:
        watched.hush(host)
        watched.run(1, step=1)
    watched.run(180, step=1)
    first = ", ".join(hosts[:10])
    assert watched.titles() == [f"40 hosts have stopped reporting: {first}, … and 30 more"]
    (message,) = watched.sent
    assert (message.severity, len(message.lines), message.lines[-1]) == ("critical", 21, "and 20 more")
    assert watched.kinds() == ["alert_fired"] * 40
    watched.reports = reports
    watched.run(60)
    assert watched.titles()[1:] == [f"Resolved: 40 hosts have stopped reporting: {first}, … and 30 more"]


def test_alert_that_ends_before_it_was_told_is_not_told_at_all() -> None:
    watched = Watched(AlertSettings(group_wait=120.0))
    watched.report("gpu01")
    watched.run(20)
    report = dict(watched.reports)
    watched.hush("gpu01")
    watched.run(70)
    assert watched.rules() == ["host_down"]
    watched.reports = report
    watched.run(600)
    assert (watched.firing(), watched.sent) == ([], [])
    assert watched.kinds() == ["alert_fired", "alert_resolved"]


def test_host_that_comes_and_goes_is_told_a_few_times_and_not_each_time() -> None:
    watched = Watched()
    watched.report("gpu01")
    watched.run(20)
    report = dict(watched.reports)
    for _ in range(12):
        watched.reports = {}
        watched.run(120)
        watched.reports = report
        watched.run(480)
    assert watched.rules() == ["host_down"]
    assert watched.record("host_down").note == "It is flapping."
    assert watched.titles() == [
        "gpu01 has stopped reporting",
        "Resolved: gpu01 has stopped reporting",
        "gpu01 has stopped reporting",
        "Resolved: gpu01 has stopped reporting",
        "gpu01 has stopped reporting",
    ]
    watched.run(2400)
    assert watched.titles()[5:] == ["Resolved: gpu01 has stopped reporting"]


def test_it_gets_worse_is_told_again() -> None:
    watched = heated()
    watched.engine.acknowledge_all([watched.record("gpu_hot")], "ada", watched.clock.now)
    watched.report("gpu01", make_gpu(metrics={"temperature_celsius": 97}))
    watched.run(60)
    assert [(message.severity, message.title) for message in watched.sent] == [
        ("warning", "GPU 0 of gpu01 is at 91 °C"),
        ("critical", "GPU 0 of gpu01 is at 97 °C"),
    ]
    assert watched.record("gpu_hot").state == "firing"
    assert len({message.key for message in watched.sent}) == 2


def test_many_alerts_are_acknowledged_at_once_and_withdrawn_by_the_same_account() -> None:
    watched, count = Watched(), 150
    for number in range(count):
        watched.report(f"gpu{number:03}")
    watched.run(20)
    watched.hush(*list(watched.reports))
    watched.run(90)
    watched.events.clear()
    assert watched.engine.acknowledge_all(watched.engine.firing(), "ada", watched.clock.now) == count
    assert watched.engine.acknowledge_all(watched.engine.firing(), "bob", watched.clock.now) == 0
    assert len(watched.events) == count
    assert {record.acknowledged_by for record in watched.engine.firing()} == {"ada"}
    watched.events.clear()
    assert watched.engine.withdraw_all(watched.engine.firing(), "bob", watched.clock.now) == []
    assert len(watched.engine.withdraw_all(watched.engine.firing(), "ada", watched.clock.now)) == count
    assert {event.kind for event in watched.events} == {"alert_unacknowledged"}
    assert len(watched.events) == count
    assert {(record.state, record.acknowledged_by) for record in watched.engine.firing()} == {("firing", None)}


def test_critical_alert_is_told_again_after_a_day_unless_acknowledged() -> None:
    watched = Watched()
    for host in ("gpu01", "gpu02"):
        watched.report(host, make_gpu(uuid=host))
    watched.run(20)
    watched.hush("gpu01")
    watched.run(600)
    watched.hush("gpu02")
    watched.run(600)
    acknowledged = next(record for record in watched.engine.firing() if record.host == "gpu02")
    assert watched.engine.acknowledge_all([acknowledged], "ada", watched.clock.now)
    assert not watched.engine.acknowledge_all([acknowledged], "bob", watched.clock.now)
    watched.run(86_400 + 600, step=60)
    assert watched.titles()[2:] == ["Still: gpu01 has stopped reporting"]
    assert (acknowledged.state, acknowledged.acknowledged_by) == ("acknowledged", "ada")


def mute(**others: object) -> Mute:
    facts = {"id": "s1", "start": NOW, "end": NOW + 3600, "created_at": NOW, "created_by": "root", "reason": "work"}
    return Mute(**(facts | others))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fitting", "is_told"),
    [
        ({"host": "gpu*"}, False),
        ({"rule": "gpu_hot"}, False),
        ({"labels": {"rack": "4"}}, False),
        ({"host": "gpu01", "rule": "gpu_*", "labels": {"host": "gpu01"}}, False),
        ({"host": "gpu2*"}, True),
        ({"host": "gpu*", "rule": "host_down"}, True),
        ({"labels": {"rack": "5"}}, True),
        ({"host": "gpu*", "start": NOW + 3000}, True),
    ],
)
def test_mute_is_by_host_rule_label_and_time(fitting: dict[str, object], is_told: bool) -> None:
    watched = Watched()
    watched.engine.mutes["s1"] = mute(**fitting)
    watched.report("gpu01", HOT, labels={"rack": "4"})
    watched.run(600)
    assert watched.rules() == ["gpu_hot"]
    assert (len(watched.sent) == 1) == is_told
    assert (watched.record("gpu_hot").muted_by is None) == is_told


def test_what_still_fires_when_its_mute_ends_is_told_then() -> None:
    watched = Watched()
    watched.engine.mutes["s1"] = mute(rule="gpu_hot")
    watched.report("gpu01", HOT)
    watched.run(3500)
    assert watched.sent == []
    watched.run(300)
    assert watched.titles() == ["GPU 0 of gpu01 is at 91 °C"]
    assert "alert_mute_ended" in watched.kinds()


def test_alerts_beyond_the_limit_of_their_rule_wait_and_become_one_message() -> None:
    watched = Watched(AlertSettings(messages_per_rule=2))
    for number in range(12):
        watched.report(f"gpu{number:02}", make_gpu(uuid=f"GPU-{number}"))
    watched.run(20)
    for number in range(12):
        watched.hush(f"gpu{number:02}")
        watched.run(40)
    assert len(watched.sent) == 2
    watched.run(1200)
    told = [record for record in watched.engine.firing() if record.told_at is not None]
    assert len(told) == 12
    assert len(watched.sent) <= 6


def test_user_gets_one_message_about_their_idle_gpus_and_nobody_else_does() -> None:
    watched = Watched()
    held = {"utilization_percent": 0, "memory_used_bytes": 20 * GIB}
    gpus = [
        make_gpu(number, metrics=held, processes=[make_process(number, user)], idle_seconds=8000.0)
        for number, user in enumerate(("ada", "ada", "bob"))
    ]
    watched.report("gpu01", *gpus)
    watched.run(60)
    assert {message.accounts: (message.title, message.is_personal) for message in watched.sent} == {
        ("ada",): ("2 GPUs are idle: gpu01:0, gpu01:1", True),
        ("bob",): ("GPU 2 of gpu01 is idle, in use by bob", True),
    }


def test_fault_of_a_program_without_an_owner_is_shown_and_told_to_nobody() -> None:
    watched = Watched()
    watched.report("gpu01", make_gpu(events=[GpuEvent(at=NOW, code=31)]))
    watched.run(60)
    assert (watched.rules(), watched.sent) == (["xid"], [])
    watched.run(3700)
    assert watched.rules() == []


def test_hub_that_was_away_believes_nothing_for_a_while() -> None:
    watched = Watched()
    watched.report("gpu01")
    watched.run(60)
    report = dict(watched.reports)
    watched.reports = {}
    watched.clock.advance(3600)
    watched.step()
    watched.reports = report
    watched.run(120)
    assert (watched.firing(), watched.events) == ([], [])


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_step_of_the_hubs_clock_is_no_time_that_anything_has_lasted(step: float) -> None:
    watched = heated(250)
    watched.clock.advance(step)
    watched.run(250)
    assert (watched.firing(), [record.rule for record in watched.engine.pending()]) == ([], ["gpu_hot"])
    watched.run(100)
    assert watched.rules() == ["gpu_hot"]


def test_hosts_have_time_to_return_after_a_start() -> None:
    """Known from before, and not heard of yet: agents try again after pauses of up to a minute."""
    watched = Watched()
    for name in ("gpu01", "gpu02", "gpu03"):
        watched.report(name)
    watched.run(60)
    watched.hush("gpu01", "gpu02", "gpu03")
    watched.clock.advance(3600)
    watched.engine = watched.make_engine()
    watched.run(RETURN_SECONDS - 20)
    assert {host.status for host in watched.hub.fleet.hosts.values()} == {"down"}
    assert (watched.firing(), watched.events) == ([], [])
    watched.report("gpu01")
    watched.run(60)
    assert {record.host for record in watched.engine.firing()} == {"gpu02", "gpu03"}


def test_host_that_returned_and_then_dies_is_told_at_once() -> None:
    watched = Watched()
    watched.report("gpu01")
    watched.run(20)
    watched.hush("gpu01")
    watched.run(80)
    assert watched.rules() == ["host_down"]


def test_host_that_is_read_rarely_has_time_to_be_read_again() -> None:
    watched = Watched()
    watched.hub.fleet.apply(make_envelope(interval_seconds=300.0), via="ssh", now=NOW, target="gpu01")
    watched.clock.advance(4000)
    watched.run(RETURN_SECONDS + 100)
    assert watched.hub.fleet.hosts["gpu01"].status == "down"
    assert watched.firing() == []
    watched.run(1000)
    assert watched.rules() == ["host_down"]


def test_network_that_was_cut_for_an_hour_is_told_once_and_ends_once() -> None:
    watched = Watched()
    names = [f"gpu{number:02}" for number in range(8)]
    for name in names:
        watched.report(name)
    watched.run(300)
    reports = dict(watched.reports)
    watched.hush(*names)
    watched.run(3600)
    watched.reports = reports
    watched.run(1200)
    told = [title.rpartition(":")[0] for title in watched.titles()]
    assert told == ["8 hosts have stopped reporting", "Resolved: 8 hosts have stopped reporting"]


def test_removed_host_takes_its_alerts_along() -> None:
    watched = heated()
    (host,) = watched.hub.fleet.hosts
    watched.hush("gpu01")
    watched.hub.fleet.remove(host)
    watched.run(60)
    assert watched.firing() == []
    assert watched.titles()[1:] == ["Resolved: GPU 0 of gpu01 is at 91 °C (the host is no longer in the fleet)"]


def test_rule_can_be_off_or_otherwise_for_some_hosts_models_and_labels() -> None:
    rules = {"gpu_hot": RuleChange(wait=0.0), "clock_skew": RuleChange(enabled=False)}
    overrides = [
        Override(hosts="cool*", rules={"gpu_hot": RuleChange(above=60.0)}),
        Override(models="*A100*", labels={"rack": "4"}, rules={"gpu_hot": RuleChange(enabled=False)}),
        Override(labels={"rack": "5"}, rules={"gpu_hot": RuleChange(severity="critical")}),
    ]
    watched = Watched(AlertSettings(rules=rules, overrides=overrides))  # type: ignore[arg-type]
    watched.report("cool1", make_gpu(uuid="A", metrics={"temperature_celsius": 61}), skew=900.0)
    watched.report("warm1", make_gpu(uuid="B", metrics={"temperature_celsius": 61}))
    watched.report("hot4", make_gpu(uuid="C", metrics={"temperature_celsius": 91}), labels={"rack": "4"})
    watched.report("hot5", make_gpu(uuid="D", metrics={"temperature_celsius": 91}), labels={"rack": "5"})
    watched.run(900)
    found = {record.host: (record.rule, record.severity) for record in watched.engine.firing()}
    assert found == {"cool1": ("gpu_hot", "warning"), "hot5": ("gpu_hot", "critical")}


def revive(watched: Watched) -> None:
    """A hub that was killed and started again: all that is left is what was written down."""
    kept = [msgspec.json.decode(msgspec.json.encode(record), type=AlertRecord) for record in watched.engine.firing()]
    watched.engine = watched.make_engine()
    for host in list(watched.hub.fleet.hosts):
        watched.hub.fleet.remove(host)
    watched.hub.fleet.take_changes()
    watched.engine.load(kept, watched.clock.now)


def test_restart_tells_nothing_again_and_ends_what_ended_meanwhile() -> None:
    watched = heated()
    watched.report("gpu02", make_gpu(uuid="B"))
    watched.run(30)
    watched.hush("gpu02")
    watched.run(300)
    before = watched.titles()
    assert watched.rules() == ["gpu_hot", "host_down"]
    revive(watched)
    watched.run(600)
    assert watched.rules() == ["gpu_hot", "host_down"]
    assert watched.record("host_down").note == (
        "Whether it is still so is not known: it has not reported since the hub was started."
    )
    assert watched.titles() == before
    watched.report("gpu01", make_gpu())
    watched.report("gpu02", make_gpu(uuid="B"))
    watched.run(300)
    assert watched.firing() == []
    assert sorted(watched.titles()[len(before) :]) == [
        "Resolved: GPU 0 of gpu01 is at 91 °C",
        "Resolved: gpu02 has stopped reporting",
    ]


def test_restart_between_writing_down_and_sending_sends_under_the_same_key() -> None:
    watched = heated(300)
    watched.post = lambda: None  # type: ignore[method-assign]
    watched.run(60)
    (lost,) = watched.engine.outgoing
    del watched.post  # type: ignore[method-assign]
    revive(watched)
    watched.run(600)
    assert [(message.key, message.title) for message in watched.sent] == [(lost.message.key, lost.message.title)]


def test_restart_while_a_group_waits_loses_nothing() -> None:
    watched = heated(310)
    assert (watched.rules(), watched.sent) == (["gpu_hot"], [])
    revive(watched)
    watched.run(60)
    assert watched.titles() == ["GPU 0 of gpu01 is at 91 °C"]


def test_driver_that_does_not_answer_is_one_alert_and_its_gpus_go_on() -> None:
    watched = heated()
    reason = "the driver did not answer within 3 s"
    watched.report("gpu01", report=Report(gpus=None, gpus_reason=reason, problems=[reason]))
    watched.run(600)
    assert watched.rules() == ["driver_not_answering", "gpu_hot"]


def test_driver_that_does_not_answer_ends_no_alert_on_a_host_with_a_gpu_that_is_gone() -> None:
    watched = Watched()
    watched.report("gpu01", HOT, make_gpu(1, uuid="GPU-1"))
    watched.run(600)
    watched.report("gpu01", HOT)
    watched.run(60)
    reason = "the driver did not answer within 3 s"
    watched.report("gpu01", report=Report(gpus=None, gpus_reason=reason, problems=[reason]))
    watched.run(1200)
    assert watched.rules() == ["driver_not_answering", "gpu_hot", "gpu_lost"]


STEPS = st.lists(
    st.tuples(st.sampled_from(["hot", "warm", "cool", "unread", "silent"]), st.integers(1, 60)), min_size=1, max_size=25
)
READINGS = {"hot": HOT, "warm": WARM, "cool": make_gpu(), "unread": UNREAD}


@given(steps=STEPS)
@settings(max_examples=15, deadline=None)
def test_whatever_happens_every_end_was_begun_and_every_message_is_another(steps: list[tuple[str, int]]) -> None:
    watched = Watched()
    for word, tens in steps:
        watched.reports.pop("gpu01", None)
        if word != "silent":
            watched.report("gpu01", READINGS[word])
        watched.run(10.0 * tens)
    keys = [message.key for message in watched.sent]
    assert len(keys) == len(set(keys))
    kinds = watched.kinds()
    assert kinds.count("alert_fired") == kinds.count("alert_resolved") + len(watched.engine.firing())
    begun = sum(message.kind == "alert" for message in watched.sent)
    assert sum(message.kind == "resolved" for message in watched.sent) <= begun
    assert {word for word, _ in steps} & {"hot"} or "gpu_hot" not in {message.rule for message in watched.sent}


def test_other_limits_count_from_the_next_look_on_for_what_fires_too() -> None:
    watched = heated()
    assert watched.rules() == ["gpu_hot"]
    watched.engine.change(AlertSettings(rules={"gpu_hot": RuleChange(above=99.0)}))
    watched.run(300)
    assert watched.firing() == []
    watched.engine.change(AlertSettings())
    watched.run(330)
    assert watched.rules() == ["gpu_hot"]


def test_message_about_several_hosts_says_of_each_where_it_stands() -> None:
    watched = Watched()
    for number in (1, 2):
        watched.report(f"gpu0{number}", report=Report(gpus=[HOT], labels={"rack": f"r1{number}"}))
    watched.run(330)
    (message,) = watched.sent
    assert "rack" not in message.labels
    assert [subject.labels["rack"] for subject in message.subjects] == ["r11", "r12"]


def test_uuid_that_looks_like_a_mark_is_none_in_the_messages_link() -> None:
    watched = heated(gpu=make_gpu(uuid="GPU-<!channel> @here", metrics={"temperature_celsius": 91}))
    (message,) = watched.sent
    assert message.link == "#/gpu/GPU-%3C%21channel%3E%20%40here"
