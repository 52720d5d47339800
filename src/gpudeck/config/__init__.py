"""The configuration file as typed values, every mistake at once. Of gpudeck's packages it imports the model alone.

    find_config   which file counts
    load          YAML text → the settings type, or ConfigMistakes with file, line, path, found and expected

The settings themselves are msgspec structs beside the code they configure: fields with types, defaults and a
docstring below each. Looking at a configuration opens no socket and touches no hardware.
"""

from gpudeck.config.load import ConfigMistakes, Mistake, find_config, load, load_bytes, load_file, parse_address

__all__ = ["ConfigMistakes", "Mistake", "find_config", "load", "load_bytes", "load_file", "parse_address"]
