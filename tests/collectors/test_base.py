"""How long a GPU has done no work."""

from gpudeck.collectors.base import IdleWatch


def test_idle_time_counts_what_was_watched_only() -> None:
    watch = IdleWatch()
    assert watch.track("gpu", 0.0, 100.0) == 0.0
    assert watch.track("gpu", 4.9, 110.0) == 10.0
    assert watch.track("gpu", 0.0, 10_000.0) == 70.0
    assert watch.track("gpu", 0.0, 5_000.0) == 70.0


def test_idle_time_starts_anew_after_work_and_after_an_unknown_reading() -> None:
    watch = IdleWatch()
    watch.track("gpu", 0.0, 100.0)
    assert watch.track("gpu", 5.0, 110.0) == 0.0
    assert watch.track("gpu", 0.0, 120.0) == 10.0
    assert watch.track("gpu", None, 130.0) is None
    assert watch.track("gpu", 0.0, 140.0) == 10.0
