"""Imports web-gpu-monitor's config.ini: its hosts are read over SSH, as before. Its SSH key becomes a setting, because
no file of the hub's machine can be named over the network."""

import configparser
from pathlib import Path

import yaml

from gpudeck.compat.importing import ImportContext, ImportPlan, add_hosts, read_small_file
from gpudeck.compat.readings import round_known
from gpudeck.discovery.host_names import quote
from gpudeck.model.errors import UsageError
from gpudeck.model.view import Fleet, Gpu, Host
from gpudeck.views.csv import Value, write_csv

_LOOK = "It is an INI file with [common] and in it `user`, `hosts` and `key_filename`."
_KNOWN = ("user", "hosts", "key_filename")
_TITLES = ("", "load", "load_mem", "gpu_idx", "gpu_name", "gpu_uuid", "hostname", "username")
ZOMBIE = "Zombie"
"""Its word for a process without a known owner."""
DRAINED = "maintenance"
"""In place of a user, of an unused GPU that is drained."""


def read(file: Path, _: ImportContext) -> ImportPlan:
    """Raises UsageError for what is no config.ini."""
    content = read_small_file(file)
    common = _read_section(file, content)
    lines = _find_lines(content)
    plan = ImportPlan()
    user = common.get("user", "").strip()
    place = f"line {lines.get('hosts', 1)}"
    words = [(place, word) for word in common["hosts"].replace("\n", ",").split(",") if word.strip()]
    add_hosts(plan, words, "ssh", **({"user": user} if user else {}))
    for name in common:
        if name not in _KNOWN:
            plan.leave(f"line {lines.get(name, 1)}", f"{quote(name)} is no setting of web-gpu-monitor")
    plan.settings = _write_settings(common.get("key_filename", "").strip(), file)
    if plan.settings:
        plan.notes.append("The hub reads the key as the user that it runs as; restart it once the lines are there.")
    return plan


def _read_section(file: Path, content: bytes) -> dict[str, str]:
    # Percent signs mean themselves, and a key is what it is, in any case.
    parser = configparser.ConfigParser(interpolation=None, default_section="")
    try:
        parser.read_string(content.decode("utf-8-sig"))
    except (configparser.Error, UnicodeError) as error:
        line = getattr(error, "lineno", None)
        raise UsageError(f"{file}{f', line {line}' if line else ''}: this is no config.ini.", _LOOK) from error
    if not parser.has_section("common") or not parser.get("common", "hosts", fallback="").strip():
        raise UsageError(f"{file} has no hosts in [common]: it is no config.ini of web-gpu-monitor.", _LOOK)
    return dict(parser["common"])


def _find_lines(content: bytes) -> dict[str, int]:
    lines: dict[str, int] = {}
    for number, line in enumerate(content.decode("utf-8-sig", errors="replace").splitlines(), 1):
        name = line.replace(":", "=").partition("=")[0].strip().lower()
        lines.setdefault(name, number)
    return lines


def _write_settings(key: str, file: Path) -> str:
    """A relative path began where its scripts were run, which is the folder of the file."""
    if not key:
        return ""
    path = key if key.startswith("~") else str(file.absolute().parent / key)
    return yaml.safe_dump({"ssh": {"key_files": [path]}}, sort_keys=False, allow_unicode=True)


def write_load_data(fleet: Fleet) -> str:
    """The file's text, with a line break after each line. What is unknown is empty."""
    rows = (_row(number, gpu, host) for host in fleet.hosts for number, gpu in enumerate(_boards(host)))
    return write_csv([_TITLES, *rows], line_end="\n")


def _boards(host: Host) -> list[Gpu]:
    if host.status != "up":
        return []
    return [gpu for gpu in host.gpus if gpu.parent is None and gpu.availability != "unknown"]


def _row(number: int, gpu: Gpu, host: Host) -> list[Value]:
    return [
        number,
        round_known(gpu.utilization_percent),
        round_known(gpu.memory_utilization_percent),
        gpu.index,
        f" {gpu.name}",
        f" {gpu.uuid}",
        host.name,
        ", ".join(_users(gpu)),
    ]


def _users(gpu: Gpu) -> list[str]:
    """One for each process, as there. One without a known user counts too: a GPU in use is not free, nor is a drained
    one."""
    names = [process.user or ZOMBIE for process in gpu.processes or () if not process.display]
    if not names and gpu.availability in {"busy", "idle"} and gpu.processes is None:
        names = [ZOMBIE]
    if not names and gpu.availability == "drained":
        names = [DRAINED]
    return names + [user for user in gpu.users if user not in names]
