"""Summaries of Jobstats: read from what sacct prints, imported into a hub, and written again."""

import base64
import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.hubs import HubProcess, gpudeck, running_hub
from gpudeck.model.job import JobGpu, JobReport, read_summary, write_summary

GIB = 2**30
START = 1_780_000_000
# As Jobstats' report_job_json writes it, for a job of two nodes.
STATS = {
    "nodes": {
        "della-i14g2": {
            "total_memory": 137438953472,
            "used_memory": 8444272640,
            "total_time": 164480.1,
            "cpus": 24,
            "gpu_total_memory": {"0": 40 * GIB, "1": 40 * GIB},
            "gpu_used_memory": {"0": 26 * GIB, "1": 26 * GIB},
            "gpu_utilization": {"0": 65.7, "1": 64.5},
        },
        "della-i14g3": {
            "total_memory": 137438953472,
            "gpu_total_memory": {"0": 40 * GIB},
            "gpu_used_memory": {"0": 0},
            "gpu_utilization": {"0": 0},
        },
    },
    "total_time": 7200,
    "gpus": 3,
}


def pack(stats: Any) -> str:
    return f"JS1:{base64.b64encode(gzip.compress(json.dumps(stats, separators=(',', ':')).encode(), mtime=0)).decode()}"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    folder = tmp_path_factory.mktemp("jobstats")
    (folder / "gpudeck.yaml").write_text(json.dumps({"demo": "never", "local": "never"}))
    with running_hub(folder, "--config", str(folder / "gpudeck.yaml")) as found:
        yield found


def import_file(hub: HubProcess, folder: Path, text: str, *options: str) -> Any:
    (folder / "sacct.txt").write_text(text)
    return gpudeck(folder, "import", "jobstats", str(folder / "sacct.txt"), "--hub", hub.url, *options)


def test_what_sacct_prints_is_imported_and_damaged_lines_hide_no_others(hub: HubProcess, tmp_path: Path) -> None:
    good = pack(STATS)
    lines = [
        "JobID|Start|User|Account|State|AdminComment|JobName",
        f"11|{START}|ada|math|COMPLETED|{good}|a|b",
        f"12|{START}|ada|math|TIMEOUT|{good[:60]}|cut",
        f"13|{START}|ada|math|COMPLETED|JS1:Short|short",
        f"14|{START}|ada|math|COMPLETED||none",
        f"15|{START}|bob|math|CANCELLED by 7|{good}|last",
        f"16|yesterday|bob|math|COMPLETED|{good}|when",
        f"17|{START}|bob|math|COMPLETED|JS1:{base64.b64encode(gzip.compress(b'[1]')).decode()}|what",
        f"18|2099-01-01T00:00:00|bob|math|COMPLETED|{good}|later",
        f"19.batch|{START}|bob|math|COMPLETED|{good}|step",
    ]
    done = import_file(hub, tmp_path, "\n".join(lines))
    assert done.returncode == 1, done.stderr
    assert "! line 3: job 12: it is cut off" in done.stdout
    assert "- line 4: job 13: Jobstats has no figures" in done.stdout
    assert "! line 7: job 16: " in done.stdout
    assert "! line 8: job 17: it is no summary of Jobstats" in done.stdout
    assert "! line 9: job 18: it cannot have started at 2099-01-01" in done.stdout
    assert "! line 10: '19.batch' is not the id of a job" in done.stdout
    assert done.stdout.endswith("\n2 jobs done, 0 already present, 5 not imported, 1 skipped.\n")
    (job,) = json.loads(hub.get("/api/v1/jobs/11"))["jobs"]
    assert (job["user"], job["account"], job["name"], job["outcome"]) == ("ada", "math", "a|b", "COMPLETED")
    assert (job["start"], job["ended_at"], job["gpu_count"]) == (START, START + 7200, 3)
    first, _, unused = job["gpus"]
    assert (first["host"], first["label"], first["memory_peak_bytes"]) == ("della-i14g2", "0", 26 * GIB)
    assert round(first["utilization_percent"], 1) == 65.7
    assert first["energy_kwh"] is None
    assert (unused["used_hours"], unused["utilization_percent"]) == (0.0, 0.0)
    assert (job["idle_hours"], first["idle_hours"]) == (None, None)
    assert json.loads(hub.get("/api/v1/jobs/15"))["jobs"][0]["outcome"] == "CANCELLED"
    # Again: nothing is imported twice.
    again = import_file(hub, tmp_path, "\n".join(lines))
    assert "= 2 jobs, 11 to 15: all are there already" in again.stdout
    assert "\n0 jobs done, 2 already present, " in again.stdout
    # No share of what was monitored here, and idle hours are unknown, not 0.
    report = gpudeck(
        tmp_path, "report", "--by", "account", "--since", "2026-01-01", "--format", "json", "--hub", hub.url
    )
    (row,) = json.loads(report.stdout)["rows"]
    assert (row["account"], row["gpu_hours"], row["share"], row["idle_hours"]) == ("math", 8.0, None, None)
    # What comes out of the hub is what went in.
    printed = gpudeck(tmp_path, "job", "11", "--jobstats", "--hub", hub.url)
    summary = read_summary(printed.stdout)
    assert summary is not None
    node = summary.nodes["della-i14g2"]
    assert (summary.total_time, summary.gpus, node.gpu_utilization) == (7200, 3, {"0": 65.7, "1": 64.5})
    assert node.gpu_used_memory == STATS["nodes"]["della-i14g2"]["gpu_used_memory"]  # type: ignore[index]
    assert (node.total_memory, node.used_memory, node.total_time, node.cpus) == (128 * GIB, 8444272640, 164480.1, 24)


