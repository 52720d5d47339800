"""gpudeck alerts against a server that answers as a hub does: what it asks, what it prints, how it ends."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fakes.hubs import gpudeck

NOW = 1_790_000_000.0
DOWN: dict[str, Any] = {
    "id": "3eca30b04c",
    "rule": "host_down",
    "severity": "critical",
    "state": "firing",
    "title": "gpu01\x1b[2J has stopped reporting",
    "action": "Look at it.",
    "note": None,
    "host": "gpu01",
    "host_id": "m1",
    "gpu": None,
    "label": None,
    "accounts": [],
    "since": NOW - 180,
    "fired_at": NOW - 120,
    "acknowledged_at": None,
    "acknowledged_by": None,
    "resolved_at": None,
    "muted_by": None,
}
MINE = DOWN | {"id": "a1", "severity": "warning", "title": "GPU 1 of gpu02 is at 91 °C", "acknowledged_by": "ada"}
MUTE: dict[str, Any] = {
    "id": "9f8e7d6c",
    "start": NOW,
    "end": NOW + 7200,
    "created_at": NOW,
    "created_by": "root",
    "reason": "new fans",
    "host": "gpu-1*",
    "rule": None,
    "labels": {"rack": "4"},
}


class FakeHub:
    """Answers every question with what the test wants; keeps what it was asked."""

    def __init__(self, answer: Any) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                fake.asked.append((self.command, self.path, msgspec.json.decode(body) if body else None))
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(msgspec.json.encode(answer))

            do_POST = do_DELETE = do_GET  # noqa: N815 - the names that the server looks for

            def log_message(self, *_: object) -> None:
                """Nothing on the standard error of a test."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextlib.contextmanager
def running(answer: Any) -> Iterator[FakeHub]:
    hub = FakeHub(answer)
    thread = threading.Thread(target=hub.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.server.shutdown()
        hub.server.server_close()
        thread.join()


def test_alerts_are_listed_with_their_ids_and_next_steps(tmp_path: Path) -> None:
    with running({"alerts": [DOWN, MINE], "time": NOW}) as hub:
        done = gpudeck(tmp_path, "alerts", "--severity", "warning", "--host", "gpu01", "--hub", hub.url)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "✗ gpu01�[2J has stopped reporting, for 3m",
        "  3eca30b04c  host_down  Look at it.",
        "▲ GPU 1 of gpu02 is at 91 °C, for 3m, ada acknowledged it",
        "  a1  host_down  Look at it.",
    ]
    assert hub.asked == [("GET", "/api/v1/alerts?severity=warning%2Ccritical&host=gpu01", None)]


def test_nothing_wrong_is_said_and_is_no_failure(tmp_path: Path) -> None:
    with running({"alerts": [], "time": NOW}) as hub:
        done = gpudeck(tmp_path, "alerts", "--hub", hub.url)
    assert (done.returncode, done.stdout) == (0, "Nothing is wrong.\n")


def test_json_is_what_the_hub_said(tmp_path: Path) -> None:
    with running({"alerts": [DOWN], "time": NOW}) as hub:
        done = gpudeck(tmp_path, "alerts", "--json", "--hub", hub.url)
    assert msgspec.json.decode(done.stdout)["alerts"] == [DOWN]


def test_acknowledging_names_who_did_it_and_what(tmp_path: Path) -> None:
    with running(DOWN | {"acknowledged_by": "ada"}) as hub:
        done = gpudeck(tmp_path, "alerts", "ack", "3eca30b04c", "--hub", hub.url)
    assert done.stdout == "ada acknowledged: gpu01�[2J has stopped reporting\n"
    assert hub.asked == [("POST", "/api/v1/alerts/3eca30b04c/acknowledge", None)]


def test_hub_before_the_word_is_refused_rather_than_passed_over(tmp_path: Path) -> None:
    done = gpudeck(tmp_path, "alerts", "--hub", "http://127.0.0.1:9", "ack", "3eca30b04c")
    assert (done.returncode, done.stderr) == (2, "gpudeck: --hub stands behind ack.\n")


