"""A program that draws the desktop is told as one, whichever monitor lists it."""

from collections.abc import Callable

import pytest

from gpudeck.compat import gpu_cluster_status
from gpudeck.compat.readings import describe_process
from gpudeck.compat.vesta import store as ingest
from gpudeck.model.report import Process


def of_gpu_cluster_status(command: str) -> Process:
    (process,) = gpu_cluster_status.read_processes([{"pid": 1, "command": command}], 1)
    assert isinstance(process, Process)
    return process


def of_vesta(command: str) -> Process:
    (process,) = ingest.read_processes([{"pid": "1", "name": command}], 1)
    assert isinstance(process, Process)
    return process


def of_gpumonitor_and_gpu_monitor(command: str) -> Process:
    return describe_process(pid=1, user="root", name=command, memory=1, started_at=0.0, who="x")


@pytest.mark.parametrize("read", [of_gpu_cluster_status, of_vesta, of_gpumonitor_and_gpu_monitor])
@pytest.mark.parametrize(
    ("command", "is_display"),
    [
        ("/usr/bin/X", True),
        ("/usr/lib/xorg/Xorg -core :0 -auth /run/lightdm/root/:0", True),
        ("Xorg", True),
        ("python /usr/bin/X", False),
        ("/usr/bin/X11", False),
        ("", False),
    ],
)
def test_display_server_is_known_by_its_program(read: Callable[[str], Process], command: str, is_display: bool) -> None:
    assert read(command).display == is_display
