"""The host's figures, from a file system that a test lays out."""

import os
from pathlib import Path

import pytest

from gpudeck.collectors.host import (
    RATES,
    HostCollector,
    HostFiles,
    boot_id,
    find_container,
    host_name,
    machine_id,
    read_os_name,
)
from gpudeck.model.catalog import HOST_METRICS
from gpudeck.model.errors import Absent

MIB = 1024 * 1024
MACHINE_ID = "0123456789abcdef0123456789abcdef"
MEMINFO = """\
MemTotal: 8388608 kB
MemFree: 1024 kB
MemAvailable: 6291456 kB
SwapTotal: 4194304 kB
SwapFree: 3145728 kB
"""


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def write_cpu(root: Path, *, busy: int, idle: int) -> None:
    write(root, "proc/stat", f"cpu  {busy} 0 0 {idle} 0 0 0 0 999 999\ncpu0 0 0\ncpu1 0 0\nbtime 1700000000\n")


def write_network(root: Path, received: int, sent: int) -> None:
    head = "Inter-|   Receive\n face |bytes packets\n"
    write(root, "proc/self/net/dev", f"{head}  eth0: {received} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0 0 0\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_cpu(tmp_path, busy=100, idle=900)
    write_network(tmp_path, received=1_000_000, sent=5_000)
    write(tmp_path, "proc/loadavg", "1.25 0.80 0.70 2/345 6789\n")
    write(tmp_path, "proc/meminfo", MEMINFO)
    write(tmp_path, "proc/uptime", "7210.55 100.00\n")
    write(tmp_path, "proc/sys/kernel/random/boot_id", "b0071d\n")
    write(tmp_path, "etc/os-release", 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n')
    write(tmp_path, "etc/machine-id", MACHINE_ID + "\n")
    return tmp_path


def test_every_host_metric_of_the_catalog_is_known_or_unknown_with_a_reason(root: Path) -> None:
    report = HostCollector(root).collect(0.0)
    assert report.metrics.keys() | report.unknown.keys() == HOST_METRICS.keys()
    assert not report.metrics.keys() & report.unknown.keys()


def test_figures_come_in_the_units_of_the_catalog(root: Path) -> None:
    report = HostCollector(root).collect(0.0)
    assert report.metrics["cpu_count"] == 2
    assert report.metrics["load_1m"] == 1.25
    assert report.metrics["memory_used_bytes"] == 2 * 1024 * MIB
    assert report.metrics["memory_total_bytes"] == 8 * 1024 * MIB
    assert report.metrics["swap_used_bytes"] == 1024 * MIB
    assert report.metrics["swap_total_bytes"] == 4 * 1024 * MIB
    assert report.metrics["uptime_seconds"] == 7200
    assert report.os == "Debian GNU/Linux 12 (bookworm)"


def test_disk_is_the_root_file_system(root: Path) -> None:
    report = HostCollector(root).collect(0.0)
    disk = os.statvfs(root)
    assert report.metrics["disk_total_bytes"] == pytest.approx(disk.f_blocks * disk.f_frsize, abs=MIB)
    assert 0 < report.metrics["disk_used_bytes"] <= report.metrics["disk_total_bytes"]


def test_cpu_percentage_needs_two_readings(root: Path) -> None:
    collector = HostCollector(root)
    assert collector.collect(0.0).unknown["cpu_percent"] == "needs two readings"
    write_cpu(root, busy=130, idle=970)
    assert collector.collect(1.0).metrics["cpu_percent"] == 30.0


def test_cpu_percentage_is_unknown_when_no_time_has_passed(root: Path) -> None:
    collector = HostCollector(root)
    collector.collect(0.0)
    assert "cpu_percent" not in collector.collect(0.0).metrics


@pytest.mark.parametrize(
    ("path", "text", "names"),
    [
        ("proc/meminfo", "SwapTotal: 0 kB\nSwapFree: 0 kB\n", {"memory_used_bytes", "memory_total_bytes"}),
        ("proc/meminfo", "MemTotal: 8 kB\nMemAvailable: 4 kB\n", {"swap_used_bytes", "swap_total_bytes"}),
        ("proc/self/net/dev", "head\nhead\n eth0: x\n", set(RATES)),
        ("proc/loadavg", "", {"load_1m"}),
        ("proc/uptime", "soon", {"uptime_seconds"}),
        ("proc/stat", "cpu x\n", {"cpu_percent", "cpu_count"}),
    ],
)
def test_file_that_cannot_be_understood_leaves_the_others_alone(
    root: Path, path: str, text: str, names: set[str]
) -> None:
    collector = HostCollector(root)
    collector.collect(0.0)
    write_cpu(root, busy=130, idle=970)
    write(root, path, text)
    report = collector.collect(1.0)
    assert report.unknown.keys() == names
    assert report.metrics.keys() == HOST_METRICS.keys() - names


def test_machine_without_swap_has_none_of_it_which_is_known(root: Path) -> None:
    write(root, "proc/meminfo", "MemTotal: 8 kB\nMemAvailable: 4 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n")
    report = HostCollector(root).collect(0.0)
    assert (report.metrics["swap_used_bytes"], report.metrics["swap_total_bytes"]) == (0, 0)


def test_network_rates_need_two_readings(root: Path) -> None:
    collector = HostCollector(root)
    first = collector.collect(0.0)
    assert {first.unknown[name] for name in RATES} == {"needs two readings"}
    write_network(root, received=5_000_000, sent=25_000)
    second = collector.collect(2.0)
    assert [second.metrics[name] for name in RATES] == [2_000_000, 10_000]


def test_data_disks_are_in_the_report(root: Path) -> None:
    write(root, "proc/self/mountinfo", "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 8:2 / /data rw - xfs /dev/b rw\n")
    (root / "data").mkdir()
    report = HostCollector(root).collect(0.0)
    assert [disk.mount for disk in report.disks] == ["/data"]
    assert report.problems == []


def test_addresses_are_looked_up_again_after_a_while(root: Path) -> None:
    collector = HostCollector(root)
    write(root, "proc/self/net/if_inet6", "fd000000000000000000000000000001 04 40 00 82 eth0\n")
    first = collector.collect(0.0)
    assert (first.addresses, first.interfaces) == (["fd00::1"], {"fd00::1": "eth0"})
    write(root, "proc/self/net/if_inet6", "fd000000000000000000000000000002 04 40 00 82 eth0\n")
    assert collector.collect(1.0).addresses == ["fd00::1"]
    assert collector.collect(61.0).addresses == ["fd00::2"]


def test_missing_file_is_named_in_the_reason(root: Path) -> None:
    (root / "proc/loadavg").unlink()
    assert HostCollector(root).collect(0.0).unknown["load_1m"].endswith("proc/loadavg: No such file or directory")


def test_machine_without_proc_has_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(Absent):
        HostCollector(tmp_path).collect(0.0)


def test_container_reports_the_hosts_kernel_figures_but_not_its_own_disk_as_the_hosts(root: Path) -> None:
    write(root, ".dockerenv", "")
    report = HostCollector(root).collect(0.0)
    assert report.labels == {"container": "docker"}
    assert report.metrics["cpu_count"] == 2
    assert "container" in report.unknown["disk_total_bytes"]


@pytest.mark.parametrize(
    ("path", "text", "kind"),
    [
        (".dockerenv", "", "docker"),
        ("run/.containerenv", "", "podman"),
        ("run/systemd/container", "lxc\n", "lxc"),
        ("proc/1/cgroup", "12:cpu:/kubepods/burstable/pod1/2\n", "kubepods"),
        ("proc/1/cgroup", "0::/system.slice/docker-0123.scope\n", "docker"),
        ("proc/1/cgroup", "0::/init.scope\n", None),
    ],
)
def test_containers_are_recognised(root: Path, path: str, text: str, kind: str | None) -> None:
    write(root, path, text)
    assert find_container(HostFiles(root)) == kind


def set_namespaces(root: Path, of: str, **links: str) -> None:
    (root / "proc" / of / "ns").mkdir(parents=True)
    for name, link in links.items():
        (root / "proc" / of / "ns" / name).symlink_to(link)


def test_virtual_machine_made_from_a_containers_image_is_no_container(root: Path) -> None:
    write(root, ".dockerenv", "")
    set_namespaces(root, "1", mnt="mnt:[7]")
    set_namespaces(root, "self", mnt="mnt:[7]", pid="pid:[4026531836]")
    assert find_container(HostFiles(root)) is None


def test_first_namespaces_are_known_where_process_1_may_not_be_looked_at(root: Path) -> None:
    write(root, ".dockerenv", "")
    set_namespaces(root, "self", mnt="mnt:[4026531832]", pid="pid:[4026531836]")
    assert find_container(HostFiles(root)) is None


def test_container_in_the_hosts_pid_namespace_is_a_container(root: Path) -> None:
    write(root, ".dockerenv", "")
    set_namespaces(root, "1", mnt="mnt:[7]")
    set_namespaces(root, "self", mnt="mnt:[8]", pid="pid:[4026531836]")
    assert find_container(HostFiles(root)) == "docker"


def test_container_with_its_own_pid_namespace_is_a_container(root: Path) -> None:
    write(root, ".dockerenv", "")
    set_namespaces(root, "1", mnt="mnt:[8]")
    set_namespaces(root, "self", mnt="mnt:[8]", pid="pid:[4026532000]")
    assert find_container(HostFiles(root)) == "docker"


def test_machine_id_is_stable_and_does_not_show_the_confidential_one(root: Path) -> None:
    assert machine_id(HostFiles(root)) == machine_id(HostFiles(root)) != MACHINE_ID
    assert len(machine_id(HostFiles(root))) == 32


def test_machines_have_different_ids(root: Path) -> None:
    first = machine_id(HostFiles(root))
    write(root, "etc/machine-id", MACHINE_ID[::-1])
    assert machine_id(HostFiles(root)) != first


@pytest.mark.parametrize("text", ["", "uninitialized\n"])
def test_machine_id_that_was_never_made_is_empty(root: Path, text: str) -> None:
    write(root, "etc/machine-id", text)
    assert machine_id(HostFiles(root)) == ""


def test_container_has_no_machine_id_because_its_image_shares_it(root: Path) -> None:
    write(root, ".dockerenv", "")
    assert machine_id(HostFiles(root)) == ""


def test_boot_id_is_the_kernels_or_else_its_time_of_boot(root: Path) -> None:
    assert boot_id(HostFiles(root)) == "b0071d"
    (root / "proc/sys/kernel/random/boot_id").unlink()
    assert boot_id(HostFiles(root)) == "booted-1700000000"


@pytest.mark.parametrize(
    ("node", "name"), [("gpu01.lab", "gpu01.lab"), ("my host!", "my-host"), ("-x_", "x"), ("", "unnamed")]
)
def test_host_name_fits_into_a_report(node: str, name: str) -> None:
    assert host_name(node) == name


def test_os_name_is_unknown_where_no_file_says(tmp_path: Path) -> None:
    assert read_os_name(HostFiles(tmp_path)) is None


def test_this_machine_can_be_read() -> None:
    report = HostCollector().collect(0.0)
    assert report.metrics["cpu_count"] >= 1
    assert report.metrics["memory_total_bytes"] > 0
