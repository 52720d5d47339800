"""Whatever stands in the file, it is either read or answered with mistakes of one line each."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from unittest import mock

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from config.example import Email, Example, Host, Hub, Login, Quota
from gpudeck.config import ConfigMistakes, load, load_bytes

Content = TypeVar("Content", bytes, str)
HERE = Path(__file__).parent
NAMES = st.sampled_from(
    [
        *(name for struct in (Example, Hub, Host, Quota, Login, Email) for name in struct.__struct_fields__),
    ]
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.dates(),
    st.text(max_size=8),
    st.binary(max_size=4),
    st.sampled_from(["10s", "1GiB", ":80", "a:1", "open", "never", "007", "1e3", "22:30", "no"]),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=5),
    max_leaves=20,
)
SYNTAX = st.text(st.sampled_from(list("ab01:-?[]{},&*!|>'\"%@`#~<=.\\ \t\n\r\ufeff\u2028\x85é😀")), max_size=60)
GOOD = (HERE / "good" / "everything.yaml").read_bytes()


def outcome(read: Callable[[Content, str, type[Example]], Example], content: Content) -> Example | ConfigMistakes:
    try:
        return read(content, "x.yaml", Example)
    except ConfigMistakes as mistakes:
        return mistakes


def assert_readable(result: Example | ConfigMistakes) -> None:
    """Settings, or mistakes that fill one printable line each."""
    lines = str(result).split("\n")
    assert all(line.isprintable() for line in lines)
    assert len(lines) == len(getattr(result, "mistakes", lines[:1]))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_answered(content: bytes) -> None:
    assert_readable(outcome(load_bytes, content))


@given(SYNTAX | st.text(max_size=60))
@example("\ud800")
@example("? ? ? :")
@example("a: !!int x")
@example("a: &b\n- *b")
def test_any_text_is_read_or_answered(text: str) -> None:
    assert_readable(outcome(load, text))


@given(SYNTAX)
@example("a: \ud800")
def test_any_text_is_read_or_answered_without_libyaml(text: str) -> None:
    with mock.patch.object(yaml, "CSafeLoader", yaml.SafeLoader):
        assert_readable(outcome(load, text))


@given(TREES)
def test_any_tree_is_read_or_answered(tree: object) -> None:
    assert_readable(outcome(load, yaml.safe_dump(tree, allow_unicode=True)))


@given(st.dictionaries(NAMES, TREES, max_size=6))
def test_any_values_of_known_settings_are_read_or_answered(tree: dict[str, object]) -> None:
    assert_readable(outcome(load, yaml.safe_dump(tree)))


@given(st.integers(0, len(GOOD)), st.integers(0, 20), st.binary(max_size=6))
def test_any_damage_to_a_good_file_is_read_or_answered(start: int, length: int, put: bytes) -> None:
    assert_readable(outcome(load_bytes, GOOD[:start] + put + GOOD[start + length :]))
