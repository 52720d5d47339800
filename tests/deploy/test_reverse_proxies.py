"""The examples for nginx and Caddy, run by real ones: below a path and at a host name, for agents and streams too.

The page itself behind them, in a browser: tests/e2e/test_reverse_proxies.py.
"""

import contextlib
import http.client
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fakes.hubs import HubProcess, running_hub
from fakes.reports import make_envelope
from fakes.reverse_proxies import AT_A_HOST_NAME, HOST, PROXIES, Proxy
from fakes.waiting import wait_until
from gpudeck.wire import encode

SETTINGS = "demo: never\nlocal: never\nread: open\nlogin: {proxy: {addresses: [127.0.0.1]}}\n"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    folder = tmp_path_factory.mktemp("hub")
    (folder / "gpudeck.yaml").write_text(SETTINGS)
    with running_hub(folder) as started:
        yield started


class Caller:
    """Somebody who asks the proxy, by the name that it serves."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)

    @contextlib.contextmanager
    def ask(
        self, path: str, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self._url.hostname or "", self._url.port, timeout=20)
        given = {"Host": HOST, **{name.replace("_", "-"): value for name, value in headers.items()}}
        connection.request(method, self._url.path + path, body, given)
        with contextlib.closing(connection):
            yield connection.getresponse()


@pytest.fixture(params=[*PROXIES, *AT_A_HOST_NAME], ids=lambda proxy: proxy.__name__)
def caller(request: pytest.FixtureRequest, tmp_path: Path, hub: HubProcess) -> Iterator[Caller]:
    proxy: Proxy = request.param
    with proxy(tmp_path, hub.url) as url:
        yield Caller(url)


def test_page_and_fleet_are_there(caller: Caller) -> None:
    with caller.ask("/", Accept="text/html", User_Agent="Mozilla/5.0") as page:
        assert (page.status, b"<title>" in page.read()) == (200, True)
    with caller.ask("/api/v1/fleet") as fleet:
        assert "totals" in json.load(fleet)


def test_stream_comes_as_it_is_told_and_not_when_a_buffer_is_full(caller: Caller) -> None:
    with caller.ask("/api/v1/stream", Accept_Encoding="identity") as stream:
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        lines = iter(stream.readline, b"")
        assert next(line for line in lines if line.startswith(b"event:")) == b"event: snapshot\n"
        # A quiet fleet says a few bytes a second: behind a buffer nothing of it would come within the time limit.
        assert [next(line for line in lines if line == b"\n") for _ in range(3)] == [b"\n"] * 3


def test_agents_report_through_it(caller: Caller, hub: HubProcess) -> None:
    token = hub.token_file.read_text().strip()
    name = f"gpu-{secrets.token_hex(4)}"
    report = encode(make_envelope(host=name))
    headers = {"Authorization": f"Bearer {token}", "Content_Type": "application/msgpack", "Content_Encoding": "zstd"}
    with caller.ask("/api/v1/reports", "POST", report, **headers) as answer:
        assert answer.status == 202
    wait_until(lambda: name.encode() in hub.get("/api/v1/fleet"), "the host in the fleet")


def test_nobody_who_comes_through_it_is_taken_for_somebody_on_the_hubs_machine(caller: Caller) -> None:
    with caller.ask("/api/v1/hosts/nobody", "DELETE") as answer:
        assert answer.status == 401


@pytest.mark.parametrize("proxy", PROXIES, ids=lambda proxy: proxy.__name__)
def test_path_without_its_slash_leads_to_the_page(tmp_path: Path, hub: HubProcess, proxy: Proxy) -> None:
    with proxy(tmp_path, hub.url) as url, Caller(url).ask("") as answer:
        assert (answer.status, answer.headers["Location"]) == (308, "gpus/")


@pytest.mark.parametrize("proxy", AT_A_HOST_NAME, ids=lambda proxy: proxy.__name__)
def test_example_at_a_host_name_is_for_that_name(tmp_path: Path, hub: HubProcess, proxy: Proxy) -> None:
    with proxy(tmp_path, hub.url) as url, Caller(url).ask("/healthz") as answer:
        assert (answer.status, json.load(answer)["status"]) == (200, "ok")
