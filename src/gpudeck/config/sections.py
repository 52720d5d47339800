"""The settings as sections: every struct of a settings type with its place in the file and its defaults."""

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import NODEFAULT, Struct, inspect

from gpudeck.config.words import ListLike, Option, is_section, options_of


class Section(NamedTuple):
    """A struct and where it is written: `""` (the top), `hub`, `hosts[]` (each item), `groups.NAME` (each entry).

    `base` holds the values of settings left out where they are not the struct's own defaults. Of one that `repeats`
    there may be several; one that `is_optional` is off until it is written.
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


def default_of(field: inspect.Field, base: Struct | None) -> object:
    """What a setting is when it is left out; NODEFAULT when it has to be set."""
    if base is not None:
        return getattr(base, field.name)
    return field.default if field.default_factory is NODEFAULT else field.default_factory()


def base_for(info: inspect.StructType, default: object) -> Struct | None:
    """The default of a section, where it can fill in for settings left out of that section."""
    return default if isinstance(default, Struct) and type(default) is info.cls else None


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
        elif isinstance(option.info, ListLike):
            yield from _inside(f"{path}[]", options_of(option.info.item_type))
        elif isinstance(option.info, inspect.DictType):
            yield from _inside(f"{path}.NAME", options_of(option.info.value_type))
