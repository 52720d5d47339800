"""The files of gpu-monitor's scripts: in a folder, and served by a real web server."""

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from compat.nodes import CAPTURES, file_node
from discovery.servers import json_server
from gpudeck.compat import gpu_monitor as sources
from gpudeck.compat.gpu_monitor import (
    DEAD,
    LOST,
    ORPHAN,
    ConsulNodes,
    FolderHosts,
    FolderSource,
    ServedSource,
    read_gpus,
    read_owners,
    read_processes,
    read_status,
)
from gpudeck.compat.service import make_poll_methods, make_providers, names_hosts
from gpudeck.compat.settings import CompatSettings, GpuMonitorSettings
from gpudeck.discovery import inputs as discovery_inputs
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS
from gpudeck.model.errors import GpudeckError, Temporary, UsageError
from gpudeck.model.report import GpuReading, Report
from gpudeck.model.target import Target
from gpudeck.sources.base import FetchedReport, Source
from gpudeck.wire import decode, encode
from sources.scrape_pages import send, web_server

MIB = 2**20
NAME = "gputest001"
FIRST, SECOND = (f"GPU-11111111-aaaa-bbbb-cccc-00000000000{number}" for number in range(2))
WRITTEN = 1_794_725_733.0
"""When the captured files were written, by the last line of their GPUs in UTC: 2026-11-15 06:55:33."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The captured files, as old as they say."""
    place = tmp_path / "data"
    shutil.copytree(CAPTURES / "gpu-monitor-data", place)
    date_files(place, WRITTEN)
    return place


def date_files(folder: Path, written_at: float) -> None:
    for file in folder.iterdir():
        os.utime(file, (written_at, written_at))


def read(source: Source, *moments: float) -> FetchedReport:
    async def work() -> FetchedReport:
        try:
            for moment in moments:
                arrival = await source.read(moment)
            return arrival
        finally:
            await source.close()

    return asyncio.run(work())


def from_folder(folder: Path, name: str = NAME, **settings: Any) -> FolderSource:
    return FolderSource(Target(name=name, via="gpu-monitor-files"), GpuMonitorSettings(folder=str(folder), **settings))


def from_port(port: int, **settings: Any) -> ServedSource:
    return ServedSource(Target(name=NAME, address="127.0.0.1", port=port), GpuMonitorSettings(**settings))


def report_of(folder: Path) -> Report:
    return read(from_folder(folder), WRITTEN + 1).envelope.report


def gpus_of(folder: Path) -> list[GpuReading]:
    return report_of(folder).gpus or []


def append(folder: Path, kind: str, text: str) -> None:
    with (folder / f"{NAME}_{kind}.csv").open("a") as opened:
        opened.write(text)
    date_files(folder, WRITTEN)


def test_captured_files_become_a_report_that_a_hub_takes(folder: Path) -> None:
    arrival = read(from_folder(folder), WRITTEN + 10)
    assert decode(encode(arrival.envelope), encoding="zstd") == arrival.envelope
    assert (arrival.envelope.host, arrival.envelope.collected_at, arrival.sent_at) == (NAME, WRITTEN, WRITTEN + 10)
    first, second = arrival.envelope.report.gpus or []
    assert (first.index, first.uuid, first.name) == (0, FIRST, "GeForce GTX 1080 Ti")
    assert first.metrics == {
        "memory_used_bytes": 8018 * MIB,
        "memory_total_bytes": 11169 * MIB,
        "utilization_percent": 92,
        "memory_utilization_percent": 55,
        "temperature_celsius": 80,
    }
    assert [(one.pid, one.user, one.command, one.memory_used_bytes) for one in first.processes or ()] == [
        (1242, "root", "train1", 6400 * MIB),
        (24738, "root", "train2", 1618 * MIB),
    ]
    assert (first.processes or [])[0].started_at == WRITTEN - 2
    assert second.metrics["utilization_percent"] == 0
    assert (first.metrics.keys() | first.unknown.keys()) == GPU_METRICS.keys()


def fill_second(folder: Path) -> None:
    """The second GPU with memory in use: by that a process of which `ps` knows nothing may still be there."""
    append(folder, "gpus", f"1, {SECOND}, GeForce GTX 1080 Ti, 10, 11172, 0, 0, 38, 2026/11/15 06:55:32.549\n")


