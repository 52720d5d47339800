"""hosts.txt: one host a line, watched."""

import asyncio
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudeck.discovery.host_names import is_host_name
from gpudeck.discovery.inputs import MAX_FILE_BYTES, MAX_HOSTS, MAX_PROBLEMS, FileThread
from gpudeck.discovery.static import HostsFile, HostsFileSettings, read_hosts
from gpudeck.model.errors import Temporary
from gpudeck.model.target import Target


def names_in(provider: HostsFile) -> list[str]:
    return [target.name for target in asyncio.run(provider.find())]


def write(file: Path, text: str, moment: int) -> None:
    """Write as an editor does, at a moment of its own however coarse the file system's clock is."""
    file.write_text(text)
    os.utime(file, (moment, moment))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "hosts.txt"


@pytest.fixture
def provider(file: Path) -> HostsFile:
    return HostsFile(HostsFileSettings(str(file)))


def test_every_form_of_a_line_is_read() -> None:
    content = b"""\xef\xbb\xbf# our hosts
gpu01
gpu02:2222\r
ada@gpu03:2222   rack=b3 note=a=b  # a comment

r[1-2]n[08-09]
[2001:db8::17]:9400
ada@[::1]
10.0.0.7
"""
    findings = read_hosts(content, "hosts.txt", "ssh")
    assert findings.problems == []
    assert findings.targets == [
        Target(name="gpu01", origin="hosts.txt", is_operators=True),
        Target(name="gpu02", port=2222, origin="hosts.txt", is_operators=True),
        Target(
            name="gpu03",
            user="ada",
            port=2222,
            labels={"rack": "b3", "note": "a=b"},
            origin="hosts.txt",
            is_operators=True,
        ),
        *(Target(name=name, origin="hosts.txt", is_operators=True) for name in ("r1n08", "r1n09", "r2n08", "r2n09")),
        Target(name="2001-db8--17", address="2001:db8::17", port=9400, origin="hosts.txt", is_operators=True),
        Target(name="0--1", address="::1", user="ada", origin="hosts.txt", is_operators=True),
        Target(name="10.0.0.7", origin="hosts.txt", is_operators=True),
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"gpu 02", "'02' is no label; write name=value"),
        (b"gpu02 =b3", "'=b3' is no label; write name=value"),
        (b"gpu[9-2]", "[9-2] goes down; write [2-9]"),
        (b"gpu02:ssh", "'gpu02:ssh' is no host: write name, name:port, user@name:port or [IPv6]:port"),
        (b"gpu02:0", "'gpu02:0' has no port from 1 to 65535"),
        (b"gpu02:65536", "'gpu02:65536' has no port from 1 to 65535"),
        (b"http://gpu02", "'http://gpu02' is no host: write name, name:port, user@name:port or [IPv6]:port"),
        (b"[1:2]:22", "'1:2' is no IPv6 address"),
        (b"gpu\xff", "'gpu\ufffd' is no name of a host: that is at most 253 letters, digits"),
        (b"gpu\x1b[31m", "'gpu\\x1b[31m' has a bracket without its other half"),
    ],
)
def test_bad_line_is_told_and_hides_no_neighbour(line: bytes, problem: str) -> None:
    findings = read_hosts(b"gpu01\n" + line + b"\ngpu03\n", "hosts.txt", "ssh")
    assert {"gpu01", "gpu03"} <= {target.name for target in findings.targets}
    (told,) = findings.problems
    assert told.startswith(f"hosts.txt, line 2: {problem}")


def test_hosts_and_problems_are_bounded() -> None:
    too_many = read_hosts(b"a[1-9999]\nb[1-9999]\nc[1-9999]\nd\n", "hosts.txt", "ssh")
    assert len(too_many.targets) == MAX_HOSTS
    assert too_many.problems[0].startswith("hosts.txt, line 3: from here on hosts are left out")
    all_bad = read_hosts(b"-\n" * 5000, "hosts.txt", "ssh")
    assert len(all_bad.problems) == MAX_PROBLEMS
    assert all_bad.problems[-1] == "4901 more problems are not shown."


@given(st.binary(max_size=200) | st.text(alphabet="ab1[]-,:@#= \n%", max_size=80).map(str.encode))
def test_any_bytes_are_hosts_with_valid_names_or_problems_of_one_line(content: bytes) -> None:
    findings = read_hosts(content, "hosts.txt", "ssh")
    assert all(is_host_name(target.name) for target in findings.targets)
    assert all(problem.isprintable() for problem in findings.problems)


def test_change_is_read_when_the_file_is_finished(file: Path, provider: HostsFile) -> None:
    write(file, "gpu01\ngpu02\n", 1)
    assert names_in(provider) == ["gpu01", "gpu02"]
    write(file, "gpu01\ngp", 2)
    assert names_in(provider) == ["gpu01", "gpu02"]
    write(file, "gpu01\ngpu02\ngpu03\n", 3)
    assert names_in(provider) == ["gpu01", "gpu02"]
    assert names_in(provider) == ["gpu01", "gpu02", "gpu03"]


def test_file_that_is_replaced_is_read_though_its_size_and_time_are_the_same(file: Path, provider: HostsFile) -> None:
    write(file, "gpu01\n", 1)
    assert names_in(provider) == ["gpu01"]
    write(file.with_suffix(".new"), "gpu02\n", 1)
    file.with_suffix(".new").replace(file)
    assert names_in(provider) == ["gpu01"]
    assert names_in(provider) == ["gpu02"]


def test_unchanged_file_is_not_read_again(file: Path, provider: HostsFile) -> None:
    write(file, "gpu01\n", 1)
    first = asyncio.run(provider.find())
    assert asyncio.run(provider.find()) is first


def test_message_calls_the_file_as_the_settings_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(Temporary, match=r"^~/racks\.txt cannot be read"):
        asyncio.run(HostsFile(HostsFileSettings(path="~/racks.txt")).find())


def test_missing_file_is_temporary_and_read_when_it_comes(file: Path, provider: HostsFile) -> None:
    with pytest.raises(Temporary, match=r"hosts\.txt cannot be read: no such file or directory\.$"):
        asyncio.run(provider.find())
    write(file, "gpu01\n", 1)
    assert names_in(provider) == ["gpu01"]
    file.unlink()
    with pytest.raises(Temporary, match="no such file"):
        asyncio.run(provider.find())
    write(file, "gpu02\n", 1)
    assert names_in(provider) == ["gpu02"]


def test_what_is_no_file_is_not_opened(file: Path, provider: HostsFile) -> None:
    os.mkfifo(file)
    with pytest.raises(Temporary, match="it is no file"):
        asyncio.run(provider.find())


def test_huge_file_is_not_read(file: Path, provider: HostsFile) -> None:
    with file.open("wb") as opened:
        opened.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(Temporary, match="it is larger than 2 MiB"):
        asyncio.run(provider.find())


def test_look_that_hangs_is_not_followed_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudeck.discovery.inputs.LOOK_TIMEOUT", 0.05)
    hung = threading.Event()

    async def looking() -> int:
        thread = FileThread()
        first = asyncio.create_task(thread.run(hung.wait))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(Temporary, match=r"the files do not answer\. Is their file system there\?"):
            await thread.run(lambda: 1)
        hung.set()
        return await thread.run(lambda: 2)

    assert asyncio.run(looking()) == 2


def test_tilde_is_the_home_folder(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(file.parent))
    write(file, "gpu01\n", 1)
    provider = HostsFile(HostsFileSettings("~/hosts.txt"))
    assert names_in(provider) == ["gpu01"]
    assert provider.origin == "~/hosts.txt"
