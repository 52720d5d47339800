"""The dry run over idle episodes: jobs on several GPUs, keeps, and ladders that began before the period."""

from msgspec.structs import replace

from gpudeck.history.base import IdleEpisode
from gpudeck.idle_policy.report import JobSpan, PastFacts, simulate
from gpudeck.idle_policy.settings import IdlePolicySettings, IdleRule
from gpudeck.model.idle_policy import Keep

HOUR = 3600.0
T0 = 1_789_920_000.0
RULE = IdleRule(name="usual", notify_after=HOUR, warn_after=2 * HOUR, act_after=4 * HOUR, hook=["/bin/true"])
Found = list[tuple[str, str, float, float | None]]
"""GPU, step, hour after T0, and the saved hours."""


def idle(gpu: int, start: float, end: float, *sharing: int) -> IdleEpisode:
    spans = [(T0 + start * HOUR, T0 + end * HOUR)]
    others = dict.fromkeys((f"GPU-{one}" for one in sharing), T0 + 1000 * HOUR)
    return IdleEpisode(f"GPU-{gpu}", str(gpu), "NVIDIA H200", "id-1", "gpu01", ("alice",), (), spans, others)


def dry_run(
    *episodes: IdleEpisode,
    jobs: dict[str, list[JobSpan]] | None = None,
    keeps: dict[str, list[Keep]] | None = None,
    since: float = 0.0,
) -> tuple[Found, float]:
    facts = PastFacts({}, jobs or {}, keeps or {}, {}, lambda _: None, lambda _: None)
    steps, hours, _ = simulate(IdlePolicySettings(rules=[RULE]), episodes, facts, T0 + since * HOUR)
    return [(step.gpu, step.kind, round((step.at - T0) / HOUR, 3), step.saved_hours) for step in steps], hours


def acts(found: tuple[Found, float]) -> Found:
    return [one for one in found[0] if one[1] == "act"]


def test_gpus_of_a_process_or_job_are_released_together() -> None:
    found = dry_run(idle(0, 0, 10, 1), idle(1, 3, 12, 0))
    assert acts(found) == [("GPU-0", "act", 7, 3), ("GPU-1", "act", 7, 5)]


def test_while_a_gpu_of_the_job_works_none_is_released() -> None:
    job = JobSpan(7, T0, T0 + 20 * HOUR, "alice", ("4711",))
    jobs = {"GPU-0": [job], "GPU-1": [job]}
    assert acts(dry_run(idle(0, 0, 10), jobs=jobs)) == []
    # The other GPU begins to idle too late.
    assert acts(dry_run(idle(0, 0, 10), idle(1, 7, 20), jobs=jobs)) == []
    ended = {gpu: [replace(job, end=T0 + 3 * HOUR)] for gpu in jobs}
    assert acts(dry_run(idle(0, 0, 10), jobs=ended)) == [("GPU-0", "act", 4, 6)]


def test_a_ladder_may_have_begun_before_the_period() -> None:
    found, hours = dry_run(idle(0, 0, 10), since=3)
    assert (found, hours) == ([("GPU-0", "act", 4, 6)], 7)
    # It would have been released before the period, in which it idles still.
    assert dry_run(idle(0, 0, 10), since=8) == ([("GPU-0", "act", 4, 2)], 2)
    assert dry_run(idle(0, 0, 10), since=10) == ([], 0)


def test_what_follows_a_keep_counts_if_nothing_was_released_before() -> None:
    def keep(start: float) -> dict[str, list[Keep]]:
        begin, end = T0 + start * HOUR, T0 + (start + 2) * HOUR
        one = Keep(id=1, gpu="GPU-0", host="gpu01", label="0", user="a", start=begin, end=end, reason="a demo")
        return {"GPU-0": [one]}

    assert acts(dry_run(idle(0, 0, 20), keeps=keep(3))) == [("GPU-0", "act", 9, 11)]
    assert acts(dry_run(idle(0, 0, 20), keeps=keep(6))) == [("GPU-0", "act", 4, 16)]