def test_process_that_the_scripts_no_longer_see_is_probably_dead_and_still_there(folder: Path) -> None:
    fill_second(folder)
    (gone,) = gpus_of(folder)[1].processes or []
    assert (gone.pid, gone.user, gone.reasons["user"]) == (999999, None, DEAD)


def test_dead_process_on_an_empty_gpu_is_over_as_on_the_old_page(folder: Path) -> None:
    assert gpus_of(folder)[1].processes == []
    append(folder, "processes", f"2026/11/15 06:55:32.555, {SECOND}, 5, odd, [Not Found]\n")
    assert [one.command for one in gpus_of(folder)[1].processes or ()] == ["odd"]
    (folder / f"{NAME}_users.csv").unlink()
    assert [one.command for one in gpus_of(folder)[1].processes or ()] == ["gone", "odd"]


def test_host_tells_memory_disk_processors_and_load(folder: Path) -> None:
    report = report_of(folder)
    assert report.metrics == {
        "memory_total_bytes": 24103 * MIB,
        "memory_used_bytes": (24103 - 23559) * MIB,
        "disk_total_bytes": 258020 * MIB,
        "disk_used_bytes": 30106 * MIB,
        "cpu_count": 2,
        "load_1m": 1.48,
    }
    assert report.unknown["cpu_percent"] == "gpu-monitor does not report it"
    assert (report.metrics.keys() | report.unknown.keys()) == HOST_METRICS.keys()


@pytest.mark.parametrize(
    ("line", "unknown"),
    [
        ("/dev/sda1 99999999999999999999 30828116 2 29% /", {"disk_total_bytes": "cannot be"}),
        ("Mem: 24103 544 21476 12 2404 99999", {"memory_used_bytes": "cannot be"}),
        ("Mem: NaN -5 1e99", {}),
        ("99999999999", {"cpu_count": "cannot be"}),
        (" 06:55 up 3 min, load average: 99999999999,9, 1, 1", {"load_1m": "cannot be"}),
    ],
)
def test_rubbish_in_the_bars_of_a_host_is_unknown_and_no_zero(folder: Path, line: str, unknown: dict[str, str]) -> None:
    append(folder, "status", f"{line}\n")
    report = report_of(folder)
    assert {name: report.unknown[name].endswith(reason) for name, reason in unknown.items()} == dict.fromkeys(
        unknown, True
    )
    assert not unknown.keys() & report.metrics.keys()
    assert all(report.metrics[name] > 0 for name in ("memory_total_bytes", "disk_used_bytes") if name in report.metrics)


def test_last_row_of_a_gpu_wins_and_rows_of_another_shape_are_passed_over(folder: Path) -> None:
    append(
        folder,
        "gpus",
        f"0, {FIRST}, GeForce GTX 1080 Ti, 10, 11169, 3, 0, 41, 2026/11/15 06:55:33.000\n"
        f"0, {FIRST}, GeForce GTX 1080 Ti, 99\n"
        "Unable to determine the device handle, GPU is lost\n"
        f"x, {FIRST}, n, 1, 2, 3, 4, 5, t\n1, ../../etc, n, 1, 2, 3, 4, 5, t\n\n"
        f"0, {FIRST}, GeForce GTX 1080",
    )
    first, second = gpus_of(folder)
    assert (first.metrics["temperature_celsius"], second.metrics["temperature_celsius"]) == (41, 38)


def test_text_in_place_of_a_number_is_unknown_with_its_reason(folder: Path) -> None:
    append(folder, "gpus", f"0, {FIRST}, G, [N/A], [Unknown Error], [Not Supported], , 80, 2026/11/15 06:55:33.000\n")
    first = gpus_of(folder)[0]
    assert first.metrics == {"temperature_celsius": 80}
    assert first.unknown["utilization_percent"] == "not supported by this GPU"
    assert first.unknown["memory_total_bytes"] == "the driver reports an unknown error"


def test_processes_that_ended_are_over_though_the_file_keeps_them(folder: Path) -> None:
    file = folder / f"{NAME}_processes.csv"
    listed = file.read_text()
    file.write_text(f"2026/11/15 06:55:12.500, {FIRST}, 100, old, 77\n" + listed)
    date_files(folder, WRITTEN)
    assert [one.pid for one in gpus_of(folder)[0].processes or ()] == [1242, 24738]
    # Nothing is listed any more where all have ended.
    file.write_text(listed.replace("06:55:32", "06:54:31"))
    date_files(folder, WRITTEN)
    assert gpus_of(folder)[0].processes == []


