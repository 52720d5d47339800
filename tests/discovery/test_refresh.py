"""Asking a provider again and again: what it said last counts until it says something else."""

import asyncio
import logging
import random

import pytest

from discovery.script import ScriptedProvider
from fakes.waiting import until
from gpudeck.discovery.service import CONFIRM_PAUSE, MAX_PAUSE, MIN_PAUSE, ProviderRefresh
from gpudeck.model.errors import Refused, Temporary


class Watch:
    """A refresh whose pauses take no time, and everything that it says."""

    def __init__(self, provider: ScriptedProvider) -> None:
        self.lists: list[list[str]] = []
        self.troubles: list[str] = []
        self.pauses: list[float] = []
        self.refresh = ProviderRefresh(provider, self.note, sleep=self.sleep, random=random.Random(1).random)

    def note(self) -> None:
        trouble = self.refresh.trouble
        if trouble != (self.troubles[-1] if self.troubles else ""):
            self.troubles.append(trouble)
        names = [target.name for target in self.refresh.targets]
        if not trouble and (not self.lists or names != self.lists[-1] or self.refresh.provider.problems):
            self.lists.append(names)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)


def play(provider: ScriptedProvider, looks: int) -> Watch:
    """What is said while a provider answers so many times."""

    async def playing() -> Watch:
        watch = Watch(provider)
        watch.refresh.start()
        await until(lambda: len(watch.pauses) == looks, f"{looks} looks")
        await watch.refresh.stop()
        return watch

    return asyncio.run(playing())


def test_only_changes_are_told() -> None:
    watch = play(ScriptedProvider(["a"], ["a"], ["a", "b"], ["a", "b"]), 4)
    assert watch.lists == [["a"], ["a", "b"]]
    assert watch.pauses == [60.0] * 4
    assert watch.troubles == []


def test_first_list_is_told_even_if_it_is_empty() -> None:
    assert play(ScriptedProvider([], []), 2).lists == [[]]


def test_last_list_counts_while_the_provider_fails() -> None:
    watch = play(ScriptedProvider(["a"], Temporary("no answer."), Temporary("no answer."), ["a"], ["b"]), 5)
    assert watch.lists == [["a"], ["b"]]
    assert watch.troubles == ["list: no answer.", ""]


def test_trouble_is_told_again_when_it_changes() -> None:
    watch = play(ScriptedProvider(Temporary("one."), Refused("two.", "Do it."), ["a"]), 3)
    assert watch.troubles == ["list: one.", "list: two. Do it.", ""]


def test_trouble_is_logged_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    play(ScriptedProvider(*[Temporary(f"no answer {count}.") for count in range(5)], ["a"], ["b"]), 7)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("gpudeck")] == [
        "list: no answer 0.",
        "list: works again",
    ]


def test_pauses_grow_with_failures_and_stay_bounded() -> None:
    pauses = play(ScriptedProvider(*[Temporary("no.")] * 20, ["a"], Temporary("no.")), 22).pauses
    assert all(limit / 2 <= pause <= limit for pause, limit in zip(pauses, [1, 2, 4, 8, 16, 30, 30], strict=False))
    assert all(MAX_PAUSE / 2 <= pause <= MAX_PAUSE for pause in pauses[5:20])
    assert len(set(pauses[5:20])) > 10
    assert pauses[21] <= 1


def test_provider_with_a_bug_is_told_with_its_trace_and_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    watch = play(ScriptedProvider(KeyError("x"), ["a"]), 2)
    assert watch.lists == [["a"]]
    assert watch.troubles == ["list: the list of hosts failed: KeyError: 'x'.", ""]
    assert caplog.records[0].exc_info is not None


def test_list_that_becomes_empty_is_believed_after_a_second_look() -> None:
    watch = play(ScriptedProvider(["a"], [], []), 3)
    assert watch.lists == [["a"], []]
    assert watch.pauses == [60.0, CONFIRM_PAUSE, 60.0]


def test_list_that_was_lost_for_a_moment_never_vanishes() -> None:
    assert play(ScriptedProvider(["a"], [], ["a"], [], Temporary("no."), ["a"]), 6).lists == [["a"]]


def test_provider_that_waits_for_changes_by_itself_is_asked_again_at_once_but_not_in_a_hurry() -> None:
    watch = play(ScriptedProvider(["a"], [], [], pause=0.0), 3)
    assert watch.pauses == [MIN_PAUSE] * 3
    assert watch.lists == [["a"], []]


def test_provider_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudeck.discovery.service.LOOK_DEADLINE", 0.05)
    watch = play(ScriptedProvider(["a"]), 2)
    assert watch.troubles == ["list: it did not answer within 0.05 s."]


def test_new_problem_is_told_though_the_hosts_are_the_same(caplog: pytest.LogCaptureFixture) -> None:
    async def playing() -> Watch:
        provider = ScriptedProvider(["a"])
        watch = Watch(provider)
        watch.refresh.start()
        await until(lambda: watch.lists, "the first list")
        provider.problems = ["list, line 2: nonsense."]
        provider.then(["a"])
        provider.then(["a"])
        await until(lambda: len(watch.pauses) == 3, "three looks")
        await watch.refresh.stop()
        return watch

    assert asyncio.run(playing()).lists == [["a"], ["a"]]
    assert [record.getMessage() for record in caplog.records] == ["list, line 2: nonsense."]


def test_stop_ends_a_look_that_waits_and_closes_the_provider() -> None:
    async def playing() -> tuple[bool, int]:
        provider = ScriptedProvider(pause=0.0)
        refresh = Watch(provider).refresh
        refresh.start()
        await asyncio.sleep(0)
        await refresh.stop()
        await refresh.stop()
        return provider.is_closed, len(asyncio.all_tasks())

    assert asyncio.run(playing()) == (True, 1)
