"""Pages of exporters as GPUs: units, blanks, MIG, processes, GPUs that go."""

import re

import pytest

from gpudeck.collectors.base import WHOLE_BOARD
from gpudeck.fleet.state import FleetState
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.errors import Temporary
from gpudeck.model.gpu_state import AvailabilitySettings, FleetSettings, judge
from gpudeck.sources.base import ScrapeSettings
from gpudeck.sources.scrape import NOT_BY_INSTANCE
from sources.scrape_pages import (
    EIGHT,
    GPU_PAGES,
    MIG,
    NOW,
    NVITOP_HELD,
    NVITOP_IDLE,
    OLD,
    SMI,
    Exporter,
    gpus_of,
    load,
)

MIB = 1024 * 1024
BLANK = "dcgm-exporter has no value: not supported by this GPU, or not permitted to read"


def dcgm(name: str, value: str, labels: str = 'gpu="0",UUID="GPU-a",Hostname="gpu01"') -> str:
    return f"{name}{{{labels}}} {value}\n"


@pytest.mark.parametrize("page", GPU_PAGES)
def test_every_metric_is_known_or_unknown_with_a_reason(page: str) -> None:
    for gpu in gpus_of(load(page)):
        assert gpu.metrics.keys() | gpu.unknown.keys() == GPU_METRICS.keys()
        assert not gpu.metrics.keys() & gpu.unknown.keys()
        assert all(gpu.unknown.values())
        assert (gpu.processes is None) == (gpu.processes_reason is not None)


def test_dcgm_values_come_in_the_units_of_the_catalog() -> None:
    gpu = gpus_of(load(EIGHT))[0]
    assert gpu.metrics == {
        "utilization_percent": 97,
        "memory_utilization_percent": 42,
        "memory_used_bytes": 71234 * MIB,
        "memory_total_bytes": 81559 * MIB,
        "temperature_celsius": 54,
        "memory_temperature_celsius": 61,
        "power_watts": 612.3,
        "clock_sm_mhz": 1980,
        "clock_memory_mhz": 2619,
        "encoder_percent": 0,
        "decoder_percent": 0,
        "remapped_rows_count": 0,
        "energy_joules": 31_035_687,
        "pcie_receive_bytes_per_second": 2_235_000_000,
        "pcie_transmit_bytes_per_second": 1_235_000_000,
        "dram_activity_percent": 41,
    }


def test_dcgm_profiling_fields_are_activity_in_percent() -> None:
    shares = {"SM_ACTIVE": 0.957, "SM_OCCUPANCY": 0.31, "PIPE_TENSOR_ACTIVE": 0.929, "DRAM_ACTIVE": 0.16}
    shares |= {"PIPE_FP64_ACTIVE": 0.0, "PIPE_FP32_ACTIVE": 0.02, "PIPE_FP16_ACTIVE": 0.004, "GR_ENGINE_ACTIVE": 1.0}
    rates = {"NVLINK_RX_BYTES": 4.2e10, "NVLINK_TX_BYTES": 4.1e10}
    (gpu,) = gpus_of("".join(dcgm(f"DCGM_FI_PROF_{name}", str(value)) for name, value in (shares | rates).items()))
    assert gpu.metrics == {
        "utilization_percent": 100,
        "memory_utilization_percent": 16,
        "sm_activity_percent": 96,
        "sm_occupancy_percent": 31,
        "tensor_activity_percent": 93,
        "dram_activity_percent": 16,
        "fp64_activity_percent": 0,
        "fp32_activity_percent": 2,
        "fp16_activity_percent": 0,
        "nvlink_receive_bytes_per_second": 42_000_000_000,
        "nvlink_transmit_bytes_per_second": 41_000_000_000,
    }


def test_activity_of_a_mig_instance_is_its_own_and_a_missing_or_impossible_share_is_unknown() -> None:
    labels = 'gpu="0",UUID="GPU-a",Hostname="gpu01",GPU_I_PROFILE="1g.10gb",GPU_I_ID="%s"'
    page = "".join(dcgm("DCGM_FI_PROF_SM_ACTIVE", share, labels % at) for at, share in (("1", "0.5"), ("2", "1.7")))
    one, two = gpus_of(page)
    assert (one.metrics["sm_activity_percent"], two.metrics.get("sm_activity_percent")) == (50, None)
    assert "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE" in one.unknown["tensor_activity_percent"]
    assert two.unknown["sm_activity_percent"]


