"""The whole way, with real stores: samples in, restarts, late samples, the newest moment, runs and people."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import cramjam
import pytest
from msgspec.structs import replace

from fakes.clock import FakeClock
from fakes.prometheus import Kind, StoreProcess, running_store
from fakes.waiting import wait_until
from gpudeck.history.base import HistoryRefused, RunsQuery, SeriesQuery
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.remote.client import PromClient, PromReader
from gpudeck.history.remote.encoder import encode_head, encode_series, encode_time
from gpudeck.history.remote.promql import GPU_SECONDS, over, select
from gpudeck.history.remote.store import RemoteStore
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES, STATE_NUMBERS, GpuSample, HostSample, ProcessSample
from gpudeck.history.settings import HistorySettings
from gpudeck.history.time_range import Grid
from gpudeck.model.clock import Clock, wall
from gpudeck.model.errors import Temporary, UsageError
from gpudeck.model.history import Point

START = 1_789_920_000.0
KINDS: tuple[Kind, ...] = ("prometheus", "victoria-metrics")


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[StoreProcess]:
    with running_store(request.param) as running:
        yield running


def settings_for(server: StoreProcess, **more: object) -> HistorySettings:
    return HistorySettings(kind="prometheus", write_url=server.write_url, read_url=server.read_url, **more)  # type: ignore[arg-type]


def opened(server: StoreProcess, folder: Path, now: float = START) -> contextlib.closing[RemoteStore]:
    return open_with(settings_for(server), folder, FakeClock(now))


def open_with(settings: HistorySettings, folder: Path, clock: Clock = wall) -> contextlib.closing[RemoteStore]:
    """With the hub's own file beside that store."""
    folder.mkdir(exist_ok=True)
    own = EmbeddedStore(folder / "history.db", HistorySettings(min_free=0), clock, keep_samples=False)
    return contextlib.closing(RemoteStore(settings, folder, own, clock))


def sample(at: float, temperature: float = 50.0, host: str = "gpu01", user: str = "alice") -> HostSample:
    values = tuple(temperature if name == "temperature_celsius" else None for name in GPU_NAMES)
    process = ProcessSample(7, START, user, None, None, None, 2**30, None)
    gpu = GpuSample(f"GPU-{host}", "0", "H200", STATE_NUMBERS["busy"], values, (process,))
    return HostSample(f"id-{host}", host, at, 10.0, (None,) * len(HOST_NAMES), (gpu,))


def temperatures(store: RemoteStore, server: StoreProcess, end: float, start: float = START) -> list[Point]:
    store.flush()
    server.show_all()
    points = [
        series.points
        for series in store.series(SeriesQuery("temperature_celsius", start, end, 5000, gpu="GPU-gpu01")).series
    ]
    return points[0] if points else []


def test_newest_samples_are_shown_at_once(server: StoreProcess, tmp_path: Path) -> None:
    now = time.time() // 10 * 10
    with open_with(settings_for(server), tmp_path) as store:
        store.take([sample(now - 30 + 10 * number, 60.0 + number) for number in range(4)])
        shown = temperatures(store, server, now + 10, now - 60)
    assert [point[1] for point in shown] == [60, 61, 62, 63]


def test_what_was_not_sent_is_sent_after_a_restart(server: StoreProcess, tmp_path: Path) -> None:
    server.stop()
    with opened(server, tmp_path) as store:
        store.take([sample(START), sample(START + 10)])
        wait_until(lambda: store.stats().problem is not None, "the trouble")
        assert store.stats().size_bytes > 0
    server.start()
    with opened(server, tmp_path) as store:
        assert len(temperatures(store, server, START + 100)) == 2
        assert store.stats().problem is None


