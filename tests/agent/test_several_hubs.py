"""An agent, and the command line, with a list of hubs, of which some hang, die or answer with an error."""

import contextlib
import http.client
import itertools
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest

from fakes.clock import FakeClock
from fakes.hubs import HubProcess, gpudeck, running_hub, start
from fakes.moody_hub import MoodyHub
from fakes.ports import free_port
from fakes.waiting import wait_until
from gpudeck.agent.lock_files import announcing, find_agent_hubs
from gpudeck.agent.outbox import EncodedReport, Outbox
from gpudeck.agent.push import AVOID_SECONDS, Sender
from gpudeck.agent.run import rank_hubs
from gpudeck.client import Client
from gpudeck.model.address import is_same_hub, split_hubs
from gpudeck.model.errors import Unreachable, UsageError
from gpudeck.wire import decode_any


class Relay:
    """Passes reports on to a hub, and notes the sequence numbers of those that it accepted. When the hub goes away in
    the middle of one, the agent's connection is closed."""

    def __init__(self, hub: str) -> None:
        self.accepted: list[int] = []
        relay, place = self, urlsplit(hub).netloc

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                try:
                    with contextlib.closing(http.client.HTTPConnection(place)) as upstream:
                        upstream.request("POST", self.path, body, dict(self.headers.items()))
                        answer = upstream.getresponse()
                        told = answer.read()
                except (OSError, http.client.HTTPException):
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower().startswith(("gpudeck-", "content-")):
                        self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(told)
                if answer.status < 300:
                    relay.accepted.append(decode_any(body, encoding="zstd").sequence)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def hubs(tmp_path: Path) -> Iterator[list[HubProcess]]:
    """Two hubs that know the same token."""
    with contextlib.ExitStack() as stack:
        started = []
        for name in ("one", "two"):
            folder = tmp_path / name
            folder.mkdir()
            (folder / "gpudeck.yaml").write_text("demo: never\nlocal: never\n")
            (folder / "agent.token").write_text("a-token-that-both-hubs-know\n")
            started.append(stack.enter_context(running_hub(folder)))
        yield started
        for hub in started:
            with contextlib.suppress(ProcessLookupError):
                hub.process.send_signal(signal.SIGCONT)


def shows_up(hub: HubProcess) -> bool:
    return b'"status":"up"' in hub.get("/api/v1/fleet")


def is_complete(numbers: set[int]) -> bool:
    return numbers == set(range(1, len(numbers) + 1))


def test_agent_moves_to_the_next_hub_when_its_hub_hangs_or_dies_and_loses_no_report(
    hubs: list[HubProcess], tmp_path: Path
) -> None:
    relays = {relay.url: (relay, hub) for hub in hubs for relay in [Relay(hub.url)]}
    folder = tmp_path / "agent"
    folder.mkdir()
    arguments = ("--token-file", str(hubs[0].token_file), "--name", "gpu01", "--interval", "0.2s")
    agent = start(folder, "log", "agent", "--hub", ",".join(relays), *arguments)
    logged: Callable[[], str] = (folder / "log").read_text
    try:
        wait_until(lambda: any(relay.accepted for relay, _ in relays.values()), "the first report")
        (first, first_hub), (second, second_hub) = sorted(relays.values(), key=lambda pair: not pair[0].accepted)
        first_hub.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: f"reporting to {second.url} now" in logged(), "the hub beside one that hangs")
        wait_until(lambda: shows_up(second_hub), "the host in the second hub")
        first_hub.process.send_signal(signal.SIGCONT)
        before = len(first.accepted)
        second_hub.process.send_signal(signal.SIGKILL)
        wait_until(lambda: f"reporting to {first.url} now" in logged(), "the first hub, as the other is gone")
        wait_until(lambda: len(first.accepted) > before + 3, "more reports there")
        wait_until(lambda: is_complete({*first.accepted, *second.accepted}), "the backlog of the outages")
        shown = gpudeck(folder, "show", "--hub", f"{second_hub.url},{first_hub.url}")
        assert (shown.returncode, "gpu01" in shown.stdout) == (0, True), shown.stderr
    finally:
        agent.terminate()
        agent.communicate(timeout=40)
        for relay, _ in relays.values():
            relay.close()
    counts = Counter(first.accepted) + Counter(second.accepted)
    # The report that the first hub had when it was stopped may be in both; its number tells that they are the same.
    twice = [number for number, count in counts.items() if count > 1]
    assert len(twice) <= 1


@pytest.fixture
def pair() -> Iterator[list[MoodyHub]]:
    started = [MoodyHub(), MoodyHub()]
    yield started
    for hub in started:
        hub.close()


@pytest.fixture
def now() -> FakeClock:
    return FakeClock()


@pytest.fixture
def outbox() -> Outbox:
    return Outbox(1000, 1_000_000)


