"""web-gpu-monitor's load_data.csv, for scripts that read it: a line a GPU, in its columns and its manner.

It numbers the lines of each host from 0, writes a space before the texts of nvidia-smi, and joins the users of a GPU by
", "; a GPU without any has an empty field, and is free. A host that cannot be read has no line, as there.
"""

from gpudeck.model.view import Fleet, Gpu, Host
from gpudeck.views.csv import Value, write_csv

_TITLES = ("", "load", "load_mem", "gpu_idx", "gpu_name", "gpu_uuid", "hostname", "username")
ZOMBIE = "Zombie"
"""Its word for a process whose owner nobody could find."""


def write_load_data(fleet: Fleet) -> str:
    """The file's text, with a line break after each line. What is unknown is empty."""
    rows = (_row(number, gpu, host) for host in fleet.hosts for number, gpu in enumerate(_boards(host)))
    return write_csv([_TITLES, *rows], line_end="\n")


def _boards(host: Host) -> list[Gpu]:
    """nvidia-smi lists no MIG instances; what cannot be read at all has no line, and a silent host has none."""
    if host.status != "up":
        return []
    return [gpu for gpu in host.gpus if gpu.parent is None and gpu.availability != "unknown"]


def _row(number: int, gpu: Gpu, host: Host) -> list[Value]:
    return [
        number,
        _whole(gpu.utilization_percent),
        _whole(gpu.memory_utilization_percent),
        gpu.index,
        f" {gpu.name}",
        f" {gpu.uuid}",
        host.name,
        ", ".join(_users(gpu)),
    ]


def _users(gpu: Gpu) -> list[str]:
    """One for each process, as there. Whom nobody could name is there all the same: a GPU in use is not free."""
    names = [process.user or ZOMBIE for process in gpu.processes or () if not process.display]
    if not names and gpu.availability in {"busy", "held"} and gpu.processes is None:
        names = [ZOMBIE]
    return names + [user for user in gpu.users if user not in names]


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
