"""What a hub says of itself, judged."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fakes.fleets import make
from gpudeck.alerts.notifiers.settings import ChannelSettings, NotifySettings
from gpudeck.model.view import Host
from gpudeck.ops.doctor import hub
from gpudeck.ops.doctor.hub import HubSummary, check_messages, check_public, judge_about, judge_hosts
from history.remote.servers import scripted_server

FINE: dict[str, Any] = {
    "problems": [],
    "tick_age_seconds": 0.5,
    "database": {"kind": "sqlite", "events": None, "problem": None, "reason": None},
    "history": {"kind": "embedded", "problem": None, "reason": None, "samples_dropped": 0},
}


def host(name: str, status: str = "up", *problems: str) -> Host:
    return make(Host, name=name, via="ssh", status=status, problems=problems)


def test_a_hub_that_is_well_has_nothing_to_tell() -> None:
    assert list(judge_about(make(HubSummary, **FINE))) == []


@pytest.mark.parametrize(
    ("change", "name", "verdict"),
    [
        ({"problems": ["the list hosts.txt cannot be read."]}, "problem", "warn"),
        ({"tick_age_seconds": 60}, "running", "fail"),
        (
            {"database": {"kind": "sqlite", "events": None, "problem": None, "reason": "the database does not answer"}},
            "database",
            "fail",
        ),
        ({"history": FINE["history"] | {"problem": "the disk is full"}}, "history", "fail"),
        ({"history": FINE["history"] | {"samples_dropped": 7}}, "history", "warn"),
    ],
)
def test_what_is_wrong_with_a_hub_is_told(change: dict[str, Any], name: str, verdict: str) -> None:
    (finding,) = judge_about(make(HubSummary, **(FINE | change)))
    assert (finding.name, finding.verdict) == (name, verdict)
    assert finding.next_step


def test_each_host_with_trouble_is_told_with_its_last_error() -> None:
    hosts = [host("gpu01"), host("gpu02", "down", "connection refused"), host("gpu03", "up", "its clock is wrong")]
    findings = list(judge_hosts(hosts))
    assert [finding.verdict for finding in findings] == ["ok", "fail", "warn"]
    assert "connection refused" in findings[1].told
    assert "gpu02" in findings[1].next_step


def test_next_step_fits_a_simulated_host_and_one_that_never_reported() -> None:
    simulated = make(Host, name="gpu02", status="up", via="simulated", problems=["GPU 6 fell off the bus"])
    never = make(Host, name="gpu07", status="never_seen", via="push")
    counted, *findings = judge_hosts([simulated, never])
    assert counted.verdict == "warn"
    assert findings[0].next_step == "This host is simulated, and so is its problem."
    assert "Run the line that gpudeck hosts add printed on gpu07" in findings[1].next_step


def test_many_hosts_with_trouble_are_summed_up() -> None:
    findings = list(judge_hosts([host(f"gpu{number}", "down") for number in range(500)]))
    assert len(findings) == 22
    assert "480 more" in findings[-1].told


def test_a_hub_without_hosts_is_told() -> None:
    assert [finding.verdict for finding in judge_hosts([])] == ["warn"]


METRICS = """# HELP gpudeck_messages_failed_total x
gpudeck_messages_failed_total{channel="ops"} 3
gpudeck_messages_failed_total{channel="mail"} 0
gpudeck_messages_failed_total{channel="pager"} 9
gpudeck_messages_given_up_total{channel="pager"} 1
gpudeck_messages_waiting{channel="ops"} 2
"""


def test_channels_are_told_by_name_and_never_by_address(tmp_path: Path) -> None:
    channel = ChannelSettings(url="slack://T0HIDDEN/B0HIDDEN/XHIDDEN")
    names = {
        "ops": channel,
        "mail": channel,
        "pager": channel,
        "lost": ChannelSettings(url_file=str(tmp_path / "none")),
    }
    findings = list(check_messages(NotifySettings(channels=names), METRICS))
    assert [finding.verdict for finding in findings] == ["fail", "ok", "fail", "fail"]
    assert "HIDDEN" not in str(findings)


def test_the_bot_is_judged_as_a_channel_where_there_is_one() -> None:
    metrics = (
        'gpudeck_messages_failed_total{channel="chat.slack"} 3\ngpudeck_messages_waiting{channel="chat.slack"} 1\n'
    )
    nobody, bot = check_messages(NotifySettings(), metrics)
    assert (nobody.verdict, bot.verdict) == ("skip", "fail")
    assert "gpudeck notify test chat.slack --user NAME" in str(bot)


def test_a_hub_that_tells_nobody_says_so() -> None:
    assert [finding.verdict for finding in check_messages(NotifySettings(), "")] == ["skip"]


class _Proxy(BaseHTTPRequestHandler):
    """Leads to a hub, but for its stream: that answers as the address says, or holds back what comes."""

    def do_GET(self) -> None:
        _, status, rest = self.path.split("/", 2)
        is_stream = rest == "api/v1/stream"
        self.send_response(int(status) if is_stream else 200)
        self.send_header("Content-Type", "text/event-stream" if is_stream and status == "200" else "application/json")
        refusal = b'{"error":{"code":"unauthorized","message":"log in"}}'
        body = {"200": b"", "401": refusal, "502": b""}[status] if is_stream else b'{"status":"ok","version":"0.1.0"}'
        if not is_stream or status != "200":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
        self.server.is_over.wait(5 if is_stream and status == "200" else 0)  # type: ignore[attr-defined]

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(hub, "ANSWER_SECONDS", 0.5)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Proxy)
    server.is_over = threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.is_over.set()  # type: ignore[attr-defined]
    server.shutdown()
    thread.join(5)
    server.server_close()


@pytest.mark.parametrize(("status", "verdict"), [("200", "fail"), ("401", "skip"), ("502", "fail")])
def test_a_proxy_that_holds_the_stream_back_fails(proxy: str, status: str, verdict: str) -> None:
    leads, stream = check_public(f"{proxy}/{status}/", None)
    assert (leads.verdict, stream.name, stream.verdict) == ("ok", "stream", verdict)


def test_an_address_that_leads_elsewhere_fails() -> None:
    with scripted_server(lambda _: (200, {}, b"")) as server:
        assert [finding.verdict for finding in check_public(server.url, None)] == ["fail"]


def test_a_password_in_the_address_is_not_shown() -> None:
    (finding,) = check_public("http://me:hidden-word@127.0.0.1:9", None)
    assert (finding.verdict, "hidden-word" in str(finding)) == ("fail", False)
