"""The way to a hub with a private authority and behind a proxy: real TLS, a real forward proxy, real failures."""

import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fakes.certificates import Authority
from fakes.proxies import ForwardProxy, running_proxy
from fakes.waiting import wait_until
from gpudeck.agent.outbox import EncodedReport, Outbox
from gpudeck.agent.push import Sender
from gpudeck.agent.settings import AgentSettings
from gpudeck.http_client import find_proxy, open_pool
from gpudeck.model.errors import UsageError

HUB = "https://hub.example"
PROXY_NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXY_NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


class Hub:
    """Takes every report; `taken` holds them."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self.taken: list[bytes] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                hub.taken.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(202)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """A caller who does not believe the certificate hangs up."""

        self.server = Server(("127.0.0.1", 0), Handler)
        if context is not None:
            # The handshake belongs into the connection's own thread: one that hangs must not block the next.
            self.server.socket = context.wrap_socket(
                self.server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.url = f"http{'s' if context else ''}://127.0.0.1:{self.server.server_port}"


@contextlib.contextmanager
def running_hub(context: ssl.SSLContext | None = None) -> Iterator[Hub]:
    hub = Hub(context)
    thread = threading.Thread(target=hub.server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield hub
    finally:
        hub.server.shutdown()
        hub.server.server_close()
        thread.join(10)


@contextlib.contextmanager
def sending(folder: Path, hub: str, ca_file: Path | None = None, proxy: str = "none") -> Iterator[None]:
    """A sender with one report to send."""
    (folder / "token").write_text("s3cret\n")
    outbox, stop = Outbox(10, 10_000), threading.Event()
    outbox.put(EncodedReport("gpu01", b"report"))
    named = None if ca_file is None else str(ca_file)
    sender = Sender(outbox, hub, folder / "token", pace=0.0, ca_file=named, proxy=proxy)
    thread = threading.Thread(target=sender.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)


def trouble(caplog: pytest.LogCaptureFixture) -> str:
    """What the sender says about the hub, without its address."""
    wait_until(lambda: "does not answer: " in caplog.text, "the sender's trouble")
    return caplog.messages[0].partition("does not answer: ")[2]


def test_a_hub_with_a_certificate_of_a_private_authority_is_believed(tmp_path: Path, authority: Authority) -> None:
    with running_hub(authority.server_context()) as hub, sending(tmp_path, hub.url, authority.ca_file):
        wait_until(lambda: hub.taken == [b"report"], "the report")
        assert hub.taken == [b"report"]


def test_an_unknown_authority_is_not_believed(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with running_hub(authority.server_context()) as hub, sending(tmp_path, hub.url):
        said = trouble(caplog)
    assert said == (
        "its certificate is not trusted (unable to get local issuer certificate); if it should be, set --ca-file or "
        "agent.ca_file to the certificate of your CA"
    )
    assert hub.taken == []


def test_another_authority_than_the_named_one_is_not_believed(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    other = Authority(tmp_path, "Other Authority")
    with running_hub(authority.server_context()) as hub, sending(tmp_path, hub.url, other.ca_file):
        assert "its certificate is not trusted" in trouble(caplog)
    assert hub.taken == []


def test_an_expired_certificate_is_not_believed(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    context = authority.server_context(days=-2)
    with running_hub(context) as hub, sending(tmp_path, hub.url, authority.ca_file):
        said = trouble(caplog)
    assert said.startswith("its certificate is not trusted (certificate has expired)")
    assert hub.taken == []


@pytest.mark.parametrize("called", ["127.0.0.1", "localhost"])
def test_a_certificate_for_another_name_is_not_believed(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture, called: str
) -> None:
    context = authority.server_context("hub.example")
    with running_hub(context) as hub, sending(tmp_path, hub.url.replace("127.0.0.1", called), authority.ca_file):
        said = trouble(caplog)
    assert said.startswith("its certificate is not trusted (")
    assert called in said
    assert hub.taken == []


def test_tls_spoken_to_a_plain_hub_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running_hub() as hub, sending(tmp_path, hub.url.replace("http:", "https:")):
        assert trouble(caplog) == "it does not accept TLS; if it has none, its address begins with http://"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("absent.pem", "no such file"), ("empty.pem", "no certificate"), ("rubbish.pem", "no certificate")],
)
def test_a_file_without_certificates_is_refused_at_the_start(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "empty.pem").touch()
    (tmp_path / "rubbish.pem").write_text("no certificate")
    with pytest.raises(UsageError, match=rf"the certificates in {tmp_path / name} cannot be read: .*{reason}.*PEM"):
        open_pool(HUB, str(tmp_path / name))


MakeContext = Callable[[Authority], ssl.SSLContext | None]


def plain(_: Authority) -> None:
    """A hub without TLS."""


@pytest.fixture
def proxy() -> Iterator[ForwardProxy]:
    with running_proxy() as running:
        yield running


def test_a_plain_hub_is_reached_through_the_proxy(tmp_path: Path, proxy: ForwardProxy) -> None:
    with running_hub() as hub, sending(tmp_path, hub.url, proxy=proxy.url):
        wait_until(lambda: hub.taken == [b"report"], "the report")
    assert proxy.asked == [f"POST {hub.url}/api/v1/reports HTTP/1.1"]


def test_a_hub_with_tls_is_reached_through_the_proxy_which_reads_nothing(
    tmp_path: Path, authority: Authority, proxy: ForwardProxy
) -> None:
    with running_hub(authority.server_context()) as hub, sending(tmp_path, hub.url, authority.ca_file, proxy.url):
        wait_until(lambda: hub.taken == [b"report"], "the report")
    assert [line.split()[:2] for line in proxy.asked] == [["CONNECT", hub.url.removeprefix("https://")]]


def test_a_wrong_certificate_behind_a_proxy_is_not_believed(
    tmp_path: Path, authority: Authority, proxy: ForwardProxy, caplog: pytest.LogCaptureFixture
) -> None:
    with running_hub(authority.server_context()) as hub, sending(tmp_path, hub.url, proxy=proxy.url):
        assert "its certificate is not trusted" in trouble(caplog)
    assert hub.taken == []


@pytest.mark.parametrize("make_context", [plain, Authority.server_context])
def test_a_proxy_that_wants_a_login_gets_it(tmp_path: Path, authority: Authority, make_context: MakeContext) -> None:
    with running_proxy("me:hunter2/%") as proxy, running_hub(make_context(authority)) as hub:
        address = proxy.url.replace("//", "//me:hunter2%2F%25@")
        with sending(tmp_path, hub.url, authority.ca_file, address):
            wait_until(lambda: hub.taken == [b"report"], "the report")
    assert len(proxy.asked) == 1


@pytest.mark.parametrize("make_context", [plain, Authority.server_context])
@pytest.mark.parametrize("login", ["", "me:wr0ng@"])
def test_a_proxy_that_refuses_is_named_without_the_password(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture, make_context: MakeContext, login: str
) -> None:
    caplog.set_level("DEBUG")
    with (
        running_proxy("me:hunter2") as proxy,
        running_hub(make_context(authority)) as hub,
        sending(tmp_path, hub.url, authority.ca_file, proxy.url.replace("//", f"//{login}")),
    ):
        wait_until(lambda: "does not answer: " in caplog.text, "the sender's trouble")
    assert "the proxy needs a name and a password (407)" in caplog.text
    assert "wr0ng" not in caplog.text
    assert hub.taken == []


@pytest.mark.parametrize("hub", ["http://127.0.0.1:1", "https://127.0.0.1:1"])
def test_a_proxy_that_is_not_there_is_named(tmp_path: Path, hub: str, caplog: pytest.LogCaptureFixture) -> None:
    with sending(tmp_path, hub, proxy="http://me:hunter2@127.0.0.1:1"):
        said = trouble(caplog)
    assert said == "through the proxy: Connection refused"


@pytest.mark.parametrize(
    ("environment", "hub", "found"),
    [
        ({}, HUB, None),
        ({"HTTPS_PROXY": "http://proxy:3128"}, HUB, "http://proxy:3128"),
        ({"https_proxy": "http://proxy:3128"}, HUB, "http://proxy:3128"),
        ({"HTTPS_PROXY": "proxy:3128"}, HUB, "http://proxy:3128"),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "http://hub.example", None),
        ({"HTTP_PROXY": "http://proxy:3128"}, "http://hub.example:8042", "http://proxy:3128"),
        ({"HTTP_PROXY": "http://proxy:3128"}, HUB, None),
        ({"ALL_PROXY": "http://proxy:3128"}, HUB, "http://proxy:3128"),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "*"}, HUB, None),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "example"}, HUB, None),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": ".example, other"}, HUB, None),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "ample"}, HUB, "http://proxy:3128"),
        ({"ALL_PROXY": "http://proxy:3128", "NO_PROXY": "10.0.0.0/8"}, "http://10.1.2.3:8042", None),
        ({"ALL_PROXY": "http://proxy:3128", "NO_PROXY": "x/y,10.0.0.0/8"}, "http://11.1.2.3", "http://proxy:3128"),
        ({"ALL_PROXY": "http://proxy:3128", "NO_PROXY": "fd00::/8"}, "http://[fd00::7]:8042", None),
        ({"ALL_PROXY": "http://proxy:3128"}, "http://127.0.0.1:8042", None),
        ({"ALL_PROXY": "http://proxy:3128"}, "http://localhost:8042", None),
        ({"ALL_PROXY": "http://proxy:3128"}, "http://[::1]:8042", None),
    ],
)
def test_the_environment_says_which_proxy(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], hub: str, found: str | None
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert find_proxy(hub, "environment") == found
    assert find_proxy(hub, "none") is None


def test_a_proxy_of_the_settings_counts_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://other:1")
    monkeypatch.setenv("NO_PROXY", "*")
    assert find_proxy(HUB, "http://proxy:3128") == "http://proxy:3128"


@pytest.mark.parametrize(
    "proxy", ["socks5://me:hunter2@proxy:1080", "http://me:hunt/hunter2@proxy", "http://me:1/hunter2@proxy", "http://"]
)
def test_a_proxy_that_is_none_is_refused_without_its_password(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(UsageError, match="is not a URL of http or https") as caught:
        open_pool(HUB, proxy="environment")
    with pytest.raises(ValueError, match="is not a URL of http or https") as configured:
        AgentSettings(proxy=proxy)
    assert "hunter2" not in str(caught.value) + str(configured.value)
