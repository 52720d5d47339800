"""Finds and loads the configuration file: the requested one, which must exist, or the first one that exists. An error
is one line, and never shows a secret."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

T = TypeVar("T", bound=Struct)
FILE_NAME = "gpudeck.yaml"
VARIABLE = "GPUDECK_CONFIG"
_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[^\[\]]+)\]|(?P<host>[^\s:\[\]]*)):(?P<port>0|[1-9][0-9]{0,4})", re.ASCII)
_HOST = re.compile(r"(?!-)[A-Za-z0-9_.-]{1,253}")


def load_file(path: Path, settings_type: type[T]) -> T:
    """The settings in a file. Raises ConfigMistakes, also if the file cannot be read."""
    try:
        content = path.read_bytes()
    except OSError as error:
        problem = f"cannot be read: {(error.strerror or 'unknown reason').lower()}"
        raise ConfigMistakes([Mistake(os.fspath(path), None, "", problem)]) from error
    return load_bytes(content, os.fspath(path), settings_type)


def load_bytes(content: bytes, source: str, settings_type: type[T]) -> T:
    """The settings in the bytes of a file, which must be UTF-8. Raises ConfigMistakes."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        found = f"the byte 0x{content[error.start]:02X}"
        suggestion = "save the file as UTF-8"
        raise ConfigMistakes([Mistake(source, line, "", found, "UTF-8 text", suggestion)]) from error
    return load(text, source, settings_type)


def load(text: str, source: str, settings_type: type[T]) -> T:
    """The settings in a YAML text; an empty one means all defaults. Raises ConfigMistakes with all mistakes at once."""
    from gpudeck.config.convert import read_settings  # noqa: PLC0415 - PyYAML is imported only where a file is read

    return read_settings(text.removeprefix("\ufeff"), source, settings_type)


def find_config(
    explicit: str | Path | None,
    environ: Mapping[str, str],
    cwd: Path | None,
    home: Path | None,
    etc: Path = Path("/etc"),
) -> Path | None:
    """The file to load, or None: then every setting has its default. `explicit` is the value of `--config`; it and
    `$GPUDECK_CONFIG` may be relative to `cwd`. Raises ConfigMistakes if a requested file does not exist."""
    if explicit is not None:
        return _demand(_expand(explicit, cwd, home), "--config")
    if environ.get(VARIABLE):
        return _demand(_expand(environ[VARIABLE], cwd, home), f"${VARIABLE}")
    candidates = [cwd, home and home / ".config" / "gpudeck", etc / "gpudeck"]
    files = (folder / FILE_NAME for folder in candidates if folder is not None)
    return next(filter(_is_file, files), None)


def _expand(path: str | Path, cwd: Path | None, home: Path | None) -> Path:
    """The absolute path, with a leading `~` expanded: no shell does that for a service's environment."""
    first, *rest = Path(path).parts or (".",)
    expanded = home.joinpath(*rest) if first == "~" and home is not None else Path(path)
    return expanded if cwd is None else cwd / expanded


def _demand(path: Path, asked_by: str) -> Path:
    if _is_file(path):
        return path
    problem = "no such file, or its folder may not be read"
    raise ConfigMistakes([Mistake(str(path), None, "", problem, suggestion=f"{asked_by} names it")])


def _is_file(path: Path) -> bool:
    """False also if the folder is not accessible: an unreadable home must not hide the next place."""
    try:
        return path.is_file() or path.is_fifo()
    except (OSError, ValueError):
        return False


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `:PORT` (empty host: every interface) or `[IPV6]:PORT`. Raises ValueError."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match["port"]) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT")
    if match["ipv6"]:
        return _check_ip(match["ipv6"], 6), int(match["port"])
    host = match["host"]
    if host and not _HOST.fullmatch(host):
        raise ValueError(f"{host!r} is not the name of a host")
    if host and not host.strip("0123456789."):
        _check_ip(host, 4)
    return host, int(match["port"])


def _check_ip(text: str, version: int) -> str:
    import ipaddress  # noqa: PLC0415 - few commands read an address, all would pay for the import

    if ipaddress.ip_address(text).version != version:
        raise ValueError(f"{text!r} is not an IPv{version} address")
    return text


SettingPath = tuple[str | int, ...]
"""The path from the top of the file to a value: names of settings and positions in lists."""

_SHOWN_CHARACTERS = 60
_SECRET_NAME = re.compile(r"(token|passw(or)?d|passphrase|secret|credential|key)s?$", re.IGNORECASE)
_PLAIN_NAME = re.compile(r"[\w-]{1,64}")
_URL_PASSWORD = re.compile(r"(://[^\s/@:]*):[^\s/@]*@")


class Mistake(Struct, frozen=True):
    """One mistake to correct. `line` counts from 1; None: the file as a whole. `found` without `expected` is a complete
    statement; `expected` without `found` means that something is missing. `detail` are further lines that show the
    place inside a value."""

    source: str
    line: int | None
    path: str
    found: str
    expected: str = ""
    suggestion: str = ""
    detail: str = ""

    def __str__(self) -> str:
        source = one_line(self.source)
        place = source if self.line is None else f"{source}:{self.line}"
        parts = [place, self.path, self._statement()]
        lines = [": ".join(part for part in parts if part) + (f"; {self.suggestion}" if self.suggestion else "")]
        return "\n    ".join([*lines, *self.detail.splitlines()])

    def _statement(self) -> str:
        if not self.expected:
            return self.found
        return f"found {self.found}, expected {self.expected}" if self.found else f"missing, expected {self.expected}"


class ConfigMistakes(Exception):
    """An invalid configuration. Its text is one line per mistake, in the order of the file."""

    def __init__(self, mistakes: list[Mistake]) -> None:
        self.mistakes = tuple(sorted(mistakes, key=lambda mistake: mistake.line or 0))
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


def write_path(path: SettingPath) -> str:
    """The path as text: `hub.hosts[2].labels['rack 4']`."""
    written = ""
    for part in path:
        if isinstance(part, str) and _PLAIN_NAME.fullmatch(part):
            written += f".{part}" if written else part
        else:
            written += f"[{quote(part) if isinstance(part, str) else part}]"
    return written


def is_secret(path: SettingPath) -> bool:
    """Whether the value at this path must not be shown, by the names in the path."""
    return any(isinstance(part, str) and _SECRET_NAME.search(part) for part in path)


def quote(text: str) -> str:
    """Text from the file in quotes: on one line, cut if long, without passwords in URLs."""
    text = _URL_PASSWORD.sub(r"\1:…@", text)
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…")


def one_line(text: str) -> str:
    """Text from outside without line breaks and control characters."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
