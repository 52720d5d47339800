"""Data disks, from mount tables as real machines have them, and one that hangs."""

import threading
from pathlib import Path

import pytest
from msgspec import Struct

from gpudeck.collectors.host import Disks, find_data_mounts
from gpudeck.model.report import Disk

CAPTURES = Path(__file__).parent.parent / "captures" / "mountinfo"
ROOT = "1 0 8:1 / / rw - ext4 /dev/a rw\n"


class Size(Struct):
    f_blocks: int = 100
    f_bfree: int = 25
    f_frsize: int = 4096


def mount(device: str, point: str, kind: str = "xfs", inside: str = "/") -> str:
    return f"30 1 {device} {inside} {point} rw,relatime shared:7 master:1 - {kind} source rw\n"


@pytest.mark.parametrize(
    ("capture", "points"),
    [
        ("gpu-server", ["/data", "/home", "/scratch space", "/software"]),
        ("container", ["/workspace"]),
        ("btrfs-root", []),
    ],
)
def test_data_lies_where_people_put_it(capture: str, points: list[str]) -> None:
    assert find_data_mounts((CAPTURES / capture).read_text()) == points


def test_file_system_that_is_mounted_twice_is_listed_once_by_its_shortest_path() -> None:
    assert find_data_mounts(ROOT + mount("8:2", "/srv/data/jobs") + mount("8:2", "/data")) == ["/data"]


def test_whole_file_system_is_preferred_to_one_of_its_folders() -> None:
    assert find_data_mounts(ROOT + mount("8:2", "/d", inside="/jobs") + mount("8:2", "/srv/data")) == ["/srv/data"]


def test_file_system_that_is_covered_by_another_is_not_listed() -> None:
    assert find_data_mounts(ROOT + mount("8:2", "/data") + mount("0:9", "/data", "tmpfs")) == []


def test_lines_that_are_none_and_names_for_no_screen_are_left_out() -> None:
    assert find_data_mounts("\nnonsense\n1 2 - x\n" + mount("8:2", "/a\\033b") + mount("8:3", "/b")) == ["/b"]


def test_there_are_sixteen_at_most() -> None:
    assert len(find_data_mounts("".join(mount(f"8:{n}", f"/data{n}") for n in range(40)))) == 16


def make(tmp_path: Path, *points: str, **options: object) -> Disks:
    table = tmp_path / "mountinfo"
    table.write_text("".join(mount(f"8:{n}", point) for n, point in enumerate(points)))
    return Disks(table, tmp_path, **options)  # type: ignore[arg-type]


def test_sizes_are_in_bytes(tmp_path: Path) -> None:
    disks = make(tmp_path, "/data", statvfs=lambda _: Size())
    assert disks.read(0.0) == ([Disk("/data", 75 * 4096, 100 * 4096)], [])


def test_disks_are_measured_again_after_a_while(tmp_path: Path) -> None:
    size = Size()
    disks = make(tmp_path, "/data", statvfs=lambda _: size)
    disks.read(0.0)
    size.f_bfree = 0
    assert disks.read(29.0)[0][0].used_bytes == 75 * 4096
    assert disks.read(30.0)[0][0].used_bytes == 100 * 4096


def test_real_folder_has_a_real_size(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    [disk], problems = make(tmp_path, "/data").read(0.0)
    assert 0 < disk.used_bytes <= disk.total_bytes
    assert problems == []


def test_dead_server_hides_no_other_disk_and_is_asked_again_only_after_it_answered(tmp_path: Path) -> None:
    answer, asked = threading.Event(), []

    def statvfs(path: str) -> Size:
        asked.append(path)
        ways[path]()
        return Size()

    ways = {f"{tmp_path}/data": lambda: None, f"{tmp_path}/dead": lambda: answer.wait(60)}
    disks = make(tmp_path, "/data", "/dead", statvfs=statvfs, deadline=1.0)
    for now in (0.0, 30.0):
        found, problems = disks.read(now)
        assert [disk.mount for disk in found] == ["/data"]
        assert problems == ["The file system at /dead does not answer."]
    assert asked.count(f"{tmp_path}/dead") == 1
    answer.set()
    for thread in [thread for thread in threading.enumerate() if thread.name == "disk /dead"]:
        thread.join(60)
    found, problems = disks.read(60.0)
    assert [disk.mount for disk in found] == ["/data", "/dead"]
    assert problems == []


def test_machine_without_threads_to_spare_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert make(tmp_path, "/data").read(0.0) == ([], ["The file system at /data does not answer."])


def test_disk_that_may_not_be_asked_is_left_out(tmp_path: Path) -> None:
    assert make(tmp_path, "/data").read(0.0) == ([], [])


@pytest.mark.parametrize("size", [Size(f_blocks=0), Size(f_blocks=2**60), Size(f_bfree=101)])
def test_size_that_is_none_is_left_out(tmp_path: Path, size: Size) -> None:
    assert make(tmp_path, "/data", statvfs=lambda _: size).read(0.0) == ([], [])


def test_machine_without_a_mount_table_has_no_data_disks(tmp_path: Path) -> None:
    assert Disks(tmp_path / "mountinfo").read(0.0) == ([], [])
