"""gpudeck runs: what it asks the hub, what it prints, how it ends."""

from datetime import timezone

import msgspec
import pytest
from click.testing import CliRunner

from fakes.store import RUN, VERDICT
from gpudeck.cli import gpudeck
from gpudeck.client import Client
from gpudeck.model.job import Runs, RunVerdict
from gpudeck.views.jobs import render_runs

NOW = 1_790_010_000.0


def shown(*verdicts: RunVerdict | None, command: str = "python train.py") -> Runs:
    """As they come over the wire."""
    runs = [msgspec.structs.replace(RUN, verdict=verdict, command=command) for verdict in verdicts]
    return msgspec.json.decode(msgspec.json.encode(Runs(runs)), type=Runs)


def test_each_run_has_its_verdict_and_one_suggestion() -> None:
    unknown = RunVerdict("unknown", "No verdict: it is new.", "it is new")
    text = render_runs(shown(VERDICT, unknown, None).runs, timezone.utc, NOW)
    assert text.splitlines() == [
        "RUN  GPUS     MODEL  USER   START    TIME  UTIL  MEM GiB  VERDICT    COMMAND",
        "  7  gpu01:0  H200   alice  14:13  2h 46m   50%      0.9  ✗ poor     python train.py",
        "    It was idle: 72 % of 2h. End it.",
        "  7  gpu01:0  H200   alice  14:13  2h 46m   50%      0.9  ? unknown  python train.py",
        "  7  gpu01:0  H200   alice  14:13  2h 46m   50%      0.9  –          python train.py",
    ]


@pytest.mark.parametrize("width", [20, 40, 80])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = render_runs(shown(VERDICT, command="a\x1b[31m" + "字" * 50).runs, timezone.utc, NOW, width=width)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= width


def test_verdicts_on_what_was_named_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def answer(_: Client, path: str, query: object) -> bytes:
        asked.append((path, query))
        return b'{"runs":[]}'

    monkeypatch.setenv("GPUDECK_TOKEN", "t")
    monkeypatch.setattr(Client, "get", answer)
    listed = CliRunner().invoke(gpudeck, ["runs", "--user", "ann", "--now", "--since", "-7d", "--limit", "5"])
    assert (listed.exit_code, listed.stdout, listed.stderr) == (1, "", "No runs.\n")
    query = {"user": "ann", "start": "-7d", "limit": "5", "verdict": "true", "now": "true"}
    assert asked == [("/api/v1/runs", query)]


def test_mine_and_a_name_exclude_each_other() -> None:
    answer = CliRunner().invoke(gpudeck, ["runs", "--mine", "--user", "ann", "--hub", "http://127.0.0.1:1"])
    assert answer.exit_code != 0
    assert "exclude each other" in f"{answer.output}{answer.exception}"
