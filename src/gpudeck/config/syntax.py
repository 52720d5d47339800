"""What a YAML parser's error means for the person who wrote the file.

PyYAML brings two parsers (libyaml's and its own) that word and place the same error differently: both are told here
by the same sentence at the same line. Text of the file is not repeated, as it may hold a secret.
"""

import re
from typing import Literal, NamedTuple

import yaml

from gpudeck.config.mistakes import Mistake, one_line

_Place = Literal["problem", "context"]


class _Sentence(NamedTuple):
    """How to tell an error, and which of the parser's two places is the one to look at."""

    found: str
    expected: str
    suggestion: str = ""
    place: _Place = "problem"


_TAB = _Sentence("a tab in the indentation", "spaces")
_SENTENCES: tuple[tuple[re.Pattern[str], _Sentence], ...] = tuple(
    (re.compile(pattern), sentence)
    for pattern, sentence in {
        r"mapping values are not allowed": _Sentence(
            "a colon where no value can begin",
            "one name: value a line, indented like its neighbours",
            "put text that contains ': ' in quotes",
        ),
        r"sequence entries are not allowed": _Sentence(
            "a list item beside a name", "the items on lines of their own", "put text that begins with '- ' in quotes"
        ),
        r"could not find expected ':'": _Sentence("a name without a value", "name: value", place="context"),
        r"unexpected end of stream.*quoted": _Sentence("a quote that is never closed", "a second one", place="context"),
        r"cannot start any token": _Sentence(
            "a character that cannot begin a value", "a value", "put text that begins with @, ` or % in quotes"
        ),
        r"unknown escape character|expected escape sequence": _Sentence(
            "an unknown \\ escape in double quotes", "a known one", "use single quotes, which know no escapes"
        ),
        r"tag handle|scanning a tag|parsing a tag": _Sentence(
            "a tag (!)", "plain values", "put text that begins with ! in quotes"
        ),
        r"',' or '[\]}]'": _Sentence("a bracket that is never closed", "its partner", place="context"),
        r"node content": _Sentence(
            "punctuation where a value should stand", "a value", "put text that contains [, ], {, } or : in quotes"
        ),
        r"scanning an (alias|anchor)": _Sentence(
            "an & or * without a name", "a value", "put text that begins with & or * in quotes"
        ),
        r"scanning a block scalar": _Sentence(
            "text beside | or >", "the text on the lines below", "put text that begins with | or > in quotes"
        ),
        r"document start|directive": _Sentence("text before or after the settings", "one mapping (name: value)"),
        r"expected key|expected <block end>|expected '-'": _Sentence(
            "text that does not fit what stands before it",
            "the indentation of its neighbours, brackets and quotes in pairs",
        ),
    }.items()
)


def explain(error: yaml.YAMLError, text: str, source: str) -> Mistake:
    """The error as a mistake at the line where a person should look."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return Mistake(source, None, None, "", "text that is no YAML", "YAML")
    sentence = _choose(error, text)
    context = error.context_mark if sentence.place == "context" else None
    mark = context or error.problem_mark
    return Mistake(
        source, mark.line + 1, mark.column + 1, "", sentence.found, sentence.expected, suggestion=sentence.suggestion
    )


def _choose(error: yaml.MarkedYAMLError, text: str) -> _Sentence:
    said = f"{error.problem} {error.context}"
    if error.problem_mark is not None and _is_indented_by_tab(text, error.problem_mark.line):
        return _TAB
    unknown = _Sentence("text that is no YAML", f"YAML (the parser says: {one_line(error.problem or 'nothing')})")
    return next((sentence for pattern, sentence in _SENTENCES if pattern.search(said)), unknown)


def _is_indented_by_tab(text: str, line: int) -> bool:
    lines = text.split("\n")
    return line < len(lines) and re.match(r"[ ]*\t", lines[line]) is not None
