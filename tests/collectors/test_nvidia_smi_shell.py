"""The nvidia-smi collector from end to end: the real shell, ps and /proc, and a stand-in that prints captures."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.smi import LocalSmi, run_here
from gpudeck.collectors.nvidia_smi import SmiReader
from gpudeck.collectors.owners import Owners
from gpudeck.collectors.smi_command import COLUMNS, shell_command
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS
from gpudeck.model.errors import Absent, PluginError, Refused, Temporary
from gpudeck.model.report import GpuReading, Report

CAPTURES = Path(__file__).parents[1] / "captures/nvidia-smi"
CARDS = sorted(path.parent.name for path in CAPTURES.glob("*/gpus.csv"))
MIB = 1024 * 1024

SeriesQuery = Callable[[str], Report]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> SeriesQuery:
    """Reads a capture by its name."""
    monkeypatch.setenv("PATH", str(CAPTURES), prepend=os.pathsep)
    collector = LocalSmi()

    def collect(card: str) -> Report:
        monkeypatch.setenv("CAPTURE", str(CAPTURES / card))
        return collector.collect(1000.0)

    return collect


@pytest.fixture
def asked(ask: SeriesQuery) -> Callable[[str], list[GpuReading]]:
    return lambda card: ask(card).gpus or []


@pytest.mark.parametrize("card", CARDS)
def test_every_metric_of_every_card_is_known_or_unknown_with_a_reason(ask: SeriesQuery, card: str) -> None:
    report = ask(card)
    present = [gpu for gpu in report.gpus or [] if not gpu.missing]
    assert present
    assert [gpu.metrics.keys() | gpu.unknown.keys() for gpu in present] == [GPU_METRICS.keys()] * len(present)
    assert [gpu.metrics.keys() & gpu.unknown.keys() for gpu in present] == [set()] * len(present)
    assert all(reason for gpu in present for reason in gpu.unknown.values())
    assert report.metrics.keys() | report.unknown.keys() == HOST_METRICS.keys()


@pytest.mark.parametrize("card", CARDS)
def test_driver_version_is_read_whatever_columns_the_driver_knows(ask: SeriesQuery, card: str) -> None:
    assert f"-{ask(card).driver_version}" in card


def test_h200_is_read_value_by_value(asked: Callable[[str], list[GpuReading]]) -> None:
    (gpu,) = asked("h200-580.159.04")
    assert (gpu.uuid, gpu.index, gpu.name) == ("GPU-5f1e8a30-0c5d-4b7e-9a61-2d3c4b5a6978", 0, "NVIDIA H200")
    assert gpu.metrics == {
        "utilization_percent": 45,
        "memory_utilization_percent": 8,
        "memory_used_bytes": 21727 * MIB,
        "memory_total_bytes": 143771 * MIB,
        "temperature_celsius": 53,
        "memory_temperature_celsius": 46,
        "power_watts": 529.0,
        "power_limit_watts": 700,
        "clock_sm_mhz": 1980,
        "clock_memory_mhz": 3201,
        "encoder_percent": 0,
        "decoder_percent": 0,
        "performance_state": 0,
        "throttled_power": 0,
        "throttled_thermal": 0,
        "throttled_hardware": 0,
        "ecc_corrected_count": 0,
        "ecc_uncorrected_count": 0,
        "remapped_rows_count": 0,
        "remapped_rows_pending": 0,
    }
    assert gpu.unknown["fan_percent"] == "not supported by this GPU"
    assert [(process.pid, process.memory_used_bytes) for process in gpu.processes or []] == [
        (401, 20998 * MIB),
        (400, 714 * MIB),
    ]


def test_old_driver_gives_all_that_it_has(asked: Callable[[str], list[GpuReading]]) -> None:
    busy, idle = asked("v100-450.51.06")
    assert busy.metrics["utilization_percent"] == 97
    assert busy.metrics["throttled_power"] == 1
    assert busy.metrics["ecc_corrected_count"] == 3
    assert busy.unknown["encoder_percent"] == "this driver's nvidia-smi has no such column"
    assert busy.unknown["remapped_rows_count"] == "not supported by this GPU"
    assert idle.metrics["memory_used_bytes"] == 0
    assert idle.processes == []


def test_mig_instances_are_rows_with_their_own_memory_and_processes(
    asked: Callable[[str], list[GpuReading]],
) -> None:
    first, sharing, large, whole = asked("a100-mig-470.82.01")
    board = "GPU-0000a100-1111-2222-3333-000000000000"
    assert [gpu.parent for gpu in (first, sharing, large, whole)] == [board, board, board, None]
    assert [gpu.instance for gpu in (first, sharing, large, whole)] == [0, 1, 2, None]
    assert [gpu.uuid[:5] for gpu in (first, sharing, large, whole)] == ["MIG-0", "MIG-1", "MIG-2", "GPU-0"]
    assert large.name == "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    assert large.metrics["memory_used_bytes"] == 4855 * MIB
    assert large.metrics["temperature_celsius"] == 35
    assert large.unknown["utilization_percent"] == "measured on the whole board, not by MIG instance"
    assert large.unknown["power_watts"] == "measured on the whole board, not by MIG instance"
    pids = [[process.pid for process in gpu.processes or []] for gpu in (first, sharing, large, whole)]
    assert pids == [[5002], [5003], [5001], [5004]]


def test_memory_that_mig_instances_share_is_counted_once(asked: Callable[[str], list[GpuReading]]) -> None:
    first, sharing, *_ = asked("a100-mig-470.82.01")
    assert first.metrics["memory_used_bytes"] == 376 * MIB
    assert sharing.unknown["memory_used_bytes"] == "shared with instance 0, counted there"
    assert "memory_total_bytes" not in sharing.metrics


def test_process_memory_that_is_not_available_is_unknown_never_zero(asked: Callable[[str], list[GpuReading]]) -> None:
    (gpu,) = asked("gtx1080ti-470.57.02")
    computing = next(process for process in gpu.processes or [] if process.pid == 2909)
    assert computing.memory_used_bytes is None
    assert computing.reasons["memory_used_bytes"] == "not supported by this GPU"
    assert gpu.metrics["fan_percent"] == 23
    assert gpu.metrics["performance_state"] == 8
    assert gpu.metrics["memory_used_bytes"] == 612 * MIB


def test_graphics_processes_are_listed_too(asked: Callable[[str], list[GpuReading]]) -> None:
    (gpu,) = asked("rtx4090-550.54.14")
    assert [process.pid for process in gpu.processes or []] == [3002, 3001, 3003]
    flags = [gpu.metrics[f"throttled_{cause}"] for cause in ("power", "thermal", "hardware")]
    assert flags == [1, 1, 0]


def test_units_and_decimal_commas_make_no_difference(asked: Callable[[str], list[GpuReading]]) -> None:
    assert asked("rtx4090-550.54.14-german-units") == asked("rtx4090-550.54.14")


def test_memory_of_a_chip_that_shares_the_hosts_is_what_its_processes_use(
    asked: Callable[[str], list[GpuReading]],
) -> None:
    (gpu,) = asked("gb10-580.95.05")
    assert gpu.metrics["memory_used_bytes"] == (40960 + 8192) * MIB
    assert gpu.unknown["memory_total_bytes"] == "not supported by this GPU"


def test_words_in_place_of_numbers_are_unknown_with_their_reason(asked: Callable[[str], list[GpuReading]]) -> None:
    sick, well = asked("l40s-535.129.03")
    assert sick.unknown["utilization_percent"] == "the driver reports an unknown error"
    assert sick.unknown["memory_utilization_percent"] == "not supported by this GPU"
    assert sick.unknown["encoder_percent"] == "not permitted to read it"
    assert sick.unknown["decoder_percent"] == "the driver is too old to report it"
    assert sick.unknown["fan_percent"] == "the driver gives no value"
    assert sick.unknown["clock_memory_mhz"] == "nvidia-smi says: ERR!"
    assert sick.unknown["throttled_thermal"] == "not supported by this GPU"
    assert sick.metrics["temperature_celsius"] == 33
    assert well.metrics["throttled_hardware"] == 1
    assert well.metrics["remapped_rows_count"] == 1
    (process,) = well.processes or []
    assert process.reasons["memory_used_bytes"] == "not permitted to read it"


def test_numbers_that_stand_for_no_number_are_not_believed(asked: Callable[[str], list[GpuReading]]) -> None:
    sick, _ = asked("l40s-535.129.03")
    assert sick.unknown["clock_sm_mhz"] == "the driver gives no value"
    assert sick.unknown["ecc_corrected_count"] == "the driver gives no value"


def test_lost_gpu_does_not_hide_others(asked: Callable[[str], list[GpuReading]]) -> None:
    well, lost, stuck = asked("a100-lost-535.104.05")
    assert lost.missing == "the GPU is lost: it fell off the bus or stopped answering"
    assert stuck.missing == "the GPU needs a reset"
    assert not lost.metrics
    assert well.missing is None
    assert well.metrics["utilization_percent"] == 50
    assert [process.pid for process in well.processes or []] == [8001]


def test_gpu_off_the_bus_that_makes_nvidia_smi_fail_for_all_does_not_hide_others(ask: SeriesQuery) -> None:
    ask("a100-515.65.01")
    report = ask("a100-off-the-bus-515.65.01")
    gpus = {gpu.index: gpu for gpu in report.gpus or []}
    assert gpus[1].missing == "the GPU is lost: it fell off the bus or stopped answering"
    assert [gpus[index].metrics["utilization_percent"] for index in (0, 2)] == [50, 50]
    assert [len(gpus[index].processes or []) for index in (0, 2)] == [1, 0]
    assert "Unable to determine the device handle for GPU 0000:3B:00.0" in report.problems[0]


def test_gpu_that_comes_back_is_no_longer_missing(ask: SeriesQuery) -> None:
    ask("a100-515.65.01")
    ask("a100-off-the-bus-515.65.01")
    assert [gpu.missing for gpu in ask("a100-515.65.01").gpus or []] == [None, None, None]


@pytest.mark.parametrize(
    ("capture", "kind", "message"),
    [
        ("no-driver", Temporary, "couldn't communicate with the NVIDIA driver"),
        ("version-mismatch-535", Temporary, "different versions"),
        ("no-devices", Absent, "finds no GPU"),
        ("no-permission", Refused, "Insufficient Permissions"),
        ("unknown-error", Temporary, "Failed to initialize NVML: Unknown Error"),
    ],
)
def test_what_nvidia_smi_says_decides_the_kind_of_failure(
    ask: SeriesQuery, capture: str, kind: type[PluginError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        ask(capture)


def test_gpus_that_were_there_do_not_become_absent(ask: SeriesQuery) -> None:
    ask("a100-515.65.01")
    with pytest.raises(Temporary, match=r"finds no GPU\. There were 3 before"):
        ask("no-devices")


def test_machine_without_nvidia_smi_is_absent_but_has_its_figures() -> None:
    answer = run_here(shell_command().replace("nvidia-smi", "no-such-program"))
    with pytest.raises(Absent, match="no nvidia-smi"):
        LocalSmi(answer).collect(0.0)
    reading = SmiReader().parse_host(answer, "There is no nvidia-smi on this machine.")
    assert reading.report.metrics["cpu_count"] == os.cpu_count()
    assert reading.report.gpus_reason == "There is no nvidia-smi on this machine."


def test_driver_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    answer = run_here(shell_command(seconds=1))
    with pytest.raises(Temporary, match="nvidia-smi did not answer within 1 s"):
        LocalSmi(answer).collect(0.0)
    assert SmiReader().parse_host(answer, "it hangs").clock == pytest.approx(time.time(), abs=60)


def test_calls_that_hang_one_after_the_other_share_one_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = tmp_path / "log"
    # As with a lost board: the listing fails, and then every board is asked alone.
    (tmp_path / "nvidia-smi").write_text(
        f'#!/bin/sh\necho "$@" >>{log}\ncase "$*" in *-L*) exec cat {CAPTURES}/a100-lost-535.104.05/list.txt;; '
        "*-i*) exec sleep 60;; esac\necho broken; exit 15\n"
    )
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    run_here(shell_command(seconds=1))
    assert log.read_text().count("-i ") == 1


def test_without_gpus_nvidia_smi_is_not_called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    reading = SmiReader().parse_host(run_here(shell_command(with_gpus=False)), "not asked")
    assert reading.report.metrics["cpu_count"] == os.cpu_count()
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize(("said", "clock"), [("1000.250000000", 1000.25), ("1000", 1000.5), ("1000.%N", 1000.5)])
def test_clock_of_a_machine_is_read_whatever_its_date_can(said: str, clock: float) -> None:
    answer = run_here(shell_command(with_gpus=False).replace("date +%s.%N", f"echo {said}"))
    assert SmiReader().parse_host(answer, "not asked").clock == clock


def test_columns_that_the_driver_does_not_know_are_asked_for_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    (tmp_path / "nvidia-smi").write_text(f'#!/bin/sh\necho "$@" >>{log}\nexec {CAPTURES}/nvidia-smi "$@"\n')
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CAPTURE", str(CAPTURES / "v100-450.51.06"))
    collector = LocalSmi()
    collector.collect(0.0)
    assert log.read_text().count("--query-gpu") == 4
    log.write_text("")
    collector.collect(1.0)
    assert log.read_text().count("--query-gpu") == 1


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of this test that claims to be on the GPU."""
    script = tmp_path / "train.sh"
    script.write_text("read line\n")
    command = ["/bin/sh", str(script), "--token", "abc\ndef", "--lr", "0.1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_real_process_has_its_owner_start_and_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    card = tmp_path / "card"
    card.mkdir()
    for path in (CAPTURES / "h200-580.159.04").iterdir():
        (card / path.name).write_text(
            path.read_text().replace(": 401", f": {sleeper.pid}").replace(": 400", ": 4194305")
        )
    monkeypatch.setenv("PATH", str(CAPTURES), prepend=os.pathsep)
    monkeypatch.setenv("CAPTURE", str(card))
    before = time.time()
    (gpu,) = LocalSmi().collect(before).gpus or []
    living, gone = gpu.processes or []
    assert living.pid == sleeper.pid
    assert living.command == f"/bin/sh {tmp_path}/train.sh --token *** --lr 0.1"
    assert living.started_at == pytest.approx(before, abs=30)
    assert living.memory_used_bytes == 20998 * MIB
    # The same person, by the same evidence, that an agent on this machine would name.
    known = Owners().find([sleeper.pid], before)[sleeper.pid]
    assert (living.user, living.evidence, living.started_at) == (known.user, known.evidence, known.started_at)
    assert living.user is not None
    assert (gone.user, gone.command, gone.started_at) == (None, None, None)
    assert gone.reasons["user"].startswith("the process is not in /proc")


def test_command_lines_that_are_not_to_be_told_are_not_even_read(sleeper: subprocess.Popen[bytes]) -> None:
    details = f"details=$(echo Process ID : {sleeper.pid});"
    asking, silent = (
        run_here(shell_command(with_arguments=wanted).replace("mark columns;", f"{details} mark columns;", 1))
        for wanted in (True, False)
    )
    assert "train.sh" in asking
    assert "train.sh" not in silent
    assert f"/proc/{sleeper.pid}/cgroup:" in silent


def test_second_reading_has_rates_and_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(CAPTURES), prepend=os.pathsep)
    monkeypatch.setenv("CAPTURE", str(CAPTURES / "v100-450.51.06"))
    collector = LocalSmi()
    assert collector.collect(0.0).unknown["cpu_percent"] == "needs two readings"
    report = collector.collect(7.0)
    assert 0 <= report.metrics["cpu_percent"] <= 100
    assert [gpu.idle_seconds for gpu in report.gpus or []] == [0.0, 7.0]


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_command_is_one_line_that_any_login_shell_passes_on(shell: str) -> None:
    command = shell_command()
    assert command.count("'") == 2
    assert not set("\n!") & set(command)
    answer = subprocess.run([shell, "-c", command], capture_output=True, text=True, check=False)
    assert answer.stdout.endswith("#gpudeck end\n")
    assert answer.stderr == ""


def test_what_a_machine_answered_never_becomes_part_of_a_command() -> None:
    assert shell_command([*COLUMNS, "x';reboot;'"]) == shell_command()
