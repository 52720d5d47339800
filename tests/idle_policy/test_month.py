"""The dry run over a simulated month of which it is known who idled when."""

import random
from pathlib import Path

import pytest

from fakes.clock import FakeClock
from gpudeck.history.base import IdleEpisode, IdleQuery
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES, STATE_NUMBERS, GpuSample, HostSample, ProcessSample
from gpudeck.history.settings import HistorySettings
from gpudeck.idle_policy.report import PastFacts, simulate, sum_up
from gpudeck.idle_policy.settings import IdlePolicySettings, IdleRule

HOUR, DAY, STEP = 3600.0, 86_400.0, 60.0
T0 = 1_789_920_000.0
DAYS, GPUS = 30, 6
AFTER = 4 * HOUR
RULE = IdleRule(name="usual", notify_after=HOUR, warn_after=2 * HOUR, act_after=AFTER, grace=HOUR, hook=["/bin/true"])
Stay = tuple[float, float, str, str]
"""From when until when, in which state, with whom."""


def plan(rng: random.Random) -> list[Stay]:
    """Users work, idle for minutes or for days, and go, or work on."""
    stays: list[Stay] = []
    at = T0
    while at < T0 + DAYS * DAY:
        user = rng.choice(["alice", "bob", "carol"])
        for _ in range(rng.randint(1, 4)):
            for state, hours in (
                ("busy", rng.uniform(0.3, 9)),
                ("idle", rng.choice([0.2, 2, 6, 20, 60]) * rng.random()),
            ):
                stays.append((at, at + hours * HOUR, state, user))
                at += hours * HOUR
        stays.append((at, at + rng.uniform(0.2, 4) * HOUR, "free", ""))
        at = stays[-1][1]
    return stays


def find_truth(plans: list[list[Stay]]) -> tuple[float, int]:
    """The GPU-hours after an act, and how many acts: of each stay that idles for longer than the rule allows."""
    end = T0 + DAYS * DAY
    idle = [min(until, end) - begin for stays in plans for begin, until, state, _ in stays if state == "idle"]
    over = [seconds - AFTER for seconds in idle if seconds > AFTER]
    return sum(over) / HOUR, len(over)


def record(folder: Path, plans: list[list[Stay]], settings: HistorySettings) -> EmbeddedStore:
    clock = FakeClock(T0)
    store = EmbeddedStore(folder / "history.db", settings, clock)
    values = dict.fromkeys(GPU_NAMES) | {"utilization_percent": 50.0, "memory_used_bytes": 2.0**34}
    metrics = tuple(values[name] for name in GPU_NAMES)
    places = [0] * GPUS
    for number in range(int(DAYS * DAY / STEP) + 1):
        at = clock.now = T0 + number * STEP
        gpus = []
        for gpu, stays in enumerate(plans):
            while stays[places[gpu]][1] < at:
                places[gpu] += 1
            _, _, state, user = stays[places[gpu]]
            # Each process is on one GPU.
            pid = 1000 * gpu + ord(user[:1] or "-")
            running = (ProcessSample(pid, T0, user, "python", None, None, 2**34, None),) if user else ()
            gpus.append(GpuSample(f"GPU-{gpu}", str(gpu), "NVIDIA H200", STATE_NUMBERS[state], metrics, running))
        # The agent is restarted now and then.
        if number % 1440 not in range(700, 703):
            store.take([HostSample("id-1", "gpu01", at, STEP, (None,) * len(HOST_NAMES), tuple(gpus))])
        if number % 120 == 0:
            store.flush()
    store.flush()
    return store


@pytest.mark.slow
def test_a_dry_run_saves_what_is_true_within_half_a_percent(tmp_path: Path) -> None:
    rng = random.Random(30)
    plans = [plan(rng) for _ in range(GPUS)]
    saved, acts = find_truth(plans)
    store = record(tmp_path, plans, HistorySettings(every=STEP))
    try:
        start, end = T0, T0 + DAYS * DAY
        episodes = store.idle(IdleQuery(start, end))
        facts = PastFacts({}, {}, {}, {}, lambda _: None, lambda _: None)
        steps, idle, exempt = simulate(IdlePolicySettings(rules=[RULE]), episodes, facts)
        found = sum_up(steps, (idle, exempt), (start, end), "EUR", 1.0)
    finally:
        store.close()
    told = f"{found.total.saved_hours:.1f} GPU-hours and {found.total.acted} acts, {saved:.1f} and {acts} are true"
    assert found.total.saved_hours == pytest.approx(saved, rel=0.005), told
    assert found.total.acted == acts, told
    assert sum(row.saved_hours for row in found.users) == pytest.approx(found.total.saved_hours)


def test_a_gpu_whose_owner_is_unknown_is_not_acted_on() -> None:
    episodes = [
        IdleEpisode("GPU-0", "0", "NVIDIA H200", "id-1", "gpu01", users, (), [(T0, T0 + 10 * HOUR)])
        for users in [(), ("alice",)]
    ]
    facts = PastFacts({}, {}, {}, {}, lambda _: None, lambda _: None)
    steps, idle, exempt = simulate(IdlePolicySettings(rules=[RULE]), episodes, facts)
    assert [(step.kind, step.users) for step in steps] == [(kind, ["alice"]) for kind in ("notify", "warn", "act")]
    assert (idle, exempt) == (20, 10)
