"""Nodes of gpumonitor: real XML-RPC servers, the captured answer, and answers that no node should give."""

import asyncio
import contextlib
import html
import json
import re
import time
from collections.abc import Callable
from datetime import UTC
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from compat.nodes import GPU_STATS, xmlrpc_node
from gpudeck.compat.gpumonitor import CALL, GpumonitorSource, read_answer
from gpudeck.compat.gpumonitor import read as read_config
from gpudeck.compat.importing import HostStep, ImportContext, SkippedEntry
from gpudeck.compat.node_source import MAX_BYTES
from gpudeck.compat.settings import GpumonitorSettings
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.errors import Temporary, UsageError
from gpudeck.model.report import GpuReading
from gpudeck.model.target import Target
from gpudeck.sources.base import FetchedReport
from gpudeck.wire import decode, encode
from sources.scrape_pages import send, web_server

MIB = 2**20
NOW = 1_794_700_000.0
HERE = ImportContext(NOW, UTC)


def captured() -> dict[str, Any]:
    found = re.search(r"<string>(.*)</string>", GPU_STATS.decode(), re.DOTALL)
    assert found is not None
    told: dict[str, Any] = json.loads(html.unescape(found[1]))
    return told


def wrap(text: str) -> bytes:
    return b"<methodResponse><params><param><value><string>%s</string></value></param></params></methodResponse>" % (
        html.escape(text).encode()
    )


def read_port(port: int, now: float = NOW, times: int = 1, **settings: Any) -> FetchedReport:
    async def work() -> FetchedReport:
        target = Target(name="gpu01", address="127.0.0.1", port=port, labels={"rack": "b3"})
        source = GpumonitorSource(target, GpumonitorSettings(**settings))
        try:
            for turn in range(times):
                arrival = await source.read(now + turn)
            return arrival
        finally:
            await source.close()

    return asyncio.run(work())


def read_stats(stats: object, **settings: Any) -> list[GpuReading]:
    with xmlrpc_node(lambda: json.dumps(stats)) as port:
        return read_port(port, **settings).envelope.report.gpus or []


def refusal_of(answer: Callable[[BaseHTTPRequestHandler], None], **settings: Any) -> Temporary:
    with web_server(answer) as port, pytest.raises(Temporary) as caught:
        read_port(port, **settings)
    return caught.value


def test_captured_answer_becomes_a_report_that_a_hub_takes() -> None:
    asked: list[bytes] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.posted)  # type: ignore[attr-defined]  # see web_server
        send(handler, GPU_STATS, Content_Type="text/xml")

    with web_server(answer) as port:
        envelope = read_port(port).envelope
    assert asked == [CALL]
    assert decode(encode(envelope), encoding="zstd") == envelope
    first, second = envelope.report.gpus or []
    assert (first.index, first.name, first.uuid) == (0, "GeForce GTX 1080 Ti", "gpumonitor/gpu01/0")
    assert first.metrics == {
        "memory_used_bytes": 8018 * MIB,
        "memory_total_bytes": 11169 * MIB,
        "utilization_percent": 92,
        "temperature_celsius": 80,
    }
    assert [(one.pid, one.user, one.command, one.memory_used_bytes) for one in first.processes or ()] == [
        (17862, "root", "python", 4000 * MIB),
        (24738, "root", "python", 4000 * MIB),
    ]
    assert [one.started_at for one in first.processes or ()] == [NOW - 960, NOW - 222]
    assert second.processes == []
    assert envelope.report.labels == {"rack": "b3"}
    assert (first.metrics.keys() | first.unknown.keys()) == GPU_METRICS.keys()
    assert not first.metrics.keys() & first.unknown.keys()


def test_real_node_is_asked_again_and_again_and_starts_stay_still() -> None:
    with xmlrpc_node(lambda: json.dumps(captured())) as port:
        envelope = read_port(port, times=3).envelope
    assert envelope.sequence == 3
    gpus = envelope.report.gpus or []
    assert [one.started_at for one in gpus[0].processes or ()] == [NOW - 960, NOW - 222]


def test_text_in_place_of_a_number_is_unknown_with_its_reason_and_hides_nothing_else() -> None:
    stats = captured()
    stats["gpus"][0] |= {"utilization": "N/A", "temperature": "GPU is lost", "memory_used": None, "memory_total": True}
    stats["procs"][0][0]["used_memory"] = "Not Supported"
    first, second = read_stats(stats)
    assert first.metrics == {}
    assert first.unknown["utilization_percent"] == "not supported by this GPU"
    assert "lost" in first.unknown["temperature_celsius"]
    assert "None" in first.unknown["memory_used_bytes"]
    assert first.processes is not None
    assert first.processes[0].memory_used_bytes is None
    assert first.processes[0].reasons["memory_used_bytes"] == "not supported by this GPU"
    assert first.processes[1].memory_used_bytes == 4000 * MIB
    assert second.metrics["temperature_celsius"] == 38


