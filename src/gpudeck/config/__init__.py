"""The configuration file as typed values: all mistakes at once, each with file, line, path, found and expected. The
settings are msgspec structs next to the code they configure. Opens no socket and touches no hardware."""

from gpudeck.config.load import ConfigMistakes, Mistake, find_config, load, load_bytes, load_file, parse_address

__all__ = ["ConfigMistakes", "Mistake", "find_config", "load", "load_bytes", "load_file", "parse_address"]
