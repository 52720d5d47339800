"""Nodes of GPU Cluster Status Monitor, as small servers of their own: good, hung, wrong and hostile ones."""

import asyncio
import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from fakes.api_app import make_app
from fakes.clock import FakeClock
from fakes.reports import make_envelope, make_gpu
from fakes.views import show
from gpudeck.api.access import Authenticator
from gpudeck.api.services import ApiServices
from gpudeck.compat.gpu_cluster_status import ClusterNodeSource, ClusterStatusRoute
from gpudeck.compat.settings import GpuClusterStatusSettings
from gpudeck.fleet.hub import Hub
from gpudeck.model.errors import Refused, Temporary
from gpudeck.model.report import Report
from gpudeck.model.target import Target
from gpudeck.sources.base import FetchedReport

CAPTURE = (Path(__file__).parents[2] / "captures" / "gpu-cluster-status" / "main.json").read_text()
NODE = {key: value for key, value in json.loads(CAPTURE)["Nodes"][0].items() if key not in {"status", "version"}}
READ_AT = datetime.fromisoformat(NODE["last_update"]).timestamp()
"""When the captured node had read its GPUs, in the zone of this machine."""
SETTINGS = GpuClusterStatusSettings(password="s3cret", deadline=1.0)


class _Node(http.server.BaseHTTPRequestHandler):
    """As node_info.py: one path, to which the password is posted."""

    body: Callable[[], bytes]
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_right = self.path == "/get-status" and asked == {"passwd": "s3cret"}
        answer = type(self).body() if is_right else b"no"
        self.send_response(200 if is_right else 404)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def alive(answer: dict[str, Any]) -> Callable[[], bytes]:
    """A node that has just read its GPUs, whenever it is asked."""
    return lambda: json.dumps(answer | {"last_update": datetime.now().isoformat()}).encode()  # noqa: DTZ005


@contextlib.contextmanager
def node(answer: Any) -> Iterator[int]:
    """A node that tells that, or what a function says. Yields its port."""
    body = answer if callable(answer) else lambda: json.dumps(answer).encode()
    handler = type("Node", (_Node,), {"body": staticmethod(body)})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    with running(server):
        yield server.server_address[1]


@contextlib.contextmanager
def running(server: http.server.ThreadingHTTPServer) -> Iterator[None]:
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def read(
    port: int,
    settings: GpuClusterStatusSettings = SETTINGS,
    at: tuple[float, ...] = (READ_AT + 1,),
) -> FetchedReport:
    async def ask() -> FetchedReport:
        target = Target(name="gpu01", via="gpu-cluster-status", address="127.0.0.1", port=port, labels={"rack": "b"})
        source = ClusterNodeSource(target, settings)
        try:
            for moment in at:
                arrival = await source.read(moment)
            return arrival
        finally:
            await source.close()

    return asyncio.run(ask())


def test_a_node_becomes_a_report() -> None:
    with node(NODE) as port:
        envelope = read(port).envelope
    first, second = envelope.report.gpus or ()
    assert (envelope.host, envelope.report.labels, envelope.report.addresses) == ("gpu01", {"rack": "b"}, ["192.0.2.2"])
    assert envelope.report.interfaces == {"192.0.2.2": NODE["ips"][0][0]}
    assert (first.index, first.name, first.metrics["memory_used_bytes"]) == (0, "GeForce GTX 1080 Ti", 8018 << 20)
    assert (first.metrics["utilization_percent"], first.metrics["temperature_celsius"]) == (92, 80)
    assert [(process.pid, process.user, process.command) for process in first.processes or ()] == [
        (17862, "root", "sleep 1000"),
        (24738, "root", "sleep 1500"),
    ]
    assert second.processes == []
    assert first.unknown["power_watts"] == "gpu-cluster-status does not report it"


@pytest.mark.parametrize("at", [(READ_AT + 16,), (READ_AT + 1, READ_AT + 6, READ_AT + 16)])
def test_a_node_that_has_stopped_reading_is_late_and_then_not_readable(at: tuple[float, ...]) -> None:
    with node(NODE) as port:
        late = read(port, at=(READ_AT + 14,))
        assert (late.envelope.collected_at, late.sent_at) == (READ_AT, READ_AT + 14)
        with pytest.raises(Temporary) as raised:
            read(port, at=at)
    assert "Restart node_info.py" in raised.value.hint


