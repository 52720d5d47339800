"""Boards in MIG mode, over the real pynvml and a fake driver."""

from pathlib import Path

import pytest

from fakes.nvml.driver import GIB, NO_COMPILER, FakeGpu, find_compiler, make_instance
from fakes.nvml.station import Station, an_h200, processes_of
from gpudeck.collectors.base import UNSUPPORTED, WHOLE_BOARD
from gpudeck.collectors.nvml_board import UNDER_MIG
from gpudeck.model.catalog import GPU_METRICS

pytestmark = pytest.mark.skipif(find_compiler() is None, reason=NO_COMPILER)


@pytest.fixture
def station(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Station:
    return Station(tmp_path, monkeypatch)


def a_mig_board(*instances: tuple[int, FakeGpu]) -> FakeGpu:
    """A board as MIG leaves it: without utilization of its own. By default two instances with a gap between them."""
    board = an_h200("GPU-a", gpm=0, without=["utilization", "memory_utilization", "encoder", "decoder"])
    usual = ((0, make_instance("MIG-0", 1, memory_total=70 * GIB, memory_used=GIB)), (2, make_instance("MIG-2", 9)))
    board.instances = dict(instances or usual)
    return board


def test_board_in_mig_mode_is_reported_as_its_instances(station: Station) -> None:
    station.put_in(an_h200("GPU-0"), a_mig_board())
    assert [(gpu.uuid, gpu.index, gpu.parent, gpu.instance) for gpu in station.read().values()] == [
        ("GPU-0", 0, None, None),
        ("MIG-0", 1, "GPU-a", 0),
        ("MIG-2", 1, "GPU-a", 2),
    ]


@pytest.mark.parametrize("word", ["not_found", "invalid_argument"])
def test_slots_that_hold_nothing_are_skipped(station: Station, word: str) -> None:
    broken = make_instance("MIG-1", 5)
    broken.failures["nvmlDeviceGetUUID"] = word
    station.put_in(a_mig_board((1, broken), (6, make_instance("MIG-6", 9))))
    assert list(station.read()) == ["MIG-6"]


def test_instance_has_its_own_memory_the_boards_temperature_and_no_utilization(station: Station) -> None:
    station.put_in(a_mig_board())
    gpu = station.read()["MIG-2"]
    assert gpu.metrics["memory_used_bytes"] == 2 * GIB
    assert gpu.metrics["temperature_celsius"] == 53
    assert gpu.unknown["utilization_percent"] == UNSUPPORTED
    assert gpu.unknown["power_watts"] == WHOLE_BOARD
    assert gpu.metrics.keys() | gpu.unknown.keys() == GPU_METRICS.keys()
    assert not gpu.metrics.keys() & gpu.unknown.keys()
    assert gpu.idle_seconds is None


def test_load_of_the_whole_board_is_not_shown_as_an_instances(station: Station) -> None:
    board = an_h200("GPU-a", gpm=0)
    board.instances = {0: make_instance("MIG-0")}
    station.put_in(board)
    unknown = station.read()["MIG-0"].unknown
    assert {unknown[name] for name in ("utilization_percent", "encoder_percent", "energy_joules")} == {WHOLE_BOARD}


def test_memory_shared_by_compute_instances_is_counted_once(station: Station) -> None:
    station.put_in(a_mig_board((0, make_instance("MIG-0", 4)), (1, make_instance("MIG-1", 4))))
    seen = station.read()
    assert "memory_total_bytes" in seen["MIG-0"].metrics
    assert seen["MIG-1"].unknown["memory_total_bytes"] == "shared with instance 0, counted there"


def test_board_in_mig_mode_without_instances_does_not_claim_an_empty_process_list(station: Station) -> None:
    board = a_mig_board()
    board.instances = {}
    gpu = station.read_one(board)
    assert (gpu.uuid, gpu.processes) == ("GPU-a", None)


def test_processes_are_those_of_their_instance_and_their_utilization_is_unknown(station: Station) -> None:
    first, second = make_instance("MIG-0", 1), make_instance("MIG-1", 2)
    first.compute, second.compute = [(1, GIB)], [(2, GIB)]
    station.put_in(a_mig_board((0, first), (1, second)))
    seen = station.read()
    assert [list(processes_of(gpu)) for gpu in seen.values()] == [[1], [2]]
    assert processes_of(seen["MIG-0"])[1].reasons == {"utilization_percent": UNDER_MIG}
    assert "nvmlDeviceGetProcessUtilization" not in station.driver.calls


def test_destroyed_instance_goes_at_once_and_its_board_is_not_missing(station: Station) -> None:
    station.put_in(a_mig_board())
    station.report(0.0)
    station.put_in(a_mig_board((2, make_instance("MIG-2", 9))))
    assert list(station.read(1.0)) == ["MIG-2"]


def test_board_whose_instances_were_all_destroyed_is_still_there(station: Station) -> None:
    station.put_in(a_mig_board())
    station.report(0.0)
    board = a_mig_board()
    board.instances = {}
    station.put_in(board)
    assert list(station.read(1.0)) == ["GPU-a"]


def test_new_instance_is_found_on_the_next_slow_reading(station: Station) -> None:
    station.put_in(a_mig_board((0, make_instance("MIG-0", 1))))
    station.report(0.0)
    station.put_in(a_mig_board())
    assert [list(station.read(now)) for now in (5.0, 10.0)] == [["MIG-0"], ["MIG-0", "MIG-2"]]


def test_board_that_leaves_mig_mode_is_one_gpu_again(station: Station) -> None:
    station.put_in(a_mig_board())
    station.report(0.0)
    station.put_in(an_h200("GPU-a"))
    station.report(10.0)
    assert list(station.read(20.0)) == ["GPU-a"]


def test_lost_board_in_mig_mode_is_missing(station: Station) -> None:
    board = a_mig_board()
    station.put_in(board)
    station.report(0.0)
    board.failures["*"] = "lost"
    station.driver.apply()
    (gpu,) = station.read(1.0).values()
    assert (gpu.uuid, gpu.missing is None) == ("GPU-a", False)


def test_board_that_is_lost_while_its_instances_are_read_is_missing(station: Station) -> None:
    station.put_in(a_mig_board())
    station.report(0.0)
    lost = make_instance("MIG-0", 1)
    lost.failures["*"] = "lost"
    station.put_in(a_mig_board((0, lost), (2, make_instance("MIG-2", 9))))
    (gpu,) = station.read(1.0).values()
    assert (gpu.uuid, gpu.missing is None) == ("GPU-a", False)


@pytest.mark.parametrize("function", ["nvmlDeviceGetUUID", "nvmlDeviceGetGpuInstanceId"])
def test_instance_that_cannot_be_opened_is_a_problem_and_does_not_hide_others(station: Station, function: str) -> None:
    sealed = make_instance("MIG-1", 5)
    sealed.failures[function] = "no_permission"
    station.put_in(a_mig_board((1, sealed), (6, make_instance("MIG-6", 9))))
    report = station.report()
    assert [(gpu.uuid, gpu.missing) for gpu in report.gpus or ()] == [("MIG-6", None)]
    assert report.problems == ["GPU 0: MIG instance 1 cannot be opened: not permitted to read it."]


def test_board_of_which_no_instance_can_be_opened_says_so_and_does_not_claim_to_have_none(station: Station) -> None:
    sealed = make_instance("MIG-1", 5)
    sealed.failures["nvmlDeviceGetUUID"] = "no_permission"
    station.put_in(a_mig_board((1, sealed)))
    gpu = station.read()["GPU-a"]
    assert (gpu.processes, gpu.processes_reason) == (None, "MIG instance 1 cannot be opened: not permitted to read it")


def test_instance_that_can_be_opened_again_is_read_on_the_next_slow_reading(station: Station) -> None:
    sealed = make_instance("MIG-1", 5)
    sealed.failures["nvmlDeviceGetUUID"] = "no_permission"
    station.put_in(a_mig_board((1, sealed)))
    station.report(0.0)
    sealed.failures.clear()
    station.driver.apply()
    report = station.report(10.0)
    assert ([gpu.uuid for gpu in report.gpus or ()], report.problems) == (["MIG-1"], [])


def test_instance_whose_name_is_no_text_is_read_all_the_same(station: Station) -> None:
    nameless = make_instance("MIG-1", 5)
    nameless.name = "\udcff"
    station.put_in(a_mig_board((1, nameless), (6, make_instance("MIG-6", 9))))
    assert [gpu.name for gpu in station.read().values()] == ["NVIDIA GPU", "NVIDIA H200 MIG 1g.18gb"]
