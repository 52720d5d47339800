"""An archive for a bug report: versions, settings, findings, the last lines of the log, the fleet in numbers. Secrets
are removed in three layers: settings by their kind, text by its appearance, and all secrets known here."""

import gzip
import importlib.metadata
import io
import json
import os
import platform
import re
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from subprocess import STDOUT
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from gpudeck import __version__
from gpudeck.child_process import ChildFailed, run
from gpudeck.collectors.redaction import HIDDEN, looks_secret, redact
from gpudeck.model.errors import UsageError
from gpudeck.model.view import Fleet
from gpudeck.ops.doctor import Finding
from gpudeck.settings import Settings

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://\S*")
_PASSWORD = re.compile(r":([^:\s]{4,})@")
_SHORTEST, _SHORTEST_OF_ADDRESS = 4, 8
"""Shorter secrets are not searched for in text: they would match everywhere."""
_UNITS = ("gpudeck-hub", "gpudeck-agent")
_LOG_LINES = 400


def show_settings(settings: Settings) -> Any:
    """The settings as plain values, without those that are, or may contain, secrets."""
    return _hide(msgspec.to_builtins(settings, enc_hook=str), "", set())


def _hide(value: Any, name: str, found: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: _hide(part, "secret" if name == "headers" else str(key), found) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_hide(part, name, found) for part in value]
    if not isinstance(value, str) or not value:
        return value
    if name.endswith("_file"):
        if looks_secret(name.removesuffix("_file")) or name == "url_file":
            found |= _read_secrets(Path(value))
        return value
    if looks_secret(name):
        found.add(value)
        return HIDDEN
    found |= _secrets_of_address(value)
    return show_address(value)


def show_address(text: str) -> str:
    """Only the kind of each address in a text: any part of it may be a secret."""
    return _URL.sub(rf"\1://{HIDDEN}", text)


def find_secrets(settings: Settings, files: Iterable[Path]) -> set[str]:
    """Every secret known here: in the settings, and in the files that they name."""
    found: set[str] = set()
    _hide(msgspec.to_builtins(settings, enc_hook=str), "", found)
    for file in files:
        found |= _read_secrets(file)
    return {
        form for secret in found for form in (secret, quote(secret, safe=""), unquote(secret)) if len(form) >= _SHORTEST
    }


def _secrets_of_address(text: str) -> set[str]:
    """Passwords, and parts of the path and the query. Empty for a text that is not an address."""
    if "://" not in text:
        return set()
    parts = {part for part in re.split(r"[/?&=:@#,\s]", text.partition("://")[2]) if len(part) >= _SHORTEST_OF_ADDRESS}
    return parts | set(_PASSWORD.findall(text))


def _read_secrets(file: Path) -> set[str]:
    try:
        with file.expanduser().open(errors="replace") as opened:
            text = opened.read(65_536)
    except (OSError, RuntimeError):
        return set()
    lines = {line.strip() for line in text.splitlines() if not line.startswith("#")}
    return {part for line in lines for part in ({line} | _secrets_of_address(line))}