def test_mute_says_what_how_long_and_why(tmp_path: Path) -> None:
    with running(MUTE) as hub:
        words = ["--host", "gpu-1*", "--label", "rack=4", "--for", "2h", "new fans", "--hub", hub.url]
        done = gpudeck(tmp_path, "alerts", "mute", *words)
    assert done.stdout.startswith("Mute 9f8e7d6c lasts until ")
    wanted = {"host": "gpu-1*", "reason": "new fans", "for": "2h", "labels": {"rack": "4"}}
    assert hub.asked == [("POST", "/api/v1/mutes", wanted)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["why", "--for", "2h"], "nothing to mute is named"),
        (["why", "--for", "2h", "--label", "rack"], "must be KEY=VALUE"),
        (["why", "--host", "a"], "--for"),
    ],
)
def test_mute_that_is_not_complete_is_refused(tmp_path: Path, words: list[str], said: str) -> None:
    done = gpudeck(tmp_path, "alerts", "mute", *words)
    assert done.returncode == 2
    assert said in done.stderr


def test_mute_of_many_hosts_is_one_short_line(tmp_path: Path) -> None:
    mute = MUTE | {"host": None, "rule": "gpu_hot", "labels": {}, "hosts": [f"gpu{number:03}" for number in range(300)]}
    with running({"mutes": [mute], "time": NOW}) as hub:
        listed = gpudeck(tmp_path, "alerts", "mutes", "--hub", hub.url)
    assert listed.stdout.startswith("9f8e7d6c  gpu_hot gpu000, gpu001, gpu002, gpu003, gpu004 and 295 more  until ")


def test_mutes_are_listed_and_ended(tmp_path: Path) -> None:
    with running({"mutes": [MUTE], "time": NOW}) as hub:
        listed = gpudeck(tmp_path, "alerts", "mutes", "--hub", hub.url)
        ended = gpudeck(tmp_path, "alerts", "unmute", "9f8e7d6c", "--hub", hub.url)
    assert listed.stdout.startswith("9f8e7d6c  gpu-1* rack=4  until ")
    assert listed.stdout.endswith(", root: new fans\n")
    assert ended.stdout == "Mute 9f8e7d6c has ended.\n"
    assert hub.asked[-1][:2] == ("DELETE", "/api/v1/mutes/9f8e7d6c")


TESTED: dict[str, Any] = {
    "rule": "idle_memory",
    "expr": "utilization_percent < 5 for 2h",
    "start": NOW - 7 * 86_400,
    "end": NOW,
    "step": 300.0,
    "known": 0.981,
    "hosts": 12,
    "hosts_left": 3,
    "count": 2,
    "firings": [
        {
            "title": "GPU 3 of gpu07: utilization 1 %\x1b[2J",
            "host": "gpu07",
            "host_id": "m7",
            "gpu": "GPU-3",
            "label": "3",
            "since": NOW - 40_000.0,
            "fired_at": NOW - 32_800.0,
            "resolved_at": end,
        }
        for end in (NOW - 5_200.0, None)
    ],
}


def test_a_rule_is_tested_against_the_past(tmp_path: Path) -> None:
    with running(TESTED) as hub:
        run = gpudeck(tmp_path, "alerts", "test", "idle_memory", "--since", "7d", "--hub", hub.url)
    assert run.returncode == 0
    first, *lines = run.stdout.splitlines()
    assert first == "idle_memory would have fired 2 times in 7d, on 1 GPU:"
    assert ["for 9h 40m" in lines[0], "still true" in lines[1], "\x1b" in run.stdout] == [True, True, False]
    assert lines[2].startswith("Tested on 12 hosts with means of 5m")
    assert "98 % of the time is known." in lines[2]
    assert lines[3] == "It took too long: not tested on 3 hosts. Give --host or a shorter period."
    assert "rule=idle_memory" in hub.asked[0][1]


def test_a_rule_that_never_fires_and_one_without_a_past(tmp_path: Path) -> None:
    with running(TESTED | {"count": 0, "firings": [], "hosts_left": 0}) as hub:
        run = gpudeck(tmp_path, "alerts", "test", "--expr", "power_watts > 500", "--hub", hub.url)
    assert run.stdout.startswith("idle_memory would never have fired in 7d.")
    with running(TESTED | {"step": None, "known": None, "count": 0, "firings": []}) as hub:
        run = gpudeck(tmp_path, "alerts", "test", "idle_memory", "--hub", hub.url)
    assert run.stdout.startswith("Not tested: the history knows nothing")


def test_a_mistake_in_an_expression_is_shown_without_a_hub(tmp_path: Path) -> None:
    run = gpudeck(tmp_path, "alerts", "test", "--expr", "power_wats > 500", "--hub", "http://127.0.0.1:1")
    assert run.returncode == 2
    assert run.stderr.splitlines()[-2:] == ["    power_wats > 500", "    ^^^^^^^^^^"]
