"""gpudeck health against a real hub, and against what is none: the exit codes on which prologs depend."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.commands import gpudeck_here
from fakes.hubs import HubProcess, gpudeck, running_hub
from fakes.pushed import send
from fakes.reports import make_envelope, make_gpu
from fakes.waiting import wait_until
from gpudeck.model.report import GpuEvent, Report


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    """Of gpu01 all is well, on gpu02 a GPU has fallen off the bus, and of gpu03 no GPU can be read."""
    folder = tmp_path_factory.mktemp("hub")
    (folder / "gpudeck.yaml").write_text("demo: never\nlocal: never\n")
    with running_hub(folder) as found:
        lost = make_gpu(1, uuid="GPU-b1", events=[GpuEvent(at=1_790_000_000.0 - 60, code=79)])
        for host, report in (
            ("gpu01", Report(gpus=[make_gpu(0, uuid="GPU-a0"), make_gpu(1, uuid="GPU-a1")])),
            ("gpu02", Report(gpus=[make_gpu(0, uuid="GPU-b0"), lost])),
            ("gpu03", Report(gpus=None, gpus_reason="the driver\x1b[2J does not answer")),
        ):
            send(found, make_envelope(host, report=report, interval_seconds=3600.0))
        wait_until(lambda: json.loads(found.get("/api/v1/totals"))["hosts_up"] == 3, "all hosts")
        yield found


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--host", "gpu01"), 0, "ok\n"),
        (("--host", "gpu02"), 1, "drain\nGPU 1: XID 79: it fell off the bus\n"),
        (("--host", "gpu02", "--fail-open"), 1, "drain\nGPU 1: XID 79: it fell off the bus\n"),
        (("--host", "gpu02", "--gpu", "0"), 0, "ok\n"),
        (("--host", "gpu02", "--gpu", "GPU-b1"), 1, "drain\nGPU 1: XID 79: it fell off the bus\n"),
        (("--host", "gpu01", "--gpu", "7"), 4, "unknown\nGPU 7: the host has no such GPU (it has 0, 1)\n"),
        (
            ("--host", "gpu01", "--gpu", "7", "--fail-open"),
            0,
            "unknown\nGPU 7: the host has no such GPU (it has 0, 1)\n",
        ),
        (("--host", "nosuch"), 4, "unknown\nnosuch: the hub does not know this host\n"),
        (("--host", "gpu03"), 4, "unknown\ngpu03: the driver\ufffd[2J does not answer\n"),
    ],
)
def test_the_exit_code_is_the_verdict(hub: HubProcess, arguments: tuple[str, ...], code: int, said: str) -> None:
    answer = gpudeck_here(hub.data_dir, "health", *arguments, "--exit-code", "--hub", hub.url)
    assert (answer.returncode, answer.stdout) == (code, said)


def test_without_exit_code_every_answer_is_a_success(hub: HubProcess) -> None:
    answer = gpudeck_here(hub.data_dir, "health", "--host", "gpu02", "--hub", hub.url)
    assert (answer.returncode, answer.stdout.split()[0]) == (0, "drain")


def test_json_is_the_hubs_answer(hub: HubProcess) -> None:
    answer = gpudeck_here(hub.data_dir, "health", "--host", "gpu02", "--json", "--hub", hub.url)
    found = json.loads(answer.stdout)
    assert (found["host"], found["verdict"]) == ("gpu02", "drain")
    assert [gpu["verdict"] for gpu in found["gpus"]] == ["ok", "drain"]


def test_no_hub_is_3_and_0_where_that_is_wanted(tmp_path: Path) -> None:
    ask = ("health", "--host", "gpu01", "--exit-code", "--hub", "http://127.0.0.1:1")
    closed, opened = gpudeck_here(tmp_path, *ask), gpudeck_here(tmp_path, *ask, "--fail-open")
    assert (closed.returncode, opened.returncode) == (3, 0)
    assert closed.stdout.startswith("unknown\ngpu01: no hub answers")


def test_a_hub_that_wants_a_login_gives_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text("demo: never\nlocal: never\nread: login\n")
    with running_hub(tmp_path) as hub:
        ask = ("health", "--host", "gpu01", "--exit-code", "--hub", hub.url)
        refused = gpudeck(tmp_path, *ask, GPUDECK_TOKEN="wrong")
        opened = gpudeck(tmp_path, *ask, "--fail-open", GPUDECK_TOKEN="wrong")
        admin = gpudeck(tmp_path, *ask)
    assert (refused.returncode, opened.returncode) == (3, 0)
    assert admin.returncode == 4, "the token of this machine's hub is found, and the hub does not know gpu01"


def test_a_hub_that_answers_drop_by_drop_is_not_waited_for(tmp_path: Path) -> None:
    is_over = threading.Event()

    def drip(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):  # the command hangs up
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not is_over.wait(0.05):
                connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.getsockname()[1]}"
            answer = gpudeck(tmp_path, "health", "--host", "gpu01", "--timeout", "0.5", "--hub", url)
        finally:
            is_over.set()
            thread.join()
    assert (answer.returncode, answer.stdout) == (
        3,
        "unknown\ngpu01: no answer within 0.5 s. Raise --timeout, or look at the hub.\n",
    )


@pytest.mark.parametrize("arguments", [("--timeout", "0"), ("--timeout", "nan"), ("--timeout", "1e9"), ("--gpus", "1")])
def test_wrong_usage_is_2(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    answer = gpudeck_here(tmp_path, "health", *arguments, "--hub", "http://127.0.0.1:1")
    assert answer.returncode == 2, answer.stderr
