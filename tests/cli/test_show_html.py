"""gpudeck show --html through a real hub: the file is there whole or not at all, and - is the standard output."""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.hubs import HubProcess, gpudeck
from fakes.still_fleet import running_still_hub


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with running_still_hub(tmp_path_factory.mktemp("still")) as hub:
        yield hub


def names_in(page: str, hub: HubProcess) -> set[str]:
    hosts = json.loads(hub.get("/api/v1/fleet"))["hosts"]
    return {host["name"] for host in hosts if f"<b>{host['name']}</b>" in page}


def test_page_is_written_and_nothing_else_is_said_or_left(still: HubProcess, tmp_path: Path) -> None:
    answer = gpudeck(still.data_dir, "show", "--hub", still.url, "--html", str(tmp_path / "fleet.html"))
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")
    assert [path.name for path in tmp_path.iterdir()] == ["fleet.html"]
    page = (tmp_path / "fleet.html").read_text()
    assert page.startswith("<!doctype html>")
    assert len(names_in(page, still)) >= 5


def test_minus_is_the_standard_output_and_words_choose(still: HubProcess) -> None:
    name = json.loads(still.get("/api/v1/fleet"))["hosts"][0]["name"]
    answer = gpudeck(still.data_dir, "show", name, "--hub", still.url, "--html", "-")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert names_in(answer.stdout, still) == {name}


def test_old_page_is_replaced_also_behind_a_link(still: HubProcess, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    target = tmp_path / "site" / "fleet.html"
    target.write_text("the page before")
    (tmp_path / "link.html").symlink_to(target)
    answer = gpudeck(still.data_dir, "show", "--hub", still.url, "--html", str(tmp_path / "link.html"))
    assert answer.returncode == 0
    assert (tmp_path / "link.html").is_symlink()
    assert target.read_text().startswith("<!doctype html>")
    umask = os.umask(0o022)
    os.umask(umask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~umask


def test_page_before_stays_where_the_hub_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "fleet.html").write_text("the page before")
    file = str(tmp_path / "fleet.html")
    answer = gpudeck(tmp_path, "show", "--hub", "http://127.0.0.1:9", "--html", file)
    assert answer.returncode == 3
    assert (tmp_path / "fleet.html").read_text() == "the page before"


@pytest.mark.parametrize("file", ["missing/fleet.html", ".", ""])
def test_file_that_cannot_be_written_is_named(still: HubProcess, file: str) -> None:
    answer = gpudeck(still.data_dir, "show", "--hub", still.url, "--html", file)
    assert (answer.returncode, answer.stdout) == (1, "")
    assert f"{file} could not be written: " in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("other", [["--json"], ["--csv"], ["--detail"], ["--watch", "5"]])
def test_page_goes_with_no_other_form(tmp_path: Path, other: list[str]) -> None:
    answer = gpudeck(tmp_path, "show", "--html", str(tmp_path / "fleet.html"), *other)
    assert answer.returncode == 2
    assert f"--html and {other[0]} exclude each other" in answer.stderr
    assert not (tmp_path / "fleet.html").exists()


def test_words_that_fit_nothing_give_an_empty_page_and_say_so(still: HubProcess, tmp_path: Path) -> None:
    answer = gpudeck(still.data_dir, "show", "h900", "--hub", still.url, "--html", str(tmp_path / "fleet.html"))
    assert answer.returncode == 1
    assert "nothing matches h900" in answer.stderr
    assert "<title>0 of 0 GPUs free</title>" in (tmp_path / "fleet.html").read_text()
