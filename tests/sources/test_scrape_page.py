"""A page of metrics as series: hostile text costs itself alone."""

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gpudeck.collectors.redaction import clean
from gpudeck.model.errors import Temporary
from gpudeck.sources import scrape_tables
from gpudeck.sources.scrape_tables import Sample, parse_page

WANTED = frozenset({"util", "temp", "energy"})


def samples(text: str) -> list[Sample]:
    return parse_page(text.encode(), WANTED).samples


def problems(text: str) -> list[str]:
    return parse_page(text.encode(), WANTED).problems


def test_names_and_labels_and_numbers_are_read() -> None:
    text = '# HELP util Load.\n# TYPE util gauge\nutil{gpu="0",name="H100 \\"80\\\\"} 97\ntemp 4.5e1 1790000000000\n'
    assert samples(text) == [Sample("util", {"gpu": "0", "name": 'H100 "80\\'}, 97), Sample("temp", {}, 45)]


def test_a_counter_keeps_its_name() -> None:
    assert samples("# TYPE energy counter\nenergy 5\n") == [Sample("energy", {}, 5)]


@pytest.mark.parametrize(
    "line",
    [
        'util {gpu="0"} 5',
        'util{gpu="0",} 5',
        'util{ gpu = "0" }5',
        'util{gpu="0"}\t5\t1790000000000 ',
        '  util{gpu="0"} 5',
    ],
)
def test_white_space_and_a_last_comma_are_as_the_format_allows(line: str) -> None:
    assert samples(f"{line}\n") == [Sample("util", {"gpu": "0"}, 5)]


def test_other_series_are_passed_over() -> None:
    assert samples('go_info{version="go1"} 1\nutilization 5\nutil 3\n') == [Sample("util", {}, 3)]


@pytest.mark.parametrize(
    "bad",
    [
        'util{gpu="0" 5',
        'util{gpu="0"}',
        'util{gpu="0"} five',
        'util{gpu="0"} 1_0',
        "util{gpu=0} 5",
        'util{gpu="0",gpu="1"} 5',
        'util{gpu="unterminated} 5',
        'util{ ="x"} 5',
        "util",
        "util 1 2 3 x",
        'util{gpu="' + "x" * 5000 + '"} 5',
    ],
)
def test_a_line_that_cannot_be_read_hides_no_other(bad: str) -> None:
    text = f'temp 1\n{bad}\nutil{{gpu="7"}} 9\n'
    assert samples(text) == [Sample("temp", {}, 1), Sample("util", {"gpu": "7"}, 9)]
    (problem,) = problems(text)
    assert problem == "1 line of its page cannot be read"


def test_what_is_not_a_number_is_kept_as_such() -> None:
    values = [sample.value for sample in samples("util NaN\nutil +Inf\nutil -Inf\nutil 1e308\nutil 1e999\n")]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf, 1e308, math.inf]


def test_a_number_of_thousands_of_digits_is_not_read() -> None:
    assert samples(f"util {'9' * 4000}\ntemp 1\n")[-1] == Sample("temp", {}, 1)


def test_labels_lose_their_control_characters_and_their_length() -> None:
    (sample,) = samples('util{name="a\x1b[31mb\x07",long="' + "y" * 1000 + '"} 1\n')
    assert sample.labels == {"name": "a[31mb", "long": "y" * 256}


def test_bytes_that_are_no_text_break_nothing() -> None:
    assert parse_page(b'\xff\xfe\nutil{name="\xff"} 1\n', WANTED).samples[0].value == 1


def test_a_line_without_its_end_is_left_out() -> None:
    """Half a number looks like a number."""
    assert samples("temp 1\nutil 815") == [Sample("temp", {}, 1)]
    assert problems("temp 1\nutil 815") == ["its page ends in the middle of a line, which is left out"]


def test_windows_line_ends_are_line_ends() -> None:
    assert samples('temp 1\r\nutil{gpu="0"} 5\r\n') == [Sample("temp", {}, 1), Sample("util", {"gpu": "0"}, 5)]


@pytest.mark.parametrize("page", ["<html><body>Sign in</body></html>", "\n  <!DOCTYPE html>\n", "\ufeff<?xml"])
def test_a_web_page_is_named_as_one(page: str) -> None:
    with pytest.raises(Temporary, match="a web page, not metrics"):
        parse_page(page.encode(), WANTED)


@pytest.mark.parametrize("page", [b"", b"\n \n"])
def test_an_empty_page_is_named_as_one(page: bytes) -> None:
    with pytest.raises(Temporary, match="an empty page"):
        parse_page(page, WANTED)


def test_series_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape_tables, "MAX_SERIES", 10)
    page = parse_page("".join(f'util{{gpu="{n}"}} 1\n' for n in range(25)).encode(), WANTED)
    assert len(page.samples) == 10
    assert page.problems == ["its page has more than 10 series about GPUs; 15 are left out"]


def test_a_hundred_thousand_other_series_are_passed_over() -> None:
    text = "".join(f'http_requests_total{{path="/{n}"}} {n}\n' for n in range(100_000)) + "util 5\n"
    assert samples(text) == [Sample("util", {}, 5)]


@pytest.mark.parametrize("page", [" " * 100_000 + "x\n", "\t" * 100_000, "util" * 50_000 + "\n", "\n" * 100_000])
def test_a_page_of_nothing_but_beginnings_has_no_series(page: str) -> None:
    assert samples(f"x 1\n{page}\ntemp 1\n") == [Sample("temp", {}, 1)]


LINES = st.from_regex(
    r'util[ \t]*(\{([a-z]{1,2}[ ]?=[ ]?"([a-z {}=,]|\\\\[\\\\n"])*",? ?){0,3}\})? ?(1|-2\.5|NaN|1e3|x)( [0-9]{1,3})?',
    fullmatch=True,
)


@given(LINES)
def test_a_line_means_what_it_means_to_prometheus_client(line: str) -> None:
    """Where that reads more than the format allows, such as labels without a comma in between, nothing is read here."""
    try:
        (family,) = text_string_to_metric_families(f"{line}\n")
        (expected,) = family.samples
    except (ValueError, IndexError, KeyError):
        assert samples(f"{line}\n") == []
        return
    for sample in samples(f"{line}\n"):
        assert (sample.name, sample.labels) == (
            expected.name,
            {name: clean(text) for name, text in expected.labels.items()},
        )
        assert sample.value == expected.value or math.isnan(expected.value)


@given(st.binary(max_size=400))
def test_no_bytes_raise_anything_but_temporary(body: bytes) -> None:
    with contextlib.suppress(Temporary):
        assert {sample.name for sample in parse_page(body, WANTED).samples} <= WANTED


@given(st.text(alphabet='util{}gpu="\\, \t\r\n09.eE+-#N_a\x00', max_size=200))
def test_no_text_of_nearly_right_lines_raises(text: str) -> None:
    page = parse_page(f"util{text}\ntemp 1\n".encode(), WANTED)
    assert Sample("temp", {}, 1) in page.samples


@given(st.dictionaries(st.sampled_from("abcdef"), st.text(max_size=20)), st.floats(allow_nan=False))
def test_what_is_written_is_read(labels: dict[str, str], value: float) -> None:
    """Whatever stands in a label, escaped as the format asks."""
    escaped = {
        name: text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for name, text in labels.items()
    }
    inner = ",".join(f'{name}="{text}"' for name, text in escaped.items())
    (sample,) = parse_page(f"util{{{inner}}} {value}\n".encode(errors="replace"), WANTED).samples
    assert (sample.name, sample.value, sample.labels.keys()) == ("util", value, labels.keys())
