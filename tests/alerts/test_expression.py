"""Expressions of own rules: what they mean, what is refused and where, and what no text can do."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudeck.alerts.expression import COLUMNS, WORDS, ExpressionError, Truth, parse_expression


class One:
    """A GPU with these values; everything else is unknown."""

    def __init__(self, **values: float | str) -> None:
        self.values = {name.replace("__", "."): value for name, value in values.items()}

    def number(self, column: str) -> float:
        return float(self.values.get(column, math.nan))

    def match(self, column: str, is_wanted: Callable[[str], bool]) -> Truth:
        if column not in self.values:
            return False, False
        is_right = is_wanted(str(self.values[column]))
        return is_right, not is_right


def verdict(text: str, **values: float | str) -> bool | None:
    """None: unknown."""
    is_true, is_false = parse_expression(text).evaluate(One(**values))
    assert not (is_true and is_false)
    return True if is_true else False if is_false else None


GPU = {"utilization_percent": 3, "memory_used_bytes": 20 * 2**30, "memory_total_bytes": 80 * 2**30, "power_watts": 60}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("utilization_percent < 5 and memory_used_bytes > 10GiB for 2h", True),
        ("utilization_percent < 5 and memory_used_bytes > 10G", True),
        ("utilization_percent < 3", False),
        ("utilization_percent <= 3%", True),
        ("utilization_percent == 3 and utilization_percent != 4", True),
        ("utilization_percent > 5 or not memory_used_bytes < 1GiB", True),
        ("not (utilization_percent > 5 or memory_used_bytes < 1GiB)", True),
        ("memory_used_bytes / memory_total_bytes >= 0.25", True),
        ("memory_total_bytes - memory_used_bytes == 60GiB", True),
        ("2 + 3 * 4 == utilization_percent + 11", True),
        ("-utilization_percent > -4", True),
        ("power_watts < 0.1kW", True),
        # Unknown is neither so nor not so, and decides nothing by itself.
        ("temperature_celsius > 80", None),
        ("not temperature_celsius > 80", None),
        ("temperature_celsius > 80 or utilization_percent < 5", True),
        ("temperature_celsius > 80 and utilization_percent > 5", False),
        ("temperature_celsius > 80 and utilization_percent < 5", None),
        ("temperature_celsius != 80", None),
        ("memory_used_bytes / (utilization_percent - 3) > 5", None),
        ("health == ok", None),
        ("throttled_thermal", None),
    ],
)
def test_what_an_expression_means(text: str, expected: bool | None) -> None:
    assert verdict(text, **GPU) is expected


def test_texts_flags_and_values_of_the_host() -> None:
    gpu = {"availability": "idle", "health": "warning", "model": "NVIDIA H100 80GB HBM3", "throttled_thermal": 1}
    assert verdict("availability == idle and health != ok and throttled_thermal", **gpu) is True
    assert verdict("model like '*h100*' and not model == 'H100'", **gpu) is True
    assert verdict("host.cpu_percent > 95 or throttled_thermal", host__cpu_percent=96.0) is True
    assert parse_expression("host.cpu_percent > 95 and host.uptime_seconds > 1d").is_of_host
    assert not parse_expression("host.cpu_percent > 95 and throttled_thermal").is_of_host


def test_columns_and_the_time_are_told() -> None:
    found = parse_expression("utilization_percent < 5 and host.load_1m > 3 and utilization_percent > 1 for 1h 30m")
    assert (found.columns, found.seconds) == (("utilization_percent", "host.load_1m"), 5400.0)
    assert parse_expression("utilization_percent < 5").seconds is None


@pytest.mark.parametrize(
    ("text", "said", "place"),
    [
        (
            "utilisation_percent < 5",
            "no column utilisation_percent; did you mean utilization_percent?",
            "utilisation_percent",
        ),
        ("cpu_percent > 5", "of the host there is host.cpu_percent", "cpu_percent"),
        ("memory_used_bytes > 10", "10 what? Write 10GiB", "10"),
        ("memory_used_bytes > 5%", "bytes and percent cannot be compared", "memory_used_bytes > 5%"),
        (
            "power_watts + temperature_celsius > 5",
            "watts and celsius cannot be added",
            "power_watts + temperature_celsius",
        ),
        ("power_watts > 5banana", "there is no unit banana", "banana"),
        ("utilization_percent", "is no condition", "utilization_percent"),
        ("utilization_percent = 5", "write ==", "="),
        ("1 < utilization_percent < 5", "two comparisons in a row", "< 5"[:1]),
        ("utilization_percent < 5 for ever", "expected a duration", "ever"),
        ("utilization_percent < 5 6", "expected and, or, for or the end, found 6", "6"),
        ("(utilization_percent < 5", "never closed", "("),
        ("availability == 'bussy'", "availability is never bussy; did you mean busy?", "'bussy'"),
        ("availability == unknown", "what is unknown never fires", "unknown"),
        ("availability > busy", "is compared with ==, != or like", ">"),
        ("utilization_percent like 'x'", "like compares texts", "utilization_percent"),
        ("model == 'x", "a quote that is never closed", "'x"),
        ("1 < 2", "it compares no column", "1 < 2"),
        ("utilization_percent < __import__('os')", "there is no column __import__", "__import__"),
        ("utilization_percent < 5; x", "; means nothing here", ";"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, said: str, place: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_expression(text)
    assert said in str(caught.value)
    assert text[caught.value.start : caught.value.end] == place
    shown, marks = caught.value.detail.split("\n")
    assert shown[marks.index("^") : len(marks)] == place


def test_depth_and_length_are_limited() -> None:
    for text in ("(" * 5000, "not " * 200 + "throttled_thermal", "-" * 900 + "utilization_percent < 5"):
        with pytest.raises(ExpressionError, match=r"nested|more than"):
            parse_expression(text)


NUMBERS = st.sampled_from([name for name, metric in COLUMNS.items() if metric.unit in {"percent", "count"}])
TERMS = st.recursive(
    NUMBERS | st.integers(0, 999).map(str),
    lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from("*/"), inner) | inner.map("-{}".format),
    max_leaves=4,
)
CONDITIONS = st.recursive(
    st.builds(
        "{} {} {}".format,
        NUMBERS.map("{} * 1 / 1".format),
        st.sampled_from(["<", "<=", ">", ">=", "==", "!="]),
        st.integers(0, 99),
    ),
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from(["and", "or"]), inner) | inner.map("not {}".format)
    ),
    max_leaves=8,
)
VALUES = st.dictionaries(NUMBERS, st.floats(-10, 110) | st.just(math.nan))


@given(CONDITIONS, VALUES)
def test_not_turns_a_verdict_round_and_unknown_stays_unknown(text: str, values: dict[str, float]) -> None:
    own = {name.replace(".", "__"): value for name, value in values.items()}
    plain, turned = verdict(text, **own), verdict(f"not ({text})", **own)
    assert turned is (None if plain is None else not plain)


@given(CONDITIONS, VALUES, VALUES)
def test_what_is_certain_stays_so_when_more_becomes_known(
    text: str, known: dict[str, float], more: dict[str, float]
) -> None:
    before = {name: value for name, value in known.items() if not math.isnan(value)}
    after = {name.replace(".", "__"): value for name, value in {**more, **before}.items()}
    first = verdict(text, **{name.replace(".", "__"): value for name, value in before.items()})
    assert first is None or verdict(text, **after) is first


@given(TERMS, VALUES)
def test_arithmetic_is_that_of_python(text: str, values: dict[str, float]) -> None:
    known = {name: values.get(name, 1.0) for name in COLUMNS}
    plain = text
    for name in sorted(COLUMNS, key=len, reverse=True):
        plain = plain.replace(name, f"({known[name]!r})")
    try:
        expected = eval(plain.replace("nan", "math.nan"), {"math": math})
    except ZeroDivisionError:
        expected = math.nan
    # One with no column alone is refused.
    own = {name.replace(".", "__"): value for name, value in (known | {"power_watts": 1.0}).items()}
    found = verdict(f"{text} > 0 and power_watts > 0", **own)
    assert found is (expected > 0 if math.isfinite(expected) else None)


@given(st.text(st.sampled_from("abc_.<>=!()+-*/ 0123456789'\"%for and utilization_percent°\n\t\x00é"), max_size=60))
def test_any_text_is_an_expression_or_a_mistake_with_a_place(text: str) -> None:
    found: ExpressionError | None = None
    try:
        parse_expression(text)
    except ExpressionError as error:
        found = error
    assert found is None or (0 <= found.start <= len(text) and found.detail.count("\n") == 1)
    assert "\n" not in str(found)


def test_every_column_of_the_catalog_can_be_compared() -> None:
    for name, metric in COLUMNS.items():
        unit = {"bytes": "GiB"}.get(metric.unit, "")
        assert parse_expression(f"{name} > 3{unit}").columns == (name,)
    assert [name for name in WORDS if parse_expression(f"{name} like '*'").columns != (name,)] == []