def test_gpu_that_the_scripts_list_no_more_is_missing_and_never_free(folder: Path) -> None:
    append(
        folder,
        "gpus",
        f"0, {FIRST}, GeForce GTX 1080 Ti, 10, 11169, 3, 0, 41, 2026/11/15 06:57:30.000\n",
    )
    first, second = gpus_of(folder)
    assert (first.missing, first.metrics["temperature_celsius"]) == (None, 41)
    assert (second.missing, second.metrics, second.processes) == (LOST, {}, None)
    assert set(second.unknown) == set(GPU_METRICS)


@pytest.mark.parametrize(
    ("kind", "half"),
    [
        ("processes", f"2026/11/15 06:55:33.000, {FIRST}, 6400, train1, 12"),
        ("users", "1242 ro"),
        ("gpus", f"0, {FIRST}, GeForce GTX 1080 Ti, 10, 11169, 3, 0, 41, 2026/11"),
    ],
)
def test_half_a_line_of_a_file_that_is_being_written_says_nothing(folder: Path, kind: str, half: str) -> None:
    before = gpus_of(folder)
    append(folder, kind, half)
    assert gpus_of(folder) == before


def test_process_whose_pid_cannot_be_read_is_there_all_the_same(folder: Path) -> None:
    append(folder, "processes", f"2026/11/15 06:55:33.000, {FIRST}, 100, train3, [Not Found]\n")
    assert [(one.pid, one.command) for one in gpus_of(folder)[0].processes or ()][-1] == (0, "train3")


def test_process_that_ended_and_left_a_child_is_its_childs_users(folder: Path) -> None:
    append(folder, "users", '{"999999": ["4711", "4712"], "24738": []}\n4711 ada  Sun Nov 15 06:55:31 2026\n')
    fill_second(folder)
    first, second = gpus_of(folder)
    assert [(one.user, one.started_at) for one in second.processes or ()] == [("ada", WRITTEN - 2)]
    assert (second.processes or [])[0].evidence == ORPHAN.format(4711)
    assert [one.user for one in first.processes or ()] == [None, None]


@pytest.mark.parametrize("kind", ["processes", "users", "status"])
def test_missing_file_costs_what_stands_in_it_only(folder: Path, kind: str) -> None:
    (folder / f"{NAME}_{kind}.csv").unlink()
    report = report_of(folder)
    first = (report.gpus or [])[0]
    assert first.metrics["utilization_percent"] == 92
    assert (first.processes is None) == (kind == "processes")
    assert ("no such file" in (first.processes_reason or "")) == (kind == "processes")
    assert ("load_1m" in report.unknown) == (kind == "status")
    users = [one.user for one in first.processes or ()]
    assert (None in users) == (kind == "users")


def test_zone_of_the_host_does_not_matter(folder: Path) -> None:
    date_files(folder, WRITTEN - 9 * 3600)
    arrival = read(from_folder(folder), WRITTEN - 9 * 3600 + 1)
    first = (arrival.envelope.report.gpus or [])[0]
    assert (first.processes or [])[0].started_at == WRITTEN - 9 * 3600 - 2


def test_old_files_say_nothing_of_now(folder: Path) -> None:
    with pytest.raises(Temporary, match="was written 10m ago") as caught:
        read(from_folder(folder), WRITTEN + 601)
    assert "gpu-check.sh" in caught.value.hint


def test_files_that_do_not_change_get_old_though_their_clock_is_ahead(folder: Path) -> None:
    date_files(folder, WRITTEN + 7200)
    source = from_folder(folder)
    with pytest.raises(Temporary, match="was written"):
        read(source, WRITTEN, WRITTEN + 119, WRITTEN + 121)