class Redactor:
    """Removes secrets from text. `names` are replaced, too."""

    def __init__(self, secrets: Iterable[str], names: Mapping[str, str] | None = None) -> None:
        # The longest first: one may be a part of another.
        self._secrets = sorted(secrets, key=len, reverse=True)
        self._names = {name: stand_in for name, stand_in in (names or {}).items() if len(name) > 1}
        words = "|".join(re.escape(name) for name in sorted(self._names, key=len, reverse=True))
        self._named = re.compile(rf"(?<![\w.-])(?:{words})(?![\w-])") if words else None

    def clean_log(self, text: str) -> str:
        """Lines of other programs: everything that looks like a secret is removed as well."""
        return "\n".join(redact([show_address(line)]) for line in text.splitlines())

    def clean(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return self._named.sub(lambda found: self._names[found[0]], text) if self._named else text


def write_bundle(
    file: Path,
    settings: Settings | None,
    findings: Iterable[Finding],
    fleet: Fleet | None,
    secrets: Iterable[str],
    *,
    log: str | None = None,
) -> list[str]:
    """Write the archive, readable only by its owner; returns the names of its files. Raises UsageError."""
    if settings is not None:
        settings = msgspec.structs.replace(settings, users={})
    scrubber = Redactor(secrets, find_names(fleet))
    log = read_log() if log is None else log
    members = {
        "versions.json": _dump(describe_versions()),
        "doctor.json": _dump(msgspec.to_builtins(list(findings))),
        "settings.json": _dump(None if settings is None else show_settings(settings)),
        "fleet.json": _dump(None if fleet is None else summarize(fleet)),
        "log.txt": scrubber.clean_log(log) + "\n",
    }
    try:
        _write(file, {name: scrubber.clean(text) for name, text in members.items()})
    except OSError as error:
        raise UsageError(
            f"{file} cannot be written: {(error.strerror or str(error)).lower()}.", "Name another."
        ) from error
    return list(members)


def _write(file: Path, members: Mapping[str, str]) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with (
        os.fdopen(descriptor, "wb") as opened,
        gzip.GzipFile("", "wb", fileobj=opened) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name, text in members.items():
            body = text.encode("utf-8", "replace")
            entry = tarfile.TarInfo(f"gpudeck-doctor/{name}")
            entry.size, entry.mtime, entry.mode = len(body), int(time.time()), 0o600
            archive.addfile(entry, io.BytesIO(body))


def _dump(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def describe_versions() -> dict[str, Any]:
    return {
        "gpudeck": __version__,
        "python": sys.version,
        "system": platform.platform(),
        "packages": {found.name: found.version for found in importlib.metadata.distributions()},
    }


def read_log() -> str:
    command = ["journalctl", "--no-pager", "--lines", str(_LOG_LINES), "--output", "short-iso"]
    units = [word for unit in _UNITS for word in ("--unit", unit)]
    try:
        found = run([*command, *units], seconds=20, stderr=STDOUT)
    except ChildFailed as error:
        return f"no log: {error.message}"
    log = found.output.decode(errors="replace")
    return log if log and not found.code else f"no log: {log.strip() or 'journalctl has none of gpudeck'}"


def summarize(fleet: Fleet) -> dict[str, Any]:
    """The fleet in numbers."""
    hosts = fleet.hosts
    gpus = [gpu for host in hosts for gpu in host.gpus]
    return {
        "version": fleet.version,
        "demo": fleet.demo,
        "totals": msgspec.to_builtins(fleet.totals),
        "problems": fleet.problems,
        "hosts_by_status": Counter(f"{host.via} {host.status}" for host in hosts),
        "agents_by_version": Counter(host.agent_version for host in hosts),
        "drivers": Counter(str(host.driver_version) for host in hosts),
        "models": Counter(gpu.name for gpu in gpus),
        "availability_reasons": Counter(str(gpu.availability_reason) for gpu in gpus),
        "host_problems": [[host.name, *host.problems] for host in hosts if host.problems],
    }


def find_names(fleet: Fleet | None) -> dict[str, str]:
    """Hosts, users and commands of a fleet, with their replacements."""
    hosts = [] if fleet is None else fleet.hosts
    processes = [process for host in hosts for gpu in host.gpus for process in gpu.processes or ()]
    users = {process.user for process in processes}
    users |= {user for host in hosts for gpu in host.gpus for user in gpu.users}
    names = {host.name for host in hosts} | {host.display_name for host in hosts}
    commands = {process.command for process in processes}
    return {
        **{command: "a command" for command in commands if command},
        **{user: f"user-{number}" for number, user in enumerate(sorted(filter(None, users)), 1)},
        **{name: f"host-{number}" for number, name in enumerate(sorted(filter(None, names)), 1)},
    }
