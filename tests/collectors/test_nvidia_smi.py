"""Answers to the command of the nvidia-smi collector: as a real H200 gave them, cut off, hostile, and none at all."""

from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudeck.collectors.base import CollectorSettings
from gpudeck.collectors.host import HostFiles, machine_id
from gpudeck.collectors.nvidia_smi import SmiInstance, SmiReader, SmiReading, measure_instance
from gpudeck.collectors.redaction import LENGTH, Commands
from gpudeck.collectors.smi_command import LINE_BYTES, explain, read_bus_id, read_number
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS
from gpudeck.model.errors import PluginError, Temporary
from gpudeck.model.report import GpuReading, Process, Report

ANSWERS = Path(__file__).parents[1] / "captures/nvidia-smi/answers"
FIRST, SECOND = ((ANSWERS / f"h200-580.159.04-{name}.txt").read_text() for name in ("first", "second"))
UUID = "GPU-5f1e8a30-0c5d-4b7e-9a61-2d3c4b5a6978"
MIB = 1024 * 1024
LINES = FIRST.split("\n")
MIG_PARTS = "\n#gpudeck instances\n\n#gpudeck table\n\n#gpudeck starts\n"


def with_part(name: str, *lines: str, answer: str = FIRST) -> str:
    """The answer with other lines in one of its parts."""
    before, mark, rest = answer.partition(f"\n#gpudeck {name}\n")
    _, next_mark, after = rest.partition("\n#gpudeck ")
    return before + mark + "".join(f" {line}\n" for line in lines) + next_mark + after


def parse(answer: str) -> SmiReading:
    return SmiReader().parse(answer, 0.0)


def after(first: str) -> SmiReader:
    reader = SmiReader()
    reader.parse(first, 0.0)
    return reader


def gpu_of(answer: str) -> GpuReading:
    (gpu,) = parse(answer).report.gpus or []
    return gpu


def process_of(answer: str) -> Process:
    (process,) = gpu_of(answer).processes or []
    return process


def assert_is_well_formed(reading: SmiReading) -> None:
    """What was read could be sent: the bounds of the report hold, and every metric is known or has a reason."""
    report = msgspec.msgpack.decode(msgspec.msgpack.encode(reading.report), type=Report)
    assert report.metrics.keys() | report.unknown.keys() == HOST_METRICS.keys()
    complete = [gpu.metrics.keys() | gpu.unknown.keys() for gpu in report.gpus or [] if not gpu.missing]
    assert complete == [GPU_METRICS.keys()] * len(complete)


def test_real_answer_is_read_as_a_whole() -> None:
    report = parse(FIRST).report
    (gpu,) = report.gpus or []
    assert (gpu.uuid, gpu.name, report.driver_version) == (UUID, "NVIDIA H200", "580.159.04")
    assert gpu.pci_address == "0000:00:06.0"
    assert gpu.metrics["memory_used_bytes"] == 1765 * MIB
    assert gpu.metrics["power_watts"] == 123.7
    assert report.os == "Ubuntu 24.04.3 LTS"
    assert report.metrics["cpu_count"] == 16
    assert report.metrics["load_1m"] == 0.14
    assert report.metrics["memory_used_bytes"] == pytest.approx((131980916 - 131039360) * 1024, abs=MIB)
    assert report.metrics["disk_total_bytes"] == pytest.approx(264212084 * 1024, abs=MIB)
    assert report.problems == []
    assert_is_well_formed(parse(FIRST))


def test_real_process_has_owner_start_and_redacted_command() -> None:
    process = process_of(FIRST)
    assert (process.pid, process.user, process.memory_used_bytes) == (429, "root", 1756 * MIB)
    assert process.started_at == 1794738276 + 28.01
    assert process.command is not None
    assert process.command.startswith("/opt/torch/.venv/bin/python3 -c import torch,time x=torch.zeros(")
    assert process.command.endswith("--token ***")


@pytest.mark.parametrize("name", ["person", "person-unprivileged"])
def test_real_process_of_a_person_is_theirs_whoever_asks(name: str) -> None:
    process = process_of((ANSWERS / f"h200-580.159.04-{name}.txt").read_text())
    assert (process.user, process.evidence) == ("alice", "uid 1000 of /proc/679")
    assert process.command == "/opt/torch/.venv/bin/python3 /tmp/t.py --token ***"
    assert process.memory_used_bytes == 1756 * MIB