def test_link_out_of_the_folder_is_not_followed(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text((folder / f"{NAME}_gpus.csv").read_text())
    (folder / "evil_gpus.csv").symlink_to(secret)
    with pytest.raises(Temporary, match="it is a link, and those are not followed"):
        read(from_folder(folder, "evil"), WRITTEN + 1)


def test_pipe_in_the_folder_does_not_hang_the_hub(folder: Path) -> None:
    os.mkfifo(folder / "pipe_gpus.csv")
    with pytest.raises(Temporary, match="no plain file"):
        read(from_folder(folder, "pipe"), WRITTEN + 1)


@pytest.mark.parametrize("name", ["../data/gputest001", "a/b", ".hidden", "a\n", ""])
@pytest.mark.parametrize("make", [FolderSource, ServedSource])
def test_name_that_leads_elsewhere_is_refused(make: Callable[..., Source], name: str, folder: Path) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a host"):
        make(Target(name=name), GpuMonitorSettings(folder=str(folder)))


def test_large_file_is_read_from_its_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "TAIL_BYTES", 300)
    assert len((folder / f"{NAME}_gpus.csv").read_bytes()) < 300
    append(folder, "gpus", f"0, {FIRST}, G, 1, 2, 3, 4, 45, 2026/11/15 06:55:33.000\n" * 4)
    (first,) = gpus_of(folder)
    assert first.metrics["temperature_celsius"] == 45


def test_served_files_are_read_as_those_of_a_folder(folder: Path) -> None:
    with file_node(folder) as port:
        served = read(from_port(port), WRITTEN + 5).envelope
    copied = read(from_folder(folder), WRITTEN + 5).envelope
    assert served.report == copied.report
    assert served.collected_at == WRITTEN


def test_served_file_that_is_missing_costs_what_stands_in_it_only(folder: Path) -> None:
    (folder / f"{NAME}_processes.csv").unlink()
    with file_node(folder) as port:
        first = (read(from_port(port), WRITTEN + 5).envelope.report.gpus or [])[0]
    assert first.processes is None
    assert "404" in (first.processes_reason or "")
    assert first.metrics["utilization_percent"] == 92


def test_host_that_serves_no_files_is_told_with_its_address(tmp_path: Path) -> None:
    with file_node(tmp_path) as port, pytest.raises(Temporary, match=f"{NAME}_gpus.csv answers 404"):
        read(from_port(port), WRITTEN)


@pytest.mark.parametrize(
    ("name", "address", "files"),
    [
        (f"{NAME}.example.org", "127.0.0.1", NAME),
        (f"{NAME}.example.org", "127.0.0.1", f"{NAME}.example.org"),
        ("big-one", "localhost", "localhost"),
    ],
)
def test_files_are_named_after_the_short_name_of_a_host_or_what_its_scripts_were_given(
    folder: Path, name: str, address: str, files: str
) -> None:
    expected = report_of(folder)
    for file in list(folder.iterdir()):
        file.rename(folder / file.name.replace(NAME, files))
    with file_node(folder) as port:
        source = ServedSource(Target(name=name, address=address, port=port), GpuMonitorSettings())
        envelope = read(source, WRITTEN + 1, WRITTEN + 1).envelope
    assert (envelope.host, envelope.report) == (name, expected)


def test_slow_host_is_given_up_at_its_deadline() -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(1.0)
        send(handler, b"")

    with web_server(answer) as port, pytest.raises(Temporary, match=r"within 0\.2 s"):
        read(from_port(port, deadline=0.2), WRITTEN)


def test_answer_that_breaks_off_is_told() -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        send(handler, b"0, GPU", Content_Length="500")
        handler.close_connection = True

    with web_server(answer) as port, pytest.raises(Temporary, match="does not answer"):
        read(from_port(port), WRITTEN)


def test_files_of_another_kind_are_no_gpus(folder: Path) -> None:
    (folder / f"{NAME}_gpus.csv").write_bytes(b"<html>\xff\x00, , , , , , , , \n")
    date_files(folder, WRITTEN)
    with pytest.raises(Temporary, match="has no line of a GPU"):
        read(from_folder(folder), WRITTEN)


def test_rubbish_in_any_file_is_passed_over() -> None:
    rubbish = b'\x00\xff{"1": [[]]}\n{}\n{"\n-1 x\n1\n,,,,\n,,,,,,,,\nMem: a b\n/ / / / / /\nload average: x\n'
    assert (read_gpus(rubbish), read_processes(rubbish), read_owners(rubbish)[1]) == ([], [], {})
    assert "memory_total_bytes" not in read_status(rubbish)