def test_nvidia_gpu_exporter_values_come_in_the_units_of_the_catalog() -> None:
    gpu = gpus_of(load(SMI))[2]
    assert gpu.metrics == {
        "utilization_percent": 100,
        "memory_utilization_percent": 42,
        "memory_used_bytes": 32362 * MIB,
        "memory_total_bytes": 143771 * MIB,
        "temperature_celsius": 61,
        "memory_temperature_celsius": 70,
        "power_watts": 655.1,
        "power_limit_watts": 700,
        "clock_sm_mhz": 1755,
        "clock_memory_mhz": 3201,
        "performance_state": 0,
        "throttled_power": 1,
        "throttled_thermal": 1,
        "throttled_hardware": 0,
        "ecc_corrected_count": 3,
        "ecc_uncorrected_count": 0,
        "remapped_rows_count": 2,
        "remapped_rows_pending": 1,
        "energy_joules": 2_250_000,
        "pcie_receive_bytes_per_second": 2_066_000_000,
        "pcie_transmit_bytes_per_second": 1_891_000_000,
    }


def test_nvitop_values_come_in_the_units_of_the_catalog() -> None:
    """Recorded on an H200, where nvidia-smi said 2575 MiB, 143771 MiB, 125.15 W, 38 degrees."""
    (gpu,) = gpus_of(load(NVITOP_HELD))
    assert gpu.metrics == {
        "utilization_percent": 0,
        "memory_utilization_percent": 0,
        "memory_used_bytes": 2575 * MIB,
        "memory_total_bytes": 143771 * MIB,
        "temperature_celsius": 38,
        "power_watts": 125.0,
        "power_limit_watts": 700,
        "clock_sm_mhz": 1980,
        "clock_memory_mhz": 3201,
        "encoder_percent": 0,
        "decoder_percent": 0,
        "pcie_receive_bytes_per_second": 0,
        "pcie_transmit_bytes_per_second": 1_000_000,
    }
    assert gpu.unknown["fan_percent"] == "nvitop-exporter has no value (nan)"


def test_labels_tell_who_a_gpu_is() -> None:
    gpu = gpus_of(load(EIGHT))[1]
    assert (gpu.uuid, gpu.index, gpu.name, gpu.vendor, gpu.pci_address) == (
        "GPU-6d1c9e51-0a4b-4c3d-8e2f-1a2b3c4d5e61",
        1,
        "NVIDIA H100 80GB HBM3",
        "nvidia",
        "0000:20:00.0",
    )


def test_a_uuid_is_whole_where_the_exporter_cuts_it() -> None:
    """The same GPU has the same UUID on every way in."""
    assert gpus_of(load(SMI))[2].uuid == "GPU-ef427e4f-1970-42f2-ab0c-ecf0e56a33b9"


def test_an_exporter_without_a_model_or_a_uuid_still_gives_a_gpu() -> None:
    (gpu,) = gpus_of('DCGM_FI_DEV_GPU_UTIL{gpu="3"} 7\n')
    assert (gpu.uuid, gpu.index, gpu.name) == ("gpu01/gpu3", 3, "NVIDIA GPU")


@pytest.mark.parametrize(
    "metric", ["memory_temperature_celsius", "temperature_celsius", "power_watts", "encoder_percent"]
)
def test_a_blank_of_dcgm_is_unknown(metric: str) -> None:
    """One of 64 bits, another, one of a float, one of 32 bits."""
    (gpu,) = gpus_of(load(OLD))
    assert gpu.unknown[metric] == BLANK


@pytest.mark.parametrize("value", ["9.223372036854776e+18", "9223372036854775795", "2147483632", "140737488355328"])
def test_a_blank_never_becomes_a_load(value: str) -> None:
    (gpu,) = gpus_of(dcgm("DCGM_FI_DEV_GPU_UTIL", value))
    assert gpu.unknown["utilization_percent"] == BLANK


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("NaN", "dcgm-exporter has no value (nan)"),
        ("+Inf", "dcgm-exporter has no value (inf)"),
        ("1e308", "dcgm-exporter gives 1e+308, which cannot be"),
        ("-3", "dcgm-exporter gives -3, which cannot be"),
        ("101", "dcgm-exporter gives 101, which cannot be"),
    ],
)
def test_a_number_that_cannot_be_is_unknown(value: str, reason: str) -> None:
    (gpu,) = gpus_of(dcgm("DCGM_FI_DEV_GPU_UTIL", value))
    assert gpu.unknown["utilization_percent"] == reason


def test_what_the_exporter_does_not_tell_is_unknown_and_named() -> None:
    (gpu,) = gpus_of(dcgm("DCGM_FI_DEV_GPU_UTIL", "1"))
    assert gpu.unknown["nvlink_active_count"] == "dcgm-exporter does not report it"
    assert gpu.unknown["fan_percent"] == "dcgm-exporter does not report it: DCGM_FI_DEV_FAN_SPEED is not on its page"


