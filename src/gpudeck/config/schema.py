"""The settings types as a file can hold them: the types that a value may have, in words, and sections with defaults."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from msgspec import NODEFAULT, Struct, inspect

from gpudeck.model.text import BYTES_OF_UNIT
from gpudeck.model.times import format_duration

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
"""Looks at the items of a list together; yields the index of each that does not fit to the others, and why."""


class Option(NamedTuple):
    """One type that a value may have. `mark` makes it special: `duration`, `size`, `memory` or `address`. `words` say
    what a pattern says. `check` is `config_check` of a list or mapping: problems by index or name."""

    info: _Supported
    mark: str = ""
    words: str = ""
    check: Check | None = None


def options_of(info: inspect.Type, mark: str = "", words: str = "") -> list[Option]:
    """The types behind unions and annotations. Raises TypeError for one that no file can hold: a bug of ours."""
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
    """Whether the option is a struct that is written as settings of its own, not as one value."""
    return isinstance(option.info, inspect.StructType) and option.mark != "address"


def shorthand_of(option: Option) -> str:
    """The setting of a section that may stand for all of it, as in `- gpu01` for `- name: gpu01`; mostly none."""
    return getattr(option.info.cls, "config_shorthand", "") if isinstance(option.info, inspect.StructType) else ""


def is_scalar(option: Option) -> bool:
    return option.mark == "address" or not isinstance(
        option.info, inspect.ListType | inspect.DictType | inspect.StructType
    )


def expect(options: Iterable[Option]) -> str:
    """What may stand there, in words: `a duration such as 10s, at least 1s`."""
    named = [option for option in options if not isinstance(option.info, inspect.NoneType)]
    return " or ".join(dict.fromkeys(map(_expect_one, named))) or "nothing"


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
    """How a number of this kind is written in the file."""
    return {"duration": format_duration, "size": format_size, "memory": format_memory}.get(mark, _write_number)


def format_size(size_bytes: float) -> str:
    """The exact way to write a size with the smallest number that `parse_bytes` reads back as the same."""
    return _format_bytes(size_bytes, [unit for unit in BYTES_OF_UNIT if unit])


def format_memory(memory_bytes: float) -> str:
    """An amount of memory as `parse_memory` reads it back, if it is whole KiB."""
    return _format_bytes(memory_bytes, [unit for unit in BYTES_OF_UNIT if unit.endswith("i")])


def _format_bytes(size_bytes: float, units: Iterable[str]) -> str:
    whole = int(size_bytes)
    exact = [(whole // BYTES_OF_UNIT[unit], unit) for unit in units if whole % BYTES_OF_UNIT[unit] == 0]
    count, unit = min(exact, default=(whole, ""))
    return f"{count}{unit[:1].upper()}{unit[1:]}B" if whole else "0B"


def _write_number(number: float) -> str:
    return str(int(number)) if float(number).is_integer() and abs(number) < 1e15 else repr(number)


def default_of(field: inspect.Field, base: Struct | None) -> object:
    """What a setting is when it is left out; NODEFAULT when it has to be set."""
    if base is not None:
        return getattr(base, field.name)
    return field.default if field.default_factory is NODEFAULT else field.default_factory()


def base_for(info: inspect.StructType, default: object) -> Struct | None:
    """The default of a section, where it can fill in for settings left out of that section."""
    return default if isinstance(default, Struct) and type(default) is info.cls else None
