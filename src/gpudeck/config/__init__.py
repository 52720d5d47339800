"""The configuration file as typed values, every mistake at once. Imports no other package of gpudeck.

    find_config   which file counts
    load          YAML text → the settings type, or ConfigMistakes with file, line, path, found and expected
    reference     the same type → the reference page

The settings themselves are msgspec structs beside the code they configure: fields with types, defaults and a
docstring below each. Looking at a configuration opens no socket and touches no hardware.
"""

from gpudeck.config.load import find_config, load, load_bytes, load_file
from gpudeck.config.mistakes import ConfigMistakes, Mistake
from gpudeck.config.reference import reference
from gpudeck.config.values import format_duration, format_size, parse_address, parse_duration, parse_size

__all__ = [
    "ConfigMistakes",
    "Mistake",
    "find_config",
    "format_duration",
    "format_size",
    "load",
    "load_bytes",
    "load_file",
    "parse_address",
    "parse_duration",
    "parse_size",
    "reference",
]