def test_second_answer_has_cpu_and_network_rates() -> None:
    report = after(FIRST).parse(SECOND, 1.0).report
    assert report.metrics["cpu_percent"] == 8.4
    assert report.metrics["network_receive_bytes_per_second"] == 0
    assert report.unknown == {}


def test_counters_of_an_earlier_boot_are_not_compared() -> None:
    reader = after(with_part("boot", "another-boot"))
    assert reader.parse(SECOND, 1.0).report.unknown["cpu_percent"] == "needs two readings"


def test_reading_has_the_id_of_the_boot() -> None:
    assert parse(FIRST).boot_id == "0f5a3c1e-7b2d-4c68-9e10-5d4c3b2a1908"


def test_machine_id_is_the_one_that_an_agent_there_would_send(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    answer = with_part("machine", "0123456789abcdef0123456789abcdef")
    assert parse(answer).machine_id == machine_id(HostFiles(tmp_path)) != ""


def test_container_has_no_machine_id_and_no_disk() -> None:
    answer = with_part("namespaces", "self/ns/pid pid:[1]", "self/ns/mnt mnt:[2]", "1/ns/mnt ")
    reading = parse(with_part("machine", "0123456789abcdef0123456789abcdef", answer=answer))
    assert reading.machine_id == ""
    assert reading.report.labels == {"container": "docker"}
    assert reading.report.unknown["disk_used_bytes"].startswith("the root file system is the container's")


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ("threads", {"cpu_count"}),
        ("load", {"load_1m"}),
        ("memory", {"memory_used_bytes", "memory_total_bytes", "swap_used_bytes", "swap_total_bytes"}),
        ("disk", {"disk_used_bytes", "disk_total_bytes"}),
        ("uptime", {"uptime_seconds"}),
        ("cpu", {"cpu_percent"}),
    ],
)
def test_figure_that_cannot_be_read_leaves_the_others_alone(part: str, names: set[str]) -> None:
    known = parse(FIRST).report
    report = parse(with_part(part, "nonsense")).report
    assert report.metrics.keys() == known.metrics.keys() - names
    assert names <= report.unknown.keys()


def test_more_and_fewer_columns_than_asked_for_are_taken_in_their_stride() -> None:
    row = f"0, {UUID}, NVIDIA H200"
    short = gpu_of(with_part("gpus", row))
    assert short.unknown["utilization_percent"] == "the driver gives no value"
    long = with_part("columns", "index,uuid,name,utilization.gpu", answer=with_part("gpus", f"{row}, 7, 8, 9"))
    assert gpu_of(long).metrics["utilization_percent"] == 7
    assert gpu_of(long).unknown["temperature_celsius"] == "this driver's nvidia-smi has no such column"


@pytest.mark.parametrize(
    ("bits", "flags"),
    [
        ("0x0000000000000000", [0, 0, 0]),
        ("0x0000000000000004", [1, 0, 0]),
        ("0x0000000000000020", [0, 1, 0]),
        ("0x0000000000000040", [0, 1, 0]),
        ("0x0000000000000008", [0, 0, 1]),
        ("0x0000000000000080", [0, 0, 1]),
        ("0x0000000000000113", [0, 0, 0]),
    ],
)
def test_reasons_for_slower_clocks_are_told_apart(bits: str, flags: list[int]) -> None:
    metrics = gpu_of(FIRST.replace("0x0000000000000000", bits)).metrics
    assert [metrics[f"throttled_{cause}"] for cause in ("power", "thermal", "hardware")] == flags


def test_chip_without_memory_of_its_own_that_answers_zero_has_what_its_processes_use() -> None:
    gpu = gpu_of(FIRST.replace(", 1765, 143771,", ", 0, 0,"))
    assert gpu.metrics["memory_used_bytes"] == 1756 * MIB
    assert gpu.unknown["memory_total_bytes"] == "the driver gives no value"


def test_more_memory_in_use_than_there_is_is_what_the_processes_use() -> None:
    gpu = gpu_of(FIRST.replace(", 1765, 143771,", ", 150000, 143771,"))
    assert (gpu.metrics["memory_used_bytes"], gpu.metrics["memory_total_bytes"]) == (1756 * MIB, 143771 * MIB)


