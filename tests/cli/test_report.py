"""gpudeck report against a server that answers as a hub does: what it asks, what it prints, how it ends."""

import contextlib
import csv
import io
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from fakes.hubs import gpudeck
from gpudeck.model.event import FaultEvidence, Reliability, ReliabilityRow
from gpudeck.model.usage import Day, SmallerModel, Usage, UsageRow, Waste, WastedHours, WasteRow

T0 = 1_780_272_000.0  # 2026-06-01 00:00 UTC
DAYS = [Day("2026-06-01", T0, 1.0, 0.5), Day("2026-06-02", T0 + 86_400, 0.5, None)]


def make_row(hours: float, **others: Any) -> UsageRow:
    known: dict[str, Any] = dict.fromkeys(("active_hours", "peak_memory_bytes", "energy_kwh"))
    known |= {"measured_hours": 0.0, "idle_hours": 0.0, "share": 0.5}
    return UsageRow(gpu_hours=hours, **known, **others)


def make_usage(*rows: UsageRow) -> bytes:
    total = make_row(sum(row.gpu_hours for row in rows))
    return msgspec.json.encode(Usage("user", T0, T0 + 2 * 86_400, 0.987, 10.0, "", list(rows), total))


ANSWER = make_usage(make_row(1.5, user="alice", days=DAYS), make_row(1.0, unknown=True))


