"""A section that one value can stand for, and a list whose items are looked at together."""

from collections.abc import Iterator
from typing import Annotated, ClassVar

import pytest
from msgspec import Meta, Struct, field

from docs.settings_reference import reference
from gpudeck.config import ConfigMistakes, load


class Disk(Struct, frozen=True):
    """One disk."""

    config_shorthand: ClassVar[str] = "path"

    path: Annotated[str, Meta(pattern="^/", extra={"config_words": "a path that begins with /"})]
    """Where it is."""
    size: int = 1
    """How large."""


def find_repeated(disks: list[Disk]) -> Iterator[tuple[int, str]]:
    for index, disk in enumerate(disks):
        if disk.path in [earlier.path for earlier in disks[:index]]:
            yield index, f"{disk.path}\nagain"


class Machine(Struct, frozen=True):
    disks: Annotated[list[Disk], Meta(extra={"config_check": find_repeated})] = field(default_factory=list)
    """Its disks."""
    root: Disk = Disk("/")
    """The first of them."""


def mistakes_in(text: str) -> str:
    with pytest.raises(ConfigMistakes) as caught:
        load(text, "x.yaml", Machine)
    return str(caught.value)


def test_one_value_stands_for_a_section() -> None:
    assert load("disks: [/a, {path: /b, size: 2}]\nroot: /c", "x.yaml", Machine) == Machine(
        [Disk("/a"), Disk("/b", 2)], Disk("/c")
    )


def test_one_value_that_does_not_fit_is_a_mistake_of_the_setting_it_stands_for() -> None:
    assert mistakes_in("disks:\n  - a") == "x.yaml:2: disks[0].path: found 'a', expected a path that begins with /"


def test_both_forms_are_expected() -> None:
    words = "a path that begins with / or a mapping (name: value)"
    assert mistakes_in("disks: [[]]") == f"x.yaml:1: disks[0]: found a list, expected {words}"
    assert mistakes_in("disks: 1").startswith(f"x.yaml:1: disks: found text, expected a list, each item {words}")


def test_item_that_does_not_fit_to_the_others_is_named_with_its_place() -> None:
    assert mistakes_in("disks:\n  - /a\n  - /b\n  - /a\n") == "x.yaml:4: disks[2]: /a\\nagain"


def test_items_with_mistakes_of_their_own_are_not_compared() -> None:
    assert mistakes_in("disks:\n  - /a\n  - /a\n  - b\n").count("\n") == 0


def test_reference_tells_the_short_form() -> None:
    assert "One disk. Where nothing but `path` is set, its value alone can be written." in reference(Machine)