@pytest.fixture
def sender(pair: list[MoodyHub], outbox: Outbox, tmp_path: Path, now: FakeClock) -> Iterator[Sender]:
    (tmp_path / "token").write_text("s3cret\n")
    hubs = ",".join(hub.url for hub in pair)
    made = Sender(outbox, hubs, tmp_path / "token", pace=0.0, boottime=now)
    yield made
    made.close()


def send(sender: Sender, outbox: Outbox, *bodies: bytes) -> list[float]:
    """Each as soon as it was made, and again until a hub takes it or all were asked; the pauses."""
    pauses = []
    for body in bodies:
        outbox.put(EncodedReport("gpu01", b"whole " + body, description="same", short=b"short " + body))
        while (pause := sender.send_next(0)) is not None:
            pauses.append(pause)
            if pause:
                break
    return pauses


def test_next_hub_is_asked_at_once_and_gets_a_whole_report_first(
    pair: list[MoodyHub], sender: Sender, outbox: Outbox
) -> None:
    for hub in pair:
        hub.version = "2"
    send(sender, outbox, b"1", b"2")
    pair[0].moods = [503]
    assert send(sender, outbox, b"3", b"4") == [0.0, 0.0, 0.0]
    assert [hub.taken for hub in pair] == [[b"whole 1", b"short 2"], [b"whole 3", b"short 4"]]


def test_preferred_hub_is_used_again_after_a_while_and_left_alone_in_between(
    pair: list[MoodyHub], sender: Sender, outbox: Outbox, now: FakeClock
) -> None:
    pair[0].moods = [503]
    send(sender, outbox, b"1")
    pair[0].moods = [503] * 100
    attempts = []
    for _ in range(100):
        now.advance(10.0)
        before = len(pair[0].bodies)
        send(sender, outbox, b"x")
        attempts += [now()] if len(pair[0].bodies) > before else []
    pauses = [later - earlier for earlier, later in itertools.pairwise(attempts)]
    assert attempts
    assert all(pause >= AVOID_SECONDS for pause in pauses)
    assert len(pair[1].taken) == 101
    pair[0].moods = []
    now.advance(3600.0)
    send(sender, outbox, b"y")
    assert pair[0].taken == [b"whole y"]


def test_pause_follows_only_when_every_hub_has_failed(pair: list[MoodyHub], sender: Sender, outbox: Outbox) -> None:
    for hub in pair:
        hub.moods, hub.takes_late = [500, 500], True
    pauses = send(sender, outbox, b"1")
    assert pauses[0] == 0.0
    assert pauses[1] >= 0.0
    while not any(hub.taken for hub in pair):
        sender.send_next(0)
    assert [len(hub.bodies) for hub in pair] == [3, 2]


def test_sender_that_is_too_fast_stays_with_its_hub(pair: list[MoodyHub], sender: Sender, outbox: Outbox) -> None:
    pair[0].moods = [429]
    send(sender, outbox, b"1")
    sender.send_next(0)
    assert [len(hub.bodies) for hub in pair] == [2, 0]


def test_single_report_goes_to_the_first_hub_that_takes_it(pair: list[MoodyHub], sender: Sender) -> None:
    pair[0].moods = [503]
    assert sender.send_now(EncodedReport("gpu01", b"one")) == pair[1].url
    for hub in pair:
        hub.moods = [503]
    with pytest.raises(Unreachable):
        sender.send_now(EncodedReport("gpu01", b"two"))


def test_hosts_spread_over_the_hubs_and_those_of_a_missing_hub_over_the_others() -> None:
    hubs = ",".join(f"http://hub{number}:8042" for number in (1, 2, 3))
    orders = [tuple(split_hubs(rank_hubs(hubs, f"host-{number}"))) for number in range(600)]
    assert len(set(orders)) == 6
    assert min(Counter(orders).values()) > 60
    assert rank_hubs(hubs, "host-1") == rank_hubs(hubs, "host-1")


def test_other_processes_find_the_hubs_without_their_passwords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUDECK_LOCK_DIR", str(tmp_path))
    with announcing("http://u:pw@one:8042,http://two:8042/gpus"):
        assert [hub.url for hub in find_agent_hubs()] == ["http://one:8042,http://two:8042/gpus"]


def test_token_of_a_login_goes_only_to_hubs_of_that_login() -> None:
    known = "http://one:8042,http://two:8042"
    assert is_same_hub(known, "two")
    assert is_same_hub(known, "http://two:8042/,one")
    assert not is_same_hub(known, "one,three")
    with pytest.raises(UsageError, match="http://:1"):
        split_hubs("one, http://:1")


def test_client_without_any_hub_names_the_first() -> None:
    ports = [free_port(), free_port()]
    with pytest.raises(Unreachable, match=f"127.0.0.1:{ports[0]}"):
        Client(",".join(f"http://127.0.0.1:{port}" for port in ports)).get("/api/v1/fleet")