@pytest.mark.parametrize("value", [-1, 1e30, 101])
def test_number_that_cannot_be_is_unknown(value: float) -> None:
    stats = captured()
    stats["gpus"][0]["utilization"] = value
    assert "cannot be" in read_stats(stats)[0].unknown["utilization_percent"]


def test_gpu_without_fields_is_missing_and_its_neighbour_is_there() -> None:
    stats = captured()
    stats["gpus"][0] = "NVML error"
    first, second = read_stats(stats)
    assert first.missing is not None
    assert "NVML error" in first.missing
    assert second.missing is None


@pytest.mark.parametrize("procs", [[], ["Not Supported"], [None], [{"pid": 1}]])
def test_processes_that_are_not_listed_are_unknown_and_never_none(procs: list[object]) -> None:
    stats = captured() | {"procs": procs}
    first = read_stats(stats)[0]
    assert first.processes is None
    assert first.processes_reason


@pytest.mark.parametrize("entry", [{"userid": "ada"}, {"pid": "?", "userid": "ada"}, "x"])
def test_process_whose_pid_cannot_be_read_is_there_all_the_same(entry: object) -> None:
    (process,) = read_stats(captured() | {"procs": [[entry]]})[0].processes or ()
    assert (process.pid, process.user) == (0, "ada" if isinstance(entry, dict) else None)
    assert process.reasons["pid"] == "gpumonitor reports no pid"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0:16:00", 960), ("1 day, 2:03:04", 93_784), ("12 days, 0:00:00.500000", 1_036_800), ("soon", None), (5, None)],
)
def test_running_time_is_read_as_python_writes_it(text: object, seconds: float | None) -> None:
    stats = captured()
    stats["procs"][0][0]["time"] = text
    (process, _) = read_stats(stats)[0].processes or []
    assert process.started_at == (None if seconds is None else NOW - seconds)
    assert ("started_at" in process.reasons) == (seconds is None)


@pytest.mark.parametrize("name", ["N/A", "[Not Found]"])
def test_process_whose_name_could_not_be_read_has_none(name: str) -> None:
    stats = captured()
    stats["procs"][0][0]["process_name"] = name
    (process, _) = read_stats(stats)[0].processes or []
    assert (process.command, process.reasons["command"]) == (None, "gpumonitor does not report it")


def test_secret_in_a_process_name_does_not_come_in() -> None:
    stats = captured()
    stats["procs"][0][0]["process_name"] = "train --token=hf_abcdefgh12345678"
    (process, _) = read_stats(stats)[0].processes or []
    assert "hf_" not in (process.command or "")


LAUGHS = b"""<?xml version="1.0"?><!DOCTYPE m [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">
<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;"><!ENTITY d "&c;&c;&c;&c;&c;&c;&c;&c;&c;&c;">]>
<methodResponse><params><param><value><string>&d;</string></value></param></params></methodResponse>"""
FILE = b"""<?xml version="1.0"?><!DOCTYPE m [<!ENTITY x SYSTEM "file:///etc/passwd">]>
<methodResponse><params><param><value><string>&x;</string></value></param></params></methodResponse>"""
FAULT = b"""<methodResponse><fault><value><struct>
<member><name>faultCode</name><value><int>1</int></value></member>
<member><name>faultString</name><value><string>NVML is \x1b[31mgone</string></value></member>
</struct></value></fault></methodResponse>""".replace(b"\x1b", b"")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (LAUGHS, "document type"),
        (FILE, "document type"),
        (b'<!DOCTYPE x SYSTEM "http://127.0.0.1/x.dtd"><methodResponse/>', "document type"),
        (FAULT, "answers with a fault of XML-RPC"),
        (GPU_STATS[:300], "no XML"),
        (b"", "no XML"),
        (b"\xff\xfe\x00", "no XML"),
        (b"<html>Log in first</html>", "no XML-RPC"),
        (wrap("").replace(b"string>", b"boolean>").replace(b"><", b">1<"), "no string of gpu_stats()"),
        (b"<a>" * 100 + b"</a>" * 100, "no XML-RPC"),
        (wrap("no JSON"), "no gpu_stats() in JSON"),
        (wrap('{"gpus": 3}'), "no gpu_stats() in JSON"),
        (wrap('{"gpus": ' + "[" * 5000 + "]" * 5000 + "}"), "no gpu_stats() in JSON"),
        (wrap('{"gpus": []}'), "lists no GPU"),
        (b"x" * (MAX_BYTES + 1), "more than 1 MiB"),
    ],
    ids=[
        "laughs",
        "file",
        "dtd",
        "fault",
        "cut",
        "empty",
        "binary",
        "html",
        "boolean",
        "deep",
        "text",
        "shape",
        "nested",
        "none",
        "large",
    ],
)
def test_answer_that_no_node_gives_is_refused_with_a_reason(body: bytes, told: str) -> None:
    refusal = refusal_of(lambda handler: send(handler, body))
    assert told in str(refusal)
    assert str(refusal).isprintable()


