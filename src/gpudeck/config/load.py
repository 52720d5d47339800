"""From a file to settings: the door of the room."""

import os
from pathlib import Path
from typing import TypeVar, cast

from msgspec import Struct

from gpudeck.config.mistakes import ConfigMistakes, Mistake

T = TypeVar("T", bound=Struct)


def load_file(path: Path, settings_type: type[T]) -> T:
    """The settings in a file. Raises ConfigMistakes, also when the file cannot be read."""
    try:
        content = path.read_bytes()
    except OSError as error:
        problem = f"cannot be read: {(error.strerror or 'unknown reason').lower()}"
        raise ConfigMistakes([Mistake(os.fspath(path), None, None, "", problem)]) from error
    return load_bytes(content, os.fspath(path), settings_type)


def load_bytes(content: bytes, source: str, settings_type: type[T]) -> T:
    """The settings in the bytes of a file, which have to be UTF-8. Raises ConfigMistakes."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        found = f"the byte 0x{content[error.start]:02X}"
        suggestion = "save the file as UTF-8"
        raise ConfigMistakes([Mistake(source, line, None, "", found, "UTF-8 text", suggestion)]) from error
    return load(text, source, settings_type)


def load(text: str, source: str, settings_type: type[T]) -> T:
    """The settings in a YAML text; nothing in it means every default. `source` names it in messages.

    Raises ConfigMistakes with every mistake of the text at once (a text that is no YAML has just that one), and
    TypeError when `settings_type` holds a type that no file can express.
    """
    from gpudeck.config.convert import convert  # noqa: PLC0415 - PyYAML is imported only where a file is read
    from gpudeck.config.yaml_nodes import read_yaml  # noqa: PLC0415 - the same

    return cast(T, convert(read_yaml(text, source), source, settings_type))