def test_lines_of_a_job_and_its_summary_need_a_job_that_the_hub_knows(hub: HubProcess, tmp_path: Path) -> None:
    done = import_file(hub, tmp_path, f"JobID|AdminComment\n99|{pack(STATS)}\n99.batch|\n")
    assert done.returncode == 1
    assert "job 99: neither the import nor this hub knows when it started" in done.stdout


def test_two_starts_of_a_job_in_one_file_stay_two(hub: HubProcess, tmp_path: Path) -> None:
    head, good = "JobID|Start|State|AdminComment", pack(STATS)
    lines = [head, f"31|{START}|REQUEUED|{good}", f"31|{START + 9000}|COMPLETED|{good}"]
    done = import_file(hub, tmp_path, "\n".join([*lines, head, lines[1]]))
    assert done.stdout.endswith("\n2 jobs done, 1 already present.\n"), done.stdout
    newest, first = json.loads(hub.get("/api/v1/jobs/31"))["jobs"]
    assert (newest["start"], newest["outcome"]) == (START + 9000, "COMPLETED")
    assert (first["start"], first["outcome"]) == (START, "REQUEUED")
    assert newest["allocated_hours"] == first["allocated_hours"] == 6.0
    again = import_file(hub, tmp_path, "\n".join(lines))
    assert "\n0 jobs done, 2 already present." in again.stdout


def test_cut_lines_and_jobs_that_have_not_ended_are_refused_by_line(hub: HubProcess, tmp_path: Path) -> None:
    good, now = pack(STATS), int(time.time())
    lines = [
        "JobID|Start|State|AdminComment",
        f"41|{START}|COMPLETED|{good}",
        f"42|{START}|COMP",
        f"43|{START}|COMPLETED|JS",
        f"44|{START}|COMPLETED|someone else's comment",
        f"45|{START}|RUNNING|{good}",
        f"46|{now - 3600}|COMPLETED|{good}",
    ]
    done = import_file(hub, tmp_path, "\n".join(lines))
    assert done.returncode == 1
    assert "! line 3: it is cut off: it has 3 of 4 columns" in done.stdout
    assert "! line 6: job 45: it has not ended (RUNNING)" in done.stdout
    assert "! line 7: job 46: it would end in the future, 7200 s after" in done.stdout
    assert "\n2 lines without a summary of Jobstats.\n1 job done, 0 already present, 3 not imported.\n" in done.stdout


