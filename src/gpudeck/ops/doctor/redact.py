"""Takes out of settings, logs and answers what must not leave the machine.

In three layers, each of which would do for most: settings by what they are, text by what it looks like, and everything
at last by the very secrets that are known here, wherever they turn up.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import msgspec

from gpudeck.collectors.redaction import HIDDEN, looks_secret, redact
from gpudeck.settings import Settings

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(\S*)")
_PLAIN_SCHEMES = {"http", "https", "postgresql"}
_SHORTEST = 4
"""A secret of fewer characters is not looked for in text: it would be found everywhere. It stands in no setting."""
_ADDRESSES = {"url", "database", "proxy", "hub", "write_url", "read_url", "page", "api_url"}


def show_settings(settings: Settings) -> Any:
    """The settings as plain values, without those that are secret or may hold a secret."""
    return _show(msgspec.to_builtins(settings, enc_hook=str), "")


def _show(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        hides = name == "headers"
        return {key: HIDDEN if hides else _show(part, str(key)) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_show(part, name) for part in value]
    if isinstance(value, str) and value and not name.endswith("_file"):
        return HIDDEN if looks_secret(name) else show_address(value)
    return value


def show_address(text: str) -> str:
    """Addresses in a text without what may be a secret: of those of the web the machine is left, of others the kind."""
    return _URL.sub(_shorten, text)


def _shorten(found: re.Match[str]) -> str:
    scheme, rest = found[1].lower(), found[2]
    if scheme not in _PLAIN_SCHEMES:
        return f"{scheme}://{HIDDEN}"
    # A password may hold / and @: what stands before the last @ is not shown.
    place = re.split(r"[/?#]", rest.rpartition("@")[2], maxsplit=1)
    return f"{scheme}://{place[0]}" + (f"/{HIDDEN}" if len(place) > 1 and place[1] else "")


def find_secrets(settings: Settings, files: Iterable[Path]) -> set[str]:
    """Every secret that is known here: in the settings, and in the files that they name."""
    found: set[str] = set()
    _gather(msgspec.to_builtins(settings, enc_hook=str), "", found)
    for file in files:
        found |= _read_secrets(file)
    return {
        form for secret in found for form in (secret, quote(secret, safe=""), unquote(secret)) if len(form) >= _SHORTEST
    }


def _gather(value: Any, name: str, found: set[str]) -> None:
    if isinstance(value, dict):
        for key, part in value.items():
            _gather(part, "secret" if name == "headers" else str(key), found)
    elif isinstance(value, list | tuple):
        for part in value:
            _gather(part, name, found)
    elif isinstance(value, str) and name.endswith("_file"):
        if looks_secret(name.removesuffix("_file")) or name == "url_file":
            found |= _read_secrets(Path(value))
    elif isinstance(value, str) and looks_secret(name):
        found.add(value)
    elif isinstance(value, str) and name in _ADDRESSES:
        found |= _secrets_of_address(value)


def _secrets_of_address(text: str) -> set[str]:
    """Name, password, path and query: of an address that is not of the web every part may be one."""
    scheme, _, rest = text.partition("://")
    if scheme.lower() not in _PLAIN_SCHEMES:
        return {part for part in re.split(r"[/?&=:@#,\s]", rest) if len(part) >= 2 * _SHORTEST}
    login, at, _ = rest.rpartition("@")
    try:
        parts = urlsplit(text)
        tail = {part for part in re.split(r"[/?&=#]", f"{parts.path}?{parts.query}") if len(part) >= 4 * _SHORTEST}
    except ValueError:
        tail = set()
    return tail | ({login, *login.split(":", 1)[1:]} if at else set())


def _read_secrets(file: Path) -> set[str]:
    try:
        with file.expanduser().open(errors="replace") as opened:
            text = opened.read(65_536)
    except (OSError, RuntimeError):
        return set()
    lines = {line.strip() for line in text.splitlines() if not line.startswith("#")}
    return {part for line in lines for part in ({line} | (_secrets_of_address(line) if "://" in line else set()))}


class Redactor:
    """Makes text fit to be sent away. `names` are replaced too, each by what stands beside it."""

    def __init__(self, secrets: Iterable[str], names: Mapping[str, str] | None = None) -> None:
        # The longest first: one may be a part of another.
        self._secrets = sorted(secrets, key=len, reverse=True)
        self._names = {name: stand_in for name, stand_in in (names or {}).items() if len(name) > 1}
        words = "|".join(re.escape(name) for name in sorted(self._names, key=len, reverse=True))
        self._named = re.compile(rf"(?<![\w.-])(?:{words})(?![\w-])") if words else None

    def clean_log(self, text: str) -> str:
        """Lines that somebody else wrote: what looks like a secret goes as well."""
        return "\n".join(redact([show_address(line)]) for line in text.splitlines())

    def clean(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return self._named.sub(lambda found: self._names[found[0]], text) if self._named else text
