"""What is wrong with a configuration, as values: where it stands, what was found there, what was expected.

One mistake is one line of text, whatever the file contains, and never shows a secret.
"""

import re

from msgspec import Struct

Path = tuple[str | int, ...]
"""The way from the top of the file to a value: names of settings and positions in lists."""

_SHOWN_CHARACTERS = 60
_SECRET_NAME = re.compile(r"(token|passw(or)?d|passphrase|secret|credential|key)s?$", re.IGNORECASE)
_PLAIN_NAME = re.compile(r"[\w-]{1,64}")
_URL_PASSWORD = re.compile(r"(://[^\s/@:]*):[^\s/@]*@")


class Mistake(Struct, frozen=True):
    """One thing that a person has to change.

    `line` and `column` count from 1 and are None where the file as a whole is meant. `found` without `expected` is a
    statement of its own (`unknown setting`), `expected` without `found` means that something is missing. `suggestion`
    is a clause that says what to do.
    """

    source: str
    line: int | None
    column: int | None
    path: str
    found: str
    expected: str = ""
    suggestion: str = ""

    def __str__(self) -> str:
        source = one_line(self.source)
        place = source if self.line is None else f"{source}:{self.line}"
        parts = [place, self.path, self._statement()]
        return ": ".join(part for part in parts if part) + (f"; {self.suggestion}" if self.suggestion else "")

    def _statement(self) -> str:
        if not self.expected:
            return self.found
        return f"found {self.found}, expected {self.expected}" if self.found else f"missing, expected {self.expected}"


class ConfigMistakes(Exception):
    """A configuration that cannot be used. Its text is one line a mistake, in the order of the file."""

    def __init__(self, mistakes: list[Mistake]) -> None:
        self.mistakes = tuple(sorted(mistakes, key=lambda mistake: (mistake.line or 0, mistake.column or 0)))
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


def write_path(path: Path) -> str:
    """The path as a person would write it: `hub.hosts[2].labels['rack 4']`."""
    written = ""
    for part in path:
        if isinstance(part, str) and _PLAIN_NAME.fullmatch(part):
            written += f".{part}" if written else part
        else:
            written += f"[{quote(part) if isinstance(part, str) else part}]"
    return written


def is_secret(path: Path) -> bool:
    """Whether a value at this path must not be shown, judged by the names on the way to it."""
    return any(isinstance(part, str) and _SECRET_NAME.search(part) for part in path)


def quote(text: str) -> str:
    """Text from the file in quotes: on one line, cut when long, without the password of a URL."""
    text = _URL_PASSWORD.sub(r"\1:…@", text)
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…")


def one_line(text: str) -> str:
    """Text from elsewhere without line breaks, control characters and what a terminal might obey."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