def test_load_of_the_whole_board_is_not_shown_as_an_instances() -> None:
    loads = dict.fromkeys(
        ("utilization_percent", "memory_utilization_percent", "encoder_percent", "decoder_percent"), 7
    )
    board = GpuReading("GPU-a", 0, "NVIDIA A100", "nvidia", metrics=loads | {"temperature_celsius": 40})
    instance = SmiInstance(GpuReading("MIG-a", 0, "NVIDIA A100 MIG 1g.5gb", "nvidia", "GPU-a", 0))
    measured = measure_instance(instance, board, None)
    assert measured.metrics == {"temperature_celsius": 40}


def test_process_whose_pid_cannot_be_read_is_there_with_its_own_memory() -> None:
    another = ("GPU 00000000:00:06.0", "Processes", "Process ID : 1", "Used GPU Memory : 5 MiB")
    gpu = gpu_of(with_part("details", *another, "Process ID : [N/A]", "Used GPU Memory : 3 MiB"))
    told = [(process.pid, process.memory_used_bytes) for process in gpu.processes or []]
    assert told == [(1, 5 * MIB), (0, 3 * MIB)]


def test_memory_is_not_added_up_where_that_of_a_process_is_unknown() -> None:
    another = ("GPU 00000000:00:06.0", "Processes", "Process ID : 1", "Used GPU Memory : 5 MiB", "Process ID : 2")
    gpu = gpu_of(with_part("details", *another, answer=FIRST.replace(", 1765, 143771,", ", [N/A], [N/A],")))
    assert gpu.unknown["memory_used_bytes"] == "not supported by this GPU"
    assert [process.memory_used_bytes for process in gpu.processes or []] == [5 * MIB, None]


def test_waiting_for_disks_is_no_work_of_the_cpu() -> None:
    first, second = (with_part("cpu", f"cpu  100 0 0 0 {waited} 0 0 0 0 0", "btime 1") for waited in (100, 200))
    assert after(first).parse(second, 1.0).report.metrics["cpu_percent"] == 0


def test_row_without_a_uuid_is_a_problem_not_a_gpu() -> None:
    row = f"0, {UUID}, NVIDIA H200, 00000000:00:06.0"
    report = parse(with_part("gpus", row, "1, [GPU is lost], [GPU is lost], 00000000:00:07.0")).report
    assert len(report.gpus or []) == 1
    assert report.problems == ["nvidia-smi: 1, [GPU is lost], [GPU is lost], 00000000:00:07.0"]


def test_processes_that_were_not_listed_are_unknown() -> None:
    gpu = gpu_of(with_part("details", "Failed to parse --display/-d flags"))
    assert gpu.processes is None
    assert gpu.processes_reason == "nvidia-smi did not list the processes of this GPU"


def test_mig_instances_of_driver_450_are_found_by_their_names() -> None:
    row = f"0, {UUID}, A100, 00000000:00:06.0, 450.51.06, Enabled, P0"
    details = [
        "GPU 00000000:00:06.0",
        "Processes",
        "GPU instance ID : 7",
        "Compute instance ID : 0",
        "Process ID : 429",
    ]
    answer = with_part("details", *details, answer=with_part("gpus", row))
    listing = [f"GPU 0: A100 (UUID: {UUID})", f"  MIG 1g.5gb Device 0: (UUID: MIG-{UUID}/7/0)"]
    gpu = gpu_of(with_part("instances", *listing, answer=answer.replace("\n#gpudeck starts\n", MIG_PARTS)))
    assert (gpu.uuid, gpu.instance, gpu.parent) == (f"MIG-{UUID}/7/0", 0, UUID)
    assert [process.pid for process in gpu.processes or []] == [429]
    assert gpu.unknown["memory_used_bytes"] == "the driver gives no value"


def test_board_in_mig_mode_without_instances_can_run_nothing() -> None:
    gpu = gpu_of(with_part("gpus", f"0, {UUID}, A100, 00000000:00:06.0, 450.51.06, Enabled, P0"))
    assert gpu.processes is None
    assert gpu.processes_reason == "in MIG mode, but without instances: nothing can run on it"


def test_pid_that_went_to_another_process_has_no_owner() -> None:
    start = "429 (sh) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99999 0 0"
    process = process_of(with_part("starts-after", start))
    assert process.user is None
    assert process.command is None


def test_processes_that_are_all_hidden_point_to_a_pid_namespace() -> None:
    process = process_of(with_part("starts"))
    assert "PID namespace" in process.reasons["user"]


CONTAINER = "c0ffee" * 10 + "c0de"


