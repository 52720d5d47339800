"""YAML text → a tree of nodes that keep their place in the file. Nothing is executed and everything is bounded.

Built from parser events rather than by PyYAML's composer: the composer recurses as deep as the file goes, and
its values have forgotten how they were written (`no`, `010` and `22:30` have become False, 8 and 1350).

PyYAML has two parsers (libyaml's and its own) that word and place the same error differently: both get the same message
and line here. Text of the file is not repeated, as it may hold a secret.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
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
_SCALAR_TAGS = {_CORE + name for name in ("null", "bool", "int", "float", "str")}
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
    """A place in the file, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What all nodes have. `tag` is empty unless the file sets one that is not read; `size` counts nodes below."""

    mark: FilePosition
    tag: str = ""
    size: int = 1
    depth: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar(Node):
    """A value as it is written. `kind` is what YAML 1.1 takes it for; text in quotes is always text."""

    text: str
    kind: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence(Node):
    """A list."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapping(Node):
    """Names and values, in the order of the file, repeated names included."""

    pairs: tuple[tuple[Node, Node], ...]


def read_yaml(text: str, source: str) -> Node | None:
    """The one document in the text, or None when there is nothing but comments in it.

    Raises ConfigMistakes where the text is no YAML, or more of it than a configuration can be.
    """
    text = text.removeprefix("\ufeff")
    _check_characters(text, source)
    try:
        return _Builder(source).build(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yaml.YAMLError as error:
        raise ConfigMistakes([explain_yaml_error(error, text, source)]) from error


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


@dataclass(slots=True)
class _Open:
    """A list or mapping whose end has not been seen yet."""

    event: yaml.CollectionStartEvent
    mark: FilePosition
    children: list[Node] = field(default_factory=list)

    def name_without_value(self) -> Node | None:
        """The name whose value comes next, if this is a mapping and a value comes next."""
        is_mapping = isinstance(self.event, yaml.MappingStartEvent)
        return self.children[-1] if is_mapping and len(self.children) % 2 else None

    def close(self) -> Node:
        children = tuple(self.children)
        size, depth = 1 + sum(child.size for child in children), 1 + max((child.depth for child in children), default=0)
        if isinstance(self.event, yaml.SequenceStartEvent):
            tag = _unread_tag(self.event.tag, {_CORE + "seq"})
            return Sequence(mark=self.mark, tag=tag, size=size, depth=depth, items=children)
        tag = _unread_tag(self.event.tag, {_CORE + "map"})
        pairs = tuple(zip(children[::2], children[1::2], strict=True))
        return Mapping(mark=self.mark, tag=tag, size=size, depth=depth, pairs=pairs)


class _Builder:
    def __init__(self, source: str) -> None:
        self._source = source
        self._root: Node | None = None
        self._open: list[_Open] = []
        self._anchors: dict[str, Node] = {}
        self._size = 0

    def build(self, events: Iterator[yaml.Event]) -> Node | None:
        for event in events:
            mark = _mark(event)
            if isinstance(event, yaml.DocumentStartEvent) and self._root is not None:
                raise self._refuse(mark, "a second document after ---", "one document")
            if isinstance(event, yaml.CollectionStartEvent):
                self._begin(event, mark)
            elif isinstance(event, yaml.CollectionEndEvent):
                opened = self._open.pop()
                self._add(opened.close(), opened.mark, opened.event.anchor)
            elif isinstance(event, yaml.ScalarEvent):
                self._add(_scalar(event, mark), mark, event.anchor)
            elif isinstance(event, yaml.AliasEvent):
                self._add(self._look_up(event.anchor, mark), mark, None)
        return self._root

    def _begin(self, event: yaml.CollectionStartEvent, mark: FilePosition) -> None:
        """The line of a block below its name is that of the name."""
        name = self._open[-1].name_without_value() if self._open else None
        self._open.append(_Open(event, mark if name is None or event.flow_style else name.mark))
        self._check_depth(0, mark)

    def _add(self, node: Node, mark: FilePosition, anchor: str | None) -> None:
        self._count(1, mark)
        self._check_depth(node.depth, mark)
        if anchor is not None:
            self._anchors[anchor] = node
        if self._open:
            self._open[-1].children.append(node)
        else:
            self._root = node

    def _look_up(self, anchor: str | None, mark: FilePosition) -> Node:
        """The node behind `*anchor`. The anchor is not repeated: it may be a password that begins with a star."""
        if anchor is None or anchor not in self._anchors:
            expected = "an anchor (&) of that name that ends before it"
            raise self._refuse(mark, "an alias (*)", expected, "put text that begins with * in quotes")
        node = self._anchors[anchor]
        self._count(node.size - 1, mark)
        return node

    def _count(self, nodes: int, mark: FilePosition) -> None:
        self._size += nodes
        if self._size > MAX_NODES:
            raise self._refuse(mark, f"more than {MAX_NODES} values, counting each use of an alias", "fewer")

    def _check_depth(self, below: int, mark: FilePosition) -> None:
        if len(self._open) + below > MAX_DEPTH:
            raise self._refuse(mark, f"lists and mappings nested more than {MAX_DEPTH} deep", "fewer levels")

    def _refuse(self, mark: FilePosition, found: str, expected: str, suggestion: str = "") -> ConfigMistakes:
        return ConfigMistakes([Mistake(self._source, mark.line, mark.column, "", found, expected, suggestion)])


def _mark(event: yaml.Event) -> FilePosition:
    place = event.start_mark
    return FilePosition(place.line + 1, place.column + 1) if place else FilePosition(1, 1)


def _scalar(event: yaml.ScalarEvent, mark: FilePosition) -> Scalar:
    plain = event.tag in _SCALAR_TAGS - {_CORE + "str"} or (event.tag is None and not event.style)
    kind = resolve(event.value) if plain else "text"
    return Scalar(mark=mark, tag=_unread_tag(event.tag, _SCALAR_TAGS), text=event.value, kind=kind)


def _unread_tag(tag: str | None, read: set[str]) -> str:
    return "" if tag is None or tag == "!" or tag in read else tag