def test_the_profiling_load_stands_in_for_the_other() -> None:
    (gpu,) = gpus_of(dcgm("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "0.631") + dcgm("DCGM_FI_DEV_GPU_UTIL", "2147483634"))
    assert gpu.metrics["utilization_percent"] == 63


def test_total_memory_is_the_best_sum_there_is() -> None:
    page = dcgm("DCGM_FI_DEV_FB_USED", "10") + dcgm("DCGM_FI_DEV_FB_FREE", "90")
    assert gpus_of(page)[0].metrics["memory_total_bytes"] == 100 * MIB
    page += dcgm("DCGM_FI_DEV_FB_RESERVED", "5")
    assert gpus_of(page)[0].metrics["memory_total_bytes"] == 105 * MIB
    page += dcgm("DCGM_FI_DEV_FB_TOTAL", "106")
    assert gpus_of(page)[0].metrics["memory_total_bytes"] == 106 * MIB


def test_used_memory_alone_makes_no_total() -> None:
    (gpu,) = gpus_of(dcgm("DCGM_FI_DEV_FB_USED", "10"))
    assert gpu.metrics["memory_used_bytes"] == 10 * MIB
    assert gpu.unknown["memory_total_bytes"].startswith("dcgm-exporter does not report it")


@pytest.mark.parametrize("name", ["DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"])
@pytest.mark.parametrize(
    ("bits", "slowed"), [("0", (0, 0, 0)), ("4", (1, 0, 0)), ("96", (0, 1, 0)), ("136", (0, 0, 1))]
)
def test_reasons_for_lower_clocks_become_flags(name: str, bits: str, slowed: tuple[int, ...]) -> None:
    (gpu,) = gpus_of(dcgm(name, bits))
    assert tuple(gpu.metrics[f"throttled_{what}"] for what in ("power", "thermal", "hardware")) == slowed


def test_the_last_xid_never_shows() -> None:
    """The gauge never clears: it is no event."""
    gpu = gpus_of(load(EIGHT))[5]
    assert gpu.missing is None
    assert gpu.events == []
    assert Exporter(load(EIGHT)).report().problems == []


def test_of_series_that_differ_for_one_gpu_the_first_counts() -> None:
    page = dcgm("DCGM_FI_DEV_GPU_UTIL", "7") + dcgm("DCGM_FI_DEV_GPU_UTIL", "7") + dcgm("DCGM_FI_DEV_GPU_UTIL", "90")
    report = Exporter(page).report()
    assert report.gpus is not None
    assert report.gpus[0].metrics["utilization_percent"] == 7


def test_a_line_that_cannot_be_read_is_a_problem_of_the_host() -> None:
    report = Exporter(dcgm("DCGM_FI_DEV_GPU_UTIL", "7") + "DCGM_FI_DEV_GPU_TEMP{oops\n").report()
    assert len(report.gpus or ()) == 1
    assert report.problems == ["dcgm-exporter: 1 line of its page cannot be read"]


def test_more_gpus_than_a_report_takes_are_a_problem() -> None:
    page = "".join(dcgm("DCGM_FI_DEV_GPU_UTIL", "7", f'gpu="{n}",UUID="GPU-{n}"') for n in range(600))
    report = Exporter(page).report()
    assert len(report.gpus or ()) == 512
    assert report.problems == ["dcgm-exporter: it lists 600 GPUs or more; the first 512 are taken"]


def test_mig_instances_stand_for_their_board() -> None:
    first, second, whole = gpus_of(load(MIG))
    board = "GPU-5fd4f087-86f3-7a43-b711-4771313afc50"
    assert [(gpu.uuid, gpu.parent, gpu.instance) for gpu in (first, second)] == [
        (f"{board}/1", board, 1),
        (f"{board}/7", board, 7),
    ]
    assert (first.index, first.name) == (0, "NVIDIA A100-SXM4-80GB MIG 3g.40gb")
    assert (whole.index, whole.parent, whole.instance) == (1, None, None)


def test_a_mig_instance_has_its_own_load_and_memory_but_not_its_boards_power() -> None:
    gpu = gpus_of(load(MIG))[0]
    assert (gpu.metrics["utilization_percent"], gpu.metrics["memory_used_bytes"]) == (76, 20192 * MIB)
    assert gpu.metrics["temperature_celsius"] == 44
    assert gpu.unknown["power_watts"] == WHOLE_BOARD


def test_mig_instances_of_nvidia_gpu_exporter_have_the_drivers_uuid_and_their_processes() -> None:
    large, small, _ = gpus_of(load(SMI))
    assert large.uuid == "MIG-292b7eb0-0beb-5abe-04b8-475f1ff17b99"
    assert (large.name, large.index, large.instance) == ("NVIDIA H200 MIG 3g.71gb", 0, 2)
    assert (large.metrics["utilization_percent"], large.metrics["memory_used_bytes"]) == (98, 40897 * MIB)
    assert (large.metrics["temperature_celsius"], large.pci_address) == (40, "0000:01:00.0")
    assert [process.pid for process in large.processes or ()] == [10310]
    assert [process.pid for process in small.processes or ()] == [10291]


def test_processes_told_for_a_board_are_not_given_to_its_instances() -> None:
    page = load(SMI)
    without = re.sub(r'compute_instance_id="\d*",gpu_instance_id="\d*",(pid=)', r"\1", page)
    large, _, whole = gpus_of(without)
    assert (large.processes, large.processes_reason) == (None, NOT_BY_INSTANCE)
    assert len(whole.processes or ()) == 2


def test_mig_instances_of_nvitop_come_to_their_board() -> None:
    board = 'hostname="gpu01",devicename="NVIDIA H200",index="0",uuid="GPU-b"'
    part = 'hostname="gpu01",devicename="NVIDIA H200 MIG 1g.18gb",index="0:3",uuid="MIG-c"'
    page = f"gpu_memory_used_MiB{{{board}}} 900\ngpu_temperature_C{{{board}}} 40\ngpu_memory_used_MiB{{{part}}} 100\n"
    (gpu,) = gpus_of(page)
    assert (gpu.uuid, gpu.index, gpu.instance, gpu.parent) == ("MIG-c", 0, 3, "GPU-b")
    assert (gpu.metrics["memory_used_bytes"], gpu.metrics["temperature_celsius"]) == (100 * MIB, 40)


def test_an_instance_that_is_gone_with_its_board_still_there_was_not_lost() -> None:
    exporter = Exporter(load(MIG))
    exporter.report()
    kept = "".join(line for line in load(MIG).splitlines(keepends=True) if 'GPU_I_ID="7"' not in line)
    assert [(gpu.instance, gpu.missing) for gpu in exporter.gpus(kept)] == [(1, None), (None, None)]


def test_a_board_that_was_split_meanwhile_was_not_lost() -> None:
    whole = "".join(line for line in load(MIG).splitlines(keepends=True) if "GPU_I_ID" not in line)
    exporter = Exporter(whole)
    assert [(gpu.index, gpu.instance) for gpu in exporter.gpus()] == [(0, None), (1, None)]
    split = exporter.gpus(load(MIG))
    assert [(gpu.index, gpu.instance, gpu.missing) for gpu in split] == [(0, 1, None), (0, 7, None), (1, None, None)]


def test_an_instance_whose_board_is_gone_too_is_missing() -> None:
    exporter = Exporter(load(MIG))
    exporter.gpus()
    gpus = exporter.gpus("".join(line for line in load(MIG).splitlines(keepends=True) if "GPU-5fd4f087" not in line))
    assert [gpu.missing is None for gpu in gpus] == [False, False, True]


def test_a_lost_gpu_stays_missing_and_hides_no_other() -> None:
    exporter = Exporter(load(EIGHT))
    exporter.report()
    lost = "GPU-6d1c9e53-0a4b-4c3d-8e2f-1a2b3c4d5e63"
    kept = "".join(line for line in load(EIGHT).splitlines(keepends=True) if lost not in line)
    gpus = exporter.gpus(kept)
    assert [gpu.index for gpu in gpus] == list(range(8))
    assert [gpu.missing for gpu in gpus if gpu.uuid != lost] == [None] * 7
    assert (gpus[3].missing, gpus[3].metrics) == ("dcgm-exporter no longer lists this GPU", {})
    assert exporter.gpus(kept)[3].missing == "dcgm-exporter no longer lists this GPU"
    assert exporter.gpus(load(EIGHT))[3].missing is None


@pytest.mark.parametrize("page", ["", "# nothing\n", load("node_exporter-1.8"), "DCGM_FI_DEV_GPU_UTIL 5\n"])
def test_no_gpus_where_there_were_eight_is_a_failed_reading(page: str) -> None:
    exporter = Exporter(load(EIGHT))
    exporter.report()
    with pytest.raises(Temporary, match=r"lists no GPU|an empty page"):
        exporter.report(page)
    assert len(exporter.gpus(load(EIGHT))) == 8


def test_processes_of_nvitop_are_told_without_their_secrets() -> None:
    """Recorded: `python3 hold.py --token hunter2secret --lr 0.1`."""
    (gpu,) = gpus_of(load(NVITOP_HELD))
    (process,) = gpu.processes or ()
    assert (process.pid, process.user, process.memory_used_bytes) == (422, "root", 2566 * MIB)
    assert process.command == "python3 hold.py --token *** --lr 0.1"
    assert process.started_at == round(NOW - 6.314196, 3)
    assert (process.utilization_percent, process.evidence) == (0, "as nvitop-exporter says")
    assert process.reasons == {}


def test_an_idle_gpu_of_nvitop_has_an_empty_list() -> None:
    (gpu,) = gpus_of(load(NVITOP_IDLE))
    assert gpu.processes == []


def test_a_start_stays_still_between_pages() -> None:
    exporter = Exporter(load(NVITOP_HELD))
    later = load(NVITOP_HELD).replace("} 6.314196", "} 20.9")
    first, second = exporter.gpus(), exporter.gpus(later, NOW + 15)
    assert (first[0].processes or ())[0].started_at == (second[0].processes or ())[0].started_at


@pytest.mark.parametrize(
    ("commands", "shown"),
    [("name", "python3"), ("none", None), ("full", "python3 hold.py --token hunter2secret --lr 0.1")],
)
def test_the_operator_decides_how_much_of_a_command_is_kept(commands: str, shown: str | None) -> None:
    settings = ScrapeSettings(commands=commands)  # type: ignore[arg-type]
    (gpu,) = Exporter(load(NVITOP_HELD), settings=settings).gpus()
    (process,) = gpu.processes or ()
    assert process.command == shown
    assert ("command" in process.reasons) == (shown is None)


def test_what_nvidia_gpu_exporter_does_not_tell_of_a_process_is_unknown() -> None:
    process = (gpus_of(load(SMI))[2].processes or ())[0]
    assert (process.pid, process.user, process.command) == (10291, None, "/root/tools/memhog")
    assert process.memory_used_bytes == 2_690_646_016
    silent = "nvidia_gpu_exporter does not report it"
    assert process.reasons == dict.fromkeys(("user", "started_at", "utilization_percent"), silent)


def test_processes_that_were_not_asked_for_are_unknown() -> None:
    page = "".join(line for line in load(SMI).splitlines(keepends=True) if "compute_app" not in line)
    for gpu in gpus_of(page):
        assert gpu.processes is None
        assert "--collect.compute-apps" in (gpu.processes_reason or "")


def test_a_display_server_does_not_count_as_work() -> None:
    page = load(NVITOP_HELD).replace("python3 hold.py --token hunter2secret --lr 0.1", "/usr/lib/xorg/Xorg :0")
    assert [process.display for process in gpus_of(page)[0].processes or ()] == [True]


@pytest.mark.parametrize("pid", ["-1", "99999999999", "4294967296", "x", "", "²"])
def test_a_process_without_a_readable_pid_is_still_on_its_gpu(pid: str) -> None:
    (process,) = gpus_of(load(NVITOP_HELD).replace('pid="422"', f'pid="{pid}"'))[0].processes or ()
    assert (process.pid, process.user, process.memory_used_bytes) == (0, "root", 2566 * MIB)
    assert process.reasons["pid"] == "nvitop-exporter does not report it"


def test_idle_time_is_watched() -> None:
    exporter = Exporter(load(EIGHT))
    exporter.gpus()
    gpus = exporter.gpus(now=NOW + 15)
    assert (gpus[0].idle_seconds, gpus[2].idle_seconds) == (0.0, 15.0)


def test_the_hub_shows_what_is_free() -> None:
    fleet = FleetState(FleetSettings())
    fleet.apply(Exporter(load(EIGHT)).seal(), via="scrape", now=NOW)
    (host,) = fleet.ordered()
    assert [gpu.availability for gpu in host.view().gpus] == ["busy", "busy", "free", "busy", *["free"] * 4]


def test_without_processes_memory_and_load_decide_what_is_free() -> None:
    """97 % busy; idle and empty; 60 GiB held without work; a load that is not told."""
    gpus = [*gpus_of(load(EIGHT))[:4], *gpus_of(load(OLD))]
    verdicts = [
        judge(
            processes=None,
            memory_used_bytes=gpu.metrics.get("memory_used_bytes"),
            utilization_percent=gpu.metrics.get("utilization_percent"),
            idle_seconds=3600,
            reserved=False,
            settings=AvailabilitySettings(),
        )[0]
        for gpu in gpus
    ]
    assert verdicts == ["busy", "busy", "free", "idle", "unknown"]
