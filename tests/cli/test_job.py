"""gpudeck job and jobs: what they ask the hub, what they print, how they end."""

import json
from collections.abc import Callable
from datetime import timezone
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from gpudeck.cli import gpudeck
from gpudeck.client import Client
from gpudeck.model.job import JobGpu, JobReport, JobReports, RunVerdict, Suggestion
from gpudeck.views.jobs import render_job, render_jobs

START = 1_790_000_000.0
SUGGESTION = Suggestion("idle_after_work", "It was idle", "72 % of 2h 0m", "20 %", "End it.")
GPU = JobGpu(
    host="n1",
    label="0",
    uuid="GPU-0",
    model="NVIDIA H200",
    allocated_hours=2.0,
    used_hours=1.5,
    unused_hours=0.5,
    idle_hours=0.25,
    active_hours=1.0,
    utilization_percent=50.0,
    utilization_peak_percent=99.0,
    memory_mean_bytes=2.0**31,
    memory_peak_bytes=2.0**32,
    memory_total_bytes=2.0**37,
    energy_kwh=0.5,
    cost=6.4,
    coverage=1.0,
    idle_stretches=[(START, START + 1200)],
)


def make_report(**others: Any) -> JobReport:
    fields: dict[str, Any] = {
        "scheduler": "slurm",
        "job": "4711",
        "state": "ended",
        "name": "train",
        "user": "ann",
        "account": "lab1",
        "start": START,
        "ended_at": START + 7200,
        "last_seen": START + 7200,
        "wall_seconds": 7200.0,
        "gpu_count": 1,
        "hosts": ["n1"],
        "gpus": [GPU],
        "cost": 6.4,
        "currency": "EUR",
        "coverage": 0.5,
        "verdict": RunVerdict("poor", "It was idle.", None, [SUGGESTION]),
    }
    return JobReport(**(fields | others))


def test_a_job_is_shown_with_its_gpus_verdict_and_earlier_starts() -> None:
    found = JobReports([make_report(), make_report(start=START - 86_400, outcome="TIMEOUT")])
    assert render_job(found, timezone.utc, START, width=100).splitlines() == [
        "Job 4711 (train) of ann on slurm: ended",
        "1 GPU on n1, 2h 0m (from 14:13 to 16:13)",
        "account lab1",
        "",
        "GPU   MODEL  ALLOCATED h  USED h  IDLE h  UTIL  MAX  MEM GiB  PEAK   kWh  COST  LONGEST IDLE",
        "n1:0  H200          2.00    1.50    0.25   50%  99%      2.0   4.0  0.50  6.40           20m",
        "",
        "Cost 6.40 EUR, of the allocated time.",
        "",
        "Coverage 50.0 %: the rest of the job's time was not monitored.",
        "",
        "✗ Verdict: poor.",
        "  - It was idle: 72 % of 2h 0m. End it. (From: 20 %.)",
        "",
        "Earlier starts:",
        "JOB   USER  STATE    NAME   ACCOUNT  START              TIME  GPUS  HOSTS  USED  UTIL",
        "4711  ann   TIMEOUT  train  lab1     2026-09-20 14:13  2h 0m     1  n1        –     –",
    ]


@pytest.mark.parametrize("width", [20, 40, 80])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    strange = make_report(name="a\x1b[31m" + "字" * 50, user=None, job="ml/train-0", state="unknown", ended_at=None)
    for text in (
        render_job(JobReports([strange, strange]), timezone.utc, START, width=width),
        render_jobs([strange], timezone.utc, START, width=width),
    ):
        assert "\x1b" not in text
        assert max(map(len, text.splitlines())) <= width


def test_commands_ask_for_what_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def answer(body: bytes) -> Callable[..., bytes]:
        return lambda _, *words: asked.append(words) or body

    monkeypatch.setenv("GPUDECK_TOKEN", "t")
    monkeypatch.setattr(Client, "get", answer(msgspec.json.encode(JobReports([make_report()]))))
    shown = CliRunner().invoke(gpudeck, ["job", "ml/train-0", "--scheduler", "a", "--json"])
    assert (shown.exit_code, json.loads(shown.stdout)["jobs"][0]["job"]) == (0, "4711")
    monkeypatch.setattr(Client, "get", answer(b'{"jobs":[]}'))
    listed = CliRunner().invoke(gpudeck, ["jobs", "--user", "ann", "--state", "running"])
    assert (listed.exit_code, listed.stdout, listed.stderr) == (1, "", "No jobs.\n")
    assert asked == [
        ("/api/v1/jobs/ml/train-0", {"scheduler": "a"}),
        ("/api/v1/jobs", {"user": "ann", "state": "running", "limit": "50"}),
    ]


@pytest.mark.parametrize("job", ["", "../fleet", "x y", ".", "a/b/c"])
def test_what_is_not_the_id_of_a_job_is_refused(job: str) -> None:
    answer = CliRunner().invoke(gpudeck, ["job", job, "--hub", "http://127.0.0.1:1"])
    assert answer.exit_code != 0
    assert "is not the id of a job" in f"{answer.output}{answer.exception}"
