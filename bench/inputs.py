"""Left out here: what is done with data after it was parsed (history, alerts, answers for viewers), TLS and SSH
themselves, and what only the operator writes (gpudeck.yaml, imports).

How long input from outside keeps the event loop from serving others, parser by parser. Each gets the worst input that
was found within its limits, in a loop that is set up as the hub's. Measured is the longest time in which the loop
served nobody, the shortest of several runs, as this machine does other things too. The reference, in the same run, is
the same input parsed in the loop in one go.
"""

import asyncio
import contextlib
import gc
import gzip
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import NamedTuple

import msgspec
import uvloop

from bench.tables import best_of
from gpudeck.compat.gpu_cluster_status import ClusterNodeSource
from gpudeck.compat.gpu_monitor import ServedSource
from gpudeck.compat.gpumonitor import GpumonitorSource
from gpudeck.compat.settings import GpuClusterStatusSettings, GpuMonitorSettings, GpumonitorSettings
from gpudeck.compat.vesta.store import read_post
from gpudeck.discovery.consul import read_instances
from gpudeck.discovery.prometheus_sd import read_file, read_targets
from gpudeck.discovery.service import PollingService
from gpudeck.discovery.static import read_hosts
from gpudeck.fetch import Fetcher, HttpResponse
from gpudeck.fleet.hub import Hub
from gpudeck.history.remote import client as promql
from gpudeck.history.time_range import Grid
from gpudeck.model.cpu_budget import THREAD_SECONDS, parse_in_thread, run_in_steps
from gpudeck.model.errors import GpudeckError
from gpudeck.model.gpu_state import FleetSettings
from gpudeck.model.report import GpuReading, Process, Report
from gpudeck.model.target import Target
from gpudeck.sources import ssh
from gpudeck.sources.base import FetchedReport, ScrapeSettings, SshSettings
from gpudeck.sources.poller import PollMethod
from gpudeck.sources.scrape import LARGE_BYTES, ScrapeSource
from gpudeck.sources.ssh import Output
from gpudeck.wire import MAX_DECODED_BYTES, MAX_PROCESSES, Envelope, encode

TARGET_SECONDS = 0.05
RUNS = 3
MIB = 2**20
_HOST = Target(name="gpu01")


class Case(NamedTuple):
    """`in_one_go` parses in place; `as_the_hub` does what the hub does."""

    name: str
    size: int
    in_one_go: Callable[[], object]
    as_the_hub: Callable[[], Awaitable[object]]


def main() -> None:
    print((__doc__ or "").strip())
    gc.freeze()
    gc.set_threshold(10_000, 5, 1_000)
    sys.setswitchinterval(THREAD_SECONDS)
    rows = [("", "input", "in one go", "in the hub", "target")]
    for case in (*_scrape(), *_http(), *_reports(), *_ssh(), *_compat(), *_lists(), _applied(), *_small()):
        reference = best_of(1, lambda case=case: _quietly(case.in_one_go))  # type: ignore[misc]
        measured = min(uvloop.run(longest_block(case.as_the_hub)) for _ in range(RUNS))
        gc.collect()
        size = f"{case.size / MIB:.1f} MiB"
        rows.append((case.name, size, _show(reference), _show(measured), f"≤ {TARGET_SECONDS * 1e3:.0f} ms"))
    widths = [max(len(row[at]) for row in rows) for at in range(5)]
    print()
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(row[at].rjust(widths[at]) for at in range(1, 5))]
        print("  " + "  ".join(cells).rstrip())


async def longest_block(work: Callable[[], Awaitable[object]]) -> float:
    """Seconds for which the event loop served nobody while `work` ran."""
    longest, last, is_over = 0.0, time.perf_counter(), False

    async def tick() -> None:
        nonlocal longest, last
        while not is_over:
            await asyncio.sleep(0.0005)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.005)
    longest, last = 0.0, time.perf_counter()
    with contextlib.suppress(GpudeckError):
        await work()
    is_over = True
    await ticking
    return longest


