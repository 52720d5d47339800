"""An archive for a bug report: versions, settings, findings, the last lines of the log, the fleet in numbers.

Everything is put together as text first and goes through one scrubber before it is written.
"""

import gzip
import importlib.metadata
import io
import json
import os
import platform
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gpudeck import __version__
from gpudeck.model.errors import UsageError
from gpudeck.model.view import Fleet
from gpudeck.ops.doctor.finding import Finding
from gpudeck.ops.doctor.redact import Redactor, show_settings
from gpudeck.settings import Settings

_UNITS = ("gpudeck-hub", "gpudeck-agent")
_LOG_LINES = 400
_PACKAGES = (
    "msgspec",
    "litestar",
    "uvicorn",
    "sqlalchemy",
    "nvidia-ml-py",
    "asyncssh",
    "apprise",
    "urllib3",
    "textual",
)


def write_bundle(
    file: Path,
    settings: Settings | None,
    findings: Iterable[Finding],
    fleet: Fleet | None,
    secrets: Iterable[str],
    *,
    with_names: bool,
    log: str | None = None,
) -> list[str]:
    """Write the archive, readable by its owner alone; returns the names of what is in it. Raises UsageError."""
    scrubber = Redactor(secrets, {} if with_names else find_names(fleet))
    log = read_log() if log is None else log
    members = {
        "versions.json": _dump(describe_versions()),
        "doctor.json": _dump(msgspec.to_builtins(list(findings))),
        "settings.json": _dump(None if settings is None else show_settings(_without_people(settings, with_names))),
        "fleet.json": _dump(None if fleet is None else summarize(fleet, with_names=with_names)),
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
    packages = {name: _version_of(name) for name in _PACKAGES}
    return {
        "gpudeck": __version__,
        "python": sys.version,
        "system": platform.platform(),
        "packages": {name: version for name, version in packages.items() if version},
    }


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _without_people(settings: Settings, with_names: bool) -> Settings:
    return settings if with_names else msgspec.structs.replace(settings, people={})


def read_log() -> str:
    """The last lines of the services' log, where systemd keeps it."""
    command = ["journalctl", "--no-pager", "--lines", str(_LOG_LINES), "--output", "short-iso"]
    units = [word for unit in _UNITS for word in ("--unit", unit)]
    try:
        run = subprocess.run(  # noqa: S603 - our own words alone
            [*command, *units], capture_output=True, text=True, errors="replace", timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no log: journalctl cannot be asked ({type(error).__name__})"
    return run.stdout or f"no log: {run.stderr.strip() or 'journalctl has none of gpudeck'}"


def summarize(fleet: Fleet, *, with_names: bool) -> dict[str, Any]:
    """The fleet in numbers; with names also who and what is on it."""
    hosts = fleet.hosts
    gpus = [gpu for host in hosts for gpu in host.gpus]
    summary = {
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
    return summary | ({"hosts": msgspec.to_builtins(hosts)} if with_names else {})


def find_names(fleet: Fleet | None) -> dict[str, str]:
    """Hosts, users and commands of a fleet, and what stands for them."""
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
