"""Nothing of another monitor is served that the settings do not name, and no secret has a default."""

from pathlib import Path

import pytest

from gpudeck.app.plan import DEMO_HOSTS, make_plan
from gpudeck.compat.settings import GpuClusterStatusSettings, VestaSettings
from gpudeck.model.errors import ConfigurationError
from gpudeck.settings import Settings, load_settings


def load(folder: Path, text: str) -> Settings:
    file = folder / "gpudeck.yaml"
    file.write_text(text)
    return load_settings(file)[0]


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("compat: {vesta: {}}", "compat.vesta.token: missing, expected the token that the senders bring"),
        ('compat: {vesta: {token: ""}}', "compat.vesta.token"),
        ("compat: {gpu_cluster_status: {}}", "compat.gpu_cluster_status.password: missing, expected the password"),
        ("hosts: [{name: a, via: gpu-cluster-status}]", "gpu_cluster_status: {password:"),
        (
            "discovery: {hosts_files: [{path: hosts.txt, via: gpu-cluster-status}]}",
            ":1: discovery: hosts or discovery name nodes via gpu-cluster-status, and nothing says with which password",
        ),
        (
            "read: open\nhosts: [{name: a, via: gpu-cluster-status}]",
            ":2: hosts: hosts or discovery name nodes via gpu-cluster-status",
        ),
        ('compat: {vesta: {token: "x", read_from: [lan]}}', "'lan' is no network"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, text: str, mistake: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        load(tmp_path, text)
    assert mistake in str(raised.value)


def test_a_secret_that_is_no_text_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as raised:
        load(tmp_path, "compat: {vesta: {token: 48151623}, gpu_cluster_status: {password: [hunter2]}}")
    assert "48151623" not in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_secrets_are_not_in_a_trace() -> None:
    assert "s3cret" not in repr(VestaSettings(token="s3cret"))
    assert "s3cret" not in repr(GpuClusterStatusSettings(password="s3cret"))


def test_all_of_it_is_off_by_default(tmp_path: Path) -> None:
    compat = load(tmp_path, "demo: never").compat
    assert (compat.vesta, compat.gpu_cluster_status) == (None, None)


def test_the_site_decides_which_token_it_takes(tmp_path: Path) -> None:
    vesta = load(tmp_path, 'compat: {vesta: {token: "0000"}}').compat.vesta
    assert vesta is not None
    assert vesta.token == "0000"


@pytest.mark.parametrize("named", ['vesta: {token: "x"}', 'gpu_cluster_status: {password: "x"}', "gpumonitor: {}"])
def test_whoever_had_another_monitor_is_shown_no_simulated_hosts(tmp_path: Path, named: str) -> None:
    assert make_plan(load(tmp_path, f"compat: {{{named}}}"), None, lambda: False).demo_hosts is None
    assert make_plan(load(tmp_path, "compat: {}"), None, lambda: False).demo_hosts == DEMO_HOSTS


def test_a_hub_that_reads_slurm_shows_no_simulated_hosts(tmp_path: Path) -> None:
    assert make_plan(load(tmp_path, "schedulers: {slurm: [{}]}"), None, lambda: False).demo_hosts is None