def test_store_that_is_away_makes_the_history_late_and_only_a_full_queue_loses_any(tmp_path: Path) -> None:
    clock = FakeClock(START)

    def kind() -> str | None:
        return None if store.trouble is None else store.trouble.kind

    with running_store("victoria-metrics") as server:
        settings = settings_for(server, queue_size=20_000)
        with open_with(settings, tmp_path, clock) as store:
            store.take([sample(START)])
            store.flush()
            assert kind() is None
            server.stop()
            store.take([sample(START + 10)])
            wait_until(lambda: kind() == "queued", "samples that wait")
            clock.advance(730)
            trouble = store.trouble
            assert trouble is not None
            assert trouble.severity == "warning"
            assert "kept in the queue on disk, 12m behind, room for " in trouble.title
            assert store.stats().samples_dropped == 0
            for start in range(20, 3000, 10):
                store.take([sample(START + start)])
                store.writer.write()
            wait_until(lambda: kind() == "losing", "a full queue")
            trouble = store.trouble
            assert trouble is not None
            assert trouble.severity == "critical"
            assert "samples of " in trouble.title
            assert store.stats().samples_dropped > 0
            server.start()
            store.flush()
            wait_until(lambda: kind() is None, "the end of the trouble")


def test_closing_loses_nothing_that_was_taken(server: StoreProcess, tmp_path: Path) -> None:
    with opened(server, tmp_path) as store:
        store.take([sample(START)])
    with opened(server, tmp_path) as store:
        assert len(temperatures(store, server, START + 100)) == 1


def test_hosts_and_gpus_of_before_a_restart_are_known(server: StoreProcess, tmp_path: Path) -> None:
    with opened(server, tmp_path) as store:
        store.take([sample(START), sample(START + 1, host="gpu02")])
        store.flush()
        server.show_all()
    with opened(server, tmp_path) as store:
        by_name = store.series(SeriesQuery("temperature_celsius", START, START + 60, host="gpu02"))
        by_id = store.series(SeriesQuery("temperature_celsius", START, START + 60, host="id-gpu02", by="gpu"))
        assert [(series.host, series.label) for series in by_name.series] == [("id-gpu02", "gpu02")]
        assert [(series.gpu, series.label) for series in by_id.series] == [("GPU-gpu02", "0")]
        with pytest.raises(HistoryRefused, match="gpu03"):
            store.series(SeriesQuery("temperature_celsius", START, START + 60, host="gpu03"))


def test_renamed_host_is_one_host_still(server: StoreProcess, tmp_path: Path) -> None:
    with opened(server, tmp_path) as store:
        store.take([sample(START, 40.0), sample(START + 10, 60.0)._replace(name="renamed")])
        assert temperatures(store, server, START + 100)[0][1] == 40
        (fleet,) = store.series(SeriesQuery("gpus_busy", START, START + 60, 1, fleet=True)).series
        assert [point[1] for point in fleet.points] == [1]


def test_band_of_a_state_goes_down_to_none(server: StoreProcess, tmp_path: Path) -> None:
    with opened(server, tmp_path) as store:
        free = sample(START + 1000)
        idle = free.gpus[0]._replace(state=STATE_NUMBERS["free"], processes=())
        store.take([sample(START), free._replace(gpus=(idle,))])
        store.flush()
        server.show_all()
        (fleet,) = store.series(SeriesQuery("gpus_busy", START, START + 3600, 1, fleet=True)).series
    assert fleet.points == [(START, 0.5, 0, 1)]


def test_series_that_the_store_scrapes_from_the_hub_are_not_mixed_up_with_those_it_was_sent(
    server: StoreProcess, tmp_path: Path
) -> None:
    head = encode_head("gpudeck_gpu_temperature_celsius", {"host": "gpu01", "gpu": "GPU-gpu01", "job": "gpudeck"})
    scraped = encode_series(head, 99.0, encode_time(START + 3))
    client = PromClient(server.write_url, HistorySettings(), seconds=5.0)
    with contextlib.closing(client), opened(server, tmp_path) as store:
        assert (
            client.post("", bytes(cramjam.snappy.compress_raw(scraped)), {"Content-Encoding": "snappy"}).status == 204
        )
        store.take([sample(START + 5)])
        assert temperatures(store, server, START + 100) == [(START, 50, 50, 50)]


def test_user_goes_on_counting_after_a_restart(server: StoreProcess, tmp_path: Path) -> None:
    for begin in (START, START + 1800):
        with opened(server, tmp_path, begin + 1800) as store:
            store.take([sample(begin + 10 * number) for number in range(180)])
            store.flush()
    server.show_all()
    with contextlib.closing(PromClient(server.read_url, HistorySettings(), seconds=5.0)) as client:
        asked = f"last_over_time({over(select(GPU_SECONDS, {'user': 'alice'}), 3600)})"
        ((_, values),) = PromReader(client).values(asked, Grid(int(START), 3600, 1))
    assert values.tolist() == pytest.approx([3600.0], rel=0.02)