def test_gpus_without_figures_are_allocated_and_unknown(hub: HubProcess, tmp_path: Path) -> None:
    stats = {"nodes": {"n7": {"gpu_utilization": {"0": 50}, "gpu_used_memory": {"0": GIB}}}, "total_time": 7200}
    table = f"JobID|Start|Account|AdminComment\n61|{START}|bio|{pack(stats | {'gpus': 4})}\n"
    assert import_file(hub, tmp_path, table).returncode == 0
    (job,) = json.loads(hub.get("/api/v1/jobs/61"))["jobs"]
    assert (job["gpu_count"], job["allocated_hours"], job["unmonitored_hours"]) == (4, 8.0, 6.0)
    assert (job["used_hours"], job["unused_hours"], job["coverage"]) == (2.0, 0.0, 0.25)
    assert job["utilization_percent"] == 50.0
    unknown = [gpu for gpu in job["gpus"] if gpu["label"].startswith("?")]
    assert [(gpu["host"], gpu["allocated_hours"], gpu["used_hours"], gpu["unused_hours"]) for gpu in unknown] == [
        ("n7", 2.0, None, None)
    ] * 3
    shown = gpudeck(tmp_path, "job", "61", "--hub", hub.url).stdout
    assert "What the GPUs did in 6.0 of the 8.0 allocated hours is not known." in shown
    report = ("report", "--by", "account", "--since", "2026-01-01", "--hub", hub.url)
    rows = json.loads(gpudeck(tmp_path, *report, "--format", "json").stdout)["rows"]
    (row,) = (row for row in rows if row.get("account") == "bio")
    figures = [row[name] for name in ("allocated_hours", "unmonitored_hours", "unused_hours", "never_used_hours")]
    assert figures == pytest.approx([8.0, 6.0, 0.0, 0.0])
    assert "6.0 of the allocated hours were not monitored" in " ".join(gpudeck(tmp_path, *report).stdout.split())


def test_a_refused_token_is_the_error_of_the_import(hub: HubProcess, tmp_path: Path) -> None:
    table = f"JobID|Start|AdminComment\n71|{START}|{pack(STATS)}\n"
    (tmp_path / "sacct.txt").write_text(table)
    command = ("import", "jobstats", str(tmp_path / "sacct.txt"), "--hub", hub.url)
    done = gpudeck(tmp_path, *command, GPUDECK_TOKEN="wrong")
    assert (done.returncode, done.stdout) == (2, "")
    assert "token" in done.stderr


@pytest.mark.parametrize("header", ["JobIDRaw|Start|AdminComment", "JobID Start AdminComment", "hello"])
def test_a_file_without_the_header_is_refused(hub: HubProcess, tmp_path: Path, header: str) -> None:
    done = import_file(hub, tmp_path, f"{header}\n81|{START}|{pack(STATS)}\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the columns JobID and AdminComment, separated by |" in done.stderr


@pytest.mark.parametrize("text", ["JS1:Short", "JS1:None", "JS1:"])
def test_a_job_without_figures_has_none(text: str) -> None:
    assert read_summary(text) is None


@pytest.mark.parametrize(
    "text", ["JS1:!!", "JS1:AAAA", pack({"total_time": 1}), pack({"nodes": {"a": {"gpu_utilization": {"0": 101}}}})]
)
def test_damaged_summaries_are_errors(text: str) -> None:
    with pytest.raises(ValueError, match="it is"):
        read_summary(text)


def test_a_summary_that_unpacks_to_gigabytes_is_an_error() -> None:
    with pytest.raises(ValueError, match="larger than 16 MiB"):
        read_summary(f"JS1:{base64.b64encode(gzip.compress(bytes(64 * 2**20))).decode()}")


def test_what_is_not_known_is_left_out() -> None:
    gpu = JobGpu(host="n1", label="0", uuid="GPU-0", model="H100", memory_total_bytes=80.0 * GIB)
    report = JobReport(
        scheduler="slurm", job="7", state="ended", start=0.0, last_seen=1.0, wall_seconds=60.0, gpu_count=1, gpus=[gpu]
    )
    packed = write_summary(report)
    told = json.loads(gzip.decompress(base64.b64decode(packed.removeprefix("JS1:"))))
    assert told == {"nodes": {"n1": {"gpu_total_memory": {"0": 80.0 * GIB}}}, "total_time": 60.0, "gpus": 1}
