"""Groups as each runtime writes them, on cgroup v1, v2 and both."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudeck.collectors.containers import Placement, parse_placement

CAPTURES = Path(__file__).parent.parent / "captures" / "cgroup"
ID = "9c38b7f4a9ab5fe0e6ad3a0b0d8a1f0c9c38b7f4a9ab5fe0e6ad3a0b0d8a1f0c"
OUTER = ID[::-1]
POD = "3f1c2d4e-5a6b-47c8-9d0e-1f2a3b4c5d6e"

EXPECTED = {
    "docker-v1-cgroupfs": Placement(container=ID),
    "docker-v1-systemd": Placement(container=ID),
    "docker-v2-cgroupfs": Placement(container=ID),
    "docker-v2-systemd": Placement(container=ID),
    "docker-v2-systemd-inside": Placement(container=ID),
    "docker-rootless-v2": Placement(container=ID, session_uid=1000),
    "podman-v1": Placement(container=ID),
    "podman-v2": Placement(container=ID),
    "podman-rootless-v2": Placement(container=ID, session_uid=1000),
    "podman-rootless-conmon": Placement(session_uid=1000),
    "podman-cgroupfs": Placement(container=ID),
    "containerd-nerdctl-v1": Placement(container=ID),
    "containerd-nerdctl-v2": Placement(container=ID),
    "kubernetes-containerd-v1-cgroupfs": Placement(container=ID, pod=POD),
    "kubernetes-containerd-v1-systemd": Placement(container=ID, pod=POD),
    "kubernetes-containerd-v2": Placement(container=ID, pod=POD),
    "kubernetes-guaranteed-v2": Placement(container=ID, pod=POD),
    "kubernetes-crio-v2": Placement(container=ID, pod=POD),
    "kubernetes-crio-conmon": Placement(pod=POD),
    "kubernetes-docker-in-pod-v1": Placement(container=ID, within=OUTER, pod=POD),
    "kubernetes-docker-in-pod-v2": Placement(container=ID, within=OUTER, pod=POD),
    "hybrid-docker": Placement(container=ID),
    "hybrid-slurm": Placement(job="8812", job_uid=1000),
    "slurm-v1": Placement(job="8812", job_uid=1000),
    "slurm-v1-named": Placement(job="8812", job_uid=1000),
    "slurm-v2": Placement(job="8812"),
    "slurm-v2-named": Placement(job="8812"),
    "slurm-v2-sluid": Placement(sluid="sEKNKTV3WPV500"),
    "lxc-v1": Placement(container="trainer"),
    "lxc-v2": Placement(container="trainer"),
    "docker-in-lxc-v2": Placement(container=ID, within="trainer"),
    "session-v2": Placement(session_uid=1000),
    "service-v2": Placement(),
    "root-v2": Placement(),
    "seen-from-a-container-v2": Placement(container=ID),
    "made-up-names-in-a-session-v2": Placement(session_uid=1000),
}


@pytest.mark.parametrize("capture", sorted(path.name for path in CAPTURES.iterdir()))
def test_groups_of_every_runtime_are_understood(capture: str) -> None:
    assert parse_placement((CAPTURES / capture).read_text()) == EXPECTED[capture]


def test_every_runtime_is_captured() -> None:
    assert {path.name for path in CAPTURES.iterdir()} == EXPECTED.keys()


@pytest.mark.parametrize("text", ["", "\n", "0:", "::", "0::", "x", "0::/docker/", "0::/lxc/", "1:name=systemd:"])
def test_groups_that_say_nothing_place_nothing(text: str) -> None:
    assert parse_placement(text) == Placement()


@given(st.text("0:/.-_ abcdeflxcdockerpodslurmuidjob\n", max_size=300))
def test_no_groups_are_too_strange_to_read(text: str) -> None:
    assert isinstance(parse_placement(text), Placement)