def _show(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms"


def _quietly(work: Callable[[], object]) -> None:
    with contextlib.suppress(GpudeckError):
        work()


def _scrape() -> Iterable[Case]:
    """Pages of exporters, through the source that reads them."""
    gpus = "".join(f'gpu_memory_used_MiB{{index="{n}",uuid="GPU-{n}"}} {n}\n' for n in range(8))
    foreign = "".join(f'other_metric_{n % 300}_total{{instance="a{n}",path="/x/y/{n}"}} {n}\n' for n in range(60_000))
    series = "".join(f'DCGM_FI_DEV_GPU_UTIL{{gpu="{n}",UUID="GPU-{n}"}} 1\n' for n in range(10_000))
    processes = "".join(
        f'process_gpu_memory_MiB{{index="{n % 8}",uuid="GPU-{n % 8}",pid="{n}",command="p{n} --token=x"}} 1\n'
        for n in range(10_000)
    )
    small = series[: LARGE_BYTES - 1].rpartition("\n")[0] + "\n"
    yield _page("scrape: 60,000 other series and 8 GPUs", foreign + gpus)
    yield _page("scrape: a page of line breaks", gpus + "\n" * (8 * MIB - len(gpus)))
    yield _page("scrape: 10,000 GPUs", series)
    yield _page("scrape: 10,000 GPUs from each of five hosts", series, hosts=5)
    yield _page("scrape: 10,000 processes", gpus + processes)
    yield _page("scrape: the largest page that is read in place", small)


class _Memory(Fetcher):
    """Answers at once with what lies in memory."""

    def __init__(self, body: bytes) -> None:
        super().__init__(deadline=60.0)
        self._body = body

    async def get(self, *_: object, **__: object) -> HttpResponse:
        return HttpResponse(200, {}, self._body)

    post = get


def _page(name: str, text: str, hosts: int = 1) -> Case:
    page = text.encode()

    def sources() -> list[ScrapeSource]:
        return [ScrapeSource(_HOST, ScrapeSettings(), _Memory(page)) for _ in range(hosts)]

    async def read() -> None:
        await asyncio.gather(*(source.read(time.time()) for source in sources()), return_exceptions=True)

    def read_in_one_go() -> None:
        for source in sources():
            source._make_report(source._parse(page), time.time())

    return Case(name, hosts * len(page), read_in_one_go, read)


def _http() -> Iterable[Case]:
    """What arrives from a server, before anybody parses it."""
    bomb = gzip.compress(bytes(48 * MIB), mtime=0)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    yield Case(
        "fetch: gzip of 48 MiB in 48 kB",
        48 * MIB,
        lambda: gzip.decompress(bomb),
        lambda: _fetch(head + bomb, 48 * MIB),
    )
    chunks = b"1\r\nx\r\n" * 40_000 + b"0\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    yield Case("fetch: 40,000 chunks of one byte", len(chunks), lambda: None, lambda: _fetch(head + chunks, MIB))


async def _fetch(answer: bytes, at_most: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        fetcher = Fetcher(deadline=30.0, bytes_at_most=at_most)
        await fetcher.get(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/")
        await fetcher.close()


def _reports() -> Iterable[Case]:
    """Of agents, pushed or pulled: decoded in the loop, so that their limits have to do."""
    rng = random.Random(1)
    keys = [f"{n:03x}" for n in range(4096)]
    each = len(msgspec.msgpack.encode(Process(pid=70_000, reasons=dict.fromkeys(keys[:250], ""))))
    many = [
        Process(pid=70_000 + n, reasons=dict.fromkeys(rng.sample(keys, 250), ""))
        for n in range(MAX_DECODED_BYTES // each - 10)
    ]
    gpus = [GpuReading(f"GPU-{n}", n, "x", processes=many[n * 500 : n * 500 + 500]) for n in range(8)]
    yield _report("report: 200,000 reasons", gpus)
    each = MAX_PROCESSES // 512
    processes = [[Process(pid=n * each + k, user=f"user{k}") for k in range(each)] for n in range(512)]
    yield _report(
        f"report: {MAX_PROCESSES:,} processes",
        [GpuReading(f"GPU-{n}", n, "x", processes=processes[n]) for n in range(512)],
    )


def _report(name: str, gpus: list[GpuReading]) -> Case:
    envelope = Envelope(1, "gpu01", "boot", 1, time.time(), 2.0, report=Report(gpus=gpus))
    body = encode(envelope)

    def take() -> None:
        hub = Hub()
        hub.ingest.take(body, "application/msgpack", "zstd")
        hub.stream.tick()

    async def push() -> None:
        take()

    return Case(name, len(msgspec.msgpack.encode(envelope)), take, push)


def _ssh() -> Iterable[Case]:
    """Answers to the command that is run over SSH."""
    details = "".join(f"         Process ID                        : {n}\n" for n in range(80_000))
    lines = f"#gpudeck begin\n#gpudeck details\n{details}#gpudeck gpus\n" + " 0, GPU-1, x\n" * 20_000
    text = f"{lines}#gpudeck system\n#gpudeck end\n"

    async def read() -> None:
        await parse_in_thread(source()._parse, Output(text), time.time(), is_stuck=False)

    def source() -> ssh.SshSource:
        made = ssh.SshSources(SshSettings())(_HOST)
        assert isinstance(made, ssh.SshSource)
        return made

    yield Case(
        "ssh: 100,000 lines", len(text), lambda: source()._parse(Output(text), time.time(), is_stuck=False), read
    )


def _compat() -> Iterable[Case]:
    """Nodes and senders of the monitors that came before."""
    entries = [
        {"pid": str(n), "name": f"python {n} --password x", "username": "ada", "mem(MiB)": 1} for n in range(8000)
    ]
    post = msgspec.json.encode({f"gpu:{n}": {"processes": entries[n * 1000 : n * 1000 + 1000]} for n in range(8)})
    yield Case(
        "vesta: 8,000 processes", len(post), lambda: read_post(post, "h"), lambda: parse_in_thread(read_post, post, "h")
    )
    node = ClusterNodeSource(_HOST, GpuClusterStatusSettings(password="x"))
    for name, body in {
        "gpu-cluster-status: empty lists": b'{"gpus":[' + b"[]," * (MIB // 3 - 10) + b"[]]}",
        "gpu-cluster-status: 8,000 processes": msgspec.json.encode(
            {
                "gpus": [{"users": entries[n * 1000 : n * 1000 + 1000]} for n in range(8)],
                "last_update": datetime.now().isoformat(),  # noqa: DTZ005 - as a node writes it
            }
        ),
    }.items():
        yield Case(
            name,
            len(body),
            lambda body=body: node._parse(body, time.time()),  # type: ignore[misc]
            lambda body=body: parse_in_thread(node._parse, body, time.time()),  # type: ignore[misc]
        )
    stats = msgspec.json.encode({"gpus": [{}] * 8, "procs": [entries[n * 900 : n * 900 + 900] for n in range(8)]})
    xml = b"<methodResponse><params><param><value><string>%s</string></value></param></params></methodResponse>" % stats
    monitor = GpumonitorSource(_HOST, GpumonitorSettings())
    yield Case(
        "gpumonitor: 7,200 processes",
        len(xml),
        lambda: monitor._parse(xml, time.time()),
        lambda: parse_in_thread(monitor._parse, xml, time.time()),
    )
    rows = b"".join(
        b"%d, GPU-%d, x, 1, 2, 3, 4, 5, 2026/11/16 06:00:00.%03d\n" % (n % 512, n % 512, n % 1000)
        for n in range(35_000)
    )
    source = ServedSource(_HOST, GpuMonitorSettings())
    files = {"gpus": rows, "processes": rows, "users": rows, "status": rows}
    yield Case(
        "gpu-monitor: 35,000 lines in each of 4 files",
        4 * len(rows),
        lambda: source._take(files, time.time(), time.time()),
        lambda: parse_in_thread(source._take, files, time.time(), time.time()),
    )


def _lists() -> Iterable[Case]:
    """Lists of 20,000 hosts."""
    names = [f"gpu{n:05}" for n in range(20_000)]
    groups = [{"targets": [f"{name}:9400"], "labels": {"rack": "b3"}} for name in names]
    meta = {f"key{n}": "x" * 80 for n in range(20)}
    instances = [{"Node": {"Node": name, "Address": "10.0.0.1", "Meta": meta}, "Service": {}} for name in names]
    written = "".join(f"- targets: [{name}:9400]\n  labels: {{rack: b3}}\n" for name in names).encode()
    lines = "".join(f"{name}:22 rack=b3\n" for name in names).encode()
    yield _list("http_sd", read_targets, msgspec.json.encode(groups), "http_sd x", "scrape", "x")
    yield _list("consul", read_instances, msgspec.json.encode(instances), "consul x", "pull", "x")
    yield _list("file_sd, YAML", read_file, written, "file_sd x", "scrape", "x.yml")
    yield _list("hosts_files", read_hosts, lines, "x", "ssh")


def _list(name: str, read: Callable[..., object], body: bytes, *args: str) -> Case:
    return Case(
        f"{name}: 20,000 hosts",
        len(body),
        lambda: read(body, *args),
        lambda: asyncio.to_thread(read, body, *args),
    )


class _Idle:
    """A host that takes its time."""

    async def read(self, now: float) -> FetchedReport:
        await asyncio.sleep(60.0)
        raise AssertionError(now)

    async def close(self) -> None:
        pass


def _applied() -> Case:
    """What a list of 20,000 hosts leads to: they are shown, and read; then they leave again."""
    targets = [Target(name=f"gpu{n:05}", via="pull", labels={"rack": "b3"}) for n in range(20_000)]
    settings = FleetSettings(max_hosts=len(targets))

    def in_one_go() -> None:
        hub = Hub(settings)
        for some in (targets, []):
            hub.fleet.expect(some)
            hub.stream.tick()

    async def as_the_hub() -> None:
        hub = Hub(settings)
        watching = PollingService(hub, [], {"pull": PollMethod(lambda _: _Idle(), 2.0, 5.0)}, grace=0.0)
        for some in (targets, []):
            watching._set_targets(some)
            while len(hub.fleet.hosts) != len(some):
                await asyncio.sleep(0.1)
                await run_in_steps(hub.stream.publish_in_steps())
        await run_in_steps(hub.stream.publish_in_steps())
        await watching.stop()

    size = len(msgspec.json.encode(targets))
    return Case("a list of 20,000 hosts, applied and emptied", size, in_one_go, as_the_hub)


def _small() -> Iterable[Case]:
    """What is small enough to be decoded at once."""
    lists = b'{"type":[' + b"[]," * (MIB // 12 - 10) + b"[]]}"
    yield Case("slack: an envelope of empty lists", len(lists), *_decoding(lists, dict[str, object]))
    labels = b'{"name":"x","labels":{' + b",".join(b'"%d":""' % n for n in range(MIB // 48)) + b"}}"
    yield Case("API: a body of labels", len(labels), *_decoding(labels, dict[str, object]))
    row = b'{"metric":{"a":"b"},"values":[%s]}' % b",".join([b'[1700000000.123,"1"]'] * promql.MAX_STEPS)
    yield _promql("long series", row)
    yield _promql("many series", b'{"metric":{"a":"b"},"values":[]}')


def _promql(name: str, row: bytes) -> Case:
    answer = b'{"data":{"result":[%s]}}' % b",".join([row] * (promql.MAX_BYTES // (len(row) + 1)))
    grid = Grid(1_700_000_000, 10, 3)

    class Door:
        def post(self, *_: object, **__: object) -> HttpResponse:
            return HttpResponse(200, {}, answer)

    def decode() -> None:
        for found in msgspec.json.decode(answer, type=promql.PromAnswer).data.result:
            promql._read_values(found.values, grid)

    def read() -> None:
        promql.PromReader(Door()).values("up", grid)  # type: ignore[arg-type]

    return Case(f"history: PromQL's answer, {name}", len(answer), decode, lambda: asyncio.to_thread(read))


def _decoding(body: bytes, kind: object) -> tuple[Callable[[], object], Callable[[], Awaitable[object]]]:
    async def decode() -> None:
        msgspec.json.decode(body, type=kind)

    return lambda: msgspec.json.decode(body, type=kind), decode
