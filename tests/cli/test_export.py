"""gpudeck export beside a real hub, and beside one that breaks off."""

import socket
import threading
from pathlib import Path

import pandas as pd
import pytest

from fakes.hubs import RunningHub, gpudeck, running_hub
from fakes.waiting import wait_until


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory):
    with running_hub(tmp_path_factory.mktemp("hub"), "--demo", "3") as started:
        wait_until(lambda: started.get("/api/v1/export/samples").count(b"\n") > 1, "the first samples", 40)
        yield started


def test_each_table_becomes_a_file(hub: RunningHub, tmp_path: Path) -> None:
    for table in ("samples", "runs", "usage", "events"):
        done = gpudeck(tmp_path, "export", table, "-o", f"{table}.csv", "--hub", hub.url)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        done = gpudeck(tmp_path, "export", table, "--format", "parquet", "-o", f"{table}.parquet", "--hub", hub.url)
        assert (done.returncode, done.stderr) == (0, "")
        assert list(pd.read_csv(tmp_path / f"{table}.csv").columns) == list(
            pd.read_parquet(tmp_path / f"{table}.parquet").columns
        )
    assert len(pd.read_parquet(tmp_path / "samples.parquet")) > 0
    assert not list(tmp_path.glob("*.part"))


def test_samples_to_standard_output_can_be_narrowed(hub: RunningHub, tmp_path: Path) -> None:
    asked = ("--host", "gpu02", "--metric", "power_watts")
    lines = gpudeck(tmp_path, "export", *asked, "--hub", hub.url).stdout.splitlines()
    assert lines[0] == "time,unix_seconds,host,gpu,index,model,state,users,power_watts"
    assert {line.split(",")[2] for line in lines[1:]} == {"gpu02"}


def test_what_the_hub_refuses_leaves_no_file(hub: RunningHub, tmp_path: Path) -> None:
    refused = gpudeck(tmp_path, "export", "runs", "--metric", "power_watts", "-o", "runs.csv", "--hub", hub.url)
    assert refused.returncode == 2
    assert "there is no parameter 'metric'" in refused.stderr
    assert not list(tmp_path.glob("runs*"))


def test_a_file_that_cannot_be_written_is_named(hub: RunningHub, tmp_path: Path) -> None:
    refused = gpudeck(tmp_path, "export", "runs", "-o", "absent/runs.csv", "--hub", hub.url)
    assert refused.returncode == 2
    assert "absent/runs.csv cannot be written: no such file or directory" in refused.stderr


def test_an_export_that_breaks_off_is_an_error_and_no_file(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/csv\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ntime,\r\n"
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        ended = gpudeck(tmp_path, "export", "-o", "samples.csv", "--hub", url)
        thread.join()
    assert ended.returncode == 3
    assert "no hub answers" in ended.stderr
    assert not list(tmp_path.glob("samples*"))