def test_a_node_in_another_zone_is_believed_when_its_values_change() -> None:
    def answer() -> bytes:
        moments.append(datetime.fromtimestamp(READ_AT + 7 * 3600 + 5 * len(moments), UTC).replace(tzinfo=None))
        return json.dumps(NODE | {"last_update": moments[-1].isoformat()}).encode()

    moments: list[datetime] = []
    with node(answer) as port, pytest.raises(Temporary, match="the hub waits for newer ones"):
        read(port, at=(READ_AT,))

    async def work(port: int) -> FetchedReport:
        source = ClusterNodeSource(Target(name="gpu01", address="127.0.0.1", port=port), SETTINGS)
        with contextlib.suppress(Temporary):
            await source.read(READ_AT)
        try:
            return await source.read(READ_AT + 5)
        finally:
            await source.close()

    with node(answer) as port:
        assert asyncio.run(work(port)).envelope.collected_at == READ_AT + 5


def test_a_wrong_password_is_told_as_such_and_not_shown() -> None:
    with node(NODE) as port, pytest.raises(Refused) as raised:
        read(port, settings=GpuClusterStatusSettings(password="wr0ng"))
    assert "404" in str(raised.value)
    assert "compat.gpu_cluster_status.password" in str(raised.value)
    assert "wr0ng" not in str(raised.value)


@pytest.mark.parametrize(
    "answer",
    [
        [],
        "junk",
        None,
        {},
        {"gpus": None},
        {"gpus": "x"},
        {"gpus": [{}] * 513},
        lambda: b"",
        lambda: b"<html>",
        lambda: b"[" * 100_000,
        lambda: b"\xff\xfe",
        lambda: b'"' + b"x" * (5 << 20) + b'"',
    ],
)
def test_a_malformed_node_is_told_as_such(answer: Any) -> None:
    with node(answer) as port, pytest.raises(Temporary):
        read(port)


def test_a_hung_node_ends_with_the_deadline() -> None:
    ended = threading.Event()

    def hang() -> bytes:
        ended.wait(20)
        return b"{}"

    with node(hang) as port, pytest.raises(Temporary, match=r"did not answer within 0\.2 s"):
        read(port, settings=GpuClusterStatusSettings(password="s3cret", deadline=0.2))
    ended.set()


def test_one_gpu_that_makes_no_sense_hides_no_other() -> None:
    users: list[Any] = [{"pid": "x"}, 7, {"pid": 5, "username": None, "mem(MiB)": "?", "command": None}]
    gpus = ["junk", {"index": -1, "name": "", "use_mem": "?", "users": users}, NODE["gpus"][0]]
    with node(NODE | {"gpus": gpus, "ips": [["eth0"], 5, ["a", "b"]], "hostname": 5}) as port:
        first, second, third = read(port).envelope.report.gpus or ()
    assert first.missing
    assert (second.index, second.unknown["memory_used_bytes"]) == (1, "nvidia-smi says: ?")
    assert [(one.pid, one.user, one.memory_used_bytes, one.command) for one in second.processes or ()] == [
        (0, None, None, None),
        (0, None, None, None),
        (5, None, None, None),
    ]
    assert third.metrics["temperature_celsius"] == 80
    assert len({gpu.uuid for gpu in (first, second, third)}) == 3


def test_a_gpu_with_a_process_whose_pid_cannot_be_read_is_not_free(tmp_path: Path) -> None:
    gpu = NODE["gpus"][0] | {"use_mem": 100, "utilize": 0}
    main = Main(tmp_path)
    main.poll(NODE | {"gpus": [gpu | {"users": [{"pid": "?", "username": "ada"}]}, gpu | {"users": []}]})
    first, second = show(main.hub.fleet.hosts["gputest001"])["gpus"]
    assert (first["availability"], first["users"], second["availability"]) == ("busy", ["ada"], "free")
    assert first["processes"][0]["reasons"]["pid"] == "gpu-cluster-status reports no pid"


def test_secrets_on_command_lines_are_hidden() -> None:
    gpu = NODE["gpus"][0] | {"users": [{"pid": 1, "username": "a", "mem(MiB)": 1, "command": "x --password=hunter2"}]}
    with node(NODE | {"gpus": [gpu]}) as port:
        assert "hunter2" not in repr(read(port).envelope)


class Main:
    """A hub with two hosts of hosts.txt, of which the first one answers."""

    def __init__(self, folder: Path, *, is_readable: bool = True) -> None:
        self.hub = Hub(now=FakeClock(READ_AT + 1))
        self.hub.fleet.expect(
            [
                Target(name="gputest001", via="gpu-cluster-status"),
                Target(name="127.0.0.2", via="gpu-cluster-status"),
            ]
        )
        self.app = make_app(self.hub, folder=folder, is_readable=is_readable, foreign_routes=self._side_doors)

    def _side_doors(self, house: ApiServices, keeper: Authenticator) -> list[ClusterStatusRoute]:
        return [ClusterStatusRoute(house.hub, identify=keeper.identify, policy=house.policy)]

    def poll(self, answer: Any) -> None:
        with node(answer) as port:
            fetched = read(port)
        envelope = msgspec.structs.replace(fetched.envelope, host="gputest001")
        self.hub.ingest.take_fetched(envelope, via="gpu-cluster-status", target="gputest001", sent_at=fetched.sent_at)

    def ask(self, method: str = "GET", **headers: str) -> tuple[int, str]:
        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)  # type: ignore[arg-type]
            async with httpx.AsyncClient(transport=transport, base_url="http://hub") as client:
                return await client.request(method, "/get-status", headers=headers)

        answer = asyncio.run(call())
        return answer.status_code, answer.text


