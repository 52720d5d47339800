"""Alerts of hosts and GPUs in maintenance: none begins, none is sent, and afterwards they are judged as usual."""

from typing import Any

import pytest

from alerts.watched import Watched
from fakes.maintenance import make_window
from fakes.reports import make_gpu
from gpudeck.model.alert import MAINTENANCE

HOT = make_gpu(metrics={"temperature_celsius": 91})


def drain(watched: Watched, *windows: Any) -> None:
    watched.hub.fleet.drain(windows, watched.clock.now)
    watched.context["drained"] = watched.hub.fleet.drained()


def heated(**window: Any) -> Watched:
    watched = Watched()
    watched.report("gpu01", HOT)
    watched.run(10)
    drain(watched, make_window(**window))
    watched.run(3600)
    return watched


@pytest.mark.parametrize("window", [{}, {"gpu": "GPU-0"}, {"host_id": "before", "host": "gpu01"}])
def test_nothing_fires_while_it_is_drained_and_everything_afterwards(window: dict[str, Any]) -> None:
    watched = heated(**window)
    assert (watched.firing(), watched.engine.pending(), watched.sent, watched.events) == ([], [], [], [])
    drain(watched)
    watched.run(330)
    assert watched.titles() == ["GPU 0 of gpu01 is at 91 °C"]


def test_other_gpus_and_hosts_alert_as_ever() -> None:
    watched = Watched()
    watched.report("gpu01", HOT, make_gpu(1, uuid="GPU-1", metrics={"temperature_celsius": 92}))
    watched.report("gpu02", make_gpu(0, uuid="GPU-2", metrics={"temperature_celsius": 93}))
    watched.run(10)
    drain(watched, make_window(gpu="GPU-0"))
    watched.run(3600)
    assert sorted(title for _, title in watched.firing()) == [
        "GPU 0 of gpu02 is at 93 °C",
        "GPU 1 of gpu01 is at 92 °C",
    ]


def test_host_that_goes_down_in_maintenance_does_not_alert_until_it_has_ended() -> None:
    watched = Watched()
    watched.report("gpu01", make_gpu())
    watched.run(60)
    drain(watched, make_window())
    watched.hush("gpu01")
    watched.run(7200)
    assert (watched.firing(), watched.sent) == ([], [])
    drain(watched)
    watched.run(60)
    assert watched.rules() == ["host_down"]
    assert watched.titles() == ["gpu01 has stopped reporting"]


def test_alert_that_fires_already_is_muted_and_its_end_is_not_sent_before_the_end_of_the_maintenance() -> None:
    watched = Watched()
    watched.report("gpu01", HOT)
    watched.run(330)
    assert watched.record("gpu_hot").muted_by is None
    drain(watched, make_window())
    watched.run(20)
    assert watched.record("gpu_hot").muted_by == MAINTENANCE
    assert not watched.record("gpu_hot").needs_attention
    drain(watched)
    watched.run(20)
    assert watched.record("gpu_hot").muted_by is None
    assert watched.titles() == ["GPU 0 of gpu01 is at 91 °C"]
