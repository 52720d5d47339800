"""Exports over HTTP, read by pandas and DuckDB."""

import asyncio
import io
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

import duckdb
import httpx
import pandas as pd
import pytest

from fakes.api_app import make_app, make_auth
from fakes.clock import FakeClock
from gpudeck.api.access import Commands
from gpudeck.events.service import EventLog
from gpudeck.events.settings import EventSettings
from gpudeck.fleet.hub import Hub
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.settings import HistorySettings
from gpudeck.model.event import make_event
from history.embedded.feeding import START, gpu, process, sample

SPAN = f"start={START:.0f}&end={START + 4 * 3600:.0f}"
GPUS, READINGS = 20, 1440
EVENTS = 1500


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    """Four hours of a host with 20 GPUs, which is more than one page; a host whose GPU is unknown; an hour of bob."""
    clock = FakeClock(START)
    with closing(EmbeddedStore(tmp_path_factory.mktemp("s") / "history.db", HistorySettings(min_free=0), clock)) as one:
        gpus = [gpu(f"GPU-a-{number}", process(100 + number, "alice")) for number in range(GPUS)]
        for number in range(READINGS):
            one.take([sample(START + number * 10, *gpus)])
        for number in range(360):
            both = (process(7, "bob"), process(8, None))
            lost = gpu("GPU-c-0", state=1, utilization=None)
            one.take([sample(START + number * 10, gpu("GPU-b-0", *both), lost, host="gpu02")])
        assert one.flush()
        clock.now = START + 5 * 3600
        yield one


class Place:
    """A hub over that history, with many events."""

    def __init__(self, store: EmbeddedStore | None, folder: Path, commands: Commands = "everyone") -> None:
        auth = make_auth(folder)
        self.events = EventLog(auth.database, EventSettings())
        for number in range(EVENTS):
            self.events.add(make_event(START + number, "xid", f"=XID {number}", host="gpu01", user="alice"))
        self.app = make_app(Hub(), auth=auth, history=store, events=self.events, commands=commands)

    def get(self, path: str, **headers: str) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, client=("192.0.2.7", 40000))
            async with httpx.AsyncClient(transport=transport, base_url="http://hub.example", timeout=60) as client:
                return await client.get(f"/api/v1/export/{path}", headers={"Accept-Encoding": "identity", **headers})

        return asyncio.run(ask())

    def csv(self, path: str) -> pd.DataFrame:
        return pd.read_csv(io.BytesIO(self.get(path).content))

    def parquet(self, path: str) -> pd.DataFrame:
        answer = self.get(f"{path}&format=parquet")
        assert answer.headers["Content-Type"] == "application/vnd.apache.parquet"
        return pd.read_parquet(io.BytesIO(answer.content))


@pytest.fixture
def hub(store: EmbeddedStore, tmp_path: Path) -> Place:
    return Place(store, tmp_path)


def test_samples_of_several_pages_are_complete_and_in_order(hub: Place) -> None:
    found = hub.csv(f"samples?{SPAN}&metric=power_watts,utilization_percent")
    assert len(found) == GPUS * READINGS + 2 * 360
    assert not found.duplicated(["gpu", "unix_seconds"]).any()
    assert found.groupby("gpu")["unix_seconds"].is_monotonic_increasing.all()
    assert list(found.columns[-2:]) == ["power_watts", "utilization_percent"]
    assert set(found.loc[found.host == "gpu01", "users"]) == {"alice"}


def test_unknown_is_empty_and_never_zero(hub: Place) -> None:
    found = hub.parquet(f"samples?{SPAN}&host=gpu02")
    lost, seen = found[found.gpu == "GPU-c-0"], found[found.gpu == "GPU-b-0"]
    assert set(lost.state) == {"unknown"}
    assert lost.users.isna().all()
    assert lost.utilization_percent.isna().all()
    assert set(seen.users) == {"? bob"}
    assert seen.fan_percent.isna().all()


def test_parquet_and_csv_say_the_same(hub: Place) -> None:
    query = f"samples?{SPAN}&gpu=GPU-b-0&metric=power_watts,host_cpu_percent"
    text, binary = hub.csv(query), hub.parquet(query)
    assert str(binary.time.dtype) == "datetime64[ms, UTC]"
    assert binary.time.iloc[0] == datetime.fromtimestamp(START, timezone.utc)
    text["time"] = pd.to_datetime(text["time"]).astype(binary.time.dtype)
    text["index"] = text["index"].astype(str)
    pd.testing.assert_frame_equal(text, binary, check_dtype=False)
    assert set(binary.host_cpu_percent) == {1.0}


