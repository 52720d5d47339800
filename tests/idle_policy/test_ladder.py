"""The ladder: which step is due when, from idle spans, hours, exemptions, keeps, and what was done."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from gpudeck.idle_policy.ladder import IdleFacts, LadderStep, climb, climb_all, find_rules, find_windows, subtract
from gpudeck.idle_policy.settings import Exemptions, IdlePolicySettings, IdleRule, TimeOfDay

HOUR = 3600.0
T0 = 1_789_948_800.0  # a Monday, midnight in UTC
RULE = IdleRule(
    name="usual", notify_after=HOUR, warn_after=2 * HOUR, act_after=4 * HOUR, grace=HOUR, hook=["/bin/release"]
)


def policy(*rules: IdleRule, **others: object) -> IdlePolicySettings:
    return IdlePolicySettings(rules=list(rules) or [RULE], **others)  # type: ignore[arg-type]


def hours(*spans: tuple[float, float]) -> list[tuple[float, float]]:
    return [(T0 + start * HOUR, T0 + end * HOUR) for start, end in spans]


def shown(steps: list[LadderStep]) -> list[tuple[str, float]]:
    """Each with the hour after T0."""
    return [(step.kind, round((step.at - T0) / HOUR, 4)) for step in steps]


def steps_of(
    *spans: tuple[float, float], settings: IdlePolicySettings | None = None, **others: object
) -> list[tuple[str, float]]:
    settings = settings or policy()
    return shown(climb(hours(*spans), settings.rules, settings, **others))  # type: ignore[arg-type]


def test_each_step_is_due_after_its_idle_time() -> None:
    assert steps_of((0, 5)) == [("notify", 1), ("warn", 2), ("act", 4)]
    assert steps_of((0, 1.9)) == [("notify", 1)]
    assert steps_of((0, 0.9)) == []


def test_a_rule_may_leave_steps_out() -> None:
    only_warns = policy(IdleRule(name="w", warn_after=HOUR))
    assert steps_of((0, 9), settings=only_warns) == [("warn", 1)]


def test_a_short_gap_counts_as_no_idle_time_and_begins_nothing_anew() -> None:
    assert steps_of((0, 1.5), (1.6, 5)) == [("notify", 1), ("warn", 2.1), ("act", 4.1)]


def test_a_long_gap_counts_as_work() -> None:
    assert steps_of((0, 1.5), (2, 5)) == [("notify", 3), ("warn", 4)]


def test_what_was_done_is_not_done_again() -> None:
    done = [LadderStep("notify", "usual", T0 + HOUR, HOUR)]
    assert steps_of((0, 2.5), done=done) == [("warn", 2)]
    # It was of a ladder before.
    assert steps_of((0, 1.5), (2, 3.5), done=done) == [("notify", 3)]


def test_a_late_step_moves_those_after_it() -> None:
    """The hub was away when the warning was due: its owner has all of the time that the rule promises."""
    done = [LadderStep("notify", "usual", T0 + HOUR, HOUR), LadderStep("warn", "usual", T0 + 3.5 * HOUR, 3.5 * HOUR)]
    assert steps_of((0, 5), done=done) == []
    assert steps_of((0, 6), done=done) == [("act", 5.5)]


def test_a_grace_longer_than_the_rules_own_time_counts() -> None:
    rule = IdleRule(name="r", warn_after=HOUR, act_after=1.5 * HOUR, grace=3 * HOUR, hook=["/bin/release"])
    assert steps_of((0, 5), settings=policy(rule)) == [("warn", 1), ("act", 4)]


def test_nothing_acts_without_a_warning() -> None:
    """Another rule, of before, had no warning."""
    done = [LadderStep("notify", "other", T0 + HOUR, HOUR)]
    rule = IdleRule(name="r", notify_after=HOUR, warn_after=3 * HOUR, act_after=4 * HOUR, hook=["/bin/release"])
    assert steps_of((0, 6), settings=policy(rule), done=done) == [("warn", 3), ("act", 4)]


def test_a_keep_begins_the_ladder_anew() -> None:
    assert steps_of((0, 12), keeps=hours((1.5, 9))) == [("notify", 10), ("warn", 11)]
    assert steps_of((0, 5), keeps=hours((1.5, 9))) == [("notify", 1)]


def test_a_keep_in_a_gap_begins_it_anew_too() -> None:
    assert steps_of((0, 0.9), (1, 1.5), keeps=hours((0.9, 1))) == []


def test_an_exempt_time_does_not_count() -> None:
    assert steps_of((0, 5), exempt=hours((0.5, 2.5))) == [("notify", 3), ("warn", 4)]


def test_interactive_hours_do_not_count() -> None:
    working_hours = Exemptions(interactive=[TimeOfDay(hours="00:30-02:30")])
    assert steps_of((0, 5), settings=policy(exempt=working_hours)) == [("notify", 3), ("warn", 4)]


def test_the_first_rule_that_is_in_force_counts() -> None:
    night = IdleRule(name="night", during=TimeOfDay(hours="02:00-06:00"), notify_after=600.0, warn_after=1200.0)
    settings = policy(night, RULE)
    found = climb(hours((1.5, 6)), settings.rules, settings)
    # Half an hour has counted when the night's rule begins: its notification is due at once, its warning 10 min later.
    assert [(step.rule, step.kind, round((step.at - T0) / 60)) for step in found] == [
        ("night", "notify", 120),
        ("night", "warn", 130),
    ]


def test_outside_of_its_hours_a_rule_does_nothing() -> None:
    evening = IdleRule(name="evening", during=TimeOfDay(hours="20:00-22:00"), notify_after=3 * HOUR)
    assert steps_of((0, 24), settings=policy(evening)) == []
    # Two hours of the first evening, and one of the second.
    assert steps_of((0, 48), settings=policy(evening)) == [("notify", 45)]


def test_in_the_past_each_ladder_begins_with_its_first_step() -> None:
    settings = policy()
    found = [shown(steps) for steps, _ in climb_all(hours((0, 1.5), (3, 9)), settings.rules, settings)]
    assert found == [[("notify", 1)], [("notify", 4), ("warn", 5), ("act", 7)]]


def test_both_agree_on_an_episode_that_is_looked_at_every_minute() -> None:
    """The running policy sees what there is by then; the dry run everything at once."""
    settings, done = policy(), list[LadderStep]()
    for minute in range(1, 10 * 60):
        spans = [
            (start, min(end, T0 + minute * 60)) for start, end in hours((0, 1.5), (1.6, 9)) if start < T0 + minute * 60
        ]
        done += climb(spans, settings.rules, settings, done=done)
    [(all_at_once, _)] = climb_all(hours((0, 1.5), (1.6, 9)), settings.rules, settings)
    assert shown(done) == shown(all_at_once)


@pytest.mark.parametrize(
    ("day", "length"),
    [("2026-03-29", 2), ("2026-10-25", 4), ("2026-06-01", 3)],
    ids=["clocks go forward", "clocks go back", "an ordinary day"],
)
def test_hours_are_those_of_the_clock_on_the_wall(day: str, length: float) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    midnight = datetime.fromisoformat(day).replace(tzinfo=berlin).timestamp()
    [(start, end)] = find_windows(TimeOfDay(hours="01:00-04:00"), midnight, midnight + 20 * HOUR, berlin)
    assert [datetime.fromtimestamp(moment, berlin).hour for moment in (start, end)] == [1, 4]
    assert end - start == length * HOUR


def test_hours_over_midnight_belong_to_the_day_on_which_they_begin() -> None:
    friday_night = TimeOfDay(hours="20:00-08:00", days=["fri"])
    [(start, end)] = find_windows(friday_night, T0, T0 + 7 * 24 * HOUR, ZoneInfo("UTC"))
    assert ((start - T0) / HOUR, (end - T0) / HOUR) == (4 * 24 + 20, 5 * 24 + 8)


def test_rules_are_chosen_by_label_group_and_model() -> None:
    rules = [
        IdleRule(name="lab", labels={"site": "b*"}, notify_after=HOUR),
        IdleRule(name="vision", groups=["vision"], notify_after=HOUR),
        IdleRule(name="h200", models=["h200"], notify_after=HOUR),
    ]
    facts = IdleFacts({"site": "berlin"}, "NVIDIA H200", ["alice"])
    groups = {"alice": "vision"}.get
    assert [rule.name for rule in find_rules(policy(*rules), facts, groups)] == ["lab", "vision", "h200"]
    other = IdleFacts({}, "NVIDIA L40S", ["bob"])
    assert find_rules(policy(*rules), other, groups) == []


@pytest.mark.parametrize(
    "facts", [IdleFacts({}, "m", ["alice", "svc-x"]), IdleFacts({}, "m", ["bob"], ["4711", "interactive-3"])]
)
def test_exempt_users_and_jobs_have_no_rules(facts: IdleFacts) -> None:
    settings = policy(exempt=Exemptions(users=["svc-*"], jobs=["interactive*"]))
    assert find_rules(settings, facts, lambda _: None) == []


def test_subtract_leaves_what_is_in_none_of_the_others() -> None:
    assert subtract([(0, 10)], [(2, 3), (3, 4), (9, 12)]) == [(0, 2), (4, 9)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"warn_after": None}, "acts without a warning"),
        ({"hook": []}, "belong together"),
        ({"notify_after": 3 * HOUR}, "must follow each other"),
        ({"notify_after": None, "warn_after": None, "act_after": None, "hook": []}, "has no step"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(change: dict[str, object], message: str) -> None:
    known: dict[str, object] = {"notify_after": HOUR, "warn_after": 2 * HOUR, "act_after": 4 * HOUR, "hook": ["/x"]}
    with pytest.raises(ValueError, match=message):
        IdleRule(name="r", **(known | change))  # type: ignore[arg-type]


@pytest.mark.parametrize("hours", ["9-18", "09:00-25:00", "24:00-08:00", "09:00-24:30", "10:00-10:00", "09:00 - 18:00"])
def test_hours_that_are_none_are_refused(hours: str) -> None:
    with pytest.raises(ValueError, match="write them as"):
        TimeOfDay(hours=hours)