@pytest.mark.parametrize("loads", ["1.48, 2.24, 1.64", "1,48, 2,24, 1,64"])
def test_load_is_read_as_the_command_writes_it(loads: str) -> None:
    assert read_status(f" 06:55:32 up 3 days,  4:05,  2 users,  load average: {loads}".encode()) == {"load_1m": 1.48}


def find(provider: FolderHosts | ConsulNodes) -> list[Target]:
    async def work() -> list[Target]:
        try:
            return await provider.find()
        finally:
            await provider.close()

    return asyncio.run(work())


def test_every_host_with_files_in_the_folder_is_found_and_names_that_are_none_are_told(folder: Path) -> None:
    (folder / "gpu02_gpus.csv").touch()
    (folder / "..evil_gpus.csv").touch()
    (folder / "gpu03_processes.csv").touch()
    provider = FolderHosts(str(folder))
    assert [(target.name, target.via) for target in find(provider)] == [
        ("gpu02", "gpu-monitor-files"),
        (NAME, "gpu-monitor-files"),
    ]
    assert provider.problems == [f"{folder}: '..evil_gpus.csv' is no file of a host."]


def test_folder_that_is_not_there_is_told_and_no_empty_list(tmp_path: Path) -> None:
    with pytest.raises(Temporary, match=r"compat\.gpu_monitor\.folder"):
        find(FolderHosts(str(tmp_path / "gone")))


def test_hosts_that_a_service_in_consul_names_are_found() -> None:
    catalog = (
        b'[{"Node": "gpu01", "Address": "10.0.0.1", "ServicePort": 80}, {"Node": {"Node": "gpu02"}}, {"Node": "gpu01"},'
    )
    full = b'{"Node": "gpu03.example.org"}, {"Node": "gpu03.example.com"}, {"Node": "10.0.0.7"}, '
    body = catalog + full + b'{"Node": "../x"}, {"Node": 5}, {}, 7]'

    async def work() -> tuple[list[Target], list[str]]:
        async with json_server(body) as url:
            provider = ConsulNodes(f"{url}/v1/catalog/service/gpu?tag=x")
            try:
                return await provider.find(), provider.problems
            finally:
                await provider.close()

    targets, problems = asyncio.run(work())
    assert {target.via for target in targets} == {"gpu-monitor"}
    assert [(target.name, target.host, target.port) for target in targets] == [
        ("gpu01", "gpu01", None),
        ("gpu02", "gpu02", None),
        ("gpu03", "gpu03.example.org", None),
        ("gpu03.example.com", "gpu03.example.com", None),
        ("10.0.0.7", "10.0.0.7", None),
    ]
    assert len(problems) == 4


def test_more_hosts_than_there_is_room_for_are_told_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> list[tuple[int, list[str]]]:
        async with json_server(b"[%s]" % b",".join(b'{"Node": "h%d"}' % number for number in range(9))) as url:
            providers = [ConsulNodes(url), FolderHosts(str(folder))]
            found = [(len(await provider.find()), provider.problems) for provider in providers]
            await providers[0].close()
            return found

    monkeypatch.setattr(discovery_inputs, "MAX_HOSTS", 2)
    for name in ("a", "b"):
        (folder / f"{name}_gpus.csv").touch()
    for count, problems in asyncio.run(work()):
        assert (count, len(problems)) == (2, 1)
        assert "from here on hosts are left out" in problems[0]


@pytest.mark.parametrize("body", [b"{}", b"", b"<html>", b"[" * 5000])
def test_answer_that_is_no_list_is_an_error_and_no_empty_list(body: bytes) -> None:
    async def work() -> None:
        async with json_server(body) as url:
            provider = ConsulNodes(url)
            try:
                await provider.find()
            finally:
                await provider.close()

    with pytest.raises(GpudeckError, match="no list of nodes"):
        asyncio.run(work())


def test_nothing_is_found_unless_it_is_configured(folder: Path) -> None:
    settings = CompatSettings(gpu_monitor=GpuMonitorSettings(folder=str(folder), consul="http://127.0.0.1:1/x"))
    assert len(make_providers(settings)) == 2
    assert make_providers(CompatSettings()) == []
    assert (names_hosts(settings), names_hosts(CompatSettings())) == (True, False)
    with pytest.raises(UsageError, match=r"compat\.gpu_monitor\.folder"):
        make_poll_methods(CompatSettings())["gpu-monitor-files"].make(Target(name="gpu01"))
