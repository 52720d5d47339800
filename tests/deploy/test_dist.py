"""What is handed out: complete, and installed on a machine that has no index, no compiler and no node."""

import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from pathlib import Path

import pytest

from fakes.distribution import build, fill_wheelhouse, install
from fakes.hubs import environment
from gpudeck import __version__

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheelhouse(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheelhouse")
    fill_wheelhouse(folder, built[1])
    return folder


def test_wheel_has_the_page_and_is_for_any_machine(built: tuple[Path, Path]) -> None:
    wheel = built[1]
    names = zipfile.ZipFile(wheel).namelist()
    assert wheel.name == f"gpudeck-{__version__}-py3-none-any.whl"
    assert "gpudeck/api/page/index.html" in names
    assert "gpudeck/py.typed" in names


def test_source_has_what_the_page_is_made_of_and_nothing_of_this_machine(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    assert {
        "LICENSE",
        "README.md",
        "hatch_build.py",
        "web/package-lock.json",
        "src/gpudeck/api/page/index.html",
    } <= names
    assert not any("node_modules" in name or "__pycache__" in name or ".venv" in name for name in names)


def test_agent_is_installed_without_index_compiler_and_node(wheelhouse: Path, tmp_path: Path) -> None:
    install(sys.executable, tmp_path / "venv", wheelhouse, "gpudeck")
    program = tmp_path / "venv" / "bin" / "gpudeck"
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=60)
    assert __version__ in told.stdout
    refused = subprocess.run([program, "up"], capture_output=True, text=True, check=False, timeout=60)
    assert (refused.returncode, "hub extra" in refused.stderr) == (2, True)


def test_hub_of_the_wheel_serves_its_page(wheelhouse: Path, tmp_path: Path) -> None:
    install(sys.executable, tmp_path / "venv", wheelhouse, "gpudeck[hub]")
    program = tmp_path / "venv" / "bin" / "gpudeck"
    command = [program, "up", "--demo", "1", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, text=True) as hub:
        try:
            assert hub.stdout is not None
            (url,) = (line.split()[1] for line in iter(hub.stdout.readline, "Ctrl-C stops it.\n") if " page " in line)
            with urllib.request.urlopen(url, timeout=20) as page:
                assert b"<title>" in page.read()
        finally:
            hub.terminate()
