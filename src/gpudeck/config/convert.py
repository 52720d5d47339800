"""YAML text → settings. Nothing is executed and all sizes are bounded. An invalid value is noted while its neighbours
are still read; secrets are never shown. Values are read as written: YAML 1.1 would turn `no`, `010` and `22:30` into
False, 8 and 1350."""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeVar, cast

import yaml
from msgspec import NODEFAULT, Struct, inspect

from gpudeck.config.load import (
    ConfigMistakes,
    Mistake,
    SettingPath,
    is_secret,
    one_line,
    parse_address,
    quote,
    write_path,
)
from gpudeck.model.text import BYTES_OF_UNIT, parse_bytes, parse_memory
from gpudeck.model.times import format_duration, parse_duration

Number = inspect.IntType | inspect.FloatType
_Supported = (
    Number
    | inspect.BoolType
    | inspect.DictType
    | inspect.ListType
    | inspect.LiteralType
    | inspect.NoneType
    | inspect.StrType
    | inspect.StructType
)


Check = Callable[[Any], Iterable[tuple[Any, str]]]
"""Checks the items of a list together; yields the index of each invalid one, and why."""


class Option(NamedTuple):
    """One type that a value may have. `mark` is a special kind: `duration`, `size`, `memory` or `address`. `words`
    describe a pattern. `check` is the `config_check` of a list or mapping: problems by index or name."""

    info: _Supported
    mark: str = ""
    words: str = ""
    check: Check | None = None


def options_of(info: inspect.Type, mark: str = "", words: str = "") -> list[Option]:
    """The types behind unions and annotations. Raises TypeError for a type that no file can express: a bug of ours."""
    if isinstance(info, inspect.Metadata):
        extra = info.extra or {}
        options = options_of(info.type, extra.get("config", mark), extra.get("config_words", words))
        check = extra.get("config_check")
        return [option._replace(check=check) for option in options] if check else options
    if isinstance(info, inspect.UnionType):
        return [option for member in info.types for option in options_of(member, mark, words)]
    if isinstance(info, inspect.StructType):
        return [Option(info, getattr(info.cls, "config_kind", mark))]
    if isinstance(info, _Supported):
        return [
            Option(info, mark if isinstance(info, Number) else "", words if isinstance(info, inspect.StrType) else "")
        ]
    raise TypeError(f"a setting cannot have the type {info}")


def is_section(option: Option) -> bool:
    """Whether the option is a struct written as a section of settings, not as one value."""
    return isinstance(option.info, inspect.StructType) and option.mark != "address"


def shorthand_of(option: Option) -> str:
    """The setting that may stand for the whole section, as in `- gpu01` for `- name: gpu01`; usually none."""
    return getattr(option.info.cls, "config_shorthand", "") if isinstance(option.info, inspect.StructType) else ""


def is_scalar(option: Option) -> bool:
    return option.mark == "address" or not isinstance(
        option.info, inspect.ListType | inspect.DictType | inspect.StructType
    )


def expect(options: Iterable[Option]) -> str:
    """The expected value in words: `a duration such as 10s, at least 1s`."""
    listed = list(options)
    named = [option for option in listed if not isinstance(option.info, inspect.NoneType)]
    words = list(dict.fromkeys(map(_expect_one, named)))
    # "none" is a likely mistake for null where words are listed.
    if len(named) < len(listed) and any(isinstance(option.info, inspect.LiteralType) for option in named):
        words.append("null")
    return " or ".join(words) or "nothing"


def _expect_one(option: Option) -> str:
    info = option.info
    if option.mark == "address":
        return "HOST:PORT such as 127.0.0.1:8042"
    if isinstance(info, Number):
        return _expect_number(info, option.mark)
    if isinstance(info, inspect.StrType):
        return option.words or _expect_text(info)
    if isinstance(info, inspect.LiteralType):
        named = list(map(str, info.values))
        return named[0] if len(named) == 1 else f"one of {', '.join(named)}"
    if isinstance(info, inspect.ListType | inspect.DictType):
        return _expect_collection(info)
    return "true or false" if isinstance(info, inspect.BoolType) else _expect_section(option)


def _expect_section(option: Option) -> str:
    mapping, shorthand = "a mapping (name: value)", shorthand_of(option)
    if not shorthand or not isinstance(option.info, inspect.StructType):
        return mapping
    alone = next(field for field in option.info.fields if field.encode_name == shorthand)
    return f"{expect(options_of(alone.type))} or {mapping}"


