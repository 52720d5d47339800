"""YAML text → a tree of nodes that keep their place in the file. Nothing is executed and everything is bounded: events
are checked before PyYAML's composer, which recurses as deep as the file goes. Values stay as they are written: PyYAML
would make False, 8 and 1350 of `no`, `010` and `22:30`. Both of its parsers get the same messages here."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import yaml

from gpudeck.config.load import ConfigMistakes, Mistake, one_line

_Place = Literal["problem", "context"]
MAX_CHARACTERS = 1024 * 1024
MAX_NODES = 100_000
"""Aliases count as often as they are used, so that a small file cannot unfold into a large one."""
MAX_DEPTH = 50

Kind = Literal["null", "bool", "int", "float", "base60", "text"]

_PLAIN_KINDS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("null", re.compile(r"|~|null|Null|NULL")),
    ("bool", re.compile(r"(?:yes|no|true|false|on|off)|(?:Yes|No|True|False|On|Off)|(?:YES|NO|TRUE|FALSE|ON|OFF)")),
    ("int", re.compile(r"[-+]?[0-9][0-9_]*|[-+]?0[xX][0-9a-fA-F_]+|[-+]?0b[01_]+")),
    (
        "float",
        re.compile(
            r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
        ),
    ),
    ("base60", re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")),
)
_CORE = "tag:yaml.org,2002:"
_TEXT = f"{_CORE}str"
_TAGS = {_CORE + name for name in ("null", "bool", "int", "float", "str", "timestamp", "merge", "value", "seq", "map")}
_UNREADABLE = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class _Sentence(NamedTuple):
    """How to describe an error, and which of the parser's two places is the one to look at."""

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


def explain_yaml_error(error: yaml.YAMLError, text: str, source: str) -> Mistake:
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


class FilePosition(NamedTuple):
    line: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What all nodes have. `tag` is empty unless the file sets one that is not read."""

    mark: FilePosition
    tag: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar(Node):
    """A value as it is written. `kind` is what YAML 1.1 takes it for; text in quotes is always text."""

    text: str
    kind: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence(Node):
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapping(Node):
    """Names and values, in the order of the file, repeated names included."""

    pairs: tuple[tuple[Node, Node], ...]


def read_yaml(text: str, source: str) -> Node | None:
    """The one document in the text, or None when there is nothing but comments. Raises ConfigMistakes."""
    text = text.removeprefix("\ufeff")
    _check_characters(text, source)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    builder = _Builder(source)
    try:
        builder.check(yaml.parse(text, Loader=loader))
        root = yaml.compose(text, Loader=loader)
    except yaml.YAMLError as error:
        raise ConfigMistakes([explain_yaml_error(error, text, source)]) from error
    return None if root is None else builder.build(root, _mark(root))


def resolve(text: str) -> Kind:
    """What YAML 1.1 takes a plain scalar for."""
    return next((kind for kind, pattern in _PLAIN_KINDS if pattern.fullmatch(text)), "text")


def _check_characters(text: str, source: str) -> None:
    if len(text) > MAX_CHARACTERS:
        found = f"{len(text)} characters"
        raise ConfigMistakes([Mistake(source, None, None, "", found, f"at most {MAX_CHARACTERS}")])
    if match := _UNREADABLE.search(text):
        before = text[: match.start()]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        found = f"the control character U+{ord(match[0]):04X}"
        raise ConfigMistakes([Mistake(source, line, column, "", found, "text without control characters")])


class _Builder:
    def __init__(self, source: str) -> None:
        self._source = source
        self._size = 0

    def check(self, events: Iterator[yaml.Event]) -> None:
        """Raises ConfigMistakes for what the composer must not see."""
        open_anchors: list[str | None] = []
        anchors: set[str | None] = set()
        documents = 0
        for event in events:
            documents += isinstance(event, yaml.DocumentStartEvent)
            if documents > 1:
                raise self._refuse(_mark(event), "a second document after ---", "one document")
            if isinstance(event, yaml.CollectionStartEvent):
                open_anchors.append(event.anchor)
                self._check_depth(len(open_anchors), _mark(event))
            elif isinstance(event, yaml.CollectionEndEvent):
                anchors.add(open_anchors.pop())
            elif isinstance(event, yaml.ScalarEvent):
                anchors.add(event.anchor)
            elif isinstance(event, yaml.AliasEvent) and event.anchor not in anchors:
                # The anchor is not repeated: it may be a password that begins with a star.
                expected = "an anchor (&) of that name that ends before it"
                raise self._refuse(_mark(event), "an alias (*)", expected, "put text that begins with * in quotes")

    def build(self, node: yaml.Node, mark: FilePosition, depth: int = 1) -> Node:
        self._size += 1
        if self._size > MAX_NODES:
            raise self._refuse(mark, f"more than {MAX_NODES} values, counting each use of an alias", "fewer")
        self._check_depth(depth - isinstance(node, yaml.ScalarNode), mark)
        tag = "" if node.tag in _TAGS else node.tag
        if isinstance(node, yaml.SequenceNode):
            items = tuple(self.build(item, _mark(item), depth + 1) for item in node.value)
            return Sequence(mark=mark, tag=tag, items=items)
        if isinstance(node, yaml.MappingNode):
            pairs = tuple(self._build_pair(key, value, depth + 1) for key, value in node.value)
            return Mapping(mark=mark, tag=tag, pairs=pairs)
        kind = "text" if node.tag == _TEXT else resolve(node.value)
        return Scalar(mark=mark, tag=tag, text=node.value, kind=kind)

    def _build_pair(self, key: yaml.Node, value: yaml.Node, depth: int) -> tuple[Node, Node]:
        """The line of a block below its name is that of the name."""
        is_block = isinstance(value, yaml.CollectionNode) and not value.flow_style
        return self.build(key, _mark(key), depth), self.build(value, _mark(key if is_block else value), depth)

    def _check_depth(self, depth: int, mark: FilePosition) -> None:
        if depth > MAX_DEPTH:
            raise self._refuse(mark, f"lists and mappings nested more than {MAX_DEPTH} deep", "fewer levels")

    def _refuse(self, mark: FilePosition, found: str, expected: str, suggestion: str = "") -> ConfigMistakes:
        return ConfigMistakes([Mistake(self._source, mark.line, mark.column, "", found, expected, suggestion)])


def _mark(place: yaml.Node | yaml.Event) -> FilePosition:
    mark = place.start_mark
    return FilePosition(mark.line + 1, mark.column + 1) if mark else FilePosition(1, 1)
