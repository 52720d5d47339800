"""Exports of samples, without HTTP, the CPU budget of the hub's questions, and a hub that records meanwhile: their
speed, and the peak memory of the process that reads and encodes them."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from bench.history import Clock, feed, seal
from bench.tables import Row, print_table
from bench.week import GPUS, HOSTS, STEP, ticks
from gpudeck.history.base import SamplePage, SamplesQuery
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.export import Format, make_encoder, sample_fields
from gpudeck.history.sample import GPU_NAMES

HOUR, DAY = 3600, 86_400
HOURS = 16
END = 1_790_000_000 // DAY * DAY


class Measured(msgspec.Struct):
    rows: int
    size: int
    seconds: float
    peak_mib: float


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.db"
        clock = Clock(END - HOURS * HOUR)
        store = EmbeddedStore(path, now=clock)
        feed(store, clock, ticks(END - HOURS * HOUR, HOURS))
        seal(store, clock, END + 2 * HOUR)
        store.close()
        nothing = _measure(path, "csv", -1)
        rows: list[Row] = []
        for form in ("csv", "parquet"):
            for hours in (4, HOURS):
                one = _measure(path, form, hours)
                speed = f"{one.rows / one.seconds / 1000:,.0f} thousand rows/s, {one.size / one.rows:.1f} bytes a row"
                name = f"{form}, {hours} hours ({one.rows / 1e6:.2f} million rows)"
                rows.append((name, speed, "", ""))
                ratio = f"{one.peak_mib / nothing.peak_mib:.2f} ×"
                rows.append(("  peak memory", f"{one.peak_mib:.0f} MiB", "bounded", ratio))
        print_table(
            f"Exports of {HOSTS} hosts with {GPUS} GPUs, a sample each {STEP} s, all metrics",
            f"the same process without rows, {nothing.peak_mib:.0f} MiB",
            rows,
        )


def _measure(path: Path, form: str, hours: int) -> Measured:
    """In a process of its own: the peak of memory is never given back."""
    done = subprocess.run(
        [sys.executable, "-c", f"from bench import export; export.work({str(path)!r}, {form!r}, {hours})"],
        stdout=subprocess.PIPE,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=Measured)


def work(path: str, form: Format, hours: int) -> None:
    store = EmbeddedStore(Path(path), now=lambda: END + 2.0 * HOUR)
    encoder = make_encoder(form, sample_fields(GPU_NAMES))
    page, rows, size = SamplePage([], None, 0.0), 0, 0
    began = time.perf_counter()
    while page.share < 1.0:
        page = store.samples(SamplesQuery(END - hours * HOUR, END + 2 * HOUR, GPU_NAMES, after=page.next))
        rows += len(page.columns[0]) if page.columns else 0
        size += len(encoder.add(page.columns))
    size += len(encoder.finish())
    sys.stdout.write(msgspec.json.encode(Measured(rows, size, time.perf_counter() - began, _peak_mib())).decode())
    store.close()


def _peak_mib() -> float:
    """That of this program alone: what getrusage tells begins with the memory of the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
