"""Names of containers, from a runtime on a real socket: one that answers, one that hangs, one that lies."""

import shutil
import socketserver
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpudeck.collectors.containers import ContainerNames

ID, OTHER = "ab" * 32, "cd" * 32
DOCKER, PODMAN, OF_ALICE = "var/run/docker.sock", "run/podman/podman.sock", "run/user/1000/podman/podman.sock"
NAMED = b'HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{"Id": "x", "Name": "/trainer", "State": {}}'
NOT_FOUND = b'HTTP/1.0 404 Not Found\r\n\r\n{"message": "No such container"}'
SOON, PATIENT = 0.05, 30.0


class Runtime(socketserver.ThreadingUnixStreamServer):
    """Sends `pieces` to everyone who asks, and then hangs if it is told to, until `released`."""

    daemon_threads = True

    def __init__(self, path: Path, pieces: list[bytes], *, hangs: bool) -> None:
        self.pieces, self.questions = pieces, list[bytes]()
        self.released = threading.Event()
        if not hangs:
            self.released.set()
        super().__init__(str(path), Asked)


class Asked(socketserver.BaseRequestHandler):
    server: Runtime

    def handle(self) -> None:
        self.server.questions.append(self.request.recv(4096))
        for piece in self.server.pieces:
            self.request.sendall(piece)
        self.server.released.wait(60)


@contextmanager
def run(root: Path, socket: str, *pieces: bytes, hangs: bool = False) -> Iterator[Runtime]:
    (root / socket).parent.mkdir(parents=True, exist_ok=True)
    with Runtime(root / socket, list(pieces), hangs=hangs) as runtime:
        thread = threading.Thread(target=runtime.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield runtime
        finally:
            runtime.released.set()
            runtime.shutdown()
            thread.join()


@pytest.fixture
def root() -> Iterator[Path]:
    """A short path: that of a socket has 107 bytes at most."""
    path = Path(tempfile.mkdtemp(prefix="gpudeck-"))
    yield path
    shutil.rmtree(path)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("socket", [DOCKER, PODMAN])
def test_runtime_is_asked_once_for_a_name(root: Path, socket: str) -> None:
    with run(root, socket, NAMED) as runtime:
        names = ContainerNames(root, timeout=PATIENT)
        assert [names.find(ID), names.find(ID)] == ["trainer", "trainer"]
    assert len(runtime.questions) == 1
    assert runtime.questions[0].startswith(f"GET /containers/{ID}/json HTTP/1.0\r\n".encode())


def test_answer_may_come_in_pieces(root: Path) -> None:
    with run(root, DOCKER, NAMED[:20], NAMED[20:50], NAMED[50:]):
        assert ContainerNames(root, timeout=PATIENT).find(ID) == "trainer"


def test_machine_without_a_runtime_gives_no_names(root: Path) -> None:
    assert ContainerNames(root).find(ID) is None


def test_second_runtime_is_asked_for_what_the_first_does_not_know(root: Path) -> None:
    with run(root, DOCKER, NOT_FOUND), run(root, PODMAN, NAMED):
        assert ContainerNames(root, timeout=PATIENT).find(ID) == "trainer"


def test_unknown_container_is_asked_for_again_after_a_while(root: Path) -> None:
    clock = Clock()
    with run(root, DOCKER, NOT_FOUND) as runtime:
        names = ContainerNames(root, timeout=PATIENT, clock=clock)
        assert [names.find(ID), names.find(ID)] == [None, None]
        assert len(runtime.questions) == 1
        runtime.pieces = [NAMED]
        clock.now += 60
        assert names.find(ID) == "trainer"


def test_runtime_that_hangs_is_waited_for_once_for_all_containers(root: Path) -> None:
    clock = Clock()
    with run(root, DOCKER, hangs=True) as runtime:
        names = ContainerNames(root, timeout=SOON, clock=clock)
        assert [names.find(ID), names.find(OTHER)] == [None, None]
        assert len(runtime.questions) <= 1
        assert names.find(ID) is None


def test_runtime_that_hung_is_asked_again_after_a_while(root: Path) -> None:
    clock = Clock()
    names = ContainerNames(root, timeout=PATIENT, clock=clock)
    assert names.find(ID) is None
    with run(root, DOCKER, NAMED):
        assert names.find(OTHER) is None
        clock.now += 60
        assert names.find(ID) == "trainer"


def test_runtime_that_hangs_in_the_middle_of_its_answer_is_left(root: Path) -> None:
    with run(root, DOCKER, NAMED[:-5], hangs=True), run(root, PODMAN, NAMED):
        assert ContainerNames(root, timeout=1.0).find(ID) == "trainer"


def test_endless_answer_is_cut_off(root: Path) -> None:
    with run(root, DOCKER, b"HTTP/1.0 200 OK\r\n\r\n" + b" " * (1024 * 1024)):
        assert ContainerNames(root, timeout=PATIENT).find(ID) is None


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense",
        b"HTTP/1.0 200 OK\r\n\r\nnonsense",
        b"HTTP/1.0 200 OK\r\n\r\n{}",
        b'HTTP/1.0 200 OK\r\n\r\n{"Name": 5}',
        b'HTTP/1.0 200 OK\r\n\r\n{"Name": "/"}',
        b'HTTP/1.0 200 OK\r\n\r\n{"Name": "\xff"}',
        b'HTTP/1.0 500 Internal Server Error\r\n\r\n{"Name": "/x"}',
    ],
)
def test_answer_that_is_none_gives_no_name(root: Path, answer: bytes) -> None:
    with run(root, DOCKER, answer):
        assert ContainerNames(root, timeout=PATIENT).find(ID) is None


def test_name_is_fit_for_a_screen(root: Path) -> None:
    with run(root, DOCKER, b'HTTP/1.0 200 OK\r\n\r\n{"Name": "/a\\u001b[31mb' + b"c" * 500 + b'"}'):
        name = ContainerNames(root, timeout=PATIENT).find(ID)
    assert name == "a[31mb" + "c" * 122


def test_own_runtime_of_a_user_is_asked_for_what_runs_in_their_session_only(root: Path) -> None:
    with run(root, OF_ALICE, NAMED) as runtime:
        names = ContainerNames(root, timeout=PATIENT)
        assert names.find(OTHER) is None
        assert runtime.questions == []
        assert names.find(ID, 1000) == "trainer"


def test_names_of_many_containers_do_not_pile_up(root: Path) -> None:
    names = ContainerNames(root)
    for number in range(5000):
        names.find(f"{number:064x}")
    assert len(names.names) < 5000
