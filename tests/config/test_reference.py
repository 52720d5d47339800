"""The reference page: every setting with its type, default and help."""

from typing import Annotated

from msgspec import Meta, Struct

from config.example import Example
from docs.settings_reference import reference


class Parent(Struct, frozen=True):
    inherited: int = 1
    """Help of the parent."""


class Child(Parent, frozen=True):
    """Settings with odd help."""

    described: Annotated[int, Meta(description="Help in the type.")] = 2
    long: str = "*"
    """Help that goes
    on and on."""


def row(page: str, path: str) -> str:
    return next(line for line in page.splitlines() if line.startswith(f"| `{path}` |"))


def test_setting_stands_with_type_default_and_help() -> None:
    page = reference(Example)
    help_text = "Time without work after which an occupied GPU counts as idle."
    assert (
        row(page, "hub.idle_after") == f"| `hub.idle_after` | a duration such as 10s, above 0s | `10m` | {help_text} |"
    )


def test_required_setting_says_so() -> None:
    assert "| *required* |" in row(reference(Example), "hosts[].name")


def test_default_is_the_one_of_the_place_not_of_the_type() -> None:
    assert "| `2` |" in row(reference(Example), "hub.workers")


def test_default_is_written_as_in_the_file() -> None:
    page = reference(Example)
    assert "| `127.0.0.1:8042` |" in row(page, "listen")
    assert "| `512MiB` |" in row(page, "hub.cache_bytes")
    assert "| `false` |" in row(page, "demo")
    assert "| `[lab]` |" in row(page, "groups")


def test_sections_come_in_the_order_of_the_type() -> None:
    titles = [line for line in reference(Example).splitlines() if line.startswith("## ")]
    assert titles == [
        "## At the top",
        "## `hub`",
        "## `hosts[]`",
        "## `quotas.NAME`",
        "## `login`",
        "## `notify[]`",
    ]


def test_section_that_is_off_by_default_says_so() -> None:
    assert "talks too much. Off unless it is written." in reference(Example)


def test_type_that_may_be_null_says_so_where_that_is_not_the_default() -> None:
    page = reference(Example)
    assert "| a duration such as 10s or null |" in row(page, "hub.down_after")
    assert "null" not in row(page, "hub.token")


def test_text_cannot_break_the_table() -> None:
    page = reference(Example)
    assert r"processes \| threads" in row(page, "hub.workers")
    assert r"^\[a-z0-9.-\]+$" in row(page, "hosts[].name")


def test_help_is_found_in_parents_types_and_over_several_lines() -> None:
    page = reference(Child)
    assert row(page, "inherited").endswith("| Help of the parent. |")
    assert row(page, "described").endswith("| Help in the type. |")
    assert row(page, "long").endswith("| Help that goes on and on. |")


def test_type_without_source_still_has_its_table() -> None:
    namespace: dict[str, type[Struct]] = {}
    exec("from msgspec import Struct\nclass Made(Struct):\n    x: int = 1", namespace)
    assert row(reference(namespace["Made"]), "x") == "| `x` | a whole number | `1` |  |"
