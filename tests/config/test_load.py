"""Single rules of reading a configuration that a file of its own would not show better."""

import subprocess
import sys
from typing import Annotated

import pytest
from msgspec import Meta, Struct, field

from config.example import Example, Hub
from gpudeck.config import ConfigMistakes, Mistake, load


class Renamed(Struct, frozen=True, rename="kebab"):
    max_hosts: int = 1


class Tree(Struct, frozen=True):
    name: str
    children: "list[Tree]" = field(default_factory=list)


class Talkative(Struct, frozen=True):
    keys: list[str]

    def __post_init__(self) -> None:
        raise ValueError(f"one of {self.keys} is wrong")


class Inner(Struct, frozen=True):
    number: int = 1


class Outer(Struct, frozen=True):
    low: int = 1
    high: int = 2
    inner: Inner = Inner()

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low is above high")


class Worded(Struct, frozen=True):
    prefix: Annotated[str, Meta(pattern="^/", extra={"config_words": "a path that begins with /"})] | None = None


class Unreadable(Struct, frozen=True):
    value: complex = 0j


def mistakes(text: str, settings_type: type[Struct] = Example) -> tuple[Mistake, ...]:
    with pytest.raises(ConfigMistakes) as caught:
        load(text, "gpudeck.yaml", settings_type)
    return caught.value.mistakes


def test_mistake_carries_every_part_of_its_message() -> None:
    expected = Mistake(
        source="gpudeck.yaml",
        line=2,
        path="hub.read",
        found="'opne'",
        expected="one of login, open",
        suggestion="did you mean open?",
    )
    assert mistakes("hub:\n  read: opne\n") == (expected,)


def test_mistakes_come_in_the_order_of_the_file() -> None:
    found = mistakes("hosts: 1\nhub: {workers: 0, read: x}\ncolour: 1\n")
    assert [mistake.path for mistake in found] == ["hosts", "hub.workers", "hub.read", "colour"]


def test_section_that_sets_one_thing_keeps_the_other_defaults_of_its_place() -> None:
    assert load("hub: {read: open}", "", Example).hub == Hub(read="open", workers=2)


def test_section_with_everything_commented_out_means_its_defaults() -> None:
    assert load("hub:\n  # workers: 3\n", "", Example) == Example()


def test_section_that_may_be_absent_is_absent_when_empty() -> None:
    assert load("login:\n", "", Example).login is None


def test_names_are_those_of_the_file_not_of_python() -> None:
    assert load("max-hosts: 3", "", Renamed) == Renamed(3)
    assert [str(mistake) for mistake in mistakes("max_hosts: 3", Renamed)] == [
        "gpudeck.yaml:1: max_hosts: unknown setting; did you mean max-hosts?"
    ]


def test_settings_may_contain_themselves() -> None:
    assert load("name: a\nchildren: [{name: b}]", "", Tree) == Tree("a", [Tree("b")])


def test_chain_of_aliases_cannot_nest_deeper_than_lists_may() -> None:
    links = "".join(f", &a{n} {{name: n, children: [*a{n - 1}]}}" for n in range(1, 60))
    found = mistakes(f"name: top\nchildren: [&a0 {{name: n}}{links}]", Tree)
    assert [mistake.found for mistake in found] == ["lists and mappings nested more than 50 deep"]


def test_text_beyond_the_limit_is_refused_before_it_is_parsed() -> None:
    found = mistakes("#" * (1024 * 1024 + 1))
    assert [str(mistake) for mistake in found] == ["gpudeck.yaml: found 1048577 characters, expected at most 1048576"]


def test_more_values_than_any_configuration_has_are_refused() -> None:
    found = mistakes(f"groups: [{'x, ' * 100_001}]")
    assert [mistake.found for mistake in found] == ["more than 100000 values, counting each use of an alias"]


def test_thousands_of_unknown_settings_are_all_reported() -> None:
    assert len(mistakes("".join(f"setting{n}: 1\n" for n in range(5000)))) == 5000


def test_long_value_is_cut_in_the_message() -> None:
    assert len(str(mistakes(f"hub: {{read: {'x' * 5000}}}")[0])) < 200


def test_name_of_the_file_cannot_break_the_line() -> None:
    with pytest.raises(ConfigMistakes) as caught:
        load("a: 1", "evil\n\x1b[31m.yaml", Hub)
    assert all(line.startswith(r"evil\n\x1b[31m.yaml:1: ") for line in str(caught.value).split("\n"))


def test_objection_of_the_settings_themselves_shows_no_secret() -> None:
    found = mistakes('keys: [hunter2, "two\\nlines"]', Talkative)
    assert [str(mistake) for mistake in found] == ["gpudeck.yaml:1: one of ['…', '…'] is wrong"]


def test_objection_of_a_section_comes_together_with_mistakes_inside_inner_ones() -> None:
    assert [str(mistake) for mistake in mistakes("low: 3\ninner: {number: x}", Outer)] == [
        "gpudeck.yaml:1: low: low is above high",
        "gpudeck.yaml:2: inner.number: found 'x', expected a whole number",
    ]


def test_objection_about_a_setting_that_is_wrong_by_itself_is_left_out() -> None:
    found = mistakes("low: 3\nhigh: x", Outer)
    assert [mistake.path for mistake in found] == ["high"]


def test_objection_comes_together_with_mistakes_of_other_settings() -> None:
    assert [str(mistake) for mistake in mistakes("inner: 1\ncolour: red\nhigh: 0", Outer)] == [
        "gpudeck.yaml:1: inner: found text, expected a mapping (name: value)",
        "gpudeck.yaml:2: colour: unknown setting; known here: low, high, inner",
        "gpudeck.yaml:3: high: low is above high",
    ]


def test_pattern_is_told_in_the_words_of_its_setting() -> None:
    assert [str(mistake) for mistake in mistakes("prefix: gpus", Worded)] == [
        "gpudeck.yaml:1: prefix: found 'gpus', expected a path that begins with /"
    ]


@pytest.mark.parametrize("line", ["root:$6$hunter2:19000:0:99999:7:::", "machine hub password hunter2:"])
def test_line_of_another_kind_of_file_is_not_repeated(line: str) -> None:
    found = mistakes(f"{line}\n")
    assert [mistake.found for mistake in found] == ["a name that is not shown"]
    assert "hunter2" not in str(found[0])


def test_type_that_no_file_can_hold_is_our_bug() -> None:
    with pytest.raises(TypeError, match="a setting cannot have the type"):
        load("value: 1", "", Unreadable)


def test_importing_the_room_does_not_import_a_yaml_parser() -> None:
    program = "import sys, gpudeck.config; print('yaml' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
