"""Long lists are read in a process of their own, and mean the same there."""

import os

import msgspec
import pytest

from gpudeck.discovery import inputs
from gpudeck.discovery.base import HostFindings
from gpudeck.discovery.consul import read_instances
from gpudeck.discovery.inputs import LONG_BYTES, read_list
from gpudeck.discovery.prometheus_sd import read_file, read_targets
from gpudeck.model.errors import Temporary
from gpudeck.model.target import Target

GROUPS = [{"targets": [f"gpu{number:04}:9400", "b:x"], "labels": {"rack": "b3"}} for number in range(8000)]


def tell_process(body: bytes, origin: str) -> HostFindings:
    findings = HostFindings()
    findings.add([Target(name=f"pid{os.getpid()}", origin=origin)], "")
    return findings


def test_only_a_long_list_has_a_process_of_its_own() -> None:
    here = read_list(tell_process, b"x" * LONG_BYTES, "list")
    assert [target.name for target in here.targets] == [f"pid{os.getpid()}"]
    body = msgspec.json.encode(GROUPS)
    assert len(body) > LONG_BYTES
    there = read_list(read_targets, body, "http_sd x", "scrape", "x")
    assert len(there.targets) == 8000
    assert there.targets[7] == Target(
        name="gpu0007", via="scrape", port=9400, labels={"rack": "b3"}, origin="http_sd x"
    )
    assert there.problems[-1].endswith("more problems are not shown.")


def test_what_a_long_list_is_refused_for_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "LONG_BYTES", 0)
    with pytest.raises(Temporary, match=r"^http://c:1 answers no list of instances in JSON\. Is that the address"):
        read_list(read_instances, b"<html>", "consul gpu", "pull", "http://c:1")
    with pytest.raises(Temporary, match=r"^a\.yml cannot be used: line 1"):
        read_list(read_file, b"- a: b: c", "file_sd", "scrape", "a.yml")


def test_a_list_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "SECONDS", 0.01)
    with pytest.raises(Temporary, match=r"the list of 1\.0 MiB could not be read within 0\.01 s and 2 GiB of memory"):
        read_list(read_instances, b"[" + b" " * 2**20, "consul gpu", "pull", "http://c:1")