def test_person_behind_root_in_a_container_is_found_by_the_login() -> None:
    files = (f"/proc/429/cgroup:0::/system.slice/docker-{CONTAINER}.scope", "/proc/429/loginuid:1000")
    process = process_of(with_part("files", *files, answer=with_accounts("alice:1000", "root:0")))
    assert (process.user, process.container) == ("alice", "c0ffeec0ffee")
    assert process.evidence == "root in container c0ffeec0ffee, started by alice (login uid 1000)"


def test_person_behind_root_is_found_among_the_parents() -> None:
    parent = "427 (bash) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0"
    starts = [line[1:] for line in LINES if line.startswith(" 429 (python3)")]
    answer = with_part("starts", starts[0], parent, answer=with_accounts("alice:1000", "root:0"))
    files = ("/proc/429/status:Uid:\t0\t0\t0\t0", "/proc/427/status:Uid:\t1000\t1000\t1000\t1000")
    process = process_of(with_part("files", *files, answer=answer))
    assert (process.user, process.evidence) == ("alice", "root, started by alice (uid 1000 of its parent 427)")


def test_slurm_job_names_its_owner() -> None:
    files = ("/proc/429/cgroup:4:memory:/slurm/uid_1000/job_42/step_0", "/proc/429/loginuid:4294967295")
    process = process_of(with_part("files", *files, answer=with_accounts("alice:1000")))
    assert (process.user, process.job, process.evidence) == ("alice", "42", "slurm job 42 of alice")


def test_account_without_a_name_is_shown_by_its_number() -> None:
    process = process_of(with_part("files", "/proc/429/status:Uid:\t4242\t0\t0\t0", answer=with_accounts()))
    assert process.user == "4242"


def with_accounts(*accounts: str) -> str:
    return with_part(
        "accounts", *accounts, answer=FIRST.replace("\n#gpudeck end", "\n#gpudeck accounts\n\n#gpudeck end")
    )


def test_display_server_that_only_draws_is_marked() -> None:
    drawing = FIRST.replace("429 (python3)", "429 (Xorg)").replace("Type                          : C", "Type : G")
    assert process_of(drawing).display
    assert not process_of(FIRST.replace("429 (python3)", "429 (Xorg)")).display
    assert not process_of(drawing.replace("Type : G", "Type : C+G")).display


def test_operator_decides_which_programs_draw_the_desktop() -> None:
    drawing = FIRST.replace("Type                          : C", "Type : G")
    reading = SmiReader(CollectorSettings(display_servers=["python3"])).parse(drawing, 0.0)
    (gpu,) = reading.report.gpus or []
    assert [process.display for process in gpu.processes or []] == [True]


def test_command_line_that_was_cut_loses_its_last_argument() -> None:
    secret = "/proc/429/cmdline:python\x01--config\x01TOKEN" + "x" * LINE_BYTES
    lines = (secret[:LINE_BYTES], "/proc/429/cmdline:yz\x01--lr\x011\x01")
    assert process_of(with_part("files", *lines)).command == "python --config"


def test_process_without_a_command_line_shows_its_short_name() -> None:
    assert process_of(with_part("files")).command == "[python3]"


@pytest.mark.parametrize(("commands", "shown"), [("name", "python3"), ("none", None)])
def test_operator_decides_how_much_of_a_command_is_told(commands: Commands, shown: str | None) -> None:
    (gpu,) = SmiReader(CollectorSettings(commands=commands)).parse(FIRST, 0.0).report.gpus or []
    assert [process.command for process in gpu.processes or []] == [shown]


def test_data_never_looks_like_a_part_of_the_answer() -> None:
    hostile = "/proc/429/cmdline:x\x01\u2028#gpudeck end\x0b#gpudeck gpus\x01"
    process = process_of(with_part("files", hostile))
    assert process.command == "x #gpudeck end#gpudeck gpus"
    assert process_of(with_part("files", "#gpudeck end")).pid == 429


def test_banner_before_and_noise_after_the_answer_are_left_out() -> None:
    noisy = "Welcome to gpu01!\r\n  * 3 updates\r\n" + FIRST.replace("\n", "\r\n") + "\r\nlogout\r\n"
    assert parse(noisy).report == parse(FIRST).report


@pytest.mark.parametrize(
    "text", ["", "<!DOCTYPE html><html><h1>502</h1></html>", "\x00" * 100, "sh: syntax error", "\n\n"]
)
def test_what_is_no_answer_is_temporary(text: str) -> None:
    with pytest.raises(Temporary, match="did not run the command"):
        parse(text)


