"""gpudeck events against a server that answers as a hub does: what it asks, what it prints, how it ends."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from fakes.hubs import gpudeck, gpudeck_without_reader
from gpudeck.model.event import Event, make_event

T0 = 1_780_272_000.0  # 2026-06-01 00:00 UTC
DOWN = make_event(T0 + 3600, "host_down", "gpu01 has stopped reporting", severity="critical", host="gpu01")
FAULT = make_event(T0 - 60, "xid", "XID 31 on GPU 0 of gpu01\x1b[2J", user="bob", detail="MMU fault.")


class FakeHub:
    """Tells of `events`, the newest first; keeps what it was asked."""

    def __init__(self, events: list[Event]) -> None:
        self.events = events
        self.asked: list[dict[str, str]] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = parse_qs(urlsplit(self.path).query)
                fake.asked.append({name: words[0] for name, words in query.items()})
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(msgspec.json.encode({"events": fake.events, "next": None}))

            def log_message(self, *_: object) -> None:
                """Nothing on the standard error of a test."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextlib.contextmanager
def running(*events: Event) -> Iterator[FakeHub]:
    hub = FakeHub(list(events))
    thread = threading.Thread(target=hub.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.server.shutdown()
        hub.server.server_close()
        thread.join()


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with running(DOWN, FAULT) as made:
        yield made


def test_events_stand_under_their_days_the_newest_last(hub: FakeHub, tmp_path: Path) -> None:
    answer = gpudeck(tmp_path, "events", "--hub", hub.url, TZ="UTC")
    assert answer.stdout.splitlines() == [
        "Sunday 2026-05-31",
        "23:59:00  · XID 31 on GPU 0 of gpu01�[2J (bob)",
        "            MMU fault.",
        "Monday 2026-06-01",
        "01:00:00  ✗ gpu01 has stopped reporting",
    ]
    assert answer.returncode == 0


def test_choice_is_the_hubs_to_make(hub: FakeHub, tmp_path: Path) -> None:
    wanted = ["--host", "gpu01", "--user", "bob", "--kind", "xid", "--severity", "warning", "--limit", "7"]
    gpudeck(tmp_path, "events", "--since", "2026-06-01", "--hub", hub.url, *wanted, TZ="UTC")
    assert hub.asked == [
        {
            "host": "gpu01",
            "user": "bob",
            "kind": "xid",
            "severity": "warning,critical",
            "limit": "7",
            "start": repr(T0),
        }
    ]


def test_json_is_one_event_a_line(hub: FakeHub, tmp_path: Path) -> None:
    lines = gpudeck(tmp_path, "events", "--json", "--hub", hub.url).stdout.splitlines()
    assert [msgspec.json.decode(line, type=Event) for line in lines] == [FAULT, DOWN]


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_reader_that_has_gone_ends_the_list_without_a_word(hub: FakeHub, tmp_path: Path, form: list[str]) -> None:
    assert gpudeck_without_reader(tmp_path, "events", *form, "--hub", hub.url) == (128 + signal.SIGPIPE, "")


def test_nothing_that_happened_is_the_answer_no(tmp_path: Path) -> None:
    with running() as hub:
        answer = gpudeck(tmp_path, "events", "--hub", hub.url)
    assert (answer.returncode, answer.stdout, answer.stderr) == (1, "", "Nothing happened.\n")


@pytest.mark.parametrize(
    ("kinds", "doubt"),
    [
        ("xid", ""),
        ("xid,host_dwon", " The hub itself tells of no 'host_dwon': did you mean host_down?"),
        ("colour", " The hub itself tells of no 'colour': there are host_seen, "),
    ],
)
def test_kind_that_the_hub_does_not_use_is_doubted_where_nothing_is_found(
    tmp_path: Path, kinds: str, doubt: str
) -> None:
    with running() as hub:
        answer = gpudeck(tmp_path, "events", "--kind", kinds, "--hub", hub.url)
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.startswith(f"Nothing happened.{doubt}")


def test_hub_that_does_not_answer_is_exit_code_3(tmp_path: Path) -> None:
    assert gpudeck(tmp_path, "events", "--hub", "http://127.0.0.1:9").returncode == 3
