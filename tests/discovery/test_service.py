"""The lists of all providers as one."""

import asyncio

import pytest

from discovery.script import ScriptedProvider
from fakes.waiting import until
from gpudeck.discovery.inputs import MAX_HOSTS, MAX_PROBLEMS
from gpudeck.discovery.service import Discovery, merge_targets
from gpudeck.model.errors import Temporary
from gpudeck.model.target import Target


def names(targets: list[Target]) -> list[str]:
    return [target.name for target in targets]


def test_hosts_come_in_the_order_of_their_providers() -> None:
    together, clashes = merge_targets([[Target(name="b"), Target(name="a")], [Target(name="c")]])
    assert names(together) == ["b", "a", "c"]
    assert clashes == []


def test_first_provider_counts_and_the_other_is_told() -> None:
    first, second = Target(name="a", origin="hosts.txt", port=22), Target(name="a", origin="consul x", via="pull")
    assert merge_targets([[first], [second]]) == (
        [first],
        ["a is named by hosts.txt and consul x; the first counts."],
    )


def test_one_provider_that_gives_two_addresses_is_told() -> None:
    first = Target(name="a", origin="list", via="scrape", port=9400)
    second = Target(name="a", origin="list", via="scrape", address="::1", user="ada")
    assert merge_targets([[first, second, first]]) == (
        [first],
        ["a is named by list and list; the first counts."],
    )


def test_name_that_is_none_is_told_and_hides_no_neighbour() -> None:
    together, clashes = merge_targets([[Target(name="a\x1b", origin="list"), Target(name="b")]])
    assert names(together) == ["b"]
    assert clashes == ["list: 'a\\x1b' is no name of a host; it is left out."]


def test_hosts_and_sentences_are_bounded() -> None:
    together, clashes = merge_targets([[Target(name=f"h{number}") for number in range(MAX_HOSTS + 500)]])
    assert len(together) == MAX_HOSTS
    assert len(clashes) == MAX_PROBLEMS
    assert clashes[-1] == "401 more problems are not shown."


class Stage:
    """A roster of scripted providers, and everything that it says."""

    def __init__(self, *providers: ScriptedProvider) -> None:
        self.lists: list[list[str]] = []
        self.problems: list[list[str]] = []
        self.roster = Discovery(providers, lambda targets: self.lists.append(names(targets)), self.problems.append)


def test_whole_list_is_told_when_it_changes_and_only_then() -> None:
    async def playing() -> list[list[str]]:
        first, second = ScriptedProvider(["a"], origin="1", pause=0.0), ScriptedProvider(origin="2", pause=0.0)
        stage = Stage(first, second)
        stage.roster.start()
        await until(lambda: stage.lists, "the first list")
        second.then(["b"])
        await until(lambda: len(stage.lists) == 2, "the second list")
        second.then(["b", "a"])
        await until(lambda: stage.roster.problems, "the clash")
        first.then(["c", "a"])
        await until(lambda: len(stage.lists) == 3, "the third list")
        await stage.roster.stop()
        assert (first.is_closed, second.is_closed) == (True, True)
        return stage.lists

    assert asyncio.run(playing()) == [["a"], ["a", "b"], ["c", "a", "b"]]


def test_provider_that_fails_hides_no_neighbour_and_is_told_until_it_works() -> None:
    async def playing() -> list[list[str]]:
        failing, working = ScriptedProvider(["a"], origin="1", pause=0.0), ScriptedProvider(["b"], origin="2")
        stage = Stage(failing, working)
        stage.roster.start()
        await until(lambda: names(stage.roster.targets) == ["a", "b"], "both lists")
        failing.then(Temporary("no answer."))
        await until(lambda: stage.roster.problems, "the trouble")
        assert names(stage.roster.targets) == ["a", "b"]
        failing.then(["a"])
        await until(lambda: not stage.roster.problems, "the end of the trouble")
        await stage.roster.stop()
        return stage.problems

    assert asyncio.run(playing()) == [["1: no answer. Its last list of 1 host counts."], []]


@pytest.mark.parametrize(
    ("origin", "trouble", "told"),
    [
        ("racks.txt", "racks.txt cannot be read.", "racks.txt cannot be read."),
        ("http_sd http://a/sd", "http://a/sd answers 500.", "http://a/sd answers 500."),
        ("consul gpus", "http://a answers 500.", "consul gpus: http://a answers 500."),
    ],
)
def test_problem_names_its_list_once(origin: str, trouble: str, told: str) -> None:
    async def run() -> list[str]:
        stage = Stage(ScriptedProvider(Temporary(trouble), origin=origin))
        stage.roster.start()
        await until(lambda: stage.roster.problems, "the trouble")
        await stage.roster.stop()
        return stage.roster.problems

    assert asyncio.run(run()) == [told]


def test_entries_that_make_no_sense_are_among_the_problems() -> None:
    async def playing() -> list[str]:
        provider = ScriptedProvider(["a"])
        provider.problems = ["list, line 2: nonsense."]
        stage = Stage(provider)
        stage.roster.start()
        await until(lambda: stage.lists, "the list")
        await stage.roster.stop()
        return stage.roster.problems

    assert asyncio.run(playing()) == ["list, line 2: nonsense."]


def test_roster_of_nobody_says_nothing() -> None:
    async def playing() -> list[list[str]]:
        stage = Stage()
        stage.roster.start()
        await stage.roster.stop()
        return stage.lists

    assert asyncio.run(playing()) == []


def test_provider_that_stays_keeps_its_list_when_others_come_and_go() -> None:
    async def work() -> None:
        staying, going = ScriptedProvider([Target(name="a")]), ScriptedProvider([Target(name="b")])
        coming = ScriptedProvider([Target(name="c")])
        stage = Stage(staying, going)
        stage.roster.start()
        await until(lambda: names(stage.roster.targets) == ["a", "b"], "both lists")
        await stage.roster.change([coming, staying])
        await until(lambda: names(stage.roster.targets) == ["c", "a"], "the new list before the one that stays")
        assert ["a"] in stage.lists
        assert (going.is_closed, staying.is_closed) == (True, False)
        await stage.roster.stop()

    asyncio.run(work())
