"""Imports web-gpu-monitor's config.ini: its hosts are read over SSH, as before. Its SSH key becomes a setting,
because hosts that are added over the network cannot name files of the hub."""

import configparser
from pathlib import Path

from gpudeck.compat.importing import ImportContext, ImportPlan, add_hosts, read_small_file, write_yaml
from gpudeck.compat.readings import round_known
from gpudeck.discovery.host_names import quote
from gpudeck.model.errors import UsageError
from gpudeck.model.view import Fleet, Gpu
from gpudeck.views.csv import Value, write_csv

_LOOK = "It is an INI file with [common] and in it `user`, `hosts` and `key_filename`."
_KNOWN = ("user", "hosts", "key_filename")
_TITLES = ("", "load", "load_mem", "gpu_idx", "gpu_name", "gpu_uuid", "hostname", "username")
ZOMBIE = "Zombie"
"""Its word for a process without a known owner."""
DRAINED = "maintenance"
"""In place of a user, for an unused GPU that is drained."""


def read(file: Path, _: ImportContext) -> ImportPlan:
    """Raises UsageError for a file that is no config.ini."""
    content = read_small_file(file)
    common, plan = _read_section(file, content), ImportPlan()
    user, key = common.get("user", "").strip(), common.get("key_filename", "").strip()
    words = [("hosts", word) for word in common["hosts"].replace("\n", ",").split(",") if word.strip()]
    add_hosts(plan, words, "ssh", **({"user": user} if user else {}))
    for name in common:
        if name not in _KNOWN:
            plan.leave("[common]", f"{quote(name)} is no setting of web-gpu-monitor")
    if key:
        # A relative path began where its scripts were run, which is the folder of the file.
        path = key if key.startswith("~") else str(file.absolute().parent / key)
        plan.settings = write_yaml({"ssh": {"key_files": [path]}})
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


def write_load_data(fleet: Fleet) -> str:
    """The file's text, with a line break after each line. Unknown values are empty."""
    rows: list[list[Value]] = [list(_TITLES)]
    for host in fleet.hosts:
        boards = [gpu for gpu in host.gpus if gpu.parent is None and gpu.availability != "unknown"]
        for number, gpu in enumerate(boards if host.status == "up" else []):
            load, memory = round_known(gpu.utilization_percent), round_known(gpu.memory_utilization_percent)
            place: list[Value] = [gpu.index, f" {gpu.name}", f" {gpu.uuid}", host.name]
            rows.append([number, load, memory, *place, ", ".join(_users(gpu))])
    return write_csv(rows, line_end="\n")


def _users(gpu: Gpu) -> list[str]:
    """One for each process, as there. A process without a known user counts too: neither a GPU in use nor a drained one
    is free."""
    names = [process.user or ZOMBIE for process in gpu.processes or () if not process.display]
    if not names and gpu.availability in {"busy", "idle"} and gpu.processes is None:
        names = [ZOMBIE]
    if not names and gpu.availability == "drained":
        names = [DRAINED]
    return names + [user for user in gpu.users if user not in names]