def _expect_collection(info: inspect.ListType | inspect.DictType) -> str:
    if isinstance(info, inspect.ListType):
        items = options_of(info.item_type)
        only_mappings = all(is_section(item) and not shorthand_of(item) for item in items)
        each = "a list of mappings" if only_mappings else f"a list, each item {expect(items)}"
        return each + _expect_length(info.min_length, info.max_length, "item")
    values = options_of(info.value_type)
    each = "" if all(map(is_section, values)) else f", each value {expect(values)}"
    return f"a mapping (name: value){each}" + _expect_length(info.min_length, info.max_length, "item")


def _expect_text(info: inspect.StrType) -> str:
    length = _expect_length(info.min_length, info.max_length, "character")
    return "text" + length + (f" that matches {info.pattern}" if info.pattern else "")


def _expect_length(minimum: int | None, maximum: int | None, unit: str) -> str:
    said = {"at least": minimum, "at most": maximum}
    parts = [f"{word} {count} {unit}{'' if count == 1 else 's'}" for word, count in said.items() if count is not None]
    return " of " + " and ".join(parts) if parts else ""


def _expect_number(info: Number, mark: str) -> str:
    nouns = {"duration": "a duration such as 10s", "size": "a size such as 512MiB", "memory": "memory such as 2G"}
    noun = nouns.get(mark) or ("a whole number" if isinstance(info, inspect.IntType) else "a number")
    write = number_writer(mark)
    if info.ge is not None and info.le is not None:
        return f"{noun} from {write(info.ge)} to {write(info.le)}"
    bounds = {"at least": info.ge, "above": info.gt, "at most": info.le}
    parts = [f"{word} {write(bound)}" for word, bound in bounds.items() if bound is not None]
    return f"{noun}, {' and '.join(parts)}" if parts else noun


def number_writer(mark: str) -> Callable[[float], str]:
    """The function that writes a number of this kind as in the file."""
    return {"duration": format_duration, "size": format_size, "memory": format_memory}.get(mark, _write_number)


def format_size(size_bytes: float) -> str:
    """The exact text with the smallest number that `parse_bytes` reads back as the same size."""
    return _format_bytes(size_bytes, [unit for unit in BYTES_OF_UNIT if unit])


def format_memory(memory_bytes: float) -> str:
    """An amount of memory that `parse_memory` reads back, if it is whole KiB."""
    return _format_bytes(memory_bytes, [unit for unit in BYTES_OF_UNIT if unit.endswith("i")])