class FakeHub:
    """Answers every question alike, or only those who show a token; keeps what it was asked."""

    def __init__(self, body: bytes, status: int, token: str | None) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                fake.asked.append((parts.path, {name: words[0] for name, words in parse_qs(parts.query).items()}))
                is_known = token is None or self.headers.get("Authorization") == f"Bearer {token}"
                self.send_response(status if is_known else 401)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(body if is_known else b'{"error":{"code":"unauthorized","message":"who asks?"}}')

            def log_message(self, *_: object) -> None:
                """Nothing on the standard error of a test."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextlib.contextmanager
def hub_with(body: bytes = ANSWER, status: int = 200, token: str | None = None) -> Iterator[FakeHub]:
    hub = FakeHub(body, status, token)
    thread = threading.Thread(target=hub.server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        hub.server.shutdown()
        hub.server.server_close()
        thread.join(10)


def test_the_table_says_who_and_how_much_was_observed(tmp_path: Path) -> None:
    with hub_with() as hub:
        answer = gpudeck(tmp_path, "report", "--hub", hub.url, TZ="Asia/Kolkata")
    lines = answer.stdout.splitlines()
    assert (answer.returncode, answer.stderr) == (0, "")
    assert lines[0] == "Usage by user, 2026-06-01 05:30 to 2026-06-03 05:30 (Asia/Kolkata)"
    assert [line.split()[:2] for line in lines[3:6]] == [["alice", "1.5"], ["(unknown)", "1.0"], ["total", "2.5"]]
    assert lines[-1] == "Coverage 98.7 %."


def test_without_any_word_the_last_thirty_days_of_everybody_are_asked_for(tmp_path: Path) -> None:
    with hub_with() as hub:
        before = time.time()
        gpudeck(tmp_path, "report", "--hub", hub.url)
        after = time.time()
    [(path, query)] = hub.asked
    assert (path, sorted(query), query["by"]) == ("/api/v1/usage", ["by", "end", "start"], "user")
    assert before <= float(query["end"]) <= after
    assert float(query["end"]) - float(query["start"]) == pytest.approx(30 * 86_400)


def test_what_is_typed_is_what_is_asked(tmp_path: Path) -> None:
    words = ["--by", "host", "--since", "2026-10-01", "--until", "2026-10-31", "--daily"]
    with hub_with() as hub:
        gpudeck(tmp_path, "report", *words, GPUDECK_HUB=hub.url, TZ="Asia/Tokyo")
    october = {"start": repr(1_790_780_400.0), "end": repr(1_793_458_800.0)}
    assert hub.asked[0][1] == {"by": "host", "daily": "true", "zone": "Asia/Tokyo", **october}


def test_json_is_the_hubs_answer_and_nothing_else(tmp_path: Path) -> None:
    with hub_with() as hub:
        answer = gpudeck(tmp_path, "report", "--format", "json", "--hub", hub.url)
    assert answer.stdout == ANSWER.decode() + "\n"


def test_csv_can_be_read_by_a_spreadsheet(tmp_path: Path) -> None:
    with hub_with() as hub:
        answer = gpudeck(tmp_path, "report", "--format", "csv", "--hub", hub.url)
        daily = gpudeck(tmp_path, "report", "--format", "csv", "--daily", "--hub", hub.url)
    rows = list(csv.DictReader(io.StringIO(answer.stdout)))
    assert [(row["user"], row["gpu_hours"], row["active_hours"]) for row in rows] == [
        ("alice", "1.5", ""),
        ("", "1.0", ""),
    ]
    assert [row["day"] for row in csv.DictReader(io.StringIO(daily.stdout))] == ["2026-06-01", "2026-06-02"]


def test_days_are_shown_where_they_are_asked_for(tmp_path: Path) -> None:
    with hub_with() as hub:
        answer = gpudeck(tmp_path, "report", "--daily", "--hub", hub.url)
    assert ["2026-06-02", "alice", "0.5", "–"] in [line.split() for line in answer.stdout.splitlines()]


def test_the_token_of_this_machine_is_shown_to_a_hub_that_wants_one(tmp_path: Path) -> None:
    (tmp_path / "admin.token").write_text("secret-of-this-machine\n")
    with hub_with(token="secret-of-this-machine") as hub:
        answer = gpudeck(tmp_path, "report", "--hub", hub.url)
    assert (answer.returncode, len(hub.asked)) == (0, 2)


def test_a_refusal_of_the_hub_is_told_with_its_hint(tmp_path: Path) -> None:
    body = b'{"error":{"code":"too_long","message":"401 days are too many","hint":"Ask for less."}}'
    with hub_with(body, 400) as hub:
        answer = gpudeck(tmp_path, "report", "--hub", hub.url)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == "gpudeck: 401 days are too many. Ask for less.\n"


def test_a_hub_that_keeps_no_history_says_so(tmp_path: Path) -> None:
    body = b'{"error":{"code":"no_history","message":"this hub keeps no history","hint":"It is off."}}'
    with hub_with(body, 404) as hub:
        answer = gpudeck(tmp_path, "report", "--hub", hub.url)
    assert (answer.returncode, answer.stderr) == (1, "gpudeck: this hub keeps no history. It is off.\n")


@pytest.mark.parametrize("body", [b'{"error":{"code":"not_found","message":"Not Found"}}', b"nothing here"])
def test_a_path_beside_the_hubs_is_no_hub(tmp_path: Path, body: bytes) -> None:
    with hub_with(body, 404) as hub:
        answer = gpudeck(tmp_path, "report", "--hub", hub.url)
    assert (answer.returncode, "is no gpudeck hub" in answer.stderr) == (3, True)


@pytest.mark.parametrize("body", [b"{}", b"[]", b"not json", b'{"hosts": []}'])
def test_an_answer_of_somebody_else_is_no_usage(tmp_path: Path, body: bytes) -> None:
    with hub_with(body) as hub:
        answer = gpudeck(tmp_path, "report", "--hub", hub.url)
    assert (answer.returncode, answer.stdout) == (3, "")
    assert "answers, but not as a hub of this version would" in answer.stderr


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--hub", "http://127.0.0.1:1"], 3, "no hub answers at http://127.0.0.1:1"),
        (["--since", "soon"], 2, "--since 'soon' is not a time"),
        (["--since", "1d", "--until", "2d"], 2, "ends before it begins"),
        (["--by", "colour"], 2, "colour"),
    ],
)
def test_wrong_use_gets_a_line_that_says_what_to_do(tmp_path: Path, words: list[str], code: int, told: str) -> None:
    answer = gpudeck(tmp_path, "report", *words)
    assert (answer.returncode, answer.stdout) == (code, "")
    assert told in answer.stderr
    assert "Traceback" not in answer.stderr


def test_help_has_examples(tmp_path: Path) -> None:
    answer = gpudeck(tmp_path, "report", "--help")
    assert (answer.returncode, "Examples:\n    gpudeck report" in answer.stdout) == (0, True)


def test_a_base_install_can_report(tmp_path: Path) -> None:
    """The hub's parts, numpy among them, need not be installed where the report is read."""
    program = (
        "import sys; sys.modules['numpy'] = None; import gpudeck.history.usage, gpudeck.cli.period, gpudeck.views.usage"
    )
    (tmp_path / "sitecustomize.py").write_text(program)
    with hub_with() as hub:
        answer = gpudeck(tmp_path, "report", "--format", "csv", "--hub", hub.url, PYTHONPATH=str(tmp_path))
    assert (answer.returncode, answer.stderr) == (0, "")