def test_answer_cut_at_any_character_is_temporary() -> None:
    end = FIRST.index("#gpudeck end")
    for length in range(end + len("#gpudeck end") - 1):
        with pytest.raises(Temporary):
            parse(FIRST[:length])


def test_cut_answer_still_has_the_hosts_figures() -> None:
    reading = SmiReader().parse_host(FIRST[: FIRST.index("#gpudeck gpus")], "nvidia-smi did not answer")
    assert reading.report.metrics["cpu_count"] == 16
    assert reading.report.gpus is None
    assert reading.report.gpus_reason == "nvidia-smi did not answer"
    assert_is_well_formed(reading)


def test_gpus_that_were_seen_are_missing_while_only_the_host_can_be_read() -> None:
    (gpu,) = after(FIRST).parse_host(SECOND, "nvidia-smi did not answer").report.gpus or []
    assert (gpu.uuid, gpu.missing) == (UUID, "nvidia-smi did not answer")


@given(st.text())
def test_any_text_is_refused_in_words(text: str) -> None:
    with pytest.raises(PluginError):
        parse(text)


@given(st.lists(st.tuples(st.integers(0, len(LINES) - 1), st.text(max_size=60)), max_size=8))
def test_any_damage_to_an_answer_is_read_or_refused(damage: list[tuple[int, str]]) -> None:
    lines = list(LINES)
    for place, text in damage:
        lines[place] = lines[place][: len(text) // 2] + text
    assert_read_or_refused("\n".join(lines))


WORDS = (
    *(UUID, "0", "1", "429", ":", ", ", " ", "GPU ", "00000000:00:06.0", "Process ID", "Processes", "[N/A]", "Enabled"),
    *(
        "9" * 30,
        "-1",
        "/proc/429/cmdline:",
        "/proc/429/status:Uid:",
        "/proc/429/cgroup:0::/user.slice/user-",
        "\x01",
        "(",
        ")",
        "index",
        "uuid",
        "None",
        "²",
        "cpu ",
    ),
)
PARTS = ("gpus", "columns", "gpus-code", "details", "starts", "owners", "files", "cpu", "disk", "network", "namespaces")


@given(st.sampled_from(PARTS), st.lists(st.lists(st.sampled_from(WORDS)).map("".join), max_size=6))
def test_any_lines_in_a_part_are_read_or_refused(part: str, lines: list[str]) -> None:
    assert_read_or_refused(with_part(part, *lines))


def assert_read_or_refused(text: str) -> None:
    with suppress(PluginError):
        assert_is_well_formed(after(FIRST).parse(text, 1.0))


@pytest.mark.parametrize("line", ["x" * 100, "1, GPU-a, b", "Process ID : 429", "a" * 100_000, "GPU 00000000:00:06.0"])
@pytest.mark.parametrize("part", ["gpus", "details", "files", "starts", "instances", "table"])
def test_large_answers_are_bounded(part: str, line: str) -> None:
    lines = [line] * (1_000_000 // (len(line) + 2))
    marked = FIRST.replace("\n#gpudeck starts\n", MIG_PARTS)
    reading = parse(with_part(part, "0, " + UUID, *lines, answer=marked))
    assert_is_well_formed(reading)
    assert all(
        len(process.command or "") <= LENGTH for gpu in reading.report.gpus or [] for process in gpu.processes or []
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("45", 45.0),
        ("45 %", 45.0),
        ("529.05 W", 529.05),
        ("529,05", 529.05),
        ("714 MiB", 714.0 * MIB),
        ("2 GiB", 2048.0 * MIB),
        ("-8 C", -8.0),
        ("[N/A]", None),
        ("", None),
        ("٣", None),
        ("9" * 5000, None),
    ],
)
def test_numbers_are_read_with_and_without_units(text: str, value: float | None) -> None:
    assert read_number(text) == value


@pytest.mark.parametrize("text", ["GPU 0000:3b:00.0: lost", "00000000:3B:00.0", "GPU0000:3B:00.0: Unknown Error"])
def test_pci_addresses_are_the_same_however_they_are_written(text: str) -> None:
    assert read_bus_id(text) == "0000:3b:00.0"


def test_words_nobody_has_seen_are_shown() -> None:
    assert explain("[Out of cheese]") == "nvidia-smi says: [Out of cheese]"