def _format_bytes(size_bytes: float, units: Iterable[str]) -> str:
    whole = int(size_bytes)
    exact = [(whole // BYTES_OF_UNIT[unit], unit) for unit in units if whole % BYTES_OF_UNIT[unit] == 0]
    count, unit = min(exact, default=(whole, ""))
    return f"{count}{unit[:1].upper()}{unit[1:]}B" if whole else "0B"


def _write_number(number: float) -> str:
    return str(int(number)) if float(number).is_integer() and abs(number) < 1e15 else repr(number)


def default_of(field: inspect.Field, base: Struct | None) -> object:
    """The default of a setting; NODEFAULT if it is required."""
    if base is not None:
        return getattr(base, field.name)
    return field.default if field.default_factory is NODEFAULT else field.default_factory()


def base_for(info: inspect.StructType, default: object) -> Struct | None:
    """The default of a section, if it can supply settings left out of that section."""
    return default if isinstance(default, Struct) and type(default) is info.cls else None


T = TypeVar("T", bound=Struct)
MAX_CHARACTERS: Final = 1024 * 1024
MAX_VALUES: Final = 100_000
"""Aliases count each time they are used, so a small file cannot expand into a large one."""
MAX_DEPTH: Final = 50
_CORE: Final = "tag:yaml.org,2002:"
_NULL: Final = f"{_CORE}null"
_TAGS: Final = {
    _CORE + name for name in ("null", "bool", "int", "float", "str", "timestamp", "merge", "value", "seq", "map")
}
_WHOLE: Final = re.compile(r"[-+]?(0|[1-9][0-9_]{0,25})")
_INT64: Final = range(-(2**63), 2**63)
_TRUTH: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_FAILED: Final = object()
"""Stands for a value that was noted as a mistake."""
_MAX_SUGGESTIONS: Final = 100
"""Searching for similar names takes time: with more mistakes than this there are no suggestions."""
_SETTING_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
"""Unknown names are quoted only if they look like this: a line of another kind of file may contain a secret."""
_UNREADABLE: Final = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_QUOTED: Final = re.compile(r"'[^']{2,}'")


def read_settings(text: str, source: str, settings_type: type[T]) -> T:
    """The settings in a text with one document. Raises ConfigMistakes with all mistakes."""
    converter = _Converter(source)
    root = _read_yaml(text, source) or yaml.MappingNode(f"{_CORE}map", [], yaml.Mark("", 0, 0, 0, "", 0))
    settings = converter.convert(root, options_of(inspect.type_info(settings_type)), ())
    if converter.mistakes:
        raise ConfigMistakes(converter.mistakes)
    return cast("T", settings)


def _read_yaml(text: str, source: str) -> yaml.Node | None:
    if len(text) > MAX_CHARACTERS:
        found = f"{len(text)} characters"
        raise ConfigMistakes([Mistake(source, None, "", found, f"at most {MAX_CHARACTERS}")])
    if match := _UNREADABLE.search(text):
        found = f"the control character U+{ord(match[0]):04X}"
        line = text.count("\n", 0, match.start()) + 1
        raise ConfigMistakes([Mistake(source, line, "", found, "text without control characters")])
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        depth = 0
        # Before PyYAML's composer, which recurses as deep as the file.
        for event in yaml.parse(text, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise _nested_too_deep(source, event.start_mark.line + 1)
        root: yaml.Node | None = yaml.compose(text, Loader=loader)
    except yaml.YAMLError as error:
        raise ConfigMistakes([_explain(error, source)]) from error
    return root


def _explain(error: yaml.YAMLError, source: str) -> Mistake:
    """The parser's message without quoted text, which may be a password that begins with a star."""
    mark = getattr(error, "problem_mark", None)
    said = [part for part in (getattr(error, "context", None), getattr(error, "problem", None)) if part]
    context = getattr(error, "context_mark", None)
    if context is not None and mark is not None and len(said) > 1:
        said[0] += f" on line {context.line + 1}"
    reason = _QUOTED.sub("…", one_line(", ".join(said))) or "text that is no YAML"
    line = None if mark is None else mark.line + 1
    suggestion = "indent with spaces, and put text with special characters in quotes"
    return Mistake(source, line, "", f"not YAML: {reason}", suggestion=suggestion)


def _nested_too_deep(source: str, line: int) -> ConfigMistakes:
    found = f"lists and mappings nested more than {MAX_DEPTH} deep"
    return ConfigMistakes([Mistake(source, line, "", found, "fewer levels")])


class _Unfit(Exception):
    """The value has a different type. `suggestion` says what to do, if known."""

    def __init__(self, suggestion: str = "") -> None:
        super().__init__(suggestion)
        self.suggestion = suggestion


def _read_scalar(node: yaml.ScalarNode, option: Option) -> object:
    info, text = option.info, str(node.value)
    if node.tag == _NULL:
        if isinstance(info, inspect.NoneType):
            return None
        raise _Unfit
    if option.mark == "address" and isinstance(info, inspect.StructType):
        try:
            return info.cls(*parse_address(text))
        except ValueError as error:
            raise _Unfit from error
    if isinstance(info, Number):
        return _read_number(text, info, option.mark)
    if isinstance(info, inspect.LiteralType):
        for choice in info.values:
            if str(choice) == text:
                return choice
        raise _Unfit(_did_you_mean(text, map(str, info.values)))
    if isinstance(info, inspect.StrType):
        is_long_enough = (info.min_length or 0) <= len(text) <= (info.max_length or len(text))
        if is_long_enough and (info.pattern is None or re.search(info.pattern, text)):
            return text
    if isinstance(info, inspect.BoolType) and text.lower() in _TRUTH:
        return _TRUTH[text.lower()]
    raise _Unfit


def _read_number(text: str, info: Number, mark: str) -> float:
    number: float
    try:
        if mark == "duration":
            number = parse_duration(text, allow_plain_seconds=True)
        elif mark:
            number = parse_bytes(text) if mark == "size" else parse_memory(text)
        elif isinstance(info, inspect.IntType):
            number = int(text) if _WHOLE.fullmatch(text) else math.nan
        else:
            number = float(text)
    except ValueError as error:
        raise _Unfit from error
    is_too_low = (info.ge is not None and number < info.ge) or (info.gt is not None and number <= info.gt)
    is_outside = is_too_low or (info.le is not None and number > info.le)
    if is_outside or not math.isfinite(number) or (isinstance(number, int) and number not in _INT64):
        raise _Unfit
    return number


def _did_you_mean(name: str, names: Iterable[str]) -> str:
    """The most similar known name as a suggestion, or nothing."""
    import difflib  # noqa: PLC0415 - only a mistake needs it

    plain = {known.lower().replace("-", "_"): known for known in names}
    matches = difflib.get_close_matches(name[:64].lower().replace("-", "_"), plain, n=1)
    return f"did you mean {plain[matches[0]]}?" if matches else ""


class _Entry(NamedTuple):
    key: yaml.ScalarNode
    value: yaml.Node

    @property
    def name(self) -> str:
        return str(self.key.value)

    @property
    def line(self) -> int:
        return self.key.start_mark.line + 1


class _Converter:
    def __init__(self, source: str) -> None:
        self.mistakes: list[Mistake] = []
        self._source = source
        self._secrets: set[str] = set()
        self._values = 0

    def convert(
        self,
        node: yaml.Node,
        options: list[Option],
        path: SettingPath,
        default: object = NODEFAULT,
        *,
        line: int | None = None,
    ) -> object:
        """The node as the first option that accepts it. `default` supplies settings that a section leaves out; `line`
        is that of the name before it."""
        is_block = isinstance(node, yaml.CollectionNode) and not node.flow_style
        line = line if line is not None and is_block else node.start_mark.line + 1
        self._values += 1
        if self._values > MAX_VALUES:
            found = f"more than {MAX_VALUES} values, counting each use of an alias"
            raise ConfigMistakes([Mistake(self._source, line, "", found, "fewer")])
        if len(path) > 2 * MAX_DEPTH:
            raise _nested_too_deep(self._source, line)
        if node.tag not in _TAGS:
            return self._note(line, path, "a tag (!)", "a plain value", "put text that begins with ! in quotes")
        if isinstance(node, yaml.ScalarNode):
            return self._convert_scalar(node, options, path, default, line)
        for option in options:
            info = option.info
            if isinstance(node, yaml.SequenceNode) and isinstance(info, inspect.ListType):
                return self._convert_list(node, info, option.check, path, line)
            if isinstance(node, yaml.MappingNode) and is_section(option):
                return self._convert_section(node.value, cast("inspect.StructType", info), path, default, line)
            if isinstance(node, yaml.MappingNode) and isinstance(info, inspect.DictType):
                return self._convert_dict(node, info, option.check, path, line)
        found = "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"
        return self._note(line, path, found, expect(options))

    def _convert_scalar(
        self, node: yaml.ScalarNode, options: list[Option], path: SettingPath, default: object, line: int
    ) -> object:
        if node.value and is_secret(path):
            self._secrets.add(node.value)
        suggestion = ""
        for option in filter(is_scalar, options):
            try:
                return _read_scalar(node, option)
            except _Unfit as unfit:
                suggestion = suggestion or unfit.suggestion
        for option in filter(is_section, options):
            info, name = cast("inspect.StructType", option.info), shorthand_of(option)
            if node.tag == _NULL:  # a section whose settings are all commented out
                return self._convert_section([], info, path, default, line)
            if name:
                key = yaml.ScalarNode(f"{_CORE}str", name, node.start_mark)
                return self._convert_section([(key, node)], info, path, default, line)
        if node.tag == _NULL:
            found = "nothing"
        elif is_secret(path):
            found = "a value that is not shown"
        else:
            # Text in place of settings is not quoted: it may be `password hunter2`.
            found = quote(node.value) if any(map(is_scalar, options)) else "text"
        return self._note(line, path, found, expect(options), suggestion)

    def _convert_list(
        self, node: yaml.SequenceNode, info: inspect.ListType, check: Check | None, path: SettingPath, line: int
    ) -> object:
        before = len(self.mistakes)
        items = options_of(info.item_type)
        values = [self.convert(item, items, (*path, index)) for index, item in enumerate(node.value)]
        self._check_length(line, len(values), info, path)
        if check and len(self.mistakes) == before:
            for index, problem in check(values):
                self._note(node.value[index].start_mark.line + 1, (*path, index), one_line(problem))
        return values if len(self.mistakes) == before else _FAILED

    def _convert_dict(
        self, node: yaml.MappingNode, info: inspect.DictType, check: Check | None, path: SettingPath, line: int
    ) -> object:
        before = len(self.mistakes)
        keys, values = options_of(info.key_type), options_of(info.value_type)
        converted: dict[object, object] = {}
        entries: dict[object, _Entry] = {}
        for entry in self._entries(node.value, path):
            key = self.convert(entry.key, keys, (*path, entry.name))
            converted[key] = self.convert(entry.value, values, (*path, entry.name), line=entry.line)
            entries[key] = entry
        sound = {key: value for key, value in converted.items() if _FAILED is not key and _FAILED is not value}
        for key, problem in check(sound) if check else ():
            self._note(entries[key].line, (*path, entries[key].name), one_line(problem))
        self._check_length(line, len(converted), info, path)
        return converted if len(self.mistakes) == before else _FAILED

    def _convert_section(
        self, pairs: list[Any], info: inspect.StructType, path: SettingPath, default: object, line: int
    ) -> object:
        before = len(self.mistakes)
        base = base_for(info, default)
        values = {field.name: default_of(field, base) for field in info.fields}
        fields = {field.encode_name: field for field in info.fields}
        entries = list(self._entries(pairs, path))
        wrong = set()
        for entry in entries:
            if entry.name not in fields:
                self._note_unknown(entry, list(fields), path)
                continue
            field = fields[entry.name]
            options, own_default = options_of(field.type), values[field.name]
            value = self.convert(entry.value, options, (*path, entry.name), own_default, line=entry.line)
            # A setting with a mistake keeps its default, so that the section can still be checked as a whole.
            if value is not _FAILED:
                values[field.name] = value
            elif own_default is NODEFAULT or not any(map(is_section, options)):
                wrong.add(entry.name)
        for field in info.fields:
            if values[field.name] is NODEFAULT and field.encode_name not in wrong:
                self._note(line, (*path, field.encode_name), "", expect(options_of(field.type)))
        if any(value is NODEFAULT for value in values.values()):
            return _FAILED
        try:
            made = info.cls(**values)
        except ValueError as error:
            said, detail = self._hide_secrets(str(error)), getattr(error, "detail", "")
        else:
            return made if len(self.mistakes) == before else _FAILED
        # The mistake is that of the first setting in the message, or of the whole section; none if one of these
        # settings has a mistake of its own.
        names = [word for word in re.findall(r"[\w-]+", said) if word in fields]
        if wrong.intersection(names) or (wrong and not names):
            return _FAILED
        place = next((entry for name in names for entry in entries if entry.name == name), None)
        if place is None:
            return self._note(line, path, said or "these settings do not fit together", detail=detail)
        return self._note(place.line, (*path, place.name), said.removeprefix(f"{place.name}: "), detail=detail)

    def _hide_secrets(self, said: str) -> str:
        for secret in sorted(self._secrets, key=len, reverse=True):
            said = said.replace(secret, "…").replace(repr(secret)[1:-1], "…")
        return one_line(" ".join(said.split()))

    def _entries(self, pairs: list[tuple[yaml.Node, yaml.Node]], path: SettingPath) -> Iterator[_Entry]:
        """Names and values. Invalid and repeated names are noted and left out."""
        lines: dict[str, int] = {}
        for key, value in pairs:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.tag not in _TAGS or not key.value:
                self._note(line, path, "a value in place of a name", "name: value")
            elif key.tag == f"{_CORE}merge":
                self._note(line, path, "a merge (<<)", "the settings themselves", "write them out")
            elif key.value in lines:
                self._note(line, (*path, key.value), f"set twice, first on line {lines[key.value]}")
            else:
                lines[key.value] = line
                yield _Entry(key, value)

    def _check_length(
        self, line: int, count: int, info: inspect.ListType | inspect.DictType, path: SettingPath
    ) -> None:
        if count < (info.min_length or 0) or (info.max_length is not None and count > info.max_length):
            self._note(line, path, f"{count} item{'' if count == 1 else 's'}", expect([Option(info)]))

    def _note_unknown(self, entry: _Entry, names: list[str], path: SettingPath) -> None:
        suggestion = ""
        if len(self.mistakes) < _MAX_SUGGESTIONS:
            suggestion = _did_you_mean(entry.name, names)
            suggestion = suggestion or (f"known here: {', '.join(names)}" if 0 < len(names) <= 12 else "")
        if _SETTING_NAME.fullmatch(entry.name):
            self._note(entry.line, (*path, entry.name), "unknown setting", suggestion=suggestion)
        else:
            self._note(entry.line, path, "a name that is not shown", "the name of a setting", suggestion)

    def _note(
        self, line: int, path: SettingPath, found: str, expected: str = "", suggestion: str = "", *, detail: str = ""
    ) -> object:
        where = write_path(path)
        self.mistakes.append(Mistake(self._source, line, where, found, expected, suggestion, detail))
        return _FAILED