def test_slow_node_is_given_up_at_its_deadline() -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(GPU_STATS)))
        handler.end_headers()
        with contextlib.suppress(OSError):
            for byte in GPU_STATS:
                handler.wfile.write(bytes([byte]))
                time.sleep(0.05)

    assert "did not answer within 0.3 s" in str(refusal_of(answer, deadline=0.3))


def test_value_without_a_type_is_a_string_too() -> None:
    body = b'<methodResponse><params><param><value>{"gpus":[{}]}</value></param></params></methodResponse>'
    assert read_answer(body).gpus == [{}]


def write(folder: Path, text: str) -> Path:
    file = folder / "config.yml"
    file.write_text(text)
    return file


def test_config_becomes_hosts_and_settings(tmp_path: Path) -> None:
    plan = read_config(
        write(tmp_path, "# ours\nweb_port: 8042\nrpc_port: 8043\nrpc_timeout: 2\nhosts:\n  - host1\n  - 10.0.0.5\n"),
        HERE,
    )
    assert plan.steps == [
        HostStep("host1", {"via": "gpumonitor", "port": 8043}),
        HostStep("10.0.0.5", {"via": "gpumonitor", "port": 8043}),
    ]
    assert plan.left == plan.over == []
    assert plan.settings.startswith("compat:\n  gpumonitor:\n    port: 8043\n    deadline: 2s\nlisten: :8042\n")
    assert "\nfleet:\n  availability:\n    empty_bytes: 1GiB\n" in plan.settings


def test_an_entry_that_yaml_takes_for_nothing_is_no_host(tmp_path: Path) -> None:
    plan = read_config(write(tmp_path, "hosts:\n  - null\n  -\n  - yes\n  - 'null'\n  - 17\n"), HERE)
    assert [step.what for step in plan.steps] == ["watch null via gpumonitor", "watch 17 via gpumonitor"]
    assert [left.place for left in plan.left] == ["line 2", "line 3", "line 4"]


def test_urls_and_addresses_of_ipv6_are_hosts(tmp_path: Path) -> None:
    plan = read_config(write(tmp_path, "hosts: ['http://gpu1.lab:9000/x', '2001:db8::5']\n"), HERE)
    assert plan.steps == [
        HostStep("gpu1.lab", {"via": "gpumonitor", "port": 9000}),
        HostStep("2001-db8--5", {"via": "gpumonitor", "address": "2001:db8::5"}),
    ]


def test_lines_that_cannot_be_taken_are_named_and_hide_nothing(tmp_path: Path) -> None:
    text = "rpc_port: lots\ncolour: red\nhosts:\n  - good\n  - ../etc\n  - good\n  - {a: b}\n  - 'a b'\n"
    plan = read_config(write(tmp_path, text), HERE)
    assert plan.steps == [HostStep("good", {"via": "gpumonitor"})]
    assert [left.place for left in plan.left] == ["line 1", "line 2", "line 5", "line 7", "line 8"]
    assert plan.over == [SkippedEntry("line 6", "good is listed twice")]


@pytest.mark.parametrize(
    "text", ["", "- a\n", "hosts: gpu01\n", "a: [\n", "hosts: &a [*a]\n\x00", "[common]\nuser = x\n"]
)
def test_file_of_another_kind_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"config\.yml"):
        read_config(write(tmp_path, text), HERE)


@pytest.mark.parametrize(("gpus", "each"), [(1, 1024), (8, 1024), (64, 128), (512, 16)])
def test_processes_of_a_host_are_bounded_however_they_are_spread(gpus: int, each: int) -> None:
    listed = [{"pid": number + 1} for number in range(each + 1)]
    found = read_stats({"gpus": [{"model": "x"}] * gpus, "procs": [listed] * gpus})
    assert {len(gpu.processes or ()) for gpu in found} == {each}
