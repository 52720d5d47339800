"""An exporter as a host: over real HTTP, with everything that can be wrong with it."""

import asyncio
import contextlib
import gzip
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, start_http_server

from docs.settings_reference import reference
from gpudeck.model.catalog import HOST_METRICS
from gpudeck.model.errors import Absent, PluginError, Refused, Temporary, UsageError
from gpudeck.model.report import Report
from gpudeck.model.target import Target
from gpudeck.sources import scrape
from gpudeck.sources.base import ScrapeSettings
from gpudeck.sources.scrape import make
from gpudeck.wire import decode, encode
from sources.scrape_pages import EIGHT, GPU_PAGES, MIG, NODE, NOW, NVITOP_HELD, SMI, Exporter, load, send, web_server


def read(at: int, settings: ScrapeSettings | None = None, **target: object) -> Report:
    """One reading over HTTP."""
    wanted = msgspec.structs.replace(Target(name="gpu01", via="scrape", address="127.0.0.1", port=at), **target)

    async def run() -> Report:
        source = make(wanted, settings or ScrapeSettings(deadline=5.0))
        try:
            return (await source.read(NOW)).envelope.report
        finally:
            await source.close()

    return asyncio.run(run())


def serve(body: bytes, status: int = 200, **headers: str) -> contextlib.AbstractContextManager[int]:
    return web_server(lambda handler: send(handler, body, status, **headers))


@pytest.fixture
def prometheus_client_port() -> Iterator[int]:
    """A real exporter, made with prometheus_client as nvitop's is."""
    registry = CollectorRegistry()
    labels = {"gpu": "0", "UUID": "GPU-a", "modelName": "NVIDIA L4", "Hostname": "gpu01"}
    Gauge("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", labels, registry=registry).labels(**labels).set(42)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join(10)


def test_a_real_exporter_becomes_a_host(prometheus_client_port: int) -> None:
    (gpu,) = read(prometheus_client_port).gpus or ()
    assert (gpu.name, gpu.metrics["utilization_percent"]) == ("NVIDIA L4", 42)


def test_a_recorded_page_comes_over_http_packed() -> None:
    with serve(gzip.compress(load(EIGHT).encode()), Content_Encoding="gzip") as port:
        assert len(read(port).gpus or ()) == 8


def test_an_exporter_that_is_killed_and_comes_back_is_read_again() -> None:
    """By the same source: the GPUs and the order of its reports go on."""

    async def run() -> None:
        with serve(load(EIGHT).encode()) as port:
            source = make(Target(name="gpu01", via="scrape", address="127.0.0.1", port=port), ScrapeSettings())
            first = (await source.read(NOW)).envelope
        with pytest.raises(Temporary, match=f"http://127.0.0.1:{port}/metrics"):
            await source.read(NOW + 15)
        lost = "".join(line for line in load(EIGHT).splitlines(keepends=True) if 'gpu="5"' not in line)
        with web_server(lambda handler: send(handler, lost.encode()), port):
            second = (await source.read(NOW + 30)).envelope
        await source.close()
        assert (first.run_id, first.boot_id) == (second.run_id, second.boot_id)
        assert first.sequence < second.sequence
        assert [gpu.index for gpu in second.report.gpus or () if gpu.missing] == [5]

    asyncio.run(run())


def test_a_body_that_breaks_off_is_not_half_a_host() -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        send(handler, load(EIGHT).encode()[:20_000], Content_Length="50000")
        handler.close_connection = True

    with web_server(answer) as port, pytest.raises(Temporary, match="does not answer"):
        read(port)


def test_an_endless_body_is_not_read_to_its_end() -> None:
    ended = threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        send(handler, b"", Content_Length=str(10**12))
        with contextlib.suppress(OSError):
            while True:
                handler.wfile.write(b"DCGM_FI_DEV_GPU_UTIL 1\n" * 4000)
        ended.set()

    with web_server(answer) as port:
        with pytest.raises(Temporary, match="MiB"):
            read(port, ScrapeSettings(deadline=30.0))
        assert ended.wait(10)


