"""Nodes of the YAML file → settings. A value that does not fit is noted and its neighbours are still read. Secrets are
never shown."""

import math
import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

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
from gpudeck.config.schema import (
    Check,
    Number,
    Option,
    base_for,
    default_of,
    expect,
    is_scalar,
    is_section,
    options_of,
    sections_of,
    shorthand_of,
)
from gpudeck.config.yaml_nodes import FilePosition, Mapping, Node, Scalar, Sequence, resolve
from gpudeck.model.text import parse_bytes, parse_memory
from gpudeck.model.times import parse_duration

_WHOLE = re.compile(r"[-+]?(0|[1-9][0-9_]{0,25})")
_DECIMAL = re.compile(r"[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,4})?")
_INT64 = range(-(2**63), 2**63)
_FAILED: Final = object()
"""In place of a value that has been noted as a mistake."""

_MAX_SUGGESTIONS = 100
"""Looking for near names takes time; past so many mistakes they are left out."""

_MAX_NAMES = 12

_SETTING_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
"""What an unknown name has to look like to be repeated: a line of another kind of file may hold a secret."""


def show_found(node: Node, *, secret: bool, scalar_wanted: bool) -> str:
    """What stands there. Where settings should stand, text is not repeated: it may be `password hunter2`."""
    if isinstance(node, Sequence):
        return "a list"
    if isinstance(node, Mapping):
        return "a mapping"
    if not isinstance(node, Scalar) or node.kind == "null":
        return "nothing"
    if secret:
        return "a value that is not shown"
    return _show_scalar(node) if scalar_wanted or node.kind != "text" else "text"


def _show_scalar(node: Scalar) -> str:
    shown = quote(node.text)
    if node.kind == "text":
        return f"{shown} (text)"
    bare = shown[1:-1]
    if node.kind == "bool":
        truth = "true" if node.text.lower() in {"yes", "on", "true"} else "false"
        return bare if node.text.lower() == truth else f"{bare} (YAML reads it as {truth})"
    if node.kind == "base60":
        return f"{bare} (YAML reads it as one number)"
    if node.kind == "float" and not any(char.isdigit() for char in bare):
        return f"{bare} (no finite number)"
    return f"{bare} (a number)"


class Unfit(Exception):
    """The value is none of this type. `suggestion` says what to do about it, where that is known."""

    def __init__(self, suggestion: str = "") -> None:
        super().__init__(suggestion)
        self.suggestion = suggestion