def test_the_hub_answers_as_the_main_did(tmp_path: Path) -> None:
    main = Main(tmp_path)
    main.poll(NODE)
    status, text = main.ask()
    told, captured = json.loads(text)["Nodes"], json.loads(CAPTURE)["Nodes"]
    (read_at,) = (node["last_update"] for node in told if "last_update" in node)
    assert datetime.fromisoformat(read_at).timestamp() == pytest.approx(READ_AT, abs=0.001)
    captured[0]["last_update"] = read_at
    assert (status, {one["hostname"]: one for one in told}) == (200, {one["hostname"]: one for one in captured})
    # Byte by byte, but for the order of the hosts: by name.
    assert text == json.dumps({"Nodes": [captured[1], captured[0]]}, sort_keys=True, separators=(",", ":")) + "\n"


def test_a_host_with_an_agent_keeps_its_name_and_the_names_of_its_interfaces(tmp_path: Path) -> None:
    main = Main(tmp_path)
    main.hub.fleet.expect([Target(name="192.0.2.2", via="pull")])
    report = Report(
        gpus=[make_gpu()],
        addresses=["192.0.2.20", "192.0.2.2", "192.0.2.21", "198.51.100.9", "2001:db8::2"],
        interfaces={"192.0.2.2": "eno2", "192.0.2.20": "eno1", "192.0.2.21": "eno1", "2001:db8::2": "eno1"},
    )
    main.hub.ingest.take_fetched(make_envelope("gputest001", report=report), via="pull", target="192.0.2.2")
    (told,) = json.loads(main.ask()[1])["Nodes"]
    assert told["hostname"] == "gputest001"
    assert told["ips"] == [["eno2", "192.0.2.2"], ["eno1", "192.0.2.20"], ["", "198.51.100.9"]]


def test_a_node_that_fell_silent_is_down_with_its_last_values(tmp_path: Path) -> None:
    main = Main(tmp_path)
    main.poll(NODE)
    main.hub.fleet.age(main.hub.fleet.hosts["gputest001"].observed_at + 3600)
    (one,) = [one for one in json.loads(main.ask()[1])["Nodes"] if one["hostname"] == "gputest001"]
    assert (one["status"], one["gpus"][0]["name"]) == (False, "GeForce GTX 1080 Ti")


def test_a_node_of_which_hosts_txt_has_the_address_is_called_what_it_calls_itself(tmp_path: Path) -> None:
    main = Main(tmp_path)
    targets = [Target(name=name, via="gpu-cluster-status") for name in ("127.0.0.1", "127.0.0.2", "named")]
    main.hub.fleet.expect(targets)

    async def poll(port: int) -> None:
        for target in targets:
            asked = msgspec.structs.replace(target, port=port, address="127.0.0.1" if target.name == "named" else "")
            source = ClusterNodeSource(asked, SETTINGS)
            envelope = (await source.read(READ_AT + 1)).envelope
            main.hub.ingest.take_fetched(envelope, via="gpu-cluster-status", target=target.name)
            await source.close()

    server = http.server.ThreadingHTTPServer(
        ("0.0.0.0", 0), type("Node", (_Node,), {"body": staticmethod(lambda: json.dumps(NODE).encode())})
    )
    with running(server):
        asyncio.run(poll(server.server_address[1]))
        asyncio.run(poll(server.server_address[1]))
    # The second node has the same name, so its address tells them apart; the third one has a name from people.
    shown = [(host.name, host.target, host.status) for host in main.hub.fleet.ordered()]
    assert shown == [
        ("127.0.0.2", "127.0.0.2", "up"),
        ("gputest001", "127.0.0.1", "up"),
        ("named", "named", "up"),
    ]
    assert [node["hostname"] for node in json.loads(main.ask()[1])["Nodes"]] == [name for name, *_ in shown]


def test_who_may_not_look_finds_nothing_and_is_never_asked_to_log_in(tmp_path: Path) -> None:
    main = Main(tmp_path, is_readable=False)
    assert main.ask()[0] == 404
    assert main.ask(Authorization="Bearer nonsense")[0] == 404
    assert main.ask(Authorization="Bearer viewer-token")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_the_main_is_only_read(tmp_path: Path, method: str) -> None:
    assert Main(tmp_path).ask(method)[0] == 405