def test_an_exporter_that_says_nothing_has_a_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(Temporary, match=r"within 0\.2 s"):
        read(silent.getsockname()[1], ScrapeSettings(deadline=0.2))


def test_html_is_named_with_the_address_and_the_next_step() -> None:
    with serve(b"<html>Sign in</html>") as port, pytest.raises(Temporary) as caught:
        read(port)
    assert caught.value.message == f"http://127.0.0.1:{port}/metrics: It answers a web page, not metrics."
    assert "/metrics" in caught.value.hint


@pytest.mark.parametrize("body", [b"# nothing\n", b"no metrics\n", load(NODE).encode()])
def test_a_page_without_gpus_is_absent_and_says_which_exporters_are_known(body: bytes) -> None:
    with serve(body) as port, pytest.raises(Absent) as caught:
        read(port)
    assert "dcgm-exporter, nvidia_gpu_exporter, nvitop-exporter" in str(caught.value)
    assert "9835" in caught.value.hint


def test_an_exporter_that_could_not_read_its_gpus_is_believed() -> None:
    page = load(SMI).replace("nvidia_smi_last_collect_success 1", "nvidia_smi_last_collect_success 0")
    with pytest.raises(Temporary, match="nvidia_gpu_exporter says that it could not read its GPUs"):
        Exporter(page).report()


def test_an_exporter_that_names_no_gpu_is_a_failed_reading() -> None:
    with pytest.raises(Temporary, match="lists no GPU"):
        Exporter("DCGM_FI_DEV_GPU_UTIL 5\n").report()