def read_scalar(node: Scalar, option: Option) -> object:
    info = option.info
    if option.mark == "address" and isinstance(info, inspect.StructType):
        return _read_address(node, info)
    if isinstance(info, Number):
        return _limit(_read_number(node, info, option.mark), info)
    if isinstance(info, inspect.LiteralType):
        return _read_choice(node, info)
    if isinstance(info, inspect.StrType):
        return _read_text(node, info)
    if isinstance(info, inspect.BoolType):
        return _read_bool(node)
    if isinstance(info, inspect.NoneType) and node.kind == "null":
        return None
    raise Unfit


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The nearest known name as a suggestion, or nothing."""
    import difflib  # noqa: PLC0415 - only a mistake needs it

    plain = {known.lower().replace("-", "_"): known for known in names}
    matches = difflib.get_close_matches(name[:64].lower().replace("-", "_"), plain, n=1)
    return f"did you mean {plain[matches[0]]}?" if matches else ""


def _read_address(node: Scalar, info: inspect.StructType) -> object:
    if node.kind == "int":
        raise Unfit("write the host before the port")
    try:
        host, port = parse_address(node.text)
    except ValueError as error:
        raise Unfit(_suggest_address(node.text)) from error
    return info.cls(host, port)


def _suggest_address(text: str) -> str:
    if "://" in text:
        return "leave out the scheme and the path"
    return "put an IPv6 address in brackets" if text.count(":") > 2 else ""


def _read_number(node: Scalar, info: Number, mark: str) -> float:
    try:
        if mark == "duration":
            return parse_duration(node.text, allow_plain_seconds=True)
        if mark == "size":
            return parse_bytes(node.text)
        if mark == "memory":
            return parse_memory(node.text)
    except ValueError as error:
        raise Unfit from error
    if node.kind == "text":
        return _read_number_in_text(node, info)
    if node.kind == "int":
        whole = _read_whole(node.text)
        return whole if isinstance(info, inspect.IntType) else float(whole)
    if node.kind != "float" or isinstance(info, inspect.IntType):
        raise Unfit
    return _read_decimal(node.text)


def _read_number_in_text(node: Scalar, info: Number) -> float:
    """`1e3` is a number everywhere but in YAML 1.1; a number in quotes is one that should lose them."""
    if resolve(node.text) in {"int", "float"}:
        raise Unfit("leave out the quotes")
    if isinstance(info, inspect.IntType):
        raise Unfit
    return _read_decimal(node.text)


def _read_whole(text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise Unfit(_suggest_whole(text.lstrip("+-")))
    whole = int(text.replace("_", ""))
    if whole not in _INT64:
        raise Unfit("it has to fit into 64 bits")
    return whole


def _suggest_whole(digits: str) -> str:
    """YAML 1.1 reads `010` as 8: whichever was meant, it is written in another way."""
    if not digits.startswith("0"):
        return "it has to fit into 64 bits"
    return "leave out the leading zero" if digits.isdecimal() else "write it as a decimal number"


def _read_decimal(text: str) -> float:
    if not _DECIMAL.fullmatch(text):
        raise Unfit
    number = float(text.replace("_", ""))
    if not math.isfinite(number):
        raise Unfit
    return number


def _limit(number: float, info: Number) -> float:
    is_too_low = (info.ge is not None and number < info.ge) or (info.gt is not None and number <= info.gt)
    if is_too_low or (info.le is not None and number > info.le):
        raise Unfit
    return number


def _read_choice(node: Scalar, info: inspect.LiteralType) -> object:
    """Names are compared as they are written, so that `on` and `no` can be names without quotes."""
    for choice in info.values:
        if str(choice) == node.text:
            return choice
    raise Unfit(did_you_mean(node.text, map(str, info.values)))


def _read_text(node: Scalar, info: inspect.StrType) -> str:
    if node.kind != "text":
        raise Unfit("put it in quotes" if node.text else "")
    too_short = len(node.text) < (info.min_length or 0)
    too_long = info.max_length is not None and len(node.text) > info.max_length
    if too_short or too_long or (info.pattern is not None and not re.search(info.pattern, node.text)):
        raise Unfit
    return node.text


def _read_bool(node: Scalar) -> bool:
    if node.kind != "bool":
        raise Unfit("leave out the quotes" if resolve(node.text) == "bool" else "")
    return node.text.lower() in {"true", "yes", "on"}


class _Entry(NamedTuple):
    name: str
    mark: FilePosition
    value: Node


def convert(root: Node | None, source: str, settings_type: type[Struct]) -> object:
    """The settings in a tree of nodes. Raises ConfigMistakes with everything that does not fit."""
    converter = _Converter(source, settings_type)
    node = Mapping(mark=FilePosition(1, 1), pairs=()) if root is None else root
    settings = converter.convert(node, options_of(inspect.type_info(settings_type)), ())
    if converter.mistakes:
        raise ConfigMistakes(converter.mistakes)
    return settings


class _Converter:
    def __init__(self, source: str, settings_type: type[Struct]) -> None:
        self.mistakes: list[Mistake] = []
        self._source = source
        self._settings_type = settings_type

    def convert(self, node: Node, options: list[Option], path: SettingPath, default: object = NODEFAULT) -> object:
        """The node as the first of the options that takes it. `default` fills in what a section leaves out."""
        if node.tag:
            return self._note(node.mark, path, "a tag (!)", "a plain value", "put text that begins with ! in quotes")
        if isinstance(node, Scalar):
            return self._convert_scalar(node, options, path, default)
        if isinstance(node, Mapping):
            return self._convert_mapping(node, options, path, default)
        for option in options:
            if isinstance(option.info, inspect.ListType) and isinstance(node, Sequence):
                return self._convert_list(node, option.info, option.check, path)
        return self._note_unfit(node, options, path)

    def _convert_scalar(self, node: Scalar, options: list[Option], path: SettingPath, default: object) -> object:
        suggestion = ""
        for option in filter(is_scalar, options):
            try:
                return read_scalar(node, option)
            except Unfit as unfit:
                suggestion = suggestion or unfit.suggestion
        sections = [option for option in options if is_section(option)]
        if sections and node.kind == "null":  # a section whose settings are all commented out
            return self._convert_mapping(Mapping(mark=node.mark, pairs=()), sections, path, default)
        if sections and (name := shorthand_of(sections[0])):
            pair = (Scalar(mark=node.mark, text=name, kind="text"), node)
            return self._convert_mapping(Mapping(mark=node.mark, pairs=(pair,)), sections, path, default)
        return self._note_unfit(node, options, path, suggestion or _suggest_form(node, options))

    def _convert_list(self, node: Sequence, info: inspect.ListType, check: Check | None, path: SettingPath) -> object:
        before = len(self.mistakes)
        items = options_of(info.item_type)
        values = [self.convert(item, items, (*path, index)) for index, item in enumerate(node.items)]
        self._check_length(node, len(values), info, path)
        if check and len(self.mistakes) == before:
            for index, problem in check(values):
                self._note(node.items[index].mark, (*path, index), one_line(problem))
        return values if len(self.mistakes) == before else _FAILED

    def _convert_mapping(self, node: Mapping, options: list[Option], path: SettingPath, default: object) -> object:
        for option in options:
            if is_section(option) and isinstance(option.info, inspect.StructType):
                return self._convert_section(node, option.info, path, default)
            if isinstance(option.info, inspect.DictType):
                return self._convert_dict(node, option.info, option.check, path)
        return self._note_unfit(node, options, path)

    def _convert_dict(self, node: Mapping, info: inspect.DictType, check: Check | None, path: SettingPath) -> object:
        before = len(self.mistakes)
        keys, values = options_of(info.key_type), options_of(info.value_type)
        converted: dict[object, object] = {}
        marks: dict[object, _Entry] = {}
        for entry in self._entries(node, path):
            name = Scalar(mark=entry.mark, text=entry.name, kind="text")
            key = self.convert(name, keys, (*path, entry.name))
            converted[key], marks[key] = self.convert(entry.value, values, (*path, entry.name)), entry
        sound = {key: value for key, value in converted.items() if _FAILED is not key and _FAILED is not value}
        for key, problem in check(sound) if check else ():
            self._note(marks[key].mark, (*path, marks[key].name), one_line(problem))
        self._check_length(node, len(converted), info, path)
        return converted if len(self.mistakes) == before else _FAILED

    def _convert_section(self, node: Mapping, info: inspect.StructType, path: SettingPath, default: object) -> object:
        before = len(self.mistakes)
        base = base_for(info, default)
        values = {field.name: default_of(field, base) for field in info.fields}
        wrong = self._fill(values, node, info, path)
        for field in info.fields:
            if values[field.name] is NODEFAULT and field.encode_name not in wrong:
                self._note(node.mark, (*path, field.encode_name), "", expect(options_of(field.type)))
        if any(value is NODEFAULT for value in values.values()):
            return _FAILED
        made = self._make(info, values, node, path, wrong)
        return made if len(self.mistakes) == before else _FAILED

    def _fill(self, values: dict[str, object], node: Mapping, info: inspect.StructType, path: SettingPath) -> set[str]:
        """Puts what the file sets over the defaults in `values`. A value with mistakes leaves its default, so that the
        section can still be checked as a whole. Returns the names of those settings, without inner sections."""
        wrong = set()
        fields = {field.encode_name: field for field in info.fields}
        for entry in self._entries(node, path):
            if entry.name in fields:
                field = fields[entry.name]
                options, default = options_of(field.type), values[field.name]
                value = self.convert(entry.value, options, (*path, entry.name), default)
                if value is not _FAILED:
                    values[field.name] = value
                elif default is NODEFAULT or not any(map(is_section, options)):
                    wrong.add(entry.name)
            else:
                self._note_unknown(entry, list(fields), path)
        return wrong

    def _make(
        self, info: inspect.StructType, values: dict[str, object], node: Mapping, path: SettingPath, wrong: set[str]
    ) -> object:
        """The struct. What its `__post_init__` objects to is a mistake of the first setting that the objection names,
        or of the whole section; it is left out when one of them is `wrong` by itself."""
        try:
            return info.cls(**values)
        except ValueError as error:
            said, detail = _without_secrets(str(error), node, path), getattr(error, "detail", "")
        names = _names_in(said, [field.encode_name for field in info.fields])
        if wrong.intersection(names) or (wrong and not names):
            return _FAILED
        marks = {key.text: key.mark for key, _ in node.pairs if isinstance(key, Scalar)}
        place = next((name for name in names if name in marks), None)
        if place is None:
            return self._note(node.mark, path, said or "these settings do not fit together", detail=detail)
        return self._note(marks[place], (*path, place), said, detail=detail)

    def _entries(self, node: Mapping, path: SettingPath) -> Iterator[_Entry]:
        """Names and values; what cannot be a name and what is set again is noted and left out."""
        lines: dict[str, int] = {}
        for key, value in node.pairs:
            if not isinstance(key, Scalar) or key.tag or not key.text:
                self._note(key.mark, path, "a value in place of a name", "name: value")
            elif key.text == "<<" and key.kind == "text":
                self._note(key.mark, path, "a merge (<<)", "the settings themselves", "write them out")
            elif key.text in lines:
                self._note(key.mark, (*path, key.text), f"set twice, first on line {lines[key.text]}")
            else:
                lines[key.text] = key.mark.line
                yield _Entry(key.text, key.mark, value)

    def _check_length(
        self, node: Node, count: int, info: inspect.ListType | inspect.DictType, path: SettingPath
    ) -> None:
        too_many = info.max_length is not None and count > info.max_length
        if too_many or count < (info.min_length or 0):
            self._note(node.mark, path, f"{count} item{'' if count == 1 else 's'}", expect([Option(info)]))

    def _note_unknown(self, entry: _Entry, names: list[str], path: SettingPath) -> None:
        suggestion = ""
        if len(self.mistakes) < _MAX_SUGGESTIONS:
            suggestion = did_you_mean(entry.name, names) or self._place_of(entry.name) or _list_names(names)
        if _SETTING_NAME.fullmatch(entry.name):
            self._note(entry.mark, (*path, entry.name), "unknown setting", suggestion=suggestion)
        else:
            self._note(entry.mark, path, "a name that is not shown", "the name of a setting", suggestion)

    def _place_of(self, name: str) -> str:
        """The one place of a setting of this name: wrong indentation puts a setting into the wrong section."""
        places = (
            f"{section.path}.{name}".lstrip(".")
            for section in sections_of(self._settings_type)
            if not section.repeats and name in {field.encode_name for field in section.info.fields}
        )
        place = next(places, "")
        return f"did you mean {place}?" if place else ""

    def _note_unfit(self, node: Node, options: list[Option], path: SettingPath, suggestion: str = "") -> object:
        found = show_found(node, secret=is_secret(path), scalar_wanted=any(map(is_scalar, options)))
        return self._note(node.mark, path, found, expect(options), suggestion)

    def _note(
        self,
        mark: FilePosition,
        path: SettingPath,
        found: str,
        expected: str = "",
        suggestion: str = "",
        *,
        detail: str = "",
    ) -> object:
        where = write_path(path)
        self.mistakes.append(Mistake(self._source, mark.line, mark.column, where, found, expected, suggestion, detail))
        return _FAILED


def _suggest_form(node: Scalar, options: list[Option]) -> str:
    lists = [option.info for option in options if isinstance(option.info, inspect.ListType)]
    if lists:
        return "write [] for none" if node.kind == "null" else "begin each item with '- ' on a line of its own"
    dicts = any(isinstance(option.info, inspect.DictType) for option in options)
    if dicts and node.kind == "null":
        return "write {} for none"
    forgot_space = (dicts or any(map(is_section, options))) and ":" in node.text
    return "put a space after the colon" if forgot_space else ""


def _list_names(names: list[str]) -> str:
    return f"known here: {', '.join(names)}" if 0 < len(names) <= _MAX_NAMES else ""


def _without_secrets(said: str, node: Node, path: SettingPath) -> str:
    for secret in sorted(_secrets(node, path), key=len, reverse=True):
        said = said.replace(secret, "…").replace(repr(secret)[1:-1], "…")
    return one_line(" ".join(said.split()))


def _names_in(said: str, names: list[str]) -> list[str]:
    return [word for word in dict.fromkeys(re.findall(r"[\w-]+", said)) if word in names]


def _secrets(node: Node, path: SettingPath) -> Iterator[str]:
    if isinstance(node, Scalar) and node.text and is_secret(path):
        yield node.text
    elif isinstance(node, Sequence):
        for index, item in enumerate(node.items):
            yield from _secrets(item, (*path, index))
    elif isinstance(node, Mapping):
        for key, value in node.pairs:
            yield from _secrets(value, (*path, key.text if isinstance(key, Scalar) else 0))
