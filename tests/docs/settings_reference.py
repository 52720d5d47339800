"""The reference page, made from the settings types: path, type in words, default, and the help below each field."""

import functools
import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import NODEFAULT, Struct, inspect

from gpudeck.config.convert import (
    Option,
    base_for,
    default_of,
    expect,
    is_section,
    number_writer,
    options_of,
    shorthand_of,
)

_INTRODUCTION = """\
# Settings

Generated from the code. These are all settings of `gpudeck.yaml`; `gpudeck check` checks a file. Every setting is
optional unless its default is *required*.

- A duration is `10s`, `250ms`, `5m`, `2h` or `1d 6h`; a plain number means seconds.
- A size is `512MiB` (powers of 1024), `20GB` or `20G` (powers of 1000); a plain number means bytes.
- An address is `HOST:PORT`, `[IPV6]:PORT`, or `:PORT` for every interface of the machine.
"""


def reference(settings_type: type[Struct]) -> str:
    """Every setting as Markdown, a table a section. Reads the source of the settings types for their help."""
    return "\n".join([_INTRODUCTION, *filter(None, map(_write_section, sections_of(settings_type)))])


class Section(NamedTuple):
    """A struct and where it is written: `""` (the top), `hub`, `hosts[]`, `groups.NAME`. `base` holds the values of
    settings left out, where they are not the struct's own defaults. One that `is_optional` is off until it is written.
    """

    path: str
    info: inspect.StructType
    base: Struct | None
    repeats: bool = False
    is_optional: bool = False


def sections_of(settings_type: type[Struct]) -> Iterator[Section]:
    """The top, then each section before those inside it."""
    info = inspect.type_info(settings_type)
    if not isinstance(info, inspect.StructType):
        raise TypeError(f"{settings_type} is no settings type")
    yield from _walk(Section("", info, None), ())


def _walk(section: Section, around: tuple[type, ...]) -> Iterator[Section]:
    yield section
    around = (*around, section.info.cls)
    for field in section.info.fields:
        path = f"{section.path}.{field.encode_name}".lstrip(".")
        default = default_of(field, section.base)
        for inner_path, option in _inside(path, options_of(field.type)):
            if isinstance(option.info, inspect.StructType) and option.info.cls not in around:
                base, repeats = base_for(option.info, default), section.repeats or inner_path != path
                yield from _walk(Section(inner_path, option.info, base, repeats, default is None), around)


def _inside(path: str, options: list[Option]) -> Iterator[tuple[str, Option]]:
    for option in options:
        if is_section(option):
            yield path, option
        elif isinstance(option.info, inspect.ListType):
            yield from _inside(f"{path}[]", options_of(option.info.item_type))
        elif isinstance(option.info, inspect.DictType):
            yield from _inside(f"{path}.NAME", options_of(option.info.value_type))


@functools.cache
def field_help(cls: type) -> dict[str, str]:
    """The string below each field of a class and of those it inherits from; empty where there is no source."""
    import ast  # noqa: PLC0415 - only the reference page needs source code
    import inspect as source  # noqa: PLC0415 - the same
    import textwrap  # noqa: PLC0415 - the same

    found: dict[str, str] = {}
    for ancestor in reversed(cls.__mro__):
        try:
            tree = ast.parse(textwrap.dedent(source.getsource(ancestor))).body[0]
        except (OSError, TypeError):
            continue
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for field, text in itertools.pairwise(body):
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                continue
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def _write_section(section: Section) -> str:
    rows = [_write_row(section, field) for field in section.info.fields if not _is_only_section(field)]
    if not rows:
        return ""
    title = f"`{section.path}`" if section.path else "At the top"
    about = " ".join((section.info.cls.__doc__ or "").split())
    if shorthand := shorthand_of(Option(section.info)):
        about = f"{about} Where nothing but `{shorthand}` is set, its value alone can be written.".lstrip()
    if section.is_optional:
        about = f"{about} Off unless it is written.".lstrip()
    table = ["| setting | value | default | meaning |", "|---|---|---|---|", *rows, ""]
    return "\n".join([f"## {title}", "", *([about, ""] if about else []), *table])


def _write_row(section: Section, field: inspect.Field) -> str:
    path = f"{section.path}.{field.encode_name}".lstrip(".")
    options = options_of(field.type)
    default = default_of(field, section.base)
    written = "*required*" if default is NODEFAULT else _write_default(default, options)
    about = field_help(section.info.cls).get(field.name) or _description(field)
    cells = (f"`{path}`", _write_type(options, default), written, about)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _write_type(options: list[Option], default: object) -> str:
    """The type in words, safe in Markdown. That nothing may stand there is news only where it is not the default."""
    may_be_null = any(isinstance(option.info, inspect.NoneType) for option in options)
    words = expect(options) + (" or null" if may_be_null and default is not None else "")
    return re.sub(r"([\\*_<\[\]`])", r"\\\1", words)


def _is_only_section(field: inspect.Field) -> bool:
    """Whether the setting has a table of its own and nothing to say in this one."""
    sections = [option for option in options_of(field.type) if not isinstance(option.info, inspect.NoneType)]
    return len(sections) == 1 and is_section(sections[0])


def _description(field: inspect.Field) -> str:
    schema = field.type.extra_json_schema if isinstance(field.type, inspect.Metadata) else None
    return str((schema or {}).get("description", ""))


def _write_default(default: object, options: list[Option]) -> str:
    if default is None:
        return "none"
    return f"`{_write_value(default, options)}`"


def _write_value(value: object, options: list[Option]) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return number_writer(next((option.mark for option in options if option.mark), ""))(value)
    if isinstance(value, list):
        return f"[{', '.join(_write_value(item, _item_options(options)) for item in value)}]"
    if isinstance(value, dict):
        written = (f"{name}: {_write_value(item, _item_options(options))}" for name, item in value.items())
        return f"{{{', '.join(written)}}}"
    return str(value) or '""'


def _item_options(options: list[Option]) -> list[Option]:
    for option in options:
        if isinstance(option.info, inspect.DictType):
            return options_of(option.info.value_type)
        if isinstance(option.info, inspect.ListType | inspect.VarTupleType | inspect.FrozenSetType):
            return options_of(option.info.item_type)
    return []