def test_duckdb_reads_an_export(hub: Place, tmp_path: Path) -> None:
    file = tmp_path / "samples.parquet"
    file.write_bytes(hub.get(f"samples?{SPAN}&format=parquet").content)
    question = f"SELECT users, count(*) * 10 / 3600 FROM '{file}' WHERE state = 'busy' GROUP BY users ORDER BY users"
    assert duckdb.sql(question).fetchall() == [("? bob", 1.0), ("alice", GPUS * 4.0)]


def test_the_estimate_is_about_right_and_files_are_not_empty_without_rows(hub: Place) -> None:
    for form in ("csv", "parquet"):
        answer = hub.get(f"samples?{SPAN}&format={form}")
        assert 0.5 < int(answer.headers["X-Estimated-Bytes"]) / len(answer.content) < 2
    assert hub.csv("samples?start=1000&end=2000").empty
    assert list(hub.parquet("runs?start=1000&end=2000").columns)[:2] == ["id", "host"]
    assert hub.get("events?start=2000&end=2000").status_code == 200


def test_runs_usage_and_events_are_tables_too(hub: Place) -> None:
    runs = hub.parquet(f"runs?{SPAN}")
    assert len(runs) == GPUS + 2
    assert set(runs.command.dropna()) >= {"python 7.py"}
    assert runs.energy_joules.sum() > 0
    usage = hub.csv(f"usage?{SPAN}&by=host")
    # An hour before midnight, and three after it.
    assert usage.day.nunique() == 2
    assert usage.groupby("host").gpu_hours.sum().round(6).to_dict() == {"gpu01": GPUS * 4.0, "gpu02": 1.0}
    events = hub.parquet(f"events?{SPAN}")
    assert len(events) == EVENTS
    assert events.id.is_monotonic_decreasing
    # A text is never a formula for a spreadsheet.
    assert hub.csv(f"events?{SPAN}").title.str.startswith("'=XID").all()


def test_days_of_usage_are_those_of_the_zone_and_unknown_users_have_a_row(hub: Place) -> None:
    usage = hub.parquet(f"usage?{SPAN}&zone=Asia/Kolkata")
    assert set(usage.day) == {"2023-11-15"}
    assert usage[usage.user == "alice"].gpu_hours.tolist() == [GPUS * 4.0]
    assert usage[usage.unknown].user.isna().tolist() == [True]
    assert usage.cost.isna().all()


def test_command_lines_are_visible_to_those_who_may_see_them(store: EmbeddedStore, tmp_path: Path) -> None:
    private = Place(store, tmp_path, commands="admin")
    assert private.parquet(f"runs?{SPAN}").command.isna().all()


def test_gzip(hub: Place) -> None:
    path = f"events?{SPAN}"
    packed = hub.get(path, **{"Accept-Encoding": "gzip"})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert packed.content == hub.get(path).content


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("samples?user=alice", 400, "no parameter 'user'"),
        ("usage?by=colour", 400, "by"),
        ("samples?host=nobody", 404, "knows no host 'nobody'"),
        ("samples?metric=warmth", 400, "there is no metric 'warmth'"),
        ("samples?start=-1h&end=-2h", 400, "ends before it begins"),
        ("usage?zone=Mars/Base", 400, "no time zone"),
        ("everything", 404, "Not Found"),
        ("runs?colour=red", 400, "no parameter 'colour'"),
    ],
)
def test_what_cannot_be_exported_is_an_error_and_no_file(hub: Place, path: str, status: int, words: str) -> None:
    answer = hub.get(path)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]


def test_parquet_needs_its_library(hub: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudeck.model.plugins.find_spec", lambda name: None)
    answer = hub.get(f"runs?{SPAN}&format=parquet")
    assert answer.status_code == 400
    assert "writing Parquet needs gpudeck[export], which is not installed" in answer.json()["error"]["message"]
    assert not hub.csv(f"runs?{SPAN}").empty


def test_csv_does_not_import_the_library_of_parquet() -> None:
    assert "pyarrow" not in sys.modules["gpudeck.history.export"].__dict__


def test_a_hub_without_history_exports_events_alone(tmp_path: Path) -> None:
    place = Place(None, tmp_path)
    assert place.get("samples").status_code == 404
    assert len(place.csv(f"events?{SPAN}")) == EVENTS
