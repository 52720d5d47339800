"""What an open file of a GPU says about its client, whatever a driver writes into it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.drm_tree import put, put_link
from gpudeck.collectors.drm_clients import ClientSearch, DrmClient, EngineTime, find_kfd_memory, parse_client

HEAD = "drm-driver:\tamdgpu\ndrm-client-id:\t5\ndrm-pdev:\t0000:03:00.0\n"
ADDRESS = "0000:03:00.0"


def parse(text: str) -> DrmClient:
    client = parse_client(HEAD + text, 42, "42/7")
    assert client is not None
    return client


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("drm-memory-vram:\t2048 KiB", 2 * 2**20),
        ("drm-memory-vram:\t4096", 4096),
        ("drm-total-vram0:\t8 MiB\ndrm-resident-vram0:\t2 MiB", 2 * 2**20),
        ("drm-total-vram0:\t8 MiB\ndrm-memory-vram0:\t3 MiB", 3 * 2**20),
        ("drm-total-local0:\t8 MiB\ndrm-total-local1:\t1 GiB", 8 * 2**20 + 2**30),
        ("drm-resident-stolen-local0:\t8 MiB\ndrm-resident-local0:\t1 MiB", 2**20),
        ("drm-memory-vram:\t0", 0),
        ("drm-memory-gtt:\t2048 KiB\ndrm-shared-vram:\t1 MiB", None),
        ("drm-memory-vram:\tmany KiB", None),
        ("drm-memory-vram:\t-4 KiB", None),
        ("drm-memory-vram:\t4 furlongs", None),
        ("drm-memory-vram:", None),
        ("drm-memory-vram:\t9007199254740992", None),
        ("drm-resident-vram0:\t1 MiB\ndrm-resident-vram1:\t?", None),
    ],
)
def test_memory_is_what_lies_on_the_gpu_or_unknown(text: str, memory: int | None) -> None:
    assert parse(text).memory_bytes == memory


def test_engines_count_nanoseconds_or_cycles() -> None:
    text = "drm-engine-gfx:\t5 ns\ndrm-engine-video:\t7 ns\ndrm-engine-capacity-video:\t2\n"
    assert parse(text).engines == {"gfx": EngineTime(5), "video": EngineTime(7, None, 2)}
    text = "drm-cycles-ccs:\t3\ndrm-total-cycles-ccs:\t9\ndrm-engine-capacity-ccs:\t4\n"
    assert parse(text).engines == {"ccs": EngineTime(3, 9, 4)}


@pytest.mark.parametrize(
    "text", ["drm-engine-gfx:\tsoon", "drm-cycles-ccs:\t3", "drm-cycles-ccs:\t3\ndrm-total-cycles-ccs:\tx"]
)
def test_engine_without_a_usable_time_is_left_out(text: str) -> None:
    assert parse(text).engines == {}


@pytest.mark.parametrize(
    "text", ["", "pos:\t0\nflags:\t02", "drm-driver:\tvirtio_gpu\ndrm-client-id:\t3", "drm-pdev:\t1"]
)
def test_other_files_are_no_clients(text: str) -> None:
    assert parse_client(text, 42, "42/7") is None


def test_driver_without_client_ids_gets_one_by_open_file() -> None:
    client = parse_client("drm-driver:\tamdgpu\ndrm-pdev:\t0000:03:00.0\n", 42, "42/7")
    assert client is not None
    assert client.key == "42/7"


@given(st.text())
def test_whatever_a_driver_writes_is_parsed_without_failing(text: str) -> None:
    client = parse_client(HEAD + text, 42, "42/7")
    assert client is None or client.memory_bytes is None or client.memory_bytes >= 0


def test_ids_of_two_cards_may_be_the_same(tmp_path: Path) -> None:
    for number, address in ((7, ADDRESS), (8, "0000:04:00.0")):
        put_link(tmp_path / f"42/fd/{number}", f"/dev/dri/renderD12{number}")
        put(tmp_path / f"42/fdinfo/{number}", f"drm-driver: amdgpu\\ndrm-client-id: 5\\ndrm-pdev: {address}")
    clients = ClientSearch(str(tmp_path)).find(0.0, {}, {})
    assert sorted(client.address for client in clients.found.values()) == [ADDRESS, "0000:04:00.0"]


def test_files_of_other_devices_are_not_opened(tmp_path: Path) -> None:
    put_link(tmp_path / "42/fd/7", "/dev/null")
    put(tmp_path / "42/fdinfo/7", HEAD)
    assert ClientSearch(str(tmp_path)).find(0.0, {}, {}).found == {}


def test_number_of_a_closed_file_that_is_used_again_is_no_client(tmp_path: Path) -> None:
    put_link(tmp_path / "42/fd/6", "/dev/dri/renderD128")
    put(tmp_path / "42/fdinfo/6", HEAD)
    search = ClientSearch(str(tmp_path))
    assert len(search.find(0.0, {}, {"renderD128": ADDRESS}).found) == 1
    put_link(tmp_path / "42/fd/6", "/home/alice/notes.txt")
    put(tmp_path / "42/fdinfo/6", "pos: 0")
    later = search.find(1.0, {}, {"renderD128": ADDRESS})
    assert (later.found, later.mute) == ({}, frozenset())


def test_partitions_of_a_board_are_added_up(tmp_path: Path) -> None:
    nodes, proc = tmp_path / "class/kfd/kfd/topology/nodes", tmp_path / "class/kfd/kfd/proc"
    for node, location in ((1, 0x0500), (2, 0x1000_0500), (3, 0x2600)):
        put(nodes / f"{node}/gpu_id", f"77{node}")
        put(nodes / f"{node}/properties", f"location_id {location}\\ndomain 1")
        put(proc / f"42/vram_77{node}", str(node * 100))
    assert find_kfd_memory(str(tmp_path)) == {"0001:05:00.0": {42: 300}, "0001:26:00.0": {42: 300}}


def test_machine_without_rocm_has_no_such_processes(tmp_path: Path) -> None:
    assert find_kfd_memory(str(tmp_path)) == {}