FAULT = FaultEvidence("xid", "XID 79", 3, is_incident=True, last_at=T0 + 60, points=60.0)
FLAKY = msgspec.json.encode(
    Reliability(
        "gpu",
        T0,
        T0 + 86_400,
        3,
        [
            ReliabilityRow("gpu07", "id", 3, 7200.0, 0.0, "GPU-1", "4", None, 40.0, [FAULT]),
            ReliabilityRow("gpu08", "id-8", 1, 0.0, 0.0, "GPU-2", "0"),
        ],
        ["Something is not included."],
    )
)


def test_reliability_is_a_table_with_its_evidence(tmp_path: Path) -> None:
    with hub_with(FLAKY) as hub:
        done = gpudeck(tmp_path, "report", "--reliability", "--since", "7d", "--hub", hub.url)
    ((path, query),) = hub.asked
    assert (path, query["by"]) == ("/api/v1/reliability", "gpu")
    (row,) = [line for line in done.stdout.splitlines() if "gpu07:4" in line]
    assert row.split() == ["gpu07:4", "40", "3", "2h", "0m", "–", "3", "×", "XID", "79", "(-60)"]
    (row,) = [line for line in done.stdout.splitlines() if "gpu08:0" in line]
    assert row.split() == ["gpu08:0", "–", "1", "–", "–"], "a hub of before knows no score"
    assert "1 more had faults." in done.stdout
    assert "Something is not included." in done.stdout


def wasted(idle: float | None, cost: float | None = None, before: float | None = None) -> WastedHours:
    return WastedHours(idle, cost, before)


def waste_row(name: str | None, hours: float) -> WasteRow:
    unknown = wasted(None)
    return WasteRow(name, False, 10.0, wasted(hours, 2 * hours, 1.0), unknown, wasted(3.0), wasted(hours / 2, hours))


WASTEFUL = msgspec.json.encode(
    Waste(
        by="group",
        start=T0,
        end=T0 + 86_400,
        before_start=T0 - 86_400,
        currency="EUR",
        coverage=0.5,
        coverage_before=1.0,
        judged_hours=8.0,
        released_after_seconds=3600.0,
        rows=[waste_row("vision", 4.0), waste_row(None, 0.0)],
        total=waste_row(None, 4.0),
        smaller=[SmallerModel("NVIDIA H200", "NVIDIA L40S", 3.0, None)],
    )
)


def test_waste_is_a_table_with_what_could_have_been_saved(tmp_path: Path) -> None:
    with hub_with(WASTEFUL) as hub:
        done = gpudeck(tmp_path, "report", "--waste", "--by", "group", "--hub", hub.url)
    ((path, query),) = hub.asked
    assert (path, query["by"]) == ("/api/v1/waste", "group")
    lines = [line.split() for line in done.stdout.splitlines()]
    # What nothing is known of has no column, and no zero.
    assert lines[2] == ["GROUP", "GPU-HOURS", "IDLE", "COST", "EUR", "BEFORE", "OVER-SIZED", "RELEASABLE"]
    assert lines[3] == ["vision", "10.0", "4.0", "8.0", "1.0", "3.0", "2.0"]
    assert lines[4][:2] == ["no", "group"]
    assert "If idle GPUs had been released after 1h: 2.0 GPU-hours (4.00 EUR)." in done.stdout
    assert "3.0 hours on H200 would have fitted in the memory of L40S." in done.stdout
    assert "Over-sized hours are of the 8.0 GPU-hours with known memory." in done.stdout
    assert done.stdout.endswith("Coverage 50.0 %.\n")


@pytest.mark.parametrize(
    "options",
    [
        ("--by", "gpu"),
        ("--reliability", "--by", "user"),
        ("--reliability", "--daily"),
        ("--waste", "--reliability"),
        ("--waste", "--format", "csv"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, options: tuple[str, ...]) -> None:
    with hub_with(FLAKY) as hub:
        assert gpudeck(tmp_path, "report", *options, "--hub", hub.url).returncode == 2
    assert hub.asked == []