def test_a_token_is_sent_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    seen: list[str | None] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        seen.append(handler.headers["Authorization"])
        send(handler, b"no", 401)

    with web_server(answer) as port, pytest.raises(Refused) as caught:
        read(port, token_file=str(tmp_path / "token"))
    assert seen == ["Bearer s3cret"]
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("content", [None, "", "\nsecond line\n", "\x07"])
def test_a_token_file_that_holds_no_token_is_refused(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "token"
    file.write_text(content or "")
    with pytest.raises(Refused, match="token"):
        read(9, token_file=str(file if content is not None else tmp_path / "none"))


def test_the_settings_give_what_the_target_leaves_open() -> None:
    asked: list[str] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        send(handler, load(EIGHT).encode())

    with web_server(answer) as port:
        read(port, ScrapeSettings(port=port, path="/gpu/metrics"), port=None)
        read(port, path="/other")
    assert asked == ["/gpu/metrics", "/other"]


@pytest.mark.parametrize("name", ["", "two words", "a/b", "x\n", "-x"])
def test_a_name_that_no_host_can_have_is_a_mistake(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a host"):
        make(Target(name=name, via="scrape"), ScrapeSettings())


def test_certificates_that_are_not_there_are_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="certificates"):
        make(Target(name="gpu01", via="scrape"), ScrapeSettings(ca_file=str(tmp_path / "ca.pem")))


def test_an_address_that_is_none_is_refused_not_a_trace() -> None:
    with pytest.raises(PluginError):
        read(1, address="a\x00b")


@pytest.mark.parametrize("page", GPU_PAGES)
def test_what_comes_out_is_what_the_wire_takes(page: str) -> None:
    envelope = Exporter(load(page)).seal()
    assert decode(encode(envelope), encoding="zstd") == envelope


def test_the_envelope_is_the_hosts() -> None:
    exporter = Exporter(load(EIGHT), settings=ScrapeSettings(interval=30.0))
    first, second = exporter.seal(), exporter.seal(now=NOW + 30)
    assert (first.host, first.host_id, first.boot_id, first.collected_at) == ("gpu01", "", "scrape", NOW)
    assert (first.interval_seconds, second.sequence - first.sequence) == (30.0, 1)
    assert first.run_id == second.run_id != Exporter(load(EIGHT)).seal().run_id


def test_labels_of_the_target_go_with_the_host() -> None:
    with serve(load(EIGHT).encode()) as port:
        assert read(port, labels={"rack": "b3"}).labels == {"rack": "b3"}


def test_the_driver_is_told() -> None:
    versions = [Exporter(load(page)).report().driver_version for page in (EIGHT, SMI, NVITOP_HELD)]
    assert versions == ["580.126.09", "590.48.01", "580.159.04"]


def of_host(page: str, host: str) -> str:
    return page.replace('Hostname="gpu07"', f'Hostname="{host}"').replace('UUID="GPU-', f'UUID="GPU-{host}-')


def test_one_host_on_a_page_is_read_whatever_its_name() -> None:
    assert len(Exporter(of_host(load(EIGHT), "ip-10-0-0-7")).gpus()) == 8


def test_several_hosts_on_a_page_are_counted_and_their_names_are_for_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    page = of_host(load(EIGHT), "gpu03") + of_host(load(EIGHT), "hunter\x1b[2J2")
    with pytest.raises(Temporary, match=r"lists 2 hosts\. Read each host's own exporter") as failed:
        Exporter(page).report()
    assert "gpu03" not in str(failed.value)
    assert "hunter" not in str(failed.value)
    assert "gpu03, hunter" in caplog.text
    assert "\x1b" not in caplog.text


def test_nvitop_tells_of_its_host_itself() -> None:
    report = Exporter(load(NVITOP_HELD)).report()
    assert report.metrics == {
        "cpu_percent": 0.1,
        "load_1m": 0.07,
        "memory_used_bytes": 679 * 2**20,
        "memory_total_bytes": 128_888 * 2**20,
        "disk_used_bytes": 16_496 * 2**20,
        "disk_total_bytes": 258_020 * 2**20,
        "swap_used_bytes": 0,
        "swap_total_bytes": 0,
        "uptime_seconds": 60,
    }


@pytest.mark.parametrize("page", [*GPU_PAGES, MIG])
def test_every_figure_of_the_host_is_known_or_unknown_with_a_reason(page: str) -> None:
    report = Exporter(load(page)).report()
    assert report.metrics.keys() | report.unknown.keys() == HOST_METRICS.keys()
    assert not report.metrics.keys() & report.unknown.keys()


def test_a_large_page_is_parsed_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []
    parse = scrape.parse_page

    def watch(*arguments: object) -> object:
        threads.append(threading.current_thread() is threading.main_thread())
        return parse(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(scrape, "parse_page", watch)
    Exporter(load(EIGHT)).report()
    assert len(Exporter(load(EIGHT) + "# padding\n" * 20_000).gpus()) == 8
    assert threads == [True, False]


RUBBISH = st.text(alphabet='DCGM_FI_DEVUTL{}gpuUID="\\, \t\r\n09.e+-#Na:\x00é', max_size=120)
LABELS = st.dictionaries(
    st.sampled_from(["gpu", "UUID", "modelName", "Hostname", "GPU_I_ID", "GPU_I_PROFILE", "pci_bus_id", "pod"]),
    st.text(max_size=12).map(lambda text: text.replace("\\", "").replace('"', "").replace("\n", "")),
)
NUMBERS = st.one_of(
    st.floats().map(str), st.integers().map(str), st.sampled_from(["1e308", "2147483634", "-0", "1" * 400])
)
NAMES = st.sampled_from(["DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"])


def write(name: str, labels: dict[str, str], number: str) -> str:
    inner = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return f"{name}{{{inner}}} {number}\n"


@given(st.lists(st.one_of(RUBBISH, st.builds(write, NAMES, LABELS, NUMBERS)), max_size=12), st.sampled_from(GPU_PAGES))
def test_rubbish_on_a_page_is_a_report_for_the_wire_or_one_of_our_errors(lines: list[str], page: str) -> None:
    exporter = Exporter("\n".join(lines))
    for text in ("\n".join(lines), load(page) + "\n".join(lines), "\n".join(lines) + "\n"):
        with contextlib.suppress(PluginError):
            envelope = exporter.seal(text.encode(errors="replace"))
            assert decode(encode(envelope), encoding="zstd") == envelope


@given(st.binary(max_size=300))
def test_no_bytes_raise_anything_but_our_errors(body: bytes) -> None:
    with contextlib.suppress(PluginError):
        envelope = Exporter(body).seal()
        assert decode(encode(envelope), encoding="zstd") == envelope


def test_every_setting_has_its_help() -> None:
    class Section(msgspec.Struct, frozen=True):
        """Whatever."""

        scrape: ScrapeSettings = msgspec.field(default_factory=ScrapeSettings)

    page = reference(Section)
    assert "`scrape.interval`" in page
    assert "`15s`" in page


def test_a_page_of_sixty_thousand_other_series_is_read_in_the_thread_for_large_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[str] = []
    parse_page = scrape.parse_page

    def watched(body: bytes, wanted: frozenset[str]) -> scrape.Page:
        threads.append(threading.current_thread().name)
        return parse_page(body, wanted)

    monkeypatch.setattr(scrape, "parse_page", watched)
    other = "".join(f'other_total{{path="/{n}"}} {n}\n' for n in range(60_000))
    with serve((other + load(EIGHT)).encode()) as port:
        assert len(read(port).gpus or ()) == 8
    with serve(load(EIGHT).encode()) as port:
        assert len(read(port).gpus or ()) == 8
    assert len(load(EIGHT)) < scrape.LARGE_BYTES
    assert threads == ["parser_0", "MainThread"]


def test_a_small_page_of_many_gpus_becomes_a_report_in_the_thread_for_large_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[str] = []
    devices = scrape.ScrapedGpus

    def watched(*args: object) -> scrape.ScrapedGpus:
        threads.append(threading.current_thread().name)
        return devices(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(scrape, "ScrapedGpus", watched)
    page = "".join(f'DCGM_FI_DEV_GPU_UTIL{{gpu="{n}",UUID="GPU-{n}"}} 1\n' for n in range(scrape.LARGE_SERIES + 1))
    with serve(page.encode()) as port:
        assert len(read(port).gpus or ()) == scrape.LARGE_SERIES + 1
    with serve(page.partition("\n")[2].encode()) as port:
        assert len(read(port).gpus or ()) == scrape.LARGE_SERIES
    assert threads == ["parser_0", "MainThread"]


def test_twice_as_many_gpus_as_any_server_has_are_within_the_limits() -> None:
    """16 GPUs with twice the fields of the recorded page."""
    sixteen = "".join(load(EIGHT).replace('gpu="', f'gpu="{n}').replace('UUID="GPU', f'UUID="GPU{n}') for n in "1234")
    with serve(sixteen.encode()) as port:
        report = read(port)
    assert len(report.gpus or ()) == 32
    assert report.problems == []


def test_a_page_that_is_too_large_is_refused_with_its_limit() -> None:
    with serve(b"x 1\n" * (2 * 2**20 + 1)) as port, pytest.raises(Temporary, match=r"answers more than 8 MiB\.$"):
        read(port)


def test_an_added_host_is_not_read_on_the_hubs_own_machine() -> None:
    with serve(load(EIGHT).encode()) as port:
        with pytest.raises(
            Refused, match=r"^gpu01 has the loopback address 127\.0\.0\.1, .*discovery\.allow_addresses"
        ):
            read(port, local_networks=())
        assert len(read(port, local_networks=("127.0.0.0/8",)).gpus or ()) == 8


@pytest.mark.parametrize(
    "body", [b"the-password-is-hunter2", b"hunter2\nhunter2", b'{"key": "hunter2"}\n', b"DCGM_hunter2 1\n"]
)
@pytest.mark.parametrize("status", [200, 404, 500])
def test_nothing_of_a_page_that_is_no_exporters_is_told(body: bytes, status: int) -> None:
    with serve(body, status) as port, pytest.raises(PluginError) as caught:
        read(port)
    assert "hunter2" not in str(caught.value)