def test_run_is_shown_while_it_was_there(server: StoreProcess, tmp_path: Path) -> None:
    with opened(server, tmp_path, START + 300) as store:
        for number in range(30):
            one = sample(START + 10 * number, 50.0 + number)
            is_there = 10 <= number < 20
            store.take([one if is_there else one._replace(gpus=(one.gpus[0]._replace(processes=()),))])
        store.flush()
        server.show_all()
        (run,) = store.runs(RunsQuery()).runs
        asked = SeriesQuery("temperature_celsius", START, START + 300, 100, run=run.id)
        (whole,) = store.series(asked).series
        (split,) = store.series(replace(asked, by="gpu")).series
        assert [point[0] - START for point in whole.points] == [100 + 10 * number for number in range(10)]
        assert (whole.run, split.gpu, split.points) == (run.id, "GPU-gpu01", whole.points)


def take_late(store: RemoteStore, server: StoreProcess) -> list[Point]:
    store.take([sample(START + 600), sample(START + 600, host="gpu02")])
    store.flush()
    store.take([sample(START), sample(START + 610, host="gpu02"), sample(START + 610)])
    return temperatures(store, server, START + 900)


@pytest.mark.parametrize(("kind", "takes_late"), [("victoria-metrics", "0s"), ("prometheus", "1d")])
def test_late_samples_are_kept(kind: Kind, takes_late: str, tmp_path: Path) -> None:
    with running_store(kind, takes_late=takes_late) as server, opened(server, tmp_path) as store:
        assert [point[0] - START for point in take_late(store, server)] == [0, 600, 610]
        assert store.stats().samples_late == 0


def test_late_samples_that_are_refused_cost_no_others(tmp_path: Path) -> None:
    with running_store("prometheus") as server, opened(server, tmp_path) as store:
        assert [point[0] - START for point in take_late(store, server)] == [600, 610]
        assert store.stats().parts["refused_late"] == 1


def test_name_and_password_are_given_for_reading_and_writing(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("sesame\n")
    with running_store("victoria-metrics", password="sesame") as server:
        settings = settings_for(server, user="hub", password_file=str(tmp_path / "password"))
        with open_with(settings, tmp_path, FakeClock(START)) as store:
            store.take([sample(START)])
            assert len(temperatures(store, server, START + 100)) == 1
        with opened(server, tmp_path / "b") as store, pytest.raises(Temporary, match="401"):
            store.series(SeriesQuery("temperature_celsius", START, START + 60, fleet=True))


def test_store_that_is_away_refuses_no_samples_and_answers_temporarily(server: StoreProcess, tmp_path: Path) -> None:
    server.stop()
    with opened(server, tmp_path) as store:
        store.take([sample(START)])
        with pytest.raises(Temporary, match="does not answer"):
            store.series(SeriesQuery("temperature_celsius", START, START + 60, fleet=True))
        with pytest.raises(Temporary, match="has not taken everything"):
            store.flush(0.1)


def test_folder_that_cannot_be_used_is_told(server: StoreProcess, tmp_path: Path) -> None:
    (tmp_path / "remote-queue").write_text("a file")
    with pytest.raises(UsageError, match="remote-queue"):
        opened(server, tmp_path)


def test_trouble_of_the_file_is_told(server: StoreProcess, tmp_path: Path) -> None:
    with opened(server, tmp_path) as store:
        (tmp_path / "history.db").rename(tmp_path / "moved.db")
        store.take([sample(START)])
        wait_until(lambda: "was removed" in (store.problem or ""), "the trouble")


def test_paths_below_a_prefix(tmp_path: Path) -> None:
    with running_store("victoria-metrics") as server:
        settings = HistorySettings(
            kind="prometheus",
            write_url=f"{server.read_url}/prometheus/api/v1/write",
            read_url=f"{server.read_url}/prometheus/",
        )
        with open_with(settings, tmp_path, FakeClock(START)) as store:
            store.take([sample(START)])
            assert len(temperatures(store, server, START + 100)) == 1
